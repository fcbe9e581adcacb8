//! The header of the TransferEngine for C, from the crate's sources.

use cbindgen::{Builder, Config};

use crate::tree::Tree;

/// The header.
pub(super) const PATH: &str = "transfer-engine/c/include/weft.h";

const CONFIG: &str = "transfer-engine/c/cbindgen.toml";
const SOURCES: &str = "transfer-engine/c/src/";

/// What a reader needs first comes first; a file that is not listed comes last.
const ORDER: [&str; 9] = [
    "status",
    "engine",
    "names",
    "memory",
    "operation",
    "write",
    "message",
    "counter",
    "watcher",
];

/// The text of the header, or why there is none.
pub(super) fn text(tree: &Tree) -> Result<String, String> {
    let mut sources: Vec<&str> = tree.rust().map(|(file, _)| file.path.as_str()).collect();
    // `lib.rs` would bring its modules a second time, in another order.
    sources.retain(|path| path.starts_with(SOURCES) && !path.ends_with("/lib.rs"));
    sources.sort_by_key(|path| {
        let name = &path[SOURCES.len()..path.len() - ".rs".len()];
        let place = ORDER.iter().position(|it| *it == name);
        place.unwrap_or(ORDER.len())
    });
    let config = Config::from_file(tree.root().join(CONFIG))?;
    let builder = sources
        .iter()
        .fold(Builder::new().with_config(config), |builder, source| {
            builder.with_src(tree.root().join(source))
        });
    let bindings = builder.generate().map_err(|error| error.to_string())?;
    let mut text = Vec::new();
    bindings.write(&mut text);
    String::from_utf8(text).map_err(|error| error.to_string())
}

//! Names the shared object, and its version nodes. They are empty: `.symver` in `src/symbols.rs` puts each symbol into its
//! own, as in `libibverbs.so.1`. `WEFT_LIBRARY` has no symbol: by it `weft device doctor` tells this library from others.

use std::path::PathBuf;

const NODES: &str = "WEFT_LIBRARY { };
RDMACM_1.0 { };
RDMACM_1.1 { } RDMACM_1.0;
RDMACM_1.2 { } RDMACM_1.1;
RDMACM_1.3 { } RDMACM_1.2;
";

fn main() {
    let out = std::env::var_os("OUT_DIR").map(PathBuf::from);
    let out = out.expect("cargo sets OUT_DIR");
    let path = out.join("versions");
    std::fs::write(&path, NODES).expect("cargo's directory can be written to");
    // What unwinds is linked in: a container's image may have no libgcc_s.so.1.
    std::fs::write(out.join("libgcc_s.so"), "INPUT(-lgcc_eh -lgcc)\n")
        .expect("cargo's directory can be written to");
    println!("cargo::rustc-link-search=native={}", out.display());
    println!("cargo::rerun-if-changed=build.rs");
    println!(
        "cargo::rustc-cdylib-link-arg=-Wl,--version-script={}",
        path.display()
    );
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,librdmacm.so.1");
}

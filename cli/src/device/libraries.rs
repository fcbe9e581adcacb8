//! The libraries that a device's programs load: which copies of them there are, and whether a file is Weft's.

use std::{
    collections::BTreeSet,
    env, fs,
    path::{Component, Path, PathBuf},
};

use object::{Architecture, Endianness, Object as _, read::elf::ElfFile64};

/// What programs call the libraries, without a version.
pub(super) const NAMES: [&str; 2] = ["libibverbs.so", "librdmacm.so"];
/// A version node without symbols, which Weft's libraries alone have.
const NODE: &[u8] = b"WEFT_LIBRARY";
const CONFIG: &str = "/etc/ld.so.conf";
/// Where a prefix has libraries. Wheels have theirs beside the package, with a digest in their names.
const FOLDERS: [&str; 4] = [
    "lib*",
    "lib/*-linux-gnu",
    "lib*/python3*/site-packages/*.libs",
    "lib*/python3*/dist-packages/*.libs",
];

/// Whether a file is Weft's library; nothing of a file that this machine's programs cannot load.
pub(super) fn is_weft(file: &Path) -> Option<bool> {
    let bytes = fs::read(file).ok()?;
    let elf = ElfFile64::<Endianness>::parse(&*bytes).ok()?;
    let is_of_this_machine = match elf.architecture() {
        Architecture::X86_64 => cfg!(target_arch = "x86_64"),
        Architecture::Aarch64 => cfg!(target_arch = "aarch64"),
        _ => false,
    };
    let (endian, sections) = (elf.endian(), elf.elf_section_table());
    let nodes = sections.gnu_verdef(endian, &*bytes).ok()?;
    let is_ours = nodes.is_some_and(|(nodes, strings)| {
        let strings = sections.strings(endian, &*bytes, strings);
        let names = nodes
            .flatten()
            .filter_map(|(_, mut names)| names.next().ok()?);
        strings.is_ok_and(|strings| {
            let mut names = names.filter_map(|name| name.name(endian, strings).ok());
            names.any(|name| name == NODE)
        })
    });
    is_of_this_machine.then_some(is_ours)
}

/// Which library a file is by its name: `libibverbs.so.1`, or `libibverbs-1de1263b.so.1.14.48.0` of a wheel.
pub(super) fn library_of(file: &Path) -> Option<&'static str> {
    let file = file.file_name()?.to_str()?;
    let is_named = |name: &&str| {
        let rest = name
            .strip_suffix(".so")
            .and_then(|stem| file.strip_prefix(stem));
        rest.is_some_and(|rest| {
            rest.starts_with(".so") || (rest.starts_with('-') && rest.contains(".so"))
        })
    };
    NAMES.into_iter().find(is_named)
}

/// The folders that a pattern names: at most one `*` in each part.
fn expand(pattern: &Path) -> Vec<PathBuf> {
    let mut found = vec![PathBuf::new()];
    for part in pattern.components() {
        let part = match part {
            Component::Normal(part) => part.to_string_lossy(),
            other => {
                found.iter_mut().for_each(|path| path.push(other));
                continue;
            }
        };
        let Some((begin, end)) = part.split_once('*') else {
            found.iter_mut().for_each(|path| path.push(&*part));
            continue;
        };
        let entries = found.iter().flat_map(fs::read_dir).flatten().flatten();
        let fits = |entry: &fs::DirEntry| {
            let name = entry.file_name();
            let rest = name.to_str().and_then(|name| name.strip_prefix(begin));
            rest.is_some_and(|rest| rest.ends_with(end))
        };
        found = entries.filter(fits).map(|entry| entry.path()).collect();
    }
    found.retain(|path| path.is_dir());
    found
}

/// The folders that a file of the dynamic linker names.
fn configured(file: &Path) -> Vec<PathBuf> {
    let text = fs::read_to_string(file).unwrap_or_default();
    text.lines()
        .filter(|line| line.starts_with('/'))
        .map(PathBuf::from)
        .collect()
}

/// Where programs' libraries may be: where the dynamic linker looks, and what comes with a Python or with a program in PATH.
fn folders() -> BTreeSet<PathBuf> {
    let list = |name: &str| {
        let value = env::var_os(name).unwrap_or_default();
        env::split_paths(&value).collect::<Vec<_>>()
    };
    let mut prefixes: Vec<PathBuf> = ["/", "/usr", "/usr/local"].map(PathBuf::from).to_vec();
    prefixes.extend(expand(Path::new("/opt/*")));
    prefixes.extend(
        list("PATH")
            .iter()
            .filter_map(|path| Some(path.parent()?.to_owned())),
    );
    prefixes.extend(
        ["VIRTUAL_ENV", "CONDA_PREFIX"]
            .into_iter()
            .filter_map(env::var_os)
            .map(PathBuf::from),
    );
    prefixes.extend(env::var_os("HOME").map(|home| Path::new(&home).join(".local")));
    let patterns = prefixes
        .iter()
        .flat_map(|prefix| FOLDERS.map(|folder| prefix.join(folder)));
    let mut folders: BTreeSet<PathBuf> = patterns.flat_map(|pattern| expand(&pattern)).collect();
    folders.extend(list("LD_LIBRARY_PATH"));
    folders.extend(configured(Path::new(CONFIG)));
    for entry in fs::read_dir("/etc/ld.so.conf.d")
        .into_iter()
        .flatten()
        .flatten()
    {
        folders.extend(configured(&entry.path()));
    }
    folders
}

/// A file that programs of this machine may load as one of the libraries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Copy {
    /// The file itself, not a link to it.
    pub(super) file: PathBuf,
    /// Of [`NAMES`].
    pub(super) library: &'static str,
    pub(super) is_weft: bool,
}

/// All copies where programs look for them.
pub(super) fn copies() -> Vec<Copy> {
    copies_in(&folders())
}

fn copies_in(folders: &BTreeSet<PathBuf>) -> Vec<Copy> {
    let entries = folders.iter().flat_map(fs::read_dir).flatten().flatten();
    let named = entries
        .map(|entry| entry.path())
        .filter(|path| library_of(path).is_some());
    let files: BTreeSet<PathBuf> = named.filter_map(|path| path.canonicalize().ok()).collect();
    // To read a pipe would wait for who writes to it.
    let files = files.into_iter().filter(|file| file.is_file());
    let copy = |file: PathBuf| {
        Some(Copy {
            // A link may lead to what is no library.
            library: library_of(&file)?,
            is_weft: is_weft(&file)?,
            file,
        })
    };
    files.filter_map(copy).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_is_known_by_its_name_also_with_a_digest_in_it() {
        let library = |file: &str| library_of(Path::new(file));
        assert_eq!(
            library("/lib/libibverbs.so.1.14.44.0"),
            Some("libibverbs.so")
        );
        assert_eq!(
            library("x.libs/libibverbs-1de1263b.so.1.14.48.0"),
            Some("libibverbs.so")
        );
        assert_eq!(library("librdmacm.so"), Some("librdmacm.so"));
        for other in [
            "libibverbs",
            "libibverbs.a",
            "libibverbs-rdmav34",
            "libmlx5.so.1",
        ] {
            assert_eq!(library(other), None, "{other}");
        }
    }

    #[test]
    fn links_lead_to_one_copy_and_what_is_no_library_is_none() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().canonicalize().unwrap();
        let folder = root.join("lib/python3.11/site-packages/some.libs");
        fs::create_dir_all(&folder).unwrap();
        let file = folder.join("libibverbs-0123abcd.so.1");
        // Any library of this machine; this program is one to the parser.
        fs::copy(env::current_exe().unwrap(), &file).unwrap();
        std::os::unix::fs::symlink(&file, folder.join("libibverbs.so")).unwrap();
        fs::write(
            folder.join("libibverbs.so.1"),
            "INPUT(libibverbs-0123abcd.so.1)",
        )
        .unwrap();
        let folders = FOLDERS
            .iter()
            .flat_map(|part| expand(&root.join(part)))
            .collect();
        let copy = Copy {
            file,
            library: "libibverbs.so",
            is_weft: false,
        };
        assert_eq!(copies_in(&folders), [copy]);
    }
}

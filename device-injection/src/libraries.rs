//! The libraries that a device's programs load: which copies of them there are, and whether a file is Weft's.

use std::collections::BTreeSet;
use std::env;
use std::io::Read as _;
use std::path::{Component, Path, PathBuf};

use object::read::elf::{ElfFile64, SectionHeader as _};
use object::{Architecture, Endianness, Object as _};

use crate::root::{Found, Root};

/// What programs call the libraries, without a version.
pub const NAMES: [&str; 2] = ["libibverbs.so", "librdmacm.so"];
/// A version node without symbols, which Weft's libraries alone have.
const NODE: &[u8] = b"WEFT_LIBRARY\0";
/// Version nodes that are looked at: Weft's libibverbs has some 120.
const NODES_MAX: usize = 1024;
const CONFIG: &str = "/etc/ld.so.conf";
/// Of a configuration of the dynamic linker; a longer one names nothing.
const CONFIG_BYTES_MAX: u64 = 64 << 10;
/// Of a library: a longer file is none. rdma-core's have 0.2 MB.
const LIBRARY_BYTES_MAX: u64 = 16 << 20;
/// Folders that are looked into: more than any image has. It takes 1 ms for some 500.
const FOLDERS_MAX: usize = 4096;
/// Copies that are looked at.
const COPIES_MAX: usize = 256;
/// Where a prefix has libraries. Wheels have theirs beside the package, with a digest in their names.
const FOLDERS: [&str; 4] = [
    "lib*",
    "lib/*-linux-gnu",
    "lib*/python3*/site-packages/*.libs",
    "lib*/python3*/dist-packages/*.libs",
];

/// Whether a file is Weft's library; nothing of a file that this machine's programs cannot load.
#[must_use]
pub fn is_weft(file: &Path) -> Option<bool> {
    is_weft_library(&std::fs::read(file).ok()?)
}

fn is_weft_library(bytes: &[u8]) -> Option<bool> {
    let elf = ElfFile64::<Endianness>::parse(bytes).ok()?;
    let is_of_this_machine = match elf.architecture() {
        Architecture::X86_64 => cfg!(target_arch = "x86_64"),
        Architecture::Aarch64 => cfg!(target_arch = "aarch64"),
        _ => false,
    };
    let (endian, sections) = (elf.endian(), elf.elf_section_table());
    let nodes = sections.gnu_verdef(endian, bytes).ok()?;
    let is_ours = nodes.is_some_and(|(nodes, strings)| {
        let strings = sections.section(strings);
        let strings = strings.and_then(|section| section.data(endian, bytes));
        let names = nodes.flatten().take(NODES_MAX);
        let mut names = names.filter_map(|(_, mut names)| names.next().ok()?);
        // Without a look for the end of a name, which may be far away.
        strings.is_ok_and(|strings| {
            names.any(|name| {
                let begin = usize::try_from(name.vda_name.get(endian)).ok();
                let rest = begin.and_then(|begin| strings.get(begin..));
                rest.is_some_and(|rest| rest.starts_with(NODE))
            })
        })
    });
    is_of_this_machine.then_some(is_ours)
}

/// Which library a file is by its name: `libibverbs.so.1`, or `libibverbs-1de1263b.so.1.14.48.0` of a wheel.
#[must_use]
pub fn library_of(file: &Path) -> Option<&'static str> {
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
fn expand(root: &Root, pattern: &Path) -> Vec<PathBuf> {
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
        let fits = |name: &std::ffi::OsString| {
            let rest = name.to_str().and_then(|name| name.strip_prefix(begin));
            rest.is_some_and(|rest| rest.ends_with(end))
        };
        let inside = |folder: &PathBuf| {
            let names = root.names(folder).into_iter().filter(fits);
            names.map(|name| folder.join(name)).collect::<Vec<_>>()
        };
        found = found.iter().flat_map(inside).take(FOLDERS_MAX).collect();
    }
    found.retain(|path| root.is_directory(path));
    found
}

/// The folders that a file of the dynamic linker names.
fn configured(root: &Root, file: &Path) -> Vec<PathBuf> {
    let text = root.text(file, CONFIG_BYTES_MAX);
    text.lines()
        .filter(|line| line.starts_with('/'))
        .map(PathBuf::from)
        .collect()
}

/// What else tells where libraries are: variables of the program that is to find them.
#[derive(Debug, Clone, Default)]
pub struct Environment {
    /// Folders of libraries.
    pub folders: Vec<PathBuf>,
    /// Folders with a `lib` in them.
    pub prefixes: Vec<PathBuf>,
}

impl Environment {
    /// This process's own.
    #[must_use]
    pub fn own() -> Self {
        let list = |name: &str| {
            let value = env::var_os(name).unwrap_or_default();
            env::split_paths(&value).collect::<Vec<_>>()
        };
        let paths = list("PATH");
        let beside = paths
            .iter()
            .filter_map(|path| Some(path.parent()?.to_owned()));
        let prefixes = ["VIRTUAL_ENV", "CONDA_PREFIX"]
            .into_iter()
            .filter_map(env::var_os)
            .map(PathBuf::from);
        let home = env::var_os("HOME").map(|home| Path::new(&home).join(".local"));
        Self {
            folders: list("LD_LIBRARY_PATH"),
            prefixes: beside.chain(prefixes).chain(home).collect(),
        }
    }
}

/// Where programs' libraries may be: where the dynamic linker looks, and what comes with a Python or with a program in PATH.
fn folders(root: &Root, environment: &Environment) -> BTreeSet<PathBuf> {
    let mut prefixes: Vec<PathBuf> = ["/", "/usr", "/usr/local"].map(PathBuf::from).to_vec();
    prefixes.extend(expand(root, Path::new("/opt/*")));
    prefixes.extend(environment.prefixes.iter().cloned());
    let patterns = prefixes
        .iter()
        .flat_map(|prefix| FOLDERS.map(|folder| prefix.join(folder)));
    let mut folders: BTreeSet<PathBuf> = patterns
        .flat_map(|pattern| expand(root, &pattern))
        .take(FOLDERS_MAX)
        .collect();
    folders.extend(environment.folders.iter().cloned());
    folders.extend(configured(root, Path::new(CONFIG)));
    let configurations = Path::new("/etc/ld.so.conf.d");
    for name in root.names(configurations).into_iter().take(FOLDERS_MAX) {
        folders.extend(configured(root, &configurations.join(name)));
    }
    folders
}

/// A file that programs may load as one of the libraries.
#[derive(Debug)]
pub struct Copy {
    /// The file itself, not a link to it.
    pub file: Found,
    /// A name of it.
    pub path: PathBuf,
    /// Of [`NAMES`].
    pub library: &'static str,
    /// Whether it is Weft's.
    pub is_weft: bool,
}

/// All copies where programs look for them, each once.
#[must_use]
pub fn copies(root: &Root, environment: &Environment) -> Vec<Copy> {
    copies_in(root, &folders(root, environment))
}

fn copies_in(root: &Root, folders: &BTreeSet<PathBuf>) -> Vec<Copy> {
    let named = folders.iter().take(FOLDERS_MAX).flat_map(|folder| {
        let names = root.names(folder).into_iter();
        let named = names.filter(|name| library_of(Path::new(name)).is_some());
        named.map(|name| folder.join(name)).collect::<Vec<_>>()
    });
    let mut seen = BTreeSet::new();
    let copy = |path: PathBuf| {
        let file = root.find(&path).ok()?;
        let is_new = seen.insert(file.identity().ok()?);
        let path = file.path().ok().filter(|_| is_new)?;
        // A link may lead to what is no library.
        let library = library_of(&path)?;
        let mut bytes = Vec::new();
        let content = file.read().ok()?;
        content
            .take(LIBRARY_BYTES_MAX)
            .read_to_end(&mut bytes)
            .ok()?;
        let is_weft = is_weft_library(&bytes)?;
        Some(Copy {
            file,
            path,
            library,
            is_weft,
        })
    };
    named.take(COPIES_MAX).filter_map(copy).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

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

    /// A library of this machine with these version nodes, and with nothing else.
    fn library(nodes: &[&str]) -> Vec<u8> {
        const HEADER: u64 = 64;
        let machine = match cfg!(target_arch = "x86_64") {
            true => object::elf::EM_X86_64,
            false => object::elf::EM_AARCH64,
        };
        let (mut entries, mut strings) = (Vec::new(), Vec::new());
        for (number, name) in nodes.iter().enumerate() {
            let next = if number + 1 == nodes.len() { 0_u32 } else { 28 };
            // Elf64_Verdef, with one name.
            entries.extend([1_u16, 0, 1, 1].map(u16::to_le_bytes).concat());
            entries.extend([0, 20, next].map(u32::to_le_bytes).concat());
            let name_at = u32::try_from(strings.len()).unwrap();
            entries.extend([name_at, 0].map(u32::to_le_bytes).concat());
            strings.extend(name.as_bytes());
            strings.push(0);
        }
        // The sections' headers are aligned.
        let end = (entries.len() + strings.len()).next_multiple_of(8);
        strings.resize(end - entries.len(), 0);
        let mut file = b"\x7fELF\x02\x01\x01".to_vec();
        file.resize(16, 0);
        file.extend([3, machine].map(u16::to_le_bytes).concat());
        file.extend(1_u32.to_le_bytes());
        let (entries_at, strings_at) = (HEADER, HEADER + entries.len() as u64);
        let sections_at = strings_at + strings.len() as u64;
        file.extend([0, 0, sections_at].map(u64::to_le_bytes).concat());
        file.extend(0_u32.to_le_bytes());
        file.extend([64, 56, 0, 64, 3, 2].map(u16::to_le_bytes).concat());
        let section = |kind: u32, at: u64, bytes: &[u8], link: u32| {
            let mut header = [0, kind].map(u32::to_le_bytes).concat();
            let places = [0, 0, at, bytes.len() as u64];
            header.extend(places.map(u64::to_le_bytes).concat());
            header.extend([link, 0].map(u32::to_le_bytes).concat());
            header.extend([1, 0].map(u64::to_le_bytes).concat());
            header
        };
        let sections = [
            section(0, 0, &[], 0),
            section(object::elf::SHT_GNU_VERDEF, entries_at, &entries, 2),
            section(object::elf::SHT_STRTAB, strings_at, &strings, 0),
        ];
        [&[file, entries, strings][..], &sections].concat().concat()
    }

    #[test]
    fn of_a_library_s_version_nodes_so_many_are_looked_at() {
        let is_weft = |nodes: &[&str]| is_weft_library(&library(nodes));
        assert_eq!(is_weft(&["IBVERBS_1.0", "WEFT_LIBRARY"]), Some(true));
        for other in ["WEFT", "WEFT_LIBRARY_2", "IBVERBS_1.0"] {
            assert_eq!(is_weft(&["IBVERBS_1.0", other]), Some(false), "{other}");
        }
        // A hostile one: with names as long as the file it would take hours.
        let mut many = vec!["IBVERBS_1.0"; NODES_MAX];
        many.push("WEFT_LIBRARY");
        assert_eq!(is_weft(&many), Some(false));
        assert_eq!(is_weft(&many[1..]), Some(true));
    }

    #[test]
    fn links_lead_to_one_copy_and_what_is_no_library_is_none() {
        let directory = tempfile::tempdir().unwrap();
        let folder = directory
            .path()
            .join("usr/lib/python3.11/site-packages/some.libs");
        fs::create_dir_all(&folder).unwrap();
        let file = folder.join("libibverbs-0123abcd.so.1");
        // Any library of this machine; this program is one to the parser.
        fs::copy(env::current_exe().unwrap(), &file).unwrap();
        symlink(
            "/usr/lib/python3.11/site-packages/some.libs/libibverbs-0123abcd.so.1",
            folder.join("libibverbs.so"),
        )
        .unwrap();
        fs::write(
            folder.join("libibverbs.so.1"),
            "INPUT(libibverbs-0123abcd.so.1)",
        )
        .unwrap();
        // As a hostile image has it: a library of the node's own.
        symlink(env::current_exe().unwrap(), folder.join("librdmacm.so.1")).unwrap();
        let root = Root::open(directory.path()).unwrap();
        let copies = copies(&root, &Environment::default());
        let [copy] = copies.as_slice() else {
            panic!("{copies:?}")
        };
        assert!(copy.path.ends_with("some.libs/libibverbs-0123abcd.so.1"));
        assert_eq!((copy.library, copy.is_weft), ("libibverbs.so", false));
    }
}

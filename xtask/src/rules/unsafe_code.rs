//! Where `unsafe` may stand, and what must stand beside it.

use super::{Finding, Rule, Weight};
use crate::tree::Tree;

pub(super) const RULE: Rule = Rule {
    id: "unsafe",
    says: "`unsafe` stands only in the listed files, each use beside a comment that starts with \
           SAFETY.",
    why: "The compiler checks nothing there, so a person must; few places, each with its argument.",
    weight: Weight::Error,
    check,
};

/// A file, and why it cannot do without.
const PLACES: &[(&str, &str)] = &[
    (
        "python/src/dlpack.rs",
        "reads structures that other libraries make, as DLPack lays them out",
    ),
    (
        "python/src/memory.rs",
        "gives the engine memory of an object of Python, which keeps the object",
    ),
    (
        "transport/link/src/xdp/program.rs",
        "bpf(2), which no crate here has",
    ),
    (
        "transport/link/src/xdp/socket.rs",
        "frames that the kernel writes, which a packet must not outlive",
    ),
    (
        "transport/memory/src/copy.rs",
        "copies to and from memory that another thread or process may write at the same time",
    ),
    (
        "transport/memory/src/model.rs",
        "loom's cells, whose every use the model checks",
    ),
    (
        "transport/memory/src/published.rs",
        "readers follow a pointer without a lock; a loom model and a test with threads back it",
    ),
    (
        "transport/memory/src/region.rs",
        "memory that is shared as atomics and owned as bytes in turn, and a memfd's mapping",
    ),
    (
        "transport/memory/src/region/tests.rs",
        "a region over memory of an owner",
    ),
    (
        "transport/memory/src/missing_pages.rs",
        "system calls for pages that are missing, and the handler of the signal of an access to one",
    ),
    (
        "transport/memory/src/window.rs",
        "a mapping of another process's file, whose pages may be missing",
    ),
];

/// Folders whose interface is C's, so that nearly each function is unsafe to call. There each block of `unsafe` needs its
/// comment; clippy's `undocumented_unsafe_blocks` asks for it.
const FOLDERS: &[(&str, &str)] = &[
    (
        "transfer-engine/c/src/",
        "the TransferEngine for C: pointers, strings and callbacks of programs in C",
    ),
    (
        "transfer-engine/cuda/",
        "calls of NVIDIA's driver, and memory that the program must not free",
    ),
    (
        "transport/rdmacm-shim/src/",
        "librdmacm: pointers of programs in C, and functions of libibverbs",
    ),
    (
        "transport/verbs-abi/src/",
        "tables of functions of verbs.h: their types are unsafe to call, and nothing there calls one",
    ),
    (
        "transport/verbs-shim/src/",
        "libibverbs: pointers of programs in C, and tables of functions that they call",
    ),
];

/// How far above a use its SAFETY comment may begin.
const REACH: usize = 6;

fn check(tree: &Tree) -> Vec<Finding> {
    check_with(tree, PLACES)
}

fn check_with(tree: &Tree, places: &[(&str, &str)]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (file, source) in tree.rust() {
        if FOLDERS
            .iter()
            .any(|(folder, _)| file.path.starts_with(folder))
        {
            continue;
        }
        let place = places.iter().find(|(path, _)| *path == file.path);
        let lines: Vec<&str> = file.text.lines().collect();
        let mut uses = source.words("unsafe").map(|at| source.line(at)).peekable();
        match place {
            None => {
                findings.extend(uses.map(|line| {
                    Finding::at(&file.path, line, "no `unsafe` outside the listed files")
                }));
            }
            Some(_) if uses.peek().is_none() => {
                findings.push(Finding::of(
                    &file.path,
                    "has no `unsafe` any more; unlist it",
                ));
            }
            Some(_) => {
                findings.extend(
                    uses.filter(|line| {
                        let above = &lines[line.saturating_sub(REACH + 1)..*line];
                        !above
                            .iter()
                            .any(|text| text.contains("SAFETY") || text.contains("# Safety"))
                    })
                    .map(|line| Finding::at(&file.path, line, "no SAFETY comment above")),
                );
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLACES: &[(&str, &str)] = &[("a/ring.rs", "shared memory")];

    #[test]
    fn a_use_outside_the_listed_files_is_found() {
        let tree = Tree::of([("b.rs", "// unsafe\nfn a() { unsafe { b() } }")]);
        assert_eq!(check_with(&tree, PLACES)[0].line, Some(2));
    }

    #[test]
    fn a_use_needs_its_argument() {
        let tree = Tree::of([("a/ring.rs", "unsafe { a() }")]);
        assert_eq!(check_with(&tree, PLACES).len(), 1);
        let tree = Tree::of([("a/ring.rs", "// SAFETY: one writer.\nunsafe { a() }")]);
        assert_eq!(check_with(&tree, PLACES), []);
    }

    #[test]
    fn a_listed_file_without_a_use_is_found() {
        assert_eq!(check_with(&Tree::of([("a/ring.rs", "")]), PLACES).len(), 1);
    }

    #[test]
    fn every_listed_file_has_a_reason() {
        assert!(super::PLACES.iter().all(|(_, why)| why.len() > 10));
    }
}

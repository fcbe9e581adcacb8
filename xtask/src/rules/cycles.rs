//! Files that import each other in a loop.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use syn::visit::{self, Visit};

use super::{Finding, Rule, Weight};
use crate::tree::Tree;

pub(super) const RULE: Rule = Rule {
    id: "import-cycle",
    says: "No files of a crate import each other in a loop. What a parent module re-exports and what a child takes \
           from its parents does not count.",
    why: "A loop can only be understood, tested and changed as a whole.",
    weight: Weight::Error,
    check,
};

/// A module's place in its crate: `["files", "root"]`, empty for the crate's root.
type ModulePath = Vec<String>;

/// What a file says about other files.
#[derive(Default)]
struct Module {
    /// The file.
    file: String,
    path: ModulePath,
    /// Every path that it names, as written, without its re-exports.
    paths: Vec<Vec<String>>,
    /// Names that it re-exports: the name, and the path that it stands for.
    reexports: BTreeMap<String, Vec<String>>,
}

/// The modules of one crate.
type Modules = BTreeMap<ModulePath, Module>;

fn check(tree: &Tree) -> Vec<Finding> {
    let mut crates: BTreeMap<&str, Modules> = BTreeMap::new();
    let mut findings = Vec::new();
    for (file, source) in tree.rust() {
        let Some((root, module)) = file.path.split_once("/src/") else {
            continue;
        };
        if source.in_test(0) {
            continue;
        }
        match syn::parse_file(&file.text) {
            Ok(parsed) => {
                let mut names = Names::default();
                names.visit_file(&parsed);
                names.module.file.clone_from(&file.path);
                names.module.path = module_path(module);
                let modules = crates.entry(root).or_default();
                modules.insert(names.module.path.clone(), names.module);
            }
            Err(error) => findings.push(Finding::of(&file.path, error.to_string())),
        }
    }
    for modules in crates.values() {
        findings.extend(cycles(&imports(modules)).into_iter().map(|cycle| {
            Finding::of(
                cycle[0],
                format!("imports itself through {}", cycle[1..].join(" → ")),
            )
        }));
    }
    findings
}

/// `files/root.rs` is the module `files::root`; a program's `main.rs` is a root of its own.
fn module_path(file: &str) -> ModulePath {
    match file {
        "lib.rs" => Vec::new(),
        _ => {
            let name = file.trim_end_matches(".rs").trim_end_matches("/mod");
            name.split('/').map(str::to_owned).collect()
        }
    }
}

/// Collects the paths of one file, without its tests.
#[derive(Default)]
struct Names {
    module: Module,
}

impl<'ast> Visit<'ast> for Names {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        if !is_test(attributes(item)) {
            visit::visit_item(self, item);
        }
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        let mut leaves = Vec::new();
        flatten(&item.tree, &mut Vec::new(), &mut leaves);
        let is_private = matches!(item.vis, syn::Visibility::Inherited);
        for (name, path) in leaves {
            if is_private {
                self.module.paths.push(path);
            } else {
                self.module.reexports.insert(name, path);
            }
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let segments = path.segments.iter();
        self.module
            .paths
            .push(segments.map(|one| one.ident.to_string()).collect());
        visit::visit_path(self, path);
    }
}

fn attributes(item: &syn::Item) -> &[syn::Attribute] {
    match item {
        syn::Item::Const(item) => &item.attrs,
        syn::Item::Fn(item) => &item.attrs,
        syn::Item::Impl(item) => &item.attrs,
        syn::Item::Mod(item) => &item.attrs,
        syn::Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

/// Whether an item is compiled for tests only: `#[cfg(test)]`, or one of several reasons.
fn is_test(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let text = match &attribute.meta {
            syn::Meta::List(list) if list.path.is_ident("cfg") => list.tokens.to_string(),
            _ => return false,
        };
        let mut words = text.split(|c: char| !c.is_alphanumeric());
        words.clone().any(|word| word == "test") && !words.any(|word| word == "not")
    })
}

/// The names that a `use` brings, each with its whole path.
fn flatten(tree: &syn::UseTree, before: &mut Vec<String>, into: &mut Vec<(String, Vec<String>)>) {
    match tree {
        syn::UseTree::Path(path) => {
            before.push(path.ident.to_string());
            flatten(&path.tree, before, into);
            before.pop();
        }
        syn::UseTree::Group(group) => {
            for one in &group.items {
                flatten(one, before, into);
            }
        }
        syn::UseTree::Name(name) if name.ident == "self" => {
            into.push((before.last().cloned().unwrap_or_default(), before.clone()));
        }
        syn::UseTree::Name(name) => add(&name.ident, &name.ident, before, into),
        syn::UseTree::Rename(rename) => add(&rename.rename, &rename.ident, before, into),
        syn::UseTree::Glob(_) => into.push(("*".to_owned(), before.clone())),
    }
}

fn add(
    name: &syn::Ident,
    ident: &syn::Ident,
    before: &[String],
    into: &mut Vec<(String, Vec<String>)>,
) {
    let mut path = before.to_vec();
    path.push(ident.to_string());
    into.push((name.to_string(), path));
}

/// Which file imports which.
fn imports(modules: &Modules) -> BTreeMap<&str, BTreeSet<&str>> {
    let mut imports: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (at, module) in modules {
        for path in &module.paths {
            if let Some(other) = resolve(modules, at, path, modules.len())
                && other.file != module.file
                && !at.starts_with(&other.path)
            {
                imports.entry(&module.file).or_default().insert(&other.file);
            }
        }
    }
    imports
}

/// The module that a path leads into from the module at `at`, through re-exports; `None` for other crates.
fn resolve<'a>(
    modules: &'a Modules,
    at: &[String],
    path: &[String],
    steps_left: usize,
) -> Option<&'a Module> {
    let mut base: ModulePath = at.to_vec();
    let mut rest = path;
    let mut is_relative = false;
    while let Some((first, after)) = rest.split_first() {
        match first.as_str() {
            "crate" => base.clear(),
            "super" => drop(base.pop()),
            "self" => {}
            _ => break,
        }
        is_relative = true;
        rest = after;
    }
    let mut found = modules.get(&base);
    let mut moved = is_relative;
    while let Some((first, after)) = rest.split_first() {
        base.push(first.clone());
        if let Some(module) = modules.get(&base) {
            (found, rest, moved) = (Some(module), after, true);
            continue;
        }
        base.pop();
        let reexport = found.and_then(|module| module.reexports.get(first));
        if let (Some(target), Some(left)) = (reexport, steps_left.checked_sub(1)) {
            let target: Vec<String> = target.iter().chain(after).cloned().collect();
            return resolve(modules, &base, &target, left);
        }
        break;
    }
    moved.then_some(found).flatten()
}

/// One shortest loop for each group of files that reach each other, from its first file back to it.
fn cycles<'a>(imports: &BTreeMap<&'a str, BTreeSet<&'a str>>) -> Vec<Vec<&'a str>> {
    let mut found: Vec<Vec<&str>> = Vec::new();
    for &file in imports.keys() {
        let is_known = found.iter().any(|cycle| cycle.contains(&file));
        if let Some(cycle) = shortest_loop(imports, file)
            && !is_known
        {
            found.push(cycle);
        }
    }
    found
}

fn shortest_loop<'a>(
    imports: &BTreeMap<&'a str, BTreeSet<&'a str>>,
    start: &'a str,
) -> Option<Vec<&'a str>> {
    let mut from: BTreeMap<&str, &str> = BTreeMap::new();
    let mut queue = VecDeque::from([start]);
    while let Some(file) = queue.pop_front() {
        for &next in imports.get(file).into_iter().flatten() {
            if next == start {
                let mut cycle = vec![start, file];
                while let Some(&before) = from.get(cycle[cycle.len() - 1]) {
                    cycle.push(before);
                }
                if file == start {
                    cycle.pop();
                }
                cycle.reverse();
                if cycle[0] != start {
                    cycle.insert(0, start);
                }
                return Some(cycle);
            }
            if !from.contains_key(next) {
                from.insert(next, file);
                queue.push_back(next);
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found<const N: usize>(files: [(&str, &str); N]) -> Vec<String> {
        check(&Tree::of(files))
            .iter()
            .map(ToString::to_string)
            .collect()
    }

    #[test]
    fn two_files_that_import_each_other_are_found_and_a_chain_is_not() {
        let files = [
            ("a/src/lib.rs", "mod x; mod y; mod z;"),
            ("a/src/x.rs", "use crate::y::Y; struct X;"),
            ("a/src/y.rs", "struct Y; fn f() -> super::x::X { loop {} }"),
            ("a/src/z.rs", "use crate::{x, y};"),
        ];
        assert_eq!(
            found(files),
            ["a/src/x.rs: imports itself through a/src/y.rs → a/src/x.rs"]
        );
    }

    #[test]
    fn a_parent_that_re_exports_its_children_imports_none_of_them() {
        let files = [
            ("a/src/lib.rs", "pub mod p;"),
            (
                "a/src/p.rs",
                "mod x; mod y; pub use x::X; pub(crate) use y::Y;",
            ),
            ("a/src/p/x.rs", "use super::Y; pub struct X;"),
            ("a/src/p/y.rs", "pub struct Y;"),
        ];
        assert!(found(files).is_empty());
    }

    #[test]
    fn a_child_may_use_its_parent_but_not_a_sibling_that_uses_it() {
        let files = [
            ("a/src/p.rs", "mod x; mod y; struct P(x::X);"),
            ("a/src/p/x.rs", "pub struct X(super::P, super::y::Y);"),
            ("a/src/p/y.rs", "pub struct Y(super::x::X);"),
        ];
        assert_eq!(
            found(files),
            ["a/src/p/x.rs: imports itself through a/src/p/y.rs → a/src/p/x.rs"]
        );
    }

    #[test]
    fn a_test_may_import_what_it_tests() {
        let files = [
            ("a/src/x.rs", "use crate::y::Y;"),
            ("a/src/y.rs", "#[cfg(test)] mod tests { use crate::x::X; }"),
        ];
        assert!(found(files).is_empty());
    }
}

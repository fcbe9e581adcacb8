//! Names that say nothing.

use super::{Finding, Rule, Weight};
use crate::source::words;
use crate::tree::Tree;

pub(super) const RULE: Rule = Rule {
    id: "module-name",
    says: "No module is named utils, common, helpers, misc or manager.",
    why: "Such a name says nothing, so everything ends up there and nothing is found there.",
    weight: Weight::Error,
    check,
};

const EMPTY: &[&str] = &[
    "util", "utils", "common", "helper", "helpers", "misc", "manager", "managers",
];

fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (file, source) in tree.rust() {
        let path = file.path.trim_end_matches(".rs");
        if let Some(name) = path.split('/').find(|part| EMPTY.contains(part)) {
            findings.push(Finding::of(&file.path, message(name)));
        }
        for name in EMPTY {
            findings.extend(
                words(source.code(), name)
                    .filter(|&at| {
                        let before = source.code()[..at].trim_end();
                        let opens = source.code()[at + name.len()..]
                            .trim_start()
                            .starts_with('{');
                        opens && before.ends_with("mod")
                    })
                    .map(|at| Finding::at(&file.path, source.line(at), message(name))),
            );
        }
    }
    findings
}

fn message(name: &str) -> String {
    format!("`{name}` does not say what is in it; name the module by its noun")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_name_is_found_in_a_path_and_in_a_module() {
        let tree = Tree::of([
            ("cli/src/utils.rs", ""),
            ("tests/common/mod.rs", ""),
            ("cli/src/play.rs", "mod helpers { }\nlet common = { 1 };"),
            ("cli/src/uncommon.rs", ""),
        ]);
        let places: Vec<String> = check(&tree)
            .into_iter()
            .map(|finding| finding.place)
            .collect();
        assert_eq!(
            places,
            ["cli/src/utils.rs", "tests/common/mod.rs", "cli/src/play.rs"]
        );
    }
}

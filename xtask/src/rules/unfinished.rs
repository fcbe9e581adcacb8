//! Words of unfinished work.

use super::{Finding, Rule, Weight};
use crate::source::{line_of, words};
use crate::tree::{File, Tree};

pub(super) const RULE: Rule = Rule {
    id: "unfinished",
    says: "No committed text holds a word of unfinished work.",
    why: "What is missing belongs in an issue and in docs/status.md, where somebody looks for it.",
    weight: Weight::Error,
    check,
};

/// In two halves each, so that this file does not break its own rule.
const WORDS: &[(&str, &str)] = &[
    ("FIX", "ME"),
    ("TO", "DO"),
    ("XX", "X"),
    ("HA", "CK"),
    ("todo", "!"),
    ("unimple", "mented!"),
    ("not imple", "mented"),
    ("for n", "ow"),
    ("place", "holder"),
    ("stub", "bed"),
    ("dummy im", "pl"),
    ("dummy val", "ue"),
];

const READ: &[&str] = &[
    ".rs", ".sh", ".py", ".yaml", ".yml", ".toml", ".proto", ".md", "Makefile",
];

/// Texts of others, which are kept unchanged.
const OF_OTHERS: &[&str] = &["volume-driver/proto/csi/csi.proto"];

fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.files() {
        if OF_OTHERS.contains(&&*file.path) {
            continue;
        }
        if !READ.iter().any(|end| file.path.ends_with(end)) && !file.is_shell() {
            continue;
        }
        for (first, second) in WORDS {
            let word = [*first, *second].concat();
            for at in words(&file.text, &word).filter(|&at| !is_syntax(file, at, &word)) {
                let message = format!("\"{word}\": finish it, or say in an issue what is left");
                findings.push(Finding::at(&file.path, line_of(&file.text, at), message));
            }
        }
    }
    findings
}

/// Whether the words at this place are code that only reads like a phrase: `for` and a variable.
fn is_syntax(file: &File, at: usize, word: &str) -> bool {
    word.contains(' ')
        && file
            .rust
            .as_ref()
            .is_some_and(|source| source.code()[at..].starts_with(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unfinished_words_are_found_in_code_comments_and_documents() {
        let word = ["FIX", "ME"].concat();
        let comment = format!("let a = 1;\n// {word} b");
        let phrase = format!("Only udp {}.", ["for n", "ow"].concat());
        let loop_over_time = format!("{} in 0..9 {{}}", ["for n", "ow"].concat());
        let tree = Tree::of([
            ("a.rs", &comment),
            ("a.md", &phrase),
            ("b.md", "for nowhere"),
            ("b.rs", &loop_over_time),
            ("c.bin", &word),
        ]);
        let places: Vec<_> = check(&tree)
            .into_iter()
            .map(|f| (f.place, f.line))
            .collect();
        assert_eq!(
            places,
            [("a.rs".to_owned(), Some(2)), ("a.md".to_owned(), Some(1))]
        );
    }
}

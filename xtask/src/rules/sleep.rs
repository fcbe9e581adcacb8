//! No sleep in a test.

use super::{Finding, Rule, Weight};
use crate::tree::Tree;

pub(super) const RULE: Rule = Rule {
    id: "sleep",
    says: "A test does not sleep; it waits for a condition with `eventually(deadline, condition)`, \
           which one file defines. A benchmark, which measures time, may.",
    why: "A sleep is too short on a slow machine and too long on every other; what is waited for \
          stands nowhere.",
    weight: Weight::Error,
    check,
};

const SLEEPS: &[&str] = &["sleep", "sleep_until", "sleep_ms", "park_timeout"];
const HELPER: &str = "eventually";
/// What is here samples at intervals and strikes at moments; time is what it measures.
const BENCHMARKS: &str = "tests/src/bench";

fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut home: Option<&str> = None;
    for (file, source) in tree.rust() {
        let helpers = source.functions(HELPER);
        if let Some(helper) = helpers.first() {
            match home {
                None => home = Some(&file.path),
                Some(home) => findings.push(Finding::at(
                    &file.path,
                    source.line(helper.start),
                    format!("a second `{HELPER}`; use the one in {home}"),
                )),
            }
        }
        if file.path.starts_with(BENCHMARKS) {
            continue;
        }
        for sleep in SLEEPS {
            let calls = source.words(sleep).filter(|&at| {
                source.code()[at + sleep.len()..].starts_with('(')
                    && source.in_test(at)
                    && !helpers.iter().any(|helper| helper.contains(&at))
            });
            findings.extend(calls.map(|at| {
                let message = format!("`{sleep}` in a test; wait with `{HELPER}`");
                Finding::at(&file.path, source.line(at), message)
            }));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_helper_may_sleep_in_tests() {
        let tree = Tree::of([
            (
                "tests/src/wait.rs",
                "pub fn eventually() { thread::sleep(x); }\nfn b() { sleep(x) }",
            ),
            (
                "cli/src/play.rs",
                "fn a() { sleep(x) }\n#[cfg(test)]\nmod t { fn a() { sleep(x) } }",
            ),
            ("cli/tests/play.rs", "fn a() { asleep(x); let sleep = 1; }"),
            ("tests/src/bench/rss.rs", "fn a() { sleep(LOOK_EVERY) }"),
        ]);
        let places: Vec<_> = check(&tree)
            .into_iter()
            .map(|f| (f.place, f.line))
            .collect();
        assert_eq!(
            places,
            [
                ("tests/src/wait.rs".to_owned(), Some(2)),
                ("cli/src/play.rs".to_owned(), Some(3))
            ]
        );
    }

    #[test]
    fn a_second_helper_is_found() {
        let helper = "fn eventually() { sleep(x) }";
        let tree = Tree::of([("tests/a.rs", helper), ("tests/b.rs", helper)]);
        let findings = check(&tree);
        assert_eq!(findings.len(), 1);
        assert_eq!(findings[0].place, "tests/b.rs");
    }
}

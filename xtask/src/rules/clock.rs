//! No clock where time is an argument.

use super::{Finding, Rule, Weight};
use crate::tree::Tree;

pub(super) const RULE: Rule = Rule {
    id: "clock",
    says: "`std::time::Instant` and `SystemTime` are not named in transport/core and control/planner, and `SystemTime` \
           not in transport and transfer-engine.",
    why: "Time is an argument there: a run is a function of its seed, in the simulator as on the \
          wire. The engines measure it by a clock that nobody sets: a jump of the other one changes nothing.",
    weight: Weight::Error,
    check,
};

/// Which clocks are not named where.
const BANNED: [(&[&str], &[&str]); 2] = [
    (&["Instant"], &["transport/core/", "control/planner/"]),
    (
        &["SystemTime"],
        &["transport/", "transfer-engine/", "control/planner/"],
    ),
];

fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (file, source) in tree.rust() {
        for (clocks, directories) in BANNED {
            let mut directories = directories.iter();
            if !directories.any(|directory| file.path.starts_with(directory)) {
                continue;
            }
            for clock in clocks {
                findings.extend(source.words(clock).map(|at| {
                    let message = format!("`{clock}` is a clock; take the time as an argument");
                    Finding::at(&file.path, source.line(at), message)
                }));
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_in_the_core_is_found_and_one_in_the_agent_is_not() {
        let text = "//! Instant\nuse std::time::Instant;\n";
        let tree = Tree::of([
            ("transport/core/src/a.rs", text),
            ("transport/engine/src/a.rs", text),
            ("node-agent/src/a.rs", text),
        ]);
        let findings = check(&tree);
        assert_eq!(findings.len(), 1);
        assert_eq!(
            findings[0]
                .to_string()
                .split_once(": ")
                .map(|(place, _)| place),
            Some("transport/core/src/a.rs:2")
        );
    }

    #[test]
    fn a_clock_that_somebody_sets_is_found_in_an_engine() {
        let text = "//! SystemTime\nuse std::time::SystemTime;\n";
        let tree = Tree::of([
            ("transfer-engine/src/a.rs", text),
            ("transport/link/src/a.rs", text),
            ("node-agent/src/a.rs", text),
        ]);
        assert_eq!(check(&tree).len(), 2);
    }
}

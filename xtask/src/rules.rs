//! The rules of the house, each with its reason. Adding one is one file here and one line in `ALL`.

mod clock;
mod cycles;
mod direction;
mod ignored;
mod length;
mod licences;
mod links;
mod manifest;
mod names;
mod shell;
mod sleep;
mod status;
mod unfinished;
mod unsafe_code;

use std::fmt;

use crate::tree::Tree;

/// One rule.
pub(crate) struct Rule {
    /// Its name in messages and in CONTRIBUTING.md.
    pub(crate) id: &'static str,
    /// What it asks, as one sentence.
    pub(crate) says: &'static str,
    /// What goes wrong without it.
    pub(crate) why: &'static str,
    /// Whether breaking it fails the lint.
    pub(crate) weight: Weight,
    /// Finds every place that breaks it.
    pub(crate) check: fn(&Tree) -> Vec<Finding>,
}

/// What a finding means for the lint's exit status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Weight {
    /// The lint fails.
    Error,
    /// It is printed, and a person decides.
    Report,
}

/// One place that breaks a rule.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    /// The file, or the crate where the rule is about crates.
    pub(crate) place: String,
    /// Counted from 1; `None` when the whole place is meant.
    pub(crate) line: Option<usize>,
    /// What is wrong and what to do instead.
    pub(crate) message: String,
}

impl Finding {
    fn at(place: &str, line: usize, message: impl Into<String>) -> Self {
        Self {
            place: place.to_owned(),
            line: Some(line),
            message: message.into(),
        }
    }

    fn of(place: &str, message: impl Into<String>) -> Self {
        Self {
            place: place.to_owned(),
            line: None,
            message: message.into(),
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some(line) => write!(f, "{}:{line}: {}", self.place, self.message),
            None => write!(f, "{}: {}", self.place, self.message),
        }
    }
}

/// Every rule, in the order they are checked and listed.
pub(crate) const ALL: &[Rule] = &[
    direction::DIRECTION,
    direction::PURITY,
    cycles::RULE,
    clock::RULE,
    sleep::RULE,
    ignored::RULE,
    unsafe_code::RULE,
    names::RULE,
    unfinished::RULE,
    shell::STRICT,
    shell::SWALLOWED,
    manifest::RULE,
    licences::RULE,
    status::RULE,
    links::RULE,
    length::RULE,
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_rule_has_a_name_of_its_own_and_a_reason() {
        let ids: BTreeSet<&str> = ALL.iter().map(|rule| rule.id).collect();
        assert_eq!(ids.len(), ALL.len());
        assert!(
            ALL.iter()
                .all(|rule| rule.says.ends_with('.') && rule.why.ends_with('.'))
        );
    }
}

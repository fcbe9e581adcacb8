//! The licences of what we link with.

use super::{Finding, Rule, Weight};
use crate::tree::Tree;

pub(super) const RULE: Rule = Rule {
    id: "licences",
    says: "Every crate from elsewhere has a licence that deny.toml allows; its exceptions are for tools that only xtask uses.",
    why: "Weft is Apache-2.0; one copyleft crate below it changes that for everybody who ships it.",
    weight: Weight::Error,
    check,
};

const FILE: &str = "deny.toml";
/// The crate that is never shipped.
const TOOLS: &str = "xtask";

fn check(tree: &Tree) -> Vec<Finding> {
    let Some(file) = tree.file(FILE) else {
        return vec![Finding::of(FILE, "is missing")];
    };
    let allowed = allowed(&file.text);
    let exceptions = exceptions(&file.text);
    let mut findings = Vec::new();
    for foreign in &tree.crates().foreign {
        match &foreign.licence {
            None => findings.push(Finding::of(&foreign.name, "names no licence")),
            Some(expression) if exceptions.contains(&(&foreign.name, expression)) => {
                let members = tree.crates().members.iter();
                let products = members.filter(|(name, member)| {
                    *name != TOOLS && member.reaches.contains(&foreign.name)
                });
                findings.extend(products.map(|(name, _)| {
                    let problem =
                        format!("uses {}, which is an exception for {TOOLS}", foreign.name);
                    Finding::of(name, problem)
                }));
            }
            Some(expression) if !satisfied(expression, &allowed) => {
                findings.push(Finding::of(
                    &foreign.name,
                    format!("{expression} is not allowed"),
                ));
            }
            Some(_) => {}
        }
    }
    findings
}

/// The strings of the `allow` list in the `[licenses]` table.
fn allowed(deny: &str) -> Vec<&str> {
    let table = deny.split("[licenses]").nth(1).unwrap_or_default();
    let list = table
        .split("allow = [")
        .nth(1)
        .and_then(|rest| rest.split(']').next());
    list.unwrap_or_default()
        .split('"')
        .skip(1)
        .step_by(2)
        .collect()
}

/// The `exceptions` list in the `[licenses]` table: crates and their licences.
fn exceptions(deny: &str) -> Vec<(&str, &str)> {
    let table = deny.split("[licenses]").nth(1).unwrap_or_default();
    let list = table.split("exceptions = [").nth(1);
    let list = list.and_then(|rest| rest.split("\n]").next());
    let lines = list.unwrap_or_default().lines();
    lines
        .filter_map(|line| {
            let mut strings = line.split('"').skip(1).step_by(2);
            Some((strings.next()?, strings.next()?))
        })
        .collect()
}

/// Whether an SPDX expression can be met with the allowed licences alone.
fn satisfied(expression: &str, allowed: &[&str]) -> bool {
    let spaced = expression
        .replace('(', " ( ")
        .replace(')', " ) ")
        .replace('/', " OR ");
    let mut words = spaced.split_whitespace().peekable();
    let met = any(&mut words, allowed);
    met && words.peek().is_none()
}

type Words<'a> = std::iter::Peekable<std::str::SplitWhitespace<'a>>;

fn any(words: &mut Words<'_>, allowed: &[&str]) -> bool {
    let mut met = all(words, allowed);
    while words.next_if_eq(&"OR").is_some() {
        met |= all(words, allowed);
    }
    met
}

fn all(words: &mut Words<'_>, allowed: &[&str]) -> bool {
    let mut met = one(words, allowed);
    while words.next_if_eq(&"AND").is_some() {
        met &= one(words, allowed);
    }
    met
}

fn one(words: &mut Words<'_>, allowed: &[&str]) -> bool {
    match words.next() {
        Some("(") => {
            let met = any(words, allowed);
            met && words.next() == Some(")")
        }
        Some(licence) => match words.next_if_eq(&"WITH") {
            // An exception only ever adds permissions.
            Some(_) => words.next().is_some() && allowed.contains(&licence),
            None => allowed.contains(&licence),
        },
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crates::{Crates, Foreign, Member};

    #[test]
    fn an_expression_is_met_by_allowed_licences_alone() {
        let allowed = ["MIT", "Apache-2.0"];
        for met in [
            "MIT",
            "MIT OR GPL-2.0",
            "GPL-2.0/MIT",
            "(MIT OR Zlib) AND Apache-2.0",
            "Apache-2.0 WITH LLVM-exception",
        ] {
            assert!(satisfied(met, &allowed), "{met}");
        }
        for unmet in [
            "GPL-2.0",
            "MIT AND GPL-2.0",
            "(GPL-2.0 OR Zlib) AND MIT",
            "",
            "MIT MIT",
        ] {
            assert!(!satisfied(unmet, &allowed), "{unmet}");
        }
    }

    #[test]
    fn a_crate_outside_the_list_is_found() {
        let foreign = |name: &str, licence: Option<&str>| Foreign {
            name: name.to_owned(),
            licence: licence.map(str::to_owned),
        };
        let deny = "[bans]\ndeny = [\"x\"]\n[licenses]\nallow = [\n  \"MIT\",\n]\n";
        let crates = Crates {
            foreign: vec![
                foreign("a", Some("MIT")),
                foreign("b", Some("GPL-2.0")),
                foreign("c", None),
            ],
            ..Crates::default()
        };
        let found = check(&Tree::of([(FILE, deny)]).with_crates(crates));
        let found: Vec<String> = found.iter().map(ToString::to_string).collect();
        assert_eq!(found, ["b: GPL-2.0 is not allowed", "c: names no licence"]);
    }

    #[test]
    fn an_exception_holds_for_its_licence_and_for_xtask_alone() {
        let deny = "[licenses]\nallow = [\n\"MIT\",\n]\nexceptions = [\n  \
                    { name = \"tool\", allow = [\"MPL-2.0\"] },\n]\n[bans]\ndeny = [\n  { name = \"a\" },\n]\n";
        let found = |licence: &str, user: &str| -> Vec<String> {
            let foreign = Foreign {
                name: "tool".to_owned(),
                licence: Some(licence.to_owned()),
            };
            let member = Member {
                reaches: ["tool".to_owned()].into(),
                ..Member::default()
            };
            let crates = Crates {
                members: [(user.to_owned(), member)].into(),
                foreign: vec![foreign],
            };
            let found = check(&Tree::of([(FILE, deny)]).with_crates(crates));
            found.iter().map(ToString::to_string).collect()
        };
        assert!(found("MPL-2.0", "xtask").is_empty());
        assert_eq!(found("GPL-2.0", "xtask"), ["tool: GPL-2.0 is not allowed"]);
        let shipped = "weft-agent: uses tool, which is an exception for xtask";
        assert_eq!(found("MPL-2.0", "weft-agent"), [shipped]);
    }
}

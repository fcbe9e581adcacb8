//! From the sources of the libraries for virtual devices: each call that they export, and what it does.

use std::fmt::Write as _;

/// A library, and the sources that say what it exports.
struct Library {
    name: &'static str,
    /// The name of its version nodes, without the number.
    node: &'static str,
    /// `versions! { "1.0": name…; }`.
    versions: &'static str,
    /// The macros that define calls which are not carried out.
    absent: &'static str,
}

const LIBRARIES: [Library; 2] = [
    Library {
        name: "libibverbs.so.1",
        node: "IBVERBS",
        versions: include_str!("../../../transport/verbs-shim/src/symbols.rs"),
        absent: include_str!("../../../transport/verbs-shim/src/private.rs"),
    },
    Library {
        name: "librdmacm.so.1",
        node: "RDMACM",
        versions: include_str!("../../../transport/rdmacm-shim/src/symbols.rs"),
        absent: include_str!("../../../transport/rdmacm-shim/src/unsupported.rs"),
    },
];

/// Where the tables of functions are filled that programs call without the library.
const TABLES: &str = include_str!("../../../transport/verbs-shim/src/open.rs");

const CARRIED_OUT: &str = "carried out";
const FAILS: &str = "fails with `EOPNOTSUPP`";
const DOES_NOTHING: &str = "does nothing";
/// What the macros say of the names in them.
const OUTCOMES: [(&str, &str); 4] = [
    ("not_supported!", FAILS),
    ("not_made!", FAILS),
    ("unsupported!", FAILS),
    ("nothing!", DOES_NOTHING),
];

/// The words in each use of a macro.
fn uses<'s>(source: &'s str, name: &str) -> Vec<&'s str> {
    let begin = format!("\n{name} {{");
    let bodies = source.split(&begin).skip(1);
    let bodies = bodies.filter_map(|rest| Some(rest.split_once("\n}")?.0));
    bodies
        .flat_map(|body| body.split([' ', ',', '\n']))
        .filter(|word| !word.is_empty())
        .collect()
}

/// Each exported name with its version, in the order of the source.
fn exported(source: &str) -> Vec<(&str, &str)> {
    let mut version = "";
    let mut names = Vec::new();
    for word in uses(source, "versions!") {
        match word.strip_prefix('"').and_then(|word| word.split_once('"')) {
            Some((new, _)) => version = new,
            None => names.push((word.trim_end_matches(';'), version)),
        }
    }
    names
}

fn outcome(absent: &str, name: &str) -> &'static str {
    let of = |(macro_name, _): &&(&str, &str)| uses(absent, macro_name).contains(&name);
    OUTCOMES
        .iter()
        .find(of)
        .map_or(CARRIED_OUT, |(_, outcome)| outcome)
}

/// The fields of the tables that have a function.
fn filled(source: &str) -> Vec<&str> {
    source
        .lines()
        .filter_map(|line| Some(line.trim().split_once(": Some(")?.0))
        .collect()
}

/// The calls of each library, and those of the tables.
pub(super) fn calls() -> String {
    let mut out = String::new();
    let mut line = |text: std::fmt::Arguments<'_>| {
        writeln!(out, "{text}").expect("writing to a string cannot fail");
    };
    for library in &LIBRARIES {
        line(format_args!("## {}\n", library.name));
        line(format_args!("| call | version | |\n|---|---|---|"));
        let mut names = exported(library.versions);
        names.sort_unstable();
        for (name, version) in names {
            let outcome = outcome(library.absent, name);
            line(format_args!(
                "| `{name}` | `{}_{version}` | {outcome} |",
                library.node
            ));
        }
        line(format_args!(""));
    }
    let tables: Vec<String> = filled(TABLES)
        .iter()
        .map(|name| format!("`{name}`"))
        .collect();
    line(format_args!("## The tables of a context\n"));
    line(format_args!("Carried out: {}.", tables.join(", ")));
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_name_has_its_version_and_what_the_call_does() {
        let versions = "\nversions! {\n    \"1.0\": a b\n        c;\n    \"1.14\": d;\n}\n";
        let of_first = [("a", "1.0"), ("b", "1.0"), ("c", "1.0")];
        assert_eq!(
            exported(versions),
            [&of_first[..], &[("d", "1.14")]].concat()
        );
        let absent = "\nnot_made! {\n    a,\n}\n\nnothing! {\n    b, c,\n}\n";
        let outcomes = ["a", "b", "c", "d"].map(|name| outcome(absent, name));
        assert_eq!(outcomes, [FAILS, DOES_NOTHING, DOES_NOTHING, CARRIED_OUT]);
        let table = "    poll_cq: Some(data::poll_cq),\n    open_qp: None,\n";
        assert_eq!(filled(table), ["poll_cq"]);
    }

    #[test]
    fn the_sources_are_read() {
        for library in &LIBRARIES {
            let names = exported(library.versions);
            let fails = |(name, _): &&(&str, &str)| outcome(library.absent, name) == FAILS;
            assert!(names.len() > 40 && names.iter().any(|name| fails(&name)));
        }
        assert!(filled(TABLES).contains(&"create_qp_ex"));
    }
}

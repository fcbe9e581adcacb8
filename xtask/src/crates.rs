//! The crates of the workspace and what they reach, from `cargo metadata`.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

/// What the lints ask about crates.
#[derive(Debug, Default)]
pub(crate) struct Crates {
    /// Our own crates by name.
    pub(crate) members: BTreeMap<String, Member>,
    /// Every crate that any build here uses, ours excepted.
    pub(crate) foreign: Vec<Foreign>,
}

/// One crate of the workspace.
#[derive(Debug, Default)]
pub(crate) struct Member {
    /// Our crates it names, for its product or its build; not those for its tests.
    pub(crate) ours: BTreeSet<String>,
    /// Every crate its product is linked with, itself excepted.
    pub(crate) reaches: BTreeSet<String>,
}

/// One crate from elsewhere.
#[derive(Debug)]
pub(crate) struct Foreign {
    pub(crate) name: String,
    /// An SPDX expression; `None` when the crate gives none.
    pub(crate) licence: Option<String>,
}

impl Crates {
    /// Reads the answer of `cargo metadata --format-version=1`.
    pub(crate) fn from_metadata(metadata: &Value) -> Self {
        let members: BTreeSet<&str> = array(&metadata["workspace_members"])
            .filter_map(Value::as_str)
            .collect();
        let nodes: BTreeMap<&str, &Value> = array(&metadata["resolve"]["nodes"])
            .filter_map(|node| Some((node["id"].as_str()?, node)))
            .collect();
        let names: BTreeMap<&str, &str> = array(&metadata["packages"])
            .filter_map(|package| Some((package["id"].as_str()?, package["name"].as_str()?)))
            .collect();

        let mut crates = Self::default();
        for package in array(&metadata["packages"]) {
            let (Some(id), Some(name)) = (package["id"].as_str(), package["name"].as_str()) else {
                continue;
            };
            if !members.contains(id) {
                // `packages` also lists what other platforms need; the graph does not.
                if nodes.contains_key(id) {
                    let licence = package["license"].as_str().map(str::to_owned);
                    crates.foreign.push(Foreign {
                        name: name.to_owned(),
                        licence,
                    });
                }
                continue;
            }
            let ours = edges(&nodes, id, &["normal", "build"])
                .filter(|dependency| members.contains(dependency))
                .filter_map(|dependency| names.get(dependency))
                .map(|name| (*name).to_owned())
                .collect();
            let reaches = reach(&nodes, id)
                .into_iter()
                .filter_map(|dependency| names.get(dependency))
                .map(|name| (*name).to_owned())
                .collect();
            crates
                .members
                .insert(name.to_owned(), Member { ours, reaches });
        }
        crates
    }
}

fn array(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

/// The ids that `id` depends on, for one of these kinds of use.
fn edges<'a>(
    nodes: &BTreeMap<&str, &'a Value>,
    id: &str,
    kinds: &'a [&str],
) -> impl Iterator<Item = &'a str> {
    nodes
        .get(id)
        .into_iter()
        .flat_map(|node| array(&node["deps"]))
        .filter(move |dependency| {
            array(&dependency["dep_kinds"])
                .any(|kind| kinds.contains(&kind["kind"].as_str().unwrap_or("normal")))
        })
        .filter_map(|dependency| dependency["pkg"].as_str())
}

/// Everything linked into the product of `id`.
fn reach<'a>(nodes: &BTreeMap<&'a str, &'a Value>, id: &str) -> BTreeSet<&'a str> {
    let mut reached = BTreeSet::new();
    let mut left: Vec<&str> = edges(nodes, id, &["normal"]).collect();
    while let Some(id) = left.pop() {
        if reached.insert(id) {
            left.extend(edges(nodes, id, &["normal"]));
        }
    }
    reached
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn edges_for_tests_do_not_count() {
        let dependency = |id: &str, kind: Value| json!({"pkg": id, "dep_kinds": [{"kind": kind}]});
        let crates = Crates::from_metadata(&json!({
            "workspace_members": ["a#1", "b#1", "c#1"],
            "packages": [
                {"id": "a#1", "name": "a"}, {"id": "b#1", "name": "b"}, {"id": "c#1", "name": "c"},
                {"id": "x#1", "name": "x", "license": "MIT"}, {"id": "win#1", "name": "win"},
            ],
            "resolve": {"nodes": [
                {"id": "a#1", "deps": [dependency("b#1", Value::Null), dependency("c#1", json!("dev"))]},
                {"id": "b#1", "deps": [dependency("x#1", Value::Null)]},
                {"id": "c#1", "deps": []},
                {"id": "x#1", "deps": []},
            ]},
        }));
        let a = &crates.members["a"];
        assert_eq!(a.ours.iter().collect::<Vec<_>>(), ["b"]);
        assert_eq!(a.reaches.iter().collect::<Vec<_>>(), ["b", "x"]);
        assert_eq!(
            crates.foreign.len(),
            1,
            "what only other platforms use is left out"
        );
        assert_eq!(crates.foreign[0].licence.as_deref(), Some("MIT"));
    }
}

//! `weft plan` as a user meets it: flags in, a table or a JSON object or an error out.

use std::fs;
use std::path::PathBuf;

use clap::Parser;
use tempfile::TempDir;
use weft_cli::plan;
use weft_planner::{Plan, Strategy};

#[derive(Debug, Parser)]
struct Weft {
    #[command(flatten)]
    args: plan::Args,
}

const NODES: &str = "\
nodes:
  - {name: node0, leaf: leaf0, rate_bps: 1000000000}
  - {name: node1, leaf: leaf0, rate_bps: 1000000000}
  - {name: node2, leaf: leaf1, rate_bps: 1000000000}
  - {name: node3, leaf: leaf1, rate_bps: 1000000000}
uplinks:
  - {leaf: leaf0, spine: spine0, rate_bps: 1000000000}
  - {leaf: leaf0, spine: spine1, rate_bps: 1000000000}
  - {leaf: leaf1, spine: spine0, rate_bps: 1000000000}
  - {leaf: leaf1, spine: spine1, rate_bps: 1000000000}
";

struct Files(TempDir);

impl Files {
    fn new() -> Self {
        let files = Self(TempDir::new().expect("a temporary directory"));
        files.write("nodes.yaml", NODES);
        files
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).expect("a file in a temporary directory");
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Runs `weft plan FLAGS`, where `@NAME` stands for a file of these, in errors too.
    fn plan(&self, flags: &str) -> Result<String, (&'static str, String)> {
        let folder = format!("{}/", self.0.path().display());
        let flags = flags
            .split_whitespace()
            .map(|flag| flag.replace('@', &folder));
        let weft = Weft::try_parse_from(["weft".to_owned()].into_iter().chain(flags))
            .map_err(|error| ("Usage", error.to_string()))?;
        let mut out = Vec::new();
        match plan::run(&weft.args, &mut out) {
            Ok(()) => Ok(String::from_utf8(out).expect("text")),
            Err(error) => Err((error.reason(), error.to_string().replace(&folder, "@"))),
        }
    }

    fn refused(&self, flags: &str) -> (&'static str, String) {
        self.plan(flags).expect_err(flags)
    }
}

#[test]
fn a_table_says_who_sends_to_whom_and_why() {
    let files = Files::new();
    let table = files
        .plan("--nodes @nodes.yaml --size 256MiB --source node0")
        .unwrap();
    insta::assert_snapshot!("a_table_says_who_sends_to_whom_and_why", table);
}

#[test]
fn a_table_of_many_links_is_cut_and_says_so() {
    let files = Files::new();
    let node = |n| format!("  - {{name: node{n}, leaf: leaf0, rate_bps: 1000000000}}\n");
    let nodes: String = (0..20).map(node).collect();
    files.write("many.yaml", &format!("nodes:\n{nodes}"));
    let table = files
        .plan("--nodes @many.yaml --size 1GB --source node0")
        .unwrap();
    assert!(
        table.ends_with("\nand 14 links that take no longer; --json has all\n"),
        "{table}"
    );
}

#[test]
fn json_is_one_plan_and_nothing_else() {
    let files = Files::new();
    let flags = "--nodes @nodes.yaml --size 1MB --source node3 --to node1,node0 --strategy direct";
    let text = files.plan(&format!("{flags} --json")).unwrap();
    let plan: Plan = serde_json::from_str(&text).unwrap();
    assert_eq!(plan.strategy, Strategy::Direct);
    assert_eq!(plan.bytes, 1_000_000);
    let nodes: Vec<_> = plan
        .assignments
        .iter()
        .map(|part| part.node.as_str())
        .collect();
    assert_eq!(nodes, ["node3", "node0", "node1"]);
}

#[test]
fn a_manifest_gives_the_size() {
    let files = Files::new();
    files.write(
        "m.json",
        r#"{"files": [{"path": "model/a", "size": 700, "mode": 420},
                      {"path": "b", "size": 23, "mode": 420}],
            "directories": [{"path": "model", "mode": 493}]}"#,
    );
    let text = files
        .plan("--nodes @nodes.yaml --manifest @m.json --source node0 --json")
        .unwrap();
    let plan: Plan = serde_json::from_str(&text).unwrap();
    assert_eq!(plan.bytes, 723);
}

#[test]
fn nothing_to_send_still_has_a_plan() {
    let files = Files::new();
    files.write("empty.json", "{}");
    let table = files
        .plan("--nodes @nodes.yaml --manifest @empty.json --source node0")
        .unwrap();
    assert!(table.contains("data        0 B to 3 nodes"), "{table}");
}

#[test]
fn the_default_block_is_the_planners() {
    let weft = Weft::try_parse_from(["weft", "--nodes", "n", "--size", "1", "--source", "a"]);
    assert_eq!(weft.unwrap().args.block, weft_planner::BLOCK_BYTES);
}

#[test]
fn bad_input_names_file_field_line_and_remedy() {
    let files = Files::new();
    files.write(
        "rate.yaml",
        "nodes:\n  - name: a\n    leaf: l\n    rate_bps: 1gbit\n",
    );
    files.write(
        "field.yaml",
        "nodes:\n  - {name: a, leav: l, rate_bps: 1}\n",
    );
    files.write("zero.yaml", "nodes:\n  - {name: a, leaf: l, rate_bps: 0}\n");
    files.write(
        "apart.yaml",
        "nodes:\n  - {name: a, leaf: l, rate_bps: 1}\n  - {name: b, leaf: m, rate_bps: 1}\n",
    );
    files.write("cut.json", "{\"files\": [\n  {\"path\": \"a\",");
    files.write(
        "field.json",
        "{\"files\": [\n  {\"path\": \"a\", \"mode\": 420}]}",
    );
    files.write(
        "dots.json",
        "{\"files\": [{\"path\": \"../a\", \"size\": 1, \"mode\": 420}]}",
    );
    let mut report = String::new();
    for flags in [
        "--nodes @none.yaml --size 1MB --source a",
        "--nodes @rate.yaml --size 1MB --source a",
        "--nodes @field.yaml --size 1MB --source a",
        "--nodes @zero.yaml --size 1MB --source a",
        "--nodes @apart.yaml --size 1MB --source a",
        "--nodes @nodes.yaml --manifest @cut.json --source node0",
        "--nodes @nodes.yaml --manifest @field.json --source node0",
        "--nodes @nodes.yaml --manifest @dots.json --source node0",
        "--nodes @nodes.yaml --size 1MB --source node9",
        "--nodes @nodes.yaml --size 1MB --source node0 --to node1,node7",
        "--nodes @nodes.yaml --size 1MB --source node0 --to node0",
        "--nodes @nodes.yaml --size 1MB --source node0 --to node1,node1",
        "--nodes @nodes.yaml --size 1MB --source node0 --block 0",
        "--nodes @nodes.yaml --size 1MB --source node0 --payload-share 0",
        "--nodes @nodes.yaml --size 16000000TB --source node0",
    ] {
        let (reason, text) = files.refused(flags);
        report += &format!("$ weft plan {flags}\n{reason}: {text}\n\n");
    }
    insta::assert_snapshot!("bad_input_names_file_field_line_and_remedy", report);
}

#[test]
fn bad_flags_are_refused_before_anything_is_read() {
    let files = Files::new();
    for (flags, expected) in [
        ("--nodes @nodes.yaml --source node0", "--size"),
        (
            "--nodes @nodes.yaml --source node0 --size 1MB --manifest @m",
            "cannot be used with",
        ),
        (
            "--nodes @nodes.yaml --source node0 --size 256M",
            "write 256MiB or 1.5GB",
        ),
        (
            "--nodes @nodes.yaml --source node0 --size 1MB --strategy ring",
            "[possible values: auto, direct, chain, binomial]",
        ),
    ] {
        let (reason, text) = files.refused(flags);
        assert_eq!(reason, "Usage", "{flags}");
        assert!(text.contains(expected), "{flags}: {text}");
    }
}

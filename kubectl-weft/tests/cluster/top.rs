//! `kubectl weft top`.

use serde_json::{Value, json};

use crate::{NODES, PROGRESS, Server, all_progress, fabric_nodes, failure};

const METRICS: &str = "/apis/live.weft.dev/v1alpha1/fabricnodes/n0/metrics";
const OTHER: &str = "/apis/live.weft.dev/v1alpha1/fabricnodes/n1/metrics";
const PATHS: &str = "/apis/live.weft.dev/v1alpha1/fabricnodes/n0/pathmetrics";

fn page() -> Value {
    let page = "# TYPE weft_acknowledged_bytes counter\nweft_acknowledged_bytes_total 7\n\
                weft_placed_bytes_total 7\nweft_connections 3\n\
                weft_peer_rtt_seconds{peer=\"10.0.0.2\",of_paths=\"max\"} 0.002\n# EOF\n";
    page.into()
}

#[test]
fn a_node_that_does_not_answer_has_a_row_that_says_why() {
    let message = "node n1 at 10.0.0.2:7400 does not answer (refused): check that its agent runs";
    let server = Server::new([
        (NODES, 200, fabric_nodes(&["n0", "n1"], &[])),
        (METRICS, 200, page()),
        (OTHER, 502, failure(502, "AgentRefused", message)),
    ]);
    let shown = server.run("top nodes");
    assert_eq!(shown.status, Some(1), "{}", shown.err);
    let lines: Vec<&str> = shown.out.lines().collect();
    assert!(lines[0].starts_with("node  sent"), "{}", shown.out);
    assert!(lines[1].starts_with("n0    0 B/s  0 B/s"), "{}", shown.out);
    assert!(lines[2].ends_with(message), "{}", shown.out);

    let one: Value = serde_json::from_str(&server.run("top nodes n0 -o json").out).expect("JSON");
    assert_eq!(one["items"][0]["connections"], 3);
    assert_eq!(one["items"][0]["largestRttSeconds"], 0.002);
    let none = server.run("top nodes n9");
    assert!(
        none.err.contains("no FabricNode is named n9"),
        "{}",
        none.err
    );
}

#[test]
fn who_may_not_read_metrics_is_told_which_right_is_missing() {
    let message = "fabricnodes.live.weft.dev \"n0\" is forbidden: User \"ada\" cannot get resource \
                   \"fabricnodes/metrics\" in API group \"live.weft.dev\" at the cluster scope";
    let server = Server::new([
        (NODES, 200, fabric_nodes(&["n0"], &[])),
        (METRICS, 403, failure(403, "Forbidden", message)),
    ]);
    let refused = server.run("top nodes");
    assert_eq!(refused.status, Some(2));
    assert_eq!(refused.err, format!("kubectl weft top: {message}\n"));
}

#[test]
fn jobs_are_sorted_by_a_column_and_the_head_may_be_left_out() {
    let server = Server::new([(PROGRESS, 200, all_progress())]);
    // A pipe gets one table, watched or not.
    let shown = server.run("top jobs --sort-by name --no-headers --watch");
    assert_eq!(shown.status, Some(0), "{}", shown.err);
    let names: Vec<_> = shown
        .out
        .lines()
        .map(|line| line.split("  ").nth(1))
        .collect();
    assert_eq!(names, [Some("bert"), Some("minilm")]);
}

#[test]
fn paths_are_those_of_a_node() {
    let text = "weft_path_live{peer=\"10.0.0.2\",path=\"0\",link=\"udp\"} 1\n\
                weft_path_live{peer=\"10.0.0.2\",path=\"1\",link=\"udp\"} 0\n# EOF\n";
    let server = Server::new([(PATHS, 200, text.into())]);
    let shown = server.run("top paths n0");
    let paths: Vec<_> = shown.out.lines().skip(1).collect();
    assert!(
        paths[0].starts_with("10.0.0.2  1"),
        "{}{}",
        shown.out,
        shown.err
    );
    assert_eq!(paths.len(), 2);
    let cut = Server::new([(PATHS, 200, json!("weft_path_live{peer"))]);
    let cut = cut.run("top paths n0");
    assert_eq!(cut.status, Some(2));
    assert!(cut.err.contains("page of metrics"), "{}", cut.err);
}

//! `kubectl weft top`.

use serde_json::{Value, json};

use crate::{
    BREAKS_OFF, DEVICES, NODES, PROGRESS, Server, all_progress, devices, fabric_nodes, failure,
};

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
fn a_page_that_breaks_off_is_missing_for_its_node_alone() {
    let server = Server::new([
        (NODES, 200, fabric_nodes(&["n0", "n1"], &[])),
        (METRICS, 200, page()),
        (OTHER, BREAKS_OFF, page()),
    ]);
    let shown = server.run("top nodes");
    assert_eq!(shown.status, Some(1), "{}", shown.err);
    let lines: Vec<&str> = shown.out.lines().collect();
    assert!(lines[1].starts_with("n0    0 B/s  0 B/s"), "{}", shown.out);
    let why = format!("{OTHER} ended too early: ");
    assert!(lines[2].contains(&why), "{}", shown.out);
    assert!(lines[2].ends_with("; ask again"), "{}", shown.out);
}

#[test]
fn a_refusal_that_holds_for_all_nodes_ends_top_and_is_said_once() {
    let message = "fabricnodes.live.weft.dev \"n0\" is forbidden: User \"ada\" cannot get resource \
                   \"fabricnodes/metrics\" in API group \"live.weft.dev\" at the cluster scope";
    let server = Server::new([
        (NODES, 200, fabric_nodes(&["n0", "n1"], &[])),
        (METRICS, 403, failure(403, "Forbidden", message)),
        (OTHER, 200, page()),
    ]);
    let refused = server.run("top nodes");
    assert_eq!((refused.status, &*refused.out), (Some(2), ""));
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

#[test]
fn devices_of_a_node_that_does_not_exist_are_an_error_where_the_nodes_may_be_listed() {
    let mut list = devices();
    list["silentNodes"] = json!([]);
    let server = Server::new([
        (DEVICES, 200, list.clone()),
        (NODES, 200, fabric_nodes(&["n1", "n2"], &[])),
    ]);
    let shown = server.run("top devices n1");
    assert!(shown.out.contains("vdev-00003"), "{}", shown.err);
    let shown = server.run("top devices n2");
    assert_eq!(shown.status, Some(0), "{}", shown.err);
    let shown = server.run("top devices n9");
    assert_eq!(shown.status, Some(2), "{}", shown.out);
    assert!(shown.err.contains("no FabricNode is named n9"));
    let forbidden = failure(403, "Forbidden", "fabricnodes is forbidden");
    let tenants = Server::new([(DEVICES, 200, list), (NODES, 403, forbidden)]);
    assert_eq!(tenants.run("top devices n9").status, Some(0));
}

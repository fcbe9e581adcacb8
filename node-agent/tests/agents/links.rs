//! Agents that may use UDP and TCP measure both, and say what they use. `tests/tests/links.rs` has networks that block one.

use std::net::TcpListener;

use weft_proto::agent::v1::{ProgressResponse, State};

use crate::support::{Lab, job, noise, write};

const DATA_PORT: u16 = 7410;

/// The link of a job that has ended, and why; both ends say the same.
fn link(ends: &[ProgressResponse]) -> (&str, &str) {
    for end in ends {
        assert_eq!(
            end.state(),
            State::Verified,
            "{}: {}",
            end.node,
            end.message
        );
        assert_eq!(end.link, ends[0].link);
        assert_eq!(end.link_reason, ends[0].link_reason);
    }
    (&ends[0].link, &ends[0].link_reason)
}

#[tokio::test(flavor = "multi_thread")]
async fn two_nodes_measure_both_links_once_and_name_the_figures() {
    let lab = Lab::new();
    let agents = [lab.agent(0, "").await, lab.agent(1, "").await];
    write(&lab.root(0).join("model"), &noise(4 << 20, 1));
    let ends = lab.run(&job("first", 1), &[(0, 1)]).await;
    let (name, reason) = link(&ends);
    assert!(["udp", "tcp"].contains(&name), "{name}");
    for part in ["measured: udp ", " GB/s, tcp "] {
        assert!(reason.contains(part), "{reason}");
    }
    // Other figures would show that it was measured again.
    write(&lab.root(0).join("model"), &noise(4 << 20, 2));
    let again = lab.run(&job("second", 1), &[(0, 1)]).await;
    assert_eq!(link(&again), (name, reason));
    for agent in agents {
        agent.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_whose_tcp_port_is_taken_is_reached_over_udp() {
    let lab = Lab::new();
    let _taken = TcpListener::bind((lab.address(1), DATA_PORT)).unwrap();
    let _agents = [lab.agent(0, "").await, lab.agent(1, "").await];
    write(&lab.root(0).join("model"), &noise(1 << 20, 3));
    let ends = lab.run(&job("taken", 1), &[(0, 1)]).await;
    let why = "node n1 has no other link in common with this one";
    assert_eq!((&*ends[0].link, &*ends[0].link_reason), ("udp", why));
    assert_eq!(ends[1].link, "udp");
    assert!(
        ends[1].link_reason.contains("TCP"),
        "{}",
        ends[1].link_reason
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_of_one_fabric_with_tcp_use_it_and_measure_nothing() {
    let lab = Lab::new();
    let tcp = "transport: {link: tcp}\n";
    let _agents = [lab.agent(0, tcp).await, lab.agent(1, tcp).await];
    write(&lab.root(0).join("model"), &noise(1 << 20, 4));
    let ends = lab.run(&job("tcp", 1), &[(0, 1)]).await;
    assert_eq!(link(&ends), ("tcp", "chosen by transport.link"));
}

#[tokio::test(flavor = "multi_thread")]
async fn where_bandwidth_is_limited_udp_is_used_if_it_passes() {
    let lab = Lab::new();
    let capped = "transport: {capMbps: 5000}\n";
    let _agents = [lab.agent(0, capped).await, lab.agent(1, "").await];
    write(&lab.root(0).join("model"), &noise(1 << 20, 5));
    let ends = lab.run(&job("capped", 1), &[(0, 1)]).await;
    assert_eq!(link(&ends), ("udp", "not measured: bandwidth is limited"));
}

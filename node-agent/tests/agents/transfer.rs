//! Agents in one process move files by the operator's word.

use std::process::Command;

use crate::kept::Kept;
use crate::support::{Lab, eventually, job, noise, reason, stat, write};
use tonic::Code;
use weft_agent::agent::Agent;
use weft_proto::agent::v1::*;

fn state(progress: &ProgressResponse) -> (State, String) {
    (
        progress.state(),
        format!("{} {}", progress.reason, progress.message),
    )
}

fn assert_verified(ends: &[ProgressResponse]) {
    for end in ends {
        assert_eq!(
            state(end),
            (State::Verified, " ".to_owned()),
            "{}",
            end.node
        );
        assert_eq!(end.bytes, end.bytes_total, "{}", end.node);
        assert_eq!(end.digest, ends[0].digest, "{}", end.node);
    }
}

/// No partial file and no lock is left. The records of copies are always there.
pub(crate) fn names(lab: &Lab, node: usize) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(lab.root(node))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name != ".weft-copies")
        .collect();
    names.sort();
    names
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_goes_to_one_node_and_its_digest_is_that_of_b3sum() {
    let lab = Lab::new();
    let udp = "transport: {link: udp}\n";
    let agents = [lab.agent(0, udp).await, lab.agent(1, udp).await];
    let bytes = noise(5 * (1 << 20) + 12345, 1);
    write(&lab.root(0).join("model"), &bytes);
    let ends = lab.run(&job("direct", 1), &[(0, 1)]).await;
    assert_verified(&ends);
    assert_eq!(ends[1].digest, blake3::hash(&bytes).to_string());
    assert_eq!(ends[1].peers[0].bytes, bytes.len() as u64);
    assert!(ends[0].chunks_sent > 0);
    for end in &ends {
        let link = (&*end.link, &*end.link_reason);
        assert_eq!(link, ("udp", "chosen by transport.link"));
    }
    assert!(std::fs::read(lab.root(1).join("model")).unwrap() == bytes);
    assert_eq!(names(&lab, 1), ["model"]);
    for agent in agents {
        agent.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_goes_down_a_chain_and_a_branch() {
    let lab = Lab::new();
    let mut agents = Vec::new();
    for node in 0..4 {
        agents.push(lab.agent(node, "").await);
    }
    let dir = lab.root(0).join("model");
    write(&dir.join("big.bin"), &noise(20 << 20, 2));
    write(&dir.join("empty"), b"");
    for index in 0..300 {
        write(&dir.join(format!("many/f{index}")), &noise(index * 37, 3));
    }
    std::fs::create_dir_all(dir.join("hollow/inner")).unwrap();
    let ends = lab.run(&job("chain", 1), &[(0, 1), (1, 2), (1, 3)]).await;
    assert_verified(&ends);
    for node in 1..4 {
        let same = Command::new("diff")
            .arg("-r")
            .args([&dir, &lab.root(node).join("model")])
            .status()
            .unwrap();
        assert!(same.success(), "node {node}");
        assert_eq!(names(&lab, node), ["model"]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn xxh3_and_nothing_at_all_are_sent_too() {
    let lab = Lab::new();
    let _agents = [lab.agent(0, "").await, lab.agent(1, "").await];
    write(&lab.root(0).join("model"), &noise(3 << 20, 4));
    let first = job("xxh3", 1);
    lab.begin(&first, &[(0, 1)], Algorithm::Xxh3).await.unwrap();
    let ends = [lab.finish(0, &first).await, lab.finish(1, &first).await];
    assert_verified(&ends);
    assert_eq!(ends[1].digest.len(), 32);
    write(&lab.root(0).join("model"), b"");
    let ends = lab.run(&job("empty", 1), &[(0, 1)]).await;
    assert_verified(&ends);
    assert_eq!(
        std::fs::metadata(lab.root(1).join("model")).unwrap().len(),
        0
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_there_already_is_not_sent_again() {
    let lab = Lab::new();
    let _agents = [
        lab.agent(0, "").await,
        lab.agent(1, "").await,
        lab.agent(2, "").await,
    ];
    let bytes = noise(8 << 20, 5);
    write(&lab.root(0).join("model"), &bytes);
    assert_verified(&lab.run(&job("first", 1), &[(0, 1)]).await);
    // The relay has all of it, its child has none.
    let ends = lab.run(&job("second", 1), &[(0, 1), (1, 2)]).await;
    assert_verified(&ends);
    assert_eq!(ends[1].bytes_resumed, bytes.len() as u64);
    let parent = ends[1]
        .peers
        .iter()
        .find(|peer| peer.role() == Role::Parent)
        .unwrap();
    assert_eq!(parent.bytes, 0);
    assert!(std::fs::read(lab.root(2).join("model")).unwrap() == bytes);
    // One block differs: it alone is sent.
    let mut changed = bytes.clone();
    changed[3 << 20] ^= 1;
    write(&lab.root(0).join("model"), &changed);
    let ends = lab.run(&job("third", 1), &[(0, 1)]).await;
    assert_verified(&ends);
    assert_eq!(ends[1].peers[0].bytes, 1 << 20);
    assert!(std::fs::read(lab.root(1).join("model")).unwrap() == changed);
}

/// Slow enough to be killed half-way.
pub(crate) const SLOW: &str =
    "transport: {link: udp, congestion: 'fixed:4KiB', paths: 1, stallTimeout: 2s}\n";

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_destination_resumes_where_it_was() {
    let lab = Lab::new();
    let _source = lab.agent(0, SLOW).await;
    let killed = Kept::start(&lab, 1, SLOW);
    let bytes = noise(64 << 20, 6);
    write(&lab.root(0).join("model"), &bytes);
    let first = job("resume", 1);
    lab.begin(&first, &[(0, 1)], Algorithm::Blake3)
        .await
        .unwrap();
    let mut stream = lab.follow(1, &first).await;
    let reached = loop {
        let progress = stream.message().await.unwrap().unwrap();
        assert_eq!(progress.state(), State::Transferring, "{progress:?}");
        if progress.bytes >= 8 << 20 {
            break progress.bytes;
        }
    };
    killed.kill();
    assert!(reached < 60 << 20, "killed too late: {reached}");
    assert!(!lab.root(1).join("model").exists());
    let _restarted = Kept::start(&lab, 1, SLOW);
    let end = lab.finish(0, &first).await;
    assert_eq!(end.state(), State::Failed, "{end:?}");
    assert!(end.retriable && ["PeerRestarted", "PeerStalled"].contains(&end.reason.as_str()));
    assert!(end.message.contains("node n1"), "{}", end.message);
    let second = job("resume", 2);
    let prepared = lab
        .begin(&second, &[(0, 1)], Algorithm::Blake3)
        .await
        .unwrap();
    assert!(prepared[0].blocks_have >= 8, "{prepared:?}");
    let ends = [lab.finish(0, &second).await, lab.finish(1, &second).await];
    assert_verified(&ends);
    // What the first attempt had delivered is not sent again.
    assert!(
        ends[1].bytes_resumed >= reached,
        "{} < {reached}",
        ends[1].bytes_resumed
    );
    assert_eq!(
        ends[1].peers[0].bytes + ends[1].bytes_resumed,
        bytes.len() as u64
    );
    assert!(std::fs::read(lab.root(1).join("model")).unwrap() == bytes);
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_cancel_nothing_lands_and_what_is_discarded_is_gone() {
    let lab = Lab::new();
    let _agents = [lab.agent(0, SLOW).await, lab.agent(1, SLOW).await];
    write(&lab.root(0).join("model"), &noise(64 << 20, 7));
    let first = job("cancel", 1);
    lab.begin(&first, &[(0, 1)], Algorithm::Blake3)
        .await
        .unwrap();
    let mut stream = lab.follow(1, &first).await;
    while stream.message().await.unwrap().unwrap().bytes < 2 << 20 {}
    let cancel = |remove_partials| CancelRequest {
        attempt: Some(first.clone()),
        leader_epoch: 1,
        remove_partials,
        release_copies: false,
    };
    lab.operator(1).await.cancel(cancel(false)).await.unwrap();
    let end = lab.finish(1, &first).await;
    assert_eq!(end.reason, "Cancelled");
    // The source hears of it and ends too: is told so, unless the connection was gone before that.
    let end = lab.finish(0, &first).await;
    assert_eq!(end.state(), State::Failed, "{end:?}");
    let reasons = ["PeerGaveUp", "PeerRestarted"];
    assert!(reasons.contains(&end.reason.as_str()), "{end:?}");
    assert!(
        !names(&lab, 1).is_empty(),
        "partial files are kept for a resume"
    );
    lab.operator(1).await.cancel(cancel(true)).await.unwrap();
    assert!(names(&lab, 1).is_empty(), "{:?}", names(&lab, 1));
    let manifest = stat(&mut lab.operator(0).await).await.unwrap();
    let refused = lab
        .operator(1)
        .await
        .prepare(lab.prepare(&first, 1, &manifest))
        .await;
    assert_eq!(reason(&refused.unwrap_err()), "Cancelled");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_told_to_stop_ends_its_jobs_and_itself() {
    let lab = Lab::new();
    let _source = lab.agent(0, SLOW).await;
    let mut stopped = Kept::start(&lab, 1, SLOW);
    write(&lab.root(0).join("model"), &noise(64 << 20, 13));
    let first = job("stop", 1);
    lab.begin(&first, &[(0, 1)], Algorithm::Blake3)
        .await
        .unwrap();
    let mut stream = lab.follow(1, &first).await;
    while stream.message().await.unwrap().unwrap().bytes < 1 << 20 {}
    let id = stopped.0.id().to_string();
    assert!(
        Command::new("kill")
            .args(["-TERM", &id])
            .status()
            .unwrap()
            .success()
    );
    let mut last = None;
    while let Ok(Some(progress)) = stream.message().await {
        last = Some(progress);
    }
    assert_eq!(
        last.map(|progress| progress.reason).as_deref(),
        Some("ShuttingDown")
    );
    let status = stopped.0.wait().unwrap();
    assert!(status.success(), "{status}");
    let end = lab.finish(0, &first).await;
    assert!(end.retriable, "{end:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_child_does_not_stop_its_sibling() {
    let lab = Lab::new();
    let source = lab.agent(0, SLOW).await;
    let _sibling = lab.agent(2, SLOW).await;
    let killed = Kept::start(&lab, 1, SLOW);
    let bytes = noise(64 << 20, 8);
    write(&lab.root(0).join("model"), &bytes);
    let first = job("sibling", 1);
    lab.begin(&first, &[(0, 1), (0, 2)], Algorithm::Blake3)
        .await
        .unwrap();
    let mut stream = lab.follow(1, &first).await;
    while stream.message().await.unwrap().unwrap().bytes < 1 << 20 {}
    killed.kill();
    let sibling = lab.finish(2, &first).await;
    assert_eq!(state(&sibling), (State::Verified, " ".to_owned()));
    assert!(std::fs::read(lab.root(2).join("model")).unwrap() == bytes);
    let end = lab.finish(0, &first).await;
    assert_eq!(
        (end.state(), end.reason.as_str()),
        (State::Failed, "PeerStalled"),
        "{end:?}"
    );
    let failed: Vec<_> = end.peers.iter().filter(|peer| peer.failed).collect();
    assert_eq!((failed.len(), failed[0].node.as_str()), (1, "n1"));
    source.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_source_that_changes_while_it_is_read_fails_and_publishes_nothing() {
    let lab = Lab::new();
    let _agents = [lab.agent(0, SLOW).await, lab.agent(1, SLOW).await];
    let path = lab.root(0).join("model");
    write(&path, &noise(64 << 20, 9));
    let other = noise(64 << 20, 10);
    let first = job("changed", 1);
    lab.begin(&first, &[(0, 1)], Algorithm::Blake3)
        .await
        .unwrap();
    let mut stream = lab.follow(0, &first).await;
    while stream.message().await.unwrap().unwrap().bytes < 4 << 20 {}
    write(&path, &other);
    let end = lab.finish(0, &first).await;
    assert!(
        ["SourceChanged", "SourceTruncated"].contains(&end.reason.as_str()),
        "{end:?}"
    );
    assert!(!end.retriable);
    // Told so, unless the source's connection was gone before the word got through.
    let end = lab.finish(1, &first).await;
    let reasons = ["PeerGaveUp", "PeerRestarted"];
    assert!(
        reasons.contains(&end.reason.as_str()) && end.retriable,
        "{end:?}"
    );
    assert!(!lab.root(1).join("model").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attempt_that_nobody_asks_about_ends_by_itself() {
    let lab = Lab::new();
    let agents = [
        // Longer than a busy disk takes to reserve a file.
        lab.agent(0, "limits: {lease: 5s}\n").await,
        lab.agent(1, "limits: {lease: 5s}\n").await,
    ];
    write(&lab.root(0).join("model"), &noise(1 << 20, 11));
    let first = job("lease", 1);
    let manifest = stat(&mut lab.operator(0).await).await.unwrap();
    lab.operator(1)
        .await
        .prepare(lab.prepare(&first, 1, &manifest))
        .await
        .unwrap();
    let run = agents[1].registry().find(&first).unwrap();
    let status = eventually("the lease ends", || async {
        Some(run.attempt.status()).filter(|status| status.closed)
    })
    .await;
    assert_eq!(
        status.fault.map(|fault| fault.reason()),
        Some("LeaseExpired")
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_goes_over_all_nics_of_two_nodes() {
    let lab = Lab::new();
    let (mut agents, mut nics) = (Vec::new(), Vec::new());
    for node in 0..2 {
        // Of another node that there is not.
        let (first, other) = (lab.address(node), lab.address(node + 10));
        let text = std::fs::read_to_string(lab.configure(node, "")).unwrap();
        let both = format!("address: {first}, otherAddresses: [{other}]");
        let text = text.replace(&format!("address: {first}"), &both);
        let text = text + "transport: {link: udp}\n";
        let config = weft_agent::config::parse(&text).unwrap();
        agents.push(Agent::start(&config).await.unwrap());
        nics.push([first, other]);
    }
    let metrics = lab.get(0, "/metrics").await;
    for nic in nics[0] {
        let line = format!("weft_nic_up{{interface=\"lo\",address=\"{nic}\"}} 1");
        assert!(metrics.contains(&line), "{line} is not in:\n{metrics}");
    }
    write(&lab.root(0).join("model"), &noise(32 << 20, 1));
    let pairs = nics[0].map(|here| nics[1].map(|there| (here, there)));
    let live = pairs.as_flattened().iter().map(|(here, there)| {
        format!("weft_nic_pair_live_paths{{here=\"{here}\",there=\"{there}\"}} 1\n")
    });
    let live: Vec<String> = live.collect();
    let peer = nics[1][0];
    // Two ports at either end: each path is between two NICs of its own.
    let sent: Vec<String> = (0..live.len())
        .map(|path| {
            format!("weft_path_chunks_sent_total{{peer=\"{peer}\",path=\"{path}\",link=\"udp\"}} ")
        })
        .collect();
    let all_carry = || async {
        let paths = lab.get(0, "/metrics/paths").await;
        let carries = |sent: &String| {
            let mut lines = paths.lines();
            lines.any(|line| line.starts_with(sent) && !line.ends_with(" 0"))
        };
        let all = live.iter().all(|line| paths.contains(line)) && sent.iter().all(carries);
        all.then_some(())
    };
    let (job, edges) = (job("nics", 1), [(0, 1)]);
    let (ends, ()) = tokio::join!(
        lab.run(&job, &edges),
        eventually("each pair of NICs carries data", all_carry)
    );
    assert_verified(&ends);
    for agent in agents {
        agent.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_and_health_are_served() {
    let lab = Lab::new();
    let _agents = [lab.agent(0, "").await, lab.agent(1, "").await];
    write(&lab.root(0).join("model"), &noise(2 << 20, 12));
    assert_verified(&lab.run(&job("metrics", 1), &[(0, 1)]).await);
    assert!(lab.get(1, "/healthz").await.ends_with("ok\n"));
    assert!(lab.get(1, "/readyz").await.ends_with("ready\n"));
    let text = lab.get(1, "/metrics").await;
    for line in [
        "weft_job_bytes_total{job_namespace=\"team\",job_name=\"job-metrics\"} 2097152",
        "weft_job_state{job_namespace=\"team\",job_name=\"job-metrics\",state=\"Verified\"} 1",
        "# TYPE weft_dropped_packets counter",
        "# TYPE weft_peer_paths_down gauge",
        "weft_build_info{version=",
        "# EOF",
    ] {
        assert!(text.contains(line), "{line} is not in:\n{text}");
    }
    assert!(!text.contains("weft_path_"), "{text}");
    let paths = lab.get(1, "/metrics/paths").await;
    assert!(paths.contains("# TYPE weft_path_live gauge"), "{paths}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_operator_reads_the_pages_of_metrics_by_the_control_api_and_nodes_do_not() {
    let lab = Lab::new();
    let _agent = lab.agent(0, "").await;
    let mut operator = lab.operator(0).await;
    for (paths, line) in [
        (false, "# TYPE weft_peer_paths_down gauge"),
        (true, "# TYPE weft_path_live gauge"),
    ] {
        let request = ReadMetricsRequest {
            leader_epoch: 1,
            paths,
        };
        let mut parts = operator.read_metrics(request).await.unwrap().into_inner();
        let mut page = Vec::new();
        while let Some(part) = parts.message().await.unwrap() {
            page.extend(part.text);
        }
        let page = String::from_utf8(page).unwrap();
        assert!(page.contains(line) && page.ends_with("# EOF\n"), "{page}");
    }
    let pair = lab.issue("weft://lab/node/n1", "n1.lab.weft");
    let mut node = lab.client_as(0, &pair).await.unwrap();
    let refused = node.read_metrics(ReadMetricsRequest::default()).await;
    assert_eq!(refused.unwrap_err().code(), Code::PermissionDenied);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_verified_destination_says_whether_files_of_its_directory_were_replaced_one_by_one() {
    let lab = Lab::new();
    let agents = [lab.agent(0, "").await, lab.agent(1, "").await];
    for (run, (number, replaces)) in [(1, false), (1, false), (2, true)].into_iter().enumerate() {
        write(&lab.root(0).join("model/weights"), &noise(1 << 20, number));
        let job = job(&format!("job-{run}"), 1);
        let ends = lab.run(&job, &[(0, 1)]).await;
        assert_eq!((ends[1].state(), &*ends[1].reason), (State::Verified, ""));
        let says = ends[1].message.contains("replaced one after the other");
        assert_eq!(says, replaces, "{:?}", ends[1].message);
        assert_eq!(names(&lab, 1), ["model"]);
    }
    for agent in agents {
        agent.stop().await;
    }
}

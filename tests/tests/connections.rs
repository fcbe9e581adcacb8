//! Jobs over real agents, as far as their way to them goes: who shares a connection, and what becomes
//! of it when an agent is restarted.

#![allow(clippy::unwrap_used)]

use std::{collections::BTreeSet, fs, path::Path, time::Duration};

use tokio::time::timeout;
use weft_cli::stage::{
    Access, CongestionControl, Encryption, Ground, Link, PathPolicy, Root, Setup, Stage,
};
use weft_planner::Strategy;
use weft_proto::agent::v1::{Algorithm, Overwrite, Symlinks};
use weft_tests::program;
use weft_transfer::{LeaderContext, Runner, Spec, Timing};

/// Nothing here takes longer, even on a machine that does ten other things.
const DEADLINE: Duration = Duration::from_secs(120);
const NODES: usize = 3;

async fn stage(directory: &Path) -> Stage {
    let root = |i: usize| Root {
        name: "data",
        directory: directory.join(format!("root{i}")),
        access: Access::ReadWrite,
    };
    let setup = Setup {
        name: "lab",
        ground: Ground::loopback(NODES, 1500).unwrap(),
        program: program("weft-agent"),
        home: directory.join("agents"),
        roots: (0..NODES).map(root).collect(),
        paths: 1,
        policy: PathPolicy::default(),
        link: Link::Auto,
        encryption: Encryption::Off,
        congestion: CongestionControl::default(),
        devices: None,
        stays: false,
    };
    let mut stage = Stage::set(setup).unwrap();
    stage.start_all().await.unwrap();
    stage
}

/// From node 0 to another.
fn spec(stage: &Stage, uid: &str, to: usize) -> Spec {
    fs::write(stage.root(0).join(uid), uid.repeat(1 << 16)).unwrap();
    Spec {
        uid: uid.to_owned(),
        name: None,
        source: stage.place(0, uid),
        symlinks: Symlinks::Follow,
        object: None,
        destinations: vec![stage.place(to, uid)],
        topology: stage.topology(),
        strategy: Strategy::Direct,
        payload_share: stage.ground().payload_share(),
        algorithm: Algorithm::Blake3,
        expect: String::new(),
        overwrite: Overwrite::IfDifferent,
        backoff_limit: 6,
        timing: Timing::INTERACTIVE,
        leader: LeaderContext::ONLY,
    }
}

/// Plays the operator to the end of a job; how many attempts that took.
async fn complete(mut runner: Runner) -> u32 {
    let played = async {
        while !runner.transfer().is_over() {
            runner.run_once().await;
        }
    };
    timeout(DEADLINE, played).await.expect("the job ends");
    let job = runner.transfer();
    let standings: Vec<_> = job.destinations().map(|view| &view.phase).collect();
    assert!(job.is_complete(), "{standings:?} {:?}", job.source_fault());
    job.attempt()
}

/// The TCP connections that this process has to an agent's control API.
fn connections(stage: &Stage, i: usize) -> usize {
    let links = fs::read_dir("/proc/self/fd").unwrap();
    let links = links.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
    let sockets: BTreeSet<String> = links
        .filter_map(|link| {
            let text = link.to_str()?.strip_prefix("socket:[")?;
            Some(text.strip_suffix(']')?.to_owned())
        })
        .collect();
    let port = stage.ground().addresses(i).control.port();
    let remote = format!("0100007F:{port:04X}");
    let table = fs::read_to_string("/proc/self/net/tcp").unwrap();
    let is_ours = |line: &&str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        words.get(2) == Some(&&*remote) && words.get(9).is_some_and(|it| sockets.contains(*it))
    };
    table.lines().filter(is_ours).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_at_the_same_agents_share_a_connection_to_each_also_when_one_was_restarted() {
    let directory = tempfile::tempdir().unwrap();
    let mut stage = stage(directory.path()).await;
    // A connection stays as long as a job holds it.
    let _holders = [1, 2].map(|to| stage.begin(spec(&stage, &format!("holder-{to}"), to)));
    for round in ["first", "second", "third"] {
        for (a, b) in [(1, 2), (2, 1)] {
            let job = |to| stage.begin(spec(&stage, &format!("{round}-{a}{b}-to-{to}"), to));
            let attempts = tokio::join!(complete(job(a)), complete(job(b)));
            // An agent that was restarted in between is called as if nothing had happened.
            assert_eq!(attempts, (1, 1), "{round}");
        }
        for i in 0..NODES {
            assert_eq!(connections(&stage, i), 1, "{round}: node {i}");
        }
        for i in [0, 2] {
            stage.kill(i).unwrap();
            stage.start(i, &[]).unwrap();
            stage.ready(i).await.unwrap();
        }
    }
}

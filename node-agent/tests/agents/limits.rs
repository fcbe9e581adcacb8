//! What an agent does with little memory and without threads.

use std::os::unix::fs::FileExt as _;

use crate::kept::Kept;
use crate::support::{DEADLINE, Lab, job, noise, reason, start_source, stat, write};
use weft_agent::agent::Agent;
use weft_agent::config;
use weft_proto::agent::v1::*;

/// What an agent may hold while it moves whatever: the budget of the speed and memory table.
const ANONYMOUS_KB_MAX: u64 = 64 << 10;

#[tokio::test(flavor = "multi_thread")]
async fn memory_is_bounded_whatever_the_size() {
    let lab = Lab::new();
    let agents: Vec<Kept> = (0..3).map(|node| Kept::start(&lab, node, "")).collect();
    let file = std::fs::File::create(lab.root(0).join("model")).unwrap();
    file.set_len(384 << 20).unwrap();
    // No block is a hole: all of them are sent.
    for block in 0..384 {
        file.write_all_at(b"x", block << 20).unwrap();
    }
    let first = job("memory", 1);
    lab.begin(&first, &[(0, 1), (1, 2)], Algorithm::Xxh3)
        .await
        .unwrap();
    let mut most = [0; 3];
    let mut stream = lab.follow(2, &first).await;
    while let Some(progress) = stream.message().await.unwrap() {
        assert_ne!(progress.state(), State::Failed, "{progress:?}");
        for (agent, most) in agents.iter().zip(&mut most) {
            *most = agent.anonymous_kb().max(*most);
        }
    }
    assert!(most.iter().all(|kb| *kb <= ANONYMOUS_KB_MAX), "{most:?}");
}

/// Eight jobs of one source at the same time, by this tree, with what agents may use by default.
async fn eight_at_once(edges: &[(usize, usize)]) {
    let lab = Lab::new();
    let agents: Vec<Kept> = (0..3).map(|node| Kept::start(&lab, node, "")).collect();
    let bytes = noise(24 << 20, 9);
    write(&lab.root(0).join("model"), &bytes);
    let jobs: Vec<AttemptRef> = (0..8).map(|n| job(&format!("at-once-{n}"), 1)).collect();
    for job in &jobs {
        let begun = lab.begin_at(&job.uid, job, edges, Algorithm::Xxh3).await;
        begun.unwrap_or_else(|status| panic!("{}: {status:?}", job.uid));
    }
    let mut most = 0;
    for job in &jobs {
        let mut ends = Vec::new();
        for node in 0..3 {
            ends.push(lab.finish(node, job).await);
            let held = agents.iter().map(Kept::anonymous_kb).max();
            most = held.unwrap().max(most);
        }
        // Why one failed may be known to another only.
        let verified = ends.iter().all(|end| end.state() == State::Verified);
        assert!(verified, "{ends:?}");
        for node in 1..3 {
            assert!(std::fs::read(lab.root(node).join(&job.uid)).unwrap() == bytes);
        }
    }
    assert!(most <= ANONYMOUS_KB_MAX, "{most}");
}

#[tokio::test(flavor = "multi_thread")]
async fn eight_jobs_of_one_source_to_two_nodes_each_move_at_once() {
    eight_at_once(&[(0, 1), (0, 2)]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn eight_jobs_through_one_relay_move_at_once() {
    eight_at_once(&[(0, 1), (1, 2)]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_gets_no_thread_to_receive_says_so_and_keeps_no_connection() {
    let lab = Lab::new();
    let _source = lab.agent(0, "").await;
    // A thread that has ended leaves its stack to the next one otherwise.
    let no_cache = [("GLIBC_TUNABLES", "glibc.pthread.stack_cache_size=0")];
    let receiver = Kept::start_in(&lab, 1, "", &no_cache);
    write(&lab.root(0).join("model"), &noise(3 << 20, 8));
    let first = job("threads", 1);
    let manifest = stat(&mut lab.operator(0).await).await.unwrap();
    let mut operator = lab.operator(1).await;
    operator
        .prepare(lab.prepare(&first, 1, &manifest))
        .await
        .unwrap();
    receiver.allow_no_more_threads();
    let children = vec![lab.child(&first, 0, 1)];
    let request = start_source(&first, &manifest, children, Algorithm::Blake3);
    lab.operator(0).await.start(request).await.unwrap();
    for end in [lab.finish(0, &first).await, lab.finish(1, &first).await] {
        assert_eq!(end.state(), State::Failed, "{end:?}");
        assert!(end.message.contains("EngineRefused") || end.reason == "EngineRefused");
        assert!(
            end.message.contains("raise the limit on threads"),
            "{end:?}"
        );
    }
    let metrics = lab.get(1, "/metrics").await;
    assert!(metrics.contains("weft_connections{} 0"), "{metrics}");
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_follows_all_that_memory_holds_can_still_cancel() {
    let lab = Lab::new();
    let _source = lab.agent(0, "").await;
    // Two slots and 16 KiB for each of 100 attempts, which are followed and the last one cancelled.
    let limits = "limits: {memory: 218000KiB, slots: 2}\n";
    let _agent = lab.agent(1, limits).await;
    write(&lab.root(0).join("model"), b"1");
    let manifest = stat(&mut lab.operator(0).await).await.unwrap();
    let mut operator = lab.operator(1).await;
    let mut followed = Vec::new();
    let work = async {
        for number in 0..100 {
            let job = job(&format!("many-{number}"), 1);
            let location = Some(Location {
                root: "data".to_owned(),
                path: format!("model-{number}"),
            });
            let request = PrepareRequest {
                location,
                ..lab.prepare(&job, 1, &manifest)
            };
            operator.prepare(request).await.unwrap();
            for _ in 0..2 {
                let request = ProgressRequest {
                    attempt: Some(job.clone()),
                    leader_epoch: 1,
                    interval_ms: 60_000,
                };
                followed.push(operator.progress(request).await.unwrap());
            }
        }
        let cancel = CancelRequest {
            attempt: Some(job("many-99", 1)),
            leader_epoch: 1,
            remove_partials: true,
            release_copies: false,
        };
        operator.cancel(cancel).await.unwrap();
    };
    let done = tokio::time::timeout(DEADLINE, work).await;
    done.expect("no call waits for another to end");
}

/// An agent whose root has these limits too.
async fn limited(lab: &Lab, node: usize, limits: &str) -> Agent {
    let text = std::fs::read_to_string(lab.configure(node, "")).unwrap();
    let text = text.replace("access: ReadWrite", &format!("access: ReadWrite, {limits}"));
    Agent::start(&config::parse(&text).unwrap()).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_would_go_beyond_a_limit_of_a_root_is_refused_before_any_byte_moves() {
    for (limits, expected, hint) in [
        ("minFree: 100%", "RootReserve", "minFree"),
        ("bytesPerNamespace: 2MiB", "NamespaceQuota", "\"team\""),
    ] {
        let lab = Lab::new();
        let agents = [lab.agent(0, "").await, limited(&lab, 1, limits).await];
        write(&lab.root(0).join("model/weights"), &noise(3 << 20, 1));
        let manifest = stat(&mut lab.operator(0).await).await.unwrap();
        let request = lab.prepare(&job("first", 1), 1, &manifest);
        let refused = lab.operator(1).await.prepare(request).await.unwrap_err();
        assert_eq!(reason(&refused), expected);
        let text = refused.message();
        assert!(
            text.contains(hint) && text.contains("3149824 bytes are needed"),
            "{text}"
        );
        assert!(!lab.root(1).join("model").exists());
        for agent in agents {
            agent.stop().await;
        }
    }
}

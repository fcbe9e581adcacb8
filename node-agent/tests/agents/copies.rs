//! A node tells its operator of the verified copies that it has.

use std::sync::atomic::{AtomicU32, Ordering};

use weft_proto::agent::v1::start_request::Task;
use weft_proto::agent::v1::{Algorithm, AttemptRef, JobName, PrepareRequest, State};
use weft_proto::operator::v1::{Copy, CopyJob, NodeReport};

use crate::eventually::eventually;
use crate::operator::{Member, Operator};
use crate::support::{Lab, job, name_of, noise, reason, release_copies, start_source, stat, write};

fn copy_job(job: &AttemptRef) -> CopyJob {
    let name = name_of(job).unwrap();
    CopyJob {
        uid: job.uid.clone(),
        namespace: name.namespace,
        name: name.name,
        namespace_uid: name.namespace_uid,
    }
}

/// The next report of a node that lists copies of these jobs at `model`, or no copy at all.
async fn reported(operator: &Operator, node: usize, jobs: &[&AttemptRef], why: &str) -> NodeReport {
    let address = operator.lab().await.control(node);
    let wanted: Vec<CopyJob> = jobs.iter().map(|job| copy_job(job)).collect();
    let said = |copies: &[Copy]| match copies {
        [] => wanted.is_empty(),
        [copy] => copy.path == "model" && copy.jobs == wanted,
        _ => false,
    };
    operator
        .report(why, |r| {
            r.control_address == address && r.copies_listed && said(&r.copies)
        })
        .await
}

async fn joined(operator: &Operator) -> [Member; 2] {
    let members = [operator.join(0).await, operator.join(1).await];
    for node in 0..2 {
        operator.ready(node).await;
    }
    members
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_is_reported_until_a_file_of_it_is_changed_or_removed() {
    let operator = Operator::new(Lab::new());
    let running = operator.serve().await;
    let members = joined(&operator).await;
    let lab = operator.lab().await;
    reported(&operator, 0, &[], "no copy yet").await;
    write(&lab.root(0).join("model/weights"), &noise(3 << 20, 1));
    write(&lab.root(0).join("model/sub/config"), b"{}");
    let first = job("first", 1);
    let ends = lab.run(&first, &[(0, 1)]).await;
    assert!(ends.iter().all(|end| end.state() == State::Verified));
    for node in 0..2 {
        let report = reported(&operator, node, &[&first], "both have it").await;
        let Copy {
            root,
            digest,
            bytes,
            files,
            ..
        } = &report.copies[0];
        assert_eq!((&**root, digest), ("data", &ends[1].digest));
        assert_eq!((*bytes, *files), ((3 << 20) + 2, 2));
    }
    let root = lab.root(1);
    write(&root.join("model/more"), b"x");
    reported(&operator, 1, &[&first], "another file is not its").await;
    write(&root.join("model/sub/config"), b"[]");
    reported(&operator, 1, &[], "a file was written to").await;
    reported(&operator, 0, &[&first], "the source has its files").await;
    std::fs::remove_dir_all(lab.root(0).join("model")).unwrap();
    reported(&operator, 0, &[], "all is gone").await;
    for member in members {
        member.stop().await;
    }
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_is_reported_after_a_restart_of_the_agent_until_its_last_job_is_released() {
    let operator = Operator::new(Lab::new());
    let running = operator.serve().await;
    let members = joined(&operator).await;
    let lab = operator.lab().await;
    write(&lab.root(0).join("model/weights"), &noise(3 << 20, 1));
    let (first, second) = (job("first", 1), job("second", 1));
    for job in [&first, &second] {
        lab.run(job, &[(0, 1)]).await;
    }
    reported(&operator, 1, &[&first, &second], "two jobs, one copy").await;
    for member in members {
        member.stop().await;
    }
    let members = joined(&operator).await;
    reported(&operator, 1, &[&first, &second], "it survives").await;
    release_copies(&lab, 1, &first).await;
    reported(&operator, 1, &[&second], "a job less").await;
    assert!(lab.root(1).join("model/weights").exists());
    // Somebody is at work there: it goes after that, and is none any more at once.
    let other = job("other", 1);
    let manifest = stat(&mut lab.operator(0).await).await.unwrap();
    let request: PrepareRequest = lab.prepare(&other, 1, &manifest);
    lab.operator(1).await.prepare(request).await.unwrap();
    release_copies(&lab, 1, &second).await;
    reported(&operator, 1, &[], "no job needs it").await;
    assert!(lab.root(1).join("model/weights").exists());
    release_copies(&lab, 1, &other).await;
    eventually("the files go", || async {
        (!lab.root(1).join("model").exists()).then_some(())
    })
    .await;
    for member in members {
        member.stop().await;
    }
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn copies_are_listed_again_when_their_file_system_is_mounted_late() {
    let operator = Operator::new(Lab::new());
    let running = operator.serve().await;
    let members = joined(&operator).await;
    let lab = operator.lab().await;
    write(&lab.root(0).join("model"), &noise(1 << 20, 1));
    let first = job("first", 1);
    lab.run(&first, &[(0, 1)]).await;
    for member in members {
        member.stop().await;
    }
    // The node restarts, and only the directory is there onto which it will be mounted.
    let (root, device) = (lab.root(1), lab.root(1).with_extension("device"));
    std::fs::rename(&root, &device).unwrap();
    std::fs::create_dir(&root).unwrap();
    let member = operator.join(1).await;
    reported(&operator, 1, &[], "there is no record").await;
    std::fs::remove_dir(&root).unwrap();
    std::fs::rename(&device, &root).unwrap();
    reported(&operator, 1, &[&first], "the copy is there").await;
    member.stop().await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_without_a_name_is_not_recorded_and_a_bad_name_is_refused() {
    let lab = Lab::new();
    let agents = [lab.agent(0, "").await, lab.agent(1, "").await];
    write(&lab.root(0).join("model"), b"x");
    let first = job("first", 1);
    let manifest = stat(&mut lab.operator(0).await).await.unwrap();
    let long = "x".repeat(254);
    for (namespace, name) in [
        ("", "x"),
        ("x", ""),
        ("x", &*long),
        ("a/b", "x"),
        ("x", "ü"),
    ] {
        let name = Some(JobName {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            namespace_uid: String::new(),
        });
        let children = vec![lab.child(&first, 0, 1)];
        let mut start = start_source(&first, &manifest, children, Algorithm::Blake3);
        if let Some(Task::Source(part)) = &mut start.task {
            part.job_name.clone_from(&name);
        }
        let request = PrepareRequest {
            job_name: name,
            ..lab.prepare(&first, 1, &manifest)
        };
        let refused = [
            lab.operator(0).await.start(start).await.unwrap_err(),
            lab.operator(1).await.prepare(request).await.unwrap_err(),
        ];
        for refused in refused {
            assert_eq!(reason(&refused), "BadRequest");
            assert!(refused.message().contains("job_name"), "{refused:?}");
        }
    }
    // To another place than the source's: there, no record is asked for.
    let moved = lab.begin_at("else", &first, &[(0, 1)], Algorithm::Blake3);
    moved.await.unwrap();
    for node in 0..2 {
        let end = lab.finish(node, &first).await;
        assert_eq!(end.state(), State::Verified, "{}", end.message);
        assert_eq!(lab.root(node).join(".weft-copies").exists(), node == 1);
    }
    for agent in agents {
        agent.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_writes_into_no_directory_that_a_file_system_has_been_mounted_over() {
    let operator = Operator::new(Lab::new());
    let running = operator.serve().await;
    let members = [operator.join(0).await, operator.join(1).await];
    for node in 0..2 {
        operator.ready(node).await;
    }
    let lab = operator.lab().await;
    write(&lab.root(0).join("model"), &noise(1 << 20, 1));
    // No copy is recorded at the node whose file system comes late.
    let (root, covered) = (lab.root(1), lab.root(1).with_extension("covered"));
    std::fs::rename(&root, &covered).unwrap();
    std::fs::create_dir(&root).unwrap();
    let attempts = AtomicU32::new(0);
    let attempt = eventually("the job begins", || async {
        let attempt = attempts.fetch_add(1, Ordering::Relaxed) + 1;
        let job = job("first", attempt);
        let begun = lab.begin(&job, &[(0, 1)], Algorithm::Blake3).await;
        begun.is_ok().then_some(attempt)
    })
    .await;
    let end = lab.finish(1, &job("first", attempt)).await;
    assert_eq!(end.state(), State::Verified, "{}", end.message);
    assert!(root.join("model").exists());
    assert_eq!(std::fs::read_dir(&covered).unwrap().count(), 0);
    for member in members {
        member.stop().await;
    }
    running.stop().await;
}

/// `kubectl weft copies delete` cancels the job's last attempt that there can be.
#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_is_only_released_is_no_metric() {
    let lab = Lab::new();
    let _agent = lab.agent(1, "").await;
    let gone = job("gone", u32::MAX);
    release_copies(&lab, 1, &gone).await;
    let metrics = lab.get(1, "/metrics").await;
    assert!(metrics.contains("weft_connections{} 0"), "{metrics}");
    let is_of_it = |line: &&str| line.contains(&gone.uid) || line.contains(&u32::MAX.to_string());
    assert_eq!(metrics.lines().find(is_of_it), None);
}

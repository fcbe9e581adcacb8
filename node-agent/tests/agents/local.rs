//! A copy that a node makes of files that it has itself.

use std::os::unix::fs::PermissionsExt as _;

use tonic::Status;
use weft_proto::agent::v1::start_request::Task;
use weft_proto::agent::v1::*;

use crate::support::{Lab, job, model, name_of, noise, release_copies, stat, write};
use crate::transfer::names;

fn copy() -> Option<Location> {
    Some(Location {
        root: "data".into(),
        path: "copy".into(),
    })
}

async fn begin(lab: &Lab, job: &AttemptRef, manifest: &StatResponse) -> Result<(), Status> {
    let mut operator = lab.operator(0).await;
    let request = PrepareRequest {
        location: copy(),
        ..lab.prepare(job, 0, manifest)
    };
    operator.prepare(request).await?;
    let part = LocalCopyTask {
        source: model(),
        fingerprint: manifest.fingerprint.clone(),
    };
    let request = StartRequest {
        attempt: Some(job.clone()),
        leader_epoch: 1,
        job_name: name_of(job),
        task: Some(Task::Local(part)),
        sends_to: Vec::new(),
    };
    operator.start(request).await.map(drop)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_is_copied_beside_itself_and_checked() {
    let lab = Lab::new();
    let agent = lab.agent(0, "").await;
    let big = noise(5 * (1 << 20) + 12345, 1);
    write(&lab.root(0).join("model/weights"), &big);
    write(&lab.root(0).join("model/sub/empty"), b"");
    let script = lab.root(0).join("model/sub/run");
    write(&script, b"x");
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o750)).unwrap();
    let manifest = stat(&mut lab.operator(0).await).await.unwrap();
    let job = job("minilm-here", 1);
    begin(&lab, &job, &manifest).await.unwrap();
    let end = lab.finish(0, &job).await;
    assert_eq!(end.state(), State::Verified, "{}", end.message);
    assert_eq!((end.bytes, end.bytes_resumed), (big.len() as u64 + 1, 0));
    assert!(std::fs::read(lab.root(0).join("copy/weights")).unwrap() == big);
    let mode = std::fs::metadata(lab.root(0).join("copy/sub/run")).unwrap();
    assert_eq!(mode.permissions().mode() & 0o777, 0o750);
    let all = names(&lab, 0);
    assert!(all.iter().all(|name| !name.contains("weft")), "{all:?}");
    // What is there already is read and not written.
    let again = AttemptRef { number: 2, ..job };
    begin(&lab, &again, &manifest).await.unwrap();
    let end = lab.finish(0, &again).await;
    assert_eq!(end.state(), State::Verified, "{}", end.message);
    assert_eq!(end.bytes_resumed, big.len() as u64 + 1);
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_source_that_has_changed_since_it_was_listed_is_not_copied() {
    let lab = Lab::new();
    let agent = lab.agent(0, "").await;
    let file = lab.root(0).join("model");
    write(&file, &noise(3 << 20, 1));
    let manifest = stat(&mut lab.operator(0).await).await.unwrap();
    write(&file, &noise(3 << 20, 2));
    let job = job("minilm-here", 1);
    begin(&lab, &job, &manifest).await.unwrap();
    let end = lab.finish(0, &job).await;
    assert_eq!(
        (end.state(), &*end.reason),
        (State::Failed, "SourceChanged")
    );
    assert_eq!(
        names(&lab, 0).iter().filter(|name| *name == "copy").count(),
        0
    );
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_released_copy_is_removed_unless_something_of_it_has_changed() {
    let lab = Lab::new();
    let agents = [lab.agent(0, "").await, lab.agent(1, "").await];
    write(&lab.root(0).join("model/weights"), &noise(3 << 20, 1));
    write(&lab.root(0).join("model/sub/config"), b"{}");
    write(&lab.root(1).join("model/mine"), b"mine");
    lab.run(&job("first", 1), &[(0, 1)]).await;
    // One lay there before, one was put there after.
    write(&lab.root(1).join("model/sub/notes"), b"mine");
    for _ in 0..2 {
        // Repeated, it is gone already.
        release_copies(&lab, 1, &job("first", 1)).await;
        let left = |name: &str| lab.root(1).join("model").join(name).exists();
        assert!(left("mine") && left("sub/notes"));
        assert!(!left("weights") && !left("sub/config"));
    }
    // The source's own files stay.
    release_copies(&lab, 0, &job("first", 1)).await;
    assert!(lab.root(0).join("model/weights").exists());
    // Another copy, of which something is changed.
    lab.run(&job("second", 1), &[(0, 1)]).await;
    write(&lab.root(1).join("model/weights"), b"mine");
    release_copies(&lab, 1, &job("second", 1)).await;
    assert!(lab.root(1).join("model/sub/config").exists());
    for agent in agents {
        agent.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_beside_its_source_goes_with_its_job_also_after_a_restart_of_the_agent() {
    let lab = Lab::new();
    let agent = lab.agent(0, "").await;
    write(&lab.root(0).join("model/weights"), &noise(3 << 20, 1));
    let manifest = stat(&mut lab.operator(0).await).await.unwrap();
    let (first, second) = (job("first-here", 1), job("second-here", 1));
    for job in [&first, &second] {
        begin(&lab, job, &manifest).await.unwrap();
        let end = lab.finish(0, job).await;
        assert_eq!(end.state(), State::Verified, "{}", end.message);
    }
    agent.stop().await;
    let agent = lab.agent(0, "").await;
    release_copies(&lab, 0, &first).await;
    assert!(lab.root(0).join("copy/weights").exists());
    // The last one takes it.
    release_copies(&lab, 0, &second).await;
    assert_eq!(names(&lab, 0), ["model"]);
    agent.stop().await;
}

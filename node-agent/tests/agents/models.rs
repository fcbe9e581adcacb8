//! A node looks after the models that its operator names.

use std::sync::atomic::{AtomicU32, Ordering};

use weft_proto::agent::v1::{Algorithm, State};
use weft_proto::operator::v1::{Model, ModelState};

use crate::eventually::eventually;
use crate::operator::Operator;
use crate::support::{Lab, job, noise, write};

#[tokio::test(flavor = "multi_thread")]
async fn a_verified_model_is_intact_until_a_file_of_it_is_changed_or_removed() {
    let operator = Operator::new(Lab::new());
    let running = operator.serve().await;
    let members = [operator.join(0).await, operator.join(1).await];
    for node in 0..2 {
        operator.ready(node).await;
    }
    let lab = operator.lab().await;
    write(&lab.root(0).join("model/weights"), &noise(3 << 20, 1));
    write(&lab.root(0).join("model/sub/config"), b"{}");
    let ends = lab.run(&job("first", 1), &[(0, 1)]).await;
    assert!(ends.iter().all(|end| end.state() == State::Verified));
    assert_ne!(ends[0].fingerprint, ends[1].fingerprint);
    let model = |name: &str, end: usize| Model {
        name: name.to_owned(),
        root: "data".to_owned(),
        path: "model".to_owned(),
        fingerprint: ends[end].fingerprint.clone(),
    };
    // Both nodes are told of both: each knows its own files only.
    operator.look_after(vec![model("of-0", 0), model("of-1", 1)]);
    let said = |states: &[ModelState], intact: [bool; 2]| {
        let lost = |name: &str| states.iter().any(|s| s.name == name && !s.intact);
        intact == [!lost("of-0"), !lost("of-1")]
    };
    let seen = async |what: &str, node: usize, intact: [bool; 2]| {
        let address = lab.control(node);
        operator
            .report(what, |r| {
                r.control_address == address && said(&r.models, intact)
            })
            .await;
    };
    seen("the source has its files", 0, [true, false]).await;
    seen("the destination has its files", 1, [false, true]).await;
    let root = lab.root(1);
    write(&root.join("model/more"), b"x");
    seen("what lies beside them is not theirs", 1, [false, true]).await;
    write(&root.join("model/sub/config"), b"[]");
    seen("a file was written to", 1, [false, false]).await;
    std::fs::remove_dir_all(lab.root(0).join("model")).unwrap();
    seen("all is gone", 0, [false, false]).await;
    for member in members {
        member.stop().await;
    }
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_is_found_again_when_its_file_system_is_mounted_late() {
    let operator = Operator::new(Lab::new());
    let running = operator.serve().await;
    let members = [operator.join(0).await, operator.join(1).await];
    for node in 0..2 {
        operator.ready(node).await;
    }
    let lab = operator.lab().await;
    write(&lab.root(0).join("model"), &noise(1 << 20, 1));
    let ends = lab.run(&job("first", 1), &[(0, 1)]).await;
    for member in members {
        member.stop().await;
    }
    // The node restarts, and only the directory is there onto which it will be mounted.
    let (root, device) = (lab.root(1), lab.root(1).with_extension("device"));
    std::fs::rename(&root, &device).unwrap();
    std::fs::create_dir(&root).unwrap();
    operator.look_after(vec![Model {
        name: "of-1".to_owned(),
        root: "data".to_owned(),
        path: "model".to_owned(),
        fingerprint: ends[1].fingerprint.clone(),
    }]);
    let member = operator.join(1).await;
    let ready = operator.report("it is ready", |r| r.ready).await;
    assert_eq!(ready.models, []);
    std::fs::remove_dir(&root).unwrap();
    std::fs::rename(&device, &root).unwrap();
    let file = root.join("model");
    let mut bytes = std::fs::read(&file).unwrap();
    bytes[0] ^= 1;
    // That can be told of a file only that is seen.
    write(&file, &bytes);
    let told = operator
        .report("the file was changed", |r| !r.models.is_empty())
        .await;
    assert_eq!(
        (&*told.models[0].name, told.models[0].intact),
        ("of-1", false)
    );
    member.stop().await;
    running.stop().await;
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
    // No model is noted at the node whose file system comes late.
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

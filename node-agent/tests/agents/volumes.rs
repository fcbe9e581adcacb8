//! The agent answers the node's driver of volumes.

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};

use tonic::transport::Channel;
use tonic::{Code, Status};
use weft_proto::agent::v1::{Algorithm, State};
use weft_proto::operator::v1::Job;
use weft_proto::volumes::v1::use_copy_request::Copy;
use weft_proto::volumes::v1::volumes_client::VolumesClient;
use weft_proto::volumes::v1::{Place, UseCopyRequest, UseCopyResponse};

use crate::operator::Operator;
use crate::support::{DEADLINE, Lab, job, noise, write};

async fn ask(
    agent: &mut VolumesClient<Channel>,
    namespace: &str,
    copy: Copy,
) -> Result<UseCopyResponse, Status> {
    let request = UseCopyRequest {
        volume: "csi-1".to_owned(),
        namespace: namespace.to_owned(),
        copy: Some(copy),
    };
    Ok(agent.use_copy(request).await?.into_inner())
}

fn by_job() -> Copy {
    Copy::Job("job-first".to_owned())
}

fn at(root: &str, path: &str) -> Copy {
    let (root, path) = (root.to_owned(), path.to_owned());
    Copy::Place(Place { root, path })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_driver_is_told_where_a_verified_copy_is_or_what_the_pod_waits_for() {
    let operator = Operator::new(Lab::new());
    let running = operator.serve().await;
    let members = [operator.join(0).await, operator.join(1).await];
    for node in 0..2 {
        operator.ready(node).await;
    }
    let directory = members[1].settings.volumes.clone().unwrap();
    let mode = directory.metadata().unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700, "nobody else reaches the socket");
    let socket = directory.join("agent.sock");
    let mut agent = VolumesClient::new(weft_proto::unix_channel(&socket, DEADLINE));
    let waiting = ask(&mut agent, "team", by_job()).await.unwrap_err();
    assert_eq!(waiting.code(), Code::Unavailable);
    for part in ["waits for TransferJob job-first", "node n1", "make the job"] {
        assert!(waiting.message().contains(part), "{waiting}");
    }
    let first = job("first", 1);
    let known = Job {
        uids: vec![first.uid.clone(), format!("{}-here", first.uid)],
        phase: "Transferring".to_owned(),
    };
    operator.set_job("job-first", known);
    let waiting = ask(&mut agent, "team", by_job()).await.unwrap_err();
    assert!(
        waiting.message().contains("the job is Transferring"),
        "{waiting}"
    );
    let lab = operator.lab().await;
    write(&lab.root(0).join("model/weights"), &noise(3 << 20, 1));
    lab.begin_at("team/model", &first, &[(0, 1)], Algorithm::Blake3)
        .await
        .unwrap();
    assert_eq!(lab.finish(1, &first).await.state(), State::Verified);
    let stat = lab.root(1).join("team/model").metadata().unwrap();
    for copy in [by_job(), at("data", "model"), at("data", "./model/")] {
        let found = ask(&mut agent, "team", copy).await.unwrap();
        assert_eq!(found.root_directory, "/var/lib/weft/data");
        assert_eq!(found.path, "team/model");
        assert_eq!((found.device, found.inode), (stat.dev(), stat.ino()));
        assert!(directory.join("in-use/csi-1").is_file());
    }
    for (namespace, copy, code, part) in [
        ("other", by_job(), Code::Unavailable, "waits for"),
        ("other", at("data", "model"), Code::Unavailable, "waits for"),
        (
            "other",
            at("data", "../team/model"),
            Code::InvalidArgument,
            "\"..\"",
        ),
        (
            "team",
            at("data", "/etc"),
            Code::InvalidArgument,
            "is absolute",
        ),
        ("team", at("data", "mode"), Code::Unavailable, "waits for"),
        (
            "team",
            at("nowhere", "model"),
            Code::FailedPrecondition,
            "choose one of data",
        ),
    ] {
        let refused = ask(&mut agent, namespace, copy).await.unwrap_err();
        assert_eq!(refused.code(), code, "{refused}");
        assert!(refused.message().contains(part), "{refused}");
    }
    let request = UseCopyRequest {
        volume: "../csi-1".to_owned(),
        namespace: "team".to_owned(),
        copy: Some(by_job()),
    };
    let refused = agent.use_copy(request).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    // Whose namespace it is the operator says, and nobody else.
    running.stop().await;
    let waiting = ask(&mut agent, "team", by_job()).await.unwrap_err();
    assert_eq!(waiting.code(), Code::Unavailable);
    assert!(
        waiting.message().contains("waits for the operator"),
        "{waiting}"
    );
    // What no job can have is refused without the operator.
    for (copy, part) in [
        (
            Copy::Job("MiniLM".to_owned()),
            "volumeAttributes.job: \"MiniLM\"",
        ),
        (at("data", "."), "volumeAttributes.path: \".\""),
    ] {
        let refused = ask(&mut agent, "team", copy).await.unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument);
        assert!(refused.message().starts_with(part), "{refused}");
    }
    for member in members {
        member.stop().await;
    }
}

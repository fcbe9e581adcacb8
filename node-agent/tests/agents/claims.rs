//! What a node's device plugin asks the agent of claims.

use std::os::unix::fs::PermissionsExt as _;

use tonic::Code;
use weft_proto::claims;
use weft_proto::claims::v1::FindClaimRequest;
use weft_proto::operator::v1::Devices;

use crate::operator::Operator;
use crate::support::{Lab, eventually};

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_is_asked_of_the_operator_with_the_nodes_certificate_also_of_the_next_leader() {
    let operator = Operator::new(Lab::new());
    operator.set_engine("1", |engine| {
        engine.devices = Some(Devices {
            first_port: 16_000,
            open: 8,
            per_node: 8,
            ..Devices::default()
        });
    });
    let serving = operator.serve().await;
    let member = operator.join(0).await;
    operator.ready(0).await;
    let engine = member.settings.engine_socket.as_ref().unwrap();
    let socket = engine.with_file_name(claims::SOCKET);
    let mode = std::fs::metadata(&socket).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let agent = claims::client(&socket);
    let find = async || {
        let request = FindClaimRequest {
            namespace: "team-a".to_owned(),
            name: "trainer-0-vdev".to_owned(),
            uid: "5d1e".to_owned(),
        };
        let found = agent.clone().find_claim(request).await?.into_inner();
        Ok::<_, tonic::Status>(found.devices[0].device.clone())
    };
    assert_eq!(find().await.unwrap(), "trainer-0-vdev");
    serving.stop().await;
    assert_eq!(find().await.unwrap_err().code(), Code::Unavailable);
    let serving = operator.serve().await;
    let found = eventually("it is answered again", async || find().await.ok()).await;
    assert_eq!(found, "trainer-0-vdev");
    member.stop().await;
    serving.stop().await;
}

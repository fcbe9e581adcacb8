use weft_identity::authority::Authority;
use weft_proto::agent::v1::QueuePairName;

use super::*;
use crate::config::{DevicePeer, TlsFiles};

fn devices(home: &Path) -> Devices {
    let authority = Authority::new("lab").unwrap();
    let identity = authority.node("node0").unwrap();
    let files = identity.write(&authority, home).unwrap();
    let files = TlsFiles {
        ca: files.ca,
        certificate: files.certificate,
        key: files.key,
    };
    let tls = Tls::read(&files, &"node0".parse().unwrap(), &"lab".parse().unwrap()).unwrap();
    let peer = |node: &str, gid: &str| DevicePeer {
        gid: gid.parse().unwrap(),
        node: node.parse().unwrap(),
        control: "127.0.0.1:1".parse().unwrap(),
    };
    let peers = [
        peer("node0", "::ffff:10.0.0.1"),
        peer("node1", "::ffff:10.0.0.2"),
    ];
    let peers = Peers::listed(&peers);
    Devices::new(&home.join("engine.sock"), peers, watch::channel(tls).1)
}

fn offer(from: &str) -> Option<QueuePairOffer> {
    let name = |gid: &str| {
        let gid: std::net::Ipv6Addr = gid.parse().unwrap();
        Some(QueuePairName {
            gid: gid.octets().to_vec(),
            number: 1,
        })
    };
    Some(QueuePairOffer {
        from: name(from),
        to: name("::ffff:10.0.0.1"),
        ..QueuePairOffer::default()
    })
}

#[tokio::test]
async fn an_offer_is_taken_from_the_node_of_the_device_only() {
    let home = tempfile::tempdir().unwrap();
    let devices = devices(home.path());
    let node = |name: &str| name.parse::<NodeName>().unwrap();
    for (caller, from, reason) in [
        ("node0", "::ffff:10.0.0.2", "NotAllowed"),
        ("node2", "::ffff:10.0.0.2", "NotAllowed"),
        ("node1", "::ffff:10.0.0.3", "BadRequest"),
        // The engine does not run.
        ("node1", "::ffff:10.0.0.2", "EngineRefused"),
    ] {
        let received = devices.receive(&node(caller), offer(from)).await;
        assert_eq!(received.unwrap_err().reason(), reason, "{caller} {from}");
    }
    let none = devices.receive(&node("node1"), None).await;
    assert_eq!(none.unwrap_err().reason(), "BadRequest");
    let unnamed = devices
        .receive(&node("node1"), Some(QueuePairOffer::default()))
        .await;
    assert_eq!(unnamed.unwrap_err().reason(), "BadRequest");
}

#[tokio::test]
async fn an_engine_that_is_away_is_named_with_the_pod_to_look_at() {
    let home = tempfile::tempdir().unwrap();
    let devices = devices(home.path());
    let listed = devices.of_pods(&ListPodDevicesRequest::default()).await;
    let said = listed.unwrap_err().to_string();
    for part in ["the engine of", "No such file", "see the weft-engine pod"] {
        assert!(said.contains(part), "{said}");
    }
    let refused = Fault::device_engine(&Status::internal("no such device"));
    assert_eq!(refused.to_string(), "the transport refused: no such device");
}

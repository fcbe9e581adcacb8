use std::net::Ipv4Addr;
use std::os::unix::fs::PermissionsExt as _;

use tokio::sync::oneshot;
use tonic::Code;
use weft_engine::{PortRange, Secret};

use super::*;

fn create(name: &str, last: u8) -> proto::CreateDeviceRequest {
    proto::CreateDeviceRequest {
        name: name.to_owned(),
        gid: [[0; 15].as_slice(), &[last]].concat(),
        ops_per_s: 20_000,
        tenant: "team-a".to_owned(),
        owner: "team-a/pod-0".to_owned(),
        ..proto::CreateDeviceRequest::default()
    }
}

#[tokio::test]
async fn devices_are_made_listed_and_destroyed() {
    let home = tempfile::tempdir().unwrap();
    let (socket, devices) = (home.path().join("engine.sock"), home.path().join("devices"));
    let ports = PortRange {
        first: 31_800,
        count: 1,
    };
    let config = EngineConfig::new(Ipv4Addr::new(127, 0, 31, 1), ports, Secret([7; 32]));
    let (stop, stopped) = oneshot::channel::<Shutdown>();
    let (at, of) = (socket.clone(), devices.clone());
    let served = tokio::spawn(async move {
        serve(&at, &of, config, 1, vec!["--mtu=1500".to_owned()], async {
            stopped.await.unwrap_or(Shutdown::Final)
        })
        .await
    });
    while !socket.exists() {
        tokio::task::yield_now().await;
        assert!(!served.is_finished());
    }
    for file in [&socket, &home.path().join("engine.sock.lock")] {
        let mode = fs::metadata(file).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }
    let mut engine = weft_proto::engine::client(&socket);
    let flags = engine.get_flags(proto::GetFlagsRequest {}).await;
    assert_eq!(flags.unwrap().into_inner().flags, ["--mtu=1500"]);
    let made = engine.create_device(create("weft0", 1)).await.unwrap();
    assert_eq!(
        made.into_inner().directory,
        devices.join("weft0").display().to_string()
    );
    let with_gid = |gid: &[u8]| proto::CreateDeviceRequest {
        name: "weft1".to_owned(),
        gid: gid.to_vec(),
        ..proto::CreateDeviceRequest::default()
    };
    for (request, code, problem) in [
        (create("weft0", 2), Code::AlreadyExists, "a device weft0"),
        (
            create("weft1", 1),
            Code::AlreadyExists,
            "weft0 has this GID",
        ),
        (
            create("../etc", 2),
            Code::InvalidArgument,
            "\"../etc\" is no",
        ),
        (create("", 2), Code::InvalidArgument, "\"\" is no name"),
        (with_gid(&[1; 15]), Code::InvalidArgument, "gid must be 16"),
        (with_gid(&[1; 17]), Code::InvalidArgument, "gid must be 16"),
    ] {
        let refused = engine.create_device(request).await.unwrap_err();
        assert_eq!(refused.code(), code, "{refused}");
        assert!(refused.message().contains(problem), "{refused}");
    }
    let list = engine.list_devices(proto::ListDevicesRequest {}).await;
    let list = list.unwrap().into_inner().devices;
    let [device] = list.as_slice() else {
        panic!("{list:?}")
    };
    assert_eq!((&*device.name, device.contexts), ("weft0", 0));
    assert_eq!((device.cap_bps, device.ops_per_s), (0, 20_000));
    assert_eq!(
        (&*device.tenant, &*device.owner),
        ("team-a", "team-a/pod-0")
    );
    engine.create_device(with_gid(&[])).await.unwrap();
    let list = engine.list_devices(proto::ListDevicesRequest {}).await;
    let drawn = list.unwrap().into_inner().devices.remove(1).gid;
    assert_eq!(drawn[..12], *b"\xfdweft\0\0\0\x7f\0\x1f\x01");
    let offer = proto::ReceiveOfferRequest {
        node: "node1".to_owned(),
        offer: Some(QueuePairOffer::default()),
    };
    let refused = engine.receive_offer(offer).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    assert_eq!(refused.message(), "offer.end is missing");
    let destroy = || proto::DestroyDeviceRequest {
        name: "weft0".to_owned(),
    };
    engine.destroy_device(destroy()).await.unwrap();
    let refused = engine.destroy_device(destroy()).await.unwrap_err();
    assert_eq!(refused.code(), Code::NotFound, "{refused}");
    stop.send(Shutdown::Final).unwrap();
    served.await.unwrap().unwrap();
    assert!(!socket.exists());
}

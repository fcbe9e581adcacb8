use std::net::UdpSocket as StdSocket;

use super::*;

fn request(ports: &[u16], sizes: &[u32]) -> proto::DiagnoseRequest {
    let peer = |port: &u16| proto::DiagnosePeer {
        node: "n2".to_owned(),
        address: "127.0.0.1".to_owned(),
        other_addresses: Vec::new(),
        ports: Some(proto::Ports {
            first: (*port).into(),
            count: 1,
        }),
    };
    proto::DiagnoseRequest {
        leader_epoch: 1,
        peers: ports.iter().map(peer).collect(),
        packet_bytes: sizes.to_vec(),
    }
}

/// A port that answers packets of up to so many bytes as an engine does.
fn engine(bytes_max: usize) -> u16 {
    let socket = StdSocket::bind("127.0.0.1:0").unwrap();
    let port = socket.local_addr().unwrap().port();
    std::thread::spawn(move || {
        let mut packet = vec![0; 65_535];
        while let Ok((bytes, from)) = socket.recv_from(&mut packet) {
            let peek = weft_core::wire::peek(&packet[..bytes]).unwrap();
            let reset = Reset {
                path: peek.path,
                connection: peek.connection,
                token: 7,
            };
            if bytes <= bytes_max {
                socket.send_to(&reset.emit(), from).unwrap();
            }
        }
    });
    port
}

#[tokio::test]
async fn a_port_is_reached_by_the_sizes_that_it_answers_and_silence_is_told() {
    let open = engine(1472);
    let deaf = StdSocket::bind("127.0.0.1:0").unwrap();
    let silent = deaf.local_addr().unwrap().port();
    let asked = request(&[open, silent], &[1500, 9000]);
    let told = diagnose(&asked, Ipv4Addr::LOCALHOST, &[LinkKind::Udp], 77)
        .await
        .unwrap();
    let ports: Vec<Vec<u32>> = told
        .reaches
        .iter()
        .map(|r| r.silent_ports.clone())
        .collect();
    let (open, silent) = (u32::from(open), u32::from(silent));
    assert_eq!(ports, [vec![], vec![open], vec![silent], vec![silent]]);
    let facts = told.facts.unwrap();
    assert_eq!(facts.memory_budget, 77);
    assert!(!facts.kernel.is_empty() && facts.receive_buffer_granted > 0);
}

#[tokio::test]
async fn a_real_engine_answers_every_port_of_its_range() {
    let ports = weft_engine::PortRange {
        first: 21_870,
        count: 16,
    };
    let config = weft_engine::EngineConfig {
        mtu: 9000,
        ..weft_engine::EngineConfig::new(
            Ipv4Addr::LOCALHOST,
            ports,
            weft_core::wire::Secret([1; 32]),
        )
    };
    let _engine = weft_engine::Engine::start(config).unwrap();
    let mut asked = request(&[ports.first], &[1500, 9000]);
    asked.peers[0].ports = Some(proto::Ports {
        first: ports.first.into(),
        count: ports.count.into(),
    });
    let told = diagnose(&asked, Ipv4Addr::LOCALHOST, &[LinkKind::Udp], 0)
        .await
        .unwrap();
    for reach in told.reaches {
        assert!(
            reach.silent_ports.is_empty() && reach.error.is_empty(),
            "{reach:?}"
        );
    }
}

/// Over TCP an engine listens at the first port of its range, and that is the one that is tried.
#[tokio::test]
async fn an_engine_over_tcp_is_reached_by_a_connection() {
    let ports = weft_engine::PortRange {
        first: 21_890,
        count: 16,
    };
    let mut asked = request(&[ports.first, ports.first + 1], &[1500, 9000]);
    asked.peers[0].ports = Some(proto::Ports {
        first: ports.first.into(),
        count: ports.count.into(),
    });
    asked.peers[1].address = "127.0.0.2".to_owned();
    let secret = weft_core::wire::Secret([1; 32]);
    let link = weft_engine::LinkKind::Tcp;
    let config = weft_engine::EngineConfig::over(link, Ipv4Addr::LOCALHOST, ports, secret);
    let _engine = weft_engine::Engine::start(config).unwrap();
    let told = diagnose(&asked, Ipv4Addr::LOCALHOST, &[LinkKind::Tcp], 0)
        .await
        .unwrap();
    assert_eq!(told.reaches.len(), 4);
    for (i, reach) in told.reaches.iter().enumerate() {
        let silent = if i < 2 { vec![] } else { vec![21_891] };
        assert_eq!(reach.silent_ports, silent, "{reach:?}");
        assert_eq!(reach.link, "tcp");
    }
}

#[test]
fn an_answer_counts_only_from_the_port_that_was_asked() {
    let mut probes = Probes::of(&request(&[7500], &[1500]), u32::MAX).unwrap();
    let reset = |connection: u32| {
        let reset = Reset {
            path: PathId(0),
            connection: ConnectionId(connection),
            token: 0,
        };
        reset.emit()
    };
    let from = |port: u16| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    assert!(!probes.answered(&reset(u32::MAX), from(7501)));
    assert!(!probes.answered(&reset(5), from(7500)));
    assert!(!probes.answered(b"noise", from(7500)));
    assert!(probes.answered(&reset(u32::MAX), from(7500)));
    assert!(probes.done()[0].silent_ports.is_empty());
}

#[test]
fn what_cannot_be_tried_is_named() {
    let field = |request: &proto::DiagnoseRequest| match Probes::of(request, 0) {
        Err(fault) => fault.to_string(),
        Ok(probes) => panic!("{probes:?}"),
    };
    let many = request(&[7500; PEERS_MAX + 1], &[1500]);
    assert!(field(&many).contains("peers"), "{}", field(&many));
    let small = request(&[7500], &[60]);
    assert!(field(&small).contains("packet_bytes"), "{}", field(&small));
    let mut wrong = request(&[7500], &[1500]);
    wrong.peers[0].ports = Some(proto::Ports {
        first: 65_530,
        count: 16,
    });
    assert!(field(&wrong).contains("peers.ports"), "{}", field(&wrong));
}

#[test]
fn each_port_is_probed_at_its_nic() {
    let mut request = request(&[7500], &[1500]);
    request.peers[0].other_addresses = vec!["127.0.0.2".to_owned()];
    request.peers[0].ports = Some(proto::Ports {
        first: 7500,
        count: 3,
    });
    let probes = Probes::of(&request, 9).unwrap();
    let mut probed: Vec<_> = probes
        .open
        .values()
        .map(|probe| probe.to.to_string())
        .collect();
    probed.sort();
    assert_eq!(
        probed,
        ["127.0.0.1:7500", "127.0.0.1:7502", "127.0.0.2:7501"]
    );
}

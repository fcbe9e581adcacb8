//! What is tried inside a fabric.

use std::{
    collections::BTreeSet,
    fs,
    io::{IoSlice, Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    os::fd::AsRawFd,
    path::Path,
    process::Command,
    thread,
    time::{Duration, Instant},
};

use nix::sys::socket::{ControlMessage, MsgFlags, SockaddrIn, sendmsg};
use weft_fabric::{Fabric, Spec, Unreachable};

use crate::{Case, text};

/// All of them.
pub(crate) const CASES: [Case; 10] = [
    (
        "every_node_reaches_every_other",
        every_node_reaches_every_other,
    ),
    (
        "port_pairs_use_every_spine_and_return_by_the_same",
        port_pairs_use_every_spine,
    ),
    (
        "a_black_hole_drops_and_its_links_stay_up",
        a_black_hole_drops,
    ),
    (
        "an_unreachable_node_is_silent_until_healed",
        an_unreachable_node_is_silent,
    ),
    (
        "loss_takes_single_packets_out_of_a_segmented_send",
        loss_takes_single_packets,
    ),
    (
        "corrupted_payload_is_delivered",
        corrupted_payload_is_delivered,
    ),
    (
        "offloads_are_off_exactly_while_there_are_faults",
        offloads_follow_the_faults,
    ),
    ("a_spine_sends_at_its_rate", a_spine_sends_at_its_rate),
    ("a_node_sends_and_receives_at_its_rate", a_node_has_its_rate),
    (
        "a_dropped_fabric_can_be_built_again",
        a_dropped_fabric_can_be_built_again,
    ),
];

/// Ends a wait for something that should not come.
const SOON: Duration = Duration::from_millis(200);
/// Ends a wait for something that should come: the machine may be busy.
const LATE: Duration = Duration::from_secs(10);

/// A socket of a node, on its data or management address.
fn socket(fabric: &Fabric, node: usize, address: Ipv4Addr, port: u16) -> UdpSocket {
    let socket = fabric
        .in_node(node, || UdpSocket::bind((address, port)))
        .unwrap()
        .unwrap();
    socket.set_read_timeout(Some(LATE)).unwrap();
    socket
}

fn data_socket(fabric: &Fabric, node: usize, port: u16) -> UdpSocket {
    socket(fabric, node, fabric.node(node).data_address, port)
}

/// Whether a packet gets from one to the other; how long to wait follows from what is expected.
fn arrives(from: &UdpSocket, to: &UdpSocket, expected: bool) -> bool {
    to.set_read_timeout(Some(if expected { LATE } else { SOON }))
        .unwrap();
    from.send_to(b"weft", to.local_addr().unwrap()).unwrap();
    let mut packet = [0; 16];
    matches!(to.recv_from(&mut packet), Ok((4, sender)) if sender == from.local_addr().unwrap())
}

fn every_node_reaches_every_other() {
    let start = Instant::now();
    let fabric = Fabric::build(&Spec::default()).unwrap();
    println!("built in {:?}", start.elapsed());
    let networks = |i: usize| {
        let node = fabric.node(i);
        [node.data_address, node.management_address].map(|a| socket(&fabric, i, a, 7000))
    };
    let sockets: Vec<_> = (0..4).map(networks).collect();
    for from in 0..4 {
        for to in (0..4).filter(|to| *to != from) {
            for (from, to) in sockets[from].iter().zip(&sockets[to]) {
                assert!(arrives(from, to, true), "{from:?} to {to:?}");
            }
        }
    }
    let here = UdpSocket::bind((fabric.management_address(), 7000)).unwrap();
    assert!(arrives(&here, &sockets[3][1], true) && arrives(&sockets[3][1], &here, true));
    let node = fabric.node(2);
    let seen = fabric
        .command(2, "ip")
        .args(["-4", "addr", "show"])
        .output()
        .unwrap();
    let seen = String::from_utf8(seen.stdout).unwrap();
    assert!(seen.contains(&node.data_address.to_string()), "{seen}");
}

/// The one spine whose counter moved by more than anything else could move it.
fn spine_used(fabric: &Fabric, send: impl FnOnce()) -> usize {
    let before = fabric.spine_bytes().unwrap();
    send();
    let after = fabric.spine_bytes().unwrap();
    let links = fabric.link_bytes().unwrap();
    assert!(
        links
            .iter()
            .all(|of_spine| of_spine.len() == fabric.spec().leaves)
    );
    let sums: Vec<u64> = links.iter().map(|of_spine| of_spine.iter().sum()).collect();
    assert!(sums.iter().zip(&after).all(|(sum, after)| sum >= after));
    let moved: Vec<usize> = (0..before.len())
        .filter(|k| after[*k] > before[*k])
        .collect();
    assert_eq!(moved.len(), 1, "{before:?} {after:?}");
    moved[0]
}

fn port_pairs_use_every_spine() {
    let fabric = Fabric::build(&Spec::default()).unwrap();
    assert_eq!(
        fabric.spine_bytes().unwrap(),
        [0; 4],
        "an idle fabric is silent"
    );
    // A connected socket leaves its own random hash in its packets: no path may depend on it.
    for connected in [false, true] {
        let mut used = BTreeSet::new();
        for port in 0..64 {
            let there = data_socket(&fabric, 0, 7000 + port);
            let back = data_socket(&fabric, 1, 8000 + port / 8);
            if connected {
                there.connect(back.local_addr().unwrap()).unwrap();
                back.connect(there.local_addr().unwrap()).unwrap();
            }
            let send = |from: &UdpSocket, to: &UdpSocket| {
                let sent = if connected {
                    from.send(b"weft")
                } else {
                    from.send_to(b"weft", to.local_addr().unwrap())
                };
                sent.unwrap();
                assert_eq!(to.recv(&mut [0; 16]).unwrap(), 4);
            };
            let spine = spine_used(&fabric, || send(&there, &back));
            assert_eq!(spine_used(&fabric, || send(&back, &there)), spine);
            used.insert(spine);
        }
        assert_eq!(used.len(), 4);
    }
    // Nodes on one leaf stay on it.
    let (a, b) = (data_socket(&fabric, 0, 7000), data_socket(&fabric, 2, 7000));
    let before = fabric.spine_bytes().unwrap();
    assert!(arrives(&a, &b, true));
    assert_eq!(fabric.spine_bytes().unwrap(), before);
}

fn a_black_hole_drops() {
    let fabric = Fabric::build(&Spec::default()).unwrap();
    let back = data_socket(&fabric, 1, 8000);
    // One socket by each spine.
    let mut by_spine: Vec<Option<UdpSocket>> = (0..4).map(|_| None).collect();
    for port in 7000.. {
        let there = data_socket(&fabric, 0, port);
        let spine = spine_used(&fabric, || assert!(arrives(&there, &back, true)));
        by_spine[spine].get_or_insert(there);
        if by_spine.iter().all(Option::is_some) {
            break;
        }
    }
    let by_spine: Vec<UdpSocket> = by_spine.into_iter().flatten().collect();
    let assert_alive = |expected: [bool; 4]| {
        for (spine, there) in by_spine.iter().enumerate() {
            let alive = expected[spine];
            assert_eq!(arrives(there, &back, alive), alive, "by spine {spine}");
        }
    };
    fabric.fail_spine(2).unwrap();
    assert_alive([true, true, false, true]);
    for (namespace, port) in [("leaf0", "spine2"), ("spine2", "leaf1")] {
        let link = Command::new("nsenter")
            .arg(format!("--net=/run/netns/{namespace}"))
            .args(["ip", "link", "show", port])
            .output()
            .unwrap();
        assert!(text(&link).contains("LOWER_UP"), "{}", text(&link));
    }
    fabric.heal_spine(2).unwrap();
    assert_alive([true; 4]);
    fabric.fail_all().unwrap();
    assert_alive([false; 4]);
    fabric.heal_all().unwrap();
    assert_alive([true; 4]);
    let none = fabric.fail_spine(4).unwrap_err();
    assert_eq!(
        none.to_string(),
        "there is no spine 4: the spines are 0 to 3"
    );
}

fn an_unreachable_node_is_silent() {
    let fabric = Fabric::build(&Spec::default()).unwrap();
    let here = UdpSocket::bind((fabric.management_address(), 7000)).unwrap();
    let data: Vec<_> = (0..4).map(|i| data_socket(&fabric, i, 7000)).collect();
    let management: Vec<_> = (0..4)
        .map(|i| socket(&fabric, i, fabric.node(i).management_address, 7000))
        .collect();
    // Data across the leaf, data across a spine, management.
    let assert_reached = |node: usize, expected: [bool; 3]| {
        let pairs = [
            (&data[node], &data[(node + 2) % 4]),
            (&data[node], &data[3 - node]),
            (&management[node], &here),
        ];
        for ((a, b), expected) in pairs.into_iter().zip(expected) {
            assert_eq!(arrives(a, b, expected), expected, "{a:?} to {b:?}");
            assert_eq!(arrives(b, a, expected), expected, "{b:?} to {a:?}");
        }
    };
    fabric.fail_node(1, Unreachable::Data).unwrap();
    assert_reached(1, [false, false, true]);
    assert_reached(0, [true, true, true]);
    fabric.fail_node(3, Unreachable::Everywhere).unwrap();
    assert_reached(3, [false, false, false]);
    fabric.heal_node(1).unwrap();
    // Its neighbour on the leaf is node 3.
    assert_reached(1, [false, true, true]);
    fabric.heal_node(3).unwrap();
    assert_reached(3, [true, true, true]);
    fabric.unplug_node(2).unwrap();
    assert_reached(2, [false, false, true]);
    fabric.plug_node(2).unwrap();
    assert_reached(2, [true, true, true]);
}

/// One send call of `segments` datagrams of `size` bytes, each filled with its number.
fn send_segmented(from: &UdpSocket, to: SocketAddr, numbers: std::ops::Range<u32>, size: u16) {
    let SocketAddr::V4(to) = to else {
        panic!("{to} is not IPv4")
    };
    let bytes: Vec<u8> = numbers
        .flat_map(|n| n.to_le_bytes().repeat(usize::from(size) / 4))
        .collect();
    let sent = sendmsg(
        from.as_raw_fd(),
        &[IoSlice::new(&bytes)],
        &[ControlMessage::UdpGsoSegments(&size)],
        MsgFlags::empty(),
        Some(&SockaddrIn::from(to)),
    );
    assert_eq!(sent, Ok(bytes.len()));
}

/// Every datagram that is there, and those that are still on their way.
fn received(socket: &UdpSocket, wait: Duration) -> Vec<Vec<u8>> {
    let mut packet = vec![0; 65_535];
    let mut all = Vec::new();
    socket.set_read_timeout(Some(wait)).unwrap();
    while let Ok(n) = socket.recv(&mut packet) {
        all.push(packet[..n].to_vec());
    }
    all
}

fn number(packet: &[u8]) -> u32 {
    u32::from_le_bytes(packet[..4].try_into().unwrap())
}

fn loss_takes_single_packets() {
    let fabric = Fabric::build(&Spec {
        loss: 0.1,
        ..Spec::default()
    })
    .unwrap();
    let (from, to) = (data_socket(&fabric, 0, 7000), data_socket(&fabric, 1, 7000));
    let (sends, segments) = (100, 16);
    let mut arrived = vec![0; sends];
    for send in 0..u32::try_from(sends).unwrap() {
        send_segmented(
            &from,
            to.local_addr().unwrap(),
            send * segments..(send + 1) * segments,
            1000,
        );
        for packet in received(&to, Duration::from_millis(2)) {
            arrived[(number(&packet) / segments) as usize] += 1;
        }
    }
    for packet in received(&to, SOON) {
        arrived[(number(&packet) / segments) as usize] += 1;
    }
    let partly = arrived
        .iter()
        .filter(|n| (1..segments).contains(*n))
        .count();
    let lost = sends as u32 * segments - arrived.iter().sum::<u32>();
    // 160 of 1,600 expected, standard deviation 12; 81 of 100 sends hit, deviation 4.
    assert!((90..230).contains(&lost), "{lost} lost");
    assert!(partly > 60, "{partly} of {sends} sends partly lost");
}

fn corrupted_payload_is_delivered() {
    let fabric = Fabric::build(&Spec {
        corrupt: 0.2,
        ..Spec::default()
    })
    .unwrap();
    let (from, to) = (data_socket(&fabric, 0, 7000), data_socket(&fabric, 1, 7000));
    let sends = 1000;
    let mut altered = Vec::new();
    let mut places = BTreeSet::new();
    for n in 0..sends {
        let mut packet = vec![0x5a; 1400];
        packet[..4].copy_from_slice(&u32::to_le_bytes(n));
        from.send_to(&packet, to.local_addr().unwrap()).unwrap();
        let mut got = vec![0; 1500];
        let length = to.recv(&mut got).expect("nothing is lost");
        assert_eq!(length, packet.len());
        let wrong: Vec<usize> = (0..length).filter(|i| got[*i] != packet[*i]).collect();
        assert!(wrong.len() <= 1, "{wrong:?}");
        if let Some(place) = wrong.first() {
            altered.push(n);
            places.insert(*place);
        }
    }
    // 200 expected, standard deviation 13.
    assert!(
        (130..270).contains(&altered.len()),
        "{} altered",
        altered.len()
    );
    assert_eq!(places, BTreeSet::from([8, 64, 512]));
    let gaps: BTreeSet<u32> = altered.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(gaps.len() > 5, "at random, not in turn: {gaps:?}");
    fabric.set_corrupt(0.0).unwrap();
    assert!(arrives(&from, &to, true));
}

fn offloads_follow_the_faults() {
    let segmentation = |fabric: &Fabric| {
        let said = fabric
            .command(0, "ethtool")
            .args(["-k", "data0"])
            .output()
            .unwrap();
        let said = String::from_utf8(said.stdout).unwrap();
        [
            "tcp-segmentation-offload",
            "generic-segmentation-offload",
            "tx-udp-segmentation",
        ]
        .map(|feature| said.contains(&format!("{feature}: on")))
    };
    let fabric = Fabric::build(&Spec::default()).unwrap();
    assert_eq!(segmentation(&fabric), [true; 3]);
    fabric.fail_spine(0).unwrap();
    assert_eq!(segmentation(&fabric), [true; 3]);
    fabric.set_loss(0.01).unwrap();
    assert_eq!(segmentation(&fabric), [false; 3]);
    fabric.set_loss(0.0).unwrap();
    assert_eq!(segmentation(&fabric), [true; 3]);
    assert!(fabric.set_loss(2.0).is_err());
    drop(fabric);
    for spec in [
        Spec {
            corrupt: 0.1,
            ..Spec::default()
        },
        Spec {
            rate: Some(1_000_000_000),
            ..Spec::default()
        },
        Spec {
            node_rate: Some(1_000_000_000),
            ..Spec::default()
        },
    ] {
        let fabric = Fabric::build(&spec).unwrap();
        assert_eq!(segmentation(&fabric), [false; 3], "{spec:?}");
    }
}

/// Bits per second of one TCP stream.
fn stream_rate(fabric: &Fabric, from: usize, to: usize, port: u16) -> f64 {
    let bytes = STREAM;
    let address = fabric.node(to).data_address;
    let listener = fabric
        .in_node(to, || TcpListener::bind((address, port)))
        .unwrap()
        .unwrap();
    let stream = fabric
        .in_node(from, || TcpStream::connect((address, port)))
        .unwrap()
        .unwrap();
    let sender = thread::spawn(move || {
        let mut stream = stream;
        stream.write_all(&vec![0; bytes]).unwrap();
    });
    let (mut stream, _) = listener.accept().unwrap();
    let start = Instant::now();
    let mut buffer = vec![0; 1 << 16];
    let mut left = bytes;
    while left > 0 {
        left -= stream.read(&mut buffer).unwrap();
    }
    sender.join().unwrap();
    bytes as f64 * 8.0 / start.elapsed().as_secs_f64()
}

fn assert_about(rate: f64, limit: f64) {
    let share = rate / limit;
    // The machine may be slower, and the fabric never faster.
    assert!((0.2..1.1).contains(&share), "{rate:.0} bit/s of {limit:.0}");
}

const LIMIT: u64 = 80_000_000;
const STREAM: usize = 6 << 20;

fn a_spine_sends_at_its_rate() {
    let fabric = Fabric::build(&Spec {
        rate: Some(LIMIT),
        ..Spec::default()
    })
    .unwrap();
    assert_about(stream_rate(&fabric, 0, 1, 7000), LIMIT as f64);
    let across_the_leaf = stream_rate(&fabric, 0, 2, 7000);
    assert!(
        across_the_leaf > 1.3 * LIMIT as f64,
        "{across_the_leaf:.0} bit/s"
    );
}

fn a_node_has_its_rate() {
    let fabric = Fabric::build(&Spec {
        node_rate: Some(LIMIT),
        ..Spec::default()
    })
    .unwrap();
    assert_about(stream_rate(&fabric, 0, 2, 7000), LIMIT as f64);
    // Two senders into one node share what its leaf sends to it.
    let begun = Instant::now();
    thread::scope(|scope| {
        for (from, port) in [(0, 7001), (2, 7002)] {
            let fabric = &fabric;
            scope.spawn(move || stream_rate(fabric, from, 1, port));
        }
    });
    let together = 2.0 * STREAM as f64 * 8.0 / begun.elapsed().as_secs_f64();
    assert!(together < 1.1 * LIMIT as f64, "{together:.0} bit/s");
}

fn a_dropped_fabric_can_be_built_again() {
    let fabric = Fabric::build(&Spec {
        nodes: 2,
        spines: 1,
        ..Spec::default()
    })
    .unwrap();
    drop(fabric);
    assert_eq!(fs::read_dir("/run/netns").unwrap().count(), 0);
    assert!(!Path::new("/sys/class/net/weft-mgmt").exists());
    let fabric = Fabric::build(&Spec {
        nodes: 3,
        leaves: 3,
        spines: 2,
        ..Spec::default()
    })
    .unwrap();
    let sockets: Vec<_> = (0..3).map(|i| data_socket(&fabric, i, 7000)).collect();
    assert!(arrives(&sockets[2], &sockets[0], true) && arrives(&sockets[0], &sockets[1], true));
}

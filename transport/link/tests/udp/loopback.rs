//! Over 127.0.0.1 and ::1.

use std::net::{IpAddr, UdpSocket};
use std::time::Duration;

use crate::pair::{Arrivals, HERE, PATH, bind, config, receive, send, source};
use nix::sys::socket::{setsockopt, sockopt};
use weft_core::units::{PathId, Time};
use weft_link::{
    Destination, Link, LinkAddress, LinkError, Poller, PortRange, RouteProbe, Sent, UdpConfig,
    UdpLink,
};

#[test]
fn a_chunk_arrives_byte_exact_in_one_call_and_one_run() {
    for here in HERE {
        let (mut a, mut b) = (bind(here, 24_000, 1), bind(here, 24_001, 1));
        let source = source(44 * 1472 - 100);
        assert_eq!(send(&mut a, &b, PATH, &source, 1472), Sent::Whole);
        assert_eq!(receive(&mut b, source.len()).bytes(), source);
        assert_eq!(a.counters().send_calls, 1);
        assert_eq!(a.counters().sent_packets, 44);
        assert_eq!(b.counters().received_runs, 1);
        assert_eq!(b.counters().received_packets, 44);
        assert_eq!(a.counters().sent_bytes, b.counters().received_bytes);
    }
}

#[test]
fn chunks_of_smaller_packets_and_single_packets_are_cut_where_they_say() {
    for here in HERE {
        let (mut a, mut b) = (bind(here, 24_002, 1), bind(here, 24_003, 1));
        let mut wanted = Vec::new();
        // The last of each chunk is shorter; a single packet may be longer than those before.
        for (bytes, packet) in [(10_000, 1472), (10_000, 700), (1_472, 1_472), (64, 1_472)] {
            let source = source(bytes);
            assert_eq!(send(&mut a, &b, PATH, &source, packet), Sent::Whole);
            wanted.extend(source.chunks(packet).map(<[u8]>::to_vec));
        }
        let peer = a.peer(&b.address()).unwrap();
        a.send_control(Destination::Path(&peer, PATH), &[7; 1_000]);
        wanted.push(vec![7; 1_000]);
        let bytes = wanted.iter().map(Vec::len).sum();
        let arrived = receive(&mut b, bytes);
        let packets: Vec<_> = arrived.0.into_iter().map(|(_, packet)| packet).collect();
        assert_eq!(packets, wanted);
        assert_eq!(a.counters().send_calls, 5);
    }
}

#[test]
fn a_chunk_longer_than_one_send_leaves_in_two() {
    for here in HERE {
        let (mut a, mut b) = (bind(here, 24_044, 1), bind(here, 24_045, 1));
        // What was cut into 7 packets of 8,960 B, with the headers of 55.
        let source = source(55 * 1_200);
        assert_eq!(send(&mut a, &b, PATH, &source, 1_200), Sent::Whole);
        assert_eq!(receive(&mut b, source.len()).bytes(), source);
        assert_eq!((a.counters().send_calls, a.counters().gso_refused), (2, 0));
    }
}

#[test]
fn every_path_is_its_own_pair_of_ports_and_its_reverse_is_the_same_pair() {
    for here in HERE {
        let (mut a, mut b) = (bind(here, 24_016, 16), bind(here, 24_032, 16));
        let (to_b, to_a) = (a.peer(&b.address()), b.peer(&a.address()));
        let (to_b, to_a) = (to_b.unwrap(), to_a.unwrap());
        for path in 0..=255u8 {
            a.send_control(Destination::Path(&to_b, PathId(path)), &[path; 100]);
        }
        let there = receive(&mut b, 256 * 100);
        assert_eq!(there.sources().len(), 256);
        for (source, packet) in there.0 {
            b.send_control(Destination::Reverse(&to_a, PathId(packet[0])), &packet);
            b.send_control(Destination::Source(source), &packet);
        }
        let back = receive(&mut a, 2 * 256 * 100);
        // The packet's path by the pair of ports that it came on.
        let mut pairs = std::collections::BTreeMap::new();
        for (source, packet) in back.0 {
            *pairs.entry((source, packet[0])).or_insert(0) += 1;
        }
        assert_eq!(pairs.len(), 256, "both ways back are one pair");
        assert!(pairs.values().all(|&packets| packets == 2));
    }
}

#[test]
fn a_source_is_held_by_the_address_that_sent() {
    for here in HERE {
        let (mut a, mut b) = (bind(here, 24_008, 2), bind(here, 24_010, 2));
        send(&mut a, &b, PathId(3), &[1; 100], 100);
        let arrived = receive(&mut b, 100);
        let &source = arrived.sources().first().unwrap();
        assert!(a.address().holds(source) && !b.address().holds(source));
        assert_eq!(source.host(), a.address().host());
        assert_eq!(IpAddr::from(source.host()), here);
    }
}

#[test]
fn a_refused_gso_send_goes_out_packet_by_packet_from_then_on() {
    // More packets than the kernel cuts: EINVAL, as from a device without GSO.
    const PACKETS: usize = 200;
    for here in HERE {
        let (mut a, mut b) = (bind(here, 24_048, 1), bind(here, 24_049, 1));
        let source = source(PACKETS * 80 - 10);
        for round in 1..=2 {
            assert_eq!(send(&mut a, &b, PATH, &source, 80), Sent::Whole);
            assert_eq!(receive(&mut b, source.len()).bytes(), source);
            let counters = a.counters();
            let calls = (PACKETS * round) as u64;
            assert_eq!((counters.gso_refused, counters.send_calls), (1, calls));
            assert_eq!((counters.refused, counters.too_big), (0, 0));
        }
    }
}

#[test]
fn a_congestion_mark_is_read_on_single_packets_and_on_runs() {
    const ECT_0: i32 = 0b10;
    const CE: i32 = 0b11;
    for here in HERE {
        let mut b = bind(here, 24_050, 1);
        let sender = UdpSocket::bind((here, 0)).unwrap();
        let ecn = |codepoint: i32| {
            match here {
                IpAddr::V4(_) => setsockopt(&sender, sockopt::Ipv4Tos, &codepoint),
                IpAddr::V6(_) => setsockopt(&sender, sockopt::Ipv6TClass, &codepoint),
            }
            .unwrap();
        };
        let mut seen = |bytes| {
            let marks = receive(&mut b, bytes).1;
            (marks, b.counters().received_ce)
        };
        let to = (here, 24_050);
        ecn(ECT_0);
        sender.send_to(&[1; 100], to).unwrap();
        assert_eq!(seen(100), (vec![false], 0));
        ecn(CE);
        sender.send_to(&[1; 100], to).unwrap();
        assert_eq!(seen(100), (vec![true], 1));
        setsockopt(&sender, sockopt::UdpGsoSegment, &100).unwrap();
        sender.send_to(&[1; 1000], to).unwrap();
        assert_eq!(seen(1000), (vec![true], 11));
        ecn(ECT_0);
        sender.send_to(&[1; 1000], to).unwrap();
        assert_eq!(seen(1000), (vec![false], 11));
    }
}

#[test]
fn packets_larger_than_the_device_are_dropped_and_counted() {
    for here in HERE {
        let mut config = config(here, 24_006, 1);
        // Loopback carries 65,536 bytes of IP packet.
        config.datagram_bytes = 65_535;
        let mut a = UdpLink::open(config).unwrap();
        let b = bind(here, 24_007, 1);
        let sent = send(&mut a, &b, PATH, &source(65_530), 65_530);
        assert_eq!(sent, Sent::Dropped(weft_link::Refusal::TooBig));
        assert_eq!(a.counters().too_big, 1);
        assert!(a.can_send());
    }
}

#[test]
fn a_taken_port_is_named_with_its_range_and_the_remedy() {
    let here = HERE[0];
    let _first = bind(here, 24_062, 1);
    let error = UdpLink::open(config(here, 24_060, 4)).err().unwrap();
    assert!(
        matches!(error, LinkError::PortTaken { port: 24_062, .. }),
        "{error}"
    );
    let text = error.to_string();
    assert!(text.contains("24062") && text.contains("24060-24063") && text.contains("ss -tulpn"));
    // Nothing is held after the refusal.
    drop(bind(here, 24_060, 2));
}

#[test]
fn an_address_of_another_machine_is_refused_by_name() {
    for address in ["192.0.2.1", "2001:db8::1"] {
        let config = config(address.parse().unwrap(), 24_012, 1);
        let error = UdpLink::open(config).err().unwrap();
        assert_eq!(error.reason(), "AddressNotHere");
        assert!(error.to_string().contains(address));
    }
}

#[test]
fn a_peer_of_the_other_ip_version_is_refused_by_name() {
    let a = bind(HERE[0], 24_067, 1);
    let peer = bind(HERE[1], 24_068, 1).address();
    assert_eq!(a.peer(&peer).unwrap_err().reason(), "OtherIpVersion");
    let mut probe = RouteProbe::bind(&a.address()).unwrap();
    assert_eq!(probe.mtu(&peer).unwrap_err().reason(), "OtherIpVersion");
}

#[test]
fn the_route_says_its_mtu_and_where_none_leads() {
    let udp = |address: IpAddr| LinkAddress::Udp {
        nics: address.into(),
        ports: PortRange { first: 1, count: 1 },
    };
    // Loopback's own MTU is 65,536; no IPv4 packet is longer than 65,535.
    for (here, carries) in HERE.into_iter().zip([65_535, 65_536]) {
        let mut probe = RouteProbe::bind(&udp(here)).unwrap();
        probe.check_mtu(&udp(here), 9000).unwrap();
        assert_eq!(probe.mtu(&udp(here)).unwrap(), carries);
    }
    let other = udp("192.0.2.1".parse().unwrap());
    let mut probe = RouteProbe::bind(&udp(HERE[0])).unwrap();
    let error = probe.check_mtu(&other, 1500).unwrap_err();
    assert_eq!(error.reason(), "NoRoute");
}

#[test]
fn only_ports_that_the_poller_names_are_read_and_each_again_after_draining() {
    let here = HERE[0];
    let (mut a, mut b) = (bind(here, 24_080, 4), bind(here, 24_084, 4));
    let mut poller = Poller::new(&mut b).unwrap();
    let waiter = poller.waiter().unwrap();
    let mut arrivals = Arrivals::default();
    // A port may hold something from before the poller's first word.
    for _ in 0..4 {
        assert!(b.is_readable());
        assert_eq!(b.receive(&mut arrivals), 0);
    }
    assert!(!b.is_readable());
    for path in [2, 0, 2] {
        send(&mut a, &b, PathId(path), &[9; 10], 10);
        waiter.wait(Some(Duration::from_secs(5))).unwrap();
        poller.poll(&mut b).unwrap();
        assert_eq!(b.receive(&mut arrivals), 1);
        assert!(!b.is_readable());
    }
    assert_eq!(b.receive(&mut arrivals), 0);
    assert_eq!(arrivals.0.len(), 3);
}

#[test]
fn ports_with_more_than_one_batch_take_turns() {
    let here = HERE[0];
    let (mut a, mut b) = (bind(here, 24_088, 2), bind(here, 24_090, 2));
    let mut arrivals = Arrivals::default();
    let to_b = a.peer(&b.address()).unwrap();
    for path in [0, 1] {
        for _ in 0..20 {
            a.send_control(Destination::Path(&to_b, PathId(path)), &[path; 10]);
        }
    }
    let mut order = Vec::new();
    while b.is_readable() {
        let before = arrivals.0.len();
        if b.receive(&mut arrivals) > 0 {
            order.push(arrivals.0[before].1[0]);
        }
    }
    // 20 packets are two full batches of 8 runs, and 4.
    assert_eq!(order, [0, 1, 0, 1, 0, 1]);
}

#[test]
fn a_wake_ends_a_wait_and_a_timeout_does() {
    let mut a = bind(HERE[0], 24_094, 1);
    let mut poller = Poller::new(&mut a).unwrap();
    assert_eq!(a.receive(&mut Arrivals::default()), 0);
    let waker = poller.waker().unwrap();
    waker.wake().unwrap();
    let waiter = poller.waiter().unwrap();
    waiter.wait(None).unwrap();
    poller.poll(&mut a).unwrap();
    waiter.wait(Some(Duration::from_micros(100))).unwrap();
    poller.poll(&mut a).unwrap();
    assert!(!a.is_readable());
}

#[test]
fn the_kernel_grants_buffers_and_the_link_says_how_large() {
    let granted = bind(HERE[0], 24_015, 1).granted_buffers();
    assert!(
        granted.receive >= 100_000 && granted.send >= 100_000,
        "{granted:?}"
    );
}

#[test]
fn every_packet_carries_the_code_point_and_ect() {
    for here in HERE {
        let socket = UdpSocket::bind((here, 0)).unwrap();
        socket
            .set_read_timeout(Some(Duration::from_secs(5)))
            .unwrap();
        match here {
            IpAddr::V4(_) => setsockopt(&socket, sockopt::IpRecvTos, &true),
            IpAddr::V6(_) => setsockopt(&socket, sockopt::Ipv6RecvTClass, &true),
        }
        .unwrap();
        let mut link = UdpLink::open(UdpConfig {
            dscp: 46,
            ..config(here, 24_096, 1)
        })
        .unwrap();
        let peer = link.peer(&LinkAddress::Udp {
            nics: here.into(),
            ports: PortRange {
                first: socket.local_addr().unwrap().port(),
                count: 1,
            },
        });
        let peer = peer.unwrap();
        for dscp in [46_u8, 10] {
            link.send_control(Destination::Path(&peer, PATH), b"probe");
            assert_eq!(
                received_class(&socket),
                Some(i32::from(dscp << 2 | 0b10)),
                "{here}"
            );
            link.set_dscp(10).unwrap();
        }
    }
}

/// The traffic class of the next packet.
fn received_class(socket: &UdpSocket) -> Option<i32> {
    use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg};
    use std::io::IoSliceMut;
    use std::os::fd::AsRawFd as _;
    let mut bytes = [0; 64];
    let mut room = nix::cmsg_space!(i32, i32);
    let mut parts = [IoSliceMut::new(&mut bytes)];
    let message = recvmsg::<()>(
        socket.as_raw_fd(),
        &mut parts,
        Some(&mut room),
        MsgFlags::empty(),
    )
    .expect("it has arrived");
    message
        .cmsgs()
        .expect("there is room")
        .find_map(|said| match said {
            ControlMessageOwned::Ipv4Tos(tos) => Some(i32::from(tos)),
            ControlMessageOwned::Ipv6TClass(class) => Some(class),
            _ => None,
        })
}

#[test]
fn a_link_without_anything_kept_has_nothing_to_flush() {
    let mut a = bind(HERE[0], 24_097, 1);
    assert!(a.can_send() && a.flush_at().is_none());
    assert!(!a.flush(Time::from_nanos(u64::MAX)));
}

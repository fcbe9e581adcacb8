//! The UDP link over 127.0.0.1, through its public interface only.

use std::net::{Ipv4Addr, UdpSocket};
use std::time::{Duration, Instant};

use mio::{Events, Poll, Token};
use nix::sys::socket::{setsockopt, sockopt};
use socket2::SockRef;
use weft_core::wire::{HEADER_BYTES, OVERHEAD_BYTES, TRAILER_BYTES};
use weft_link::{
    Batch, Frame, LinkError, PortPair, PortRange, RouteProbe, SocketBuffers, UdpConfig, UdpLink,
};

const HERE: Ipv4Addr = Ipv4Addr::LOCALHOST;
const PAYLOAD: usize = 1408;
const DATAGRAM: u16 = (PAYLOAD + OVERHEAD_BYTES) as u16;

fn config(first: u16, count: u16) -> UdpConfig {
    UdpConfig {
        address: HERE,
        ports: PortRange { first, count },
        datagram_bytes: DATAGRAM,
        dscp: 0,
        buffers: SocketBuffers::default(),
    }
}

fn bind(first: u16, count: u16) -> UdpLink {
    UdpLink::bind(config(first, count)).expect("the range is free")
}

fn source(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|i| (i * 31 % 251) as u8).collect()
}

fn frame(source: &[u8]) -> Frame {
    let mut frame = Frame::default();
    for (i, piece) in source.chunks(PAYLOAD).enumerate() {
        assert!(frame.push(&[i as u8; HEADER_BYTES], piece, &[0xEE; TRAILER_BYTES]));
    }
    frame
}

/// Datagrams that arrive on `port` until `wanted` are there, with their source port and CE mark.
fn receive(link: &mut UdpLink, port: usize, wanted: usize) -> Vec<(u16, Vec<u8>)> {
    let deadline = Instant::now() + Duration::from_secs(5);
    let mut datagrams = Vec::new();
    while datagrams.len() < wanted {
        assert!(
            Instant::now() < deadline,
            "{} of {wanted} datagrams arrived",
            datagrams.len()
        );
        link.receive(port, |run| {
            assert_eq!(run.local, port);
            assert!(!run.ce);
            for datagram in run.bytes.chunks(run.segment) {
                datagrams.push((run.from.port(), datagram.to_vec()));
            }
        });
    }
    datagrams
}

fn expect(datagrams: &[(u16, Vec<u8>)], source: &[u8], from: usize) {
    for (i, ((_, datagram), piece)) in datagrams
        .iter()
        .zip(source.chunks(PAYLOAD).skip(from))
        .enumerate()
    {
        assert_eq!(datagram.len(), piece.len() + OVERHEAD_BYTES);
        assert_eq!(datagram[..HEADER_BYTES], [(i + from) as u8; HEADER_BYTES]);
        assert_eq!(&datagram[HEADER_BYTES..HEADER_BYTES + piece.len()], piece);
        assert_eq!(
            datagram[HEADER_BYTES + piece.len()..],
            [0xEE; TRAILER_BYTES]
        );
    }
}

#[test]
fn a_frame_arrives_byte_exact_in_one_call_and_one_run() {
    let (mut a, mut b) = (bind(24_000, 1), bind(24_001, 1));
    let source = source(44 * PAYLOAD - 100);
    let pair = PortPair {
        local: 0,
        remote: 0,
    };
    a.send(pair, HERE, b.config().ports, &frame(&source), 0)
        .unwrap();
    let datagrams = receive(&mut b, 0, 44);
    expect(&datagrams, &source, 0);
    assert_eq!(a.counters().send_calls, 1);
    assert_eq!(a.counters().sent_packets, 44);
    assert_eq!(b.counters().received_runs, 1);
    assert_eq!(b.counters().received_packets, 44);
    assert_eq!(a.counters().sent_bytes, b.counters().received_bytes);
}

#[test]
fn a_frame_without_payload_is_one_short_datagram() {
    let (mut a, mut b) = (bind(24_002, 1), bind(24_003, 1));
    let mut frame = Frame::default();
    assert!(frame.push(&[1; HEADER_BYTES], &[], &[2; TRAILER_BYTES]));
    a.send(
        PortPair {
            local: 0,
            remote: 0,
        },
        HERE,
        b.config().ports,
        &frame,
        0,
    )
    .unwrap();
    assert_eq!(receive(&mut b, 0, 1)[0].1.len(), OVERHEAD_BYTES);
}

#[test]
fn every_path_is_its_own_pair_of_ports() {
    let (mut a, mut b) = (bind(24_016, 16), bind(24_032, 16));
    let (from, to) = (a.config().ports, b.config().ports);
    for path in 0..=255u8 {
        a.send_datagram(PortPair::of_path(path, to), HERE, to, &[path; 100])
            .unwrap();
    }
    for port in 0..16 {
        for (source_port, datagram) in receive(&mut b, port, 16) {
            let path = datagram[0];
            assert_eq!(source_port, from.first + u16::from(path / 16));
            assert_eq!(port, usize::from(path % 16));
        }
    }
}

#[test]
fn a_send_resumes_behind_the_packets_that_are_gone() {
    let (mut a, mut b) = (bind(24_004, 1), bind(24_005, 1));
    let source = source(10 * PAYLOAD);
    let pair = PortPair {
        local: 0,
        remote: 0,
    };
    a.send(pair, HERE, b.config().ports, &frame(&source), 7)
        .unwrap();
    expect(&receive(&mut b, 0, 3), &source, 7);
}

#[test]
fn a_refused_gso_send_goes_out_packet_by_packet_from_then_on() {
    // So small a segment that the chunk has more of them than the kernel cuts: EINVAL, as from a
    // device without GSO.
    let mut config = config(24_048, 1);
    config.datagram_bytes = 64;
    let mut a = UdpLink::bind(config).unwrap();
    let mut b = bind(24_049, 1);
    let source = source(10 * PAYLOAD - 100);
    let pair = PortPair {
        local: 0,
        remote: 0,
    };
    for round in 1..=2 {
        a.send(pair, HERE, b.config().ports, &frame(&source), 0)
            .unwrap();
        expect(&receive(&mut b, 0, 10), &source, 0);
        let counters = a.counters();
        assert_eq!((counters.gso_refused, counters.send_calls), (1, 10 * round));
        assert_eq!((counters.refused, counters.too_big), (0, 0));
    }
}

#[test]
fn a_congestion_mark_is_read_on_single_packets_and_on_runs() {
    let mut b = bind(24_050, 1);
    let sender = UdpSocket::bind((HERE, 0)).unwrap();
    let to = (HERE, b.config().ports.first);
    let ecn = |codepoint| SockRef::from(&sender).set_tos_v4(codepoint).unwrap();
    let mut seen = |what: &str, wanted: usize| {
        let deadline = Instant::now() + Duration::from_secs(5);
        let (mut packets, mut marks) = (0, Vec::new());
        while packets < wanted {
            assert!(Instant::now() < deadline, "{what}: {packets} of {wanted}");
            b.receive(0, |run| {
                packets += run.bytes.len().div_ceil(run.segment);
                marks.push(run.ce);
            });
        }
        (marks, b.counters().received_ce)
    };
    const ECT_0: u32 = 0b10;
    const CE: u32 = 0b11;
    ecn(ECT_0);
    sender.send_to(&[1; 100], to).unwrap();
    assert_eq!(seen("no mark", 1), (vec![false], 0));
    ecn(CE);
    sender.send_to(&[1; 100], to).unwrap();
    assert_eq!(seen("a mark", 1), (vec![true], 1));
    setsockopt(&sender, sockopt::UdpGsoSegment, &100).unwrap();
    sender.send_to(&[1; 1000], to).unwrap();
    assert_eq!(seen("a run with marks", 10), (vec![true], 11));
    ecn(ECT_0);
    sender.send_to(&[1; 1000], to).unwrap();
    assert_eq!(seen("a run without", 10), (vec![false], 11));
}

#[test]
fn datagrams_larger_than_the_device_are_refused_and_counted() {
    // Loopback carries 65,536 bytes; the segment asked for cannot be sent at all.
    let mut config = config(24_006, 1);
    config.datagram_bytes = 65_535;
    let mut a = UdpLink::bind(config).unwrap();
    let mut frame = Frame::default();
    assert!(frame.push(&[0; HEADER_BYTES], &[0; 65_460], &[0; TRAILER_BYTES]));
    let to = PortRange {
        first: 24_007,
        count: 1,
    };
    let unsent = a.send(
        PortPair {
            local: 0,
            remote: 0,
        },
        HERE,
        to,
        &frame,
        0,
    );
    assert_eq!(
        unsent,
        Err(weft_link::Unsent::Dropped(weft_link::Refusal::TooBig))
    );
    assert_eq!(a.counters().too_big, 1);
}

#[test]
fn a_taken_port_is_named_with_its_range_and_the_remedy() {
    let _first = bind(24_010, 1);
    let error = UdpLink::bind(config(24_008, 4)).err().unwrap();
    assert!(
        matches!(error, LinkError::PortTaken { port: 24_010, .. }),
        "{error}"
    );
    let text = error.to_string();
    assert!(text.contains("24010") && text.contains("24008-24011") && text.contains("ss -ulpn"));
    // Nothing is held after the refusal.
    drop(bind(24_008, 2));
}

#[test]
fn an_address_of_another_machine_is_refused_by_name() {
    let mut config = config(24_012, 1);
    config.address = Ipv4Addr::new(192, 0, 2, 1);
    let error = UdpLink::bind(config).err().unwrap();
    assert_eq!(error.reason(), "AddressNotHere");
    assert!(error.to_string().contains("192.0.2.1"));
}

#[test]
fn an_mtu_that_the_route_does_not_carry_is_refused_with_the_one_it_does() {
    let mut probe = RouteProbe::bind(HERE).unwrap();
    probe.check_mtu(HERE, 9000).unwrap();
    // Loopback's own MTU is 65,536; no IP packet is longer than 65,535.
    assert_eq!(probe.mtu(HERE).unwrap(), 65_535);
    let error = probe
        .check_mtu(Ipv4Addr::new(192, 0, 2, 1), 1500)
        .unwrap_err();
    assert_eq!(error.reason(), "NoRoute");
}

#[test]
fn readiness_comes_once_and_again_after_draining() {
    let (mut a, mut b) = (bind(24_013, 1), bind(24_014, 1));
    let to = b.config().ports;
    let mut poll = Poll::new().unwrap();
    let mut events = Events::with_capacity(8);
    b.register(poll.registry(), Token(3)).unwrap();
    for _ in 0..2 {
        a.send_datagram(
            PortPair {
                local: 0,
                remote: 0,
            },
            HERE,
            to,
            &[9; 10],
        )
        .unwrap();
        poll.poll(&mut events, Some(Duration::from_secs(5)))
            .unwrap();
        assert_eq!(events.iter().next().unwrap().token(), Token(3));
        let mut bytes = 0;
        while b.receive(0, |run| bytes += run.bytes.len()) == Batch::More {}
        assert_eq!(bytes, 10);
    }
}

#[test]
fn the_kernel_grants_buffers_and_the_link_says_how_large() {
    let link = bind(24_015, 1);
    let granted = link.granted_buffers();
    assert!(
        granted.receive >= 100_000 && granted.send >= 100_000,
        "{granted:?}"
    );
}

#[test]
fn every_packet_carries_the_code_point_and_ect() {
    use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg};
    use std::io::IoSliceMut;
    use std::os::fd::AsRawFd as _;
    let socket = UdpSocket::bind((HERE, 0)).unwrap();
    socket
        .set_read_timeout(Some(Duration::from_secs(5)))
        .unwrap();
    SockRef::from(&socket).set_recv_tos_v4(true).unwrap();
    let port = socket.local_addr().unwrap().port();
    let mut link = UdpLink::bind(UdpConfig {
        dscp: 46,
        ..config(4390, 1)
    })
    .expect("the range is free");
    let pair = PortPair {
        local: 0,
        remote: 0,
    };
    let there = PortRange {
        first: port,
        count: 1,
    };
    link.send_datagram(pair, HERE, there, b"probe").unwrap();
    let mut bytes = [0; 64];
    let mut room = nix::cmsg_space!(u8, i32);
    let mut parts = [IoSliceMut::new(&mut bytes)];
    let message = recvmsg::<()>(
        socket.as_raw_fd(),
        &mut parts,
        Some(&mut room),
        MsgFlags::empty(),
    )
    .unwrap();
    let tos = message.cmsgs().unwrap().find_map(|said| match said {
        ControlMessageOwned::Ipv4Tos(tos) => Some(tos),
        _ => None,
    });
    assert_eq!(tos, Some(46 << 2 | 0b10));
}

//! Links of one process, through memory.

use std::net::IpAddr;
use std::sync::Arc;

use crate::pair::{Arrivals, HERE, PATH, bind, config, receive, send, source};
use weft_core::units::PathId;
use weft_link::{Destination, Link, LocalSwitch, Sent, UdpConfig, UdpLink};

fn bind_at(switch: &Arc<LocalSwitch>, address: IpAddr, first: u16, count: u16) -> UdpLink {
    let opened = UdpLink::open(UdpConfig {
        local_switch: Some(Arc::clone(switch)),
        ..config(address, first, count)
    });
    opened.expect("the range is free")
}

#[test]
fn packets_arrive_as_through_the_network_and_no_socket_is_used() {
    for here in HERE {
        let switch = Arc::default();
        let (mut a, mut b) = (
            bind_at(&switch, here, 24_200, 4),
            bind_at(&switch, here, 24_204, 4),
        );
        let (mut far_a, mut far_b) = (bind(here, 24_208, 4), bind(here, 24_212, 4));
        let source = source(44 * 1472 - 100);
        for path in 0..16 {
            let path = PathId(path);
            assert_eq!(send(&mut a, &b, path, &source, 1472), Sent::Whole);
            assert_eq!(send(&mut far_a, &far_b, path, &source, 1472), Sent::Whole);
            let peer = a.peer(&b.address()).unwrap();
            a.send_control(Destination::Path(&peer, path), &[7; 100]);
            let peer = far_a.peer(&far_b.address()).unwrap();
            far_a.send_control(Destination::Path(&peer, path), &[7; 100]);
            let wanted = source.len() + 100;
            let (near, far) = (receive(&mut b, wanted), receive(&mut far_b, wanted));
            assert_eq!(near.bytes(), far.bytes());
            // They name the sender's port and the one where they have come.
            let (near, far) = (near.0[0].0.0, far.0[0].0.0);
            assert_eq!((&near[..16], &near[18..]), (&far[..16], &far[18..]));
            assert_eq!(port(near) - 24_200, port(far) - 24_208);
        }
        assert_eq!(a.counters().sent_packets, 0);
        assert_eq!(a.counters().local_packets, 16 * 45);
        assert_eq!(a.counters().local_bytes, b.counters().received_bytes);
    }
}

fn port(source: [u8; 20]) -> u16 {
    u16::from_be_bytes([source[16], source[17]])
}

#[test]
fn a_link_that_has_gone_is_reached_by_its_ports_again() {
    let [here, _] = HERE;
    let switch = Arc::default();
    let mut a = bind_at(&switch, here, 24_216, 1);
    let b = bind_at(&switch, here, 24_217, 1);
    assert_eq!(send(&mut a, &b, PATH, &[1; 100], 100), Sent::Whole);
    drop(b);
    let mut b = bind(here, 24_217, 1);
    assert_eq!(send(&mut a, &b, PATH, &[2; 100], 100), Sent::Whole);
    assert_eq!(receive(&mut b, 100).bytes(), [2; 100]);
    drop(b);
    let mut b = bind_at(&switch, here, 24_217, 1);
    assert_eq!(send(&mut a, &b, PATH, &[3; 100], 100), Sent::Whole);
    assert_eq!(receive(&mut b, 100).bytes(), [3; 100]);
    let counters = a.counters();
    assert_eq!((counters.local_packets, counters.sent_packets), (2, 1));
}

#[test]
fn a_worker_that_sleeps_is_woken() {
    let [here, _] = HERE;
    let switch = Arc::default();
    let mut a = bind_at(&switch, here, 24_218, 1);
    let mut b = bind_at(&switch, here, 24_219, 1);
    let to = b.address();
    let arrived = std::thread::spawn(move || receive(&mut b, 100 * 100));
    let peer = a.peer(&to).unwrap();
    for i in 0..100 {
        a.send_control(Destination::Path(&peer, PATH), &[i; 100]);
    }
    assert_eq!(arrived.join().unwrap().0.len(), 100);
}

#[test]
fn what_waits_is_marked_and_what_finds_no_room_is_lost() {
    let [here, _] = HERE;
    let switch = Arc::default();
    let mut a = bind_at(&switch, here, 24_220, 1);
    let mut b = bind_at(&switch, here, 24_221, 1);
    for _ in 0..1025 {
        // To recovery a loss like any other.
        assert_eq!(send(&mut a, &b, PATH, &[1; 100], 100), Sent::Whole);
    }
    assert_eq!(a.counters().local_lost, 1);
    let mut arrived = Arrivals::default();
    while b.is_readable() && arrived.0.len() < 1024 {
        b.receive(&mut arrived);
    }
    assert_eq!(arrived.1.len(), 1024);
    let unmarked = arrived.1.iter().rev().take_while(|ce| !**ce).count();
    assert_eq!(unmarked, 16);
    assert!(arrived.1[..1008].iter().all(|ce| *ce));
}

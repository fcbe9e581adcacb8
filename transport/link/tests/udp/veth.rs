//! Between two network namespaces: a device that is slow, and one whose MTU shrinks. Each test runs again in a child process with a user and a network namespace of its own.

use std::net::IpAddr;
use std::process::Command;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use crate::pair::{PATH, config, receive, send, send_at, source};
use nix::sched::{CloneFlags, unshare};
use nix::unistd::gettid;
use weft_core::units::Time;
use weft_link::{
    Link, LinkAddress, Poller, PortRange, Refusal, RouteProbe, Sent, SocketBuffers, UdpConfig,
    UdpLink,
};

/// Set in the child.
const INSIDE: &str = "WEFT_TEST_VETH";

/// The two ends' addresses.
const ADDRESSES: [[&str; 2]; 2] = [["10.9.0.1", "10.9.0.2"], ["fd09::1", "fd09::2"]];

const PORT: u16 = 4_000;

fn ip(arguments: &str) {
    run("ip", arguments);
}

fn run(program: &str, arguments: &str) {
    let status = Command::new(program)
        .args(arguments.split(' '))
        .status()
        .expect("the program is installed");
    assert!(status.success(), "{program} {arguments}");
}

/// Runs the test `name` again where it may make devices. Answers whether this is there.
fn inside(name: &str) -> bool {
    if std::env::var_os(INSIDE).is_some() {
        return true;
    }
    let status = Command::new("unshare")
        .args(["--user", "--map-root-user", "--net"])
        .arg(std::env::current_exe().expect("a test has a program"))
        .args(["--exact", &format!("veth::{name}"), "--nocapture"])
        .env(INSIDE, "1")
        .status()
        .expect("util-linux is installed");
    assert!(status.success(), "{name} failed in its namespace");
    false
}

/// Links at the two ends of a veth pair, over IPv4 or IPv6. The device of the first is `near0` or `near1`.
fn ends(version: usize, mtu: u16, buffers: SocketBuffers) -> [UdpLink; 2] {
    let open = move |end: usize| {
        let address: IpAddr = ADDRESSES[version][end].parse().expect("an address");
        let link_address = LinkAddress::Udp {
            nics: address.into(),
            ports: PortRange {
                first: PORT,
                count: 1,
            },
        };
        UdpLink::open(UdpConfig {
            datagram_bytes: mtu - link_address.header_bytes(),
            buffers,
            ..config(address, PORT, 1)
        })
        .expect("the address is here")
    };
    let up = move |device: &str, end: usize| {
        ip(&format!("link set {device} mtu {mtu} up"));
        let address = ADDRESSES[version][end];
        let nodad = ["/24", "/64 nodad"][version];
        ip(&format!("addr add dev {device} {address}{nodad}"));
    };
    ip(&format!("link add near{version} type veth peer name far"));
    let (ready, readiness) = channel();
    let (moved, go) = channel();
    let far = std::thread::spawn(move || {
        unshare(CloneFlags::CLONE_NEWNET).expect("namespaces are allowed");
        ready.send(gettid()).expect("the test waits");
        go.recv().expect("the device is moved");
        up("far", 1);
        open(1)
    });
    ip(&format!(
        "link set far netns {}",
        readiness.recv().expect("the thread runs")
    ));
    up(&format!("near{version}"), 0);
    moved.send(()).expect("the thread waits");
    let far = far.join().expect("the far end is up");
    [open(0), far]
}

#[test]
fn a_chunk_that_a_full_send_buffer_does_not_take_leaves_later_and_whole() {
    if !inside("a_chunk_that_a_full_send_buffer_does_not_take_leaves_later_and_whole") {
        return;
    }
    for version in [0, 1] {
        let buffers = SocketBuffers {
            send: 200_000,
            ..SocketBuffers::default()
        };
        let [mut near, mut far] = ends(version, 1500, buffers);
        run(
            "tc",
            &format!("qdisc add dev near{version} root tbf rate 100mbit burst 64kb limit 4mb"),
        );
        let peer = near.peer(&far.address()).unwrap();
        let mut poller = Poller::new(&mut near).unwrap();
        let waiter = poller.waiter().unwrap();
        let source = source(40 * 1400);
        let start = Instant::now();
        let now = || Time::from_nanos(start.elapsed().as_nanos() as u64);
        let (mut kept, mut chunks) = (0, 0);
        // A busy machine may send slower than the link for a while.
        while kept == 0 || chunks < 20 {
            assert!(chunks < 100, "{version}: the send buffer never fills");
            chunks += 1;
            let sent = send_at(&mut near, now(), &peer, PATH, &source, 1400);
            if sent == Sent::Whole {
                continue;
            }
            assert_eq!((sent, near.can_send()), (Sent::Kept, false));
            // Only the poller knows when.
            assert_eq!((near.flush_at(), near.flush(now())), (None, false));
            kept += 1;
            while !near.can_send() {
                waiter.wait(Some(Duration::from_secs(10))).unwrap();
                poller.poll(&mut near).unwrap();
                near.flush(now());
            }
        }
        assert!(near.counters().blocked >= kept);
        let arrived = receive(&mut far, chunks * source.len());
        assert!(
            arrived.bytes() == source.repeat(chunks),
            "{version}: other bytes"
        );
        assert_eq!(near.counters().sent_packets, chunks as u64 * 40);
    }
}

#[test]
fn a_kept_chunk_is_tried_again_after_a_while_where_no_poller_is() {
    if !inside("a_kept_chunk_is_tried_again_after_a_while_where_no_poller_is") {
        return;
    }
    let buffers = SocketBuffers {
        send: 100_000,
        ..SocketBuffers::default()
    };
    let [mut near, far] = ends(0, 1500, buffers);
    run(
        "tc",
        "qdisc add dev near0 root tbf rate 10mbit burst 64kb limit 4mb",
    );
    let source = source(40 * 1400);
    let mut chunks = 0;
    while send(&mut near, &far, PATH, &source, 1400) != Sent::Kept {
        chunks += 1;
        assert!(chunks < 100, "the buffer never fills");
    }
    let at = near.flush_at().unwrap();
    assert!(!near.flush(Time::ZERO) && near.flush(at));
}

#[test]
fn an_mtu_that_shrinks_drops_large_packets_and_not_gso() {
    if !inside("an_mtu_that_shrinks_drops_large_packets_and_not_gso") {
        return;
    }
    for version in [0, 1] {
        let [mut near, mut far] = ends(version, 9000, SocketBuffers::default());
        let mut probe = RouteProbe::bind(&near.address()).unwrap();
        let nowhere: IpAddr = ["192.0.2.1", "2001:db8::1"][version].parse().unwrap();
        let nowhere = LinkAddress::Udp {
            nics: nowhere.into(),
            ports: near.config().ports,
        };
        assert_eq!(probe.mtu(&nowhere).unwrap_err().reason(), "NoRoute");
        assert_eq!(probe.mtu(&far.address()).unwrap(), 9000);
        let full = usize::from(9000 - near.address().header_bytes());
        let large = source(7 * full);
        assert_eq!(send(&mut near, &far, PATH, &large, full), Sent::Whole);
        assert_eq!(receive(&mut far, large.len()).bytes(), large);
        ip(&format!("link set near{version} mtu 1500"));
        let error = probe.check_mtu(&far.address(), 9000).unwrap_err();
        assert!(error.to_string().contains("lower mtu to 1500"), "{error}");
        let dropped = Sent::Dropped(Refusal::TooBig);
        assert_eq!(send(&mut near, &far, PATH, &large, full), dropped);
        let calls = near.counters().send_calls;
        let small = source(40 * 1400);
        assert_eq!(send(&mut near, &far, PATH, &small, 1400), Sent::Whole);
        assert_eq!(receive(&mut far, small.len()).bytes(), small);
        let counters = near.counters();
        assert_eq!((counters.send_calls - calls, counters.gso_refused), (1, 0));
    }
}

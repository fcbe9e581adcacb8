//! The link over AF_XDP through its public interface only, over a veth pair between two network namespaces.
//!
//! Each test runs again in a child process with a network namespace of its own. A program on an interface needs the root user
//! of the machine; where these tests have another user, they find that opening is refused for this reason.

#[path = "../udp/pair.rs"]
#[allow(dead_code)] // the tests over UDP use more of it
mod pair;

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::unix::process::ExitStatusExt as _;
use std::process::Command;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use nix::sched::{CloneFlags, unshare};
use nix::unistd::{geteuid, gettid};
use pair::{Arrivals, PATH, config, receive, send_at, source};
use socket2::{Domain, Protocol, Socket, Type};
use weft_core::units::{PathId, Time};
use weft_link::{Destination, Link, LinkError, Poller, Refusal, Sent, UdpConfig, UdpLink, XdpLink};

/// Set in the child.
const INSIDE: &str = "WEFT_TEST_XDP";
/// Its value in a process that ends with a link open.
const DIES: &str = "dies";

/// The two ends' addresses.
const ADDRESSES: [[&str; 2]; 2] = [["10.9.0.1", "10.9.0.2"], ["fd09::1", "fd09::2"]];

const PORT: u16 = 4_000;
const PORTS: u16 = 4;
/// Bytes of a datagram.
const PACKET: usize = 1400;
const CHUNK: usize = 40 * PACKET;
const PATIENCE: Duration = Duration::from_secs(20);

fn ip(arguments: &str) {
    let words = arguments.split_whitespace();
    let status = Command::new("ip").args(words).status();
    assert!(
        status.expect("iproute2 is installed").success(),
        "{arguments}"
    );
}

/// What `ip` says of the device here.
fn device() -> String {
    let output = Command::new("ip")
        .args(["-d", "link", "show", "near"])
        .output();
    String::from_utf8(output.expect("iproute2 is installed").stdout).expect("text")
}

/// Runs the test `name` again in a network namespace, and as the root of a user namespace if this is asked for. Answers whether
/// this is there.
fn inside(name: &str, options: &[&str]) -> bool {
    if std::env::var_os(INSIDE).is_some() {
        return true;
    }
    let options = match geteuid().is_root() {
        true => options,
        false => &["--user", "--map-root-user", "--net"],
    };
    let status = Command::new("unshare")
        .args(options)
        .arg(std::env::current_exe().expect("a test has a program"))
        .args(["--exact", name, "--nocapture"])
        .env(INSIDE, if geteuid().is_root() { "root" } else { "user" })
        .status()
        .expect("util-linux is installed");
    assert!(status.success(), "{name} failed in its namespace");
    false
}

fn xdp(config: UdpConfig) -> Result<XdpLink, LinkError> {
    XdpLink::open(config)
}

fn config_of(version: usize, end: usize) -> UdpConfig {
    let address: IpAddr = ADDRESSES[version][end].parse().expect("an address");
    UdpConfig {
        // With its headers, all that a veth takes.
        datagram_bytes: if address.is_ipv4() { 1472 } else { 1452 },
        ..config(address, PORT, PORTS)
    }
}

/// A thread in the far namespace, which does what it is sent.
struct Far(std::sync::mpsc::Sender<Box<dyn FnOnce() + Send>>);

impl Far {
    fn run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> T {
        let (answer, result) = channel();
        let work = move || answer.send(work()).expect("the test waits");
        self.0.send(Box::new(work)).expect("the thread runs");
        result.recv().expect("the work does not panic")
    }
}

/// A veth pair: `near` here, `far` in another namespace. None where nothing can be attached to it.
fn veth(mtu: u16) -> Option<Far> {
    veth_with_queues(mtu, 1)
}

fn veth_with_queues(mtu: u16, queues: usize) -> Option<Far> {
    let queues = format!("numrxqueues {queues} numtxqueues {queues}");
    ip(&format!(
        "link add near {queues} type veth peer name far {queues}"
    ));
    let (ready, readiness) = channel();
    let (sender, works) = channel::<Box<dyn FnOnce() + Send>>();
    std::thread::spawn(move || {
        unshare(CloneFlags::CLONE_NEWNET).expect("namespaces are allowed");
        ready.send(gettid()).expect("the test waits");
        for work in works {
            work();
        }
    });
    let far = readiness.recv().expect("the thread runs");
    ip(&format!("link set far netns {far}"));
    let up = move |device: &str, end: usize| {
        ip(&format!("link set {device} mtu {mtu} up"));
        ip(&format!("addr add dev {device} {}/24", ADDRESSES[0][end]));
        ip(&format!(
            "addr add dev {device} {}/64 nodad",
            ADDRESSES[1][end]
        ));
    };
    up("near", 0);
    let far = Far(sender);
    far.run(move || up("far", 1));
    if std::env::var(INSIDE).as_deref() == Ok("root") {
        return Some(far);
    }
    let error = xdp(config_of(0, 0)).err().expect("it needs root");
    assert_eq!(error.reason(), "XdpUnavailable", "{error}");
    assert!(error.to_string().contains("not permitted"), "{error}");
    None
}

/// Datagrams that the kernel has sent here for sockets.
fn sent_by_sockets() -> u64 {
    count_of("OutDatagrams")
}

/// A count of the kernel's UDP stack here, over both IP versions.
fn count_of(wanted: &str) -> u64 {
    let read = |file: &str| {
        let text = std::fs::read_to_string(format!("/proc/thread-self/net/{file}"));
        text.expect("the kernel counts")
    };
    let (v4, v6) = (read("snmp"), read("snmp6"));
    let mut lines = v4.lines().filter(|line| line.starts_with("Udp: "));
    let [names, values] = [(); 2].map(|()| lines.next().unwrap_or_default().split_whitespace());
    let v4 = names.zip(values).find(|(name, _)| *name == wanted);
    let mut v6 = v6
        .lines()
        .filter_map(|line| line.split_once(char::is_whitespace));
    let v6 = v6.find(|(name, _)| name.strip_prefix("Udp6") == Some(wanted));
    let counts = [v4, v6].into_iter().flatten();
    let counts: Vec<u64> = counts
        .filter_map(|(_, count)| count.trim().parse().ok())
        .collect();
    assert_eq!(counts.len(), 2, "{wanted}");
    counts.iter().sum()
}

/// Sends chunks from one end to the other until one goes past the sockets, and then some more. Every byte is compared.
fn exchange(near: &mut impl Link, far: &mut impl Link, path: PathId) {
    let peer = near.peer(&far.address()).expect("one IP version");
    let begun = Instant::now();
    let (mut now, mut past) = (Time::ZERO, 0);
    while past < 100 {
        assert!(begun.elapsed() < PATIENCE, "all goes by the sockets");
        now = Time::from_nanos(now.as_nanos() + 2_000_000);
        let chunk = source(CHUNK + past);
        let before = sent_by_sockets();
        near.flush(now);
        assert!(near.can_send());
        assert_eq!(send_at(near, now, &peer, path, &chunk, PACKET), Sent::Whole);
        near.send_gathered();
        past += usize::from(sent_by_sockets() == before);
        let arrived = receive(far, chunk.len());
        assert!(arrived.bytes() == chunk, "other bytes");
        assert_eq!(arrived.sources().len(), 1);
    }
}

#[test]
fn chunks_pass_both_ways_without_the_sockets() {
    if !inside("chunks_pass_both_ways_without_the_sockets", &["--net"]) {
        return;
    }
    let Some(there) = veth(1500) else { return };
    for version in [0, 1] {
        let mut near = xdp(config_of(version, 0)).unwrap();
        let mut far = there.run(move || xdp(config_of(version, 1))).unwrap();
        for path in [0, 3, 6] {
            exchange(&mut near, &mut far, PathId(path));
        }
        let counters = far.counters();
        assert_eq!((counters.malformed, counters.receive_errors), (0, 0));
        assert_eq!(counters.received_packets, near.counters().sent_packets);
        assert_eq!(counters.received_bytes, near.counters().sent_bytes);
        // The way back: a control packet to the peer and one to the source of a packet.
        let packet = [9; 60];
        let back = far.peer(&near.address()).unwrap();
        far.send_control(Destination::Reverse(&back, PATH), &packet);
        far.send_gathered();
        let arrived = receive(&mut near, packet.len());
        let from = *arrived.sources().first().unwrap();
        near.send_control(Destination::Source(from), &packet);
        assert_eq!(receive(&mut far, packet.len()).bytes(), packet);
    }
}

#[test]
fn an_end_over_udp_sees_no_difference() {
    if !inside("an_end_over_udp_sees_no_difference", &["--net"]) {
        return;
    }
    let Some(there) = veth(1500) else { return };
    for version in [0, 1] {
        let mut near = xdp(config_of(version, 0)).unwrap();
        let mut far = there
            .run(move || UdpLink::open(config_of(version, 1)))
            .unwrap();
        exchange(&mut near, &mut far, PathId(1));
        // The kernel leaves checksums on a veth unfinished.
        let peer = far.peer(&near.address()).unwrap();
        for _ in 0..10 {
            let chunk = source(CHUNK);
            let sent = send_at(&mut far, Time::ZERO, &peer, PathId(2), &chunk, PACKET);
            assert_eq!(sent, Sent::Whole);
            assert!(receive(&mut near, CHUNK).bytes() == chunk);
        }
        assert_eq!(near.counters().malformed, 0);
        assert_eq!(near.counters().received_packets, 10 * 40);
    }
}

#[test]
fn every_queue_has_its_socket() {
    if !inside("every_queue_has_its_socket", &["--net"]) {
        return;
    }
    let Some(there) = veth_with_queues(1500, 3) else {
        return;
    };
    let mut near = xdp(config_of(0, 0)).unwrap();
    let mut far = there.run(|| UdpLink::open(config_of(0, 1))).unwrap();
    let peer = far.peer(&near.address()).unwrap();
    for path in 0..PORTS * PORTS {
        let chunk = source(CHUNK + usize::from(path));
        let path = PathId(path as u8);
        let sent = send_at(&mut far, Time::ZERO, &peer, path, &chunk, PACKET);
        assert_eq!(sent, Sent::Whole);
        assert!(receive(&mut near, chunk.len()).bytes().len() == chunk.len());
    }
    assert_eq!(count_of("InDatagrams"), 0);
    assert_eq!(near.counters().malformed, 0);
}

#[test]
fn all_other_traffic_passes() {
    if !inside("all_other_traffic_passes", &["--net"]) {
        return;
    }
    let Some(there) = veth(1500) else { return };
    let near = xdp(config_of(0, 0)).unwrap();
    let here: Ipv4Addr = ADDRESSES[0][0].parse().unwrap();
    let far = there.run(move || xdp(config_of(0, 1))).unwrap();
    for port in [PORT - 1, PORT + PORTS, 53] {
        let socket = UdpSocket::bind((here, port)).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        there.run(move || {
            let other = UdpSocket::bind((ADDRESSES[0][1], 9_000)).unwrap();
            other.send_to(&[1, 2, 3], (here, port)).unwrap();
        });
        let mut bytes = [0; 16];
        assert_eq!(socket.recv_from(&mut bytes).unwrap().0, 3, "{port}");
    }
    // TCP on a port of Weft's.
    let listener = TcpListener::bind((here, PORT)).unwrap();
    let sent = source(1 << 20);
    let expected = sent.clone();
    let stream = there.run(move || TcpStream::connect((here, PORT)).unwrap());
    let writer = std::thread::spawn(move || {
        let mut stream = stream;
        stream.write_all(&sent).unwrap();
    });
    let (mut stream, mut received) = (listener.accept().unwrap().0, Vec::new());
    stream.read_to_end(&mut received).unwrap();
    writer.join().unwrap();
    assert!(received == expected);
    let both = [near.counters(), far.counters()];
    assert!(
        both.iter()
            .all(|it| it.received_packets + it.malformed == 0)
    );
}

#[test]
fn malformed_packets_are_dropped_and_counted_and_fragments_come_by_the_sockets() {
    let name = "malformed_packets_are_dropped_and_counted_and_fragments_come_by_the_sockets";
    if !inside(name, &["--net"]) {
        return;
    }
    let Some(there) = veth(1500) else { return };
    let mut near = xdp(config_of(0, 0)).unwrap();
    let here: IpAddr = ADDRESSES[0][0].parse().unwrap();
    // The kernel writes the IP header; UDP's is ours. Lengths that are too small and too large, and a right one.
    let raw = move |length: u16, payload: &'static [u8]| {
        let socket = Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::UDP)).unwrap();
        let mut packet = 9_000u16.to_be_bytes().to_vec();
        packet.extend(PORT.to_be_bytes());
        packet.extend(length.to_be_bytes());
        packet.extend([0; 2]);
        packet.extend(payload);
        socket
            .send_to(&packet, &SocketAddr::new(here, 0).into())
            .unwrap();
    };
    let lengths = [0, 7, 12, 65_535];
    there.run(move || lengths.map(|length| raw(length, b"abc")));
    there.run(move || raw(11, b"abc"));
    let arrived = receive(&mut near, 3);
    assert_eq!(arrived.bytes(), b"abc");
    assert_eq!(near.counters().malformed, lengths.len() as u64);
    assert_eq!(near.counters().received_packets, 1);
    // A datagram of strangers in fragments: the kernel puts it together.
    let datagram = source(1472 * 3);
    let expected = datagram.clone();
    there.run(move || {
        let socket = UdpSocket::bind((ADDRESSES[0][1], 9_000)).unwrap();
        socket.send_to(&datagram, (here, PORT)).unwrap();
    });
    assert_eq!(receive(&mut near, expected.len()).bytes(), expected);
}

#[test]
fn nothing_stays_on_the_interface_when_the_link_closes() {
    if !inside(
        "nothing_stays_on_the_interface_when_the_link_closes",
        &["--net"],
    ) {
        return;
    }
    let Some(_there) = veth(1500) else { return };
    for _ in 0..5 {
        let link = xdp(config_of(0, 0)).unwrap();
        assert!(device().contains("xdp"), "{}", device());
        // Its ports are taken by sockets.
        let taken = UdpSocket::bind((ADDRESSES[0][0], PORT + 1)).unwrap_err();
        assert_eq!(taken.kind(), std::io::ErrorKind::AddrInUse);
        drop(link);
        assert!(!device().contains("xdp"), "{}", device());
    }
    let killed = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "dies_with_an_open_link"])
        .env(INSIDE, DIES)
        .output()
        .unwrap();
    assert!(killed.status.signal().is_some());
    let begun = Instant::now();
    while device().contains("xdp") {
        assert!(begun.elapsed() < PATIENCE, "{}", device());
    }
}

/// Started by the test above.
#[test]
fn dies_with_an_open_link() {
    if std::env::var(INSIDE).as_deref() == Ok(DIES) {
        let _link = xdp(config_of(0, 0)).unwrap();
        assert!(device().contains("xdp"), "{}", device());
        std::process::abort();
    }
}

#[test]
fn what_stands_in_the_way_is_said_by_name() {
    if !inside("what_stands_in_the_way_is_said_by_name", &["--net"]) {
        return;
    }
    let Some(there) = veth(1500) else { return };
    let refused = |config: UdpConfig, says: &str| {
        let error = xdp(config).err().expect("it is refused");
        let text = error.to_string();
        assert_eq!(error.reason(), "XdpUnavailable", "{text}");
        assert!(text.contains(says), "{text}");
    };
    ip("link set lo up");
    refused(config(Ipv4Addr::LOCALHOST.into(), PORT, 1), "no XDP");
    let large = UdpConfig {
        datagram_bytes: 8972,
        ..config_of(0, 0)
    };
    refused(large, "lower mtu to 3826");
    let first = xdp(config_of(0, 0)).unwrap();
    let others = UdpConfig {
        ports: weft_link::PortRange {
            first: PORT + 100,
            count: 1,
        },
        ..config_of(0, 0)
    };
    refused(others.clone(), "another XDP program");
    drop(first);
    assert!(xdp(others).is_ok());
    let nobody = xdp(config("10.9.0.77".parse().unwrap(), PORT, 1))
        .err()
        .unwrap();
    assert_eq!(nobody.reason(), "AddressNotHere");
    ip("link set near mtu 1400");
    refused(config_of(0, 0), "mtu 1500 is more than its MTU 1400");
    ip("link set near mtu 9000");
    there.run(|| ip("link set far mtu 9000"));
    refused(config_of(0, 0), "lower the MTU of the interface");
}

#[test]
fn another_mac_and_a_smaller_mtu_have_the_sockets_carry_what_goes_on() {
    if !inside(
        "another_mac_and_a_smaller_mtu_have_the_sockets_carry_what_goes_on",
        &["--net"],
    ) {
        return;
    }
    let Some(there) = veth(1500) else { return };
    let mut near = xdp(config_of(0, 0)).unwrap();
    let mut far = there.run(|| xdp(config_of(0, 1))).unwrap();
    exchange(&mut near, &mut far, PATH);
    let chunk = source(CHUNK);
    // The sender's kernel asks again once its entry has gone.
    ip("link set near address 02:00:00:00:00:77");
    there.run(|| ip("neigh flush dev far"));
    let (before, now) = (count_of("InDatagrams"), Time::from_nanos(90_000_000_000));
    let peer = far.peer(&near.address()).unwrap();
    far.flush(now);
    assert_eq!(
        send_at(&mut far, now, &peer, PATH, &chunk, PACKET),
        Sent::Whole
    );
    far.send_gathered();
    assert!(receive(&mut near, CHUNK).bytes() == chunk, "other bytes");
    assert_eq!(count_of("InDatagrams") - before, 40);
    assert_eq!(near.counters().malformed, 0);
    // Packets of full length do not fit any more: the sockets say so.
    ip("link set near mtu 1300");
    let peer = near.peer(&far.address()).unwrap();
    near.flush(now);
    let sent = send_at(&mut near, now, &peer, PATH, &chunk, PACKET);
    assert_eq!(sent, Sent::Dropped(Refusal::TooBig));
}

#[test]
fn an_interface_that_goes_down_is_unreachable_until_it_is_back() {
    if !inside(
        "an_interface_that_goes_down_is_unreachable_until_it_is_back",
        &["--net"],
    ) {
        return;
    }
    let Some(there) = veth(1500) else { return };
    let mut near = xdp(config_of(0, 0)).unwrap();
    let mut far = there.run(|| xdp(config_of(0, 1))).unwrap();
    exchange(&mut near, &mut far, PATH);
    ip("link set near down");
    let peer = near.peer(&far.address()).unwrap();
    let (begun, chunk) = (Instant::now(), source(CHUNK));
    // Its time goes on from that of before.
    let mut now = Time::from_nanos(60_000_000_000);
    loop {
        now = Time::from_nanos(now.as_nanos() + 2_000_000);
        near.flush(now);
        let sent = near
            .can_send()
            .then(|| send_at(&mut near, now, &peer, PATH, &chunk, PACKET));
        near.send_gathered();
        if sent == Some(Sent::Dropped(Refusal::Unreachable)) {
            break;
        }
        assert!(begun.elapsed() < PATIENCE, "{sent:?}");
    }
    ip("link set near up");
    // What the ring holds leaves first.
    let mut poller = Poller::new(&mut far).unwrap();
    let begun = Instant::now();
    loop {
        assert!(begun.elapsed() < PATIENCE);
        now = Time::from_nanos(now.as_nanos() + 2_000_000);
        near.flush(now);
        if near.can_send() {
            send_at(&mut near, now, &peer, PATH, &chunk, PACKET);
        }
        near.send_gathered();
        poller.poll(&mut far).unwrap();
        let mut arrivals = Arrivals::default();
        if far.is_readable() {
            far.receive(&mut arrivals);
        }
        if !arrivals.0.is_empty() {
            break;
        }
    }
}

#[test]
fn without_the_right_opening_says_which_one() {
    let options = ["--user", "--map-root-user", "--net"];
    if !inside("without_the_right_opening_says_which_one", &options) {
        return;
    }
    ip("link add near type veth peer name far");
    ip("addr add dev near 10.9.0.1/24");
    ip("link set near up");
    let error = xdp(config_of(0, 0)).err().expect("it needs root");
    assert_eq!(error.reason(), "XdpUnavailable");
    assert!(error.to_string().contains("CAP_BPF"), "{error}");
}

//! Two engines in two network namespaces, of which one or both use AF_XDP: what is written arrives byte by byte.
//!
//! The test runs again in a child process with a network namespace of its own. A program on an interface needs the root user of
//! the machine; where the test has another user, it finds that the engine is refused for this reason.

mod pair;

use std::net::IpAddr;
use std::process::Command;
use std::sync::mpsc::channel;

use nix::sched::{CloneFlags, unshare};
use nix::unistd::{geteuid, gettid};
use pair::{PATIENCE, Pair, Side, bytes_of, pattern, region, secret};
use weft_engine::{
    DomainId, Encryption, Engine, EngineConfig, EngineError, Event, LinkKind, PortRange, Progress,
    WriteRequest,
};

/// Set in the child.
const INSIDE: &str = "WEFT_TEST_XDP";
const NAME: &str = "what_is_written_through_af_xdp_arrives_over_either_link_of_the_peer";
const ADDRESSES: [[&str; 2]; 2] = [["10.9.0.1", "10.9.0.2"], ["fd09::1", "fd09::2"]];
const BYTES: usize = 8 << 20;

fn ip(arguments: &str) {
    let words = arguments.split_whitespace();
    let status = Command::new("ip").args(words).status();
    let status = status.expect("iproute2 is installed");
    assert!(status.success(), "{arguments}");
}

fn engine(
    (version, end): (usize, usize),
    link: LinkKind,
    adapt: impl Fn(&mut EngineConfig),
) -> Result<Engine, EngineError> {
    let address: IpAddr = ADDRESSES[version][end].parse().expect("an address");
    let ports = PortRange {
        first: 7_500,
        count: 8,
    };
    let mut config = EngineConfig::over(link, address, ports, secret(9));
    config.progress = Progress::Threads(1);
    adapt(&mut config);
    Engine::start(config)
}

/// Datagrams that the kernel has sent here for sockets.
fn sent_by_sockets() -> u64 {
    let mut sum = 0;
    for (file, name) in [("snmp", "Udp:"), ("snmp6", "Udp6OutDatagrams")] {
        let text = std::fs::read_to_string(format!("/proc/thread-self/net/{file}"));
        let text = text.expect("the kernel counts");
        let line = text.lines().rfind(|line| line.starts_with(name));
        let words: Vec<_> = line.expect("UDP is counted").split_whitespace().collect();
        // In the first file: InDatagrams, NoPorts, InErrors, OutDatagrams.
        let index = if words.len() == 2 { 1 } else { 4 };
        sum += words[index].parse::<u64>().expect("a number");
    }
    sum
}

/// Writes one way, and waits until it is written here and delivered there.
fn write(from: &Side, to: &Side, salt: u64) {
    let (bytes, place) = (pattern(BYTES, salt), region(BYTES, 0));
    let key = to.engine.register(DomainId(1), place.clone());
    let request = WriteRequest {
        key,
        immediate: Some(7),
        ..from.write(&bytes)
    };
    from.engine.write(request).expect("the connection is open");
    let written = from.events.recv_timeout(PATIENCE);
    assert!(matches!(written, Ok(Event::Written { .. })), "{written:?}");
    let there = to.events.recv_timeout(PATIENCE);
    assert!(matches!(there, Ok(Event::Delivered { .. })), "{there:?}");
    assert!(bytes_of(&place) == **bytes, "other bytes");
    to.engine.deregister(key);
}

#[test]
fn what_is_written_through_af_xdp_arrives_over_either_link_of_the_peer() {
    let Some(user) = std::env::var_os(INSIDE) else {
        let (options, user): (&[&str], _) = match geteuid().is_root() {
            true => (&["--net"], "root"),
            false => (&["--user", "--map-root-user", "--net"], "user"),
        };
        let status = Command::new("unshare")
            .args(options)
            .arg(std::env::current_exe().expect("a test has a program"))
            .args(["--exact", NAME, "--nocapture"])
            .env(INSIDE, user)
            .status()
            .expect("util-linux is installed");
        assert!(status.success(), "it failed in its namespace");
        return;
    };
    ip("link add near type veth peer name far");
    let (sender, works) = channel::<Box<dyn FnOnce() + Send>>();
    let (ready, readiness) = channel();
    std::thread::spawn(move || {
        unshare(CloneFlags::CLONE_NEWNET).expect("namespaces are allowed");
        ready.send(gettid()).expect("the test waits");
        works.into_iter().for_each(|work| work());
    });
    let far = readiness.recv().expect("the thread runs");
    ip(&format!("link set far netns {far}"));
    let up = |device: &'static str, end: usize| {
        move || {
            ip(&format!("link set {device} up"));
            ip(&format!("addr add dev {device} {}/24", ADDRESSES[0][end]));
            let v6 = ADDRESSES[1][end];
            ip(&format!("addr add dev {device} {v6}/64 nodad"));
        }
    };
    up("near", 0)();
    sender
        .send(Box::new(up("far", 1)))
        .expect("the thread runs");
    if user == "user" {
        let refused = engine((0, 0), LinkKind::Xdp, |_| {});
        assert_eq!(refused.err().map(|it| it.reason()), Some("XdpUnavailable"));
        return;
    }
    use LinkKind::{Udp, Xdp};
    for (version, links, encryption) in [
        (0, [Xdp, Xdp], Encryption::Off),
        (1, [Xdp, Xdp], Encryption::Required),
        (0, [Xdp, Udp], Encryption::Off),
        (1, [Udp, Xdp], Encryption::Off),
    ] {
        let adapt = move |config: &mut EngineConfig| config.encryption = encryption;
        let near = engine((version, 0), links[0], adapt).expect("it is root");
        let (answer, started) = channel();
        let start = move || {
            let far = engine((version, 1), links[1], adapt);
            answer.send(far).expect("the test waits");
        };
        sender.send(Box::new(start)).expect("the thread runs");
        let far = started.recv().expect("the thread runs");
        let pair = Pair::of(near, far.expect("it is root"));
        let before = sent_by_sockets();
        for salt in 0..4 {
            write(&pair.a, &pair.b, salt);
            write(&pair.b, &pair.a, salt + 10);
        }
        let sent = sent_by_sockets() - before;
        // 8 MiB are 5,600 datagrams, sent in groups where they go by sockets.
        assert!(links[0] == Udp || sent < 200, "{sent}");
    }
}

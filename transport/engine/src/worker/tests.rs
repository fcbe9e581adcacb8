use super::*;
use crossbeam_channel::Sender;
use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::time::Instant;
use weft_core::endpoint::Local;
use weft_core::memory::DomainId;
use weft_core::units::PathId;
use weft_core::wire::{Probe, Seal, Secret};
use weft_link::PortRange;
use weft_memory::RegionTable;

/// A worker on one port that no other process has.
fn worker() -> (Worker, Sender<Command>, EngineConfig) {
    let first = std::process::id();
    let free = (first..first + 100).find_map(|step| {
        let ports = PortRange {
            first: 19_000 + (step % 400) as u16,
            count: 1,
        };
        let config = EngineConfig::new(Ipv4Addr::LOCALHOST, ports, Secret([9; 32]));
        let (commands, queue) = crossbeam_channel::unbounded();
        let keys = ResetKeys::new(&config.node_key);
        let worker =
            Worker::new(0, &config, keys, 1, RegionTable::default().reader(), queue).ok()?;
        Some((worker, commands, config))
    });
    free.expect("one of a hundred ports is free")
}

fn to(config: &EngineConfig) -> (IpAddr, u16) {
    (config.address.ip(), config.address.ports().first)
}

#[test]
fn a_packet_that_overtakes_the_command_of_its_connection_gets_no_reset() {
    let (mut worker, commands, config) = worker();
    let peer = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    peer.set_read_timeout(Some(Duration::from_secs(20)))
        .unwrap();
    let probe = |connection: u32| {
        let mut probe = [0; Probe::BYTES];
        let seal = Seal::new(&Secret([2; 32]));
        let connection = ConnectionId(connection);
        let bytes = Probe { sent_at: 0 }.emit(0, &mut probe, &seal, PathId(0), connection, 0);
        peer.send_to(&probe[..bytes], to(&config)).unwrap();
    };
    // The packet is received by a turn that has not seen the command.
    let receives = |worker: &mut Worker| {
        let before = worker.link.counters().received_packets;
        while worker.link.counters().received_packets == before {
            worker.receive().unwrap();
        }
    };
    probe(7);
    receives(&mut worker);
    let allocate = Command::Allocate {
        id: ConnectionId(7),
        local: Local {
            domain: DomainId(1),
            receive_secret: Secret([2; 32]),
            in_order: false,
        },
    };
    assert!(commands.send(allocate).is_ok());
    // As in the second half of any turn, also of an inline worker's, which has served its commands before.
    worker.send(false);
    assert_eq!(worker.snapshot().resets_sent, 0);
    // A worker that has served every command and knows nothing of a connection says so.
    probe(8);
    receives(&mut worker);
    worker.turn().unwrap();
    assert_eq!(worker.snapshot().resets_sent, 1);
    let mut answer = [0; 100];
    let bytes = peer.recv(&mut answer).unwrap();
    let reset = Reset::parse(&answer[..bytes]).unwrap();
    assert_eq!(reset.connection, ConnectionId(8));
}

#[test]
fn a_link_that_may_hold_something_is_read_again_soon() {
    let (mut worker, _commands, config) = worker();
    worker.turn().unwrap();
    let sender = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    sender.send_to(&[1], to(&config)).unwrap();
    // The poller has told of the datagram, and nobody has read it.
    while !worker.link.is_readable() {
        let link = &mut worker.link;
        worker.poller.poll(link).unwrap();
    }
    let limit = Duration::from_secs(20);
    let begun = Instant::now();
    let timeout = worker.before_sleep(Some(limit)).flatten();
    assert!(
        timeout.is_some_and(|timeout| timeout < limit),
        "it would sleep on the datagram"
    );
    worker.doze.wait(timeout).unwrap();
    assert!(begun.elapsed() < limit / 2, "it slept on the datagram");
    worker.turn().unwrap();
    assert_eq!(worker.link.counters().received_packets, 1);
}

#[test]
fn a_caller_sends_nothing_itself_before_the_commands_that_came_first() {
    let (mut worker, commands, _config) = worker();
    assert!(worker.takes_posts());
    let close = Command::Close {
        id: ConnectionId(7),
    };
    assert!(commands.send(close).is_ok());
    assert!(!worker.takes_posts());
    worker.turn().unwrap();
    assert!(worker.takes_posts());
}

#[test]
fn a_worker_that_sleeps_is_woken_for_what_is_due_before_it_would_wake() {
    let (mut worker, _commands, _config) = worker();
    worker.turn().unwrap();
    let later = worker.clock.now() + Nanos::from_secs(20);
    worker.doze.prepare_to_sleep(Some(later));
    worker.doze.wake_by(None);
    worker.doze.wake_by(Some(later));
    // Nothing has written to the waker: the sleep ends by itself.
    let short = Some(Duration::from_millis(1));
    let begun = Instant::now();
    worker.doze.wait(short).unwrap();
    assert!(begun.elapsed() >= Duration::from_millis(1));
    worker.doze.prepare_to_sleep(Some(later));
    worker.doze.wake_by(Some(worker.clock.now()));
    let begun = Instant::now();
    worker.doze.wait(Some(Duration::from_secs(20))).unwrap();
    assert!(begun.elapsed() < Duration::from_secs(10), "nobody woke it");
}

#[test]
fn a_worker_that_is_stopped_while_it_makes_ready_to_sleep_stays_awake() {
    let (mut worker, commands, _config) = worker();
    worker.turn().unwrap();
    assert!(commands.send(Command::Stop).is_ok());
    // As where an acknowledgement is owed, which leaves first.
    worker.send(false);
    assert_eq!(worker.before_sleep(None), None);
    assert!(worker.stopped);
}

use super::*;
use crate::command::Outgoing;
use crate::engine::RemoteEnd;
use crossbeam_channel::Sender;
use std::net::{Ipv4Addr, UdpSocket};
use std::time::Instant;
use weft_core::memory::DomainId;
use weft_core::units::{Key, PathId};
use weft_core::wire::{OVERHEAD_BYTES, Probe, Seal, Secret};

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
        let worker = Worker::new(0, ports, &config, keys, queue).ok()?;
        Some((worker, commands, config))
    });
    free.expect("one of a hundred ports is free")
}

#[test]
fn what_the_kernel_had_no_memory_for_is_sent_a_little_later() {
    let (mut worker, commands, config) = worker();
    let peer = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    peer.set_nonblocking(true).unwrap();
    let id = ConnectionId(1);
    let remote = RemoteEnd {
        owner: "peer".into(),
        id: ConnectionId(2),
        address: Ipv4Addr::LOCALHOST,
        ports: PortRange {
            first: peer.local_addr().unwrap().port(),
            count: 1,
        },
        send_secret: Secret([1; 32]),
        settings: config.settings(),
        generation: 1,
        reset_key: 0,
    };
    let write = Outgoing {
        source: Arc::new(vec![7; 10].into()),
        bytes: 10,
        key: Key(5),
        offset: 0,
        immediate: None,
        context: 0,
    };
    let (events, _seen) = crossbeam_channel::unbounded();
    for command in [
        Command::Allocate {
            id,
            domain: DomainId(1),
            receive_secret: Secret([2; 32]),
        },
        Command::Connect {
            id,
            remote: Box::new(remote),
            events,
        },
        Command::Write { id, write },
    ] {
        assert!(commands.send(command).is_ok());
    }
    assert!(worker.serve_commands(3));
    let now = worker.clock.now();
    let (open, paths, rng) = worker.connections.open(id).unwrap();
    let chunk = open.poll_chunk(now, paths, rng).unwrap();
    let again = now + RETRY_AFTER;
    worker.put_off(id, 0, Stalled { chunk, next: 0 }, Some(again));
    // What the kernel has no memory for it will not announce: no other chunk is tried meanwhile,
    // and the worker does not sleep beyond.
    assert!(!worker.retry_blocked(now));
    let mut received = [0; 2000];
    assert!(peer.recv(&mut received).is_err());
    assert!(worker.retry_blocked(again));
    assert_eq!(worker.link.counters().sent_packets, 1);
    assert_eq!(peer.recv(&mut received).unwrap(), 10 + OVERHEAD_BYTES);
    let (open, ..) = worker.connections.open(id).unwrap();
    assert!(open.stalled.is_none());
}

#[test]
fn a_packet_that_overtakes_the_word_of_its_connection_is_answered_by_no_reset() {
    let (mut worker, commands, config) = worker();
    let peer = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    peer.set_read_timeout(Some(Duration::from_secs(20)))
        .unwrap();
    let sends = |worker: &mut Worker, connection: u32| {
        let mut probe = [0; Probe::BYTES];
        let seal = Seal::new(&Secret([2; 32]));
        let connection = ConnectionId(connection);
        let probe_bytes = Probe { sent_at: 0 }.emit(&mut probe, &seal, PathId(0), connection, 0);
        peer.send_to(&probe[..probe_bytes], (config.address, config.ports.first))
            .unwrap();
        // After a quiet time, in which Resets may be saved up.
        while !worker.receive(worker.clock.now() + Nanos::from_secs(1)) {
            worker.note_readiness().unwrap();
        }
        worker.send_resets();
    };
    // It was queued after the worker's last look at the queue.
    let allocate = Command::Allocate {
        id: ConnectionId(7),
        domain: DomainId(1),
        receive_secret: Secret([2; 32]),
    };
    assert!(commands.send(allocate).is_ok());
    sends(&mut worker, 7);
    assert_eq!(worker.snapshot().resets_sent, 0);
    // Who has heard everything and knows nothing of it says so.
    sends(&mut worker, 8);
    assert_eq!(worker.snapshot().resets_sent, 1);
    let mut answer = [0; 100];
    let bytes = peer.recv(&mut answer).unwrap();
    let reset = Reset::parse(&answer[..bytes]).unwrap();
    assert_eq!(reset.connection, ConnectionId(8));
}

#[test]
fn a_port_whose_receive_calls_failed_is_read_again_soon() {
    let (mut worker, _commands, config) = worker();
    assert!(!worker.turn().unwrap(), "the port is empty");
    let sender = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    sender
        .send_to(&[1], (config.address, config.ports.first))
        .unwrap();
    // What two failed calls leave: epoll has told of the datagram, and nobody has read it.
    while worker.readable != [true] {
        worker.note_readiness().unwrap();
    }
    let patience = Duration::from_secs(20);
    let begun = Instant::now();
    worker.wait(Some(patience)).unwrap();
    assert!(begun.elapsed() < patience / 2, "it slept on the datagram");
    assert!(worker.turn().unwrap());
    assert_eq!(worker.link.counters().received_packets, 1);
}

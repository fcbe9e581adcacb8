//! A worker's connections without its sockets, over virtual time.

use std::net::SocketAddrV4;
use std::sync::Arc;

use crossbeam_channel::{never, unbounded};
use weft_core::recovery::ACK_DELAY;
use weft_core::units::{Key, PathId};
use weft_core::wire::CONTROL_BYTES_MAX;

use super::*;

/// A connection's reset key is this plus its id.
const RESET_KEY: u64 = 0x7265_7365_7400;
const DOMAIN: DomainId = DomainId(1);
/// The first ports of the two ends.
const PORTS: [u16; 2] = [4000, 5000];

fn config(side: usize) -> EngineConfig {
    let ports = PortRange {
        first: PORTS[side],
        count: 1,
    };
    EngineConfig::new(Ipv4Addr::LOCALHOST, ports, Secret([9; 32]))
}

/// The connections of two workers; what one sends is handed to the other or lost.
struct Duo {
    ends: [Connections; 2],
    now: Time,
}

impl Duo {
    fn new() -> Duo {
        Duo {
            ends: [0, 1].map(|side| Connections::new(config(side), 0, never())),
            now: Time::from_nanos(1_000_000_000),
        }
    }

    /// Makes connection `ids[0]` of the first end and `ids[1]` of the second one. Answers their events.
    fn join(&mut self, ids: [u32; 2]) -> [Receiver<Event>; 2] {
        self.join_at(ids, [0, 0])
    }

    /// The same to peers whose ports are higher than [`PORTS`] by `shift`.
    fn join_at(&mut self, ids: [u32; 2], shift: [u16; 2]) -> [Receiver<Event>; 2] {
        self.join_of("peer", 1, ids, shift)
    }

    /// The same to a peer of this owner and in this life.
    fn join_of(
        &mut self,
        owner: &str,
        generation: u64,
        ids: [u32; 2],
        shift: [u16; 2],
    ) -> [Receiver<Event>; 2] {
        let secret = |side: usize| Secret([side as u8 + 1; 32]);
        [0, 1].map(|side| {
            let (events, seen) = unbounded();
            let remote = RemoteEnd {
                owner: owner.into(),
                id: ConnectionId(ids[1 - side]),
                address: Ipv4Addr::LOCALHOST,
                ports: PortRange {
                    first: PORTS[1 - side] + shift[1 - side],
                    count: 1,
                },
                send_secret: secret(1 - side),
                settings: config(1 - side).settings(),
                generation,
                reset_key: RESET_KEY + u64::from(ids[1 - side]),
            };
            let id = ConnectionId(ids[side]);
            self.ends[side].allocate(id, DOMAIN, secret(side));
            self.ends[side].connect(self.now, id, remote, events);
            seen
        })
    }

    fn write(&mut self, id: u32, key: Key, bytes: usize) {
        let write = Outgoing {
            source: Arc::new(vec![7; bytes].into()),
            bytes: bytes as u64,
            key,
            offset: 0,
            immediate: None,
            context: 0,
        };
        self.ends[0].write(ConnectionId(id), write);
    }

    /// A turn of an end as its worker would have it. Answers the datagrams that it sends.
    fn turn(&mut self, side: usize) -> Vec<Vec<u8>> {
        let now = self.now;
        let end = &mut self.ends[side];
        let mut out = Vec::new();
        end.serve_timers(now);
        let touched = end.take_touched();
        for &id in &touched {
            end.tell(id);
            let mut buffer = [0; CONTROL_BYTES_MAX];
            while let Some((open, paths, _)) = end.open(id) {
                let Some(packet) = open.poll_control(now, paths, &mut buffer) else {
                    break;
                };
                out.push(buffer[..packet.bytes].to_vec());
            }
        }
        while let Some(id) = end.turns.next() {
            while let Some((open, paths, rng)) = end.open(id) {
                open.account.begin();
                let Some(chunk) = open.poll_chunk(now, paths, rng) else {
                    break;
                };
                for packet in 0..chunk.packets() {
                    let range = chunk.payload(packet);
                    let source = open.source(&chunk).expect("the write is under way");
                    let payload = &source[range.start as usize..range.end as usize];
                    let header = chunk.header(packet);
                    let trailer = chunk.trailer(&header, payload);
                    out.push([&header[..], payload, &trailer].concat());
                }
            }
        }
        for &id in &touched {
            end.rest(id);
        }
        end.give_back(touched);
        out
    }

    /// Has a Reset of connection `id` arrive at the first end, from `port` and with `token`.
    fn reset(&mut self, id: u32, port: u16, token: u64) {
        let reset = Reset {
            path: PathId(0),
            connection: ConnectionId(id),
            token,
        };
        let bytes = reset.emit();
        let run = ReceivedRun {
            local: 0,
            from: SocketAddrV4::new(Ipv4Addr::LOCALHOST, port),
            ce: false,
            bytes: &bytes,
            segment: bytes.len(),
        };
        self.ends[0].arrive(self.now, run);
        self.turn(0);
    }

    /// Hands datagrams to an end.
    fn deliver(&mut self, to: usize, datagrams: &[Vec<u8>]) {
        for bytes in datagrams {
            let run = ReceivedRun {
                local: 0,
                from: SocketAddrV4::new(Ipv4Addr::LOCALHOST, PORTS[1 - to]),
                ce: false,
                bytes,
                segment: bytes.len(),
            };
            self.ends[to].arrive(self.now, run);
        }
    }

    /// The first end's turns while all that it sends is lost, until no path carries anything.
    fn outage(&mut self) {
        let dark = |end: &Connections| end.peers.iter().flatten().all(|peer| peer.paths.is_dark());
        while !dark(&self.ends[0]) {
            self.turn(0);
            self.now = self.ends[0]
                .next_timer()
                .expect("what was sent is waited for");
        }
    }
}

/// The connections that Data packets name.
fn data_of(datagrams: &[Vec<u8>]) -> Vec<u32> {
    let named = datagrams
        .iter()
        .map(|bytes| peek(bytes).expect("sent by an end"));
    let data = named.filter(|peek| peek.kind == Kind::Data);
    data.map(|peek| peek.connection.0).collect()
}

fn reasons(events: &[Receiver<Event>; 2]) -> Vec<&'static str> {
    let failures = events[0].try_iter().map(|event| match event {
        Event::Failed { failure, .. } => failure.reason(),
        other => panic!("{other:?}"),
    });
    failures.collect()
}

#[test]
fn a_reset_ends_the_connection_of_the_engine_that_sent_it() {
    let mut duo = Duo::new();
    // Three engines at one address that gave out the same id.
    let joined: Vec<_> = (0..3)
        .map(|n| duo.join_at([1 + n, 11], [0, 100 * n as u16]))
        .collect();
    let token = reset_token(RESET_KEY + 11, Ipv4Addr::LOCALHOST);
    for port in [PORTS[1] - 1, PORTS[1] + 1, PORTS[1] + 99, PORTS[1] + 300] {
        duo.reset(11, port, token);
    }
    assert_eq!(duo.ends[0].drops.get(DropReason::UnknownConnection), 4);
    for n in [1, 2, 0] {
        duo.reset(11, PORTS[1] + 100 * n as u16, token);
        let seen: Vec<_> = joined.iter().map(reasons).collect();
        for (other, seen) in seen.iter().enumerate() {
            let expected: &[&str] = if other == n { &["PeerRestarted"] } else { &[] };
            assert_eq!(seen, expected, "connection {other} at the Reset of {n}");
        }
    }
    // They are over, and a Reset finds none of them.
    duo.reset(11, PORTS[1], token);
    assert_eq!(duo.ends[0].drops.get(DropReason::UnknownConnection), 5);
    assert!(duo.ends[0].by_remote.is_empty());
}

#[test]
fn a_token_that_was_elicited_from_another_address_is_not_believed() {
    let mut duo = Duo::new();
    let events = duo.join([1, 11]);
    // The same node answered a stranger about the same id, before it was given out or after.
    let elicited = reset_token(RESET_KEY + 11, Ipv4Addr::new(127, 0, 0, 2));
    duo.reset(11, PORTS[1], elicited);
    assert_eq!(reasons(&events), [""; 0]);
    assert_eq!(duo.ends[0].snapshot().drops.get(DropReason::Seal), 1);
    duo.reset(
        11,
        PORTS[1],
        reset_token(RESET_KEY + 11, Ipv4Addr::LOCALHOST),
    );
    assert_eq!(reasons(&events), ["PeerRestarted"]);
}

#[test]
fn what_a_node_says_of_an_address_ends_no_connection_of_another_node() {
    let mut duo = Duo::new();
    let honest = duo.join([1, 11]);
    // The same address, ports and id, said to be another life of its engine.
    let liar = duo.join_of("liar", 2, [2, 11], [0, 0]);
    assert_eq!(reasons(&honest), [""; 0]);
    // A later connection of the honest node is no restart either.
    let _events = duo.join([3, 12]);
    assert_eq!(reasons(&honest), [""; 0]);
    assert_eq!(reasons(&liar), [""; 0]);
    // And its Reset is still believed.
    duo.reset(
        11,
        PORTS[1],
        reset_token(RESET_KEY + 11, Ipv4Addr::LOCALHOST),
    );
    assert_eq!(reasons(&honest), ["PeerRestarted"]);
}

#[test]
fn the_end_of_an_outage_is_seen_by_every_connection_of_the_peer() {
    let mut duo = Duo::new();
    let _events = [duo.join([1, 11]), duo.join([2, 12])];
    let key = Key(77);
    duo.ends[1]
        .regions
        .table
        .register(key, DOMAIN, vec![0; 100].into());
    duo.write(1, key, 100);
    duo.outage();
    duo.write(2, key, 100);
    assert_eq!(data_of(&duo.turn(0)), [], "no path carries anything");
    // The next probe gets through, whichever connection sends it.
    duo.now = duo.ends[0].next_timer().expect("the path is probed");
    let probe = duo.turn(0);
    assert_eq!((probe.len(), data_of(&probe)), (1, vec![]));
    duo.deliver(1, &probe);
    let answer = duo.turn(1);
    duo.deliver(0, &answer);
    assert_eq!(data_of(&duo.turn(0)), [11, 12]);
}

#[test]
fn what_a_worker_owes_when_it_goes_to_sleep_is_sent_and_wakes_it_no_more() {
    let mut duo = Duo::new();
    let _events = duo.join([1, 11]);
    let key = Key(77);
    duo.ends[1]
        .regions
        .table
        .register(key, DOMAIN, vec![0; 4000].into());
    duo.write(1, key, 4000);
    // The beginning of a chunk: more of it is on the way, so nobody waits for an answer.
    let sent = duo.turn(0);
    duo.deliver(1, &sent[..1]);
    assert!(duo.turn(1).is_empty());
    let due = duo.now + ACK_DELAY;
    assert_eq!(duo.ends[1].next_timer(), Some(due));
    assert_eq!(duo.ends[1].take_owing(), [ConnectionId(11)]);
    let (now, end) = (duo.now, &mut duo.ends[1]);
    let mut buffer = [0; CONTROL_BYTES_MAX];
    let (open, paths, _) = end.open(ConnectionId(11)).expect("it is open");
    let packet = open.poll_control(now, paths, &mut buffer);
    let packet = packet.expect("what is owed is sent");
    let kind = peek(&buffer[..packet.bytes]).map(|peek| peek.kind);
    assert_eq!(kind, Ok(Kind::Ack));
    end.rest(ConnectionId(11));
    assert_eq!(end.next_timer(), None);
    assert_eq!(end.take_owing(), []);
    // In time it would have been sent by itself.
    duo.deliver(1, &sent[1..2]);
    assert!(duo.turn(1).is_empty());
    duo.now = duo.now + ACK_DELAY;
    assert_eq!(duo.turn(1).len(), 1);
}

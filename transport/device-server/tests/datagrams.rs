//! What programs see of datagrams: they arrive with their routing header and their source, or not at all.

#[expect(dead_code, reason = "much of it is for connected queue pairs")]
mod program;

use std::time::Duration;

use program::{DATAGRAMS, Done, Pair, Program, device, success};
use weft_device::completion::Status;
use weft_device::control::{Address, Answer, ErrorNumber, QueuePairAttributes, Request};
use weft_device::state::{Attributes, State};
use weft_device::work_request::{DatagramAddress, Operation, Payload, RemoteAddress, WorkRequest};
use weft_device_server::{DatagramDrops, Device};

const Q_KEY: u32 = 0x1111_1111;
/// Before the payload of every receive.
const ROUTING_HEADER: usize = 40;

/// From the beginning to this state.
fn bring_to(program: &mut Program, state: State) {
    let attributes = |state: State| QueuePairAttributes {
        state: state as u32,
        q_key: Q_KEY,
        port: 1,
        ..QueuePairAttributes::default()
    };
    program.reset();
    let init = [Attributes::PKEY_INDEX, Attributes::PORT, Attributes::QKEY];
    for (to, given) in [
        (State::Init, &init[..]),
        (State::ReadyToReceive, &[]),
        (State::ReadyToSend, &[Attributes::SQ_PSN]),
    ] {
        if to <= state {
            program.modify(given, attributes(to));
        }
    }
}

/// An address handle of `program` for a device.
fn handle(program: &mut Program, gid: [u8; 16]) -> u32 {
    let address = Address {
        gid,
        is_global: true,
        port: 1,
        ..Address::default()
    };
    let domain = program.domain;
    let made = program.ask(Request::CreateAddressHandle { domain, address });
    let Ok(Answer::Created(handle)) = made else {
        panic!("an address handle: {made:?}");
    };
    handle
}

/// Two programs, and how `a` names `b`.
struct Datagrams {
    pair: Pair,
    to_b: DatagramAddress,
}

impl Datagrams {
    fn on(is_one_node: bool) -> Self {
        Self::of(Pair::of_datagrams(is_one_node))
    }

    fn of(mut pair: Pair) -> Self {
        bring_to(&mut pair.a, State::ReadyToSend);
        bring_to(&mut pair.b, State::ReadyToSend);
        let (gid, queue_pair) = pair.b.name();
        let to_b = DatagramAddress {
            address_handle: handle(&mut pair.a, gid),
            queue_pair,
            q_key: Q_KEY,
        };
        Self { pair, to_b }
    }

    fn new() -> Self {
        Self::on(false)
    }

    /// `a` sends, and hears that it is done.
    fn send(&mut self, wr_id: u64, to: DatagramAddress, payload: &[u8]) {
        let payload_of = Payload::Inline(payload);
        self.pair
            .a
            .post(wr_id, Operation::SendDatagram(to), payload_of);
        let done = success(wr_id, payload.len() as u32);
        assert_eq!(self.pair.next_a(), done);
    }

    fn receive_at(&mut self, wr_id: u64, at: usize, bytes: usize) {
        let sge = self.pair.b.sge(at, ROUTING_HEADER + bytes);
        self.pair.b.receive(wr_id, &[sge]);
    }

    fn received(&self, wr_id: u64, bytes: usize) -> Done {
        Done {
            source: Some(self.pair.a.number),
            ..success(wr_id, (ROUTING_HEADER + bytes) as u32)
        }
    }

    fn payload(&self, at: usize, bytes: usize) -> Vec<u8> {
        self.pair.b.look(at + ROUTING_HEADER, bytes)
    }

    fn drops_of_b(&self) -> DatagramDrops {
        self.pair.b.devices.borrow().datagram_drops()
    }

    /// Turns until this many datagrams were dropped for a reason.
    fn drop_all(&mut self, of: fn(&Self) -> u64, count: u64) {
        let begun = std::time::Instant::now();
        while of(self) < count {
            assert!(begun.elapsed().as_secs() < 30, "{}", of(self));
            self.pair.turn();
        }
    }
}

#[test]
fn datagrams_arrive_with_their_routing_header_source_and_immediate() {
    for is_one_node in [false, true] {
        let mut all = Datagrams::on(is_one_node);
        all.receive_at(1, 0, 4096);
        all.receive_at(2, 8192, 5);
        let bytes: Vec<u8> = (0..4096).map(|at| at as u8).collect();
        all.pair.a.fill(0, &bytes);
        let [first, second] = [all.pair.a.sge(0, 96), all.pair.a.sge(96, 4000)];
        let send = Operation::SendDatagram(all.to_b);
        let payload = Payload::Sges(&[first, second]);
        all.pair.a.post(7, send, payload);
        assert_eq!(all.pair.next_a(), success(7, 4096));
        all.pair.a.post_request(&WorkRequest {
            wr_id: 8,
            operation: send,
            immediate: Some(77),
            signaled: false,
            fence: false,
            solicited: false,
            payload: Payload::Inline(b"hello"),
        });
        assert_eq!(all.pair.next_b(), all.received(1, 4096));
        let with_immediate = Done {
            immediate: Some(77),
            ..all.received(2, 5)
        };
        assert_eq!(all.pair.next_b(), with_immediate);
        assert_eq!(all.pair.a.poll(), None);
        assert!(all.payload(0, 4096) == bytes);
        assert_eq!(all.payload(8192, 5), b"hello");
        // An IPv4 header, from 10.0.0.1 to 10.0.0.2.
        let header = all.pair.b.look(8192, ROUTING_HEADER);
        assert_eq!(header[..21], [&[0; 20][..], &[0x45]].concat());
        assert_eq!(header[32..], [10, 0, 0, 1, 10, 0, 0, 2]);
        assert_eq!(all.drops_of_b(), DatagramDrops::default());
    }
}

#[test]
fn a_datagram_of_a_device_to_itself_arrives() {
    let mut all = Datagrams::new();
    let (gid, queue_pair) = all.pair.a.name();
    let to_a = DatagramAddress {
        address_handle: handle(&mut all.pair.a, gid),
        queue_pair,
        ..all.to_b
    };
    let sge = all.pair.a.sge(0, 50);
    all.pair.a.receive(1, &[sge]);
    all.send(2, to_a, b"self");
    assert_eq!(all.pair.next_a(), all.received(1, 4));
    assert_eq!(all.pair.a.look(ROUTING_HEADER, 4), b"self");
}

#[test]
fn a_receive_of_several_entries_is_filled_one_behind_the_other() {
    let mut all = Datagrams::new();
    let b = &mut all.pair.b;
    let sges = [b.sge(0, 40), b.sge(100, 2), b.sge(200, 0), b.sge(300, 100)];
    b.receive(1, &sges);
    all.send(2, all.to_b, b"scattered");
    assert_eq!(all.pair.next_b(), all.received(1, 9));
    assert_eq!(all.pair.b.look(100, 3), b"sc\0");
    assert_eq!(all.pair.b.look(300, 8), b"attered\0");
}

#[test]
fn what_is_for_no_queue_pair_of_the_peer_is_dropped_and_the_sender_goes_on() {
    let mut all = Datagrams::new();
    all.receive_at(1, 0, 10);
    let to_b = all.to_b;
    let wrong_key = DatagramAddress {
        q_key: Q_KEY + 1,
        ..to_b
    };
    let unknown = |queue_pair| DatagramAddress { queue_pair, ..to_b };
    all.send(2, wrong_key, b"key");
    all.send(3, unknown(to_b.queue_pair + 1), b"number");
    all.send(4, unknown(u32::MAX), b"number");
    all.send(5, to_b, b"arrives");
    assert_eq!(all.pair.next_b(), all.received(1, 7));
    assert_eq!(all.payload(0, 7), b"arrives");
    let drops = DatagramDrops {
        no_queue_pair: 2,
        q_key: 1,
        ..DatagramDrops::default()
    };
    assert_eq!(all.drops_of_b(), drops);
}

#[test]
fn a_key_with_the_highest_bit_is_that_of_the_sender() {
    let mut all = Datagrams::new();
    all.receive_at(1, 0, 1);
    let own = DatagramAddress {
        q_key: 1 << 31,
        ..all.to_b
    };
    all.send(2, own, b"k");
    assert_eq!(all.pair.next_b(), all.received(1, 1));
}

#[test]
fn a_queue_pair_that_is_reset_gets_nothing_and_one_that_is_ready_again_does() {
    let mut all = Datagrams::new();
    all.receive_at(1, 0, 10);
    all.send(2, all.to_b, b"first");
    assert_eq!(all.pair.next_b(), all.received(1, 5));
    all.receive_at(1, 0, 10);
    all.pair.b.reset();
    all.send(3, all.to_b, b"lost");
    all.drop_all(|all| all.drops_of_b().no_queue_pair, 1);
    bring_to(&mut all.pair.b, State::ReadyToReceive);
    all.receive_at(4, 0, 10);
    all.send(5, all.to_b, b"again");
    assert_eq!(all.pair.next_b(), all.received(4, 5));
    assert_eq!(all.payload(0, 5), b"again");
}

#[test]
fn what_is_sent_before_the_peer_receives_waits_for_it() {
    let mut all = Datagrams::new();
    all.pair.b.reset();
    all.send(1, all.to_b, b"early");
    (0..100).for_each(|_| all.pair.turn());
    bring_to(&mut all.pair.b, State::ReadyToReceive);
    all.receive_at(2, 0, 5);
    assert_eq!(all.pair.next_b(), all.received(2, 5));
}

#[test]
fn datagrams_without_a_receive_are_kept_up_to_a_bound() {
    const KEPT: u64 = 1024;
    let mut all = Datagrams::new();
    for wr_id in 0..KEPT + 10 {
        all.send(wr_id, all.to_b, &wr_id.to_le_bytes());
    }
    all.drop_all(|all| all.drops_of_b().no_receive, 10);
    for wr_id in 0..KEPT {
        all.receive_at(wr_id, 0, 8);
        assert_eq!(all.pair.next_b(), all.received(wr_id, 8));
        assert_eq!(all.payload(0, 8), wr_id.to_le_bytes());
    }
    all.receive_at(1, 0, 8);
    (0..100).for_each(|_| all.pair.turn());
    assert_eq!(all.pair.b.poll(), None);
}

#[test]
fn a_receive_that_is_too_small_fails_its_queue_pair() {
    let mut all = Datagrams::new();
    all.receive_at(1, 0, 3);
    all.receive_at(2, 100, 3);
    all.send(3, all.to_b, b"four");
    let failed = |wr_id, status| Done {
        status,
        ..success(wr_id, 0)
    };
    assert_eq!(all.pair.next_b(), failed(1, Status::LocalLength));
    assert_eq!(all.pair.next_b(), failed(2, Status::Flushed));
    all.send(4, all.to_b, b"lost");
    all.drop_all(|all| all.drops_of_b().no_queue_pair, 1);
}

/// Fails one send, which flushes those behind it. Receives go on, and so do sends after the program has said so.
fn fails(bad: impl Fn(&mut Datagrams) -> Operation, payload_bytes: usize, status: Status) {
    let mut all = Datagrams::new();
    let operation = bad(&mut all);
    let sge = all.pair.a.sge(0, payload_bytes);
    all.pair.a.post(1, operation, Payload::Sges(&[sge]));
    let good = Operation::SendDatagram(all.to_b);
    all.pair.a.post(2, good, Payload::Inline(b"flushed"));
    let failed = |wr_id, status| Done {
        status,
        ..success(wr_id, 0)
    };
    assert_eq!(all.pair.next_a(), failed(1, status));
    assert_eq!(all.pair.next_a(), failed(2, Status::Flushed));
    let number = all.pair.a.number;
    let asked = all.pair.a.ask(Request::QueryQueuePair(number));
    let Ok(Answer::Attributes(attributes)) = asked else {
        panic!("attributes: {asked:?}");
    };
    assert_eq!(attributes.state, State::SendQueueError as u32);
    let again = QueuePairAttributes {
        state: State::ReadyToSend as u32,
        ..QueuePairAttributes::default()
    };
    all.pair.a.modify(&[], again);
    all.receive_at(3, 0, 4);
    all.send(4, all.to_b, b"more");
    assert_eq!(all.pair.next_b(), all.received(3, 4));
}

#[test]
fn a_payload_longer_than_the_mtu_is_local_length() {
    let bad = |all: &mut Datagrams| Operation::SendDatagram(all.to_b);
    fails(bad, 4097, Status::LocalLength);
}

#[test]
fn a_payload_outside_of_every_region_is_local_protection() {
    let bad = |all: &mut Datagrams| {
        all.pair.a.key ^= 1;
        Operation::SendDatagram(all.to_b)
    };
    fails(bad, 10, Status::LocalProtection);
}

#[test]
fn an_operation_other_than_a_datagram_or_an_unknown_address_is_a_bad_work_request() {
    let status = Status::LocalQueuePairOperation;
    fails(|_| Operation::Send, 10, status);
    let write = |_: &mut Datagrams| Operation::Write(RemoteAddress::default());
    fails(write, 10, status);
    let unknown = |all: &mut Datagrams| {
        Operation::SendDatagram(DatagramAddress {
            address_handle: all.to_b.address_handle + 1,
            ..all.to_b
        })
    };
    fails(unknown, 10, status);
    let of_another_domain = |all: &mut Datagrams| {
        let (own, gid) = (all.pair.a.domain, all.pair.b.name().0);
        let Ok(Answer::Created(domain)) = all.pair.a.ask(Request::CreateDomain) else {
            panic!("a second domain");
        };
        all.pair.a.domain = domain;
        let address_handle = handle(&mut all.pair.a, gid);
        all.pair.a.domain = own;
        Operation::SendDatagram(DatagramAddress {
            address_handle,
            ..all.to_b
        })
    };
    fails(of_another_domain, 10, status);
}

#[test]
fn an_address_handle_needs_a_port_a_gid_and_a_domain_that_are_there() {
    let mut all = Datagrams::new();
    let a = &mut all.pair.a;
    let good = Address {
        gid: [1; 16],
        is_global: true,
        port: 1,
        ..Address::default()
    };
    let bad = [
        Address { port: 2, ..good },
        Address {
            is_global: false,
            ..good
        },
        Address {
            gid_index: 1,
            ..good
        },
    ];
    let domain = a.domain;
    for address in bad {
        let refused = a.ask(Request::CreateAddressHandle { domain, address });
        assert_eq!(refused, Err(ErrorNumber::InvalidArgument));
    }
}

#[test]
fn more_than_may_be_under_way_waits_in_the_ring_and_nothing_is_lost() {
    const ALL: u64 = 5 * 64;
    let mut all = Datagrams::new();
    all.receive_at(0, 0, 0);
    all.send(0, all.to_b, &[]);
    assert_eq!(all.pair.next_b(), all.received(0, 0));
    let mut sent = 0;
    for wr_id in 0..ALL {
        let send = Operation::SendDatagram(all.to_b);
        all.pair.a.post(wr_id, send, Payload::Inline(&[7; 20]));
        // The peer's server stands still.
        all.pair.turn_a();
        while let Some(done) = all.pair.a.poll() {
            assert_eq!(done, success(sent, 20));
            sent += 1;
        }
    }
    assert!((255..=256).contains(&sent), "{sent}");
    for wr_id in 0..ALL {
        all.receive_at(wr_id, 0, 20);
        assert_eq!(all.pair.next_b(), all.received(wr_id, 20));
    }
    while sent < ALL {
        assert_eq!(all.pair.next_a(), success(sent, 20));
        sent += 1;
    }
    assert_eq!(all.drops_of_b(), DatagramDrops::default());
}

#[test]
fn a_sender_without_a_peer_keeps_so_many_and_loses_them_silently() {
    let mut all = Datagrams::new();
    let nobody = DatagramAddress {
        address_handle: handle(&mut all.pair.a, [9; 16]),
        ..all.to_b
    };
    for wr_id in 0..256 {
        all.send(wr_id, nobody, b"lost");
    }
    // There is room for no more: it waits in the ring, and so does what is behind it.
    let send = Operation::SendDatagram(nobody);
    all.pair.a.post(256, send, Payload::Inline(b"waits"));
    (0..100).for_each(|_| all.pair.turn());
    assert_eq!(all.pair.a.poll(), None);
    all.pair.later = std::time::Duration::from_secs(11);
    assert_eq!(all.pair.next_a(), success(256, 5));
    let drops = |all: &Datagrams| {
        let server = all.pair.a.devices.borrow();
        server.datagram_drops().no_connection
    };
    assert_eq!(drops(&all), 256);
    all.receive_at(1, 0, 10);
    all.send(2, all.to_b, b"arrives");
    assert_eq!(all.pair.next_b(), all.received(1, 7));
}

#[test]
fn a_peer_that_is_gone_loses_datagrams_and_a_new_one_is_reached() {
    let mut all = Datagrams::new();
    all.receive_at(1, 0, 10);
    all.send(2, all.to_b, b"first");
    assert_eq!(all.pair.next_b(), all.received(1, 5));
    all.pair.restart_b();
    all.send(3, all.to_b, b"lost");
    let lost = |all: &Datagrams| {
        let server = all.pair.a.devices.borrow();
        server.datagram_drops().no_connection
    };
    // The acknowledgement of the first one may be lost as well.
    all.drop_all(lost, 1);
    bring_to(&mut all.pair.b, State::ReadyToSend);
    all.to_b.queue_pair = all.pair.b.number;
    all.receive_at(4, 0, 10);
    all.send(5, all.to_b, b"second");
    assert_eq!(all.pair.next_b(), all.received(4, 6));
    assert_eq!(all.payload(0, 6), b"second");
}

#[test]
fn a_connection_that_the_peer_has_closed_is_made_anew_without_loss() {
    let mut all = Datagrams::new();
    all.receive_at(1, 0, 10);
    all.send(2, all.to_b, b"first");
    assert_eq!(all.pair.next_b(), all.received(1, 5));
    // Its only queue pair receives no more: the server of `b` closes its end.
    all.pair.b.reset();
    all.pair.later += std::time::Duration::from_secs(1);
    (0..10).for_each(|_| all.pair.turn());
    bring_to(&mut all.pair.b, State::ReadyToSend);
    all.receive_at(3, 0, 10);
    all.send(4, all.to_b, b"second");
    assert_eq!(all.pair.next_b(), all.received(3, 6));
}

#[test]
fn both_may_send_first() {
    let mut all = Datagrams::new();
    let (gid, queue_pair) = all.pair.a.name();
    let to_a = DatagramAddress {
        address_handle: handle(&mut all.pair.b, gid),
        queue_pair,
        q_key: Q_KEY,
    };
    let sge = all.pair.a.sge(0, 60);
    all.pair.a.receive(1, &[sge]);
    all.receive_at(2, 0, 20);
    let send = |to| (Operation::SendDatagram(to), Payload::Inline(b"both"));
    let (operation, payload) = send(all.to_b);
    all.pair.a.post(3, operation, payload);
    let (operation, payload) = send(to_a);
    all.pair.b.post(4, operation, payload);
    assert_eq!(all.pair.next_a(), success(3, 4));
    assert_eq!(all.pair.next_b(), success(4, 4));
    let at_a = Done {
        source: Some(all.pair.b.number),
        ..all.received(1, 4)
    };
    assert_eq!(all.pair.next_a(), at_a);
    assert_eq!(all.pair.next_b(), all.received(2, 4));
}

#[test]
fn st4_datagrams_count_as_operations_of_their_device() {
    let mut pair = Pair::of_datagrams(true);
    let limited = Device {
        ops_per_s: std::num::NonZeroU32::new(500),
        ..device(3)
    };
    let devices = std::rc::Rc::clone(&pair.a.devices);
    pair.a = Program::of(&devices, &limited, DATAGRAMS, 4096);
    let Datagrams { mut pair, to_b } = Datagrams::of(pair);
    for wr_id in 0..12 {
        let payload = Payload::Inline(&[1]);
        pair.a.post(wr_id, Operation::SendDatagram(to_b), payload);
    }
    // A hundredth of a second's at once, and then as time goes on.
    for (milliseconds, count) in [(0, 5), (2, 1), (4, 1), (14, 5)] {
        let now = Duration::from_millis(milliseconds);
        assert_eq!(pair.a.completions_at(now), count, "at {now:?}");
    }
}

/// What was sent to the one before it may arrive after it has ended: UCX ends a program that gets such a datagram.
#[test]
fn the_next_program_with_a_device_has_queue_pairs_of_other_numbers() {
    let devices = std::rc::Rc::new(std::cell::RefCell::new(program::start()));
    let mut numbers = std::collections::BTreeSet::new();
    for _ in 0..200 {
        let program = Program::new(&devices, 1, DATAGRAMS, 64);
        assert!(numbers.insert(program.number), "{}", program.number);
        devices.borrow_mut().close(program.context);
    }
}

#[test]
fn the_first_program_of_each_engine_has_queue_pairs_of_other_numbers() {
    let number = || {
        let devices = std::rc::Rc::new(std::cell::RefCell::new(program::start()));
        Program::new(&devices, 1, DATAGRAMS, 64).number
    };
    // There are 256 to begin with.
    let numbers: std::collections::BTreeSet<u32> = (0..16).map(|_| number()).collect();
    assert!(numbers.len() > 1, "{numbers:?}");
}

#[test]
fn all_queue_pairs_of_a_device_keep_so_much_together_and_one_with_a_receive_loses_nothing() {
    /// One keeps 4 MiB, and all of them 64 MiB.
    const PAIRS: usize = 17;
    const PAYLOAD: usize = 4096;
    const BYTES: usize = ROUTING_HEADER + PAYLOAD;
    const EACH: usize = (4 << 20) / BYTES;
    const ALL_BYTES: usize = 64 << 20;
    /// They are taken in one turn.
    const BATCH: usize = 32;

    let devices = std::rc::Rc::new(std::cell::RefCell::new(program::start()));
    let mut sender = Program::new(&devices, 1, DATAGRAMS, 64);
    bring_to(&mut sender, State::ReadyToSend);
    let own = sender.gid;
    let address_handle = handle(&mut sender, own);
    let mut receivers: Vec<Program> = (0..PAIRS)
        .map(|_| Program::new(&devices, 1, DATAGRAMS, 64))
        .collect();
    receivers
        .iter_mut()
        .for_each(|it| bring_to(it, State::ReadyToReceive));
    let turn = || {
        let polled = devices.borrow_mut().poll(Duration::ZERO, Duration::ZERO);
        polled.expect("the engine runs");
    };
    let mut send = |queue_pair: u32, count: usize| {
        let to = DatagramAddress {
            address_handle,
            queue_pair,
            q_key: Q_KEY,
        };
        let sge = sender.sge(0, PAYLOAD);
        for number in 1..=count {
            sender.post_request(&WorkRequest {
                wr_id: 0,
                operation: Operation::SendDatagram(to),
                immediate: None,
                signaled: false,
                fence: false,
                solicited: false,
                payload: Payload::Sges(&[sge]),
            });
            if number % BATCH == 0 || number == count {
                turn();
            }
        }
    };
    let dropped = || {
        let drops = devices.borrow().datagram_drops();
        let no_receive = drops.no_receive;
        let others = DatagramDrops {
            no_receive: 0,
            ..drops
        };
        assert_eq!(others, DatagramDrops::default());
        no_receive as usize
    };
    for receiver in &receivers {
        send(receiver.number, EACH);
    }
    let kept = PAIRS * EACH - dropped();
    // What keeping them takes is counted as well.
    let most = ALL_BYTES - ALL_BYTES / 16..=ALL_BYTES;
    assert!(most.contains(&(kept * BYTES)), "{kept} are kept");

    let last = PAIRS - 1;
    let before = dropped();
    let receive = |receivers: &mut Vec<Program>, wr_id| {
        let sge = receivers[last].sge(0, BYTES);
        receivers[last].receive(wr_id, &[sge]);
        turn();
        receivers[last].poll().map(|done| (done.wr_id, done.status))
    };
    // The last one keeps none, and one that comes finds a receive.
    assert_eq!(receive(&mut receivers, 1), None);
    send(receivers[last].number, 1);
    let received = receivers[last].poll().expect("it is received");
    assert_eq!((received.wr_id, received.status), (1, Status::Success));
    assert_eq!(dropped(), before);
    // Without one it is lost, until another queue pair keeps less.
    send(receivers[last].number, 1);
    assert_eq!(dropped(), before + 1);
    receivers[0].reset();
    send(receivers[last].number, 1);
    assert_eq!(dropped(), before + 1);
    assert_eq!(receive(&mut receivers, 2), Some((2, Status::Success)));
}

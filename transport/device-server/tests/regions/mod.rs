//! What regions and keys give access to, and what they do not.

use crate::failed;
use crate::program::{self, Pair, Program, device, success};
use weft_device::completion::Status;
use weft_device::control::{Answer, ErrorNumber, Region, Request};
use weft_device::work_request::{Operation, Payload, RemoteAddress, Sge};

/// Reserved by nobody: as memory that was unmapped after it was registered.
const UNMAPPED: u64 = 4096;
const TEBIBYTE: u64 = 1 << 40;

fn register(program: &mut Program, domain: u32, address: u64, bytes: u64) -> u32 {
    let region = Region {
        domain,
        address,
        bytes,
        io_address: address,
        access: program::ALL,
        file_offset: None,
    };
    let made = program.ask(Request::RegisterRegion(region));
    let Ok(Answer::Created(key)) = made else {
        panic!("a region: {made:?}");
    };
    key
}

#[test]
fn a_tebibyte_of_which_little_is_mapped_is_used_where_it_is() {
    let mut pair = Pair::new();
    let (a, b) = (pair.a.address(0), pair.b.address(0));
    let (domain_a, domain_b) = (pair.a.domain, pair.b.domain);
    let local_key = register(&mut pair.a, domain_a, a, TEBIBYTE);
    let key = register(&mut pair.b, domain_b, b, TEBIBYTE);
    pair.a.fill(0, &[7; 8]);
    let sge = Sge {
        address: a,
        bytes: 8,
        local_key,
    };
    let to = RemoteAddress { address: b, key };
    pair.a.post(1, Operation::Write(to), Payload::Sges(&[sge]));
    assert_eq!(pair.next_a(), success(1, 8));
    assert_eq!(pair.b.look(0, 8), [7; 8]);
    // As far as this nobody maps anything.
    let to = RemoteAddress {
        address: b + TEBIBYTE - 8,
        key,
    };
    pair.a.post(2, Operation::Write(to), Payload::Sges(&[sge]));
    let done = pair.next_a();
    assert_eq!(done.wr_id, 2);
    assert_ne!(done.status, Status::Success);
    assert_eq!(pair.b.look(0, 8), [7; 8]);
}

#[test]
fn memory_of_a_peer_that_is_unmapped_fails_the_queue_pair_and_no_other() {
    let operations: [fn(RemoteAddress) -> Operation; 3] =
        [Operation::Write, Operation::Read, |remote| {
            Operation::FetchAdd { remote, add: 1 }
        }];
    for operation in operations {
        let mut pair = Pair::new();
        let mut other = Pair::of(&pair.a.devices.clone(), &pair.b.devices.clone()).connect();
        let domain = pair.b.domain;
        let key = register(&mut pair.b, domain, UNMAPPED, 4096);
        let sge = pair.a.sge(0, 8);
        let to = RemoteAddress {
            address: UNMAPPED,
            key,
        };
        pair.a.post(1, operation(to), Payload::Sges(&[sge]));
        let done = pair.next_a();
        assert_eq!(done.wr_id, 1);
        assert_ne!(done.status, Status::Success);
        let (sge, to) = (other.a.sge(0, 8), other.b.remote(0));
        other.a.post(2, Operation::Write(to), Payload::Sges(&[sge]));
        assert_eq!(other.next_a(), success(2, 8));
    }
}

#[test]
fn a_local_key_of_another_domain_opens_nothing() {
    let mut pair = Pair::new();
    let Ok(Answer::Created(other)) = pair.a.ask(Request::CreateDomain) else {
        panic!("a second domain");
    };
    let address = pair.a.address(0);
    let sge = Sge {
        local_key: register(&mut pair.a, other, address, 8),
        ..pair.a.sge(0, 8)
    };
    let to = pair.b.remote(0);
    pair.a.post(1, Operation::Write(to), Payload::Sges(&[sge]));
    assert_eq!(pair.next_a(), failed(1, Status::LocalProtection));
}

/// As where a device's directory is given to two pods.
#[test]
fn two_programs_of_one_device_reach_nothing_of_each_other_s() {
    let mut pair = Pair::new();
    let devices = pair.a.devices.clone();
    let kind = (weft_device::state::QueuePairType::ReliableConnected, false);
    let mut other = Program::of(&devices, &device(1), kind, 16);
    let (number, domain, key) = (pair.a.number, pair.a.domain, pair.a.key);
    assert_ne!(number, other.number);
    let refused = other.ask(Request::DestroyQueuePair(number));
    assert_eq!(refused, Err(ErrorNumber::InvalidArgument));
    // Handles and keys count by program, so these may be names of its own objects.
    assert_eq!(
        other.ask(Request::DeregisterRegion(other.key)),
        Ok(Answer::Done)
    );
    let _ = other.ask(Request::DeregisterRegion(key));
    let _ = other.ask(Request::DestroyDomain(domain));
    let (sge, to) = (pair.a.sge(0, 8), pair.b.remote(0));
    pair.a.post(1, Operation::Write(to), Payload::Sges(&[sge]));
    assert_eq!(pair.next_a(), success(1, 8));
    let (sge, to) = (pair.b.sge(0, 8), pair.a.remote(0));
    pair.b.post(2, Operation::Write(to), Payload::Sges(&[sge]));
    assert_eq!(pair.next_b(), success(2, 8));
    // Its keys open nothing in a work request of another program, neither as local keys nor as those of the peer.
    for is_local in [true, false] {
        let mut others = Pair::of(&pair.a.devices, &pair.b.devices).connect();
        let (own, own_peer) = (others.a.sge(0, 8), others.b.remote(0));
        let (sge, to, status) = match is_local {
            true => (pair.a.sge(0, 8), own_peer, Status::LocalProtection),
            false => (own, pair.b.remote(0), Status::RemoteAccess),
        };
        others
            .a
            .post(3, Operation::Write(to), Payload::Sges(&[sge]));
        assert_eq!(others.next_a(), failed(3, status));
    }
}

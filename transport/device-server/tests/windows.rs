//! Memory that a program has shared already: the engine maps it as well.

#[expect(dead_code, reason = "other tests use more of it")]
mod program;

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::time::Duration;

use memmap2::{MmapOptions, MmapRaw};
use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, memfd_create};
use weft_device::control::{Answer, ErrorNumber, Outcome, Region, Request};
use weft_device::work_request::{Operation, Payload, RemoteAddress, Sge};

use program::{Pair, Program, success};

const BYTES: u64 = 1 << 20;

/// Memory that a program has mapped from a memfd.
struct Shared {
    file: File,
    map: MmapRaw,
}

impl Shared {
    fn new() -> Self {
        let file = File::from(memfd_create("shared", MemfdFlags::CLOEXEC).expect("it is there"));
        fallocate(&file, FallocateFlags::empty(), 0, BYTES).expect("it is there");
        let map = MmapOptions::new().map_raw(&file).expect("it is there");
        Self { file, map }
    }

    fn address(&self) -> u64 {
        self.map.as_ptr().addr() as u64
    }

    fn descriptor(&self) -> OwnedFd {
        self.file.as_fd().try_clone_to_owned().expect("it is there")
    }

    fn look(&self, at: u64, bytes: usize) -> Vec<u8> {
        let mut found = vec![0; bytes];
        self.file
            .read_exact_at(&mut found, at)
            .expect("it is there");
        found
    }
}

fn register(program: &Program, shared: &Shared, file: OwnedFd, file_offset: u64) -> Outcome {
    let region = Region {
        domain: program.domain,
        address: shared.address(),
        bytes: BYTES,
        io_address: shared.address(),
        access: program::ALL,
        file_offset: Some(file_offset),
    };
    let request = Request::RegisterRegion(region);
    let mut devices = program.devices.borrow_mut();
    devices.handle(program.context, &request, Some(file), Duration::ZERO)
}

/// Both ends of a pair with shared memory that is registered.
fn sharing(pair: &Pair) -> [(Shared, u32); 2] {
    [&pair.a, &pair.b].map(|program| {
        let shared = Shared::new();
        let Ok(Answer::Created(key)) = register(program, &shared, shared.descriptor(), 0) else {
            panic!("a region");
        };
        (shared, key)
    })
}

#[test]
fn st2_shared_memory_is_mapped_and_bytes_go_there_and_come_from_there() {
    let mut pair = Pair::new();
    let [(a, a_key), (b, b_key)] = sharing(&pair);
    assert_eq!(pair.a.devices.borrow().region_count(), (2, 1));
    let bytes: Vec<u8> = (0..300_000u32).map(|at| (at % 251) as u8).collect();
    a.file.write_all_at(&bytes, 5).unwrap();
    let sge = |at: u64, bytes| Sge {
        address: a.address() + at,
        bytes,
        local_key: a_key,
    };
    let remote = |at: u64| RemoteAddress {
        address: b.address() + at,
        key: b_key,
    };
    let send = Operation::Write(remote(100));
    pair.a.post(1, send, Payload::Sges(&[sge(5, 300_000)]));
    pair.a.post(
        2,
        Operation::Read(remote(100)),
        Payload::Sges(&[sge(500_000, 300_000)]),
    );
    let (remote, add) = (remote(800_000), 7);
    pair.a.post(
        3,
        Operation::FetchAdd { remote, add },
        Payload::Sges(&[sge(900_000, 8)]),
    );
    assert_eq!(pair.next_a(), success(1, 300_000));
    assert_eq!(pair.next_a(), success(2, 300_000));
    assert_eq!(pair.next_a(), success(3, 8));
    assert!(b.look(100, bytes.len()) == bytes);
    assert!(a.look(500_000, bytes.len()) == bytes);
    assert_eq!(b.look(800_000, 8), 7u64.to_le_bytes());
}

#[test]
fn a_program_that_takes_its_pages_away_has_others_in_their_place_and_harms_nobody() {
    let mut pair = Pair::new();
    let [(a, a_key), (b, b_key)] = sharing(&pair);
    let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    fallocate(&b.file, hole, 0, BYTES).unwrap();
    a.file.write_all_at(&[9; 100_000], 0).unwrap();
    let sge = Sge {
        address: a.address(),
        bytes: 100_000,
        local_key: a_key,
    };
    let remote = RemoteAddress {
        address: b.address() + 50,
        key: b_key,
    };
    pair.a
        .post(1, Operation::Write(remote), Payload::Sges(&[sge]));
    assert_eq!(pair.next_a(), success(1, 100_000));
    assert!(b.look(50, 100_000) == [9; 100_000]);
    // Of what is cut off, nothing is left to write to.
    b.file.set_len(0).unwrap();
    pair.a
        .post(2, Operation::Write(remote), Payload::Sges(&[sge]));
    assert_ne!(pair.next_a(), success(2, 100_000));
}

#[test]
fn st2_a_doorbell_page_lies_in_no_region() {
    let pair = Pair::new();
    let shared = Shared::new();
    let rings = pair.a.shared.file().unwrap().try_clone_to_owned().unwrap();
    let refused = register(&pair.a, &shared, rings, 0);
    assert_eq!(refused, Err(ErrorNumber::InvalidArgument));
    assert_eq!(pair.a.devices.borrow().region_count(), (1, 0));
}

#[test]
fn what_cannot_be_mapped_is_reached_by_the_address_space() {
    let pair = Pair::new();
    let shared = Shared::new();
    let (pipe, _writer) = std::io::pipe().unwrap();
    for (file, file_offset) in [
        (pipe.into(), 0),
        (File::open("/proc/self/maps").unwrap().into(), 0),
        (shared.descriptor(), 1),
        (shared.descriptor(), u64::MAX),
    ] {
        let registered = register(&pair.a, &shared, file, file_offset);
        assert!(registered.is_ok(), "{registered:?}");
    }
    assert_eq!(pair.a.devices.borrow().region_count(), (5, 0));
}

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use weft_core::units::ConnectionId;

use super::*;

const KEY: Key = Key(0xfedc_ba98_7654_3210);
const MINE: DomainId = DomainId(1);
const TICKET: Ticket = Ticket {
    connection: ConnectionId(1),
    packet_number: 1,
};

fn table(bytes: usize) -> (RegionTable<Region>, TableReader<Region>) {
    let table = RegionTable::default();
    table.register(KEY, MINE, Access::WRITE, Region::share(vec![0; bytes]));
    let reader = table.reader();
    (table, reader)
}

fn place(
    reader: &mut TableReader<Region>,
    domain: DomainId,
    key: Key,
    offset: u64,
    payload: &[u8],
) -> Result<Placed, DropReason> {
    reader.enter().place(TICKET, domain, key, offset, payload)
}

#[test]
fn bytes_land_where_they_belong_and_nowhere_else() {
    let (table, mut reader) = table(10);
    let mut place = |key, offset, payload: &[u8]| place(&mut reader, MINE, key, offset, payload);
    assert_eq!(place(KEY, 4, &[1, 2, 3]), Ok(Placed::Now));
    assert_eq!(place(KEY, 10, &[]), Ok(Placed::Now));
    assert_eq!(place(KEY, 8, &[9; 3]), Err(DropReason::Bounds));
    assert_eq!(place(KEY, u64::MAX, &[9]), Err(DropReason::Bounds));
    assert_eq!(place(KEY, u64::MAX - 3, &[9; 8]), Err(DropReason::Bounds));
    assert_eq!(place(Key(KEY.0 + 1), 0, &[9]), Err(DropReason::Key));
    assert_eq!(place(Key(1), 0, &[9]), Err(DropReason::Key));
    let bytes = Region::into_box(table.take(KEY).unwrap()).unwrap();
    assert_eq!(*bytes, [0, 0, 0, 0, 1, 2, 3, 0, 0, 0]);
}

#[test]
fn another_domain_finds_no_region() {
    let (_table, mut reader) = table(10);
    let other = DomainId(2);
    assert_eq!(
        place(&mut reader, other, KEY, 0, &[1]),
        Err(DropReason::Key)
    );
    // An outsider does not learn where a region ends.
    assert_eq!(
        place(&mut reader, other, KEY, 99, &[1]),
        Err(DropReason::Key)
    );
}

#[test]
fn a_taken_region_refuses_until_it_is_armed_again() {
    let (table, mut reader) = table(10);
    let counts = |armed, armed_bytes, taken| Counts {
        armed,
        armed_bytes,
        taken,
    };
    assert_eq!(table.counts(), counts(1, 10, 0));
    let region = table.take(KEY).unwrap();
    assert!(table.take(KEY).is_none());
    let refused = place(&mut reader, MINE, KEY, 0, &[1]);
    assert_eq!(refused, Err(DropReason::NotArmed));
    assert_eq!(table.counts(), counts(0, 0, 1));
    let mut bytes = Region::into_box(region).unwrap();
    bytes[9] = 7;
    table.arm(KEY, Region::share(bytes));
    assert_eq!(place(&mut reader, MINE, KEY, 0, &[1]), Ok(Placed::Now));
    let region = table.deregister(KEY).unwrap();
    let mut out = [0; 10];
    region.read(0, &mut out).unwrap();
    assert_eq!(out, [1, 0, 0, 0, 0, 0, 0, 0, 0, 7]);
    table.arm(KEY, region);
    let gone = place(&mut reader, MINE, KEY, 0, &[1]);
    assert_eq!(gone, Err(DropReason::Key));
    assert!(table.take(KEY).is_none() && table.deregister(KEY).is_none());
    assert_eq!(table.counts(), Counts::default());
}

#[test]
fn every_one_of_many_regions_is_found() {
    let table = RegionTable::default();
    let mut reader = table.reader();
    // Keys of every part of the table, in no order.
    let key = |n: u64| Key(n.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    for n in 0..5000 {
        table.register(
            key(n),
            MINE,
            Access::WRITE,
            Region::share(vec![0; 1 + n as usize % 7]),
        );
    }
    for n in (0..5000).step_by(3) {
        assert!(table.deregister(key(n)).is_some());
    }
    let placing = reader.enter();
    for n in 0..5000 {
        let place = Place {
            domain: MINE,
            key: key(n),
            offset: 0,
            bytes: 1,
        };
        let found = placing.resolve(&place, Access::WRITE).map(Region::len);
        match n % 3 {
            0 => assert_eq!(found, Err(DropReason::Key)),
            _ => assert_eq!(found, Ok(1 + n % 7)),
        }
    }
}

/// Two workers write all the time, with a number of their own in every byte; the owner takes the region,
/// looks whether anything changes in it, and arms it again.
#[test]
fn no_byte_lands_in_a_region_that_its_owner_has_taken() {
    const BYTES: usize = 64 << 10;
    const ROUNDS: usize = 50;
    let (table, _) = table(BYTES);
    let (over, placed) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for worker in [1, 2] {
            let mut reader = table.reader();
            let (over, placed) = (&over, &placed);
            scope.spawn(move || {
                let payload = vec![worker; BYTES];
                while !over.load(Ordering::Relaxed) {
                    let mut placing = reader.enter();
                    for _ in 0..4 {
                        if placing.place(TICKET, MINE, KEY, 0, &payload) == Ok(Placed::Now) {
                            placed.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                }
            });
        }
        for round in 0..ROUNDS {
            let before = placed.load(Ordering::Relaxed);
            while placed.load(Ordering::Relaxed) == before {
                std::thread::yield_now();
            }
            let taken = match round % 2 {
                0 => table.take(KEY),
                _ => table.deregister(KEY),
            };
            // Sole owner: no worker is left that could reach it.
            let mut bytes = Region::into_box(taken.unwrap()).unwrap();
            bytes.fill(0);
            std::thread::yield_now();
            assert!(bytes.iter().all(|&byte| byte == 0), "round {round}");
            match round % 2 {
                0 => table.arm(KEY, Region::share(bytes)),
                _ => table.register(KEY, MINE, Access::WRITE, Region::share(bytes)),
            }
        }
        over.store(true, Ordering::Relaxed);
    });
}

#[test]
fn a_region_is_open_to_what_it_was_registered_for() {
    let table = RegionTable::default();
    let registered = [
        Access::WRITE,
        Access::READ,
        Access::READ.with(Access::ATOMIC),
    ];
    for (n, access) in registered.into_iter().enumerate() {
        table.register(Key(n as u64), MINE, access, Region::share(vec![0; 24]));
    }
    let mut reader = table.reader();
    let mut placing = reader.enter();
    let add = Atomic::FetchAdd { add: 5 };
    for (n, [write, read, atomic]) in [
        [true, false, false],
        [false, true, false],
        [false, true, true],
    ]
    .into_iter()
    .enumerate()
    {
        let key = Key(n as u64);
        let place = Place {
            domain: MINE,
            key,
            offset: 8,
            bytes: 16,
        };
        let answer = |allowed| {
            if allowed {
                Ok(())
            } else {
                Err(DropReason::Key)
            }
        };
        let placed = placing.place(TICKET, MINE, key, 0, b"x").map(|_| ());
        assert_eq!(placed, answer(write), "{n}");
        assert_eq!(placing.check(&place, Access::READ), answer(read), "{n}");
        assert_eq!(
            placing.atomic(MINE, key, 8, add).map(|_| ()),
            answer(atomic),
            "{n}"
        );
    }
}

#[test]
fn atomics_of_many_threads_are_all_counted_and_answer_what_stood_there() {
    let (table, _) = table(24);
    let key = Key(7);
    let region = Region::share(vec![0; 24]);
    table.register(key, MINE, Access::ATOMIC, region.clone());
    let mut befores: Vec<u64> = std::thread::scope(|scope| {
        let adds = |_| {
            let mut reader = table.reader();
            scope.spawn(move || {
                let add = |_| {
                    reader
                        .enter()
                        .atomic(MINE, key, 16, Atomic::FetchAdd { add: 3 })
                };
                (0..500).map(add).collect::<Result<Vec<_>, _>>()
            })
        };
        let threads: Vec<_> = (0..4).map(adds).collect();
        let joined = threads
            .into_iter()
            .map(|thread| thread.join().unwrap().unwrap());
        joined.flatten().collect()
    });
    befores.sort_unstable();
    assert_eq!(befores, (0..2_000).map(|n| 3 * n).collect::<Vec<_>>());
    let swap = |compare| Atomic::CompareSwap { compare, swap: 1 };
    assert_eq!(region.atomic(16, swap(5)), Ok(6_000));
    assert_eq!(region.atomic(16, swap(6_000)), Ok(6_000));
    assert_eq!(region.atomic(16, swap(0)), Ok(1));
    for wrong in [4, 17, 24, u64::MAX] {
        assert_eq!(
            region.atomic(wrong, swap(0)),
            Err(DropReason::Bounds),
            "{wrong}"
        );
    }
}

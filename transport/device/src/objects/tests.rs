use proptest::prelude::*;

use super::*;
use crate::state::QueuePairType;

mod events;

const LIMITS: Limits = Limits {
    domains: 2,
    regions: 3,
    completion_queues: 2,
    queue_pairs: 3,
    address_handles: 2,
    completions: 4096,
    work_requests: 1024,
    sges: 32,
    inline_bytes: 1024,
    requests: 16,
    path_mtu: 5,
    ring_bytes: 1 << 20,
};

/// A device, and the numbers that keys are drawn from.
struct Fixture {
    objects: Objects,
    now: Duration,
    draws: Vec<u32>,
}

impl Fixture {
    fn new() -> Self {
        Self {
            objects: Objects::new(LIMITS, 0..1 << 24),
            now: Duration::ZERO,
            draws: Vec::new(),
        }
    }

    fn ask(&mut self, request: Request) -> Outcome {
        let draws = &mut self.draws;
        let mut next = 1000;
        let mut random = || {
            next += 1;
            draws.pop().unwrap_or(next)
        };
        self.objects.handle(&request, self.now, &mut random)
    }

    fn made(&mut self, request: Request) -> u32 {
        match self.ask(request) {
            Ok(
                Answer::Created(made)
                | Answer::CreatedQueue { queue: made, .. }
                | Answer::CreatedQueuePair {
                    queue_pair: made, ..
                },
            ) => made,
            other => panic!("{request:?}: {other:?}"),
        }
    }

    /// A domain, a completion queue, and a queue pair of these.
    fn queue_pair(&mut self) -> (u32, u32, u32) {
        let domain = self.made(Request::CreateDomain);
        let queue = self.made(Request::CreateCompletionQueue {
            entries: 10,
            channel: None,
        });
        let pair = self.made(Request::CreateQueuePair(pair(domain, queue)));
        (domain, queue, pair)
    }

    fn modify(&mut self, queue_pair: u32, given: Attributes, to: QueuePairAttributes) -> Outcome {
        self.ask(Request::ModifyQueuePair {
            queue_pair,
            given: given.0,
            attributes: to,
        })
    }

    /// A shared receive queue of 8, and a queue pair that takes its receives from it.
    fn sharing(&mut self) -> (u32, u32) {
        let domain = self.made(Request::CreateDomain);
        let queue = self.made(Request::CreateCompletionQueue {
            entries: 10,
            channel: None,
        });
        let shared = self.made(Request::CreateSharedReceiveQueue {
            domain,
            entries: 8,
            sges: 1,
        });
        let pair = self.made(Request::CreateQueuePair(QueuePair {
            shared_receive_queue: Some(shared),
            ..pair(domain, queue)
        }));
        (shared, pair)
    }

    /// Ready to receive, from the beginning.
    fn set_ready(&mut self, queue_pair: u32) {
        for (given, to) in [(INIT, init()), (PEER, to_peer())] {
            assert_eq!(self.modify(queue_pair, given, to), Ok(Answer::Done));
        }
    }

    /// To another state, which needs no attributes.
    fn go(&mut self, queue_pair: u32, state: State) {
        let to = QueuePairAttributes {
            state: state as u32,
            ..QueuePairAttributes::default()
        };
        let given = Attributes::STATE;
        assert_eq!(self.modify(queue_pair, given, to), Ok(Answer::Done));
    }

    /// What the program is told.
    fn events(&mut self) -> Vec<(EventType, u32)> {
        let mut events = Vec::new();
        self.objects.send_events(|event| {
            events.push((event.kind, event.object));
            true
        });
        events
    }

    fn attributes(&mut self, queue_pair: u32) -> QueuePairAttributes {
        match self.ask(Request::QueryQueuePair(queue_pair)) {
            Ok(Answer::Attributes(attributes)) => attributes,
            other => panic!("{other:?}"),
        }
    }
}

fn pair(domain: u32, completions: u32) -> QueuePair {
    QueuePair {
        domain,
        kind: QueuePairType::ReliableConnected,
        send_completions: completions,
        receive_completions: completions,
        shared_receive_queue: None,
        sizes: QueueSizes {
            sends: 100,
            receives: 7,
            send_sges: 1,
            receive_sges: 1,
            inline_bytes: 0,
        },
    }
}

fn region(domain: u32) -> Region {
    Region {
        domain,
        address: 0x7000_0000,
        bytes: 1 << 40,
        io_address: 0x7000_0000,
        access: 0,
        file_offset: None,
    }
}

fn peer() -> Address {
    let mut gid = [0; 16];
    (gid[10], gid[11], gid[12], gid[15]) = (0xff, 0xff, 10, 1);
    Address {
        gid,
        is_global: true,
        port: 1,
        ..Address::default()
    }
}

const INIT: Attributes = Attributes::STATE
    .union(Attributes::PKEY_INDEX)
    .union(Attributes::PORT)
    .union(Attributes::ACCESS_FLAGS);
const PEER: Attributes = Attributes::STATE
    .union(Attributes::AV)
    .union(Attributes::PATH_MTU)
    .union(Attributes::DEST_QPN)
    .union(Attributes::RQ_PSN)
    .union(Attributes::MAX_DEST_RD_ATOMIC)
    .union(Attributes::MIN_RNR_TIMER);

fn init() -> QueuePairAttributes {
    QueuePairAttributes {
        state: State::Init as u32,
        port: 1,
        access: access::REMOTE,
        ..QueuePairAttributes::default()
    }
}

fn to_peer() -> QueuePairAttributes {
    QueuePairAttributes {
        state: State::ReadyToReceive as u32,
        address: peer(),
        path_mtu: 5,
        peer_queue_pair: 17,
        receive_psn: u32::MAX,
        requests_from_peer: 16,
        receiver_not_ready_timer: 12,
        ..QueuePairAttributes::default()
    }
}

#[test]
fn nothing_that_others_use_is_destroyed() {
    let mut device = Fixture::new();
    let (domain, queue, pair) = device.queue_pair();
    let key = device.made(Request::RegisterRegion(region(domain)));
    let address = peer();
    let handle = device.made(Request::CreateAddressHandle { domain, address });
    for (used, user) in [
        (
            Request::DestroyCompletionQueue(queue),
            Request::DestroyQueuePair(pair),
        ),
        (
            Request::DestroyDomain(domain),
            Request::DeregisterRegion(key),
        ),
        (
            Request::DestroyDomain(domain),
            Request::DestroyAddressHandle(handle),
        ),
    ] {
        assert_eq!(device.ask(used), Err(ErrorNumber::Busy), "{used:?}");
        assert_eq!(device.ask(user), Ok(Answer::Done), "{user:?}");
        // Once, and not again.
        assert_eq!(device.ask(user), Err(ErrorNumber::InvalidArgument));
    }
    for last in [
        Request::DestroyCompletionQueue(queue),
        Request::DestroyDomain(domain),
    ] {
        assert_eq!(device.ask(last), Ok(Answer::Done), "{last:?}");
    }
}

#[test]
fn a_queue_pair_and_its_shared_receive_queue_are_of_one_domain() {
    let mut device = Fixture::new();
    let [one, other] = [(); 2].map(|()| device.made(Request::CreateDomain));
    let queue = device.made(Request::CreateCompletionQueue {
        entries: 1,
        channel: None,
    });
    let shared = |domain| Request::CreateSharedReceiveQueue {
        domain,
        entries: 5,
        sges: 1,
    };
    let [mine, theirs] = [one, other].map(|domain| device.made(shared(domain)));
    let of = |shared| {
        Request::CreateQueuePair(QueuePair {
            shared_receive_queue: Some(shared),
            ..pair(one, queue)
        })
    };
    assert_eq!(device.ask(of(theirs)), Err(ErrorNumber::InvalidArgument));
    let made = device.made(of(mine));
    let sizes = device.objects.queue_pair(made).unwrap().made.sizes;
    assert_eq!((sizes.sends, sizes.receives), (128, 0));
    let destroy = Request::DestroySharedReceiveQueue(mine);
    assert_eq!(device.ask(destroy), Err(ErrorNumber::Busy));
    // The two and the queue pair are all that the device may have.
    let more = device.ask(Request::CreateQueuePair(pair(one, queue)));
    assert_eq!(more, Err(ErrorNumber::OutOfMemory));
    device.ask(Request::DestroyQueuePair(made)).unwrap();
    assert_eq!(device.ask(destroy), Ok(Answer::Done));
}

#[test]
fn a_device_has_no_more_of_anything_than_it_may() {
    let mut device = Fixture::new();
    let (domain, queue, _) = device.queue_pair();
    let address = peer();
    for (request, more) in [
        (Request::CreateDomain, 1),
        (Request::RegisterRegion(region(domain)), 3),
        (
            Request::CreateCompletionQueue {
                entries: 1,
                channel: None,
            },
            1,
        ),
        (Request::CreateQueuePair(pair(domain, queue)), 2),
        (Request::CreateAddressHandle { domain, address }, 2),
    ] {
        for _ in 0..more {
            device.made(request);
        }
        let refused = device.ask(request);
        assert_eq!(refused, Err(ErrorNumber::OutOfMemory), "{request:?}");
    }
}

#[test]
fn arguments_that_make_no_sense_are_refused() {
    let mut device = Fixture::new();
    let (domain, queue, pair_number) = device.queue_pair();
    let good = region(domain);
    let sized = |sizes| {
        Request::CreateQueuePair(QueuePair {
            sizes,
            ..pair(domain, queue)
        })
    };
    let sizes = pair(domain, queue).sizes;
    let address = |address| Request::CreateAddressHandle { domain, address };
    for request in [
        Request::Open {
            version: 1,
            token: [0; 32],
        },
        Request::DestroyDomain(0),
        Request::DestroyDomain(99),
        Request::RegisterRegion(Region { domain: 99, ..good }),
        Request::RegisterRegion(Region {
            address: u64::MAX,
            ..good
        }),
        Request::RegisterRegion(Region {
            io_address: u64::MAX,
            ..good
        }),
        Request::RegisterRegion(Region {
            access: access::REMOTE_WRITE,
            ..good
        }),
        Request::DeregisterRegion(7),
        Request::CreateCompletionQueue {
            entries: 0,
            channel: None,
        },
        Request::CreateCompletionQueue {
            entries: 4097,
            channel: None,
        },
        Request::ResizeCompletionQueue { queue, entries: 0 },
        Request::ResizeCompletionQueue {
            queue,
            entries: 4097,
        },
        Request::ResizeCompletionQueue {
            queue: 99,
            entries: 1,
        },
        Request::CreateSharedReceiveQueue {
            domain,
            entries: 1,
            sges: 33,
        },
        Request::CreateQueuePair(pair(99, queue)),
        Request::CreateQueuePair(pair(domain, 99)),
        sized(QueueSizes {
            sends: 1025,
            ..sizes
        }),
        sized(QueueSizes {
            receive_sges: u32::MAX,
            ..sizes
        }),
        sized(QueueSizes {
            inline_bytes: 1025,
            ..sizes
        }),
        Request::QueryQueuePair(1),
        address(Address { port: 11, ..peer() }),
        address(Address {
            is_global: false,
            ..peer()
        }),
        address(Address {
            gid_index: 1,
            ..peer()
        }),
        address(Address {
            gid: [0; 16],
            ..peer()
        }),
    ] {
        let refused = device.ask(request);
        assert_eq!(refused, Err(ErrorNumber::InvalidArgument), "{request:?}");
    }
    // What this device does not do is another error.
    let windows = Region {
        access: 1 << 4,
        ..good
    };
    let refused = device.ask(Request::RegisterRegion(windows));
    assert_eq!(refused, Err(ErrorNumber::NotSupported));
    assert!(device.objects.queue_pair(pair_number).is_some());
}

#[test]
fn a_queue_pair_goes_its_way_with_attributes_in_their_ranges() {
    let mut device = Fixture::new();
    let (.., pair) = device.queue_pair();
    let refused = Err(ErrorNumber::InvalidArgument);
    assert_eq!(device.modify(pair, PEER, to_peer()), refused);
    for wrong in [
        QueuePairAttributes { port: 2, ..init() },
        QueuePairAttributes {
            partition_index: 1,
            ..init()
        },
    ] {
        assert_eq!(device.modify(pair, INIT, wrong), refused, "{wrong:?}");
    }
    assert_eq!(device.modify(pair, INIT, init()), Ok(Answer::Done));
    for wrong in [
        QueuePairAttributes {
            path_mtu: 0,
            ..to_peer()
        },
        QueuePairAttributes {
            path_mtu: 6,
            ..to_peer()
        },
        QueuePairAttributes {
            peer_queue_pair: 1 << 24,
            ..to_peer()
        },
        QueuePairAttributes {
            requests_from_peer: 17,
            ..to_peer()
        },
        QueuePairAttributes {
            address: Address::default(),
            ..to_peer()
        },
    ] {
        assert_eq!(device.modify(pair, PEER, wrong), refused, "{wrong:?}");
        // Nothing of it was taken over.
        let now = device.attributes(pair);
        assert_eq!((now.state, now.receive_psn), (State::Init as u32, 0));
    }
    assert_eq!(device.modify(pair, PEER, to_peer()), Ok(Answer::Done));
    let now = device.attributes(pair);
    assert_eq!((now.port, now.peer_queue_pair), (1, 17));
    assert_eq!(now.receive_psn, 0xff_ffff);
    device.objects.fail_queue_pair(pair, true);
    assert_eq!(device.attributes(pair).state, State::Error as u32);
    let reset = QueuePairAttributes::default();
    let given = Attributes::STATE;
    assert_eq!(device.modify(pair, given, reset), Ok(Answer::Done));
    assert_eq!(device.attributes(pair), reset);
}

#[test]
fn a_key_is_not_given_again_within_a_minute_and_no_handle_soon() {
    let mut device = Fixture::new();
    let domain = device.made(Request::CreateDomain);
    let register = Request::RegisterRegion(region(domain));
    // The last is drawn first.
    device.draws = vec![5, 0];
    let key = device.made(register);
    assert_eq!(key, 5);
    device.draws = vec![6, 5];
    assert_eq!(device.made(register), 6);
    device.ask(Request::DeregisterRegion(5)).unwrap();
    device.now = KEY_REST - Duration::from_nanos(1);
    device.draws = vec![7, 5];
    assert_eq!(device.made(register), 7);
    device.now = KEY_REST;
    device.draws = vec![5];
    assert_eq!(device.made(register), 5);
    assert_eq!(device.objects.region(5).unwrap().bytes, 1 << 40);

    let queue = Request::CreateCompletionQueue {
        entries: 1,
        channel: None,
    };
    let first = device.made(queue);
    device.ask(Request::DestroyCompletionQueue(first)).unwrap();
    assert_ne!(device.made(queue), first);
}

#[test]
fn a_region_may_count_its_addresses_from_zero() {
    let mut device = Fixture::new();
    let domain = device.made(Request::CreateDomain);
    let zero_based = Region {
        access: access::ZERO_BASED | access::REMOTE_READ,
        ..region(domain)
    };
    let key = device.made(Request::RegisterRegion(zero_based));
    assert_eq!(device.objects.region(key).unwrap().io_address, 0);
}

#[test]
fn a_region_that_is_registered_again_keeps_its_key_and_what_is_not_given() {
    let mut device = Fixture::new();
    let domain = device.made(Request::CreateDomain);
    let key = device.made(Request::RegisterRegion(region(domain)));
    let other = Region {
        domain: 99,
        address: 4096,
        bytes: 8,
        io_address: 16,
        access: access::REMOTE_READ,
        file_offset: None,
    };
    let change = |given, region| Request::ReregisterRegion { key, given, region };
    assert_eq!(device.ask(change(4, other)), Ok(Answer::Done));
    let readable = Region {
        access: access::REMOTE_READ,
        ..region(domain)
    };
    assert_eq!(device.objects.region(key), Some(&readable));
    assert_eq!(device.ask(change(1, other)), Ok(Answer::Done));
    let moved = Region { domain, ..other };
    assert_eq!(device.objects.region(key), Some(&moved));
    let nowhere = Region {
        address: i64::MAX as u64,
        ..other
    };
    let writable = Region {
        access: access::REMOTE_WRITE,
        ..other
    };
    for (refused, error) in [
        (change(1, nowhere), ErrorNumber::InvalidArgument),
        (change(4, writable), ErrorNumber::InvalidArgument),
        (change(2, other), ErrorNumber::NotSupported),
    ] {
        assert_eq!(device.ask(refused), Err(error), "{refused:?}");
    }
    assert_eq!(device.objects.region(key), Some(&moved));
    assert_eq!(device.ask(Request::DeregisterRegion(key)), Ok(Answer::Done));
    let gone = device.ask(change(1, other));
    assert_eq!(gone, Err(ErrorNumber::InvalidArgument));
}

/// A request with handles that are likely to be there.
fn request(kind: u8, one: u32, other: u32) -> Request {
    let region = Region {
        bytes: other.into(),
        ..region(one)
    };
    match kind {
        0 => Request::CreateDomain,
        1 => Request::DestroyDomain(one),
        2 => Request::RegisterRegion(region),
        3 => Request::DeregisterRegion(1000 + one),
        4 => Request::CreateCompletionQueue {
            entries: other,
            channel: (other == 1).then_some(one),
        },
        14 => Request::CreateChannel,
        15 => Request::DestroyChannel(one),
        16 => Request::ResizeCompletionQueue {
            queue: one,
            entries: other,
        },
        5 => Request::DestroyCompletionQueue(one),
        6 => Request::CreateSharedReceiveQueue {
            domain: one,
            entries: other,
            sges: 1,
        },
        7 => Request::DestroySharedReceiveQueue(one),
        8 => Request::CreateQueuePair(QueuePair {
            receive_completions: one,
            shared_receive_queue: (other > 2).then_some(one),
            ..pair(one, other)
        }),
        9 => Request::DestroyQueuePair(one),
        10 => Request::CreateAddressHandle {
            domain: one,
            address: peer(),
        },
        11 => Request::DestroyAddressHandle(one),
        12 => Request::ModifyQueuePair {
            queue_pair: one,
            given: if other == 0 { INIT.0 } else { PEER.0 },
            attributes: if other == 0 { init() } else { to_peer() },
        },
        _ => Request::QueryQueuePair(one),
    }
}

proptest! {
    #[test]
    fn each_object_counts_those_that_use_it_whatever_is_asked(
        asked in prop::collection::vec((0u8..18, 0u32..5, 0u32..5), 0..100),
    ) {
        let mut device = Fixture::new();
        for (kind, one, other) in asked {
            let _ = device.ask(request(kind, one, other));
            let Objects {
                domains,
                channels,
                completion_queues,
                shared_receive_queues,
                queue_pairs,
                address_handles,
                regions,
                ..
            } = &device.objects;
            let pairs = || queue_pairs.objects.values().map(|pair| pair.made);
            for (domain, users) in &domains.objects {
                let of = |other: u32| usize::from(other == *domain);
                let count: usize = pairs().map(|pair| of(pair.domain)).sum::<usize>()
                    + regions.values().map(|region| of(region.domain)).sum::<usize>()
                    + address_handles.objects.values().map(|other| of(other.domain)).sum::<usize>()
                    + shared_receive_queues.objects.values().map(|queue| of(queue.domain)).sum::<usize>();
                prop_assert_eq!(*users as usize, count);
            }
            for (channel, users) in &channels.objects {
                let queues = completion_queues.objects.values();
                let count = queues.filter(|queue| queue.channel == Some(*channel)).count();
                prop_assert_eq!(*users as usize, count);
            }
            for (queue, found) in &completion_queues.objects {
                if let Some(channel) = found.channel {
                    prop_assert!(channels.objects.contains_key(&channel));
                }
                let sides = pairs().flat_map(|pair| [pair.send_completions, pair.receive_completions]);
                prop_assert_eq!(found.users as usize, sides.filter(|side| side == queue).count());
            }
            for (queue, found) in &shared_receive_queues.objects {
                let count = pairs().filter(|pair| pair.shared_receive_queue == Some(*queue)).count();
                prop_assert_eq!(found.users as usize, count);
            }
            let rings = queue_pairs.objects.values().flat_map(|pair| {
                [Some(pair.send_ring), pair.receive_ring].into_iter().flatten()
            });
            let rings = rings.chain(completion_queues.objects.values().map(|queue| queue.ring));
            let rings = rings.chain(shared_receive_queues.objects.values().map(|queue| queue.ring));
            let taken: u64 = rings.map(|ring| ring.bytes()).sum();
            prop_assert_eq!(taken + device.objects.space.free_bytes(), LIMITS.ring_bytes);
            for pair in pairs() {
                prop_assert!(domains.objects.contains_key(&pair.domain));
                prop_assert!(completion_queues.objects.contains_key(&pair.send_completions));
                prop_assert!(completion_queues.objects.contains_key(&pair.receive_completions));
            }
        }
    }
}

#[test]
fn a_request_for_what_is_another_domain_s_or_nobody_s_is_told_from_one_that_is_only_wrong() {
    let mut device = Fixture::new();
    let (shared, own_pair) = device.sharing();
    let domain = device.made(Request::CreateDomain);
    let queue = device.objects.queue_pair(own_pair).expect("it is there");
    let queue = queue.made.send_completions;
    let of_other_domain = QueuePair {
        shared_receive_queue: Some(shared),
        ..pair(domain, queue)
    };
    let region = Region {
        domain: 77,
        address: 0,
        bytes: 8,
        io_address: 0,
        access: 0,
        file_offset: None,
    };
    for foreign in [
        Request::CreateQueuePair(of_other_domain),
        Request::CreateQueuePair(pair(domain, 77)),
        Request::DestroyDomain(77),
        Request::RegisterRegion(region),
        Request::DeregisterRegion(77),
        Request::DestroyChannel(77),
        Request::DestroyCompletionQueue(77),
        Request::QuerySharedReceiveQueue(77),
        Request::QueryQueuePair(77),
        Request::DestroyAddressHandle(77),
    ] {
        let refused = device.ask(foreign);
        assert_eq!(refused, Err(ErrorNumber::InvalidArgument), "{foreign:?}");
        assert!(device.objects.names_foreign(&foreign), "{foreign:?}");
    }
    let mut too_large = pair(domain, queue);
    too_large.sizes.send_sges = LIMITS.sges + 1;
    for wrong in [
        Request::CreateQueuePair(too_large),
        Request::CreateCompletionQueue {
            entries: 0,
            channel: None,
        },
        Request::DestroyCompletionQueue(queue),
        Request::RegisterRegion(Region {
            address: u64::MAX,
            domain,
            ..region
        }),
    ] {
        assert!(device.ask(wrong).is_err(), "{wrong:?}");
        assert!(!device.objects.names_foreign(&wrong), "{wrong:?}");
    }
}

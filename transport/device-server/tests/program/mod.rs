//! Two programs, each with a device of its own server, as a verbs library would use it. They share this process.

use std::cell::RefCell;
use std::fs::OpenOptions;
use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use weft_device::completion::{Completion, Opcode, Outcome, Status};
use weft_device::control::{
    Address, Answer, Limits, QueuePair, QueuePairAttributes, QueueSizes, Region as Asked, Request,
};
use weft_device::doorbell::{DOORBELL_WORDS, Doorbells};
use weft_device::entry::Entry;
use weft_device::ring::{Consumer, Producer, Ring};
use weft_device::space::RingPlace;
use weft_device::state::{Attributes, QueuePairType, State};
use weft_device::work_request::{
    Operation, Payload, ReceiveRequest, RemoteAddress, Sge, WorkRequest,
};
use weft_device_server::{ContextId, Device, Devices};
use weft_engine::{
    AddressSpace, EngineConfig, EngineError, Nanos, PortRange, Region, Secret, Words,
};

/// Nothing here takes a tenth of this on an idle machine.
const PATIENCE: Duration = Duration::from_secs(30);

const LIMITS: Limits = Limits {
    domains: 4,
    regions: 16,
    completion_queues: 4,
    queue_pairs: 8,
    address_handles: 4,
    completions: 4096,
    work_requests: 256,
    sges: 8,
    inline_bytes: 256,
    requests: 16,
    path_mtu: 5,
    ring_bytes: 4 << 20,
};

/// `enum ibv_access_flags`.
pub(crate) mod access {
    pub(crate) const REMOTE_WRITE: u32 = 2;
    pub(crate) const REMOTE_READ: u32 = 4;
}

/// Kinds of queue pairs, and whether their receives come from a shared queue.
pub(crate) const RELIABLE: (QueuePairType, bool) = (QueuePairType::ReliableConnected, false);
const UNRELIABLE: (QueuePairType, bool) = (QueuePairType::UnreliableConnected, false);
const SHARING: (QueuePairType, bool) = (QueuePairType::ReliableConnected, true);
pub(crate) const DATAGRAMS: (QueuePairType, bool) = (QueuePairType::UnreliableDatagram, false);

/// All rights of `enum ibv_access_flags` that this device has.
pub(crate) const ALL: u32 = 0b1111;

/// Every server of a test process has its own ports; another process's are passed over.
pub(crate) fn start() -> Devices {
    start_with(Nanos::from_secs(2))
}

/// One whose connections stall for so long before they fail.
pub(crate) fn start_with(stall_timeout: Nanos) -> Devices {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    for _ in 0..500 {
        let step = u32::from(NEXT.fetch_add(1, Ordering::Relaxed)) + std::process::id();
        let ports = PortRange {
            first: 33_000 + (step % 400) as u16 * 32,
            count: 16,
        };
        match start_at(ports, stall_timeout) {
            Ok(devices) => return devices,
            Err(EngineError::Link(error)) if error.reason() == "PortTaken" => {}
            Err(error) => panic!("{error}"),
        }
    }
    panic!("no free ports");
}

/// A server at these ports.
pub(crate) fn start_at(ports: PortRange, stall_timeout: Nanos) -> Result<Devices, EngineError> {
    let mut config = EngineConfig::new(Ipv4Addr::LOCALHOST, ports, Secret([9; 32]));
    config.stall_timeout = stall_timeout;
    Devices::start(config)
}

/// A completion without its ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Done {
    pub(crate) wr_id: u64,
    pub(crate) status: Status,
    pub(crate) bytes: u32,
    pub(crate) immediate: Option<u32>,
    /// A receive that was taken by a write.
    pub(crate) is_written: bool,
    /// Of a datagram: the queue pair that sent it.
    pub(crate) source: Option<u32>,
}

/// One open device with a domain, a completion queue, a queue pair and a region, which is all of `memory`.
pub(crate) struct Program {
    pub(crate) devices: Rc<RefCell<Devices>>,
    pub(crate) gid: [u8; 16],
    pub(crate) context: ContextId,
    pub(crate) shared: Arc<Region>,
    /// The program's end of the event socket.
    pub(crate) events: OwnedFd,
    pub(crate) domain: u32,
    pub(crate) queue: u32,
    pub(crate) number: u32,
    pub(crate) key: u32,
    pub(crate) send_ring: RingPlace,
    /// The time at which its requests come.
    pub(crate) now: Duration,
    memory: Vec<u8>,
    completions: Consumer<Words>,
    sends: Producer<Words>,
    receives: Producer<Words>,
    /// The queue that they are of: the queue pair, or a shared receive queue.
    pub(crate) receive_queue: u32,
    kind: QueuePairType,
    /// What the peer may do (`qp_access_flags`).
    pub(crate) access: u32,
    /// `rnr_retry`.
    pub(crate) retries: u8,
}

pub(crate) fn own_memory() -> AddressSpace {
    let mut how = OpenOptions::new();
    let file = how.read(true).write(true).open("/proc/self/mem");
    AddressSpace::new(file.expect("it opens").into()).expect("it is one")
}

pub(crate) fn device(last: u8) -> Device {
    let mut gid = [0; 16];
    gid[10..].copy_from_slice(&[0xff, 0xff, 10, 0, 0, last]);
    Device::new(gid, LIMITS)
}

impl Program {
    pub(crate) fn new(
        devices: &Rc<RefCell<Devices>>,
        last: u8,
        kind: (QueuePairType, bool),
        completions: u32,
    ) -> Self {
        Self::of(devices, &device(last), kind, completions)
    }

    /// One that has this device open.
    pub(crate) fn of(
        devices: &Rc<RefCell<Devices>>,
        device: &Device,
        (kind, is_shared): (QueuePairType, bool),
        completions: u32,
    ) -> Self {
        let mut server = devices.borrow_mut();
        let gid = device.gid;
        let opened = server.open(device, own_memory()).expect("it opens");
        let memory = vec![0; 1 << 20];
        let mut ask = |request| server.handle(opened.context, &request, None, Duration::ZERO);
        let Ok(Answer::Created(domain)) = ask(Request::CreateDomain) else {
            panic!("a domain");
        };
        let region = Asked {
            domain,
            address: memory.as_ptr() as u64,
            bytes: memory.len() as u64,
            io_address: memory.as_ptr() as u64,
            access: ALL,
            file_offset: None,
        };
        let Ok(Answer::Created(key)) = ask(Request::RegisterRegion(region)) else {
            panic!("a region");
        };
        let entries = completions;
        let asked = ask(Request::CreateCompletionQueue {
            entries,
            channel: None,
        });
        let Ok(Answer::CreatedQueue {
            queue,
            ring: completion_ring,
            ..
        }) = asked
        else {
            panic!("a completion queue: {asked:?}");
        };
        let shared = is_shared.then(|| {
            let asked = ask(Request::CreateSharedReceiveQueue {
                domain,
                entries: 16,
                sges: 4,
            });
            match asked {
                Ok(Answer::CreatedQueue { queue, ring, .. }) => (queue, ring),
                other => panic!("a shared receive queue: {other:?}"),
            }
        });
        let wanted = QueuePair {
            domain,
            kind,
            send_completions: queue,
            receive_completions: queue,
            shared_receive_queue: shared.map(|(queue, _)| queue),
            sizes: SIZES,
        };
        let asked = ask(Request::CreateQueuePair(wanted));
        let Ok(Answer::CreatedQueuePair {
            queue_pair,
            send_ring,
            receive_ring,
            ..
        }) = asked
        else {
            panic!("a queue pair: {asked:?}");
        };
        let (receive_queue, receive_ring) = match (shared, receive_ring) {
            (Some(shared), None) => shared,
            (None, Some(own)) => (queue_pair, own),
            other => panic!("one receive queue: {other:?}"),
        };
        let ring = |place: RingPlace| {
            let words = Words::new(&opened.shared, place.offset, place.words());
            Ring::new(words.expect("it lies in the memory")).expect("it is a ring")
        };
        Self {
            gid,
            domain,
            queue,
            number: queue_pair,
            key,
            memory,
            completions: Consumer::new(ring(completion_ring), 0),
            sends: Producer::new(ring(send_ring), 0),
            receives: Producer::new(ring(receive_ring), 0),
            receive_queue,
            kind,
            access: ALL,
            retries: 7,
            send_ring,
            now: Duration::ZERO,
            context: opened.context,
            shared: opened.shared,
            events: opened.events,
            devices: Rc::clone(devices),
        }
    }

    /// Asks the server at once; a device has no socket yet.
    pub(crate) fn ask(&mut self, request: Request) -> weft_device::control::Outcome {
        let mut server = self.devices.borrow_mut();
        server.handle(self.context, &request, None, self.now)
    }

    pub(crate) fn modify(&mut self, given: &[Attributes], attributes: QueuePairAttributes) {
        let given = given
            .iter()
            .fold(Attributes::STATE, |all, one| all.union(*one));
        let asked = Request::ModifyQueuePair {
            queue_pair: self.number,
            given: given.0,
            attributes,
        };
        assert_eq!(self.ask(asked), Ok(Answer::Done));
    }

    pub(crate) fn init(&mut self) {
        use Attributes as A;
        let attributes = QueuePairAttributes {
            state: State::Init as u32,
            access: self.access,
            port: 1,
            ..QueuePairAttributes::default()
        };
        self.modify(&[A::ACCESS_FLAGS, A::PKEY_INDEX, A::PORT], attributes);
    }

    pub(crate) fn reset(&mut self) {
        self.modify(&[], QueuePairAttributes::default());
    }

    /// Ready to receive from this peer, and to send to it.
    pub(crate) fn ready(&mut self, (gid, number): ([u8; 16], u32)) {
        use Attributes as A;
        let peer = QueuePairAttributes {
            state: State::ReadyToReceive as u32,
            path_mtu: 5,
            peer_queue_pair: number,
            address: Address {
                gid,
                is_global: true,
                port: 1,
                ..Address::default()
            },
            requests_from_peer: 16,
            ..QueuePairAttributes::default()
        };
        // An unreliable one is told the first four, and the first one below.
        let is_reliable = self.kind == QueuePairType::ReliableConnected;
        let given = [
            A::AV,
            A::PATH_MTU,
            A::DEST_QPN,
            A::RQ_PSN,
            A::MAX_DEST_RD_ATOMIC,
            A::MIN_RNR_TIMER,
        ];
        self.modify(&given[..if is_reliable { 6 } else { 4 }], peer);
        let sending = QueuePairAttributes {
            state: State::ReadyToSend as u32,
            requests_from_here: 4,
            timeout: 14,
            retries: 7,
            receiver_not_ready_retries: self.retries,
            ..QueuePairAttributes::default()
        };
        let given = [
            A::SQ_PSN,
            A::TIMEOUT,
            A::RETRY_CNT,
            A::RNR_RETRY,
            A::MAX_QP_RD_ATOMIC,
        ];
        self.modify(&given[..if is_reliable { 5 } else { 1 }], sending);
    }

    pub(crate) fn name(&self) -> ([u8; 16], u32) {
        (self.gid, self.number)
    }

    /// Part of the program's memory.
    pub(crate) fn sge(&self, at: usize, bytes: usize) -> Sge {
        Sge {
            address: self.address(at),
            bytes: bytes as u32,
            local_key: self.key,
        }
    }

    pub(crate) fn remote(&self, at: usize) -> RemoteAddress {
        RemoteAddress {
            address: self.address(at),
            key: self.key,
        }
    }

    pub(crate) fn address(&self, at: usize) -> u64 {
        self.memory.as_ptr() as u64 + at as u64
    }

    pub(crate) fn fill(&mut self, at: usize, bytes: &[u8]) {
        self.memory[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// What lies there now: the server writes to it behind the compiler's back, so it is read the same way.
    pub(crate) fn look(&self, at: usize, bytes: usize) -> Vec<u8> {
        let range = own_memory().range(self.address(at), bytes as u64, 0);
        let mut out = vec![0; bytes];
        let region = Region::of_process(range.expect("small numbers"));
        region.read(0, &mut out).expect("it is mapped");
        out
    }

    fn ring_doorbell(&self, queue: u32) {
        let page = Words::new(&self.shared, 0, DOORBELL_WORDS).expect("the page is there");
        Doorbells::new(page).expect("a page").ring(queue);
    }

    pub(crate) fn post(&mut self, wr_id: u64, operation: Operation, payload: Payload<'_>) {
        self.post_request(&WorkRequest {
            wr_id,
            operation,
            immediate: None,
            signaled: true,
            fence: false,
            solicited: false,
            payload,
        });
    }

    pub(crate) fn post_request(&mut self, request: &WorkRequest<'_>) {
        let mut entry = Entry::new();
        entry.set_work_request(request).expect("it is small");
        self.sends.push(entry.slots()).expect("the ring has room");
        self.ring_doorbell(self.number);
    }

    pub(crate) fn receive(&mut self, wr_id: u64, sges: &[Sge]) {
        let mut entry = Entry::new();
        entry
            .set_receive(&ReceiveRequest { wr_id, sges })
            .expect("it is small");
        self.receives
            .push(entry.slots())
            .expect("the ring has room");
        self.ring_doorbell(self.receive_queue);
    }

    pub(crate) fn poll(&mut self) -> Option<Done> {
        let taken = Completion::take(&mut self.completions).expect("the ring is sound");
        taken.map(|completion| done(&completion, self.number))
    }
}

/// Turns after which nothing more happens at the same time.
const TURNS: u32 = 2_000;

impl Program {
    /// Completions that come while its server's clock stands still.
    #[allow(dead_code)] // not every test of this folder stops the clock
    pub(crate) fn completions_at(&mut self, now: Duration) -> u32 {
        let mut count = 0;
        for _ in 0..TURNS {
            let polled = self.devices.borrow_mut().poll(now, Duration::ZERO);
            polled.expect("the engine runs");
            count += std::iter::from_fn(|| self.poll()).count() as u32;
        }
        count
    }
}

fn done(completion: &Completion, number: u32) -> Done {
    assert_eq!(completion.queue_pair, number);
    let (status, immediate) = match completion.outcome {
        Outcome::Success { immediate } => (Status::Success, immediate),
        Outcome::Failure { status, .. } => (status, None),
    };
    Done {
        wr_id: completion.wr_id,
        status,
        bytes: completion.bytes,
        immediate,
        is_written: completion.opcode == Opcode::ReceiveWithImmediate,
        source: completion.source_queue_pair,
    }
}

/// Two programs on two nodes.
pub(crate) struct Pair {
    pub(crate) a: Program,
    pub(crate) b: Program,
    /// Added to the time that servers see.
    pub(crate) later: Duration,
    begun: Instant,
}

pub(crate) const SIZES: QueueSizes = QueueSizes {
    sends: 64,
    receives: 64,
    send_sges: 4,
    receive_sges: 4,
    inline_bytes: 256,
};

impl Pair {
    /// Not yet connected.
    pub(crate) fn apart(completions: u32) -> Self {
        let [a, b] = [(); 2].map(|()| Rc::new(RefCell::new(start())));
        Self::on(&a, &b, RELIABLE, completions)
    }

    /// With queue pairs for datagrams, on one node or on two.
    #[allow(dead_code)] // not every test of this folder has datagrams
    pub(crate) fn of_datagrams(is_one_node: bool) -> Self {
        let a = Rc::new(RefCell::new(start()));
        let b = match is_one_node {
            true => Rc::clone(&a),
            false => Rc::new(RefCell::new(start())),
        };
        Self::on(&a, &b, DATAGRAMS, 4096)
    }

    /// The server of `b` has ended, and another one has the device.
    #[allow(dead_code)] // not every test of this folder has datagrams
    pub(crate) fn restart_b(&mut self) {
        let server = Rc::new(RefCell::new(start()));
        self.b = Program::new(&server, 2, DATAGRAMS, 4096);
    }

    fn on(
        a: &Rc<RefCell<Devices>>,
        b: &Rc<RefCell<Devices>>,
        kind: (QueuePairType, bool),
        completions: u32,
    ) -> Self {
        Self {
            a: Program::new(a, 1, kind, completions),
            b: Program::new(b, 2, kind, completions),
            later: Duration::ZERO,
            begun: Instant::now(),
        }
    }

    pub(crate) fn connect(mut self) -> Self {
        let (a, b) = (self.a.name(), self.b.name());
        self.a.init();
        self.b.init();
        self.a.ready(b);
        self.b.ready(a);
        self
    }

    /// Connected.
    pub(crate) fn new() -> Self {
        Self::apart(256).connect()
    }

    /// Not yet connected, on these servers.
    #[allow(dead_code)] // not every test of this folder has servers of its own
    pub(crate) fn of(a: &Rc<RefCell<Devices>>, b: &Rc<RefCell<Devices>>) -> Self {
        Self::on(a, b, RELIABLE, 256)
    }

    /// Connected, and both take their receives from a shared queue.
    pub(crate) fn sharing() -> Self {
        let [a, b] = [(); 2].map(|()| Rc::new(RefCell::new(start())));
        Self::on(&a, &b, SHARING, 256).connect()
    }

    /// Connected, by unreliable queue pairs.
    pub(crate) fn of_unreliable() -> Self {
        let [a, b] = [(); 2].map(|()| Rc::new(RefCell::new(start())));
        Self::on(&a, &b, UNRELIABLE, 256).connect()
    }

    /// Connected, and on one node.
    pub(crate) fn on_one_node() -> Self {
        let server = Rc::new(RefCell::new(start()));
        Self::on(&server, &server, RELIABLE, 256).connect()
    }

    /// Both servers do what there is to do, and their offers are exchanged.
    pub(crate) fn turn(&mut self) {
        self.turn_a();
        self.turn_of(&self.b, &self.a);
    }

    /// Only the server of `a` does.
    pub(crate) fn turn_a(&mut self) {
        self.turn_of(&self.a, &self.b);
    }

    fn turn_of(&self, program: &Program, other: &Program) {
        let now = self.begun.elapsed() + self.later;
        let mut server = program.devices.borrow_mut();
        let polled = server.poll(now, Duration::ZERO);
        polled.expect("the engine runs");
        let offers = server.take_offers();
        drop(server);
        let mut other = other.devices.borrow_mut();
        let offers = offers.into_iter();
        offers.for_each(|offer| other.receive_offer("node".into(), &offer, now));
    }

    /// The next completion of one of them.
    pub(crate) fn next(&mut self, of: fn(&mut Self) -> &mut Program) -> Done {
        let begun = Instant::now();
        loop {
            if let Some(done) = of(self).poll() {
                return done;
            }
            assert!(begun.elapsed() < PATIENCE, "no completion");
            self.turn();
        }
    }

    pub(crate) fn next_a(&mut self) -> Done {
        self.next(|pair| &mut pair.a)
    }

    pub(crate) fn next_b(&mut self) -> Done {
        self.next(|pair| &mut pair.b)
    }
}

/// A work request that has succeeded.
pub(crate) fn success(wr_id: u64, bytes: u32) -> Done {
    Done {
        wr_id,
        status: Status::Success,
        bytes,
        immediate: None,
        is_written: false,
        source: None,
    }
}

//! Two TransferEngines in two nodes of a fabric, both in this process. Every call of the benchmarks to the TransferEngine
//! is in this file.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use clap::ValueEnum;
use weft_fabric::Fabric;
use weft_transfer_engine::{
    Access, LinkChoice, LinkKind, MemoryRegion, MrDescriptor, Operation, Options, PagedWrites,
    Pages, Progress, Region, SingleWrite, TransferEngine, TransferEngineConfig,
};

use super::BenchError;
use super::turns::{Content, Many, Paged, Took, Writer, page_offsets};
use super::writes::first_difference;
use crate::report::median;

/// No operation that is measured takes this long.
const PATIENCE: Duration = Duration::from_secs(60);
/// What memory has before it is written to.
const BLANK: u8 = 0xA5;
/// Steps in which memory is filled and compared.
const STEP: usize = 4 << 20;
/// Messages of [`Engines::one_way`] before a place in memory is used again.
const SLOTS: u64 = 1024;
/// Bytes of such a message.
const MESSAGE_BYTES: u64 = 8;
/// What it carries.
const IMMEDIATE: u32 = 1;
/// One round trip in so many more is made before counting begins.
const WARM_UP: u64 = 10;

/// What the TransferEngine runs over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Link {
    /// The engine chooses.
    Auto,
    /// UDP.
    Udp,
    /// TCP.
    Tcp,
    /// Shared memory.
    Shm,
}

impl Link {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Udp => "udp",
            Self::Tcp => "tcp",
            Self::Shm => "shm",
        }
    }

    /// As the engine has it.
    fn choice(self) -> LinkChoice {
        match self {
            Self::Auto => LinkChoice::Auto,
            Self::Udp => LinkChoice::Only(LinkKind::Udp),
            Self::Tcp => LinkChoice::Only(LinkKind::Tcp),
            Self::Shm => LinkChoice::Only(LinkKind::Shm),
        }
    }
}

/// How a program waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Waits {
    /// It sleeps until the engine wakes it.
    Sleeping,
    /// It looks again and again, and lets other threads run after each look.
    Polling,
}

/// Node 0 writes to node 1.
pub(crate) struct Engines<'a> {
    /// None in the tests, on loopback.
    fabric: Option<&'a Fabric>,
    sender: End,
    receiver: End,
    content: Content,
}

/// A thread that polls an engine until this is dropped.
struct Poller {
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Poller {
    fn start(engine: &Arc<TransferEngine>) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let (engine, over) = (Arc::clone(engine), Arc::clone(&is_over));
        let thread = thread::spawn(move || {
            while !over.load(Ordering::Relaxed) {
                match engine.poll() {
                    Ok(true) => {}
                    Ok(false) => thread::yield_now(),
                    // The sender's operations end by their deadlines.
                    Err(_) => return,
                }
            }
        });
        Self {
            is_over,
            thread: Some(thread),
        }
    }
}

impl Drop for Poller {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // What it panicked with is on standard error.
            let _ = thread.join();
        }
    }
}

struct End {
    engine: Arc<TransferEngine>,
    memory: MemoryRegion,
    descriptor: MrDescriptor,
    /// For [`Engines::one_way`]: messages come to the first slots, and go from the second ones.
    messages: (MemoryRegion, MrDescriptor),
}

impl<'a> Engines<'a> {
    /// Starts both, each with so much private memory. Where they make progress inline, a thread polls the receiver while the
    /// sender writes, and waiting polls the sender.
    pub(crate) fn start(
        fabric: &'a Fabric,
        link: Link,
        progress: Progress,
        bytes: usize,
    ) -> Result<Self, BenchError> {
        let end = |node: usize| {
            let address = fabric.node(node).data_address.into();
            let config = TransferEngineConfig {
                mtu: u16::try_from(fabric.spec().mtu).unwrap_or(u16::MAX),
                link: link.choice(),
                progress,
                ..TransferEngineConfig::default()
            };
            fabric.in_node(node, || End::start(address, config, bytes))?
        };
        Self::new(Some(fabric), end(0)?, end(1)?)
    }

    fn new(fabric: Option<&'a Fabric>, sender: End, receiver: End) -> Result<Self, BenchError> {
        let content = Content::new();
        let bytes = sender.memory.bytes() as usize;
        for at in (0..bytes).step_by(STEP) {
            let step = content.at(at, STEP.min(bytes - at));
            sender.memory.write(at as u64, step)?;
        }
        Ok(Self {
            fabric,
            sender,
            receiver,
            content,
        })
    }

    /// Has the sender write, and the receiver polled meanwhile where no thread of the engine moves bytes.
    fn run<T: Send>(
        &self,
        write: impl FnOnce() -> Result<T, BenchError> + Send,
    ) -> Result<T, BenchError> {
        let is_inline = self.receiver.engine.progress() == Progress::Inline;
        // Each in the node in which its engine opens sockets.
        let start = || Poller::start(&self.receiver.engine);
        let _poller = is_inline
            .then(|| in_node(self.fabric, 1, start))
            .transpose()?;
        in_node(self.fabric, 0, write)?
    }

    /// Which link they have, and why; `None` before the first write.
    pub(super) fn link(&self) -> Option<String> {
        let link = self.sender.engine.link(&self.receiver.descriptor.engine);
        link.map(|link| link.to_string())
    }

    fn clear(&self) -> Result<(), BenchError> {
        let blank = vec![BLANK; STEP];
        let memory = &self.receiver.memory;
        for at in (0..memory.bytes()).step_by(STEP) {
            let step = STEP.min((memory.bytes() - at) as usize);
            memory.write(at, &blank[..step])?;
        }
        Ok(())
    }

    /// Compares what has come to an offset with what lies at another one of the sender.
    fn check(&self, write: u64, at: usize, source: usize, bytes: usize) -> Result<(), BenchError> {
        let mut received = vec![0; STEP.min(bytes)];
        for done in (0..bytes).step_by(STEP) {
            let received = &mut received[..STEP.min(bytes - done)];
            self.receiver.memory.read((at + done) as u64, received)?;
            let sent = self.content.at(source + done, received.len());
            if let Some(differs) = first_difference(sent, received) {
                let at = done + differs;
                return Err(BenchError::Differs { write, at });
            }
        }
        Ok(())
    }

    /// Microseconds of each way of messages of 8 bytes, which the two write to each other in turn. Each carries its number,
    /// which its receiver checks.
    pub(super) fn one_way(&self, count: u64, waits: Waits) -> Result<Vec<f64>, BenchError> {
        let total = count + count / WARM_UP;
        let over = AtomicBool::new(false);
        for end in [&self.sender, &self.receiver] {
            end.engine.free_imm(IMMEDIATE);
        }
        let (asking, answering) = (&self.sender, &self.receiver);
        thread::scope(|scope| {
            let answers = scope.spawn(|| {
                let mut messages = Messages::new(answering, asking, waits, &over);
                let answered = (0..total).try_for_each(|number| {
                    messages.expect(number)?;
                    messages.send(number)
                });
                // The other end need not wait for more.
                over.fetch_or(answered.is_err(), Ordering::AcqRel);
                answered.and_then(|()| messages.end())
            });
            let mut messages = Messages::new(asking, answering, waits, &over);
            let asked: Result<Vec<f64>, BenchError> = (0..total)
                .map(|number| {
                    let begun = Instant::now();
                    messages.send(number)?;
                    messages.expect(number)?;
                    Ok(begun.elapsed().as_secs_f64() * 1e6 / 2.0)
                })
                .collect();
            over.fetch_or(asked.is_err(), Ordering::AcqRel);
            let answered = answers.join();
            let mut ways = asked?;
            answered.map_err(|_| BenchError::Panicked("the answering end"))??;
            messages.end()?;
            Ok(ways.split_off((count / WARM_UP) as usize))
        })
    }
}

impl End {
    /// Starts an engine in the network namespace of the calling thread.
    fn start(
        address: IpAddr,
        config: TransferEngineConfig,
        bytes: usize,
    ) -> Result<Self, BenchError> {
        let engine = Arc::new(TransferEngine::start(TransferEngineConfig {
            nics: vec![address],
            ..config
        })?);
        let share = |bytes| engine.reg_mr(Region::share(vec![BLANK; bytes]), Access::WRITE);
        let (memory, descriptor) = share(bytes)?;
        let messages = share((2 * SLOTS * MESSAGE_BYTES) as usize)?;
        Ok(Self {
            engine,
            memory,
            descriptor,
            messages,
        })
    }
}

impl Writer for Engines<'_> {
    fn write(&mut self, work: Many) -> Result<Took, BenchError> {
        self.clear()?;
        let places = (self.sender.memory.bytes() / work.bytes as u64).max(1);
        let at = |write: u64| write % places * work.bytes as u64;
        let submit = |number| {
            let write = SingleWrite {
                source: (self.sender.memory.clone(), at(number)),
                destination: (self.receiver.descriptor.clone(), at(number)),
                bytes: work.bytes as u64,
                immediate: None,
            };
            let options = Options::within(PATIENCE);
            Ok(self.sender.engine.submit_single_write(&write, options)?)
        };
        let took = self.run(|| run(work.count, work.outstanding, submit))?;
        for write in 0..work.count.min(places) {
            let at = at(write) as usize;
            self.check(write, at, at, work.bytes)?;
        }
        Ok(took)
    }

    fn write_pages(&mut self, work: Paged) -> Result<Took, BenchError> {
        self.clear()?;
        let lists: Vec<_> = (0..work.operations)
            .map(|operation| page_offsets(work, operation))
            .collect();
        let pages = |side: fn(&(u32, u32)) -> u32, list: &[(u32, u32)]| Pages {
            indices: list.iter().map(side).collect(),
            stride: work.page as u64,
            offset: 0,
        };
        let submit = |operation: u64| {
            let list = &lists[operation as usize];
            let write = PagedWrites {
                source: (self.sender.memory.clone(), pages(|pair| pair.0, list)),
                destination: (self.receiver.descriptor.clone(), pages(|pair| pair.1, list)),
                page_bytes: work.page as u32,
                immediate: None,
            };
            let options = Options::within(PATIENCE);
            Ok(self.sender.engine.submit_paged_writes(&write, options)?)
        };
        let took = self.run(|| run(work.operations, work.outstanding, submit))?;
        for (operation, list) in (0..).zip(&lists) {
            for &(source, at) in list {
                let (source, at) = (source as usize * work.page, at as usize * work.page);
                self.check(operation, at, source, work.page)?;
            }
        }
        Ok(took)
    }
}

/// Does something in the network namespace of a node.
fn in_node<T: Send>(
    fabric: Option<&Fabric>,
    node: usize,
    act: impl FnOnce() -> T + Send,
) -> Result<T, BenchError> {
    match fabric {
        Some(fabric) => Ok(fabric.in_node(node, act)?),
        None => Ok(act()),
    }
}

/// Has so many operations under way, and waits for the oldest.
fn run(
    count: u64,
    outstanding: usize,
    submit: impl Fn(u64) -> Result<Operation, BenchError>,
) -> Result<Took, BenchError> {
    let mut under_way = VecDeque::with_capacity(outstanding);
    let mut each = Vec::new();
    let begun = Instant::now();
    let mut before = begun;
    for number in 0..count {
        if under_way.len() == outstanding {
            under_way.pop_front().as_ref().map_or(Ok(()), done)?;
        }
        under_way.push_back(submit(number)?);
        if outstanding == 1 {
            under_way.pop_front().as_ref().map_or(Ok(()), done)?;
            let now = Instant::now();
            each.push((now - before).as_secs_f64() * 1e6);
            before = now;
        }
    }
    under_way.iter().try_for_each(done)?;
    Ok(Took {
        seconds: begun.elapsed().as_secs_f64(),
        median_us: median(&mut each),
    })
}

fn done(operation: &Operation) -> Result<(), BenchError> {
    let ended = operation.wait().into_result();
    ended.map_err(|failure| BenchError::Operation(failure.to_string()))
}

/// The messages of one end to the other.
struct Messages<'a> {
    own: &'a End,
    peer: &'a End,
    waits: Waits,
    over: &'a AtomicBool,
    /// The last operation from each slot.
    sent: VecDeque<Operation>,
    counter: weft_transfer_engine::ImmCounter,
}

impl<'a> Messages<'a> {
    fn new(own: &'a End, peer: &'a End, waits: Waits, over: &'a AtomicBool) -> Self {
        Self {
            own,
            peer,
            waits,
            over,
            sent: VecDeque::new(),
            counter: own.engine.imm_counter(IMMEDIATE),
        }
    }

    fn send(&mut self, number: u64) -> Result<(), BenchError> {
        // The bytes of a slot stay as they are until its operation has ended.
        if self.sent.len() as u64 == SLOTS {
            self.sent.pop_front().as_ref().map_or(Ok(()), done)?;
        }
        let to = number % SLOTS * MESSAGE_BYTES;
        let from = (SLOTS + number % SLOTS) * MESSAGE_BYTES;
        let memory = &self.own.messages.0;
        memory.write(from, &number.to_le_bytes())?;
        let write = SingleWrite {
            source: (memory.clone(), from),
            destination: (self.peer.messages.1.clone(), to),
            bytes: MESSAGE_BYTES,
            immediate: Some(IMMEDIATE),
        };
        let options = Options::within(PATIENCE);
        let operation = self.own.engine.submit_single_write(&write, options)?;
        self.sent.push_back(operation);
        Ok(())
    }

    /// Waits for the peer's message with this number.
    fn expect(&self, number: u64) -> Result<(), BenchError> {
        match self.waits {
            Waits::Sleeping => {
                let options = Options::within(PATIENCE);
                let engine = &self.own.engine;
                let operation = engine.expect_imm_count(IMMEDIATE, number + 1, options)?;
                done(&operation)?;
            }
            Waits::Polling => {
                let since = Instant::now();
                while self.counter.count() <= number {
                    thread::yield_now();
                    if self.over.load(Ordering::Acquire) || since.elapsed() > PATIENCE {
                        return Err(BenchError::Silent {
                            what: "messages of 8 bytes",
                            seconds: PATIENCE.as_secs(),
                        });
                    }
                }
            }
        }
        let mut received = [0; MESSAGE_BYTES as usize];
        let slot = number % SLOTS * MESSAGE_BYTES;
        self.own.messages.0.read(slot, &mut received)?;
        match received == number.to_le_bytes() {
            true => Ok(()),
            false => Err(BenchError::Differs {
                write: number,
                at: 0,
            }),
        }
    }

    /// Waits for all that was sent.
    fn end(&self) -> Result<(), BenchError> {
        self.sent.iter().try_for_each(done)
    }
}

/// How long registering memory takes, and its first use.
pub(super) struct Registering(TransferEngine);

impl Registering {
    pub(super) fn start() -> Result<Self, BenchError> {
        let config = TransferEngineConfig::default();
        Ok(Self(TransferEngine::start(config)?))
    }

    /// Memory as a program has it before it registers it.
    pub(super) fn memory(bytes: usize) -> std::sync::Arc<Region> {
        Region::share(vec![BLANK; bytes])
    }

    /// Microseconds of one registration.
    pub(super) fn register(&self, region: &std::sync::Arc<Region>) -> Result<f64, BenchError> {
        let region = std::sync::Arc::clone(region);
        let begun = Instant::now();
        let registered = self.0.reg_mr(region, Access::WRITE)?;
        let took = begun.elapsed();
        drop(registered);
        Ok(took.as_secs_f64() * 1e6)
    }

    /// Microseconds until new memory is there and registered; and those of its first use, a word of each page, for each
    /// `block` bytes of it.
    pub(super) fn allocate(&self, bytes: u64, block: u64) -> Result<(f64, Vec<f64>), BenchError> {
        let begun = Instant::now();
        let (memory, _) = self.0.alloc(bytes)?;
        let took = begun.elapsed().as_secs_f64() * 1e6;
        let touch = |first: u64| {
            let begun = Instant::now();
            for page in (first..(first + block).min(bytes)).step_by(4096) {
                memory.write(page, &page.to_le_bytes())?;
            }
            Ok(begun.elapsed().as_secs_f64() * 1e6)
        };
        let blocks = (0..bytes).step_by(block as usize).map(touch);
        Ok((took, blocks.collect::<Result<_, BenchError>>()?))
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn engines(bytes: usize) -> Engines<'static> {
        let end = || {
            let config = TransferEngineConfig::default();
            End::start(Ipv4Addr::LOCALHOST.into(), config, bytes).unwrap()
        };
        Engines::new(None, end(), end()).unwrap()
    }

    #[test]
    fn writes_and_pages_arrive_also_after_messages_of_8_bytes() {
        let mut engines = engines(1 << 20);
        for waits in [Waits::Polling, Waits::Sleeping] {
            assert_eq!(engines.one_way(20, waits).unwrap().len(), 20);
        }
        for outstanding in [1, 8] {
            let work = Many {
                bytes: 64 << 10,
                count: 40,
                outstanding,
            };
            let took = engines.write(work).unwrap();
            assert_eq!(took.median_us > 0.0, outstanding == 1);
        }
        let pages = Paged {
            page: 1024,
            pages: 256,
            operations: 4,
            outstanding: 2,
        };
        engines.write_pages(pages).unwrap();
    }

    #[test]
    fn a_byte_that_did_not_come_is_found() {
        let engines = engines(1 << 20);
        let error = engines.check(7, 0, 0, 4096).unwrap_err();
        assert!(
            matches!(error, BenchError::Differs { write: 7, at: 0 }),
            "{error}"
        );
    }
}

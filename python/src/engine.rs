//! The engine: how it starts and ends, its memory and its operations.

use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyTuple};
use weft_transfer_engine::{
    Access, Encryption, NicPair, SingleRead, SingleWrite, TransferEngine, TransferEngineConfig,
};

use crate::arguments::{
    access_of, address_of, addresses_of, bytes_of, bytes_or_rest, callable, immediate_of, local,
    nics_of, paged_writes, remote, seconds, single_writes, u16_of, u32_of, u64_of, wrong_type,
};
use crate::failure::{refused, wrong_value};
use crate::memory::{Buffer, MemoryRegion, alloc, buffer_of};
use crate::operation::{Operation, PeerGroup, call, options};
use crate::shared::Shared;
use crate::watcher::Watcher;

/// An engine moves memory between processes. It needs no agent, no root and no configuration file.
///
/// >>> import weft
/// >>> with weft.Engine() as receiver, weft.Engine() as sender:
/// ...     # The receiver opens 4 KiB to its peers, and sends the descriptor to them by any channel.
/// ...     there = receiver.alloc(4096)
/// ...     descriptor = there.descriptor
/// ...     # The sender writes its bytes to offset 100. The write carries the immediate 7.
/// ...     here = sender.reg_mr(bytearray(b"hello, weft"))
/// ...     written = sender.submit_single_write(here, (descriptor, 100), immediate=7)
/// ...     # The receiver waits until one message with the immediate 7 has arrived: its bytes are there by then.
/// ...     receiver.expect_imm_count(7, 1).wait()
/// ...     print(bytes(there.memory[100:111]))
/// ...     written.wait()
/// b'hello, weft'
///
/// All arguments have defaults that work on a laptop:
///
/// - `nics`: addresses of 1 to 16 NICs. Every operation is spread over all of them, and over those of the peer. Default:
///   127.0.0.1.
/// - `link`: `"udp"`, `"tcp"` or `"shm"`, or `"auto"`: shared memory in a node, else the faster of the two others, which is
///   measured when engines connect. `"network"` is the same without shared memory. `"xdp"` is UDP past the
///   kernel's stack, for root, one NIC and one worker; `"auto"` never takes it.
/// - `port_count`: UDP ports, at least as many for each worker as there are NICs; both ends must agree.
/// - `ports`: the first and the last port of those where the engine looks for free ones.
/// - `workers`: worker threads, a divisor of `port_count`; both ends must agree.
/// - `cpus`: the CPUs of the worker threads, one after the other, a list of int. None: the system chooses.
/// - `mtu`: bytes of the largest IP packet; both ends must agree.
/// - `encryption`: `"off"` or `"required"`; both ends must agree. Set-up always is encrypted.
/// - `stall_timeout`: a connection with bytes under way that receives nothing for these seconds fails.
/// - `connect_timeout`: the seconds that connecting to a peer may take.
/// - `cancel_timeout`: the seconds that a stopped operation waits for the peer to confirm the stop.
/// - `watch_interval`: the seconds after which the words of watchers are read again.
///
/// Each `submit_...` returns a `weft.Operation`. It takes `deadline`, the seconds after which the operation is stopped, and
/// `on_done`, which the engine's callback thread calls with `None` when the operation is done, or with the exception that
/// `Operation.wait` raises. What `on_done` raises goes to `sys.unraisablehook`. A wrong argument raises TypeError or
/// ValueError, which name it; then nothing was begun.
///
/// A process that is forked cannot use the engine: each call raises RuntimeError there. Start an engine after the fork.
#[pyclass(frozen, weakref, module = "weft")]
pub(crate) struct Engine(Arc<Shared>);

impl Engine {
    fn submit(
        &self,
        py: Python<'_>,
        submit: impl FnOnce(
            &TransferEngine,
        ) -> Result<
            weft_transfer_engine::Operation,
            weft_transfer_engine::TransferError,
        >,
    ) -> PyResult<Operation> {
        let submitted = self.0.with(py, submit)?;
        submitted.map(Operation::new).map_err(refused)
    }

    fn register(&self, py: Python<'_>, buffer: Buffer, access: Access) -> PyResult<MemoryRegion> {
        let Buffer { region, memory } = buffer;
        // It waits for the workers.
        let registered = self
            .0
            .with(py, |engine| py.detach(|| engine.reg_mr(region, access)))?;
        let (region, _) = registered.map_err(refused)?;
        self.0.keep(py, &region)?;
        Ok(MemoryRegion {
            region,
            engine: Arc::downgrade(&self.0),
            memory,
        })
    }
}

#[pymethods]
impl Engine {
    #[new]
    #[pyo3(
        signature = (*, nics=None, link=None, port_count=None, ports=None, workers=None, cpus=None, mtu=None, encryption=None,
                     stall_timeout=None, connect_timeout=None, cancel_timeout=None, watch_interval=None),
        text_signature = "(*, nics=['127.0.0.1'], link='auto', port_count=16, ports=(20000, 32767), workers=1, cpus=None, mtu=1500, \
                          encryption='off', stall_timeout=10.0, connect_timeout=5.0, cancel_timeout=1.0, \
                          watch_interval=0.00005)"
    )]
    #[expect(
        clippy::too_many_arguments,
        reason = "keyword arguments of Python, one for each setting"
    )]
    fn new(
        py: Python<'_>,
        nics: Option<&Bound<'_, PyAny>>,
        link: Option<&Bound<'_, PyAny>>,
        port_count: Option<&Bound<'_, PyAny>>,
        ports: Option<&Bound<'_, PyAny>>,
        workers: Option<&Bound<'_, PyAny>>,
        cpus: Option<&Bound<'_, PyAny>>,
        mtu: Option<&Bound<'_, PyAny>>,
        encryption: Option<&Bound<'_, PyAny>>,
        stall_timeout: Option<&Bound<'_, PyAny>>,
        connect_timeout: Option<&Bound<'_, PyAny>>,
        cancel_timeout: Option<&Bound<'_, PyAny>>,
        watch_interval: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let mut config = TransferEngineConfig::default();
        if let Some(nics) = nics {
            config.nics = nics_of(nics)?;
        }
        if let Some(ports) = ports {
            let pair: PyResult<(Bound<'_, PyAny>, Bound<'_, PyAny>)> = ports.extract();
            let (first, last) = pair.map_err(|_| {
                wrong_value("ports", format!("is {ports}: it must be (first, last)"))
            })?;
            config.ports =
                u16_of("the first of ports", &first)?..=u16_of("the last of ports", &last)?;
        }
        if let Some(encryption) = encryption {
            config.encryption = match encryption.extract::<String>().as_deref() {
                Ok("off") => Encryption::Off,
                Ok("required") => Encryption::Required,
                _ => {
                    let problem = format!("is {encryption}: it must be \"off\" or \"required\"");
                    return Err(wrong_value("encryption", problem));
                }
            };
        }
        if let Some(cpus) = cpus {
            let list: PyResult<Vec<Bound<'_, PyAny>>> = cpus.extract();
            let list = list.map_err(|_| wrong_type("cpus", "a list of int", cpus))?;
            let cpus = list.iter().map(|cpu| u16_of("one of cpus", cpu));
            config.cpus = cpus.collect::<PyResult<_>>()?;
        }
        if let Some(link) = link {
            let name = link.extract::<String>().unwrap_or_default();
            config.link = name.parse().map_err(|_| {
                let problem = format!(
                    "is {link}: it must be \"auto\", \"network\", \"udp\", \"tcp\", \"shm\" or \"xdp\""
                );
                wrong_value("link", problem)
            })?;
        }
        for (name, value, setting) in [
            ("port_count", port_count, &mut config.port_count),
            ("workers", workers, &mut config.workers),
            ("mtu", mtu, &mut config.mtu),
        ] {
            if let Some(value) = value {
                *setting = u16_of(name, value)?;
            }
        }
        for (name, value, setting) in [
            ("stall_timeout", stall_timeout, &mut config.stall_timeout),
            (
                "connect_timeout",
                connect_timeout,
                &mut config.connect_timeout,
            ),
            ("cancel_timeout", cancel_timeout, &mut config.cancel_timeout),
            ("watch_interval", watch_interval, &mut config.watch_interval),
        ] {
            if let Some(value) = value {
                *setting = seconds(name, value)?;
            }
        }
        let (ports, workers) = (config.port_count, config.workers);
        if workers == 0 || !ports.is_multiple_of(workers) {
            let problem = format!("is {workers}: it must divide port_count, which is {ports}");
            return Err(wrong_value("workers", problem));
        }
        let engine = py
            .detach(|| TransferEngine::start(config))
            .map_err(refused)?;
        Ok(Self(Shared::new(engine)))
    }

    /// How peers reach this engine, a str. It is a secret: who has it may connect. An engine that is started again has
    /// another one.
    #[getter]
    fn main_address(&self) -> &str {
        &self.0.address
    }

    /// The link to a peer and why it is that one, both str, or None while this engine is not connected to it.
    ///
    /// >>> import weft
    /// >>> with weft.Engine(link="tcp") as a, weft.Engine() as b:
    /// ...     a.connect(b.main_address).wait()
    /// ...     print(a.link(b.main_address))
    /// ('tcp', 'this engine is set to it')
    fn link(
        &self,
        py: Python<'_>,
        peer: &Bound<'_, PyAny>,
    ) -> PyResult<Option<(&'static str, String)>> {
        let peer = address_of("peer", peer)?;
        let in_use = self.0.with(py, |engine| engine.link(&peer))?;
        Ok(in_use.map(|it| (it.link.name(), it.reason)))
    }

    /// Ends the engine and all that is under way; peers notice at once. A second call does nothing.
    fn close(&self, py: Python<'_>) {
        self.0.close(py);
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_error))]
    fn __exit__(&self, py: Python<'_>, _error: &Bound<'_, PyTuple>) {
        self.0.close(py);
    }

    /// Registers the memory of an object, without a copy: a bytearray, an array, a mmap, a numpy array or another object
    /// with the buffer protocol, or a tensor with DLPack, such as one of torch, of the CPU or of an NVIDIA GPU. It must be
    /// contiguous in C order, and writable. Peers that have the descriptor may use it as `access`, a `weft.Access`, says.
    ///
    /// The engine keeps the object until `MemoryRegion.deregister` or until it is closed. Until then do not give its memory
    /// away: no `resize_` or `set_` of a tensor of torch or of its storage, no `resize(refcheck=False)` of a numpy array. Peers
    /// would write to memory that is used for something else.
    ///
    /// Bytes of a GPU go through host memory, by copies that wait for no other stream: synchronise before a write is submitted.
    ///
    /// >>> import weft
    /// >>> data = bytearray(4)
    /// >>> with weft.Engine() as engine:
    /// ...     region = engine.reg_mr(data, weft.Access.READ | weft.Access.WRITE)
    /// ...     region.memory[0] = 65
    /// ...     print(data)
    /// bytearray(b'A\x00\x00\x00')
    #[pyo3(signature = (buffer, access=None), text_signature = "($self, buffer, access=weft.Access.NONE)")]
    fn reg_mr(
        &self,
        buffer: &Bound<'_, PyAny>,
        access: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<MemoryRegion> {
        let access = access.map_or(Ok(Access::NONE), access_of)?;
        self.register(buffer.py(), buffer_of(buffer)?, access)
    }

    /// Allocates so many zeros, at least 1, and registers them for all access. `MemoryRegion.memory` has them.
    fn alloc(&self, py: Python<'_>, bytes: &Bound<'_, PyAny>) -> PyResult<MemoryRegion> {
        let bytes = match u64_of("bytes", bytes)? {
            0 => return Err(wrong_value("bytes", "is 0: it must be at least 1")),
            bytes => bytes,
        };
        self.register(py, alloc(py, bytes)?, Access::ALL)
    }

    /// Connects to a peer. Other operations do that when they need it.
    #[pyo3(signature = (peer, *, deadline=None, on_done=None),
           text_signature = "($self, peer, *, deadline=30.0, on_done=None)")]
    fn connect(
        &self,
        py: Python<'_>,
        peer: &Bound<'_, PyAny>,
        deadline: Option<&Bound<'_, PyAny>>,
        on_done: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Operation> {
        let (peer, options) = (address_of("peer", peer)?, options(deadline, on_done)?);
        self.submit(py, |engine| engine.connect(&peer, options))
    }

    /// Writes `bytes` bytes from `source`, a region or (region, offset), to `destination`, the descriptor of a peer or
    /// (descriptor, offset), whose access needs WRITE. Without `bytes` it writes to the end of the source. `immediate`,
    /// below 2 to the 32nd, counts once at the peer when all bytes are there. Do not change the bytes before the
    /// operation has ended.
    #[pyo3(signature = (source, destination, bytes=None, *, immediate=None, deadline=None, on_done=None),
           text_signature = "($self, source, destination, bytes=None, *, immediate=None, deadline=30.0, on_done=None)")]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of Python")]
    fn submit_single_write(
        &self,
        py: Python<'_>,
        source: &Bound<'_, PyAny>,
        destination: &Bound<'_, PyAny>,
        bytes: Option<&Bound<'_, PyAny>>,
        immediate: Option<&Bound<'_, PyAny>>,
        deadline: Option<&Bound<'_, PyAny>>,
        on_done: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Operation> {
        let source = local("source", source)?;
        let write = SingleWrite {
            bytes: bytes_or_rest("source", bytes, &source.0, source.1)?,
            source,
            destination: remote("destination", destination)?,
            immediate: immediate_of(immediate)?,
        };
        let options = options(deadline, on_done)?;
        self.submit(py, |engine| engine.submit_single_write(&write, options))
    }

    /// Writes pages of `page_bytes` bytes, the i-th of `source` to the i-th of `destination`: (region, weft.Pages) and
    /// (descriptor, weft.Pages). `immediate` counts once at the peer when all pages are there. Where pages
    /// of the destination overlap, any of them may be seen.
    ///
    /// >>> import weft
    /// >>> with weft.Engine() as a, weft.Engine() as b:
    /// ...     here, there = a.reg_mr(bytearray(b"aabbcc")), b.alloc(6)
    /// ...     source = here, weft.Pages([0, 2], stride=2)
    /// ...     destination = there.descriptor, weft.Pages([1, 0], stride=3)
    /// ...     a.submit_paged_writes(source, destination, page_bytes=2).wait()
    /// ...     print(bytes(there.memory))
    /// b'cc\x00aa\x00'
    #[pyo3(signature = (source, destination, page_bytes, *, immediate=None, deadline=None, on_done=None),
           text_signature = "($self, source, destination, page_bytes, *, immediate=None, deadline=30.0, on_done=None)")]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of Python")]
    fn submit_paged_writes(
        &self,
        py: Python<'_>,
        source: &Bound<'_, PyAny>,
        destination: &Bound<'_, PyAny>,
        page_bytes: &Bound<'_, PyAny>,
        immediate: Option<&Bound<'_, PyAny>>,
        deadline: Option<&Bound<'_, PyAny>>,
        on_done: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Operation> {
        let write = paged_writes(source, destination, page_bytes, immediate)?;
        let options = options(deadline, on_done)?;
        self.submit(py, |engine| engine.submit_paged_writes(&write, options))
    }

    /// Writes to many peers: a list of `weft.SingleWrite`, at least 1.
    ///
    /// >>> import weft
    /// >>> with weft.Engine() as a, weft.Engine() as b, weft.Engine() as c:
    /// ...     here, peers = a.reg_mr(bytearray(b"to bto c")), [b.alloc(4), c.alloc(4)]
    /// ...     writes = [weft.SingleWrite((here, 4 * i), peer.descriptor, 4) for i, peer in enumerate(peers)]
    /// ...     a.submit_scatter(writes).wait()
    /// ...     print([bytes(peer.memory) for peer in peers])
    /// [b'to b', b'to c']
    #[pyo3(signature = (writes, *, deadline=None, on_done=None),
           text_signature = "($self, writes, *, deadline=30.0, on_done=None)")]
    fn submit_scatter(
        &self,
        py: Python<'_>,
        writes: &Bound<'_, PyAny>,
        deadline: Option<&Bound<'_, PyAny>>,
        on_done: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Operation> {
        let writes = single_writes(writes)?;
        let options = options(deadline, on_done)?;
        self.submit(py, |engine| engine.submit_scatter(&writes, options))
    }

    /// Reads `bytes` bytes from `source`, the descriptor of a peer or (descriptor, offset), whose access needs READ, to
    /// `destination`, a region or (region, offset), whose access needs WRITE. Without `bytes` it reads to the end of the
    /// destination.
    ///
    /// >>> import weft
    /// >>> with weft.Engine() as a, weft.Engine() as b:
    /// ...     there = b.reg_mr(bytearray(b"hello"), weft.Access.READ)
    /// ...     here = a.alloc(3)
    /// ...     a.submit_read((there.descriptor, 2), here).wait()
    /// ...     print(bytes(here.memory))
    /// b'llo'
    #[pyo3(signature = (source, destination, bytes=None, *, deadline=None, on_done=None),
           text_signature = "($self, source, destination, bytes=None, *, deadline=30.0, on_done=None)")]
    fn submit_read(
        &self,
        py: Python<'_>,
        source: &Bound<'_, PyAny>,
        destination: &Bound<'_, PyAny>,
        bytes: Option<&Bound<'_, PyAny>>,
        deadline: Option<&Bound<'_, PyAny>>,
        on_done: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Operation> {
        let destination = local("destination", destination)?;
        let read = SingleRead {
            source: remote("source", source)?,
            bytes: bytes_or_rest("destination", bytes, &destination.0, destination.1)?,
            destination,
        };
        let options = options(deadline, on_done)?;
        self.submit(py, |engine| engine.submit_read(&read, options))
    }

    /// Sends a copy of a message, something like bytes, to the receives of the engine with the main address `peer`. It
    /// may be empty. Messages from one engine to one peer arrive in order. One that finds no receive waits, and later
    /// ones wait behind it. One that is longer than the receives ends the connections with the peer.
    #[pyo3(signature = (peer, message, immediate=None, *, deadline=None, on_done=None),
           text_signature = "($self, peer, message, immediate=None, *, deadline=30.0, on_done=None)")]
    fn submit_send(
        &self,
        py: Python<'_>,
        peer: &Bound<'_, PyAny>,
        message: &Bound<'_, PyAny>,
        immediate: Option<&Bound<'_, PyAny>>,
        deadline: Option<&Bound<'_, PyAny>>,
        on_done: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Operation> {
        let peer = address_of("peer", peer)?;
        let message = bytes_of("message", message)?;
        let immediate = immediate_of(immediate)?;
        let options = options(deadline, on_done)?;
        self.submit(py, |engine| {
            engine.submit_send(&peer, message, immediate, options)
        })
    }

    /// Posts `count` buffers of `bytes` bytes that the messages of all peers share, once for an engine. The callback thread
    /// calls `handler(message, immediate)` for one after the other: bytes, and an int or None. Such an immediate does not
    /// count. What the handler raises goes to `sys.unraisablehook`.
    ///
    /// >>> import queue, weft
    /// >>> messages = queue.Queue()
    /// >>> with weft.Engine() as a, weft.Engine() as b:
    /// ...     b.submit_recvs(4096, 16, lambda message, immediate: messages.put((message, immediate)))
    /// ...     a.submit_send(b.main_address, b"hello", 3).wait()
    /// ...     print(messages.get(timeout=60))
    /// (b'hello', 3)
    fn submit_recvs(
        &self,
        py: Python<'_>,
        bytes: &Bound<'_, PyAny>,
        count: &Bound<'_, PyAny>,
        handler: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let (bytes, count) = (u64_of("bytes", bytes)?, u64_of("count", count)?);
        let handler = callable("handler", handler)?;
        let handler = Box::new(move |message: Vec<u8>, immediate: Option<u32>| {
            call(&handler, |handler| {
                handler.call1((PyBytes::new(handler.py(), &message), immediate))
            });
        });
        // It waits for the workers.
        let submitted = self.0.with(py, |engine| {
            py.detach(|| engine.submit_recvs(bytes, count, handler))
        })?;
        submitted.map_err(refused)
    }

    /// Makes a group of peers, a list of at least 1 main address, and begins to connect to them.
    fn add_peer_group(&self, py: Python<'_>, peers: &Bound<'_, PyAny>) -> PyResult<PeerGroup> {
        let peers = addresses_of("peers", peers)?;
        let group = self.0.with(py, |engine| engine.add_peer_group(peers))?;
        group.map(PeerGroup).map_err(refused)
    }

    /// Has `immediate` count once at each peer of a group. With `expect_imm_count` at each peer it is a barrier.
    ///
    /// >>> import weft
    /// >>> with weft.Engine() as a, weft.Engine() as b:
    /// ...     group = a.add_peer_group([b.main_address])
    /// ...     a.submit_barrier(group, 1).wait()
    /// ...     b.expect_imm_count(1, 1).wait()
    /// ...     print(b.imm_count(1), b.free_imm(1), b.imm_count(1))
    /// 1 1 0
    #[pyo3(signature = (group, immediate, *, deadline=None, on_done=None),
           text_signature = "($self, group, immediate, *, deadline=30.0, on_done=None)")]
    fn submit_barrier(
        &self,
        py: Python<'_>,
        group: &PeerGroup,
        immediate: &Bound<'_, PyAny>,
        deadline: Option<&Bound<'_, PyAny>>,
        on_done: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Operation> {
        let immediate = u32_of("immediate", immediate)?;
        let options = options(deadline, on_done)?;
        self.submit(py, |engine| {
            engine.submit_barrier(&group.0, immediate, options)
        })
    }

    /// Waits until the count of an immediate is `count` or more. The count begins at 0 and grows until `free_imm`. The order
    /// of the messages does not matter.
    #[pyo3(signature = (immediate, count, *, deadline=None, on_done=None),
           text_signature = "($self, immediate, count, *, deadline=30.0, on_done=None)")]
    fn expect_imm_count(
        &self,
        py: Python<'_>,
        immediate: &Bound<'_, PyAny>,
        count: &Bound<'_, PyAny>,
        deadline: Option<&Bound<'_, PyAny>>,
        on_done: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Operation> {
        let immediate = u32_of("immediate", immediate)?;
        let count = u64_of("count", count)?;
        let options = options(deadline, on_done)?;
        self.submit(py, |engine| {
            engine.expect_imm_count(immediate, count, options)
        })
    }

    /// The count of an immediate: messages whose bytes are here whole.
    fn imm_count(&self, py: Python<'_>, immediate: &Bound<'_, PyAny>) -> PyResult<u64> {
        let immediate = u32_of("immediate", immediate)?;
        self.0
            .with(py, |engine| engine.imm_counter(immediate).count())
    }

    /// Ends the counter of an immediate and returns its count: the next message with this immediate is the first one.
    fn free_imm(&self, py: Python<'_>, immediate: &Bound<'_, PyAny>) -> PyResult<u64> {
        let immediate = u32_of("immediate", immediate)?;
        self.0.with(py, |engine| engine.free_imm(immediate))
    }

    /// Makes a word of 64 bits, 0 at first, which this or another process or a device increments. The callback thread calls
    /// `handler(old, new)` within about `watch_interval`; several changes may come as one. Keep the `weft.Watcher`.
    fn alloc_watcher(&self, py: Python<'_>, handler: &Bound<'_, PyAny>) -> PyResult<Watcher> {
        let handler = callable("handler", handler)?;
        let handler = Box::new(move |old: u64, new: u64| {
            call(&handler, |handler| handler.call1((old, new)));
        });
        let watcher = self.0.with(py, |engine| engine.alloc_watcher(handler))?;
        watcher.map(Watcher::new).map_err(refused)
    }

    /// Ends what this engine has under way with the peer, and its connections to it. The next operation connects again.
    fn remove_peer(&self, py: Python<'_>, peer: &Bound<'_, PyAny>) -> PyResult<()> {
        let peer = address_of("peer", peer)?;
        // It asks the workers.
        self.0
            .with(py, |engine| py.detach(|| engine.remove_peer(&peer)))
    }

    /// Which NICs of the engine and of its peers reach each other, a list of `weft.NicPair`: one for each two of peers that
    /// are connected over UDP or TCP.
    fn nic_pairs<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyAny>>> {
        static NIC_PAIR: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        // It asks the workers.
        let pairs = self.0.with(py, |engine| py.detach(|| engine.nic_pairs()))?;
        let kind = NIC_PAIR.import(py, "weft._types", "NicPair")?;
        let pair = |pair: NicPair| {
            kind.call1((
                pair.here.to_string(),
                pair.there.to_string(),
                pair.paths,
                pair.live_paths,
                pair.sent_chunks,
                pair.lost_chunks,
            ))
        };
        pairs.map_err(refused)?.into_iter().map(pair).collect()
    }

    /// What the engine has, a `weft.Counts`.
    fn counts<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        static COUNTS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        // It asks the workers.
        let counts = self.0.with(py, |engine| py.detach(|| engine.counts()))?;
        let counts = counts.map_err(refused)?;
        let fields = (
            counts.peers,
            counts.connections,
            counts.operations,
            counts.counters,
            counts.regions,
        );
        COUNTS.import(py, "weft._types", "Counts")?.call1(fields)
    }

    fn __repr__(&self) -> String {
        format!("<weft.Engine {}>", self.0.name)
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        let _ = Python::try_attach(|py| self.0.close(py));
    }
}

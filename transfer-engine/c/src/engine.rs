//! The engine: its settings, its start and its end, its peers.

use std::ffi::{CString, c_char};
use std::mem::MaybeUninit;
use std::net::IpAddr;

use weft_transfer_engine::{
    Encryption, Progress, TransferEngine, TransferEngineConfig, TransferError,
};

use crate::argument::{array, give, given, put_string, string, time_or, value_or};
use crate::callback::check_not_in_callback;
use crate::names::WeftAddress;
use crate::status::{Refusal, WeftStatus, call};
use crate::text::text;

/// A running engine.
pub struct WeftEngine {
    engine: TransferEngine,
    main_address: CString,
    process: Process,
}

/// The process that has the engine's threads.
pub(crate) struct Process(u32);

impl Process {
    pub(crate) fn this() -> Self {
        Self(std::process::id())
    }

    /// Refuses a process that was forked from it.
    pub(crate) fn check(&self) -> Result<(), Refusal> {
        match self.0 == std::process::id() {
            true => Ok(()),
            false => Err(TransferError::Forked { parent: self.0 }.into()),
        }
    }
}

/// The engine of a call.
pub(crate) fn running(engine: Option<&WeftEngine>) -> Result<&TransferEngine, Refusal> {
    let engine = given(engine, "engine")?;
    engine.process.check()?;
    Ok(&engine.engine)
}

/// The settings of an engine. 0 stands for the default of each.
#[repr(C)]
pub struct WeftConfig {
    /// The addresses of `nic_count` NICs, at most 16, such as "192.0.2.1", all IPv4 or all IPv6. Every operation is spread over
    /// all of them, and over those of the peer.
    pub nics: *const *const c_char,
    /// 0: one NIC, 127.0.0.1.
    pub nic_count: usize,
    /// UDP ports, at least as many for each worker as there are NICs, which share them; both ends must agree. 0: 16.
    pub port_count: u16,
    /// The engine looks for free ports from here on. 0, with `last_port`: 20000.
    pub first_port: u16,
    /// The engine looks for free ports to here. 0, with `first_port`: 32767.
    pub last_port: u16,
    /// Worker threads, a divisor of `port_count`; both ends must agree. 0: 1.
    pub workers: u16,
    /// Bytes of the largest IP packet; both ends must agree. 0: 1500.
    pub mtu: u16,
    /// Whether data is encrypted; both ends must agree. Set-up always is.
    pub encrypt: bool,
    /// A connection with bytes under way that receives nothing for this time fails. 0: 10 s.
    pub stall_timeout_us: u64,
    /// How long connecting to a peer may take. 0: 5 s.
    pub connect_timeout_us: u64,
    /// How long a stopped operation waits for the peer to confirm the stop. 0: 1 s.
    pub cancel_timeout_us: u64,
    /// How often the words of watchers are read. 0: 50 us.
    pub watch_interval_us: u64,
    /// The link to peers: "udp", "tcp" or "shm", or "auto": shared memory in a node, else the faster of the two others, which
    /// is measured when engines connect; "network" is the same without shared memory. "xdp" is UDP past the kernel's stack, for
    /// root, one NIC and one worker; "auto" never takes it. NULL: "auto".
    pub link: *const c_char,
    /// No thread of the engine moves bytes: the program does, by weft_poll. Then `workers` is 1.
    pub program_polls: bool,
    /// The CPUs of the worker threads, `cpu_count` of them, one after the other. NULL: the system chooses.
    pub cpus: *const u16,
    /// 0: the system chooses.
    pub cpu_count: usize,
}

/// What an engine has: a program that leaks sees it here.
#[repr(C)]
pub struct WeftCounts {
    /// Peers that this engine has connected to, or is connecting to.
    pub peers: u64,
    /// Connections of the NICs.
    pub connections: u64,
    /// Operations that have not ended.
    pub operations: u64,
    /// Counters of immediates.
    pub counters: u64,
    /// Registered regions.
    pub regions: u64,
}

fn config(config: &WeftConfig) -> Result<TransferEngineConfig, Refusal> {
    let default = TransferEngineConfig::default();
    let nic = |(index, nic): (usize, &*const c_char)| {
        let name = format!("config.nics[{index}]");
        let address = string(*nic, &name)?;
        address.parse::<IpAddr>().map_err(|_| {
            Refusal::invalid(format!(
                "{name} is \"{address}\": write an IPv4 or IPv6 address"
            ))
        })
    };
    let nics = array(config.nics, config.nic_count, "config.nics")?;
    let nics = nics.iter().enumerate().map(nic);
    let nics = nics.collect::<Result<Vec<_>, Refusal>>()?;
    let ports = match (config.first_port, config.last_port) {
        (0, 0) => default.ports.clone(),
        (first, last) if first > 0 && first <= last => first..=last,
        (first, last) => {
            return Err(Refusal::invalid(format!(
                "config.first_port is {first} and config.last_port is {last}: set both, the lower one first"
            )));
        }
    };
    let link = match config.link.is_null() {
        true => default.link,
        false => string(config.link, "config.link")?.parse()?,
    };
    Ok(TransferEngineConfig {
        link,
        nics: match nics.is_empty() {
            true => default.nics,
            false => nics,
        },
        port_count: value_or(config.port_count, default.port_count),
        ports,
        workers: value_or(config.workers, default.workers),
        mtu: value_or(config.mtu, default.mtu),
        cpus: array(config.cpus, config.cpu_count, "config.cpus")?.to_vec(),
        progress: match config.program_polls {
            true => Progress::Inline,
            false => Progress::Threads,
        },
        encryption: match config.encrypt {
            true => Encryption::Required,
            false => Encryption::Off,
        },
        stall_timeout: time_or(config.stall_timeout_us, default.stall_timeout),
        connect_timeout: time_or(config.connect_timeout_us, default.connect_timeout),
        cancel_timeout: time_or(config.cancel_timeout_us, default.cancel_timeout),
        watch_interval: time_or(config.watch_interval_us, default.watch_interval),
    })
}

/// Starts an engine on free ports of its NICs. It needs no agent, no root and no file. `config` may be NULL.
#[unsafe(no_mangle)]
pub extern "C" fn weft_engine_start(
    config: Option<&WeftConfig>,
    engine: Option<&mut MaybeUninit<*mut WeftEngine>>,
) -> WeftStatus {
    call(|| {
        let to = given(engine, "engine")?;
        let config = config.map(self::config).transpose()?;
        let engine = TransferEngine::start(config.unwrap_or_default())?;
        let main_address = text(engine.main_address().to_string());
        give(
            to,
            WeftEngine {
                engine,
                main_address,
                process: Process::this(),
            },
        );
        Ok(())
    })
}

/// Ends the engine: operations under way fail, peers notice at once, and callbacks that submit are refused with WEFT_CLOSED.
/// Callbacks may use the engine until it returns. When it returns, no callback of the engine runs
/// or will run, and every operation has ended. Other handles stay good, and are freed before or after. A callback must not
/// call this. In a forked process it does nothing.
#[unsafe(no_mangle)]
pub extern "C" fn weft_engine_close(engine: *mut WeftEngine) -> WeftStatus {
    call(|| {
        check_not_in_callback("weft_engine_close")?;
        // SAFETY: a handle of `weft_engine_start` that is not freed yet (invariant 1).
        if let Some(handle) = unsafe { engine.as_ref() } {
            // Callbacks may use the handle until this returns.
            handle.engine.close();
            // SAFETY: as before; no callback runs, and the program does not use it after this call (invariant 1).
            drop(unsafe { Box::from_raw(engine) });
        }
        Ok(())
    })
}

/// How peers reach this engine, as a string. **A secret**: who has it may connect, and nobody else. NULL if `engine` is.
#[unsafe(no_mangle)]
pub extern "C" fn weft_main_address(engine: Option<&WeftEngine>) -> *const c_char {
    engine.map_or(std::ptr::null(), |engine| engine.main_address.as_ptr())
}

/// Ends what this engine has under way with a peer, and its connections to it. The next operation connects again.
#[unsafe(no_mangle)]
pub extern "C" fn weft_remove_peer(
    engine: Option<&WeftEngine>,
    peer: Option<&WeftAddress>,
) -> WeftStatus {
    call(|| {
        let engine = running(engine)?;
        engine.remove_peer(&given(peer, "peer")?.address);
        Ok(())
    })
}

/// Moves what there is to move and ends what has ended, for an engine with `program_polls`. It returns at once;
/// weft_operation_wait() does the same until the operation has ended. `busy`, which may be NULL, tells whether there was anything to do.
#[unsafe(no_mangle)]
pub extern "C" fn weft_poll(
    engine: Option<&WeftEngine>,
    busy: Option<&mut MaybeUninit<bool>>,
) -> WeftStatus {
    call(|| {
        let engine = running(engine)?;
        if engine.progress() == Progress::Threads {
            let problem =
                "program_polls is false: only an engine that was started with it is polled";
            return Err(Refusal::invalid(problem));
        }
        let is_busy = engine.poll()?;
        if let Some(to) = busy {
            to.write(is_busy);
        }
        Ok(())
    })
}

/// Writes the link to a peer into `text`, and why it is that one, such as "tcp: measured: udp 4.10 GB/s, tcp 5.20 GB/s". What
/// is longer than `bytes`, which counts the 0 at the end, is cut. The text is empty while this engine is not connected to the
/// peer.
#[unsafe(no_mangle)]
pub extern "C" fn weft_peer_link(
    engine: Option<&WeftEngine>,
    peer: Option<&WeftAddress>,
    text: *mut c_char,
    bytes: usize,
) -> WeftStatus {
    call(|| {
        let engine = running(engine)?;
        let in_use = engine.link(&given(peer, "peer")?.address);
        let said = in_use.map(|it| it.to_string()).unwrap_or_default();
        put_string(text, bytes, &said)
    })
}

/// The paths between a NIC of an engine and one of its peers.
#[repr(C)]
pub struct WeftNicPair {
    /// The address of the engine's NIC.
    pub here: [c_char; 46],
    /// That of the peer's.
    pub there: [c_char; 46],
    /// How many paths there are.
    pub paths: u64,
    /// Those that carry data: 0 where the two do not reach each other.
    pub live_paths: u64,
    /// Chunks sent, resends included.
    pub sent_chunks: u64,
    /// Those of them that were declared lost.
    pub lost_chunks: u64,
}

/// Tells of the `index`-th pair of NICs of the engine and of peers that are connected over udp or tcp. WEFT_OUT_OF_BOUNDS: there are
/// no more.
#[unsafe(no_mangle)]
pub extern "C" fn weft_engine_nic_pair(
    engine: Option<&WeftEngine>,
    index: usize,
    pair: Option<&mut MaybeUninit<WeftNicPair>>,
) -> WeftStatus {
    call(|| {
        let engine = running(engine)?;
        let to = given(pair, "pair")?;
        let pairs = engine.nic_pairs()?;
        let Some(pair) = pairs.get(index) else {
            let problem = format!("index is {index}: there are {} pairs of NICs", pairs.len());
            return Err(Refusal::out_of_bounds(problem));
        };
        to.write(WeftNicPair {
            here: address_text(pair.here),
            there: address_text(pair.there),
            paths: pair.paths as u64,
            live_paths: pair.live_paths as u64,
            sent_chunks: pair.sent_chunks,
            lost_chunks: pair.lost_chunks,
        });
        Ok(())
    })
}

/// An address as C has it: the longest has 45 characters.
fn address_text(address: IpAddr) -> [c_char; 46] {
    let mut text = [0; 46];
    for (to, byte) in text.iter_mut().zip(address.to_string().bytes().take(45)) {
        *to = byte as c_char;
    }
    text
}

/// Tells what the engine has.
#[unsafe(no_mangle)]
pub extern "C" fn weft_engine_counts(
    engine: Option<&WeftEngine>,
    counts: Option<&mut MaybeUninit<WeftCounts>>,
) -> WeftStatus {
    call(|| {
        let engine = running(engine)?;
        let to = given(counts, "counts")?;
        let counts = engine.counts()?;
        to.write(WeftCounts {
            peers: counts.peers as u64,
            connections: counts.connections as u64,
            operations: counts.operations as u64,
            counters: counts.counters as u64,
            regions: counts.regions as u64,
        });
        Ok(())
    })
}

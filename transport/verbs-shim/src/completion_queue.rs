//! A completion queue of this library.

use std::collections::VecDeque;
use std::ffi::c_int;
use std::net::Ipv6Addr;
use std::sync::{Arc, Mutex};

use weft_device::completion::{Completion, Outcome};
use weft_device::doorbell::DeviceState;
use weft_device::ring::Consumer;
use weft_memory::Words;

use crate::address_handles::WITH_ROUTING_HEADER;
use crate::contexts::OwnContext;
use crate::outstanding::PolledEnds;
use crate::unacknowledged::Unacknowledged;
use weft_verbs_abi::{CompletionQueue, CompletionQueueEx, Wc};

/// After so many polls without a completion it is looked whether the engine is still there.
const EMPTY_POLLS_MAX: u32 = 1 << 20;
/// After so many, some 10 µs, the processor is offered to others: where there are more pollers than cores, one of them may
/// have taken the engine's.
const POLLS_BEFORE_YIELD: u32 = 512;

/// A completion queue. An extended one has the functions to poll it.
#[repr(C)]
pub(crate) struct OwnQueue {
    pub(crate) queue: CompletionQueueEx,
    pub(crate) taken: Mutex<Taken>,
    /// Events of its completion channel.
    pub(crate) completion_events: Unacknowledged,
    /// Asynchronous events.
    pub(crate) events: Unacknowledged,
}

/// What only one thread does at a time.
pub(crate) struct Taken {
    ring: Consumer<Words>,
    /// What was taken and not polled, which comes first.
    kept: VecDeque<Wc>,
    polled: Arc<PolledEnds>,
    /// The service level of completions of datagrams.
    datagram_sl: u8,
    /// Polls since there was a completion.
    empty_polls: u32,
    /// Of an extended queue, from the start of a poll to its end: the completion that the program reads.
    pub(crate) current: Option<Wc>,
}

/// The block of a completion queue.
///
/// # Safety
/// It is one of ours (invariant 1).
pub(crate) unsafe fn own_queue<'q>(queue: *mut CompletionQueue) -> &'q OwnQueue {
    // SAFETY: it is the head of a block (invariant 2).
    unsafe { &*queue.cast::<OwnQueue>() }
}

impl Taken {
    /// Of a device with this GID.
    pub(crate) fn new(ring: Consumer<Words>, polled: &Arc<PolledEnds>, gid: [u8; 16]) -> Self {
        Self {
            ring,
            kept: VecDeque::new(),
            polled: Arc::clone(polled),
            datagram_sl: datagram_sl(gid),
            empty_polls: 0,
            current: None,
        }
    }

    pub(crate) fn ring_mut(&mut self) -> &mut Consumer<Words> {
        &mut self.ring
    }

    /// Takes the next completion, if there is one.
    ///
    /// # Errors
    /// The ring is broken.
    #[inline(always)]
    pub(crate) fn next(&mut self) -> Result<Option<Wc>, Broken> {
        match self.kept.is_empty() {
            true => self.next_of_ring(),
            false => Ok(self.next_kept()),
        }
    }

    #[cold]
    #[inline(never)]
    fn next_kept(&mut self) -> Option<Wc> {
        self.kept.pop_front()
    }

    /// A queue pair is reset: as with a NIC, its completions come no more.
    pub(crate) fn forget(&mut self, queue_pair: u32) {
        self.kept.retain(|wc| wc.qp_num != queue_pair);
        // A ring that is broken is found so by the next poll.
        while let Ok(Some(wc)) = self.next_of_ring() {
            if wc.qp_num != queue_pair {
                self.kept.push_back(wc);
            }
        }
    }

    #[inline(always)]
    fn next_of_ring(&mut self) -> Result<Option<Wc>, Broken> {
        let taken = Completion::take(&mut self.ring).map_err(|_| Broken)?;
        let Some(completion) = taken else {
            return Ok(None);
        };
        self.empty_polls = 0;
        self.polled.polled(&completion);
        Ok(Some(wc(&completion, self.datagram_sl)))
    }

    /// A poll has found no completion. Answers whether the device works no more.
    pub(crate) fn found_nothing(&mut self, context: &OwnContext) -> bool {
        self.empty_polls += 1;
        if self.empty_polls.is_multiple_of(POLLS_BEFORE_YIELD) {
            std::thread::yield_now();
        }
        if self.empty_polls >= EMPTY_POLLS_MAX {
            self.empty_polls = 0;
            context.look_for_engine();
        }
        match context.doorbells.state() {
            DeviceState::Running => false,
            DeviceState::Failed | DeviceState::EngineGone => true,
        }
    }
}

/// The ring gives nothing more.
pub(crate) struct Broken;

/// RoCE has no service levels. NICs of Mellanox say here what kind of packet it was, and UCX 1.13 looks for the addresses by it:
/// 8 for UDP, and 1 for IPv6 or 2 for IPv4.
fn datagram_sl(gid: [u8; 16]) -> u8 {
    let ip = match Ipv6Addr::from(gid).to_ipv4_mapped() {
        Some(_) => 2,
        None => 1,
    };
    8 | ip
}

#[inline(always)]
fn wc(completion: &Completion, datagram_sl: u8) -> Wc {
    const WITH_IMMEDIATE: u32 = 2;
    let (status, vendor_err, immediate) = match completion.outcome {
        Outcome::Success { immediate } => (0, 0, immediate),
        Outcome::Failure {
            status,
            vendor_error,
        } => (status as c_int, vendor_error, None),
    };
    let source = completion.source_queue_pair;
    Wc {
        wr_id: completion.wr_id,
        status,
        opcode: completion.opcode as c_int,
        vendor_err,
        byte_len: completion.bytes,
        imm_data: immediate.unwrap_or_default(),
        qp_num: completion.queue_pair,
        src_qp: source.unwrap_or_default(),
        wc_flags: immediate.map_or(0, |_| WITH_IMMEDIATE)
            | source.map_or(0, |_| WITH_ROUTING_HEADER),
        sl: source.map_or(0, |_| datagram_sl),
        ..Wc::default()
    }
}

//! A queue pair of this library: its rings, and what is being posted.

use std::ffi::c_int;
use std::sync::{Mutex, MutexGuard};

use weft_device::control::QueueSizes;
use weft_device::entry::Entry;
use weft_device::ring::Producer;
use weft_device::state::State;
use weft_device::work_request::{Operation, Payload, WorkRequest};
use weft_memory::Words;

use crate::contexts::lock;
use crate::outstanding::Outstanding;
use crate::unacknowledged::Unacknowledged;
use weft_verbs_abi::{QpEx, QueuePair, Sge};

/// `enum ibv_qp_type`: unreliable datagrams.
pub(crate) const UD: c_int = 4;

/// `enum ibv_send_flags`.
pub(crate) mod flag {
    pub(crate) const FENCE: u32 = 1;
    pub(crate) const SIGNALED: u32 = 2;
    pub(crate) const SOLICITED: u32 = 4;
    pub(crate) const INLINE: u32 = 8;
}

/// A queue pair, in the shape of `struct verbs_qp`.
#[repr(C)]
pub(crate) struct OwnPair {
    pub(crate) pair: QpEx,
    pub(crate) comp_mask: u32,
    pub(crate) xrcd: usize,
    pub(crate) sends: Mutex<Sends>,
    /// None where they come from a shared receive queue.
    pub(crate) receives: Option<Mutex<Receives>>,
    pub(crate) is_all_signaled: bool,
    pub(crate) sizes: QueueSizes,
    pub(crate) events: Unacknowledged,
}

/// What one thread at a time posts to the send queue.
pub(crate) struct Sends {
    pub(crate) ring: Producer<Words>,
    pub(crate) outstanding: Outstanding,
    /// Of `ibv_wr_start` to `ibv_wr_complete`.
    pub(crate) builder: Builder,
}

pub(crate) struct Receives {
    pub(crate) ring: Producer<Words>,
    /// None where queue pairs share them: their completions do not come in the order of posting.
    pub(crate) outstanding: Option<Outstanding>,
}

/// The block of a queue pair.
///
/// # Safety
/// It is one of ours (invariant 1).
pub(crate) unsafe fn own_pair<'q>(pair: *mut QueuePair) -> &'q OwnPair {
    // SAFETY: it is the head of a block (invariant 2).
    unsafe { &*pair.cast::<OwnPair>() }
}

/// The work requests between `ibv_wr_start` and `ibv_wr_complete`. Nobody sees them before that.
#[derive(Default)]
pub(crate) struct Builder {
    pub(crate) finished: Vec<Entry>,
    /// The one that is being built: its beginning, and then its payload.
    pub(crate) begun: Option<Begun>,
    pub(crate) sges: Vec<Sge>,
    pub(crate) inline: Option<Vec<u8>>,
    pub(crate) error: c_int,
    pub(crate) is_started: bool,
}

/// A work request without its payload.
pub(crate) struct Begun {
    pub(crate) operation: Operation,
    pub(crate) immediate: Option<u32>,
    pub(crate) wr_id: u64,
    pub(crate) flags: u32,
}

impl Builder {
    /// The work request that was being built is whole.
    pub(crate) fn finish(&mut self, is_all_signaled: bool) {
        let Some(begun) = self.begun.take() else {
            return;
        };
        let posted = WorkRequest {
            wr_id: begun.wr_id,
            operation: begun.operation,
            immediate: begun.immediate,
            signaled: is_all_signaled || begun.flags & flag::SIGNALED != 0,
            fence: begun.flags & flag::FENCE != 0,
            solicited: begun.flags & flag::SOLICITED != 0,
            payload: match &self.inline {
                Some(bytes) => Payload::Inline(bytes),
                None => Payload::Sges(&self.sges),
            },
        };
        let mut entry = Entry::new();
        match entry.set_work_request(&posted) {
            Ok(()) => self.finished.push(entry),
            Err(_) => self.error = libc::EINVAL,
        }
        self.sges.clear();
        self.inline = None;
    }

    pub(crate) fn clear(&mut self) {
        self.finished.clear();
        self.begun = None;
        self.sges.clear();
        self.inline = None;
        self.error = 0;
        self.is_started = false;
    }
}

impl OwnPair {
    /// Whether the queue pair is in one of the states that take sends.
    pub(crate) fn takes_sends(&self) -> bool {
        State::from_number(self.state()).is_some_and(State::takes_sends)
    }

    pub(crate) fn takes_receives(&self) -> bool {
        State::from_number(self.state()).is_some_and(State::takes_receives)
    }

    pub(crate) fn is_of_datagrams(&self) -> bool {
        self.pair.base.qp_type == UD
    }

    fn state(&self) -> u32 {
        // SAFETY: it is part of the block. `ibv_modify_qp` may write it at the same time, whole.
        unsafe { (&raw const self.pair.base.state).read_volatile() as u32 }
    }

    /// It is reset: nothing is outstanding.
    pub(crate) fn forget_posted(&self) {
        let mut sends = self.lock_sends();
        let produced = sends.ring.produced();
        sends.outstanding.clear(produced);
        if let Some(receives) = &self.receives {
            let mut receives = lock(receives);
            let produced = receives.ring.produced();
            let outstanding = receives.outstanding.as_mut();
            outstanding.into_iter().for_each(|it| it.clear(produced));
        }
    }

    pub(crate) fn lock_sends(&self) -> MutexGuard<'_, Sends> {
        lock(&self.sends)
    }
}

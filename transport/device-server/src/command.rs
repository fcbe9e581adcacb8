//! What the thread of a device is asked by others.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use crossbeam_channel::Sender;
use weft_device::control::{Outcome, Request};
use weft_engine::AddressSpace;

use crate::context::Device;
use crate::devices::{ContextId, OpenError, Opened, SavedDevices};
use crate::offer::Offer;
use crate::saved::HandOverError;

/// An offer that has come from the node `owner`, as authenticated.
#[derive(Debug)]
pub(crate) struct ReceivedOffer {
    pub(crate) owner: Arc<str>,
    /// As [`TenantOffer::pod`](crate::TenantOffer::pod).
    pub(crate) pod: Arc<str>,
    pub(crate) offer: Offer,
}

/// What other threads ask of it. Their queue needs no bound: the thread of each program waits for the answer to a request
/// before it takes the next one, and each context is closed once. What comes from other nodes is not a command but a
/// [`ReceivedOffer`], and their queue has a bound.
pub(crate) enum Command {
    /// A program opens the device.
    Open {
        device: Device,
        program: AddressSpace,
        answer: Sender<Result<Opened, OpenError>>,
    },
    /// A program makes a call.
    Request {
        context: ContextId,
        request: Request,
        /// The descriptor that came with it.
        file: Option<OwnedFd>,
        answer: Sender<(Outcome, Option<OwnedFd>)>,
    },
    /// A program has closed the device, or has ended.
    Close(ContextId),
    /// The end, and what goes on in the next engine.
    Save(Sender<Result<(SavedDevices, Vec<OwnedFd>), HandOverError>>),
    /// The end.
    Stop,
}

/// Ends the worker's sleep. The write fails only when the counter is full: the worker is awake.
pub(crate) fn wake_worker(wake: &OwnedFd) {
    let _ = rustix::io::write(wake, &1u64.to_ne_bytes());
}

//! How much of everything programs may have: in one open of a device, in all opens of a device, and on a node.
//!
//! Of the three, the first is what verbs reports to a program (`ibv_query_device`). The others keep one device from taking
//! what the engine has for all: a program that meets one gets ENOMEM, as where the first is met.

use weft_device::control::{ErrorNumber, Limits, Request};
use weft_device::objects::Usage;

/// What one open of a device may have. An open reserves address space for its rings, and no memory: a page is taken when
/// a ring in it is used first.
pub const OPEN_LIMITS: Limits = Limits {
    domains: 1024,
    regions: 65_536,
    completion_queues: 4096,
    queue_pairs: 4096,
    address_handles: 4096,
    // As libfabric asks for 196,608.
    completions: 1 << 18,
    work_requests: 1 << 14,
    sges: 30,
    inline_bytes: 512,
    requests: 16,
    path_mtu: 5,
    ring_bytes: 1 << 30,
};

/// What all opens of one device may have together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceTotals {
    /// Opens, at most 256: a queue pair's number has 8 bits for them.
    pub opens: u32,
    /// Queue pairs and shared receive queues.
    pub queue_pairs: u32,
    /// Completion queues.
    pub completion_queues: u32,
    /// Completion channels: each is a descriptor of the engine.
    pub channels: u32,
    /// Memory regions.
    pub regions: u32,
    /// Bytes of the rings that exist, whether or not they were ever used. Rings are made while fewer bytes are taken, so
    /// the last queue pair may take its two rings beyond it.
    pub ring_bytes: u64,
}

/// What all devices of a node may have together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NodeTotals {
    /// Opens: each holds five descriptors and a thread.
    pub opens: u32,
    /// Queue pairs and shared receive queues: each is a connection of the engine.
    pub queue_pairs: u32,
}

/// The totals of a node and of each of its devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Totals {
    /// Of each device.
    pub device: DeviceTotals,
    /// Of the node.
    pub node: NodeTotals,
}

impl Totals {
    /// A device is for one job's processes on a node. A process for each of 128 cores may open it. Eight processes, one
    /// for each GPU, may have 2,048 queue pairs each: 32 channels with 16 neighbours, two connections in each direction.
    /// A node carries four such devices that are full, or 4,096 opens of any.
    pub const DEFAULT: Self = Self {
        device: DeviceTotals {
            opens: 128,
            queue_pairs: 1 << 14,
            completion_queues: 1 << 14,
            channels: 4096,
            regions: 1 << 18,
            ring_bytes: 4 << 30,
        },
        node: NodeTotals {
            opens: 4096,
            queue_pairs: 1 << 16,
        },
    };

    /// Whether a device, and its node, which have so much, have room for what a request makes.
    pub(crate) fn check(
        &self,
        request: &Request,
        device: Usage,
        node_queue_pairs: u32,
    ) -> Result<(), ErrorNumber> {
        let most = &self.device;
        let has_ring_bytes = device.ring_bytes < most.ring_bytes;
        let has_room = match request {
            Request::CreateQueuePair(_) | Request::CreateSharedReceiveQueue { .. } => {
                device.queue_pairs < most.queue_pairs
                    && node_queue_pairs < self.node.queue_pairs
                    && has_ring_bytes
            }
            Request::CreateCompletionQueue { .. } => {
                device.completion_queues < most.completion_queues && has_ring_bytes
            }
            Request::ResizeCompletionQueue { .. } => has_ring_bytes,
            Request::CreateChannel => device.channels < most.channels,
            Request::RegisterRegion(_) => device.regions < most.regions,
            _ => true,
        };
        match has_room {
            true => Ok(()),
            false => Err(ErrorNumber::OutOfMemory),
        }
    }
}

/// Whether a request makes something that totals count.
pub(crate) fn is_counted(request: &Request) -> bool {
    matches!(
        request,
        Request::CreateQueuePair(_)
            | Request::CreateSharedReceiveQueue { .. }
            | Request::CreateCompletionQueue { .. }
            | Request::ResizeCompletionQueue { .. }
            | Request::CreateChannel
            | Request::RegisterRegion(_)
    )
}

const _: () = {
    assert!(Totals::DEFAULT.device.opens <= 256);
    assert!(Totals::DEFAULT.device.queue_pairs >= OPEN_LIMITS.queue_pairs);
    assert!(Totals::DEFAULT.device.completion_queues >= OPEN_LIMITS.completion_queues);
    assert!(Totals::DEFAULT.device.regions >= OPEN_LIMITS.regions);
    assert!(Totals::DEFAULT.device.ring_bytes >= OPEN_LIMITS.ring_bytes);
};

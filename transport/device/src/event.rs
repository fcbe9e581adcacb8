//! Asynchronous events: what happens to a device without a call of the program. Each is a packet of the event socket.

use serde::{Deserialize, Serialize};

/// Bytes of an event.
pub const EVENT_BYTES: usize = 8;

/// What has happened. The numbers are those of `enum ibv_event_type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[repr(u32)]
pub enum EventType {
    /// `IBV_EVENT_CQ_ERR`: a completion did not fit into this completion queue, or its ring is broken.
    CompletionQueueError = 0,
    /// `IBV_EVENT_QP_FATAL`: the queue pair is in error, and no completion says why.
    QueuePairFatal = 1,
    /// `IBV_EVENT_COMM_EST`: a message has come for a queue pair that is ready to receive and not yet to send.
    CommunicationEstablished = 4,
    /// `IBV_EVENT_SQ_DRAINED`: what the queue pair had begun to send is complete.
    SendQueueDrained = 5,
    /// `IBV_EVENT_DEVICE_FATAL`: the device works no more.
    DeviceFatal = 8,
    /// `IBV_EVENT_SRQ_ERR`: the shared receive queue gives no further receive.
    SharedReceiveQueueError = 14,
    /// `IBV_EVENT_SRQ_LIMIT_REACHED`: the shared receive queue has fewer receives than its limit.
    SharedReceiveQueueLimitReached = 15,
    /// `IBV_EVENT_QP_LAST_WQE_REACHED`: the queue pair is in error, and takes no more from its shared receive queue.
    LastWorkRequestReached = 16,
}

/// A kind of object that events happen to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ObjectType {
    /// A completion queue.
    CompletionQueue,
    /// A queue pair.
    QueuePair,
    /// A shared receive queue.
    SharedReceiveQueue,
    /// The device itself.
    Device,
}

impl EventType {
    /// All of them.
    pub const ALL: [EventType; 8] = [
        EventType::CompletionQueueError,
        EventType::QueuePairFatal,
        EventType::CommunicationEstablished,
        EventType::SendQueueDrained,
        EventType::DeviceFatal,
        EventType::SharedReceiveQueueError,
        EventType::SharedReceiveQueueLimitReached,
        EventType::LastWorkRequestReached,
    ];

    /// The one with this number.
    #[must_use]
    pub fn from_number(number: u32) -> Option<EventType> {
        let mut all = EventType::ALL.into_iter();
        all.find(|kind| *kind as u32 == number)
    }

    /// What it happens to.
    #[must_use]
    pub fn object_type(self) -> ObjectType {
        match self {
            EventType::CompletionQueueError => ObjectType::CompletionQueue,
            EventType::QueuePairFatal
            | EventType::CommunicationEstablished
            | EventType::SendQueueDrained
            | EventType::LastWorkRequestReached => ObjectType::QueuePair,
            EventType::SharedReceiveQueueError | EventType::SharedReceiveQueueLimitReached => {
                ObjectType::SharedReceiveQueue
            }
            EventType::DeviceFatal => ObjectType::Device,
        }
    }
}

/// An asynchronous event. When the engine has ended, the socket ends instead, which means the same as
/// [`Event::DEVICE_FATAL`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Event {
    /// What has happened.
    pub kind: EventType,
    /// The handle of what it has happened to; 0 is the device.
    pub object: u32,
}

impl Event {
    /// The device works no more.
    pub const DEVICE_FATAL: Event = Event {
        kind: EventType::DeviceFatal,
        object: 0,
    };

    /// As a packet: verbs' number of the event, and the object.
    #[must_use]
    pub fn to_bytes(self) -> [u8; EVENT_BYTES] {
        let mut bytes = [0; EVENT_BYTES];
        bytes[..4].copy_from_slice(&(self.kind as u32).to_ne_bytes());
        bytes[4..].copy_from_slice(&self.object.to_ne_bytes());
        bytes
    }

    /// The event of a packet; none of this version for another packet.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (kind, object) = bytes.split_first_chunk::<4>()?;
        Some(Self {
            kind: EventType::from_number(u32::from_ne_bytes(*kind))?,
            object: u32::from_ne_bytes(object.try_into().ok()?),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_read_as_it_was_written_and_nothing_else_is_one() {
        for kind in EventType::ALL {
            let event = Event { kind, object: 77 };
            let bytes = event.to_bytes();
            assert_eq!(Event::from_bytes(&bytes), Some(event));
            assert_eq!(Event::from_bytes(&bytes[..7]), None);
        }
        assert_eq!(Event::from_bytes(&[9; EVENT_BYTES]), None);
        assert_eq!(Event::from_bytes(&[]), None);
    }
}

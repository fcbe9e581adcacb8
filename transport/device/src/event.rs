//! Asynchronous events: what happens to a device without a call of the program. Each is a packet of the event socket.

/// Bytes of an event.
pub const EVENT_BYTES: usize = 8;

const COMPLETION_QUEUE_ERROR: u32 = 0;
const DEVICE_FATAL: u32 = 8;

/// An asynchronous event. When the engine has ended, the socket ends instead, which means the same as
/// [`Event::DeviceFatal`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// A completion did not fit into this completion queue, or its ring is broken.
    CompletionQueueError(u32),
    /// The device works no more.
    DeviceFatal,
}

impl Event {
    /// As a packet: verbs' number of the event, and the object.
    #[must_use]
    pub fn to_bytes(self) -> [u8; EVENT_BYTES] {
        let (kind, object) = match self {
            Self::CompletionQueueError(queue) => (COMPLETION_QUEUE_ERROR, queue),
            Self::DeviceFatal => (DEVICE_FATAL, 0),
        };
        let mut bytes = [0; EVENT_BYTES];
        bytes[..4].copy_from_slice(&kind.to_ne_bytes());
        bytes[4..].copy_from_slice(&object.to_ne_bytes());
        bytes
    }

    /// The event of a packet; none of this version for another packet.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (kind, object) = bytes.split_first_chunk::<4>()?;
        let object = u32::from_ne_bytes(object.try_into().ok()?);
        match u32::from_ne_bytes(*kind) {
            COMPLETION_QUEUE_ERROR => Some(Self::CompletionQueueError(object)),
            DEVICE_FATAL => Some(Self::DeviceFatal),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_read_as_it_was_written_and_nothing_else_is_one() {
        for event in [Event::CompletionQueueError(77), Event::DeviceFatal] {
            let bytes = event.to_bytes();
            assert_eq!(Event::from_bytes(&bytes), Some(event));
            assert_eq!(Event::from_bytes(&bytes[..7]), None);
        }
        assert_eq!(Event::from_bytes(&[9; EVENT_BYTES]), None);
        assert_eq!(Event::from_bytes(&[]), None);
    }
}

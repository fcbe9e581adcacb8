//! The control path of a device: one request and one answer for each call that makes, changes or destroys an object.
//!
//! A request is a packet on the device's control socket (`SOCK_SEQPACKET`), and so is its answer. Descriptors travel
//! beside them and are not part of the messages. Both ends are of one [`VERSION`](crate::VERSION), which they agree on
//! by [`Request::Open`], so the encoding need not be stable.

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::space::RingPlace;
use crate::state::QueuePairType;

/// A message is no longer than this.
pub const MESSAGE_BYTES_MAX: usize = 512;

/// A call of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// Opens the device: the first request on a connection, and only that.
    Open {
        /// Of the program's library.
        version: u32,
        /// The secret in the device's directory.
        token: [u8; 32],
    },
    /// `ibv_alloc_pd`.
    CreateDomain,
    /// `ibv_dealloc_pd`.
    DestroyDomain(u32),
    /// `ibv_reg_mr` and its kin.
    RegisterRegion(Region),
    /// `ibv_rereg_mr`: the region keeps its key and its protection domain.
    ReregisterRegion {
        /// Its key.
        key: u32,
        /// The bits of `enum ibv_rereg_mr_flags`: what is given.
        given: u32,
        /// As it is to be; what is not given means nothing.
        region: Region,
    },
    /// `ibv_dereg_mr`, by the region's key.
    DeregisterRegion(u32),
    /// `ibv_create_comp_channel`. With the answer comes a socket (`SOCK_SEQPACKET`): each packet is the handle of a
    /// completion queue that was armed and has a completion now, 4 bytes.
    CreateChannel,
    /// `ibv_destroy_comp_channel`.
    DestroyChannel(u32),
    /// `ibv_create_cq`.
    CreateCompletionQueue {
        /// Completions that it holds, at least.
        entries: u32,
        /// The completion channel that says when it has completions.
        channel: Option<u32>,
    },
    /// `ibv_resize_cq`. The program takes no completion before the answer, and then goes on in the new ring, where those are
    /// that it has not taken.
    ResizeCompletionQueue {
        /// Which.
        queue: u32,
        /// Completions that it holds, at least.
        entries: u32,
    },
    /// `ibv_destroy_cq`.
    DestroyCompletionQueue(u32),
    /// `ibv_create_srq`.
    CreateSharedReceiveQueue {
        /// Its protection domain.
        domain: u32,
        /// Receives that it holds, at least.
        entries: u32,
        /// Scatter-gather entries of a receive, at least.
        sges: u32,
    },
    /// `ibv_modify_srq`, of which this device has the limit.
    ModifySharedReceiveQueue {
        /// Which.
        queue: u32,
        /// With fewer receives than this the program is told, once; 0 is none.
        limit: u32,
    },
    /// `ibv_query_srq`.
    QuerySharedReceiveQueue(u32),
    /// `ibv_destroy_srq`.
    DestroySharedReceiveQueue(u32),
    /// `ibv_create_qp`.
    CreateQueuePair(QueuePair),
    /// `ibv_modify_qp`.
    ModifyQueuePair {
        /// Which.
        queue_pair: u32,
        /// The bits of `enum ibv_qp_attr_mask`: which attributes are given.
        given: u32,
        /// All attributes; those that are not given mean nothing.
        attributes: QueuePairAttributes,
    },
    /// `ibv_query_qp`.
    QueryQueuePair(u32),
    /// `ibv_destroy_qp`.
    DestroyQueuePair(u32),
    /// `ibv_create_ah`.
    CreateAddressHandle {
        /// Its protection domain.
        domain: u32,
        /// The peer.
        address: Address,
    },
    /// `ibv_destroy_ah`.
    DestroyAddressHandle(u32),
}

/// Memory of the program that is to be registered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Region {
    /// Its protection domain.
    pub domain: u32,
    /// Where it is in the program.
    pub address: u64,
    /// How long it is.
    pub bytes: u64,
    /// The address by which work requests name its first byte (`ibv_reg_mr_iova`).
    pub io_address: u64,
    /// The bits of `enum ibv_access_flags`.
    pub access: u32,
    /// Where it begins in the file whose descriptor comes with the request, if one does: then the program has mapped that
    /// file there as shared memory.
    pub file_offset: Option<u64>,
}

/// A queue pair that is to be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueuePair {
    /// Its protection domain.
    pub domain: u32,
    /// Its kind.
    pub kind: QueuePairType,
    /// Where sends complete.
    pub send_completions: u32,
    /// Where receives complete.
    pub receive_completions: u32,
    /// Where its receives come from; without one it has a queue of its own.
    pub shared_receive_queue: Option<u32>,
    /// Sizes of its queues.
    pub sizes: QueueSizes,
}

/// Sizes of the queues of a queue pair: as asked for, or as made, which is no less.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct QueueSizes {
    /// Work requests of the send queue.
    pub sends: u32,
    /// Work requests of the receive queue; 0 with a shared one.
    pub receives: u32,
    /// Scatter-gather entries of a send.
    pub send_sges: u32,
    /// Scatter-gather entries of a receive.
    pub receive_sges: u32,
    /// Bytes that a send may carry inline.
    pub inline_bytes: u32,
}

/// The peer of an address handle, or of a connected queue pair: `struct ibv_ah_attr`, as far as RoCEv2 has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Address {
    /// The GID: an IPv6 address, or an IPv4 address mapped into one.
    pub gid: [u8; 16],
    /// Whether the GID is given. RoCE has no other address.
    pub is_global: bool,
    /// The index of this device's own GID.
    pub gid_index: u8,
    /// The port of this device.
    pub port: u8,
    /// The traffic class of IP packets.
    pub traffic_class: u8,
    /// The hop limit of IP packets.
    pub hop_limit: u8,
    /// The service level.
    pub service_level: u8,
}

/// The attributes of a queue pair: `struct ibv_qp_attr`, as far as this device has them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct QueuePairAttributes {
    /// `qp_state`.
    pub state: u32,
    /// `cur_qp_state`.
    pub current_state: u32,
    /// `path_mtu`: 1 is 256 bytes, 5 is 4,096.
    pub path_mtu: u32,
    /// `qkey`.
    pub q_key: u32,
    /// `rq_psn`.
    pub receive_psn: u32,
    /// `sq_psn`.
    pub send_psn: u32,
    /// `dest_qp_num`.
    pub peer_queue_pair: u32,
    /// `qp_access_flags`.
    pub access: u32,
    /// `ah_attr`.
    pub address: Address,
    /// `pkey_index`.
    pub partition_index: u16,
    /// `port_num`.
    pub port: u8,
    /// `max_rd_atomic`.
    pub requests_from_here: u8,
    /// `max_dest_rd_atomic`.
    pub requests_from_peer: u8,
    /// `min_rnr_timer`.
    pub receiver_not_ready_timer: u8,
    /// `timeout`: 4.096 µs · 2^timeout; 0 waits for ever.
    pub timeout: u8,
    /// `retry_cnt`.
    pub retries: u8,
    /// `rnr_retry`: 7 is without end.
    pub receiver_not_ready_retries: u8,
    /// `en_sqd_async_notify`: an event says when the send queue is drained.
    pub notifies_drained: bool,
}

/// What the engine says to a request that it has carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// The device is open. With the answer come the memfd of its doorbell page and its rings, and the eventfd that wakes
    /// the engine.
    Opened {
        /// What it can do.
        limits: Limits,
        /// Its GID.
        gid: [u8; 16],
    },
    /// An object is made: its handle. Of a region its key, of a queue pair its number.
    Created(u32),
    /// A completion queue, or a shared receive queue, is made, or a completion queue has another size.
    CreatedQueue {
        /// Its handle.
        queue: u32,
        /// Entries that it holds.
        entries: u32,
        /// Its ring.
        ring: RingPlace,
    },
    /// A queue pair is made.
    CreatedQueuePair {
        /// Its number.
        queue_pair: u32,
        /// Sizes of its queues.
        sizes: QueueSizes,
        /// The ring of its sends.
        send_ring: RingPlace,
        /// The ring of its receives; none with a shared queue.
        receive_ring: Option<RingPlace>,
    },
    /// The attributes of a queue pair.
    Attributes(QueuePairAttributes),
    /// The limit of a shared receive queue: 0 when it was reached, or none was set.
    ReceiveLimit(u32),
    /// Done, and there is nothing more to say.
    Done,
}

/// How much of everything a device may have. Its policy says so, which the agent brings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Protection domains.
    pub domains: u32,
    /// Memory regions.
    pub regions: u32,
    /// Completion queues, and as many completion channels.
    pub completion_queues: u32,
    /// Shared receive queues, and queue pairs, together.
    pub queue_pairs: u32,
    /// Address handles.
    pub address_handles: u32,
    /// Completions of a completion queue.
    pub completions: u32,
    /// Work requests of a queue.
    pub work_requests: u32,
    /// Scatter-gather entries of a work request.
    pub sges: u32,
    /// Bytes that a send may carry inline.
    pub inline_bytes: u32,
    /// Reads and atomics of a queue pair under way, in each direction.
    pub requests: u8,
    /// The largest `path_mtu`.
    pub path_mtu: u32,
    /// Bytes of shared memory that rings may take.
    pub ring_bytes: u64,
}

/// The answer to a request: what it has made, or an error number.
pub type Outcome = Result<Answer, ErrorNumber>;

/// A number of errno(3), as verbs returns it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ErrorNumber {
    /// EINVAL: an argument is wrong.
    InvalidArgument,
    /// ENOMEM: the device has as many as it may have.
    OutOfMemory,
    /// EBUSY: others use the object.
    Busy,
    /// EOPNOTSUPP: this device does not do that.
    NotSupported,
    /// EACCES: the token is another device's.
    AccessDenied,
    /// EPROTO: the library is of another version. Libraries of every version read this, so its form stays.
    OtherVersion {
        /// The engine's.
        engine: u32,
    },
    /// EIO: the engine has ended, or is that of a parent's device. It says so itself to nobody.
    EngineGone,
}

impl ErrorNumber {
    /// As Linux numbers it.
    #[must_use]
    pub fn number(self) -> i32 {
        match self {
            ErrorNumber::EngineGone => 5,
            ErrorNumber::OutOfMemory => 12,
            ErrorNumber::AccessDenied => 13,
            ErrorNumber::Busy => 16,
            ErrorNumber::InvalidArgument => 22,
            ErrorNumber::OtherVersion { .. } => 71,
            ErrorNumber::NotSupported => 95,
        }
    }
}

/// Why bytes are no message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MessageError {
    /// More than [`MESSAGE_BYTES_MAX`].
    #[error(
        "a message has {MESSAGE_BYTES_MAX} bytes at most, and this has {bytes}: the other end does not run this protocol"
    )]
    TooLong {
        /// Bytes that were given.
        bytes: usize,
    },
    /// No message is written so.
    #[error(
        "{bytes} bytes are no message of version {}: the other end does not run this protocol",
        crate::VERSION
    )]
    Malformed {
        /// Bytes that were given.
        bytes: usize,
    },
}

impl MessageError {
    /// A short stable name.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Self::TooLong { .. } => "MessageTooLong",
            Self::Malformed { .. } => "MessageMalformed",
        }
    }
}

/// Writes a request, or an answer, into `buffer`; gives the bytes that it takes.
#[must_use]
pub fn emit<'b>(message: &impl Serialize, buffer: &'b mut [u8; MESSAGE_BYTES_MAX]) -> &'b [u8] {
    // No message has a part of variable length, and the longest fits (a test says so).
    postcard::to_slice(message, buffer).map_or(&[], |written| written)
}

/// Reads a request, or an answer, which takes all of `bytes`.
///
/// # Errors
/// They are none. They may be anything.
pub fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, MessageError> {
    let malformed = MessageError::Malformed { bytes: bytes.len() };
    if bytes.len() > MESSAGE_BYTES_MAX {
        return Err(MessageError::TooLong { bytes: bytes.len() });
    }
    match postcard::take_from_bytes(bytes) {
        Ok((message, [])) => Ok(message),
        _ => Err(malformed),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Every number as long as it gets.
    fn longest() -> Request {
        let address = Address {
            gid: [0xff; 16],
            is_global: true,
            gid_index: 0xff,
            port: 0xff,
            traffic_class: 0xff,
            hop_limit: 0xff,
            service_level: 0xff,
        };
        let attributes = QueuePairAttributes {
            state: u32::MAX,
            current_state: u32::MAX,
            path_mtu: u32::MAX,
            q_key: u32::MAX,
            receive_psn: u32::MAX,
            send_psn: u32::MAX,
            peer_queue_pair: u32::MAX,
            access: u32::MAX,
            address,
            partition_index: u16::MAX,
            port: 0xff,
            requests_from_here: 0xff,
            requests_from_peer: 0xff,
            receiver_not_ready_timer: 0xff,
            timeout: 0xff,
            retries: 0xff,
            receiver_not_ready_retries: 0xff,
            notifies_drained: true,
        };
        Request::ModifyQueuePair {
            queue_pair: u32::MAX,
            given: u32::MAX,
            attributes,
        }
    }

    #[test]
    fn the_longest_message_fits_and_comes_back() {
        let mut buffer = [0; MESSAGE_BYTES_MAX];
        let bytes = emit(&longest(), &mut buffer);
        assert!(!bytes.is_empty() && bytes.len() < MESSAGE_BYTES_MAX / 2);
        assert_eq!(parse(bytes), Ok(longest()));
        let outcome: Outcome = Err(ErrorNumber::Busy);
        assert_eq!(parse(emit(&outcome, &mut buffer)), Ok(outcome));
    }

    /// A library must understand these of an engine of any version, and an engine of a library of any version.
    #[test]
    fn an_opening_and_its_refusal_are_written_the_same_in_every_version() {
        let mut buffer = [0; MESSAGE_BYTES_MAX];
        let token = [9; 32];
        let opening = emit(&Request::Open { version: 3, token }, &mut buffer);
        assert_eq!(opening, [&[0, 3][..], &token].concat());
        let refusal: Outcome = Err(ErrorNumber::OtherVersion { engine: 4 });
        assert_eq!(emit(&refusal, &mut buffer), [1, 5, 4]);
    }

    #[test]
    fn a_message_that_is_cut_or_goes_on_is_none() {
        let mut buffer = [0; MESSAGE_BYTES_MAX];
        let bytes = emit(&longest(), &mut buffer).to_vec();
        for end in 0..bytes.len() {
            assert!(parse::<Request>(&bytes[..end]).is_err(), "{end}");
        }
        let more = [&bytes[..], &[0]].concat();
        let error = parse::<Request>(&more).unwrap_err();
        assert_eq!(error.reason(), "MessageMalformed");
        let error = parse::<Request>(&[0; MESSAGE_BYTES_MAX + 1]).unwrap_err();
        assert_eq!(error.reason(), "MessageTooLong");
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_message_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
            let _ = parse::<Request>(&bytes);
            let _ = parse::<Outcome>(&bytes);
        }
    }
}

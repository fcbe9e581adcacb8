//! What two ids say to each other over TCP.
//!
//! | bytes | |
//! |---|---|
//! | 0 to 3 | `wftC` |
//! | 4 | version, 1 |
//! | 5 | kind |
//! | 6 and 7 | bytes that follow |
//!
//! All numbers are in network byte order. A *request* and a *reply* carry an [`End`], a request the port space before it. A
//! *reject* carries a status and private data. *Ready* and *disconnect* carry nothing.

const MAGIC: [u8; 4] = *b"wftC";
const VERSION: u8 = 1;
const HEADER_BYTES: usize = 8;
/// Of an [`End`] without private data.
const END_BYTES: usize = 36;
/// What an id may say to another of its own: as long as the length that programs give it by, one byte, can say.
const PRIVATE_BYTES_MAX: usize = u8::MAX as usize;
/// The longest message.
pub(crate) const MESSAGE_BYTES_MAX: usize = HEADER_BYTES + 2 + END_BYTES + PRIVATE_BYTES_MAX;

/// What one end of a connection says of itself.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct End {
    /// Of its device.
    pub(crate) gid: [u8; 16],
    /// Its queue pair.
    pub(crate) queue_pair: u32,
    /// The first packet that it sends, 24 bits.
    pub(crate) packet_number: u32,
    /// Of a datagram queue pair.
    pub(crate) q_key: u32,
    /// `enum ibv_mtu`.
    pub(crate) path_mtu: u8,
    /// Reads and atomics of the peer that it carries out at a time.
    pub(crate) responder_resources: u8,
    /// Reads and atomics of its own at a time.
    pub(crate) initiator_depth: u8,
    pub(crate) flow_control: u8,
    /// How often both send a packet again.
    pub(crate) retries: u8,
    /// How often the peer sends again what this end had no receive for.
    pub(crate) receiver_not_ready_retries: u8,
    pub(crate) has_shared_receive_queue: bool,
    /// The program's own: at most 255 bytes.
    pub(crate) private_data: Vec<u8>,
}

/// A message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Message {
    /// An id wants to connect to one of a port space.
    Request { port_space: u16, end: End },
    /// The other accepts.
    Reply(End),
    /// It does not.
    Reject { status: u16, private_data: Vec<u8> },
    /// The first one's queue pair can send.
    Ready,
    /// The connection ends.
    Disconnect,
}

/// The peer speaks something else.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Foreign;

impl Message {
    /// Its bytes.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(MESSAGE_BYTES_MAX);
        bytes.extend(MAGIC);
        bytes.extend([VERSION, self.kind(), 0, 0]);
        match self {
            Self::Request { port_space, end } => {
                bytes.extend(port_space.to_be_bytes());
                put_end(&mut bytes, end);
            }
            Self::Reply(end) => put_end(&mut bytes, end),
            Self::Reject {
                status,
                private_data,
            } => {
                bytes.extend(status.to_be_bytes());
                bytes.extend(private_data.iter().take(PRIVATE_BYTES_MAX));
            }
            Self::Ready | Self::Disconnect => {}
        }
        let length = (bytes.len() - HEADER_BYTES) as u16;
        bytes[6..HEADER_BYTES].copy_from_slice(&length.to_be_bytes());
        bytes
    }

    /// The first message of what has come, and its length. `None`: it is not all there yet.
    ///
    /// # Errors
    /// [`Foreign`].
    pub(crate) fn from_bytes(bytes: &[u8]) -> Result<Option<(Self, usize)>, Foreign> {
        let known = bytes.len().min(MAGIC.len());
        if bytes[..known] != MAGIC[..known] {
            return Err(Foreign);
        }
        let Some((header, rest)) = bytes.split_at_checked(HEADER_BYTES) else {
            return Ok(None);
        };
        let length = usize::from(u16::from_be_bytes([header[6], header[7]]));
        if header[4] != VERSION || HEADER_BYTES + length > MESSAGE_BYTES_MAX {
            return Err(Foreign);
        }
        let Some(body) = rest.get(..length) else {
            return Ok(None);
        };
        let message = Self::from_body(header[5], body).ok_or(Foreign)?;
        Ok(Some((message, HEADER_BYTES + length)))
    }

    fn from_body(kind: u8, body: &[u8]) -> Option<Self> {
        let number = || {
            let (number, rest) = body.split_first_chunk()?;
            Some((u16::from_be_bytes(*number), rest))
        };
        let message = match kind {
            1 => {
                let (port_space, rest) = number()?;
                let end = end(rest)?;
                Self::Request { port_space, end }
            }
            2 => Self::Reply(end(body)?),
            3 => {
                let (status, private_data) = number()?;
                Self::Reject {
                    status,
                    private_data: private_data_of(private_data)?,
                }
            }
            4 if body.is_empty() => Self::Ready,
            5 if body.is_empty() => Self::Disconnect,
            _ => return None,
        };
        Some(message)
    }

    fn kind(&self) -> u8 {
        match self {
            Self::Request { .. } => 1,
            Self::Reply(_) => 2,
            Self::Reject { .. } => 3,
            Self::Ready => 4,
            Self::Disconnect => 5,
        }
    }
}

fn put_end(bytes: &mut Vec<u8>, end: &End) {
    bytes.extend(end.gid);
    for number in [end.queue_pair, end.packet_number, end.q_key] {
        bytes.extend(number.to_be_bytes());
    }
    bytes.extend([
        end.path_mtu,
        end.responder_resources,
        end.initiator_depth,
        end.flow_control,
        end.retries,
        end.receiver_not_ready_retries,
        end.has_shared_receive_queue.into(),
        0,
    ]);
    bytes.extend(end.private_data.iter().take(PRIVATE_BYTES_MAX));
}

fn end(bytes: &[u8]) -> Option<End> {
    let (gid, rest) = bytes.split_first_chunk::<16>()?;
    let (numbers, rest) = rest.split_first_chunk::<12>()?;
    let (small, private_data) = rest.split_first_chunk::<8>()?;
    let number = |at: usize| {
        let bytes = [0, 1, 2, 3].map(|byte| numbers[at + byte]);
        u32::from_be_bytes(bytes)
    };
    let end = End {
        gid: *gid,
        queue_pair: number(0),
        packet_number: number(4),
        q_key: number(8),
        path_mtu: small[0],
        responder_resources: small[1],
        initiator_depth: small[2],
        flow_control: small[3],
        retries: small[4],
        receiver_not_ready_retries: small[5],
        has_shared_receive_queue: small[6] == 1,
        private_data: private_data_of(private_data)?,
    };
    let is_known = small[6] <= 1 && small[7] == 0 && (1..=5).contains(&end.path_mtu);
    let is_number = end.queue_pair >> 24 == 0 && end.packet_number >> 24 == 0;
    let is_small = end.retries <= 7 && end.receiver_not_ready_retries <= 7;
    (is_known && is_number && is_small).then_some(end)
}

fn private_data_of(bytes: &[u8]) -> Option<Vec<u8>> {
    (bytes.len() <= PRIVATE_BYTES_MAX).then(|| bytes.to_vec())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn private() -> impl Strategy<Value = Vec<u8>> {
        prop::collection::vec(any::<u8>(), 0..=PRIVATE_BYTES_MAX)
    }

    prop_compose! {
        fn ends()(
            gid in any::<[u8; 16]>(), queue_pair in 0u32..1 << 24, packet_number in 0u32..1 << 24, q_key in any::<u32>(),
            path_mtu in 1u8..=5, numbers in any::<[u8; 3]>(), retries in 0u8..8, receiver_not_ready_retries in 0u8..8,
            has_shared_receive_queue in any::<bool>(), private_data in private(),
        ) -> End {
            let [responder_resources, initiator_depth, flow_control] = numbers;
            End {
                gid, queue_pair, packet_number, q_key, path_mtu, responder_resources, initiator_depth, flow_control,
                retries, receiver_not_ready_retries, has_shared_receive_queue, private_data,
            }
        }
    }

    fn messages() -> impl Strategy<Value = Message> {
        prop_oneof![
            (any::<u16>(), ends())
                .prop_map(|(port_space, end)| Message::Request { port_space, end }),
            ends().prop_map(Message::Reply),
            (any::<u16>(), private()).prop_map(|(status, private_data)| Message::Reject {
                status,
                private_data
            }),
            Just(Message::Ready),
            Just(Message::Disconnect),
        ]
    }

    proptest! {
        #[test]
        fn a_message_is_read_as_it_was_written(message in messages(), behind in any::<Vec<u8>>()) {
            let mut bytes = message.to_bytes();
            let length = bytes.len();
            prop_assert!(length <= MESSAGE_BYTES_MAX);
            for end in 0..length {
                prop_assert_eq!(Message::from_bytes(&bytes[..end]), Ok(None));
            }
            bytes.extend(behind);
            prop_assert_eq!(Message::from_bytes(&bytes), Ok(Some((message, length))));
        }

        #[test]
        fn foreign_bytes_are_no_message(bytes in any::<Vec<u8>>()) {
            prop_assume!(!bytes.starts_with(&MAGIC[..bytes.len().min(4)]));
            prop_assert_eq!(Message::from_bytes(&bytes), Err(Foreign));
        }

        #[test]
        fn a_changed_message_is_read_without_harm(
            message in messages(), at in any::<prop::sample::Index>(), value in any::<u8>(),
        ) {
            let mut bytes = message.to_bytes();
            let at = at.index(bytes.len());
            bytes[at] = value;
            if let Ok(Some((read, length))) = Message::from_bytes(&bytes) {
                prop_assert_eq!(read.to_bytes().len(), length);
            }
        }
    }

    #[test]
    fn an_unknown_version_kind_or_length_is_foreign() {
        let good = Message::Ready.to_bytes();
        assert_eq!(good, *b"wftC\x01\x04\0\0");
        for (at, value) in [(4, 2), (5, 9), (6, 0xff)] {
            let mut bad = good.clone();
            bad[at] = value;
            assert_eq!(Message::from_bytes(&bad), Err(Foreign), "byte {at}");
        }
        let mut long = good;
        long[7] = 1;
        long.push(0);
        assert_eq!(Message::from_bytes(&long), Err(Foreign));
    }
}

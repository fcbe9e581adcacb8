//! Batched receive into buffers that are made once.

use std::io::{ErrorKind, IoSliceMut};

use quinn_udp::{EcnCodepoint, RecvMeta, UdpSockRef};
use weft_core::received::Received;

use super::socket::Port;
use crate::datagram::source;
use crate::link::{Counters, Handler};

/// Runs taken by one system call. 8 × 64 KiB stay in a core's second-level cache.
pub(super) const BATCH_RUNS: usize = 8;

/// Bytes of one run's buffer: the largest that GRO makes.
const RUN_BYTES: usize = 65_536;

/// What one receive call says about the port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Batch {
    /// There may be more.
    More,
    /// The port was empty at the end of the call.
    Drained,
}

/// The buffers of one worker's receive calls.
pub(super) struct ReceiveBuffers {
    storage: Box<[u8]>,
    meta: [RecvMeta; BATCH_RUNS],
}

impl Default for ReceiveBuffers {
    fn default() -> Self {
        Self {
            storage: vec![0; BATCH_RUNS * RUN_BYTES].into_boxed_slice(),
            meta: [RecvMeta::default(); BATCH_RUNS],
        }
    }
}

impl ReceiveBuffers {
    /// One receive call on `port`, whose index is `local`. Answers how many runs it handed over.
    pub(super) fn batch(
        &mut self,
        port: &Port,
        local: usize,
        counters: &mut Counters,
        handler: &mut impl Handler,
    ) -> (usize, Batch) {
        let mut rest = &mut self.storage[..];
        let mut slices: [IoSliceMut<'_>; BATCH_RUNS] = std::array::from_fn(|_| {
            let (run, behind) = std::mem::take(&mut rest).split_at_mut(RUN_BYTES);
            rest = behind;
            IoSliceMut::new(run)
        });
        let runs =
            match port
                .state
                .recv(UdpSockRef::from(&port.socket), &mut slices, &mut self.meta)
            {
                Ok(runs) => runs,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return (0, Batch::Drained),
                // An error that the socket had stored; reading it has cleared it.
                Err(_) => {
                    counters.receive_errors += 1;
                    return (0, Batch::More);
                }
            };
        for (meta, buffer) in self.meta[..runs]
            .iter()
            .zip(self.storage.chunks_exact_mut(RUN_BYTES))
        {
            // A datagram without any byte has stride 0; the rest of the house divides by it.
            let segment = meta.stride.max(1);
            let packets = meta.len.div_ceil(segment).max(1) as u64;
            let ce = meta.ecn == Some(EcnCodepoint::Ce);
            counters.received_runs += 1;
            counters.received_packets += packets;
            counters.received_bytes += meta.len as u64;
            counters.received_ce += if ce { packets } else { 0 };
            handler.handle(Received::Packets {
                from: source(meta.addr, local as u16),
                ce,
                bytes: &mut buffer[..meta.len],
                segment,
            });
        }
        let batch = if runs < BATCH_RUNS {
            Batch::Drained
        } else {
            Batch::More
        };
        (runs, batch)
    }
}

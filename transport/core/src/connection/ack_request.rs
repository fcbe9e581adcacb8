//! Which chunks ask for their acknowledgement at once, so that a receiver that puts acknowledgements off holds
//! nothing up. Used by the sending half, for each new chunk; one that is sent again always asks.

/// While more than half of a window is used, the answers are the sender's clock: one is asked for with each
/// sixteenth of it, so that waiting for them takes no more than 3 % of a round trip's bytes. (RFC 9002,
/// section 7.8, and draft-ietf-quic-ack-frequency, section 6.3, ask for several in a round trip.)
const REQUESTS_PER_WINDOW: u64 = 16;

/// How much of a window is used, with the chunk that goes next.
#[derive(Clone, Copy, Debug)]
pub(super) struct WindowUse {
    pub(super) used: u64,
    pub(super) window: u64,
}

impl WindowUse {
    fn is_due(self, since_ack_request: u64) -> bool {
        self.used * 2 > self.window && since_ack_request * REQUESTS_PER_WINDOW >= self.window
    }
}

/// The chunk that goes next.
#[derive(Clone, Copy, Debug)]
pub(super) struct Outgoing {
    /// On the wire.
    pub(super) bytes: u32,
    /// Nothing will be sent before an answer, or little is known of its path.
    pub(super) waits: bool,
    /// The congestion window, bytes.
    pub(super) in_flight: WindowUse,
    /// The window of chunk numbers.
    pub(super) outstanding: WindowUse,
}

/// What was sent since a chunk last asked.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SinceAckRequest {
    bytes: u64,
    chunks: u64,
}

impl SinceAckRequest {
    /// Whether the chunk asks for its acknowledgement.
    #[inline(always)]
    pub(super) fn wants_ack(&mut self, chunk: Outgoing) -> bool {
        self.bytes += u64::from(chunk.bytes);
        self.chunks += 1;
        let wants = chunk.waits
            || chunk.in_flight.is_due(self.bytes)
            || chunk.outstanding.is_due(self.chunks);
        if wants {
            *self = SinceAckRequest::default();
        }
        wants
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The `n`-th of equal chunks into windows of so many.
    fn next(n: u64, window: u64, number_window: u64) -> Outgoing {
        Outgoing {
            bytes: 1_000,
            waits: false,
            in_flight: WindowUse {
                used: n * 1_000,
                window: window * 1_000,
            },
            outstanding: WindowUse {
                used: n,
                window: number_window,
            },
        }
    }

    fn asking(window: u64, number_window: u64) -> Vec<u64> {
        let mut since_ack_request = SinceAckRequest::default();
        let chunks = 1..=window.min(number_window);
        chunks
            .filter(|&n| since_ack_request.wants_ack(next(n, window, number_window)))
            .collect()
    }

    #[test]
    fn beyond_half_a_window_each_sixteenth_of_it_asks() {
        assert_eq!(asking(8, 500), [5, 6, 7, 8]);
        assert_eq!(asking(500, 8), [5, 6, 7, 8]);
        assert_eq!(asking(64, 500), [33, 37, 41, 45, 49, 53, 57, 61]);
        assert_eq!(asking(200, 500).len(), 8);
    }

    #[test]
    fn what_waits_asks_and_the_count_begins_anew() {
        let mut since_ack_request = SinceAckRequest::default();
        let waits = Outgoing {
            waits: true,
            ..next(33, 64, 500)
        };
        assert!(since_ack_request.wants_ack(waits));
        assert!(!since_ack_request.wants_ack(next(34, 64, 500)));
    }
}

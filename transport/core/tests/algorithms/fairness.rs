//! What a connection leaves to others on one link that marks nothing: to a TCP flow, and to the acknowledgements
//! of a connection the other way.

use super::network::{Lane, Network};
use weft_core::congestion::CongestionKind;
use weft_core::path::PolicyKind;
use weft_core::units::Nanos;

const DATA_CENTRE: CongestionKind = CongestionKind::EcnRtt {
    target_queueing: Nanos::from_micros(50),
};

/// Mbit/s of the connection and of TCP, when both have found their share.
fn beside_tcp(congestion: CongestionKind, mbps: u64, delay: u64, queue: u64) -> (u64, u64) {
    let lane = Lane {
        mbps,
        delay: Nanos::from_micros(delay),
        queue,
    };
    let mut network = Network::new(&[lane]);
    network.tcp();
    network.connect(16, PolicyKind::Oblivious, congestion, 1);
    // About a thousand round trips with a full queue.
    let round_trip = 2 * delay * 1_000 + queue * 8_000 / mbps;
    let span = Nanos::new(round_trip * 1_000);
    network.run(span);
    let rates = network.run(span);
    (rates[1], rates[0])
}

#[test]
fn st6_tcp_beside_ecn_rtt_keeps_two_fifths_of_a_link_whatever_its_rate_and_queue() {
    let mut failed = Vec::new();
    for (congestion, mbps, delay, queue) in [
        (CongestionKind::ECN_RTT, 300, 100, 256 << 10),
        (CongestionKind::ECN_RTT, 1_000, 100, 128 << 10),
        (CongestionKind::ECN_RTT, 1_000, 100, 256 << 10),
        (CongestionKind::ECN_RTT, 1_000, 1_000, 512 << 10),
        (CongestionKind::ECN_RTT, 10_000, 25, 1 << 20),
        (DATA_CENTRE, 10_000, 25, 256 << 10),
        (DATA_CENTRE, 100_000, 5, 1 << 20),
    ] {
        let (ours, tcp) = beside_tcp(congestion, mbps, delay, queue);
        println!("{mbps} Mbit/s, {delay} us, {queue} B: ours {ours}, TCP {tcp}");
        if tcp * 10 < mbps * 4 || (ours + tcp) * 10 < mbps * 9 {
            failed.push((mbps, delay, queue, ours, tcp));
        }
    }
    assert_eq!(failed, []);
}

#[test]
fn st6_ecn_rtt_alone_fills_a_link_whatever_its_rate_and_queues_little() {
    for (congestion, mbps, delay) in [
        (CongestionKind::ECN_RTT, 300, 100),
        (CongestionKind::ECN_RTT, 10_000, 25),
        (DATA_CENTRE, 100_000, 5),
    ] {
        let lane = Lane {
            mbps,
            delay: Nanos::from_micros(delay),
            queue: 64 << 20,
        };
        let mut network = Network::new(&[lane]);
        let flow = network.connect(16, PolicyKind::Oblivious, congestion, 1);
        network.run(Nanos::from_millis(100));
        let rate = network.run(Nanos::from_millis(100))[flow];
        println!("{mbps} Mbit/s: {rate}");
        assert!(rate * 100 >= mbps * 95, "{rate} of {mbps}");
    }
}

#[test]
fn a_relay_that_sends_block_by_block_queues_no_longer_than_an_acknowledgement_may_wait() {
    let lane = Lane {
        mbps: 1_000,
        delay: Nanos::from_micros(50),
        queue: 2 << 20,
    };
    let mut network = Network::new(&[lane]);
    let relay = network.connect(16, PolicyKind::Oblivious, CongestionKind::ECN_RTT, 1);
    let block = 1 << 20;
    let block_time = Nanos::from_millis(12);
    let mut longest = Nanos::ZERO;
    for number in 0..200 {
        network.flow(relay).chunks = Some(Vec::new());
        network.post(relay, block);
        network.run(block_time);
        let chunks = network.flow(relay).chunks.take().unwrap_or_default();
        let waits = chunks
            .iter()
            .map(|chunk| Nanos::new(chunk.arrives.0 - chunk.at));
        if number >= 20 {
            longest = waits.fold(longest, Nanos::max);
        }
    }
    // The least retransmission timeout is 5 ms.
    assert!(longest < Nanos::from_millis(4), "{longest:?}");
}

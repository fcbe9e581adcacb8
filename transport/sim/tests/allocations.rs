//! The core allocates nothing in steady state (a counting allocator says so).

use weft_sim::pair::{Pair, PairConfig};

#[test]
fn no_chunk_allocates_once_the_connection_runs() {
    for packets in [1, 11] {
        let mut pair = Pair::new(PairConfig {
            payload: 1408,
            packets,
            paths: 128,
            lost: 1_000,
            reordered: 10_000,
            seed: 1,
        });
        pair.run(20_000);
        let before = pair.resent();
        let counted = allocation_counter::measure(|| pair.run(20_000));
        assert!(
            pair.resent() > before,
            "nothing was lost: the resend path was not measured"
        );
        assert_eq!(
            counted.count_total, 0,
            "chunks of {packets} packets: {counted:?}"
        );
    }
}

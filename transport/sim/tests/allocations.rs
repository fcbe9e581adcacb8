//! The core allocates nothing in steady state (a counting allocator says so).

use weft_core::wire::Integrity;
use weft_sim::load::{Load, LoadConfig};

#[test]
fn no_chunk_allocates_once_the_connection_runs() {
    let runs = [
        (1, Integrity::Sealed),
        (11, Integrity::Sealed),
        (11, Integrity::Aead),
    ];
    for (packets, integrity) in runs {
        let mut pair = Load::new(LoadConfig {
            payload: 1408,
            packets,
            paths: 128,
            lost: 1_000,
            reordered: 10_000,
            integrity,
            seed: 1,
        });
        // Until every list has been as long as it gets: the paths that one turn's chunks come on, say.
        pair.run(100_000);
        let before = pair.resent();
        let counted = allocation_counter::measure(|| pair.run(20_000));
        assert!(
            pair.resent() > before,
            "nothing was lost: the resend path was not measured"
        );
        assert_eq!(
            counted.count_total, 0,
            "chunks of {packets} packets, {integrity:?}: {counted:?}"
        );
    }
}

//! The core allocates nothing in steady state (a counting allocator says so).

use weft_core::connection::{Connection, IDLE_AFTER};
use weft_core::wire::Integrity;
use weft_sim::load::{Load, LoadConfig};

/// What a connection end without traffic may occupy, heap and struct: 1,000 of them in 8 MiB.
const IDLE_BYTES: usize = 8 << 10;
/// What else goes with the last connection to a peer: the state of 128 paths, mostly.
const REST_BYTES: usize = 24 << 10;

fn config(packets: u32) -> LoadConfig {
    LoadConfig {
        payload: 1408,
        packets,
        paths: 128,
        lost: 1_000,
        reordered: 10_000,
        integrity: Integrity::Sealed,
        seed: 1,
    }
}

#[test]
fn no_chunk_allocates_once_the_connection_runs() {
    let runs = [
        (1, Integrity::Sealed),
        (11, Integrity::Sealed),
        (11, Integrity::Aead),
    ];
    for (packets, integrity) in runs {
        let mut pair = Load::new(LoadConfig {
            integrity,
            ..config(packets)
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

#[test]
fn an_idle_connection_fits_in_8_kib_before_and_after_it_carried_traffic() {
    let fits = |when: &str, load: &Load| {
        for host in 0..2 {
            let bytes = load.connection(host).heap_bytes() + size_of::<Connection>();
            assert!(bytes <= IDLE_BYTES, "{when} an end has {bytes} B");
        }
    };
    let mut load = Load::new(config(11));
    fits("before traffic", &load);
    load.run(20_000);
    load.rest(IDLE_AFTER.times(2));
    fits("after traffic", &load);
}

#[test]
fn a_connection_knows_how_much_memory_it_occupies() {
    let mut load = Load::new(config(11));
    load.run(20_000);
    for host in 0..2 {
        let bytes = load.connection(host).heap_bytes() + size_of::<Connection>();
        let counted = allocation_counter::measure(|| load.close(host));
        let freed = usize::try_from(-counted.bytes_current).expect("a close frees memory");
        // The endpoint's own notes about it, and its share of the paths to that peer.
        let rest = freed.checked_sub(bytes);
        assert!(
            rest.is_some_and(|rest| rest <= REST_BYTES),
            "{bytes} B of {freed} B"
        );
    }
}

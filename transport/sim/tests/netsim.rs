//! What the algorithms reach over a network with loss, as a table that is kept: a change of an
//! algorithm shows up in review as moved numbers. `cargo insta review` takes new ones.

use std::fmt::Write as _;

use weft_core::congestion::CongestionKind;
use weft_core::connection::Settings;
use weft_core::memory::DomainId;
use weft_core::path::PolicyKind;
use weft_core::units::{ChunkNumber, Nanos};
use weft_core::wire::{Integrity, VERSION};
use weft_crypto::AES_128_GCM;
use weft_sim::scenario::{Fabric, Scenario, Weather, Workload};
use weft_sim::simulation::Simulation;

/// Messages of 256 KiB in each cell: 8 MiB.
const MESSAGES: u64 = 32;
const MESSAGE_BYTES: u64 = 256 << 10;
/// The network is as lossy as the row says for all of the run, which is shorter than this.
const NEVER: Nanos = Nanos::from_secs(20);

fn scenario(loss: u32, paths: u16, window_chunks: u16, congestion: CongestionKind) -> Scenario {
    Scenario {
        seed: 1,
        hosts: 2,
        pairs: vec![(0, 1)],
        domains: vec![DomainId(1)],
        settings: Settings {
            paths,
            packet_payload: 1_408,
            chunk_bytes: 11 * 1_472,
            window_chunks,
            wire_version: VERSION,
            integrity: Integrity::Sealed,
        },
        cipher: &AES_128_GCM,
        policy: PolicyKind::Oblivious,
        rto_min: Nanos::from_micros(250),
        congestion,
        stall_timeout: Nanos::from_secs(10),
        fabric: Fabric {
            // Four lanes of 10 Gbit/s (0.8 ns a byte), 20 us to 30 us one way.
            lanes: 4,
            byte_time_1024: 819,
            delay: Nanos::from_micros(20),
            delay_spread: Nanos::from_micros(10),
            queue_bytes: 256 << 10,
            mark_bytes: 64 << 10,
        },
        weather: Weather {
            loss,
            ..Weather::FAIR
        },
        workload: Workload {
            messages: MESSAGES,
            message_bytes: MESSAGE_BYTES,
            longest: 1_000_000,
            slots: 8,
            immediate: 1_000_000,
            empty: 0,
            both_ways: false,
        },
        mishaps: Vec::new(),
        heals_at: NEVER,
        turn_delay: Nanos::from_micros(2),
        coalesce: true,
        chunks_per_turn: 16,
        rate_cap_bps: None,
        link_fills: (0, Nanos::ZERO),
        join_delay: Nanos::ZERO,
        hurries_acks: false,
        first_chunk: ChunkNumber(0),
        in_order: false,
    }
}

#[test]
fn goodput_resends_and_spurious_resends_by_loss_paths_and_window() {
    let mut table = String::from(
        "loss_ppm paths window_chunks congestion | goodput_Mbit/s chunks resent spurious\n",
    );
    for (name, congestion) in [
        ("ecn_rtt", CongestionKind::EcnRtt),
        ("fixed", CongestionKind::Fixed { bytes: 1 << 20 }),
    ] {
        for loss in [0, 1_000, 10_000, 100_000] {
            for paths in [1, 4, 128] {
                for window in [16, 256] {
                    let scenario = scenario(loss, paths, window, congestion);
                    let outcome = Simulation::new(scenario)
                        .run()
                        .expect("every promise is kept");
                    let totals = outcome.totals;
                    let nanos = outcome.worked.max(1);
                    let _ = writeln!(
                        table,
                        "{loss:>8} {paths:>5} {window:>13} {name:>10} | {:>14} {:>6} {:>6} {:>8}",
                        totals.bytes * 8_000 / nanos,
                        totals.chunks_sent,
                        totals.chunks_resent,
                        totals.spurious,
                    );
                }
            }
        }
    }
    insta::assert_snapshot!(table);
}

//! Packet traces: microseconds, who, what, on which path. `data 3.1/4` is packet 1 of 4 of chunk 3;
//! `asks` is of a chunk whose answer is wanted at once. `ack 2 +3 5:101` says that all before chunk 2 are
//! whole, 3 is, and of 5 packets 0 and 2 are there.

use weft_core::units::Nanos;

use crate::pair::Pair;

fn compare(pair: &Pair, expected: &str) {
    let expected: Vec<&str> = expected
        .lines()
        .map(str::trim)
        .filter(|l| !l.is_empty())
        .collect();
    let seen: Vec<&str> = pair.trace().lines().map(str::trim).collect();
    assert_eq!(seen, expected, "\n{}", pair.trace());
}

#[test]
fn two_chunks_in_turn_on_two_paths_are_acknowledged_together() {
    let mut pair = Pair::new();
    pair.start_trace();
    pair.write(6_000);
    pair.run();
    compare(
        &pair,
        "
        0 A data 0.0/4 asks on 0
        0 A data 0.1/4 asks on 0
        0 A data 0.2/4 asks on 0
        0 A data 0.3/4 asks on 0
        0 A data 1.0/2 asks on 1
        0 A data 1.1/2 last asks on 1
        50 B ack 2 on 1
        ",
    );
}

#[test]
fn a_lost_packet_is_asked_for_by_its_map() {
    let mut pair = Pair::new();
    pair.start_trace();
    pair.drop_next(|p| p.is_chunk(0) && p.header().packet == 0);
    pair.write(4_000);
    pair.run();
    compare(
        &pair,
        "
        0 A data 0.0/4 asks on 0 lost
        0 A data 0.1/4 asks on 0
        0 A data 0.2/4 asks on 0
        0 A data 0.3/4 last asks on 0
        50 B ack 0 0:1110 on 0
        100 A data 0.0/4 again asks on 1
        150 B ack 1 on 1
        ",
    );
}

#[test]
fn a_lost_chunk_times_out_and_goes_on_another_path() {
    let mut pair = Pair::new();
    pair.start_trace();
    pair.drop_next(|p| p.is_data());
    pair.write(1_000);
    pair.run();
    compare(
        &pair,
        "
        0 A data 0.0/1 last asks on 0 lost
        1000 A probe on 0
        1000 A data 0.0/1 last again asks on 1
        1050 B ack 1 on 1
        ",
    );
}

/// A pair whose round trip of 100 us is known well, with 40 chunks sent; the next goes on path 0.
fn measured() -> Pair {
    let mut pair = Pair::with(|setup| setup.rto_min = Nanos::from_millis(50));
    for _ in 0..10 {
        pair.write(16_000);
        pair.run();
    }
    pair.start_trace();
    pair
}

#[test]
fn a_lost_last_packet_is_probed_for_after_two_round_trips() {
    let mut pair = measured();
    let began = pair.now.as_nanos() / 1_000;
    pair.drop_next(|p| p.is_data());
    pair.write(1_000);
    pair.run();
    let probed = began + 200;
    compare(
        &pair,
        &format!(
            "
        {began} A data 40.0/1 last asks on 0 lost
        {probed} A data 40.0/1 last again asks on 1
        {} B ack 41 on 1
        ",
            probed + 50
        ),
    );
}

#[test]
fn a_probe_of_a_lost_last_chunk_brings_the_rest_of_it() {
    let mut pair = measured();
    let began = pair.now.as_nanos() / 1_000;
    pair.drop_all(|p| p.is_data() && p.path.0 == 0);
    pair.write(3_000);
    pair.run();
    let (probed, again) = (began + 200, began + 300);
    compare(
        &pair,
        &format!(
            "
        {began} A data 40.0/3 asks on 0 lost
        {began} A data 40.1/3 asks on 0 lost
        {began} A data 40.2/3 last asks on 0 lost
        {probed} A data 40.2/3 last again asks on 1
        {} B ack 40 40:100 on 1
        {again} A probe on 0
        {again} A data 40.0/3 again asks on 1
        {again} A data 40.1/3 again asks on 1
        {} B ack 41 on 1
        ",
            probed + 50,
            again + 50
        ),
    );
}

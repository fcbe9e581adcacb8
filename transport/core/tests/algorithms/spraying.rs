//! One connection over four spines, by path policy.

use super::network::{Lane, Network};
use weft_core::congestion::CongestionKind;
use weft_core::path::PolicyKind;
use weft_core::units::Nanos;

/// Mbit/s over spines of these rates, 128 paths, in the second second.
fn goodput(policy: PolicyKind, rates: [u64; 4]) -> u64 {
    let lane = |mbps| Lane {
        mbps,
        delay: Nanos::from_micros(100),
        queue: 512 << 10,
    };
    let mut network = Network::new(&rates.map(lane));
    let flow = network.connect(128, policy, CongestionKind::ECN_RTT, 1);
    network.run(Nanos::from_secs(1));
    network.run(Nanos::from_secs(1))[flow]
}

#[test]
fn st7_the_default_policy_follows_what_unequal_spines_deliver_and_loses_nothing_on_equal_ones() {
    let mut unequal = Vec::new();
    for &policy in PolicyKind::ALL {
        let asym = goodput(policy, [1_000, 500, 250, 50]);
        let equal = goodput(policy, [1_000; 4]);
        println!("{policy}: {asym} of 1800, {equal} of 4000 Mbit/s");
        unequal.push((policy, asym, equal));
    }
    let of = |kind| unequal.iter().find(|(policy, ..)| *policy == kind).copied();
    let (_, asym, equal) = of(PolicyKind::default()).expect("listed");
    let (_, _, two_choices) = of(PolicyKind::TwoChoices).expect("listed");
    // Over real spines, and in netsim, it comes to more: here every flow has a queue of 512 KiB a spine.
    assert!(asym >= 1_800 * 80 / 100, "{asym}");
    assert!(equal * 100 >= two_choices * 99, "{equal} and {two_choices}");
}

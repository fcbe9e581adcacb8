use std::collections::BTreeSet;

use super::super::PolicyKind;
use super::*;
use crate::congestion::CongestionKind;

fn set(paths: u16) -> PathSet {
    let rto_min = Nanos::from_millis(5);
    PathSet::new(&PathSetConfig {
        paths,
        rto_min,
        reliable: false,
        validated: true,
    })
}

pub(super) fn ms(n: u64) -> Time {
    Time::from_nanos(n * 1_000_000)
}

pub(super) fn answer(set: &mut PathSet, at: Time, path: u8) {
    let sample = PathSample {
        path: PathId(path),
        rtt: None,
        packets: 1,
        ce: 0,
        bytes: 0,
    };
    set.on_answer(at, &sample, 0);
}

pub(super) fn state(set: &PathSet, path: usize) -> Option<PathState> {
    set.report().nth(path).map(|report| report.state)
}

#[test]
fn a_path_with_three_timeouts_is_suspended_and_probed_after_10_ms_doubling_to_1_s() {
    let mut set = set(4);
    let path = PathId(2);
    let sample = PathSample {
        path,
        rtt: Some(Nanos::from_micros(50)),
        packets: 1,
        ce: 0,
        bytes: 0,
    };
    set.on_answer(ms(0), &sample, 0);
    set.on_loss(ms(1), path, ms(0) + Nanos::new(1));
    assert_eq!(set.live(), 3);
    assert_eq!(
        set.poll_probe(ms(1)),
        Some((path, 0)),
        "a suspect path is probed at once"
    );
    assert_eq!(set.poll_probe(ms(1)), None);
    assert_eq!(
        set.poll_probe(ms(6)),
        Some((path, 0)),
        "and again when that goes unanswered"
    );
    answer(&mut set, ms(10), 3);
    assert_eq!(set.poll_probe(ms(11)), None, "the third timeout suspends");
    assert_eq!(state(&set, 2), Some(PathState::Suspended));
    let mut at = ms(21);
    let mut interval = Nanos::from_millis(20);
    for _ in 0..10 {
        assert_eq!(set.poll_timeout(), Some(at));
        assert_eq!(set.poll_probe(at), Some((path, 0)));
        at = at + interval;
        interval = interval.times(2).min(PROBE_INTERVAL_MAX);
    }
    answer(&mut set, at, 2);
    assert_eq!((set.live(), set.poll_timeout()), (4, None));
}

#[test]
fn a_replayed_packet_puts_the_timeout_off_little_and_a_slower_path_is_followed() {
    let mut set = set(2);
    let (path, second) = (PathId(0), Nanos::from_secs(1));
    let measure = |set: &mut PathSet, rtt: Nanos| {
        let rtt = Some(set.bounded(path, rtt));
        let sample = PathSample {
            path,
            rtt,
            packets: 1,
            ce: 0,
            bytes: 0,
        };
        set.on_answer(ms(1), &sample, 0);
    };
    measure(&mut set, second);
    assert_eq!(
        set.rtt(path).smoothed(),
        Some(second),
        "the first is believed"
    );
    let mut set = self::set(2);
    measure(&mut set, Nanos::from_micros(50));
    measure(&mut set, second);
    assert!(set.rto(path, Nanos::ZERO) <= Nanos::from_millis(25));
    for _ in 0..32 {
        measure(&mut set, second);
    }
    assert!(set.rto(path, Nanos::ZERO) >= second);
}

#[test]
fn a_path_on_which_the_link_takes_nothing_is_probed_when_it_takes_something_again() {
    let mut set = set(2);
    let path = PathId(1);
    for (broken, ready) in [(ms(1), ms(11)), (ms(12), ms(5_000))] {
        set.set_blocked(broken, path, true);
        set.on_broken(broken, path);
        assert_eq!((set.poll_probe(broken), set.poll_timeout()), (None, None));
        // A probe that was under way is not missed either.
        assert_eq!(set.poll_probe(ready), None);
        assert_eq!(state(&set, 1), Some(PathState::Suspect));
        set.set_blocked(ready, path, false);
        assert_eq!(set.poll_timeout(), Some(ready));
        assert_eq!(set.poll_probe(ready), Some((path, 0)));
    }
    answer(&mut set, ms(5_001), 1);
    assert_eq!(set.live(), 2);
}

#[test]
fn a_path_that_the_link_refuses_twice_gets_no_data_until_a_probe_is_answered() {
    let mut set = set(2);
    for path in 0..2 {
        set.on_broken(ms(1), PathId(path));
        assert!(set.is_candidate(PathId(path)) || set.live() > 0);
        set.on_broken(ms(1), PathId(path));
    }
    assert!(set.is_down());
    answer(&mut set, ms(30), 1);
    assert!(set.is_candidate(PathId(1)) && !set.is_candidate(PathId(0)));
}

#[test]
fn many_losses_of_one_event_are_one_timeout() {
    let mut set = set(1);
    answer(&mut set, ms(0), 0);
    for _ in 0..TIMEOUTS_UNTIL_SUSPENDED {
        set.on_loss(ms(2), PathId(0), ms(1));
    }
    assert_eq!(state(&set, 0), Some(PathState::Suspect));
    assert!(!set.is_down(), "the only path is still given data");
}

#[test]
fn a_loss_on_a_path_that_answered_since_is_no_suspicion() {
    let mut set = set(2);
    answer(&mut set, ms(5), 0);
    set.on_loss(ms(6), PathId(0), ms(4));
    assert_eq!(set.live(), 2);
}

#[test]
fn the_first_answer_after_a_total_outage_has_all_paths_probed_at_once() {
    let mut set = set(3);
    for path in 0..3 {
        set.on_loss(ms(1), PathId(path), ms(1));
    }
    // Each probe of a suspect path waits 20 ms, four times the floor, since nothing was measured: the last of three timeouts
    // is over after two of these, and the probes wait for each other for a moment.
    let mut at = ms(1);
    while !set.is_down() {
        probes_in(&mut set, at, 1);
        at = at + Nanos::from_millis(1);
        assert!(at <= ms(45), "not down yet");
    }
    let mut rng = Rng::new(1);
    let mut policy = PolicyKind::Oblivious.build(CongestionKind::ECN_RTT);
    assert_eq!(set.choose(&mut policy, at, &[], &mut rng), None);
    probes_in(&mut set, at, 150);
    at = at + Nanos::from_millis(150);
    answer(&mut set, at, 1);
    assert!(!set.is_down());
    let mut probes = probes_in(&mut set, at, 1);
    probes.sort_unstable();
    assert_eq!(probes, [(PathId(0), 0), (PathId(2), 0)]);
}

#[test]
fn a_resend_goes_to_a_path_that_was_answered_since_the_chunk_was_sent() {
    for kind in PolicyKind::ALL {
        let mut set = set(128);
        let mut rng = Rng::new(7);
        let mut policy = kind.build(CongestionKind::ECN_RTT);
        for path in 0..128 {
            answer(&mut set, ms(1), path);
        }
        // Only these two still answer, and nothing was lost on the others yet.
        answer(&mut set, ms(5), 9);
        answer(&mut set, ms(6), 77);
        let mut resend = |set: &PathSet, sent_at| {
            set.choose_again(&mut policy, PathId(77), sent_at, ms(9), &[], &mut rng)
        };
        for _ in 0..100 {
            assert_eq!(resend(&set, ms(4)), Some(PathId(9)), "{kind}");
        }
        let unproven = resend(&set, ms(8));
        assert!(unproven.is_some_and(|path| path != PathId(77)), "{kind}");
    }
}

#[test]
fn a_resend_steps_the_policy_once() {
    let mut set = set(4);
    let mut rng = Rng::new(7);
    let mut policy = PolicyKind::RoundRobin.build(CongestionKind::ECN_RTT);
    answer(&mut set, ms(5), 0);
    let again = set.choose_again(&mut policy, PathId(3), ms(4), ms(6), &[], &mut rng);
    assert_eq!(again, Some(PathId(0)));
    assert_eq!(
        set.choose(&mut policy, ms(6), &[], &mut rng),
        Some(PathId(1))
    );
}

#[test]
fn the_share_of_marks_follows_the_samples_to_both_ends() {
    let mut set = set(1);
    let sample = |ce| PathSample {
        path: PathId(0),
        rtt: None,
        packets: 40,
        ce,
        bytes: 0,
    };
    set.on_answer(ms(1), &sample(40), 0);
    assert_eq!(set.ce_share(PathId(0)), 16);
    for _ in 0..100 {
        set.on_answer(ms(1), &sample(40), 0);
    }
    assert_eq!(set.ce_share(PathId(0)), 255);
    for _ in 0..100 {
        set.on_answer(ms(1), &sample(0), 0);
    }
    assert_eq!(set.ce_share(PathId(0)), 0);
}

fn sample(path: u8) -> PathSample {
    PathSample {
        path: PathId(path),
        rtt: None,
        packets: 1,
        ce: 0,
        bytes: 0,
    }
}

/// The probes that are sent in so many milliseconds from `start`, each as soon as the set asks to be asked.
pub(super) fn probes_in(set: &mut PathSet, start: Time, millis: u64) -> Vec<(PathId, u16)> {
    let (mut now, mut probes) = (start, Vec::new());
    while now < start + Nanos::from_millis(millis) {
        probes.extend(std::iter::from_fn(|| set.poll_probe(now)));
        let Some(next) = set.poll_timeout() else {
            break;
        };
        assert!(next > now, "{next:?} is past");
        now = next;
    }
    probes
}

#[test]
fn where_no_path_answers_the_live_ones_are_probed_before_data_finds_them_dead() {
    for (answered, live) in [(ms(1), 0), (ms(50), 3)] {
        let mut set = set(4);
        for path in 0..4 {
            answer(&mut set, ms(1), path);
        }
        set.on_loss(ms(20), PathId(0), ms(2));
        answer(&mut set, answered, 1);
        for at in [20, 41, 62] {
            probes_in(&mut set, ms(at), 1);
        }
        assert_eq!(state(&set, 0), Some(PathState::Suspended));
        assert_eq!(set.live(), live, "the last answer came at {answered:?}");
    }
}

#[test]
fn what_comes_back_on_a_narrow_path_keeps_no_dead_one_live() {
    let mut set = set(4);
    for path in 0..4 {
        set.on_sent(PathId(path), 9_000);
        set.on_answer(ms(1), &sample(path), 9_000);
    }
    set.on_loss(ms(20), PathId(0), ms(2));
    for at in [20, 41, 62] {
        for path in 1..4 {
            set.on_answer(ms(at), &sample(path), 9_000);
        }
        probes_in(&mut set, ms(at), 1);
    }
    set.on_answer(ms(70), &sample(0), BASE_PACKET_BYTES);
    assert_eq!(state(&set, 0), Some(PathState::Narrow));
    // From here on no path carries long packets.
    set.on_loss(ms(100), PathId(1), ms(80));
    for at in [100, 121, 142] {
        set.on_answer(ms(at), &sample(0), BASE_PACKET_BYTES);
        probes_in(&mut set, ms(at), 1);
    }
    assert_eq!(set.live(), 0);
}

#[test]
fn probes_come_one_after_the_other_also_where_packets_are_short() {
    let mut set = set(11);
    set.on_sent(PathId(0), 1_064);
    for path in 0..10 {
        set.on_loss(ms(1), PathId(path), ms(1));
    }
    assert_eq!(set.poll_probe(ms(1)), Some((PathId(0), 1_064)));
    assert_eq!(set.poll_probe(ms(1)), None);
    assert_eq!(probes_in(&mut set, ms(1), 1).len(), 9);
}

#[test]
fn the_long_probes_of_many_paths_take_a_part_of_the_link() {
    let mut set = set(129);
    for path in (0..128).map(PathId) {
        set.on_sent(path, 9_000);
        set.on_loss(ms(1), path, ms(1));
    }
    let bytes = |probes: Vec<(PathId, u16)>| -> u32 {
        probes.iter().map(|(_, bytes)| u32::from(*bytes)).sum()
    };
    let first = bytes(probes_in(&mut set, ms(1), 1));
    assert!(first * 8 <= 1_500_000, "{first} B in a millisecond");
    let others = bytes(
        (2..10)
            .flat_map(|at| probes_in(&mut set, ms(at), 1))
            .collect(),
    );
    assert_eq!(
        (first + others) / 9_000,
        128,
        "each path once in its timeout"
    );
}

#[test]
fn where_no_path_is_live_the_probes_come_apart_and_each_path_has_its_turn() {
    let mut set = set(128);
    for path in (0..128).map(PathId) {
        set.on_loss(ms(1), path, ms(1));
    }
    let probes = probes_in(&mut set, ms(1), 600);
    assert!(probes.len() < 180, "{}", probes.len());
    let distinct = |probes: &[(PathId, u16)]| {
        let paths: BTreeSet<PathId> = probes.iter().map(|(path, _)| *path).collect();
        paths.len()
    };
    assert_eq!(distinct(&probes), 128);
    answer(&mut set, ms(601), 5);
    let probes = probes_in(&mut set, ms(601), 35);
    assert!(
        distinct(&probes) >= 127,
        "all others soon when one has answered"
    );
}

#[test]
fn of_many_paths_that_stop_at_once_one_is_soon_tried_with_short_packets() {
    let mut set = set(128);
    for path in (0..128).map(PathId) {
        set.on_sent(path, 9_000);
        set.on_loss(ms(1), path, ms(1));
    }
    let probes = probes_in(&mut set, ms(1), 80);
    assert!(probes.contains(&(PathId(0), BASE_PACKET_BYTES)));
    set.on_answer(ms(81), &sample(0), BASE_PACKET_BYTES);
    assert_eq!(set.packet_bytes_max(), Some(BASE_PACKET_BYTES));
    // What is narrow carries data, so the others are probed as fast as ever.
    assert!(probes_in(&mut set, ms(81), 10).len() > 100);
}

#[test]
fn only_a_packet_as_large_as_what_was_sent_answers_for_a_path() {
    let mut set = set(2);
    let path = PathId(0);
    set.on_sent(path, 1_500);
    set.on_sent(path, 100);
    set.on_answer(ms(2), &sample(0), 1_499);
    set.on_loss(ms(3), path, ms(1));
    assert_eq!(set.live(), 1, "a small answer proves nothing");
    assert_eq!(set.poll_probe(ms(3)), Some((path, 1_500)));
    set.on_answer(ms(4), &sample(0), 1_499);
    assert_eq!(set.live(), 1);
    set.on_answer(ms(5), &sample(0), 1_500);
    assert_eq!(set.live(), 2);
}

#[test]
fn where_only_short_packets_are_sent_short_ones_answer() {
    let mut set = set(2);
    let path = PathId(0);
    set.on_sent(path, 1_500);
    set.on_answer(ms(1), &sample(0), 1_500);
    set.on_sent(path, 100);
    set.on_answer(ms(3), &sample(0), 100);
    set.on_loss(ms(4), path, ms(2));
    assert_eq!(set.live(), 2);
}

#[test]
fn paths_that_carry_short_packets_only_are_used_when_no_other_is_left() {
    let mut set = set(2);
    let (base, long) = (BASE_PACKET_BYTES, 8_960);
    for path in [PathId(0), PathId(1)] {
        set.on_sent(path, long.into());
        set.on_loss(ms(1), path, ms(1));
    }
    for at in [1, 21, 41] {
        probes_in(&mut set, ms(at), 1);
    }
    assert!(set.is_down());
    assert_eq!(set.packet_bytes_max(), None);
    let probes = probes_in(&mut set, ms(51), 10);
    let both = [PathId(0), PathId(1)].map(|path| [(path, long), (path, base)]);
    assert_eq!(probes, both.concat());
    let mut rng = Rng::new(1);
    let mut policy = PolicyKind::Oblivious.build(CongestionKind::ECN_RTT);
    set.on_answer(ms(62), &sample(0), base);
    assert_eq!(set.packet_bytes_max(), Some(base));
    assert_eq!(
        set.choose(&mut policy, ms(62), &[], &mut rng),
        Some(PathId(0))
    );
    // The other one carries long packets again.
    set.on_answer(ms(63), &sample(1), long);
    assert_eq!(set.packet_bytes_max(), None);
    assert_eq!(
        set.choose(&mut policy, ms(63), &[], &mut rng),
        Some(PathId(1))
    );
    assert_eq!(set.poll_probe(ms(63)), Some((PathId(0), long)));
    set.on_answer(ms(64), &sample(0), long);
    assert_eq!(set.live(), 2);
}

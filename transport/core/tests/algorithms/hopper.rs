//! Hopper as its paper's sections say, in traces of one connection, and over one slow spine beside three fast ones
//! (section 4.2 has two slow ones of six).

use super::network::{Lane, Network};
use rand_core::SeedableRng;
use weft_core::congestion::CongestionKind;
use weft_core::path::{PathPolicy, PathSample, PathSet, PathSetConfig, Policy, PolicyKind};
use weft_core::units::{Nanos, PathId, Rng, Time};

/// Bytes of every chunk here.
const CHUNK: u32 = 1_000;

/// One connection with Hopper; the base RTT is 100 us, times are in microseconds.
struct Trace {
    set: PathSet,
    policy: Policy,
    in_flight: Vec<u32>,
    rng: Rng,
    current: PathId,
}

impl Trace {
    /// The current path was measured at 100 us, at moments at which no later epoch has begun, and more was
    /// acknowledged there than is ever in flight.
    fn new(paths: u16, policy: &str) -> Trace {
        // Such a connection queues nothing.
        Trace::with(paths, policy, CongestionKind::Fixed { bytes: u32::MAX })
    }

    fn beside(congestion: CongestionKind) -> Trace {
        Trace::with(8, "hopper", congestion)
    }

    fn with(paths: u16, policy: &str, congestion: CongestionKind) -> Trace {
        let kind: PolicyKind = policy.parse().expect("a policy");
        let mut trace = Trace {
            set: PathSet::new(&PathSetConfig {
                paths,
                rto_min: Nanos::from_millis(5),
                reliable: false,
                validated: true,
            }),
            policy: kind.build(congestion),
            in_flight: vec![0; paths.into()],
            rng: Rng::seed_from_u64(7),
            current: PathId(0),
        };
        trace.current = trace.send(0);
        trace.ack(100, 100);
        for at in 101..112 {
            trace.measure(at, 100);
        }
        trace
    }

    /// A chunk is sent; returns its path.
    fn send(&mut self, at: u64) -> PathId {
        let now = us(at);
        let path = self
            .set
            .choose(&mut self.policy, now, &self.in_flight, &mut self.rng)
            .expect("all paths are live");
        self.in_flight[usize::from(path.0)] += CHUNK;
        self.policy.on_sent(now, path, CHUNK);
        path
    }

    /// The oldest chunk on the current path is acknowledged.
    fn ack(&mut self, at: u64, rtt: u64) {
        let path = self.current;
        self.in_flight[usize::from(path.0)] -= CHUNK;
        self.sample(at, path, rtt);
    }

    /// A chunk is sent and acknowledged at once, after `rtt` as the sample says.
    fn measure(&mut self, at: u64, rtt: u64) {
        assert_eq!(self.send(at), self.current);
        self.ack(at, rtt);
    }

    fn sample(&mut self, at: u64, path: PathId, rtt: u64) {
        let sample = PathSample {
            path,
            rtt: Some(Nanos::from_micros(rtt)),
            packets: 1,
            ce: 0,
            bytes: if path == self.current { CHUNK } else { 0 },
        };
        self.set.on_answer(us(at), &sample, u16::MAX);
        let view = self.set.view(us(at), &self.in_flight);
        if path == self.current {
            self.policy.on_ack(&view, &sample);
        } else {
            self.policy.on_probe_answer(&view, &sample);
        }
    }

    /// The probes that go with the next chunk.
    fn probes(&mut self, at: u64) -> Vec<PathId> {
        let current = self.current;
        assert_eq!(self.send(at), current);
        self.in_flight[usize::from(current.0)] -= CHUNK;
        std::iter::from_fn(|| self.policy.poll_probe()).collect()
    }
}

fn us(micros: u64) -> Time {
    Time::from_nanos(micros * 1_000)
}

#[test]
fn hp1_other_paths_are_probed_above_1_5_times_the_base_rtt() {
    let mut trace = Trace::new(8, "hopper");
    trace.measure(1_000, 150);
    assert_eq!(trace.probes(1_001), []);
    // Alg. 1: if avg_rtt > th_probe. Table 1: α = 1, so the newest sample is the average.
    trace.measure(1_010, 151);
    assert_eq!(trace.probes(1_011).len(), 2);
}

#[test]
fn hp1_with_alpha_below_one_the_average_moves_slowly_and_an_epoch_starts_with_its_first_sample() {
    let mut trace = Trace::new(8, "hopper:alpha=50");
    trace.measure(1_000, 100);
    trace.measure(1_010, 200);
    assert_eq!(trace.probes(1_011), [], "(100 + 200) / 2 is not above 150");
    trace.measure(1_020, 154);
    assert_eq!(trace.probes(1_021).len(), 2, "(150 + 154) / 2 is");
    // The next epoch, more than an RTT later, forgets the average.
    trace.measure(2_000, 149);
    trace.measure(2_010, 151);
    assert_eq!(trace.probes(2_011), []);
}

#[test]
fn hp1_an_epoch_of_one_rtt_probes_once() {
    let mut trace = Trace::new(8, "hopper");
    trace.measure(1_000, 200);
    assert_eq!(trace.probes(1_001).len(), 2);
    trace.measure(1_199, 300);
    assert_eq!(trace.probes(1_199), [], "the epoch ends 200 us after 1,000");
    trace.measure(1_200, 200);
    assert_eq!(trace.probes(1_201).len(), 2);
}

#[test]
fn hp2_two_random_unexplored_paths_are_probed_and_remembered_for_four_base_rtt() {
    let mut trace = Trace::new(6, "hopper");
    let mut explored = Vec::new();
    // An epoch each. Section 3.2: "avoids selecting any path again if it was probed within the last ttl_probe".
    for at in [1_000, 1_160] {
        trace.measure(at, 160);
        let probes = trace.probes(at);
        assert_eq!(probes.len(), 2);
        explored.extend(probes);
    }
    explored.sort();
    explored.dedup();
    assert_eq!(explored.len(), 4, "no path twice");
    assert!(!explored.contains(&trace.current));
    trace.measure(1_320, 160);
    assert_eq!(
        trace.probes(1_320).len(),
        1,
        "one of six was not probed yet"
    );
    trace.measure(1_480, 200);
    assert!(
        !trace.probes(1_480).is_empty(),
        "the first two may be probed again after 400 us"
    );
}

/// The path is congested, and the two probes take this long.
fn probed(rtt: u64, first: u64, second: u64) -> (Trace, [PathId; 2]) {
    let mut trace = Trace::new(8, "hopper");
    trace.measure(1_000, rtt);
    let probes: [PathId; 2] = trace.probes(1_000).try_into().expect("two");
    trace.measure(1_010, rtt);
    trace.sample(1_000 + first, probes[0], first);
    trace.sample(1_000 + second, probes[1], second);
    (trace, probes)
}

#[test]
fn hp3_a_congested_path_is_left_for_the_better_of_the_two_if_that_takes_four_fifths_at_most() {
    // Table 1: th_cong 2.5, δ 80 %.
    for (rtt, first, second, switches_to) in [
        (250, 100, 100, None),
        (260, 209, 230, None),
        (260, 208, 230, Some(0)),
        (260, 150, 120, Some(1)),
    ] {
        let (mut trace, probes) = probed(rtt, first, second);
        let path = trace.send(2_000);
        let expected = switches_to.map_or(trace.current, |probe: usize| probes[probe]);
        assert_eq!(path, expected, "{rtt} {first} {second}");
    }
}

#[test]
fn hp3_the_first_packet_on_the_new_path_waits_for_the_last_on_the_old_by_the_rtt_difference() {
    let mut trace = Trace::new(8, "hopper");
    // Ten chunks leave at once and come back one each 50 us: Fig. 1's line.
    for _ in 0..10 {
        trace.send(1_000);
    }
    for chunk in 0..3 {
        let rtt = 300 + 50 * chunk;
        trace.ack(1_000 + rtt, rtt);
    }
    // The eleventh, sent with the probes, is to be acknowledged after all ten.
    trace.send(1_400);
    let probes: Vec<PathId> = std::iter::from_fn(|| trace.policy.poll_probe()).collect();
    assert_eq!(probes.len(), 2);
    trace.sample(1_500, probes[0], 100);
    trace.sample(1_520, probes[1], 120);
    // The tenth is back at 1,300 + 9 × 50 = 1,750, the eleventh at 1,800: 400 us after it was sent. On the new path it
    // takes 100 us, so the next chunk waits for 300 us.
    assert_eq!(trace.policy.resumes_at(), us(1_700));
    assert_eq!(trace.send(1_700), probes[0]);
}

#[test]
fn hp1_a_packet_that_came_back_late_stops_the_probes_for_no_longer_than_the_average() {
    let mut trace = Trace::new(8, "hopper");
    trace.measure(1_000, 100_000);
    assert_eq!(trace.probes(1_001).len(), 2);
    trace.measure(1_100, 160);
    assert_eq!(trace.probes(1_101), [], "the epoch ends 160 us after 1,000");
    trace.measure(1_200, 160);
    assert_eq!(trace.probes(1_201).len(), 2);
}

#[test]
fn hp3_a_path_that_was_a_probed_one_is_left_for_the_other_one() {
    let (mut trace, probes) = probed(260, 100, 120);
    trace.current = trace.send(1_130);
    assert_eq!(trace.current, probes[0]);
    trace.ack(1_440, 300);
    // It was probed at 100 us; now it takes 300, and the other one was probed at 120.
    assert_eq!(trace.send(1_800), probes[1]);
}

#[test]
fn hp3_one_chunk_in_a_round_trip_is_enough_to_leave_a_path() {
    let mut trace = Trace::new(8, "hopper");
    trace.measure(1_000, 300);
    trace.send(1_001);
    let probes: Vec<PathId> = std::iter::from_fn(|| trace.policy.poll_probe()).collect();
    trace.sample(1_101, probes[0], 100);
    trace.sample(1_121, probes[1], 120);
    // The chunk is expected back when the only other one was, after 300 us, and the new path takes 100.
    assert_eq!(trace.policy.resumes_at(), us(1_201));
    assert_eq!(trace.send(1_302), probes[0]);
}

#[test]
fn hp3_the_second_of_two_probes_is_waited_for_while_it_may_be_clearly_better() {
    let wait = |second: Option<u64>| {
        let mut trace = Trace::new(8, "hopper");
        trace.measure(1_000, 300);
        let probes = trace.probes(1_000);
        trace.sample(1_150, probes[0], 150);
        trace.measure(1_160, 300);
        assert_eq!(trace.send(1_161), trace.current);
        match second {
            Some(rtt) => trace.sample(1_000 + rtt, probes[1], rtt),
            // At 240 us, four fifths of 300, it is not clearly better any more.
            None => {
                trace.measure(1_240, 300);
                assert_eq!(trace.send(1_240), trace.current);
                trace.ack(1_241, 300);
            }
        }
        probes.iter().position(|&path| path == trace.send(3_000))
    };
    assert_eq!(wait(Some(170)), Some(0));
    assert_eq!(wait(None), Some(0));
    // One that was sent after the first, and is faster.
    let mut trace = Trace::new(8, "hopper");
    trace.measure(1_000, 300);
    let probes = trace.probes(1_000);
    trace.sample(1_150, probes[0], 150);
    trace.measure(1_160, 300);
    trace.sample(1_170, probes[1], 120);
    assert_eq!(trace.send(3_000), probes[1]);
}

/// When the next chunk may leave after a switch to a path of 100 us. Ten chunks left at 1,000 us after `before` samples of
/// 4 GiB each;/// three came back, at 1,300, 1,350 and 1,400, and `lost` were declared lost. An eleventh left at 1,400.
fn resumes_at(before: u64, lost: u32) -> Time {
    let mut trace = Trace::new(8, "hopper");
    let current = trace.current;
    for at in 0..before {
        let now = us(200 + at);
        trace.policy.on_sent(now, current, u32::MAX);
        let sample = PathSample {
            path: current,
            rtt: Some(Nanos::from_micros(100)),
            packets: 1,
            ce: 0,
            bytes: u32::MAX,
        };
        let view = trace.set.view(now, &trace.in_flight);
        trace.policy.on_ack(&view, &sample);
    }
    let start = before + 1_000;
    for _ in 0..10 {
        trace.send(start);
    }
    for chunk in 0..3 {
        let rtt = 300 + 50 * chunk;
        trace.ack(start + rtt, rtt);
    }
    trace.in_flight[usize::from(current.0)] -= lost * CHUNK;
    trace.send(start + 400);
    let probes: Vec<PathId> = std::iter::from_fn(|| trace.policy.poll_probe()).collect();
    trace.sample(start + 500, probes[0], 100);
    trace.sample(start + 520, probes[1], 120);
    let resumes_at = trace.policy.resumes_at();
    Time::from_nanos(resumes_at.as_nanos() - before * 1_000)
}

#[test]
fn hp3_what_was_lost_is_not_waited_for_before_a_switch() {
    // Of eleven, eight are in flight: the last is back 50 us after the one before each.
    assert_eq!(resumes_at(0, 0), us(1_700));
    assert_eq!(resumes_at(0, 5), us(1_450));
}

#[test]
fn hp3_the_last_packet_is_predicted_as_well_after_terabytes_on_a_path() {
    assert_eq!(resumes_at(40_000, 0), us(1_700));
    assert_eq!(resumes_at(40_000, 5), us(1_450));
}

#[test]
fn hp3_a_chunk_that_was_held_back_is_chosen_for_anew_after_a_switch() {
    let mut trace = Trace::new(8, "hopper");
    let before = trace.current;
    assert!(trace.policy.keeps(before));
    trace.measure(1_000, 300);
    trace.send(1_001);
    let probes: Vec<PathId> = std::iter::from_fn(|| trace.policy.poll_probe()).collect();
    trace.sample(1_101, probes[0], 100);
    trace.sample(1_121, probes[1], 120);
    assert!(!trace.policy.keeps(before) && trace.policy.keeps(probes[0]));
}

#[test]
fn hp3_a_lost_chunk_goes_elsewhere_and_the_path_stays() {
    let mut trace = Trace::new(8, "hopper");
    let current = trace.current;
    let set = &trace.set;
    let again = set.choose_again(
        &mut trace.policy,
        current,
        us(500),
        us(1_000),
        &trace.in_flight,
        &mut trace.rng,
    );
    assert!(again.is_some_and(|path| path != current));
    assert_eq!(trace.send(1_001), current);
}

#[test]
fn hp1_what_the_congestion_control_queues_is_part_of_the_base_rtt() {
    let mut trace = Trace::beside(CongestionKind::EcnRtt {
        target_queueing: Nanos::from_micros(50),
    });
    // Up to 50 us on the least delayed packet of a round, and as much again on the others: 200 us in all.
    trace.measure(1_000, 300);
    assert_eq!(trace.probes(1_001), []);
    trace.measure(1_010, 301);
    assert_eq!(trace.probes(1_011).len(), 2);
}

#[test]
fn hp3_a_path_is_kept_until_as_much_was_acknowledged_there_as_is_in_flight() {
    let (mut trace, probes) = probed(260, 100, 120);
    trace.current = trace.send(1_130);
    assert_eq!(trace.current, probes[0]);
    for _ in 0..3 {
        trace.send(1_130);
    }
    // Four are in flight, and the other probe is clearly better.
    trace.ack(1_390, 260);
    assert!(
        trace.policy.keeps(probes[0]),
        "one, and three are in flight"
    );
    trace.ack(1_400, 270);
    assert_eq!(trace.send(1_800), probes[1], "two, and two are in flight");
}

/// One slow lane beside three of 1 Gbit/s, whose queues hold so many bytes, and a connection of four paths.
fn unequal(queue: u64, seed: u64) -> (Network, usize) {
    let lane = |mbps| Lane {
        mbps,
        delay: Nanos::from_micros(100),
        queue,
    };
    let policy: PolicyKind = "hopper".parse().expect("listed");
    let mut network = Network::new(&[100, 1_000, 1_000, 1_000].map(lane));
    let flow = network.connect(4, policy, CongestionKind::ECN_RTT, seed);
    network.flow(flow).chunks = Some(Vec::new());
    (network, flow)
}

#[test]
fn hp3_a_connection_on_a_slow_spine_is_on_a_fast_one_within_20_round_trips_of_the_first_probe() {
    let (mut switches, mut reordered) = (0, 0);
    for seed in 0..480 {
        let (mut network, flow) = unequal(512 << 10, seed);
        network.run(Nanos::from_millis(100));
        let rate = network.run(Nanos::from_millis(200))[flow];
        assert!(rate >= 900, "seed {seed}: {rate}");
        let probed = network.flow(flow).first_probe;
        let chunks = network.flow(flow).chunks.take().expect("asked for");
        for pair in chunks
            .windows(2)
            .filter(|pair| pair[0].path != pair[1].path)
        {
            switches += 1;
            reordered += u32::from(pair[1].arrives.0 < pair[0].arrives.1);
        }
        if chunks[0].path != PathId(0) {
            continue;
        }
        // A round trip on the slow spine while its queue is empty: 0.2 ms and a chunk's 5.2 ms.
        let switched = chunks.iter().find(|chunk| chunk.path != PathId(0));
        let after = switched.expect("switched").at - probed.expect("the queue grows");
        assert!(after / 5_400_000 < 20, "seed {seed}: {after} ns");
    }
    assert!(switches >= 100, "{switches}");
    assert!(
        reordered * 20 <= switches,
        "{reordered} of {switches} reordered"
    );
}

#[test]
fn hp3_a_connection_stays_on_a_fast_spine_however_large_its_window_was() {
    for seed in 0..48 {
        // 34 ms at 1 Gbit/s: no loss makes the window smaller.
        let (mut network, flow) = unequal(4 << 20, seed);
        network.run(Nanos::from_millis(300));
        network.flow(flow).chunks = Some(Vec::new());
        let rate = network.run(Nanos::from_secs(1))[flow];
        assert!(rate >= 900, "seed {seed}: {rate}");
        let chunks = network.flow(flow).chunks.take().expect("asked for");
        let first = chunks[0].path;
        assert!(
            chunks.iter().all(|chunk| chunk.path == first),
            "seed {seed}"
        );
    }
}

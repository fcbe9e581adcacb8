//! Devices that are limited in work requests per second.

#[expect(dead_code, reason = "much of it is for other tests")]
mod program;

use std::cell::RefCell;
use std::num::NonZeroU32;
use std::rc::Rc;
use std::time::Duration;

use program::{Program, RELIABLE, device};
use weft_device::work_request::{Operation, Payload};
use weft_device_server::Device;

/// Two programs that have a limited device open, each connected to one of another device, all of one node.
struct Limited {
    writers: [Program; 2],
    targets: [Program; 2],
}

impl Limited {
    fn new(ops_per_s: u32) -> Self {
        let devices = Rc::new(RefCell::new(program::start()));
        let limited = Device {
            ops_per_s: NonZeroU32::new(ops_per_s),
            ..device(1)
        };
        let open = |device: &Device| Program::of(&devices, device, RELIABLE, 256);
        let writers = [(); 2].map(|()| open(&limited));
        let targets = [(); 2].map(|()| open(&device(2)));
        let mut all = Self { writers, targets };
        for (writer, target) in all.writers.iter_mut().zip(&mut all.targets) {
            writer.init();
            target.init();
            writer.ready(target.name());
            target.ready(writer.name());
        }
        // Each has its connection when one write of it is done.
        all.post(0, 1);
        all.post(1, 1);
        let done = all.until(Duration::ZERO, 2);
        assert_eq!(done, [1, 1]);
        all
    }

    fn post(&mut self, writer: usize, count: u64) {
        let to = self.targets[writer].remote(0);
        for wr_id in 0..count {
            let payload = Payload::Inline(&[7; 8]);
            self.writers[writer].post(wr_id, Operation::Write(to), payload);
        }
    }

    /// Completions of each writer while the clock stands still: at least so many of all, and those that come after.
    fn until(&mut self, now: Duration, least: u32) -> [u32; 2] {
        let mut done = [0; 2];
        let begun = std::time::Instant::now();
        loop {
            let before = done;
            for (done, writer) in done.iter_mut().zip(&mut self.writers) {
                *done += writer.completions_at(now);
            }
            if done.iter().sum::<u32>() >= least && done == before {
                return done;
            }
            assert!(begun.elapsed().as_secs() < 30, "{done:?}");
        }
    }
}

#[test]
fn st4_a_device_begins_no_more_work_requests_than_its_limit() {
    let mut limited = Limited::new(500);
    limited.post(0, 30);
    // It was idle for long: a hundredth of a second's at once.
    let later = Duration::from_secs(5);
    assert_eq!(limited.until(later, 5), [5, 0]);
    assert_eq!(limited.until(later + Duration::from_millis(1), 0), [0, 0]);
    assert_eq!(limited.until(later + Duration::from_millis(2), 1), [1, 0]);
    assert_eq!(limited.until(later + Duration::from_millis(8), 3), [3, 0]);
    assert_eq!(limited.until(later + Duration::from_secs(60), 5), [5, 0]);
}

#[test]
fn st4_programs_of_a_limited_device_take_turns_however_much_each_has_posted() {
    let mut limited = Limited::new(500);
    limited.post(0, 60);
    limited.post(1, 12);
    let mut done = [0; 2];
    for round in 1..=4 {
        let now = Duration::from_secs(5 + round);
        for (done, more) in done.iter_mut().zip(limited.until(now, 5)) {
            *done += more;
        }
    }
    assert_eq!(done, [10, 10]);
}

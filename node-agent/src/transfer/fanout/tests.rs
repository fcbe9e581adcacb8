use std::collections::VecDeque;

use super::*;
use crate::transfer::buffers::Buffer;
use crate::transfer::frame::Frame;
use crate::transfer::message::Builder;

const SLOTS: u16 = 4;

/// A message whose one block carries its number.
fn message(number: u32) -> Message {
    let mut buffer = vec![0; 256].into_boxed_slice();
    let mut builder = Builder::new(&mut buffer);
    builder.frame(&Frame::Block {
        file: 0,
        block: number,
        digest: [0; 32],
        data: &number.to_le_bytes(),
    });
    let bytes = builder.finish();
    Message {
        buffer: Arc::new(buffer),
        bytes,
    }
}

fn number_of(message: &Message) -> u32 {
    match crate::transfer::frame::Frames::new(&message.buffer).next() {
        Some(Ok(Frame::Block { block, .. })) => block,
        other => panic!("{other:?}"),
    }
}

/// Does what the fanout asks for, with so many buffers. Children return credits when a test says so.
struct Bench {
    fanout: Fanout,
    buffers: usize,
    /// All that were made.
    made: Vec<std::sync::Weak<Buffer>>,
    /// Asked for, and not built for want of a buffer.
    asked: VecDeque<u32>,
    got: Vec<Vec<u32>>,
    /// What is under way to each child.
    slots: Vec<VecDeque<(u16, Message)>>,
    built: Vec<u32>,
}

impl Bench {
    fn new(messages: u32, children: usize, readable_until: u32) -> Self {
        let buffers = SendLimits::buffers_most(children, usize::from(SLOTS));
        Self::with(messages, children, readable_until, buffers)
    }

    fn with(messages: u32, children: usize, readable_until: u32, buffers: usize) -> Self {
        let limits = SendLimits::of(buffers, children);
        let mut bench = Self {
            fanout: Fanout::new(messages, children, readable_until, limits),
            buffers,
            made: Vec::new(),
            asked: VecDeque::new(),
            got: vec![Vec::new(); children],
            slots: vec![VecDeque::new(); children],
            built: Vec::new(),
        };
        for child in 0..children {
            bench
                .fanout
                .connected(child, SLOTS, PresentBlocks::default());
        }
        bench.settle();
        bench
    }

    fn settle(&mut self) {
        loop {
            if let Some(action) = self.fanout.poll() {
                match action {
                    Action::Build(number) => self.asked.push_back(number),
                    Action::Send {
                        child,
                        slot,
                        message,
                    } => {
                        self.got[child].push(number_of(&message));
                        self.slots[child].push_back((slot, message));
                    }
                }
                let most = CACHE_MESSAGES + self.got.len();
                assert!(self.fanout.cache.len() + self.fanout.building.len() <= most);
                continue;
            }
            self.made.retain(|made| made.strong_count() > 0);
            if self.made.len() >= self.buffers {
                return;
            }
            let Some(number) = self.asked.pop_front() else {
                return;
            };
            self.built.push(number);
            let message = message(number);
            self.made.push(Arc::downgrade(&message.buffer));
            self.fanout.built(number, message);
        }
    }

    fn credit(&mut self, child: usize) -> bool {
        let Some((slot, _)) = self.slots[child].pop_front() else {
            return false;
        };
        self.fanout.credit(child, slot.into()).unwrap();
        self.settle();
        true
    }
}

#[test]
fn every_child_gets_every_message_once_and_in_order() {
    let mut bench = Bench::new(100, 3, 100);
    while (0..3).any(|child| bench.credit(child)) {}
    let all: Vec<u32> = (0..100).collect();
    assert_eq!(bench.got, vec![all; 3]);
    assert!(bench.fanout.is_over());
}

#[test]
fn a_child_that_returns_no_credit_holds_nobody_up_and_is_caught_up_by_reading_again() {
    let mut bench = Bench::new(100, 2, 100);
    while bench.credit(0) {}
    assert_eq!(bench.got[0].len(), 100);
    assert_eq!(bench.got[1].len(), usize::from(SLOTS));
    assert!(!bench.fanout.is_over());
    while bench.credit(1) {}
    assert_eq!(bench.got[1].len(), 100);
    assert!(bench.fanout.is_over());
    assert!(bench.built.len() > 100);
}

#[test]
fn children_in_step_share_what_is_read_once() {
    let mut bench = Bench::new(100, 3, 100);
    loop {
        let moved: Vec<bool> = (0..3).map(|child| bench.credit(child)).collect();
        if !moved.contains(&true) {
            break;
        }
    }
    assert_eq!(bench.built.len(), 100);
}

#[test]
fn a_relay_sends_only_what_it_has() {
    let mut bench = Bench::new(10, 1, 0);
    assert!(bench.got[0].is_empty());
    bench.fanout.built(0, message(0));
    bench.fanout.set_readable_until(1);
    bench.settle();
    assert_eq!(bench.got[0], [0]);
    bench.fanout.set_readable_until(3);
    bench.settle();
    assert_eq!(bench.got[0], [0, 1, 2]);
    assert_eq!(bench.built, [1, 2]);
}

#[test]
fn a_failed_child_ends_for_itself_only() {
    let mut bench = Bench::new(20, 2, 20);
    bench.fanout.failed(0);
    while bench.credit(1) {}
    assert!(bench.fanout.is_over());
    assert!(bench.fanout.is_done(1) && !bench.fanout.is_done(0));
}

#[test]
fn a_credit_that_was_not_given_is_refused() {
    let mut bench = Bench::new(3, 1, 3);
    let slot = bench.slots[0][0].0;
    assert!(bench.fanout.credit(0, 77).is_err());
    assert!(bench.fanout.credit(0, slot.into()).is_ok());
    assert!(bench.fanout.credit(0, slot.into()).is_err());
}

#[test]
fn a_child_that_withholds_one_credit_is_not_sent_more_than_it_may_take() {
    let mut bench = Bench::new(200, 1, 200);
    let (withheld, _) = bench.slots[0].pop_front().unwrap();
    while bench.credit(0) {}
    // Message 0 is not acknowledged.
    let all: Vec<u32> = (0..WINDOW_MESSAGES).collect();
    assert_eq!(bench.got[0], all);
    bench.fanout.credit(0, withheld.into()).unwrap();
    bench.settle();
    while bench.credit(0) {}
    assert_eq!(bench.got[0].len(), 200);
    assert!(bench.fanout.is_over());
}

#[test]
fn with_any_number_of_buffers_a_child_that_stands_still_holds_nobody_up() {
    for children in 1..=5 {
        let least = SendLimits::buffers_least(children);
        let most = SendLimits::buffers_most(children, usize::from(SLOTS));
        for buffers in least..=most {
            let mut bench = Bench::with(60, children, 60, buffers);
            // All but the first; then that one, too.
            while (1..children).any(|child| bench.credit(child)) {}
            let all: Vec<u32> = (0..60).collect();
            assert!(bench.got[1..].iter().all(|got| *got == all), "{buffers}");
            while bench.credit(0) {}
            assert_eq!(bench.got[0], all, "{buffers}");
            assert!(bench.fanout.is_over());
        }
    }
}

#[test]
fn with_the_least_of_buffers_children_that_go_on_at_random_get_everything() {
    let mut state = 1_u32;
    let mut bench = Bench::with(40, 3, 40, SendLimits::buffers_least(3));
    while !bench.fanout.is_over() {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let child = (state >> 16) as usize % 3;
        let others = [child, (child + 1) % 3, (child + 2) % 3];
        assert!(others.into_iter().any(|child| bench.credit(child)));
    }
    let all: Vec<u32> = (0..40).collect();
    assert_eq!(bench.got, vec![all; 3]);
}

#[test]
fn sixty_four_children_need_fewer_buffers_than_an_agent_has_by_default() {
    let children = 64;
    let least = SendLimits::buffers_least(children);
    // Two of these senders, each with the slots of a relay.
    let memory = crate::config::Limits::default().memory.0;
    let slots = usize::from(crate::config::SLOTS_MIN);
    assert!(2 * (least + slots) <= memory as usize / crate::transfer::frame::SLOT_BYTES);

    let mut bench = Bench::with(40, children, 40, least);
    // They come to stand still with different messages.
    for child in 0..STANDING_STILL_MAX {
        for _ in 0..child {
            bench.credit(child);
        }
    }
    while (STANDING_STILL_MAX..children).any(|child| bench.credit(child)) {}
    let all: Vec<u32> = (0..40).collect();
    assert!(
        bench.got[STANDING_STILL_MAX..]
            .iter()
            .all(|got| *got == all)
    );
    while (0..children).any(|child| bench.credit(child)) {}
    assert!(bench.got.iter().all(|got| *got == all));
    assert!(bench.fanout.is_over());
}

#[test]
fn fewer_buffers_are_made_do_with_as_soon_as_they_are_fewer() {
    let mut bench = Bench::new(60, 2, 60);
    let least = SendLimits::buffers_least(2);
    bench.buffers = least;
    bench.fanout.set_limits(SendLimits::of(least, 2));
    bench.settle();
    while (0..2).any(|child| bench.credit(child)) {
        let in_flight: Vec<usize> = bench.slots.iter().map(VecDeque::len).collect();
        assert!(in_flight.iter().all(|count| *count <= usize::from(SLOTS)));
    }
    let all: Vec<u32> = (0..60).collect();
    assert_eq!(bench.got, vec![all; 2]);
    assert!(bench.fanout.cache.len() <= 1);
}

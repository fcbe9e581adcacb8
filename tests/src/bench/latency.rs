//! `latency`: one way of a write of 8 bytes, by who runs the workers.
//!
//! The two ends write to each other in turn; each writes when the other's message is there. Half of
//! a round trip is one way. Every message carries its number, which its receiver checks.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use weft_engine::Progress;

use super::ends::{Ends, Shape};
use super::host::{End, Happened, Host, Landing, Source, Target, Write};
use super::rounds::{Must, Rounds};
use super::ucx::{Test, Ucx};
use super::{BenchError, Context};
use crate::report::{Row, median};

const BYTES: usize = 8;
/// Longer than any gap between two messages here: a worker that polls never sleeps.
const POLLS: Duration = Duration::from_millis(1);
/// One round trip in so many more is made before counting begins.
const WARM_UP: usize = 10;
/// No message takes a thousandth of it.
const PATIENCE: Duration = Duration::from_secs(10);

/// Who runs the workers, and what must hold.
struct Case {
    id: &'static str,
    says: &'static str,
    progress: Progress,
    spin: Duration,
    most: f64,
}

const CASES: [Case; 3] = [
    Case {
        id: "latency-inline",
        says: "the caller polls the engine",
        progress: Progress::Inline,
        spin: POLLS,
        most: 6.0,
    },
    Case {
        id: "latency-polling",
        says: "worker threads that poll",
        progress: Progress::Threads(1),
        spin: POLLS,
        most: 15.0,
    },
    Case {
        id: "latency-sleeping",
        says: "worker threads that sleep",
        progress: Progress::Threads(1),
        spin: Duration::ZERO,
        most: 40.0,
    },
];

/// A row for each case.
pub(super) fn measure(context: &Context) -> Result<Vec<Row>, BenchError> {
    let fabric = context.two_nodes()?;
    let count = if context.quick { 2_000 } else { 20_000 };
    let ucx = Ucx::find();
    let mut rounds = [(); CASES.len()].map(|()| Rounds::default());
    let mut slow = [(); CASES.len()].map(|()| Rounds::default());
    for _ in 0..context.rounds {
        let theirs = match &ucx {
            Some(ucx) => Some(ucx.measure(
                &fabric,
                Test::Latency {
                    bytes: BYTES,
                    count,
                },
            )?),
            None => None,
        };
        for ((case, rounds), slow) in CASES.iter().zip(&mut rounds).zip(&mut slow) {
            let ends = Ends::start(&fabric, case.shape())?;
            let mut ways = exchange(ends, count)?;
            let middle = median(&mut ways);
            match theirs {
                Some(theirs) => rounds.add_pair(middle, theirs),
                None => rounds.add(middle),
            }
            // Sorted by the median.
            slow.add(ways[ways.len() * 99 / 100]);
        }
    }
    let peer = Ucx::peer(ucx.as_ref(), "tag_lat");
    Ok(CASES
        .iter()
        .zip(rounds.iter().zip(&slow))
        .map(|(case, (rounds, slow))| {
            let work = format!(
                "write of {BYTES} B one way, {}; 99th percentile {:.1}",
                case.says,
                slow.ours()
            );
            rounds.row(case.id, work, "µs", &peer, Must::AtMost(case.most))
        })
        .collect())
}

impl Case {
    fn shape(&self) -> Shape {
        Shape {
            progress: self.progress,
            spin: Some(self.spin),
            ..Shape::default()
        }
    }
}

/// Microseconds of each way.
pub(super) fn exchange(ends: Ends, count: usize) -> Result<Vec<f64>, BenchError> {
    let (near, far) = ends.connect()?;
    let Ends { sender, receiver } = ends;
    let over = AtomicBool::new(false);
    let inline = sender.is_inline();
    let mut asking = Side::new(sender, near, inline);
    let mut answering = Side::new(receiver, far, inline);
    asking.peer = answering.own.target;
    answering.peer = asking.own.target;
    let warm_up = count / WARM_UP;
    let total = warm_up + count;
    thread::scope(|scope| {
        let answers = scope.spawn(|| {
            let answered = answer(&mut answering, total, &over);
            // The other end needs its last acknowledgements from an engine that is still polled.
            while inline && answered.is_ok() && !over.load(Ordering::Acquire) {
                answering.host.poll()?;
            }
            answered
        });
        let asked = ask(&mut asking, total, &over);
        over.store(true, Ordering::Release);
        let answered = answers
            .join()
            .map_err(|_| BenchError::Panicked("the answering end"))?;
        let mut ways = asked?;
        answered?;
        Ok(ways.split_off(warm_up))
    })
}

/// Microseconds of each write until it is done, one after the other. Both ends are polled by their callers.
pub(super) fn until_done(ends: Ends, count: usize) -> Result<Vec<f64>, BenchError> {
    let (near, far) = ends.connect()?;
    let Ends { sender, receiver } = ends;
    let over = AtomicBool::new(false);
    let mut writing = Side::new(sender, near, true);
    let mut receiving = Side::new(receiver, far, true);
    writing.peer = receiving.own.target;
    let warm_up = count / WARM_UP;
    let total = warm_up + count;
    thread::scope(|scope| {
        let receives = scope.spawn(|| {
            let received = receive_each(&mut receiving, total as u64, &over);
            // The other end needs its last acknowledgements.
            while received.is_ok() && !over.load(Ordering::Acquire) {
                receiving.host.poll()?;
            }
            received
        });
        let wrote = write_each(&mut writing, total);
        over.store(true, Ordering::Release);
        let received = receives
            .join()
            .map_err(|_| BenchError::Panicked("the receiving end"))?;
        let mut times = wrote?;
        received?;
        Ok(times.split_off(warm_up))
    })
}

fn receive_each(side: &mut Side, total: u64, over: &AtomicBool) -> Result<(), BenchError> {
    for number in 0..total {
        side.wait(over)?;
        // The next message may be there as well: nothing is answered.
        if !(number..total).contains(&side.received()) {
            return Err(differs(number));
        }
    }
    Ok(())
}

fn write_each(side: &mut Side, total: usize) -> Result<Vec<f64>, BenchError> {
    (0..total as u64)
        .map(|number| {
            let begun = Instant::now();
            side.send(number)?;
            while side.written < side.posted {
                side.host.poll()?;
                if let Some(Happened::Written { .. }) = side.end.take()? {
                    side.written += 1;
                }
                if begun.elapsed() >= PATIENCE {
                    return Err(BenchError::Silent {
                        what: "acknowledgements",
                        seconds: PATIENCE.as_secs(),
                    });
                }
            }
            Ok(begun.elapsed().as_secs_f64() * 1e6)
        })
        .collect()
}

/// One end with its region and that of the other end.
struct Side {
    host: Host,
    end: End,
    inline: bool,
    own: Landing,
    peer: Target,
    source: Source,
    posted: u64,
    written: u64,
}

impl Side {
    fn new(host: Host, end: End, inline: bool) -> Self {
        let own = host.register(vec![0; BYTES]);
        Self {
            host,
            end,
            inline,
            own,
            peer: Target::NONE,
            source: Source::new(vec![0; BYTES]),
            posted: 0,
            written: 0,
        }
    }

    fn send(&mut self, number: u64) -> Result<(), BenchError> {
        // A source that is still under way would keep its old number: the peer's message, which
        // came after this end's last one, may have overtaken the acknowledgement of that one.
        if self.written < self.posted {
            self.source = Source::new(vec![0; BYTES]);
        }
        self.source.set_head(&number.to_le_bytes());
        self.posted += 1;
        self.host.write(
            &self.end,
            Write {
                source: &self.source,
                bytes: BYTES,
                target: self.peer,
                offset: 0,
                immediate: Some(0),
                context: 0,
            },
        )
    }

    /// Waits for the peer's message with this number.
    fn expect(&mut self, number: u64, over: &AtomicBool) -> Result<(), BenchError> {
        self.wait(over)?;
        match self.received() == number {
            true => Ok(()),
            false => Err(differs(number)),
        }
    }

    /// Waits for a message.
    fn wait(&mut self, over: &AtomicBool) -> Result<(), BenchError> {
        let since = Instant::now();
        loop {
            let happened = if self.inline {
                self.host.poll()?;
                self.end.take()?
            } else {
                self.end.wait(PATIENCE)?
            };
            match happened {
                Some(Happened::Arrived { .. }) => return Ok(()),
                Some(Happened::Written { .. }) => self.written += 1,
                Some(Happened::Signal { .. }) => {}
                None if over.load(Ordering::Acquire) || since.elapsed() >= PATIENCE => {
                    return Err(BenchError::Silent {
                        what: "messages of 8 bytes",
                        seconds: PATIENCE.as_secs(),
                    });
                }
                None => {}
            }
        }
    }

    /// The number of the peer's last message.
    fn received(&self) -> u64 {
        let mut received = [0; BYTES];
        self.own.read(0, &mut received);
        u64::from_le_bytes(received)
    }
}

fn differs(number: u64) -> BenchError {
    BenchError::Differs {
        write: number,
        at: 0,
    }
}

fn ask(side: &mut Side, total: usize, over: &AtomicBool) -> Result<Vec<f64>, BenchError> {
    (0..total as u64)
        .map(|number| {
            let begun = Instant::now();
            side.send(number)?;
            side.expect(number, over)?;
            Ok(begun.elapsed().as_secs_f64() * 1e6 / 2.0)
        })
        .collect()
}

fn answer(side: &mut Side, total: usize, over: &AtomicBool) -> Result<(), BenchError> {
    for number in 0..total as u64 {
        side.expect(number, over)?;
        side.send(number)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_go_to_and_fro_whoever_runs_the_workers() {
        for (draw, case) in (0..).zip(&CASES) {
            let ends = Ends::on_loopback(Shape {
                draw,
                ..case.shape()
            });
            assert_eq!(exchange(ends, 5).unwrap().len(), 5, "{}", case.id);
        }
    }

    #[test]
    fn writes_of_a_polled_engine_are_done_one_by_one() {
        let ends = Ends::on_loopback(Shape {
            draw: 12,
            ..CASES[0].shape()
        });
        assert_eq!(until_done(ends, 5).unwrap().len(), 5);
    }
}

//! Figure 8: bandwidth against the memory that writes go through.
//!
//! As in the paper, 16 connections write in turn, each from memory of its own into memory of its own. Here two engines
//! do, in two nodes of a fabric in this machine, into host memory: there is neither NIC nor GPU. Beside them one thread
//! copies through as much memory, which shows what the processor's caches do to both. What a small cache of
//! translations would do is a model ([`translation_cache`]) with the same order of accesses.

use std::time::{Duration, Instant};

use super::drawing::{Axis, Drawing, Line, LineOrigin, Panel, Unit};
use super::translation_cache::{self, PAGE_BYTES, TRANSLATIONS};
use crate::bench::ends::{Ends, Shape};
use crate::bench::host::{End, Happened, Landing, Source, Write, connect_many};
use crate::bench::rounds::Rounds;
use crate::bench::writes::{first_difference, pattern};
use crate::bench::{BenchError, Context};

const CONNECTIONS: u64 = 16;
const WRITE_BYTES: u64 = 128 << 10;
/// Bytes of all connections' targets: 2 MiB doubled so many times, to 1 GiB.
const SIZES: std::ops::RangeInclusive<u32> = 0..=9;
const LEAST: u64 = CONNECTIONS * WRITE_BYTES;
/// Bytes that a round moves, at least one lap.
const ROUND_BYTES: u64 = 1 << 30;
/// Writes under way, of all connections.
const OUTSTANDING: u64 = 64;
/// No write here takes this long.
const PATIENCE: Duration = Duration::from_secs(60);

/// What the paper's text says of a ConnectX-6 with an ATC: GDR at 190 Gbit/s, at 170 for messages over 2 MB, and at about
/// 150 over 32 MB. Each of 16 connections has one message's memory. The points are the first sizes beyond those.
const PAPER: [(u64, f64); 3] = [
    (CONNECTIONS * (2 << 20), 1.0),
    (CONNECTIONS * (4 << 20), 170.0 / 190.0),
    (CONNECTIONS * (64 << 20), 150.0 / 190.0),
];

/// Which connection's turn it is, and which of its places a write goes to.
fn lap(working_set: u64) -> impl Iterator<Item = (usize, usize)> + Clone {
    let places = working_set / LEAST;
    (0..places).flat_map(|place| (0..CONNECTIONS).map(move |of| (of as usize, place as usize)))
}

/// The pages of a lap, by their number among all connections' pages.
fn pages(working_set: u64) -> impl Iterator<Item = u64> + Clone {
    let of_a_connection = working_set / CONNECTIONS / PAGE_BYTES;
    let of_a_write = WRITE_BYTES / PAGE_BYTES;
    lap(working_set).flat_map(move |(connection, place)| {
        let first = connection as u64 * of_a_connection + place as u64 * of_a_write;
        first..first + of_a_write
    })
}

pub(super) fn measure(context: &Context) -> Result<Drawing, BenchError> {
    let fabric = context.two_nodes()?;
    let ends = Ends::start(&fabric, Shape::default())?;
    let bytes = if context.quick {
        ROUND_BYTES / 8
    } else {
        ROUND_BYTES
    };
    let sets: Vec<u64> = SIZES.map(|doubled| LEAST << doubled).collect();
    let mut rates: Vec<(Rounds, Rounds)> = vec![Default::default(); sets.len()];
    for _ in 0..context.rounds {
        for (set, (ours, copied)) in sets.iter().zip(&mut rates) {
            let targets = Targets::new(&ends, *set)?;
            ours.add(targets.rate(bytes)?);
            copied.add(targets.copy_rate(bytes));
        }
    }
    let points = |rate: &dyn Fn(&(Rounds, Rounds)) -> f64| -> Vec<(f64, f64)> {
        let first = rates.first().map_or(1.0, rate);
        let each = sets.iter().zip(&rates);
        let each = each.map(|(set, rates)| (*set as f64, rate(rates) / first));
        each.collect()
    };
    let (ours, copied) = rates
        .first()
        .map_or((0.0, 0.0), |(ours, copied)| (ours.ours(), copied.ours()));
    let model = sets
        .iter()
        .map(|set| (*set as f64, translation_cache::share(pages(*set))));
    let lines = vec![
        Line::new(
            LineOrigin::Measured,
            format!("Weft, engine to engine, measured (1.0 is {ours:.2} GB/s)"),
            points(&|rates| rates.0.ours()),
        ),
        Line::new(
            LineOrigin::Measured,
            format!("memcpy by one thread, measured (1.0 is {copied:.2} GB/s)"),
            points(&|rates| rates.1.ours()),
        ),
        Line::new(
            LineOrigin::Model,
            format!("a NIC with an ATC of {TRANSLATIONS} pages, model"),
            model.collect(),
        ),
        Line::new(
            LineOrigin::Paper,
            "ConnectX-6 with ATC, the paper's text (1.0 is 190 Gbit/s)",
            PAPER.map(|(bytes, share)| (bytes as f64, share)).to_vec(),
        ),
    ];
    Ok(Drawing {
        title: "Bandwidth against the working set (STELLAR, Figure 8)".to_owned(),
        panels: vec![Panel {
            x: Axis {
                label: "memory that 16 connections write to",
                unit: Unit::Bytes,
            },
            y: Axis {
                label: "bandwidth, of that at 2 MiB",
                unit: Unit::Share,
            },
            lines,
        }],
    })
}

/// Connections, and what each of them writes where.
struct Targets<'e> {
    ends: &'e Ends,
    working_set: u64,
    /// The sender's end and the receiver's.
    connections: Vec<(End, End)>,
    /// By connection and place.
    sources: Vec<Vec<Source>>,
    landings: Vec<Landing>,
}

impl<'e> Targets<'e> {
    fn new(ends: &'e Ends, working_set: u64) -> Result<Self, BenchError> {
        let connections = connect_many(&ends.sender, &ends.receiver, CONNECTIONS as usize)?;
        let places = working_set / LEAST;
        let source = |number| Source::new(pattern(number, WRITE_BYTES as usize));
        let sources = (0..CONNECTIONS).map(|of| {
            (0..places)
                .map(|place| source(of * places + place))
                .collect()
        });
        let landing = |_| {
            let bytes = vec![0xA5; (places * WRITE_BYTES) as usize];
            ends.receiver.register(bytes)
        };
        Ok(Self {
            ends,
            working_set,
            connections,
            sources: sources.collect(),
            landings: (0..CONNECTIONS).map(landing).collect(),
        })
    }

    /// Goes through all memory as often as `bytes` need, after one lap that is not timed, and checks what is there: payload,
    /// GB/s.
    fn rate(&self, bytes: u64) -> Result<f64, BenchError> {
        self.write_laps(1)?;
        let laps = (bytes / self.working_set).max(1);
        let begun = Instant::now();
        self.write_laps(laps)?;
        let took = begun.elapsed();
        self.check()?;
        Ok((laps * self.working_set) as f64 / took.as_secs_f64() / 1e9)
    }

    fn write_laps(&self, laps: u64) -> Result<(), BenchError> {
        let mut outstanding = 0;
        for (connection, place) in (0..laps).flat_map(|_| lap(self.working_set)) {
            if outstanding == OUTSTANDING {
                self.until_written()?;
                outstanding -= 1;
            }
            let write = Write {
                source: &self.sources[connection][place],
                bytes: WRITE_BYTES as usize,
                target: self.landings[connection].target,
                offset: place as u64 * WRITE_BYTES,
                immediate: None,
                context: 0,
            };
            self.ends
                .sender
                .write(&self.connections[connection].0, write)?;
            outstanding += 1;
        }
        (0..outstanding).try_for_each(|_| self.until_written())
    }

    /// All ends of a host share one event queue.
    fn until_written(&self) -> Result<(), BenchError> {
        wait(&self.connections[0].0, |happened| {
            matches!(happened, Happened::Written { .. })
        })
    }

    fn check(&self) -> Result<(), BenchError> {
        // Has the receiver told that all is there: from then on this thread may read it.
        for ((near, _), landing) in self.connections.iter().zip(&self.landings) {
            let write = Write {
                source: &Source::empty(),
                bytes: 0,
                target: landing.target,
                offset: 0,
                immediate: Some(0),
                context: 0,
            };
            self.ends.sender.write(near, write)?;
            self.until_written()?;
            wait(&self.connections[0].1, |happened| {
                matches!(happened, Happened::Arrived { .. })
            })?;
        }
        let mut received = vec![0; WRITE_BYTES as usize];
        for (number, (connection, place)) in (0..).zip(lap(self.working_set)) {
            let offset = place as u64 * WRITE_BYTES;
            self.landings[connection].read(offset, &mut received);
            let sent = self.sources[connection][place].bytes();
            if let Some(at) = first_difference(sent, &received) {
                return Err(BenchError::Differs { write: number, at });
            }
        }
        Ok(())
    }

    /// One thread copies between as much memory in the same order, GB/s.
    fn copy_rate(&self, bytes: u64) -> f64 {
        let places = (self.working_set / LEAST) as usize;
        let mut targets = vec![vec![0xA5; places * WRITE_BYTES as usize]; CONNECTIONS as usize];
        let laps = (bytes / self.working_set).max(1);
        let mut copy = |laps| {
            for (connection, place) in (0..laps).flat_map(|_| lap(self.working_set)) {
                let at = place * WRITE_BYTES as usize;
                let target = &mut targets[connection][at..][..WRITE_BYTES as usize];
                target.copy_from_slice(std::hint::black_box(
                    self.sources[connection][place].bytes(),
                ));
                std::hint::black_box(target);
            }
        };
        copy(1);
        let begun = Instant::now();
        copy(laps);
        (laps * self.working_set) as f64 / begun.elapsed().as_secs_f64() / 1e9
    }
}

impl Drop for Targets<'_> {
    fn drop(&mut self) {
        for (near, far) in &self.connections {
            self.ends.sender.close(near);
            self.ends.receiver.close(far);
        }
        for landing in &self.landings {
            self.ends.receiver.deregister(landing.target);
        }
    }
}

fn wait(end: &End, is_it: impl Fn(&Happened) -> bool) -> Result<(), BenchError> {
    loop {
        match end.wait(PATIENCE)? {
            Some(happened) if is_it(&happened) => return Ok(()),
            Some(_) => {}
            None => {
                return Err(BenchError::Silent {
                    what: "writes of 16 connections",
                    seconds: PATIENCE.as_secs(),
                });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lap_writes_to_each_page_once() {
        let mut pages: Vec<u64> = pages(4 * LEAST).collect();
        pages.sort_unstable();
        let all: Vec<u64> = (0..4 * LEAST / PAGE_BYTES).collect();
        assert_eq!(pages, all);
    }

    #[test]
    fn sixteen_connections_write_through_their_memory() {
        let ends = Ends::on_loopback(Shape {
            draw: 12,
            ..Shape::default()
        });
        let targets = Targets::new(&ends, 2 * LEAST).unwrap();
        assert!(targets.rate(4 * LEAST).unwrap() > 0.0);
        assert!(targets.copy_rate(4 * LEAST) > 0.0);
    }
}

//! `scale`: what many connections between two engines carry together, with the same workers and the same load.

use std::time::{Duration, Instant};

use super::ends::{Ends, Shape};
use super::host::{End, Happened, Landing, Source, Target, Write, connect_many};
use super::raw::MEMORY;
use super::rounds::{Must, Rounds};
use super::writes::{first_difference, pattern};
use super::{BenchError, Context};
use crate::report::Row;

const CONNECTIONS: [usize; 4] = [1, 16, 256, 4096];
const BYTES: usize = 64 << 10;
/// Writes under way, over all connections, which take turns.
const OUTSTANDING: u64 = 256;
/// Of the best, what each number of connections must carry: within 15 %.
const LEAST: f64 = 0.85;
/// No write takes this long.
const PATIENCE: Duration = Duration::from_secs(60);

/// A row for each number of connections.
pub(super) fn measure(context: &Context) -> Result<Vec<Row>, BenchError> {
    let fabric = context.two_nodes()?;
    let ends = Ends::start(&fabric, Shape::default())?;
    // The largest number has four writes on each connection, or one.
    let count: u64 = if context.quick { 4096 } else { 16_384 };
    let sources: Vec<Source> = (0..(MEMORY / BYTES) as u64)
        .map(|place| Source::new(pattern(place, BYTES)))
        .collect();
    let mut rounds = [(); CONNECTIONS.len()].map(|()| Rounds::default());
    for _ in 0..context.rounds {
        let carried = CONNECTIONS.map(|connections| carry(&ends, &sources, connections, count));
        let [one, few, many, most] = carried;
        let rates = [one?, few?, many?, most?];
        let best = rates.into_iter().fold(0.0, f64::max);
        for (rounds, rate) in rounds.iter_mut().zip(rates) {
            rounds.add_pair(rate, best);
        }
    }
    let row = |(connections, rounds): (usize, &Rounds)| {
        let text = format!(
            "{connections} connections of two engines, one worker each: writes of 64 KiB in turn, {OUTSTANDING} under way, \
             MTU {}, every byte checked",
            fabric.spec().mtu
        );
        let must = Must::RatioAtLeast(LEAST);
        rounds.row(
            &format!("scale-{connections}"),
            text,
            "GB/s",
            "the best of the four",
            must,
        )
    };
    Ok(CONNECTIONS.into_iter().zip(&rounds).map(row).collect())
}

/// GB/s of all connections together. Each has carried a write before the clock starts.
fn carry(
    ends: &Ends,
    sources: &[Source],
    connections: usize,
    count: u64,
) -> Result<f64, BenchError> {
    let pairs = connect_many(&ends.sender, &ends.receiver, connections)?;
    let landing = ends.receiver.register(vec![0xA5; count as usize * BYTES]);
    let run = Run {
        ends,
        sources,
        pairs: &pairs,
        landing: &landing,
    };
    run.write(count.min(connections as u64), 0)?;
    let begun = Instant::now();
    run.write(count, 1)?;
    let took = begun.elapsed();
    run.check(count, 1)?;
    for (near, far) in &pairs {
        ends.sender.close(near);
        ends.receiver.close(far);
    }
    ends.receiver.deregister(landing.target);
    Ok(BYTES as f64 * count as f64 / took.as_secs_f64() / 1e9)
}

struct Run<'a> {
    ends: &'a Ends,
    sources: &'a [Source],
    pairs: &'a [(End, End)],
    landing: &'a Landing,
}

impl Run<'_> {
    /// The source of a write: with another `shift` each place gets other bytes.
    fn source(&self, write: u64, shift: u64) -> &Source {
        // A step that is odd, so that places a whole memory apart differ.
        let at = write + write / self.sources.len() as u64 + shift;
        &self.sources[(at % self.sources.len() as u64) as usize]
    }

    fn write(&self, count: u64, shift: u64) -> Result<(), BenchError> {
        let (mut posted, mut written) = (0, 0);
        while written < count {
            while posted < count && posted - written < OUTSTANDING {
                let (near, _) = &self.pairs[(posted % self.pairs.len() as u64) as usize];
                let write = Write {
                    source: self.source(posted, shift),
                    bytes: BYTES,
                    target: self.landing.target,
                    offset: posted * BYTES as u64,
                    immediate: None,
                    context: posted,
                };
                self.ends.sender.write(near, write)?;
                posted += 1;
            }
            // The ends of a host share one queue.
            match self.pairs[0].0.wait(PATIENCE)? {
                Some(Happened::Written { .. }) => written += 1,
                Some(_) => {}
                None => return Err(silent("acknowledgements")),
            }
        }
        Ok(())
    }

    /// Reads all that was written, when the receiver has said that all is there.
    fn check(&self, count: u64, shift: u64) -> Result<(), BenchError> {
        let (near, far) = &self.pairs[0];
        let signal = Write {
            source: &Source::empty(),
            bytes: 0,
            target: Target::NONE,
            offset: 0,
            immediate: Some(0),
            context: 0,
        };
        self.ends.sender.write(near, signal)?;
        loop {
            match far.wait(PATIENCE)? {
                Some(Happened::Signal { .. }) => break,
                Some(_) => {}
                None => return Err(silent("the last message")),
            }
        }
        let mut received = vec![0; BYTES];
        for write in 0..count {
            self.landing.read(write * BYTES as u64, &mut received);
            let sent = self.source(write, shift).bytes();
            if let Some(at) = first_difference(sent, &received) {
                return Err(BenchError::Differs { write, at });
            }
        }
        Ok(())
    }
}

fn silent(what: &'static str) -> BenchError {
    BenchError::Silent {
        what,
        seconds: PATIENCE.as_secs(),
    }
}

//! Memory-to-memory writes between two engines: their rate, the receiver's CPU time, and whether
//! every byte arrived.
//!
//! The writes go to consecutive places of a region at the receiver, a *lap* at a time. After each
//! lap the clock stops, and every byte of the region is compared with what was sent. Each place gets
//! other bytes in the next lap, so a write that never lands is found too.

use std::time::{Duration, Instant};

use super::BenchError;
use super::ends::Ends;
use super::host::{End, Happened, Host, Landing, Source, Write};

/// No write that is measured here takes this long.
const PATIENCE: Duration = Duration::from_secs(60);

/// How the writes are made.
#[derive(Debug, Clone, Copy)]
pub struct Writes {
    /// Bytes of each, a multiple of 8.
    pub bytes: usize,
    /// How many in all.
    pub count: u64,
    /// How many under way at a time.
    pub outstanding: u64,
    /// Bytes of memory at the sender that the writes go through in turn. More than the caches hold
    /// is what a transfer of anything real meets; one write's worth measures the caches.
    pub memory: usize,
    /// Bytes of the receiver's region. At the end of a lap fewer than `outstanding` writes are under
    /// way: with more than one, a lap has to be long against that.
    pub lap: usize,
}

/// What was measured while writes were under way.
#[derive(Debug, Clone, Copy)]
pub struct Measured {
    /// Payload bytes.
    pub bytes: u64,
    /// From each lap's first write to its last acknowledgement, all laps together.
    pub took: Duration,
    /// CPU time of the receiver's workers meanwhile.
    pub receiver_cpu: Duration,
    /// That of the sender's.
    pub sender_cpu: Duration,
    /// What the part of the connection that sent the fewest packets has of all of them, of 1.
    pub least_share: f64,
}

impl Measured {
    /// Payload, GB/s.
    pub fn gigabytes_per_second(&self) -> f64 {
        self.bytes as f64 / self.took.as_secs_f64() / 1e9
    }

    /// CPU seconds of the receiver's workers for 10⁹ bytes.
    pub fn receiver_seconds_per_gigabyte(&self) -> f64 {
        self.receiver_cpu.as_secs_f64() / self.bytes as f64 * 1e9
    }

    /// CPU seconds of both ends' workers for 10⁹ bytes.
    pub fn seconds_per_gigabyte(&self) -> f64 {
        (self.receiver_cpu + self.sender_cpu).as_secs_f64() / self.bytes as f64 * 1e9
    }
}

/// Connects the two, writes from the sender's memory to the receiver's, and checks every byte.
///
/// # Errors
/// [`BenchError`]: also when a byte differs.
pub fn measure(ends: &Ends, writes: Writes) -> Result<Measured, BenchError> {
    let (near, far) = ends.connect()?;
    let places = (writes.memory / writes.bytes).max(1) as u64;
    let slots = writes.count.min((writes.lap / writes.bytes).max(1) as u64);
    let run = Run {
        ends,
        near: &near,
        far: &far,
        writes,
        sources: (0..places)
            .map(|place| Source::new(pattern(place, writes.bytes)))
            .collect(),
        landing: ends
            .receiver
            .register(vec![0xA5; slots as usize * writes.bytes]),
    };
    let mut measured = Measured {
        bytes: writes.bytes as u64 * writes.count,
        took: Duration::ZERO,
        receiver_cpu: Duration::ZERO,
        sender_cpu: Duration::ZERO,
        least_share: 0.0,
    };
    let mut first = 0;
    while first < writes.count {
        let lap = Lap {
            first,
            shift: first / slots,
            writes: slots.min(writes.count - first),
        };
        let cpu = [&ends.receiver, &ends.sender].map(Host::worker_cpu);
        let begun = Instant::now();
        run.write(lap)?;
        measured.took += begun.elapsed();
        measured.receiver_cpu += ends.receiver.worker_cpu().saturating_sub(cpu[0]);
        measured.sender_cpu += ends.sender.worker_cpu().saturating_sub(cpu[1]);
        run.check(lap)?;
        first += lap.writes;
    }
    let packets = ends.sender.packets_by_part(&near);
    let (least, all) = (packets.iter().min(), packets.iter().sum::<u64>());
    measured.least_share = least.map_or(0.0, |&least| least as f64 / all as f64);
    ends.sender.close(&near);
    ends.receiver.close(&far);
    ends.receiver.deregister(run.landing.target);
    Ok(measured)
}

/// Writes `count` times from one place to one place, as `ib_write_bw` does, and checks the last: payload, GB/s.
///
/// # Errors
/// [`BenchError`]: also when a byte differs.
pub(super) fn repeat(
    ends: &Ends,
    bytes: usize,
    count: u64,
    outstanding: u64,
) -> Result<f64, BenchError> {
    let (near, far) = ends.connect()?;
    let run = Run {
        ends,
        near: &near,
        far: &far,
        writes: Writes {
            bytes,
            count,
            outstanding,
            memory: bytes,
            lap: bytes,
        },
        sources: vec![Source::new(pattern(0, bytes))],
        landing: ends.receiver.register(vec![0xA5; bytes]),
    };
    let lap = |writes| Lap {
        first: 0,
        shift: 0,
        writes,
    };
    let begun = Instant::now();
    run.write_at(lap(count), |_| 0)?;
    let took = begun.elapsed();
    run.check(lap(1))?;
    ends.sender.close(&near);
    ends.receiver.close(&far);
    ends.receiver.deregister(run.landing.target);
    Ok(bytes as f64 * count as f64 / took.as_secs_f64() / 1e9)
}

/// The writes that go once through the receiver's region.
#[derive(Clone, Copy)]
struct Lap {
    first: u64,
    /// How far the sources are shifted against the places of the first lap.
    shift: u64,
    writes: u64,
}

impl Lap {
    /// Which of the sources goes to the region's slot.
    fn source_of(self, slot: u64, sources: usize) -> usize {
        ((self.first + slot + self.shift) % sources as u64) as usize
    }
}

struct Run<'a> {
    ends: &'a Ends,
    near: &'a End,
    far: &'a End,
    writes: Writes,
    sources: Vec<Source>,
    landing: Landing,
}

impl Run<'_> {
    fn write(&self, lap: Lap) -> Result<(), BenchError> {
        self.write_at(lap, |slot| slot * self.writes.bytes as u64)
    }

    /// `offset` says where a slot is.
    fn write_at(&self, lap: Lap, offset: impl Fn(u64) -> u64) -> Result<(), BenchError> {
        let bytes = self.writes.bytes;
        let (mut posted, mut written) = (0, 0);
        while written < lap.writes {
            while posted < lap.writes && posted - written < self.writes.outstanding {
                self.ends.sender.write(
                    self.near,
                    Write {
                        source: &self.sources[lap.source_of(posted, self.sources.len())],
                        bytes,
                        target: self.landing.target,
                        offset: offset(posted),
                        immediate: None,
                        context: posted,
                    },
                )?;
                posted += 1;
            }
            match self.near.wait(PATIENCE)? {
                Some(Happened::Written { .. }) => written += 1,
                Some(_) => {}
                None => return Err(silent("acknowledgements")),
            }
        }
        Ok(())
    }

    /// Reads the whole lap at the receiver.
    fn check(&self, lap: Lap) -> Result<(), BenchError> {
        self.hand_over()?;
        let mut received = vec![0; self.writes.bytes];
        for slot in 0..lap.writes {
            self.landing
                .read(slot * self.writes.bytes as u64, &mut received);
            let sent = &self.sources[lap.source_of(slot, self.sources.len())];
            if let Some(at) = first_difference(sent.bytes(), &received) {
                return Err(BenchError::Differs {
                    write: lap.first + slot,
                    at,
                });
            }
        }
        Ok(())
    }

    /// Has the receiver told that all is there: from then on this thread may read it.
    fn hand_over(&self) -> Result<(), BenchError> {
        self.ends.sender.write(
            self.near,
            Write {
                source: &Source::empty(),
                bytes: 0,
                target: self.landing.target,
                offset: 0,
                immediate: Some(0),
                context: 0,
            },
        )?;
        loop {
            match self.far.wait(PATIENCE)? {
                Some(Happened::Arrived { .. }) => break,
                Some(_) => {}
                None => return Err(silent("the lap's last message")),
            }
        }
        // Its acknowledgement must not count as one of the next lap's.
        loop {
            match self.near.wait(PATIENCE)? {
                Some(Happened::Written { .. }) => return Ok(()),
                Some(_) => {}
                None => return Err(silent("the lap's last acknowledgement")),
            }
        }
    }
}

fn silent(what: &'static str) -> BenchError {
    BenchError::Silent {
        what,
        seconds: PATIENCE.as_secs(),
    }
}

/// The bytes of a place: every 8 of them differ from those of any other offset and place.
pub(crate) fn pattern(place: u64, bytes: usize) -> Vec<u8> {
    // An odd factor, so that no two words are the same: the 64-bit golden ratio of Fibonacci hashing
    // (Knuth, The Art of Computer Programming, volume 3, section 6.4).
    const FACTOR: u64 = 0x9E37_79B9_7F4A_7C15;
    let words = (bytes / 8) as u64;
    (0..words)
        .flat_map(|word| {
            (place * words + word + 1)
                .wrapping_mul(FACTOR)
                .to_le_bytes()
        })
        .collect()
}

pub(crate) fn first_difference(sent: &[u8], received: &[u8]) -> Option<usize> {
    if sent == received {
        return None;
    }
    let at = sent.iter().zip(received).position(|(s, r)| s != r);
    Some(at.unwrap_or(sent.len().min(received.len())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::ends::Shape;

    #[test]
    fn every_lap_is_written_and_checked() {
        let ends = Ends::on_loopback(Shape {
            draw: 10,
            ..Shape::default()
        });
        let writes = Writes {
            bytes: 64 << 10,
            count: 20,
            outstanding: 2,
            memory: 192 << 10,
            lap: 512 << 10,
        };
        let measured = measure(&ends, writes).unwrap();
        assert_eq!(measured.bytes, 20 << 16);
        assert!(measured.receiver_cpu > Duration::ZERO);
    }

    #[test]
    fn a_write_that_never_landed_is_found() {
        let ends = Ends::on_loopback(Shape {
            draw: 11,
            ..Shape::default()
        });
        let (near, far) = ends.connect().unwrap();
        let writes = Writes {
            bytes: 4096,
            count: 4,
            outstanding: 1,
            memory: 4096,
            lap: 4 * 4096,
        };
        let run = Run {
            ends: &ends,
            near: &near,
            far: &far,
            writes,
            sources: vec![Source::new(pattern(0, 4096))],
            landing: ends.receiver.register(vec![0xA5; 4 * 4096]),
        };
        let lap = |writes| Lap {
            first: 0,
            shift: 0,
            writes,
        };
        run.write(lap(3)).unwrap();
        let error = run.check(lap(4)).unwrap_err();
        assert!(
            matches!(error, BenchError::Differs { write: 3, at: 0 }),
            "{error}"
        );
    }

    #[test]
    fn each_slot_gets_other_bytes_in_the_next_lap() {
        let sources = 64;
        let lap = |shift| Lap {
            first: 512 * shift,
            shift,
            writes: 512,
        };
        for slot in 0..512 {
            assert_ne!(
                lap(0).source_of(slot, sources),
                lap(1).source_of(slot, sources)
            );
        }
    }

    #[test]
    fn eight_bytes_occur_only_once_in_all_the_sources() {
        let bytes: Vec<u8> = (0..4).flat_map(|place| pattern(place, 4096)).collect();
        let mut words: Vec<&[u8]> = bytes.chunks_exact(8).collect();
        words.sort_unstable();
        assert!(words.windows(2).all(|pair| pair[0] != pair[1]));
    }

    #[test]
    fn a_byte_that_differs_is_found_by_its_offset() {
        let sent = pattern(3, 64);
        let mut received = sent.clone();
        assert_eq!(first_difference(&sent, &received), None);
        received[63] ^= 1;
        assert_eq!(first_difference(&sent, &received), Some(63));
    }
}

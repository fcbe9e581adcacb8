//! Pins a thread to a CPU.

use std::io;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::error::EngineError;

/// The calling thread runs on one CPU until this is dropped. What it allocates lies at the memory of that CPU, and a thread
/// that it spawns stays there.
pub(crate) struct Pinned {
    before: CpuSet,
}

impl Pinned {
    /// Pins the calling thread to a CPU of the system's numbers.
    pub(crate) fn to(cpu: u16) -> Result<Self, EngineError> {
        let refused = |error: rustix::io::Errno| EngineError::Cpu {
            cpu,
            source: io::Error::from(error),
        };
        if usize::from(cpu) >= CpuSet::MAX_CPU {
            return Err(refused(rustix::io::Errno::INVAL));
        }
        let before = sched_getaffinity(None).map_err(refused)?;
        let mut only = CpuSet::new();
        only.set(cpu.into());
        sched_setaffinity(None, &only).map_err(refused)?;
        Ok(Self { before })
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // The set was good before. A CPU that was taken away meanwhile leaves the thread where it is.
        let _ = sched_setaffinity(None, &self.before);
    }
}

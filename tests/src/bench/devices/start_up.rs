//! How long a program waits for its memory before it can begin: all of it pinned, or each block when it is used first
//! (STELLAR, Figure 6).

use std::fs::File;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::Instant;

use memmap2::MmapOptions;
use weft_device::control::{Region, Request};
use weft_device_socket::{Client, shared_mapping};

use super::super::rounds::{Must, Rounds};
use super::super::{BenchError, Context};
use super::{created, failed};
use crate::report::Row;

const GIB: u64 = 1 << 30;
/// Memory of a program, GiB.
const SIZES: [u64; 3] = [1, 4, 16];
/// The largest of the paper's, for which the time to pin is reckoned from that of the largest here.
pub(crate) const LARGEST: u64 = 1600;
/// The paper's programs begin 15 times as soon.
const OF_PINNING: f64 = 1.0 / 15.0;

pub(super) fn measure(context: &Context, device: &Path) -> Result<Vec<Row>, BenchError> {
    let sizes = if context.quick { &SIZES[..1] } else { &SIZES };
    let row = |gib: &u64| {
        let mut rounds = Rounds::default();
        for _ in 0..context.rounds.min(3) {
            rounds.add_pair(register(device, gib * GIB)?, pin(gib * GIB)?);
        }
        let largest = rounds.theirs().unwrap_or(0.0) / *gib as f64 * LARGEST as f64 / 1e3;
        Ok(rounds.row(
            &format!("device-start-{gib}g"),
            format!("open a device and register {gib} GiB; to pin {LARGEST} GiB would take {largest:.0} s"),
            "ms",
            "pin all",
            Must::RatioAtMost(OF_PINNING),
        ))
    };
    sizes.iter().map(row).collect()
}

/// A program opens the device and registers shared memory, milliseconds.
pub(crate) fn register(device: &Path, bytes: u64) -> Result<f64, BenchError> {
    let file = nix::sys::memfd::memfd_create("memory", nix::sys::memfd::MFdFlags::MFD_CLOEXEC);
    let file = File::from(file.map_err(BenchError::system("memfd_create"))?);
    file.set_len(bytes)
        .map_err(BenchError::system("ftruncate"))?;
    let memory = MmapOptions::new().map_raw(&file);
    let memory = memory.map_err(BenchError::system("mmap"))?;
    let address = memory.as_ptr().addr() as u64;
    let begun = Instant::now();
    let program = Client::open(device).map_err(failed)?;
    let ask = |request, file| {
        let answer = program.ask_with(&request, file);
        answer.map_err(|error| failed(format!("{request:?}: {error:?}")))
    };
    let (domain, _) = ask(Request::CreateDomain, None)?;
    let shared = shared_mapping::find(address, bytes);
    let region = Region {
        domain: created(domain)?,
        address,
        bytes,
        io_address: address,
        access: 7,
        file_offset: shared.as_ref().map(|shared| shared.offset),
    };
    let file = shared.as_ref().map(|shared| shared.file.as_fd());
    ask(Request::RegisterRegion(region), file)?;
    Ok(begun.elapsed().as_secs_f64() * 1e3)
}

/// The least that pinning takes: every page is made, milliseconds.
pub(crate) fn pin(bytes: u64) -> Result<f64, BenchError> {
    let begun = Instant::now();
    let memory = MmapOptions::new().len(bytes as usize).populate().map_anon();
    let memory = memory.map_err(BenchError::system("mmap"))?;
    let took = begun.elapsed();
    drop(memory);
    Ok(took.as_secs_f64() * 1e3)
}

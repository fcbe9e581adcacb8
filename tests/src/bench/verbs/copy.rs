//! What is copied from one memory into another, with nothing around it.

use std::fs::File;
use std::io::IoSlice;
use std::time::Instant;

use nix::sys::uio::{RemoteIoVec, process_vm_writev};
use nix::unistd::Pid;
use weft_engine::{AddressSpace, Region};

use super::{BenchError, Context, Must, Rounds, Row};

/// So many copies of `bytes`, from one buffer to another, GB/s. This process stands for the other one as well: the kernel
/// looks the pages of the target up and copies, whosever they are.
pub(super) fn between_processes(bytes: usize, count: u64) -> Result<f64, BenchError> {
    let source = vec![0x5A_u8; bytes];
    let mut target = vec![0_u8; bytes];
    let remote = RemoteIoVec {
        base: target.as_mut_ptr().expose_provenance(),
        len: bytes,
    };
    let begun = Instant::now();
    for _ in 0..count {
        let local = [IoSlice::new(&source)];
        let copied = process_vm_writev(Pid::this(), &local, &[remote]);
        let copied = copied.map_err(BenchError::system("process_vm_writev"))?;
        if copied != bytes {
            return Err(BenchError::Program {
                program: "process_vm_writev".to_owned(),
                message: format!("{copied} of {bytes} bytes were copied"),
            });
        }
    }
    let took = begun.elapsed().as_secs_f64();
    if std::hint::black_box(&target) != &source {
        return Err(BenchError::Differs { write: 0, at: 0 });
    }
    Ok(bytes as f64 * count as f64 / took / 1e9)
}

/// Payloads of packets of 1,500 and of 9,000 bytes, what a chunk has, and what a program writes at once.
const SIZES: [usize; 4] = [1_408, 8_904, 62_776, 1 << 20];

/// Copies into the memory of a program as the engine does (MemFd), beside those for which it would need the program's
/// process number and a capability (decision 0046).
pub(in crate::bench) fn measure(context: &Context) -> Result<Vec<Row>, BenchError> {
    let all = if context.quick { 64 << 20 } else { 1 << 30 };
    SIZES
        .into_iter()
        .map(|bytes| {
            let (count, mut rounds) = (all / bytes as u64, Rounds::default());
            for _ in 0..context.rounds {
                let ours = by_address_space(bytes, count)?;
                rounds.add_pair(ours, between_processes(bytes, count)?);
            }
            Ok(rounds.row(
                &format!("device-memory-{bytes}"),
                format!("copying {bytes} bytes by /proc/PID/mem"),
                "GB/s",
                "process_vm_writev",
                Must::Reported,
            ))
        })
        .collect()
}

/// So many copies of `bytes` into private memory, by the descriptor of its address space, GB/s.
fn by_address_space(bytes: usize, count: u64) -> Result<f64, BenchError> {
    const MEMORY: &str = "/proc/self/mem";

    let source = vec![0x5A_u8; bytes];
    let mut target = vec![0_u8; bytes];
    let memory = File::options().read(true).write(true).open(MEMORY);
    let memory = memory.map_err(BenchError::system(MEMORY))?;
    let failed = |message: String| BenchError::Program {
        program: MEMORY.to_owned(),
        message,
    };
    let space = AddressSpace::new(memory.into()).map_err(|error| failed(error.to_string()))?;
    let address = target.as_mut_ptr().expose_provenance() as u64;
    let range = space.range(address, bytes as u64, 0);
    let range = range.map_err(|error| failed(error.to_string()))?;
    let region = Region::of_process(range);
    let begun = Instant::now();
    for _ in 0..count {
        let written = region.write(0, &source);
        written.map_err(|error| failed(error.to_string()))?;
    }
    let took = begun.elapsed().as_secs_f64();
    if std::hint::black_box(&target) != &source {
        return Err(BenchError::Differs { write: 0, at: 0 });
    }
    Ok(bytes as f64 * count as f64 / took / 1e9)
}

/// So many copies of `bytes` by this process itself, GB/s.
pub(super) fn within_a_process(bytes: usize, count: u64) -> f64 {
    let source = vec![0x5A_u8; bytes];
    let mut target = vec![0_u8; bytes];
    let begun = Instant::now();
    for _ in 0..count {
        target.copy_from_slice(std::hint::black_box(&source));
        std::hint::black_box(&mut target);
    }
    bytes as f64 * count as f64 / begun.elapsed().as_secs_f64() / 1e9
}

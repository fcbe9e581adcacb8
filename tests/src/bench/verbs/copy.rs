//! What is copied from one memory into another, with nothing around it.

use std::io::IoSlice;
use std::time::Instant;

use nix::sys::uio::{RemoteIoVec, process_vm_writev};
use nix::unistd::Pid;

use super::BenchError;

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

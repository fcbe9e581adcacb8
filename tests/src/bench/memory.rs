//! Files in memory: a tmpfs of our own, which nobody else sees and which ends with this process.

use std::fs::{self, File};
use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use rand_core::Rng as _;
use weft_core::units::Rng;

use super::BenchError;

/// `/run` is private inside of isolation.
const AT: &str = "/run/weft-bench";
const BLOCK: usize = 1 << 20;

/// A mounted tmpfs. Unmounted, with all its files, when dropped.
pub(super) struct Memory(PathBuf);

impl Memory {
    /// Mounts it, for at most so many bytes of files.
    pub(super) fn mount(bytes: u64) -> Result<Self, BenchError> {
        let at = PathBuf::from(AT);
        fs::create_dir_all(&at).map_err(BenchError::system(AT))?;
        let options = format!("size={bytes},mode=0755");
        let tmpfs = Some("tmpfs");
        mount(tmpfs, &at, tmpfs, MsFlags::empty(), Some(options.as_str()))
            .map_err(BenchError::system("mounting a tmpfs"))?;
        Ok(Self(at))
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // It ends with this process's mount namespace at the latest.
        let _ = umount2(&self.0, MntFlags::MNT_DETACH);
    }
}

/// Writes so many bytes that no program can make smaller.
pub(super) fn write_random(path: &Path, bytes: u64) -> Result<(), BenchError> {
    let failed = || path.display().to_string();
    let file = File::create(path).map_err(BenchError::system(failed()))?;
    let mut out = BufWriter::with_capacity(BLOCK, file);
    let mut rng = Rng::new(1);
    let mut left = bytes;
    while left > 0 {
        let word = rng.next_u64().to_le_bytes();
        let part = left.min(word.len() as u64) as usize;
        out.write_all(&word[..part])
            .map_err(BenchError::system(failed()))?;
        left -= part as u64;
    }
    out.flush().map_err(BenchError::system(failed()))
}

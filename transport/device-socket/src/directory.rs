//! The directories of devices, as programs see them.

use std::{
    fs,
    io::{self, Read as _},
    net::Ipv6Addr,
    path::{Path, PathBuf},
};

use crate::{GID_FILE, TOKEN_FILE};

/// Where devices are mounted.
const DIRECTORY: &str = "/dev/weft";
/// Says where they are instead.
pub const DIRECTORY_VARIABLE: &str = "WEFT_DEVICES";

/// Where this program's devices are.
#[must_use]
pub fn directory() -> PathBuf {
    let directory = std::env::var_os(DIRECTORY_VARIABLE);
    directory.map_or_else(|| PathBuf::from(DIRECTORY), PathBuf::from)
}

/// The devices in a directory of devices: their names, in order. A directory that is not there has none.
#[must_use]
pub fn devices_in(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let devices = entries.filter(|entry| entry.path().join(TOKEN_FILE).exists());
    let mut names: Vec<String> = devices
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect();
    names.sort();
    names
}

/// The GID of the device whose directory this is.
///
/// # Errors
/// Its file cannot be read, or has no GID.
pub fn gid(directory: &Path) -> io::Result<Ipv6Addr> {
    const BYTES_MAX: u64 = 64;
    let mut line = String::new();
    let file = fs::File::open(directory.join(GID_FILE))?;
    file.take(BYTES_MAX).read_to_string(&mut line)?;
    line.trim_end().parse().map_err(io::Error::other)
}

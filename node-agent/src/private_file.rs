//! Files with keys: their owner alone can read them, and a reader finds the old contents or the new, never a part.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

/// Readable and writable by the owner only.
pub(crate) const PRIVATE: u32 = 0o600;

/// Replaces a file, also when the power fails meanwhile.
pub(crate) fn replace(path: &Path, contents: &[u8]) -> io::Result<()> {
    let next = PathBuf::from(format!("{}.next", path.display()));
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(PRIVATE)
        .open(&next)?;
    file.set_permissions(Permissions::from_mode(PRIVATE))?;
    file.write_all(contents)?;
    file.sync_all()?;
    fs::rename(&next, path)?;
    path.parent()
        .map_or(Ok(()), |parent| File::open(parent)?.sync_all())
}

/// Makes a file that is there private.
pub(crate) fn restrict(path: &Path) -> io::Result<()> {
    fs::set_permissions(path, Permissions::from_mode(PRIVATE))
}

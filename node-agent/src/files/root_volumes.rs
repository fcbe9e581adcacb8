//! `RootVolumes`: how pods mount the copies of a root, and which of them they have mounted now.

use std::fs;
use std::io;
use std::path::PathBuf;

use weft_proto::Message as _;
use weft_proto::volumes::v1::InUse;

use super::path::RootPath;

/// How pods mount the copies of a root.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RootVolumes {
    /// The root's directory on the node.
    pub host_path: PathBuf,
    /// The directory with a file for each volume that shows a copy, of whatever root.
    pub in_use: PathBuf,
}

impl RootVolumes {
    /// Writes down that a volume shows a copy.
    pub(super) fn write(&self, volume: &str, in_use: &InUse) -> io::Result<()> {
        // A reader finds no half of it.
        let new = self.in_use.join(format!(".{volume}"));
        fs::write(&new, in_use.encode_to_vec())?;
        fs::rename(new, self.in_use.join(volume))
    }

    /// Whether it is still written down that a volume shows a copy: the driver removes that when its pod is gone.
    pub(super) fn has(&self, volume: &str) -> io::Result<bool> {
        self.in_use.join(volume).try_exists()
    }

    /// Says that a volume shows nothing.
    pub(super) fn remove(&self, volume: &str) {
        let path = self.in_use.join(volume);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!("{}: {error}: remove it, or its copy stays", path.display());
            }
            _ => {}
        }
    }

    /// Whether a volume shows what is at `path` of the root with this name, within it or around it.
    pub(super) fn show(&self, root: &str, path: &RootPath) -> io::Result<bool> {
        let entries = match fs::read_dir(&self.in_use) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            entries => entries?,
        };
        for entry in entries {
            let entry = entry?;
            // It is being written: the volume is mounted after it has its name.
            if entry.file_name().as_encoded_bytes().starts_with(b".") {
                continue;
            }
            let text = match fs::read(entry.path()) {
                // It is unmounted by now.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                text => text?,
            };
            let in_use = InUse::decode(text.as_slice()).map_err(io::Error::other)?;
            let shown = RootPath::parse(&in_use.path).map_err(io::Error::other)?;
            if in_use.root == root && shown.overlaps(path) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

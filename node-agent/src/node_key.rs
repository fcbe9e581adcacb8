//! The node's key of the data path: it outlives processes, certificates and private keys.
//!
//! An agent that was restarted answers packets of the connections before it with Resets, which their
//! other ends believe by tokens made from this key. The private key would not do: it may be renewed
//! while the agent runs, and the next process sees the new one only. So the node's key is made once
//! and kept in a file of its own beside the private key's.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use ring::rand::{SecureRandom as _, SystemRandom};

use crate::private_file;

/// Bytes of the key.
const BYTES: usize = 32;

/// Where the key is kept, by the path of the private key.
pub(crate) fn path(private_key: &Path) -> PathBuf {
    PathBuf::from(format!("{}.data-path", private_key.display()))
}

/// Reads the key, or makes one where there is none that can be used.
pub(crate) fn keep(path: &Path) -> io::Result<[u8; BYTES]> {
    match fs::read(path).map(<[u8; BYTES]>::try_from) {
        Ok(Ok(key)) => {
            private_file::restrict(path)?;
            return Ok(key);
        }
        Ok(Err(_)) => {
            let file = path.display();
            tracing::warn!("{file} does not hold {BYTES} bytes: a new key is made");
        }
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    let mut key = [0; BYTES];
    SystemRandom::new()
        .fill(&mut key)
        .map_err(|_| io::Error::other("the system gives no random bytes"))?;
    private_file::replace(path, &key)?;
    Ok(key)
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use crate::private_file::PRIVATE;

    #[test]
    fn the_key_is_made_once_and_nobody_else_can_read_it() {
        let directory = tempfile::tempdir().unwrap();
        let file = path(&directory.path().join("n0.key"));
        let mode = || file.metadata().unwrap().permissions().mode() & 0o777;
        let key = keep(&file).unwrap();
        assert_eq!(mode(), PRIVATE);
        fs::set_permissions(&file, Permissions::from_mode(0o644)).unwrap();
        assert_eq!(keep(&file).unwrap(), key);
        assert_eq!(mode(), PRIVATE);
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 1);
        fs::write(&file, "half").unwrap();
        let new = keep(&file).unwrap();
        assert_ne!(new, key);
        assert_eq!(keep(&file).unwrap(), new);
        let nowhere = directory.path().join("none/n0.key");
        assert_eq!(keep(&nowhere).unwrap_err().kind(), ErrorKind::NotFound);
    }
}

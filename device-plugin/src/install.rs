//! Puts Weft's libraries where containers get them from.

use std::fs;
use std::io;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use crate::cdi;

/// The libraries: as programs are linked to them, and as they look for them at run time.
const LIBRARIES: [(&str, &str); 2] = [
    ("libibverbs.so", "libibverbs.so.1"),
    ("librdmacm.so", "librdmacm.so.1"),
];

/// The list of them that is mounted at `/etc/ld.so.preload`.
const PRELOAD: &str = "ld.so.preload";
/// The program that the container runtime calls.
const HOOK: &str = "weft-container-hook";

/// Why the libraries are not there.
#[derive(Debug, thiserror::Error)]
#[error("{path}: {source}: what containers get cannot be put there")]
pub struct InstallError {
    path: PathBuf,
    source: io::Error,
}

/// Puts the libraries of one directory into another, with a list of them for `/etc/ld.so.preload` of containers, and the hook
/// beside it where there is one. Each file is replaced whole: programs that have an earlier one mapped keep it.
///
/// # Errors
/// [`InstallError`].
pub fn install(from: &Path, to: &Path, hook: Option<&Path>) -> Result<(), InstallError> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| InstallError { path, source }
    };
    let copy = |name: &str, to: &Path| replace(to, |new| fs::copy(from.join(name), new).map(drop));
    fs::create_dir_all(to).map_err(failed(to))?;
    for (link, library) in LIBRARIES {
        copy(library, &to.join(library)).map_err(failed(to))?;
        match symlink(library, to.join(link)) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(failed(to)(error));
            }
            _ => {}
        }
    }
    // As containers see them.
    let list = LIBRARIES.map(|(_, library)| format!("{}/{library}\n", cdi::LIBRARIES));
    let list = list.concat();
    replace(&to.join(PRELOAD), |new| fs::write(new, &list)).map_err(failed(to))?;
    if let Some(hook) = hook {
        let directory = hook.parent().unwrap_or(hook);
        fs::create_dir_all(directory).map_err(failed(directory))?;
        copy(HOOK, hook).map_err(failed(hook))?;
    }
    Ok(())
}

/// Makes a file that anybody may read and run, and puts it in the place of another.
fn replace(file: &Path, make: impl FnOnce(&Path) -> io::Result<()>) -> io::Result<()> {
    let mut new = file.as_os_str().to_owned();
    new.push(".new");
    let new = PathBuf::from(new);
    make(&new)?;
    fs::set_permissions(&new, fs::Permissions::from_mode(0o755))?;
    fs::rename(&new, file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_is_replaced_and_one_that_is_in_use_stays_as_it_is() {
        let directory = tempfile::tempdir().unwrap();
        let (from, to) = (directory.path().join("from"), directory.path().join("to"));
        fs::create_dir(&from).unwrap();
        let write = |text: &str| {
            for (_, library) in LIBRARIES {
                fs::write(from.join(library), text).unwrap();
            }
        };
        write("first");
        fs::write(from.join(HOOK), "the hook").unwrap();
        let hook = directory.path().join("bin/weft-container-hook");
        install(&from, &to, Some(&hook)).unwrap();
        assert_eq!(fs::read_to_string(hook).unwrap(), "the hook");
        let list = fs::read_to_string(to.join(PRELOAD)).unwrap();
        assert_eq!(
            list,
            "/opt/weft/lib/libibverbs.so.1\n/opt/weft/lib/librdmacm.so.1\n"
        );
        let in_use = fs::File::open(to.join("libibverbs.so.1")).unwrap();
        write("second");
        install(&from, &to, None).unwrap();
        assert_eq!(io::read_to_string(in_use).unwrap(), "first");
        let now = fs::read_to_string(to.join("libibverbs.so")).unwrap();
        assert_eq!(now, "second");
        let problem = install(&directory.path().join("nowhere"), &to, None).unwrap_err();
        assert!(
            problem.to_string().contains("to: No such file"),
            "{problem}"
        );
    }
}

//! A container's files.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{
    CWD, Dir, FileType, FsWord, Mode, OFlags, PROC_SUPER_MAGIC, ResolveFlags, fstat, fstatfs,
    openat, openat2,
};

/// The type of sysfs, which is in `linux/magic.h`.
const SYSFS_MAGIC: FsWord = 0x6265_6572;

/// The directory that is a container's `/`.
///
/// A path is resolved as in the container: a link, or `..`, never leads out of it (`RESOLVE_IN_ROOT`), and links of procfs are
/// not followed.
#[derive(Debug)]
pub struct Root(OwnedFd);

/// A file or directory, by a descriptor that reads nothing (`O_PATH`).
#[derive(Debug)]
pub struct Found(OwnedFd);

impl Root {
    /// The directory with this name.
    ///
    /// # Errors
    /// It is not there.
    pub fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self(openat(CWD, path, flags, Mode::empty())?))
    }

    /// What there is with this name.
    ///
    /// # Errors
    /// Nothing is, or the kernel is older than 5.6.
    pub fn find(&self, path: &Path) -> io::Result<Found> {
        self.open_with(path, OFlags::PATH).map(Found)
    }

    fn open_with(&self, path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
        let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        let opened = openat2(
            &self.0,
            path,
            flags | OFlags::CLOEXEC,
            Mode::empty(),
            resolve,
        );
        Ok(opened?)
    }

    /// As [`Root::find`], and makes an empty file where there is nothing: in the container's own file system, and in no volume.
    ///
    /// # Errors
    /// There is neither, and no file can be made.
    pub fn find_or_make(&self, path: &Path) -> io::Result<Found> {
        match self.find(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDONLY | OFlags::CLOEXEC;
                let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
                let resolve = resolve | ResolveFlags::NO_XDEV;
                openat2(&self.0, path, flags, Mode::from_raw_mode(0o644), resolve)?;
                self.find(path)
            }
            found => found,
        }
    }

    /// The names in a directory; none where there is no such directory.
    #[must_use]
    pub fn names(&self, directory: &Path) -> Vec<OsString> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NONBLOCK;
        let opened = self.open_with(directory, flags).ok();
        let entries = opened.and_then(|opened| Dir::new(opened).ok());
        let names = entries.into_iter().flatten().flatten();
        let names = names.map(|entry| OsString::from_vec(entry.file_name().to_bytes().to_vec()));
        names.filter(|name| name != "." && name != "..").collect()
    }

    /// Whether there is a directory with this name.
    #[must_use]
    pub fn is_directory(&self, path: &Path) -> bool {
        self.find(path)
            .is_ok_and(|found| found.kind() == Some(FileType::Directory))
    }

    /// The text of a file; empty where there is none, or where it is no file or longer than `bytes_max`.
    #[must_use]
    pub fn text(&self, path: &Path, bytes_max: u64) -> String {
        let file = self.find(path).and_then(|found| found.read());
        let text = file.and_then(|file| text_of(file, bytes_max));
        text.unwrap_or_default()
    }
}

impl Found {
    fn kind(&self) -> Option<FileType> {
        Some(FileType::from_raw_mode(fstat(&self.0).ok()?.st_mode))
    }

    /// What names it, whatever links lead to it.
    ///
    /// # Errors
    /// The kernel does not say.
    pub fn identity(&self) -> io::Result<(u64, u64)> {
        let stat = fstat(&self.0)?;
        Ok((stat.st_dev, stat.st_ino))
    }

    /// The path of the file itself, as this process sees it.
    ///
    /// # Errors
    /// It has none.
    pub fn path(&self) -> io::Result<PathBuf> {
        std::fs::read_link(self.by_descriptor())
    }

    /// A path that leads here, whatever becomes of the names.
    #[must_use]
    pub fn by_descriptor(&self) -> PathBuf {
        by_descriptor(&self.0)
    }

    /// The file, to read. To open anything else could wait for who serves it, and so could a read of what the kernel makes up
    /// (procfs, sysfs): that is the node's, too, as its log is.
    ///
    /// # Errors
    /// It is no file, or one of the kernel's.
    pub fn read(&self) -> io::Result<File> {
        if self.kind() != Some(FileType::RegularFile) {
            return Err(io::Error::other("it is no file"));
        }
        if [PROC_SUPER_MAGIC, SYSFS_MAGIC].contains(&fstatfs(&self.0)?.f_type) {
            return Err(io::Error::other("it is a file of the kernel's"));
        }
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let opened = openat(CWD, self.by_descriptor(), flags, Mode::empty())?;
        Ok(opened.into())
    }
}

/// What there is to read; empty where that is longer than `bytes_max`, also if it grows meanwhile.
fn text_of(file: impl Read, bytes_max: u64) -> io::Result<String> {
    let text = io::read_to_string(file.take(bytes_max.saturating_add(1)))?;
    let is_whole = u64::try_from(text.len()).is_ok_and(|bytes| bytes <= bytes_max);
    Ok(if is_whole { text } else { String::new() })
}

impl AsFd for Found {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A path that leads to an open file. In the mount namespace of the node's procfs.
pub(crate) fn by_descriptor(file: &impl AsFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", file.as_fd().as_raw_fd()))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn no_name_leads_out_of_the_container() {
        let directory = tempfile::tempdir().unwrap();
        let outside = directory.path().join("secret");
        fs::write(&outside, "of the node").unwrap();
        let inside = directory.path().join("container");
        fs::create_dir_all(inside.join("etc")).unwrap();
        fs::write(inside.join("secret"), "of the container").unwrap();
        symlink(&outside, inside.join("etc/absolute")).unwrap();
        symlink("../../secret", inside.join("etc/relative")).unwrap();
        symlink("/proc/self/root", inside.join("etc/magic")).unwrap();
        let root = Root::open(&inside).unwrap();
        let text = |path: &str| root.text(Path::new(path), 100);
        assert_eq!(text("/etc/relative"), "of the container");
        assert_eq!(text("../../secret"), "of the container");
        assert_eq!(text("/etc/absolute"), "");
        assert!(!root.is_directory(Path::new("/etc/magic")));
        assert_eq!(root.text(Path::new("/secret"), 5), "");
    }

    #[test]
    fn a_file_is_made_in_the_container_and_in_nothing_that_is_mounted_there() {
        let directory = tempfile::tempdir().unwrap();
        let root = Root::open(directory.path()).unwrap();
        let made = root.find_or_make(Path::new("/list")).unwrap();
        assert_eq!(made.read().unwrap().metadata().unwrap().len(), 0);
        // To this process /dev is another file system than /.
        let root = Root::open(Path::new("/")).unwrap();
        let name = format!("/dev/shm/weft-{}", std::process::id());
        let refused = root.find_or_make(Path::new(&name)).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::CrossesDevices);
        assert!(!Path::new(&name).exists());
    }

    #[test]
    fn a_pipe_is_not_opened() {
        let directory = tempfile::tempdir().unwrap();
        let made = std::process::Command::new("mkfifo")
            .arg(directory.path().join("pipe"))
            .status();
        assert!(made.unwrap().success());
        let root = Root::open(directory.path()).unwrap();
        let found = root.find(Path::new("pipe")).unwrap();
        assert!(found.read().is_err());
        assert!(root.names(Path::new("pipe")).is_empty());
    }

    /// A link to the kernel's log is no magic one, and leads to a regular file of no length, whose reader waits for more.
    #[test]
    fn what_the_kernel_makes_up_is_not_read() {
        let directory = tempfile::tempdir().unwrap();
        let root = Root::open(Path::new("/")).unwrap();
        for file in ["/proc/kmsg", "/proc/version", "/sys/kernel/notes"] {
            let link = directory.path().join("ld.so.conf");
            symlink(file, &link).unwrap();
            let found = root.find(&link).unwrap();
            let refused = found.read().unwrap_err().to_string();
            assert_eq!(refused, "it is a file of the kernel's", "{file}");
            assert_eq!(root.text(&link, 1 << 20), "", "{file}");
            fs::remove_file(link).unwrap();
        }
    }

    #[test]
    fn of_a_file_that_grows_while_it_is_read_no_more_is_read_than_it_may_have() {
        assert_eq!(text_of(&b"/opt/lib\n"[..], 9).unwrap(), "/opt/lib\n");
        assert_eq!(text_of(io::repeat(b'/'), 9).unwrap(), "");
    }
}

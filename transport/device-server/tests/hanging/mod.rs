//! Memory of a program that holds up each copy: a mapped file whose reads are not answered.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use super::PATIENCE;

/// A file system with one file, whose reads wait as long as there is a receiver for them.
pub(super) struct Hanging(pub(super) crossbeam_channel::Sender<fuser::ReplyData>);

impl Hanging {
    pub(super) const BYTES: usize = 4096;

    fn attributes(node: fuser::INodeNo) -> fuser::FileAttr {
        let is_root = node == fuser::INodeNo::ROOT;
        let kind = match is_root {
            true => fuser::FileType::Directory,
            false => fuser::FileType::RegularFile,
        };
        fuser::FileAttr {
            ino: node,
            size: Self::BYTES as u64,
            blocks: 1,
            atime: std::time::UNIX_EPOCH,
            mtime: std::time::UNIX_EPOCH,
            ctime: std::time::UNIX_EPOCH,
            crtime: std::time::UNIX_EPOCH,
            kind,
            perm: 0o755,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        }
    }

    /// Mounts it. Answers the mount, and a process that has mapped the file, and where. The kernel locks its memory while
    /// a copy hangs, so it is not this process.
    pub(super) fn map(self, at: &Path) -> (fuser::BackgroundSession, Child, u64) {
        const MAP: &str = "import mmap, os, sys
file = open(sys.argv[1], 'rb')
memory = mmap.mmap(file.fileno(), 4096, mmap.MAP_SHARED, mmap.PROT_READ)
# At once: who reads it goes away with the line.
os.write(1, next(line for line in open('/proc/self/maps') if sys.argv[1] in line).encode())
sys.stdin.read()";

        let mounted = fuser::spawn_mount(self, at, &fuser::Config::default());
        let mounted = mounted.expect("root may mount");
        let mut program = Command::new("python3");
        program.args(["-c", MAP]).arg(at.join("file"));
        program.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut program = program.spawn().expect("it is there");
        let mut mapped = String::new();
        let said = BufReader::new(program.stdout.take().expect("it is piped"));
        (said.take(999).read_line(&mut mapped)).expect("it is text");
        let address = mapped.split('-').next().expect("it has a beginning");
        let address = u64::from_str_radix(address, 16).expect("it is a number");
        (mounted, program, address)
    }
}

impl fuser::Filesystem for Hanging {
    fn lookup(
        &self,
        _: &fuser::Request,
        _: fuser::INodeNo,
        _: &std::ffi::OsStr,
        reply: fuser::ReplyEntry,
    ) {
        let attributes = Self::attributes(fuser::INodeNo(2));
        reply.entry(&PATIENCE, &attributes, fuser::Generation(0));
    }

    fn getattr(
        &self,
        _: &fuser::Request,
        node: fuser::INodeNo,
        _: Option<fuser::FileHandle>,
        reply: fuser::ReplyAttr,
    ) {
        reply.attr(&PATIENCE, &Self::attributes(node));
    }

    fn read(
        &self,
        _: &fuser::Request,
        _: fuser::INodeNo,
        _: fuser::FileHandle,
        _: u64,
        _: u32,
        _: fuser::OpenFlags,
        _: Option<fuser::LockOwner>,
        reply: fuser::ReplyData,
    ) {
        // One that is dropped is answered by an error.
        let _ = self.0.send(reply);
    }
}

//! What keeps the descriptors of an engine that ends until the next one takes them, as systemd's file descriptor store does
//! for a service. The node's agent is that.
//!
//! An engine connects to a Unix socket (`SOCK_SEQPACKET`) and stores a record with descriptors, or takes what is stored. It
//! is given once, and dropped when nobody has taken it after [`STORED_FOR`]: programs then find that the engine is gone.
//!
//! | packet | |
//! |---|---|
//! | engine: `1`, number of descriptors (4 bytes, little endian) | it stores so many, of which the first is the record's memfd |
//! | engine: `2` | it takes |
//! | store: `3`, number of descriptors | its answer, after which as many follow as it gives |
//! | either: `4`, with descriptors | the next ones |

use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, Mode, memfd_create};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect, listen,
    socket_with,
};
use rustix::process::umask;

use crate::packet::{self, DESCRIPTORS_MAX};

/// How long descriptors are stored. A connection of a peer stalls after 10 s, and an engine starts in one.
pub const STORED_FOR: Duration = Duration::from_secs(60);
/// An end that does not answer for so long is given up.
const TIMEOUT: Duration = Duration::from_secs(5);
/// The most that an engine may store: some for each of 65,536 devices would be more than a process may have open.
const COUNT_MAX: u32 = 1 << 20;

const STORE: u8 = 1;
const TAKE: u8 = 2;
const ANSWER: u8 = 3;
const NEXT: u8 = 4;

/// A record, and descriptors in its order.
pub struct Stored {
    /// It may hold secrets.
    pub record: Vec<u8>,
    /// Those that go with it.
    pub descriptors: Vec<OwnedFd>,
}

/// Shows how much it is, never a secret.
impl fmt::Debug for Stored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stored")
            .field("record_bytes", &self.record.len())
            .field("descriptors", &self.descriptors.len())
            .finish()
    }
}

/// Where the store of the engine is that is managed by this socket.
#[must_use]
pub fn path_of(engine: &Path) -> PathBuf {
    let mut path = engine.as_os_str().to_owned();
    path.push(".store");
    path.into()
}

/// Stores this for the next engine.
///
/// # Errors
/// Nobody keeps it.
pub fn store(path: &Path, stored: &Stored) -> io::Result<()> {
    let mut record = File::from(memfd_create("weft-record", MemfdFlags::CLOEXEC)?);
    record.write_all(&stored.record)?;
    let descriptors = stored.descriptors.iter().map(AsFd::as_fd);
    let all: Vec<BorrowedFd<'_>> = [record.as_fd()].into_iter().chain(descriptors).collect();
    let socket = connect_to(path)?;
    send_all(&socket, STORE, &all)?;
    match receive_packet(&socket)? {
        ([ANSWER, ..], _) => Ok(()),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// Takes what is stored, which nobody else gets then.
///
/// # Errors
/// There is no store, or it does not answer.
pub fn take(path: &Path) -> io::Result<Option<Stored>> {
    let socket = connect_to(path)?;
    packet::send(&socket, &[TAKE, 0, 0, 0, 0], &[])?;
    let (answer, _) = receive_packet(&socket)?;
    let mut descriptors = receive_all(&socket, count(answer, ANSWER)?)?.into_iter();
    let Some(record) = descriptors.next() else {
        return Ok(None);
    };
    let (mut file, mut record) = (File::from(record), Vec::new());
    file.rewind()?;
    file.read_to_end(&mut record)?;
    let descriptors = descriptors.collect();
    Ok(Some(Stored {
        record,
        descriptors,
    }))
}

/// Whether a store listens there.
#[must_use]
pub fn is_served(path: &Path) -> bool {
    connect_to(path).is_ok()
}

/// The store, which serves one engine at a time.
#[derive(Debug)]
pub struct DescriptorStore {
    listening: OwnedFd,
    /// With the time when they came.
    stored: Option<(Instant, Vec<OwnedFd>)>,
}

impl DescriptorStore {
    /// A socket that only its owner can open. One that an earlier store has left is replaced.
    ///
    /// # Errors
    /// The socket cannot be made.
    pub fn bind(path: &Path) -> io::Result<Self> {
        match fs::symlink_metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Ok(found) if !found.file_type().is_socket() => {
                return Err(io::Error::other("there is a file that is no socket"));
            }
            found => found.and_then(|_| fs::remove_file(path))?,
        }
        let listening = new_socket()?;
        let before = umask(Mode::XUSR | Mode::RWXG | Mode::RWXO);
        let bound = SocketAddrUnix::new(path).and_then(|address| bind(&listening, &address));
        umask(before);
        bound?;
        listen(&listening, 16)?;
        let stored = None;
        Ok(Self { listening, stored })
    }

    /// Serves one engine, or drops what nobody has taken.
    ///
    /// # Errors
    /// The kernel's: it cannot go on.
    pub fn serve(&mut self) -> io::Result<()> {
        let left = self.stored.as_ref().map(|(since, _)| {
            let left = STORED_FOR.saturating_sub(since.elapsed());
            Timespec::try_from(left + Duration::from_millis(1))
        });
        let left = left.transpose().map_err(io::Error::other)?;
        let mut listening = [PollFd::new(&self.listening, PollFlags::IN)];
        match poll(&mut listening, left.as_ref()) {
            Ok(0) => {
                self.stored = None;
                return Ok(());
            }
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
        // An engine that goes away in the midst of it is not the store's problem.
        if let Ok(socket) = accept_with(&self.listening, SocketFlags::CLOEXEC) {
            let _ = self.answer(&socket);
        }
        Ok(())
    }

    fn answer(&mut self, socket: &OwnedFd) -> io::Result<()> {
        set_timeouts(socket)?;
        let (request, _) = receive_packet(socket)?;
        match request[0] {
            STORE => {
                let descriptors = receive_all(socket, count(request, STORE)?)?;
                self.stored = Some((Instant::now(), descriptors));
                packet::send(socket, &[ANSWER, 0, 0, 0, 0], &[])
            }
            TAKE => {
                let stored = self.stored.take().map(|(_, descriptors)| descriptors);
                let stored = stored.unwrap_or_default();
                let all: Vec<BorrowedFd<'_>> = stored.iter().map(AsFd::as_fd).collect();
                send_all(socket, ANSWER, &all)
            }
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }
}

fn new_socket() -> io::Result<OwnedFd> {
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    Ok(socket_with(family, kind, SocketFlags::CLOEXEC, None)?)
}

fn connect_to(path: &Path) -> io::Result<OwnedFd> {
    let socket = new_socket()?;
    connect(&socket, &SocketAddrUnix::new(path)?)?;
    set_timeouts(&socket)?;
    Ok(socket)
}

fn set_timeouts(socket: &OwnedFd) -> io::Result<()> {
    for timeout in [Timeout::Recv, Timeout::Send] {
        set_socket_timeout(socket, timeout, Some(TIMEOUT))?;
    }
    Ok(())
}

/// How many descriptors follow.
fn count([kind, count @ ..]: [u8; 5], wanted: u8) -> io::Result<u32> {
    let count = u32::from_le_bytes(count);
    match kind == wanted && count <= COUNT_MAX {
        true => Ok(count),
        false => Err(io::ErrorKind::InvalidData.into()),
    }
}

fn receive_packet(socket: &OwnedFd) -> io::Result<([u8; 5], Vec<OwnedFd>)> {
    let mut buffer = [0; 5];
    let (bytes, descriptors) = packet::receive(socket, &mut buffer)?;
    match <[u8; 5]>::try_from(bytes) {
        Ok(bytes) => Ok((bytes, descriptors)),
        Err(_) => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

fn send_all(socket: &OwnedFd, kind: u8, all: &[BorrowedFd<'_>]) -> io::Result<()> {
    let [a, b, c, d] = (all.len() as u32).to_le_bytes();
    packet::send(socket, &[kind, a, b, c, d], &[])?;
    all.chunks(DESCRIPTORS_MAX)
        .try_for_each(|some| packet::send(socket, &[NEXT, 0, 0, 0, 0], some))
}

fn receive_all(socket: &OwnedFd, count: u32) -> io::Result<Vec<OwnedFd>> {
    let mut all = Vec::new();
    while all.len() < count as usize {
        let ([NEXT, ..], some) = receive_packet(socket)? else {
            return Err(io::ErrorKind::InvalidData.into());
        };
        if some.is_empty() {
            return Err(io::ErrorKind::InvalidData.into());
        }
        all.extend(some);
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn started(path: &Path) -> std::thread::JoinHandle<DescriptorStore> {
        let mut store = DescriptorStore::bind(path).expect("it is made");
        std::thread::spawn(move || {
            (0..2).for_each(|_| store.serve().expect("it serves"));
            store
        })
    }

    #[test]
    fn what_an_engine_stores_is_given_to_the_next_one_once() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = path_of(&directory.path().join("engine.sock"));
        let serving = started(&path);
        let mode = path.metadata().expect("it is there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        // More than go with one packet.
        let pipes = (0..11).map(|_| io::pipe().expect("there are more"));
        let (readers, writers): (Vec<_>, Vec<_>) = pipes.unzip();
        let record = vec![7; 100_000];
        let descriptors = writers.into_iter().map(OwnedFd::from).collect();
        store(
            &path,
            &Stored {
                record,
                descriptors,
            },
        )
        .expect("it is stored");
        let taken = take(&path)
            .expect("it answers")
            .expect("there is something");
        assert_eq!(taken.record, vec![7; 100_000]);
        assert_eq!(taken.descriptors.len(), readers.len());
        for (at, writer) in taken.descriptors.into_iter().enumerate() {
            let wrote = File::from(writer).write_all(&[at as u8]);
            wrote.expect("it is open");
        }
        for (at, mut reader) in readers.into_iter().enumerate() {
            let mut read = Vec::new();
            reader.read_to_end(&mut read).expect("no writer is left");
            assert_eq!(read, [at as u8]);
        }
        let mut store = serving.join().expect("it ends");
        assert!(store.stored.is_none());
        let serving = std::thread::spawn(move || store.serve());
        assert!(take(&path).expect("it answers").is_none());
        serving.join().expect("it ends").expect("it serves");
    }

    #[test]
    fn an_engine_that_breaks_off_leaves_nothing() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("store");
        let serving = started(&path);
        let socket = connect_to(&path).expect("it listens");
        packet::send(&socket, &[STORE, 9, 0, 0, 0], &[]).expect("it is sent");
        drop(socket);
        assert!(take(&path).expect("it answers").is_none());
        serving.join().expect("it ends");
    }
}

//! The program's end of an open device.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use weft_device::VERSION;
use weft_device::control::{
    self, Answer, ErrorNumber, Limits, MESSAGE_BYTES_MAX, MessageError, Outcome, Request,
};
use weft_device::doorbell::{DOORBELL_WORDS, Doorbells};
use weft_device::ring::Ring;
use weft_device::space::{DOORBELL_BYTES, RingPlace};
use weft_memory::{MemfdError, Region, Words};

use crate::{CONTROL_FILE, TOKEN_FILE, packet};

/// An open device.
#[derive(Debug)]
pub struct Client {
    /// The process that has opened it.
    process: u32,
    socket: OwnedFd,
    limits: Limits,
    gid: [u8; 16],
    shared: Arc<Region>,
    wake: File,
    events: Option<OwnedFd>,
}

/// Why a device was not opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// A file of the device cannot be used.
    #[error(
        "{path}: {source}: check that the device's directory is mounted whole, and that the engine runs"
    )]
    File {
        /// Which.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// The engine is of another release than this library.
    #[error(
        "{path} cannot be opened: the engine speaks version {engine} of the devices' protocol, and this library version \
         {library}: start the program with the libraries of the engine's release: restart the container; outside of pods, \
         start it by `weft device run` of that release"
    )]
    OtherVersion {
        /// The device.
        path: PathBuf,
        /// The engine's version.
        engine: u32,
        /// The library's.
        library: u32,
    },
    /// The engine refuses.
    #[error("the engine refuses to open {path}: {}", remedy(.error))]
    Refused {
        /// The device.
        path: PathBuf,
        /// Why.
        error: ErrorNumber,
    },
    /// The engine's answer is none.
    #[error("the engine's answer cannot be understood: use the library of the engine's release")]
    Answer,
    /// The device's memory cannot be mapped.
    #[error(transparent)]
    Memory(#[from] MemfdError),
}

/// What is wrong, and what to do.
fn remedy(error: &ErrorNumber) -> String {
    match error {
        ErrorNumber::AccessDenied => {
            "the token is of no device that it has: the device was destroyed, or the engine was killed: restart the \
             container, or make the device again"
                .to_owned()
        }
        ErrorNumber::OutOfMemory => {
            "as many devices, or programs of this one, are open as may be: end others first; the log of weft-engine says \
             which limit it is"
                .to_owned()
        }
        other => format!("{other:?}: see the log of weft-engine"),
    }
}

impl From<MessageError> for OpenError {
    fn from(_: MessageError) -> Self {
        Self::Answer
    }
}

impl Client {
    /// Opens the device whose directory this is.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(directory: &Path) -> Result<Self, OpenError> {
        Self::open_for(directory, Path::new("/proc/self/mem"))
    }

    /// The same, for a process whose memory this file of `/proc` is.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open_for(directory: &Path, memory: &Path) -> Result<Self, OpenError> {
        let at = |file: &str| {
            let path = directory.join(file);
            move |source: io::Error| OpenError::File { path, source }
        };
        let token = fs::read(directory.join(TOKEN_FILE)).map_err(at(TOKEN_FILE))?;
        let wrong = || io::Error::other("it has not 32 bytes");
        let token = <[u8; 32]>::try_from(token).map_err(|_| at(TOKEN_FILE)(wrong()))?;
        let path = directory.join(CONTROL_FILE);
        let address = SocketAddrUnix::new(&path);
        let socket = socket_with(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        );
        let connected = socket.and_then(|socket| {
            connect(&socket, &address?)?;
            Ok(socket)
        });
        let socket = connected.map_err(|errno| at(CONTROL_FILE)(errno.into()))?;
        let memory = OpenOptions::new()
            .read(true)
            .write(true)
            .open(memory)
            .map_err(|source| OpenError::File {
                path: memory.to_owned(),
                source,
            })?;
        let request = Request::Open {
            version: VERSION,
            token,
        };
        let mut buffer = [0; MESSAGE_BYTES_MAX];
        let sent = packet::send(
            &socket,
            control::emit(&request, &mut buffer),
            &[memory.as_fd()],
        );
        sent.map_err(at(CONTROL_FILE))?;
        let (answer, descriptors) =
            packet::receive(&socket, &mut buffer).map_err(at(CONTROL_FILE))?;
        let refused = |error| {
            let path = directory.to_owned();
            match error {
                ErrorNumber::OtherVersion { engine } => OpenError::OtherVersion {
                    path,
                    engine,
                    library: VERSION,
                },
                error => OpenError::Refused { path, error },
            }
        };
        let Answer::Opened { limits, gid } = control::parse::<Outcome>(answer)?.map_err(refused)?
        else {
            return Err(OpenError::Answer);
        };
        let descriptors = <[OwnedFd; 3]>::try_from(descriptors);
        let [shared, wake, events] = descriptors.map_err(|_| OpenError::Answer)?;
        let bytes = DOORBELL_BYTES + limits.ring_bytes;
        Ok(Self {
            process: std::process::id(),
            socket,
            limits,
            gid,
            shared: Arc::new(Region::from_memfd(shared, bytes)?),
            wake: wake.into(),
            events: Some(events),
        })
    }

    /// What the device can do.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Whether this process is a child of the one that has opened the device. The device is not the child's, and the engine
    /// reads and writes its parent's memory.
    fn is_of_parent(&self) -> bool {
        self.process != std::process::id()
    }

    /// Its GID.
    #[must_use]
    pub fn gid(&self) -> [u8; 16] {
        self.gid
    }

    /// The socket. It can be read when the engine has ended.
    #[must_use]
    pub fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    /// The event socket, once: packets are [events](weft_device::event::Event), and it ends with the engine.
    pub fn take_events(&mut self) -> Option<OwnedFd> {
        self.events.take()
    }

    /// Makes a call, and waits for the answer. One thread at a time.
    ///
    /// # Errors
    /// As the engine says; an engine that is gone is [`ErrorNumber::EngineGone`].
    pub fn ask(&self, request: &Request) -> Outcome {
        self.ask_for(request).map(|(answer, _)| answer)
    }

    /// The same, and the descriptors that come with the answer.
    ///
    /// # Errors
    /// As [`Client::ask`].
    pub fn ask_for(&self, request: &Request) -> Result<(Answer, Vec<OwnedFd>), ErrorNumber> {
        self.ask_with(request, None)
    }

    /// The same, with a descriptor.
    ///
    /// # Errors
    /// As [`Client::ask`].
    pub fn ask_with(
        &self,
        request: &Request,
        file: Option<BorrowedFd<'_>>,
    ) -> Result<(Answer, Vec<OwnedFd>), ErrorNumber> {
        if self.is_of_parent() {
            return Err(ErrorNumber::EngineGone);
        }
        let mut buffer = [0; MESSAGE_BYTES_MAX];
        let bytes = control::emit(request, &mut buffer);
        let sent = packet::send(&self.socket, bytes, file.as_slice());
        sent.map_err(|_| ErrorNumber::EngineGone)?;
        loop {
            match packet::receive_soon(&self.socket, &mut buffer) {
                Ok((answer, descriptors)) => {
                    let outcome = control::parse::<Outcome>(answer);
                    let answer = outcome.unwrap_or(Err(ErrorNumber::EngineGone))?;
                    return Ok((answer, descriptors));
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return Err(ErrorNumber::EngineGone),
            }
        }
    }

    /// A ring of the device.
    #[must_use]
    pub fn ring(&self, place: RingPlace) -> Option<Ring<Words>> {
        let words = Words::new(&self.shared, place.offset, place.words()).ok()?;
        Ring::new(words).ok()
    }

    /// The doorbell page.
    #[must_use]
    pub fn doorbells(&self) -> Option<Doorbells<Words>> {
        let words = Words::new(&self.shared, 0, DOORBELL_WORDS).ok()?;
        Doorbells::new(words).ok()
    }

    /// Wakes the engine, which a doorbell found asleep.
    pub fn wake(&self) {
        // It fails only when the counter is full, and then the engine is awake.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }
}

#[cfg(test)]
mod tests {
    use rustix::net::{accept, bind, listen};

    use super::*;

    /// Opens a device of an engine that answers so.
    fn open_at(outcome: Outcome) -> OpenError {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join(TOKEN_FILE), [7; 32]).unwrap();
        let flags = SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        let path = directory.path().join(CONTROL_FILE);
        bind(&socket, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        listen(&socket, 1).unwrap();
        let engine = std::thread::spawn(move || {
            let program = accept(&socket).unwrap();
            let mut buffer = [0; MESSAGE_BYTES_MAX];
            let (request, _) = packet::receive(&program, &mut buffer).unwrap();
            let request = control::parse::<Request>(request).unwrap();
            assert!(matches!(request, Request::Open { .. }), "{request:?}");
            packet::send(&program, control::emit(&outcome, &mut buffer), &[]).unwrap();
        });
        let error = Client::open(directory.path()).unwrap_err();
        engine.join().unwrap();
        error
    }

    #[test]
    fn a_library_of_another_version_than_the_engine_names_both_and_the_remedy() {
        let engine = VERSION + 7;
        let error = open_at(Err(ErrorNumber::OtherVersion { engine }));
        let text = error.to_string();
        let versions = format!(
            "engine speaks version {engine} of the devices' protocol, and this library version {VERSION}:"
        );
        assert!(text.contains(&versions), "{text}");
        assert!(text.contains("restart the container"), "{text}");
    }

    #[test]
    fn a_refusal_says_what_to_do() {
        for (error, remedy) in [
            (ErrorNumber::AccessDenied, "make the device again"),
            (ErrorNumber::OutOfMemory, "end others first"),
            (ErrorNumber::InvalidArgument, "InvalidArgument: see the log"),
        ] {
            let text = open_at(Err(error)).to_string();
            assert!(text.contains(remedy), "{text}");
        }
    }
}

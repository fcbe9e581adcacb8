//! The threads of the control socket. One accepts programs, and each program that opens a device has one more, which takes
//! its packets. They may be anything.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crossbeam_channel::{Sender, TryRecvError, bounded};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SocketFlags, accept_with, recv};
use weft_device::VERSION;
use weft_device::control::{
    self as message, Answer, ErrorNumber, Limits, MESSAGE_BYTES_MAX, Outcome, Request,
};
use weft_device_socket::{packet, spin};
use weft_engine::{AddressSpace, SharedFiles};

use crate::command::Command;
use crate::context::Device;
use crate::device_table::{DeviceTable, lock};
use crate::devices::{ContextId, Opened};
use crate::open_devices::{Gid, OpenDevice, OpenDevices};
use crate::thread::spawn;

/// Connections that have not opened a device; of more, the oldest is closed.
const UNOPENED_MAX: usize = 64;

/// The control thread waits this long after it could not accept a program.
const ACCEPT_BACKOFF: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 20_000_000,
};

/// How often openings that were refused are logged, where there are more.
const LOG_INTERVAL: Duration = Duration::from_secs(1);
/// The control thread looks at them so often.
const LOG_WAIT: Timespec = Timespec {
    tv_sec: 1,
    tv_nsec: 0,
};

const NO_WAIT: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 0,
};

/// Threads that close refused sockets at a time.
const REFUSING_MAX: usize = 64;

/// What a thread of the control socket gives back when it is told to end.
pub(crate) enum Released {
    /// The one that accepts programs: the sockets of those that have not opened a device.
    Unopened(Vec<OwnedFd>),
    /// That of a program which has a device open.
    Program(OpenProgram),
}

/// A program that has a device open.
pub(crate) struct OpenProgram {
    pub(crate) socket: OwnedFd,
    pub(crate) context: ContextId,
    pub(crate) thread: OpenDevice,
}

/// Accepts programs.
pub(crate) struct Control {
    pub(crate) listening: Arc<OwnedFd>,
    /// Its other end is closed when all threads are to end.
    pub(crate) stopped: Arc<OwnedFd>,
    pub(crate) table: Arc<Mutex<DeviceTable>>,
    pub(crate) devices: Arc<OpenDevices>,
    /// Held by each thread that closes a refused socket.
    pub(crate) refusing: Arc<()>,
    /// Dropped by each thread when it ends.
    pub(crate) released: Sender<Released>,
}

impl Control {
    /// Serves programs, at first those that have connected and have not opened a device.
    pub(crate) fn run(self, mut unopened: Vec<OwnedFd>) {
        let mut logged_at = Duration::ZERO;
        loop {
            let all = [self.stopped.as_fd(), self.listening.as_fd()];
            let all = all.into_iter().chain(unopened.iter().map(AsFd::as_fd));
            let ready = wait(all.collect(), Some(&LOG_WAIT));
            self.log_refused(&mut logged_at);
            if ready[0] {
                // A server that is dropped takes nothing.
                let _ = self.released.send(Released::Unopened(unopened));
                return;
            }
            // From the last on: one that is removed moves none that is still to be looked at.
            for at in (0..unopened.len()).rev() {
                if ready[at + 2] {
                    self.take_opening(unopened.remove(at));
                }
            }
            if ready[1] {
                self.accept(&mut unopened);
            }
        }
    }

    /// Says how many connections have opened nothing since it was said last.
    fn log_refused(&self, logged_at: &mut Duration) {
        let now = self.devices.now();
        if now.saturating_sub(*logged_at) < LOG_INTERVAL {
            return;
        }
        let refused = self.devices.take_unlogged();
        if refused > 0 {
            *logged_at = now;
            tracing::warn!(
                "{refused} connections to the devices' control socket showed no token of a device, or spoke another protocol or version of it: refused"
            );
        }
    }

    fn accept(&self, unopened: &mut Vec<OwnedFd>) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let Ok(socket) = accept_with(&self.listening, flags) else {
            // The program has gone, or descriptors are short: then the socket stays ready, and it is tried again.
            let mut stopped = [PollFd::new(&self.stopped, PollFlags::IN)];
            let _ = poll(&mut stopped, Some(&ACCEPT_BACKOFF));
            return;
        };
        if unopened.len() >= UNOPENED_MAX {
            self.refuse(unopened.remove(0), None);
        }
        unopened.push(socket);
    }

    /// Looks at the first packet of a program, and starts its thread. One that opens no device is closed, by another
    /// thread: the descriptors of the packet may be anything, and closing them may take as long as its sender likes.
    fn take_opening(&self, socket: OwnedFd) {
        let mut buffer = [0; MESSAGE_BYTES_MAX];
        let peeked = recv(&socket, &mut buffer, RecvFlags::PEEK | RecvFlags::DONTWAIT);
        let (bytes, _) = peeked.unwrap_or((0, 0));
        let request = message::parse::<Request>(&buffer[..bytes]);
        let Ok(Request::Open { version, token }) = request else {
            // One that has gone has sent nothing.
            if bytes > 0 {
                self.devices.count_refused_opening(None);
            }
            tracing::debug!("a packet on a device's control socket opens no device: it is closed");
            return self.refuse(socket, None);
        };
        let device = lock(&self.table).opened_by(&token);
        let gid = device.as_ref().map(|device| device.gid);
        let device = match version {
            VERSION => device.ok_or(ErrorNumber::AccessDenied),
            _ => Err(ErrorNumber::OtherVersion { engine: VERSION }),
        };
        if device.is_err() {
            self.devices.count_refused_opening(gid);
        }
        let admitted = device.and_then(|device| {
            let admitted = self.devices.admit(device.gid);
            Ok((device, admitted.ok_or(ErrorNumber::OutOfMemory)?))
        });
        let (device, admitted) = match admitted {
            Ok(admitted) => admitted,
            Err(error) => return self.refuse(socket, Some(error)),
        };
        let (devices, stopped) = (Arc::clone(&self.devices), Arc::clone(&self.stopped));
        let released = self.released.clone();
        let served = spawn("weft-program", move || {
            if let Some(program) = open_for(&devices, device, socket) {
                serve(program, &stopped, &released);
            }
            drop(admitted);
        });
        if let Err(error) = served {
            tracing::warn!("a program is turned away: {error}");
        }
    }

    /// Serves a program that had a device open when an earlier engine ended.
    ///
    /// # Errors
    /// There are no more threads, and its device is closed.
    pub(crate) fn resume(&self, program: OpenProgram, gid: Gid) -> io::Result<()> {
        let (thread, context) = (program.thread.clone(), program.context);
        let admitted = self.devices.admit(gid);
        let (stopped, released) = (Arc::clone(&self.stopped), self.released.clone());
        let spawned = spawn("weft-program", move || {
            serve(program, &stopped, &released);
            drop(admitted);
        });
        spawned.inspect_err(|_| thread.send(Command::Close(context)))
    }

    /// Closes a socket in a thread of its own, and says why before. With so many of these threads under way already, it
    /// waits for this one.
    fn refuse(&self, socket: OwnedFd, error: Option<ErrorNumber>) {
        let refuse = move || {
            // A socket that is closed with a packet in it loses the answer. The program may have gone.
            let _ = recv(&socket, &mut [0; MESSAGE_BYTES_MAX], RecvFlags::DONTWAIT);
            if let Some(error) = error {
                let _ = answer(&socket, &Err(error), &[]);
            }
        };
        if Arc::strong_count(&self.refusing) > REFUSING_MAX {
            return refuse();
        }
        let refusing = Arc::clone(&self.refusing);
        // Nobody waits for it, at the end of the server neither.
        let spawned = spawn("weft-refused", move || {
            refuse();
            drop(refusing);
        });
        if let Err(error) = spawned {
            tracing::warn!("a program is turned away: {error}");
        }
    }
}

/// Waits until one of these has something, for so long at most. Answers which have.
fn wait(descriptors: Vec<BorrowedFd<'_>>, timeout: Option<&Timespec>) -> Vec<bool> {
    let polled = |fd| PollFd::from_borrowed_fd(fd, PollFlags::IN);
    let mut polled: Vec<PollFd<'_>> = descriptors.into_iter().map(polled).collect();
    match poll(&mut polled, timeout) {
        Ok(_) | Err(Errno::INTR) => {}
        // Without readiness it can only hang in silence.
        Err(error) => panic!("waiting for programs failed: {error}"),
    }
    polled.iter().map(|it| !it.revents().is_empty()).collect()
}

/// What came from a program.
enum Received {
    Request(Request, Vec<OwnedFd>),
    /// It has gone.
    End,
    /// No request.
    Foreign,
}

fn receive(socket: &OwnedFd, buffer: &mut [u8]) -> Received {
    let (bytes, descriptors) = match packet::receive(socket, buffer) {
        Ok((bytes, descriptors)) if !bytes.is_empty() => (bytes, descriptors),
        // One that is cut off is longer than any request.
        Err(error) if error.kind() == io::ErrorKind::InvalidData => return Received::Foreign,
        _ => return Received::End,
    };
    match message::parse::<Request>(bytes) {
        Ok(request) => Received::Request(request, descriptors),
        Err(_) => Received::Foreign,
    }
}

/// A program that asks without taking answers gets an error, and is closed.
fn answer(socket: &OwnedFd, outcome: &Outcome, passed: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut buffer = [0; MESSAGE_BYTES_MAX];
    packet::send(socket, message::emit(outcome, &mut buffer), passed)
}

/// Opens the device for a program. `None` when the program has gone, or nothing was opened.
fn open_for(devices: &Arc<OpenDevices>, device: Device, socket: OwnedFd) -> Option<OpenProgram> {
    // What was looked at before.
    let Received::Request(_, descriptors) = receive(&socket, &mut [0; MESSAGE_BYTES_MAX]) else {
        return None;
    };
    let (limits, gid) = (device.limits, device.gid);
    let (thread, opened) = match open(devices, device, descriptors) {
        Ok(opened) => opened,
        Err(error) => {
            if error == ErrorNumber::InvalidArgument {
                devices.count_refused_opening(Some(gid));
            }
            let _ = answer(&socket, &Err(error), &[]);
            return None;
        }
    };
    let context = opened.context;
    if tell_opened(&socket, limits, gid, &opened).is_err() {
        thread.send(Command::Close(context));
        return None;
    }
    Some(OpenProgram {
        socket,
        context,
        thread,
    })
}

/// Serves a program until it has gone, or the server ends.
fn serve(program: OpenProgram, stopped: &OwnedFd, released: &Sender<Released>) {
    let OpenProgram {
        socket,
        context,
        thread,
    } = &program;
    loop {
        let both = || vec![stopped.as_fd(), socket.as_fd()];
        // Programs make their objects one after the other.
        let next = spin(|| {
            let ready = wait(both(), Some(&NO_WAIT));
            ready.contains(&true).then_some(ready)
        });
        let ready = next.unwrap_or_else(|| wait(both(), None));
        if ready[0] {
            // A server that is dropped takes nothing.
            let _ = released.send(Released::Program(program));
            return;
        }
        if ready[1] && take_request(thread, *context, socket).is_none() {
            thread.send(Command::Close(*context));
            return;
        }
    }
}

fn open(
    devices: &Arc<OpenDevices>,
    device: Device,
    descriptors: Vec<OwnedFd>,
) -> Result<(OpenDevice, Opened), ErrorNumber> {
    let [memory] =
        <[OwnedFd; 1]>::try_from(descriptors).map_err(|_| ErrorNumber::InvalidArgument)?;
    let program = AddressSpace::new(memory).map_err(|_| ErrorNumber::InvalidArgument)?;
    devices.open(device, program).map_err(|error| {
        tracing::warn!("a device was not opened: {error}");
        error.error_number()
    })
}

fn tell_opened(socket: &OwnedFd, limits: Limits, gid: Gid, opened: &Opened) -> io::Result<()> {
    let told = Answer::Opened { limits, gid };
    let sockets = [opened.wake.as_fd(), opened.events.as_fd()];
    let passed: Vec<BorrowedFd<'_>> = opened.shared.file().into_iter().chain(sockets).collect();
    answer(socket, &Ok(told), &passed)
}

/// Takes one packet of a program, and has the device's thread carry it out. `None` when the program has gone.
fn take_request(thread: &OpenDevice, context: ContextId, socket: &OwnedFd) -> Option<()> {
    let mut buffer = [0; MESSAGE_BYTES_MAX];
    let (request, mut descriptors) = match receive(socket, &mut buffer) {
        Received::Request(request, descriptors) => (request, descriptors),
        Received::End => return None,
        Received::Foreign => {
            thread.shown.refused_calls.fetch_add(1, Ordering::Relaxed);
            return None;
        }
    };
    // Closing another descriptor may take for ever: this thread does that, and not the device's.
    let file = descriptors.pop().filter(SharedFiles::takes);
    let (sender, answered) = bounded(1);
    thread.send(Command::Request {
        context,
        request,
        file,
        answer: sender,
    });
    let gone = (Err(ErrorNumber::EngineGone), None);
    let soon = spin(|| match answered.try_recv() {
        Err(TryRecvError::Empty) => None,
        answered => Some(answered.ok()),
    });
    let answered = soon.unwrap_or_else(|| answered.recv().ok());
    let (outcome, passed) = answered.unwrap_or(gone);
    let passed: Vec<BorrowedFd<'_>> = passed.iter().map(AsFd::as_fd).collect();
    answer(socket, &outcome, &passed).ok()
}

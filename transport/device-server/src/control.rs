//! The thread of the control socket: it takes packets of programs, which may be anything, and has their requests carried
//! out.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex};

use crossbeam_channel::{Sender, bounded};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with};
use weft_device::VERSION;
use weft_device::control::{
    self as message, Answer, ErrorNumber, MESSAGE_BYTES_MAX, Outcome, Request,
};
use weft_device_socket::packet;
use weft_engine::AddressSpace;

use crate::context::Device;
use crate::device_table::{DeviceTable, lock};
use crate::devices::{ContextId, Opened};
use crate::limits::Totals;
use crate::work::{Command, send};

/// Connections that have not opened a device; of more, the oldest is closed.
const UNOPENED_MAX: usize = 64;
/// Connections in all: one that opens a device beyond what the node may have is told so.
const CONNECTIONS_MAX: usize = Totals::DEFAULT.node.opens as usize + UNOPENED_MAX;

/// A program that has connected.
struct Connection {
    socket: OwnedFd,
    /// Once it has opened a device.
    context: Option<ContextId>,
}

pub(crate) struct Control {
    listening: OwnedFd,
    /// Its other end is closed when the thread is to end.
    stopped: OwnedFd,
    devices: Arc<Mutex<DeviceTable>>,
    commands: Sender<Command>,
    wake: Arc<OwnedFd>,
    connections: Vec<Connection>,
}

impl Control {
    pub(crate) fn new(
        listening: OwnedFd,
        stopped: OwnedFd,
        devices: Arc<Mutex<DeviceTable>>,
        commands: Sender<Command>,
        wake: Arc<OwnedFd>,
    ) -> Self {
        Self {
            listening,
            stopped,
            devices,
            commands,
            wake,
            connections: Vec::new(),
        }
    }

    pub(crate) fn run(mut self) {
        loop {
            let sockets = self.connections.iter().map(|it| it.socket.as_fd());
            let all = [self.stopped.as_fd(), self.listening.as_fd()];
            let all = all.into_iter().chain(sockets);
            let mut polled: Vec<PollFd<'_>> = all
                .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
                .collect();
            match poll(&mut polled, None) {
                Ok(_) | Err(Errno::INTR) => {}
                // Without readiness it can only hang in silence.
                Err(error) => panic!("waiting for programs failed: {error}"),
            }
            let ready: Vec<bool> = polled.iter().map(|it| !it.revents().is_empty()).collect();
            if ready[0] {
                return;
            }
            // From the last on: one that is closed moves none that is still to be looked at.
            for at in (0..self.connections.len()).rev() {
                if ready[at + 2] && !self.serve(at) {
                    let connection = self.connections.swap_remove(at);
                    if let Some(context) = connection.context {
                        send(&self.commands, &self.wake, Command::Close(context));
                    }
                }
            }
            if ready[1] {
                self.accept();
            }
        }
    }

    fn accept(&mut self) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let Ok(socket) = accept_with(&self.listening, flags) else {
            // The program has gone, or descriptors are short: then it is tried again, as the socket stays ready.
            std::thread::yield_now();
            return;
        };
        let unopened = || self.connections.iter().filter(|it| it.context.is_none());
        if unopened().count() >= UNOPENED_MAX
            && let Some(oldest) = self.connections.iter().position(|it| it.context.is_none())
        {
            self.connections.remove(oldest);
        }
        if self.connections.len() < CONNECTIONS_MAX {
            self.connections.push(Connection {
                socket,
                context: None,
            });
        }
    }

    /// Takes one packet of a program. Answers whether the connection goes on.
    fn serve(&mut self, at: usize) -> bool {
        let mut buffer = [0; MESSAGE_BYTES_MAX];
        let connection = &self.connections[at];
        let (request, descriptors) = match packet::receive(&connection.socket, &mut buffer) {
            Ok((bytes, descriptors)) if !bytes.is_empty() => {
                (message::parse::<Request>(bytes), descriptors)
            }
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return true,
            Ok(_) | Err(_) => return false,
        };
        let Ok(request) = request else {
            tracing::debug!("a packet on a device's control socket is no request: it is closed");
            return false;
        };
        let (mut opened, mut channel) = (None, None);
        let outcome = match (connection.context, request) {
            (None, Request::Open { version, token }) => {
                match self.open(version, token, descriptors) {
                    Ok((device, made)) => {
                        let made = opened.insert(made);
                        self.connections[at].context = Some(made.context);
                        Ok(Answer::Opened {
                            limits: device.limits,
                            gid: device.gid,
                        })
                    }
                    Err(error) => Err(error),
                }
            }
            (Some(context), request) => {
                let (outcome, passed) = self.ask(context, request);
                channel = passed;
                outcome
            }
            (None, _) => return false,
        };
        let passed: Vec<BorrowedFd<'_>> = match &opened {
            Some(Opened {
                shared,
                wake,
                events,
                ..
            }) => {
                let sockets = [wake.as_fd(), events.as_fd()];
                shared.file().into_iter().chain(sockets).collect()
            }
            None => channel.iter().map(AsFd::as_fd).collect(),
        };
        let mut buffer = [0; MESSAGE_BYTES_MAX];
        let answer = message::emit(&outcome, &mut buffer);
        // A program that asks without taking answers is closed.
        packet::send(&self.connections[at].socket, answer, &passed).is_ok()
    }

    fn open(
        &self,
        version: u32,
        token: [u8; 32],
        descriptors: Vec<OwnedFd>,
    ) -> Result<(Device, Opened), ErrorNumber> {
        if version != VERSION {
            return Err(ErrorNumber::OtherVersion);
        }
        let device = lock(&self.devices).opened_by(&token);
        let device = device.ok_or(ErrorNumber::AccessDenied)?;
        let [memory] =
            <[OwnedFd; 1]>::try_from(descriptors).map_err(|_| ErrorNumber::InvalidArgument)?;
        let program = AddressSpace::new(memory).map_err(|_| ErrorNumber::InvalidArgument)?;
        let (answer, answered) = bounded(1);
        let command = Command::Open {
            device,
            program,
            answer,
        };
        send(&self.commands, &self.wake, command);
        match answered.recv() {
            Ok(Ok(opened)) => Ok((device, opened)),
            Ok(Err(error)) => {
                tracing::warn!("a device was not opened: {error}");
                Err(error.error_number())
            }
            Err(_) => Err(ErrorNumber::EngineGone),
        }
    }

    fn ask(&self, context: ContextId, request: Request) -> (Outcome, Option<OwnedFd>) {
        let (answer, answered) = bounded(1);
        let command = Command::Request {
            context,
            request,
            answer,
        };
        send(&self.commands, &self.wake, command);
        let gone = (Err(ErrorNumber::EngineGone), None);
        answered.recv().unwrap_or(gone)
    }
}

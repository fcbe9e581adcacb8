//! The event socket of an open device.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use weft_device::event::{EVENT_BYTES, Event};

/// Addresses of objects, by their handles.
pub(crate) type Addresses = Mutex<HashMap<u32, usize>>;

/// The event socket of an open device, and the objects that events are of.
pub(crate) struct Events {
    pub(crate) completion_queues: Addresses,
    pub(crate) queue_pairs: Addresses,
    pub(crate) shared_receive_queues: Addresses,
    socket: OwnedFd,
    is_closed: AtomicBool,
    /// That the engine has ended was said.
    is_end_said: AtomicBool,
}

impl Events {
    pub(crate) fn new(socket: OwnedFd) -> Self {
        Self {
            completion_queues: Addresses::default(),
            queue_pairs: Addresses::default(),
            shared_receive_queues: Addresses::default(),
            socket,
            is_closed: AtomicBool::new(false),
            is_end_said: AtomicBool::new(false),
        }
    }

    pub(crate) fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    /// The device is being closed: a thread that waits for an event stops waiting.
    pub(crate) fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
        // SAFETY: it is a socket, and open.
        unsafe { libc::shutdown(self.socket.as_raw_fd(), libc::SHUT_RDWR) };
    }

    /// The next event.
    pub(crate) fn next(&self) -> io::Result<Event> {
        loop {
            let mut packet = [0u8; EVENT_BYTES];
            // SAFETY: so many bytes of room.
            let read = unsafe {
                let room = packet.as_mut_ptr().cast();
                libc::recv(self.socket.as_raw_fd(), room, packet.len(), 0)
            };
            match usize::try_from(read) {
                // The engine has ended.
                Ok(0)
                    if !self.is_closed.load(Ordering::Acquire)
                        && !self.is_end_said.swap(true, Ordering::Relaxed) =>
                {
                    return Ok(Event::DEVICE_FATAL);
                }
                Ok(0) => return Err(io::Error::from_raw_os_error(libc::EIO)),
                // One of a later version is passed over.
                Ok(read) => {
                    if let Some(event) = Event::from_bytes(&packet[..read]) {
                        return Ok(event);
                    }
                }
                Err(_) => return Err(io::Error::last_os_error()),
            }
        }
    }
}

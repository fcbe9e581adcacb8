//! The thread that moves the devices' work requests: it owns them, and the engine.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender};
use weft_device::control::{Outcome, Request};
use weft_engine::AddressSpace;

use crate::context::Device;
use crate::devices::{ContextId, Devices, OpenError, Opened};
use crate::offer::Offer;

/// How long it sleeps at most: offers that are not answered are sent again at about this time.
const WAIT_MAX: Duration = Duration::from_millis(100);

/// What other threads ask of it.
pub(crate) enum Command {
    /// A program opens a device.
    Open {
        device: Device,
        program: AddressSpace,
        answer: Sender<Result<Opened, OpenError>>,
    },
    /// A program makes a call.
    Request {
        context: ContextId,
        request: Request,
        answer: Sender<(Outcome, Option<OwnedFd>)>,
    },
    /// A program has closed the device, or has ended.
    Close(ContextId),
    /// How many contexts and queue pairs each GID has.
    Count {
        answer: Sender<BTreeMap<[u8; 16], (u32, u32)>>,
    },
    /// An offer has come.
    Offer { owner: Arc<str>, offer: Offer },
    /// The end.
    Stop,
}

/// Gives the worker a command and wakes it.
pub(crate) fn send(commands: &Sender<Command>, wake: &OwnedFd, command: Command) {
    // The worker is gone only when the server is dropped. The write fails only when the counter is full: it is awake.
    let _ = commands.send(command);
    let _ = rustix::io::write(wake, &1u64.to_ne_bytes());
}

pub(crate) struct Worker {
    pub(crate) devices: Devices,
    pub(crate) commands: Receiver<Command>,
    /// Where offers to other servers go.
    pub(crate) send_offer: Box<dyn Fn(Offer) + Send>,
    pub(crate) begun: Instant,
    /// How long it polls before it sleeps when there is nothing to do.
    pub(crate) spin: Duration,
}

impl Worker {
    pub(crate) fn run(mut self) {
        let mut idle_since = Duration::ZERO;
        loop {
            let now = self.begun.elapsed();
            while let Ok(command) = self.commands.try_recv() {
                idle_since = now;
                if !self.serve(command, now) {
                    return;
                }
            }
            let is_idle = now.saturating_sub(idle_since) > self.spin;
            let wait = if is_idle { WAIT_MAX } else { Duration::ZERO };
            match self.devices.poll(now, wait) {
                Ok(true) => idle_since = now,
                Ok(false) => {
                    if !is_idle {
                        // A program may wait for this core.
                        std::thread::yield_now();
                    }
                }
                // Without readiness it can only hang in silence.
                Err(error) => panic!("waiting for packets failed: {error}"),
            }
            self.devices
                .take_offers()
                .into_iter()
                .for_each(&self.send_offer);
        }
    }

    /// Answers whether it goes on.
    fn serve(&mut self, command: Command, now: Duration) -> bool {
        match command {
            // Who asked may have gone.
            Command::Open {
                device,
                program,
                answer,
            } => {
                if let Err(unsent) = answer.send(self.devices.open(&device, program))
                    && let Ok(opened) = unsent.0
                {
                    self.devices.close(opened.context);
                }
            }
            Command::Request {
                context,
                request,
                answer,
            } => {
                let outcome = self.devices.handle(context, &request, now);
                let _ = answer.send((outcome, self.devices.take_passed(context)));
            }
            Command::Count { answer } => {
                let _ = answer.send(self.devices.count());
            }
            Command::Close(context) => self.devices.close(context),
            Command::Offer { owner, offer } => self.devices.receive_offer(owner, &offer),
            Command::Stop => return false,
        }
        true
    }
}

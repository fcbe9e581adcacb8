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

/// Commands that are carried out in one turn, and as many offers: then packets are moved again.
const COMMANDS_PER_TURN: usize = 64;
/// Offers that wait for the worker. More are refused, and the peers' engines send them again.
pub(crate) const OFFERS_WAITING_MAX: usize = 4096;

/// An offer that has come from the node `owner`, as authenticated.
#[derive(Debug)]
pub(crate) struct ReceivedOffer {
    pub(crate) owner: Arc<str>,
    pub(crate) offer: Offer,
}

/// What other threads ask of it. Their queue needs no bound: the control thread waits for the answer to each request before
/// it takes the next packet of any program, a caller of `list` waits too, and each context is closed once. What comes
/// from other nodes is not a command but a [`ReceivedOffer`], and their queue has a bound.
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
    /// The end.
    Stop,
}

/// Gives the worker a command and wakes it.
pub(crate) fn send(commands: &Sender<Command>, wake: &OwnedFd, command: Command) {
    // The worker is gone only when the server is dropped.
    let _ = commands.send(command);
    wake_worker(wake);
}

/// Ends the worker's sleep. The write fails only when the counter is full: the worker is awake.
pub(crate) fn wake_worker(wake: &OwnedFd) {
    let _ = rustix::io::write(wake, &1u64.to_ne_bytes());
}

/// What a turn has found in the queues of other threads.
#[derive(Debug, PartialEq, Eq)]
enum Taken {
    Nothing,
    Some,
    /// The end.
    Stop,
}

pub(crate) struct Worker {
    pub(crate) devices: Devices,
    pub(crate) commands: Receiver<Command>,
    /// Offers that have come, at most [`OFFERS_WAITING_MAX`].
    pub(crate) offers: Receiver<ReceivedOffer>,
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
            match self.take_commands(now) {
                Taken::Nothing => {}
                // It does not sleep in this turn: there may be more.
                Taken::Some => idle_since = now,
                Taken::Stop => return,
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

    /// Carries out what other threads ask, no more than a turn's share of it.
    fn take_commands(&mut self, now: Duration) -> Taken {
        let mut taken = Taken::Nothing;
        for _ in 0..COMMANDS_PER_TURN {
            let Ok(command) = self.commands.try_recv() else {
                break;
            };
            taken = Taken::Some;
            if !self.serve(command, now) {
                return Taken::Stop;
            }
        }
        for _ in 0..COMMANDS_PER_TURN {
            let Ok(ReceivedOffer { owner, offer }) = self.offers.try_recv() else {
                break;
            };
            taken = Taken::Some;
            self.devices.receive_offer(owner, &offer, now);
        }
        taken
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
            Command::Stop => return false,
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use crossbeam_channel::{bounded, unbounded};
    use weft_engine::{EngineConfig, PortRange, Secret};

    use super::*;

    #[test]
    fn a_turn_takes_so_many_commands_and_leaves_the_rest_for_the_next() {
        let ports = PortRange {
            first: 32_900,
            count: 1,
        };
        let address = Ipv4Addr::new(127, 0, 32, 1);
        let config = EngineConfig::new(address, ports, Secret([9; 32]));
        let ((commands, received), (_offers, offers)) = (unbounded(), bounded(1));
        let mut worker = Worker {
            devices: Devices::start(config).expect("nobody has this address"),
            commands: received,
            offers,
            send_offer: Box::new(drop),
            begun: Instant::now(),
            spin: Duration::ZERO,
        };
        let (answer, answers) = unbounded();
        for _ in 0..COMMANDS_PER_TURN + 1 {
            let answer = answer.clone();
            commands
                .send(Command::Count { answer })
                .expect("it is there");
        }
        commands.send(Command::Stop).expect("it is there");
        assert_eq!(worker.take_commands(Duration::ZERO), Taken::Some);
        assert_eq!(answers.len(), COMMANDS_PER_TURN);
        assert_eq!(worker.take_commands(Duration::ZERO), Taken::Stop);
        assert_eq!(answers.len(), COMMANDS_PER_TURN + 1);
    }
}

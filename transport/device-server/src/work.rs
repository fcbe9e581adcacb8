//! The thread of an open device: it owns its objects, and its engine.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender};

use crate::command::{Command, ReceivedOffer};
use crate::context::Device;
use crate::counters::Counters;
use crate::devices::{Devices, SavedDevices};
use crate::link_share::SHARE_INTERVAL;
use crate::offer::OFFER_TIMEOUT;
use crate::open_devices::{OpenDevices, Shown};
use crate::refused_attempts::{AttemptKind, RefusedAttempt};
use crate::saved::HandOverError;

/// How long it sleeps at most: offers that are not answered are sent again at about this time.
const WAIT_MAX: Duration = Duration::from_millis(100);
/// How long the thread of a device that nobody has open goes on: as long as a connection of a peer may stall. Until then
/// peers are told that their queue pairs are gone.
const LINGER: Duration = OFFER_TIMEOUT;
/// How often counters are shown, and refused packets logged where there are more.
const COUNT_INTERVAL: Duration = Duration::from_secs(1);

/// Commands that are carried out in one turn, and as many offers: then packets are moved again.
const COMMANDS_PER_TURN: usize = 64;

/// Pods of peers that a device remembers, for those to be told whose memory was asked for. With more it forgets all, and knows
/// those that connect after that.
const PODS_MAX: usize = 4096;

/// What a turn has found in the queues of other threads.
enum Taken {
    Nothing,
    Some,
    End(End),
}

/// How a device's thread ends.
enum End {
    Stop,
    /// What there is goes to the next engine.
    Save(SaveAnswer),
}

/// How much of what was refused was looked at.
#[derive(Debug, Default)]
pub(crate) struct Logged {
    offers: u64,
    calls: u64,
    /// Of these, those that [`Devices`] has counted.
    calls_of_devices: u64,
}

type SaveAnswer = Sender<Result<(SavedDevices, Vec<OwnedFd>), HandOverError>>;

pub(crate) struct Worker {
    /// Which of the ranges of ports it has.
    pub(crate) slot: u16,
    pub(crate) device: Arc<Device>,
    pub(crate) devices: Devices,
    pub(crate) commands: Receiver<Command>,
    /// Offers that have come.
    pub(crate) offers: Receiver<ReceivedOffer>,
    pub(crate) shown: Arc<Shown>,
    pub(crate) all: Arc<OpenDevices>,
    /// How long it polls before it sleeps when there is nothing to do.
    pub(crate) spin: Duration,
    /// When somebody had the device open last.
    pub(crate) used_at: Duration,
    /// When what was refused was counted last.
    pub(crate) counted_at: Duration,
    /// The pods of peers that have offered to connect, by their GIDs.
    pub(crate) pods: HashMap<[u8; 16], Arc<str>>,
    pub(crate) logged: Logged,
    /// When the node's devices last shared what they may send.
    pub(crate) shared_at: Duration,
}

impl Worker {
    pub(crate) fn run(mut self) {
        let end = self.turns();
        self.shown.hide(&self.all);
        if let End::Save(answer) = end {
            let saved = self.devices.save(self.all.now());
            let _ = answer.send(saved);
        }
    }

    fn turns(&mut self) -> End {
        let mut idle_since = Duration::ZERO;
        loop {
            let now = self.all.now();
            let turned_at = &self.shown.turned_at;
            turned_at.store(now.as_millis() as u64, Ordering::Relaxed);
            match self.take_commands(now) {
                Taken::Nothing => {}
                // It does not sleep in this turn: there may be more.
                Taken::Some => idle_since = now,
                Taken::End(end) => return end,
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
            for offer in self.devices.take_offers() {
                self.all.pass_on(&self.device, offer);
            }
            self.show_counters(now);
            self.share_link();
            if self.devices.is_open() {
                self.used_at = now;
            } else if now.saturating_sub(self.used_at) >= LINGER
                && self.all.end(self.device.gid, || !self.commands.is_empty())
            {
                return End::Stop;
            }
        }
    }

    /// Shows what is counted, and says where more was refused than before.
    fn show_counters(&mut self, now: Duration) {
        if now.saturating_sub(self.counted_at) < COUNT_INTERVAL {
            return;
        }
        self.counted_at = now;
        let Counters {
            refused,
            refused_calls,
            operations,
            bytes_sent,
            bytes_received,
            copied,
            ..
        } = self.devices.counters();
        for (shown, counted) in [
            (&self.shown.operations, operations),
            (&self.shown.bytes_sent, bytes_sent),
            (&self.shown.bytes_received, bytes_received),
            (&self.shown.bytes_by_window, copied.by_window),
            (&self.shown.bytes_by_address_space, copied.by_address_space),
        ] {
            shown.store(counted, Ordering::Relaxed);
        }
        let device = Gid(self.device.gid);
        let before = self.shown.refused.swap(refused, Ordering::Relaxed);
        if refused > before {
            let more = refused - before;
            tracing::warn!(%device, "{more} packets asked for memory that they may not reach: refused");
        }
        let refused = self.shown.refused_offers.load(Ordering::Relaxed);
        let before = std::mem::replace(&mut self.logged.offers, refused);
        if refused > before {
            let more = refused - before;
            tracing::warn!(%device, "{more} offers of other tenants to connect: refused");
        }
        // The threads of its programs count some as well.
        let before = std::mem::replace(&mut self.logged.calls_of_devices, refused_calls);
        let more = refused_calls - before;
        let refused = self.shown.refused_calls.fetch_add(more, Ordering::Relaxed) + more;
        let before = std::mem::replace(&mut self.logged.calls, refused);
        if refused > before {
            let more = refused - before;
            tracing::warn!(
                %device,
                "{more} calls or work requests were for objects that are not the program's, of another protection domain, or of another protocol: refused"
            );
        }
        for gid in self.devices.take_refused_by() {
            if let Some(pod) = self.pods.get(&gid) {
                self.all.refused_attempts.add(RefusedAttempt {
                    kind: AttemptKind::MemoryAccess,
                    from: Arc::clone(&self.device.owner),
                    to: Arc::clone(pod),
                });
            }
        }
    }

    /// Limits what the device sends to its share of what the node may.
    fn share_link(&mut self) {
        let Some(link) = &self.all.link_share else {
            return;
        };
        // The turn may have slept.
        let now = self.all.now();
        if now.saturating_sub(self.shared_at) >= SHARE_INTERVAL
            && let Some(report) = self.devices.take_egress_report()
        {
            self.shared_at = now;
            self.devices
                .limit_rate(link.limit(self.slot, self.device.share, now, report));
        }
    }

    /// Tells the devices what the others of the node have.
    fn look_elsewhere(&mut self) {
        let (shown, all) = (&self.shown, &self.all);
        let [contexts, queue_pairs] = [
            (&shown.contexts, &all.contexts),
            (&shown.queue_pairs, &all.queue_pairs),
        ]
        .map(|(shown, all)| all.load(Ordering::Relaxed) - shown.load(Ordering::Relaxed));
        self.devices.set_elsewhere(contexts, queue_pairs);
    }

    /// Shows what there is now. The node's totals follow.
    pub(crate) fn show(&self) {
        let (contexts, queue_pairs) = self.devices.count();
        let (regions, windows) = self.devices.region_count();
        let (shown, all) = (&self.shown, &self.all);
        shown.regions.store(regions, Ordering::Relaxed);
        shown.windows.store(windows, Ordering::Relaxed);
        for (now, shown, all) in [
            (contexts, &shown.contexts, &all.contexts),
            (queue_pairs, &shown.queue_pairs, &all.queue_pairs),
        ] {
            let before = shown.swap(now, Ordering::Relaxed);
            all.fetch_add(now.wrapping_sub(before), Ordering::Relaxed);
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
            if let Some(end) = self.serve(command, now) {
                return Taken::End(end);
            }
        }
        for _ in 0..COMMANDS_PER_TURN {
            let Ok(ReceivedOffer { owner, pod, offer }) = self.offers.try_recv() else {
                break;
            };
            taken = Taken::Some;
            if self.pods.len() >= PODS_MAX {
                self.pods.clear();
            }
            self.pods.insert(offer.from.gid, pod);
            self.devices.receive_offer(owner, &offer, now);
        }
        taken
    }

    /// Answers the end, if that is asked.
    fn serve(&mut self, command: Command, now: Duration) -> Option<End> {
        match command {
            // Who asked may have gone.
            Command::Open {
                device,
                program,
                answer,
            } => {
                self.look_elsewhere();
                let opened = self.devices.open(&device, program);
                self.show();
                if let Err(unsent) = answer.send(opened)
                    && let Ok(opened) = unsent.0
                {
                    self.devices.close(opened.context);
                    self.show();
                }
            }
            Command::Request {
                context,
                request,
                file,
                answer,
            } => {
                self.look_elsewhere();
                let outcome = self.devices.handle(context, &request, file, now);
                self.show();
                let _ = answer.send((outcome, self.devices.take_passed(context)));
            }
            Command::Close(context) => {
                self.devices.close(context);
                self.show();
            }
            Command::Save(answer) => return Some(End::Save(answer)),
            Command::Stop => return Some(End::Stop),
        }
        None
    }
}

/// A GID as it is written.
struct Gid([u8; 16]);

impl std::fmt::Display for Gid {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::net::Ipv6Addr::from(self.0).fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use crossbeam_channel::{bounded, unbounded};
    use weft_device::control::Request;
    use weft_engine::{EngineConfig, PortRange, Secret};

    use super::*;
    use crate::devices::ContextId;
    use crate::limits::OPEN_LIMITS;

    #[test]
    fn a_turn_takes_so_many_commands_and_leaves_the_rest_for_the_next() {
        let ports = PortRange {
            first: 32_900,
            count: 1,
        };
        let address = Ipv4Addr::new(127, 0, 32, 1);
        let config = EngineConfig::new(address, ports, Secret([9; 32]));
        let ((commands, received), (_offers, offers)) = (unbounded(), bounded(1));
        let all = OpenDevices::new(config.clone(), 1, Box::new(drop), bounded(0).0);
        let mut worker = Worker {
            slot: 0,
            device: Arc::new(Device::new([0; 16], OPEN_LIMITS)),
            devices: Devices::start(config).expect("nobody has this address"),
            commands: received,
            offers,
            shown: Arc::default(),
            all: Arc::new(all),
            spin: Duration::ZERO,
            used_at: Duration::ZERO,
            counted_at: Duration::ZERO,
            pods: HashMap::new(),
            logged: Logged::default(),
            shared_at: Duration::ZERO,
        };
        let (answer, answers) = unbounded();
        for _ in 0..COMMANDS_PER_TURN + 1 {
            let request = Command::Request {
                context: ContextId::default(),
                request: Request::CreateDomain,
                file: None,
                answer: answer.clone(),
            };
            commands.send(request).expect("it is there");
        }
        commands.send(Command::Stop).expect("it is there");
        assert!(matches!(worker.take_commands(Duration::ZERO), Taken::Some));
        assert_eq!(answers.len(), COMMANDS_PER_TURN);
        let taken = worker.take_commands(Duration::ZERO);
        assert!(matches!(taken, Taken::End(End::Stop)));
        assert_eq!(answers.len(), COMMANDS_PER_TURN + 1);
    }
}

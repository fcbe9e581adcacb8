//! The devices that are open. Each has an engine and a thread of its own: a program whose memory holds up a copy (a
//! mapped file of a FUSE file system that does not answer) holds up its own device and no other, and devices share the
//! processors as threads do.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crossbeam_channel::Sender;
use rustix::time::{ClockId, clock_gettime};
use weft_engine::{CopiedBytes, EngineConfig};

use crate::command::{Command, ReceivedOffer, wake_worker};
use crate::context::Device;
use crate::counters::Counters;
use crate::limits::Totals;
use crate::link_share::LinkShare;
use crate::offer::{Offer, TenantOffer, TooManyOffers};
use crate::refused_attempts::{AttemptKind, RefusedAttempt, RefusedAttempts};

/// A device whose thread has done nothing for so long is stalled. It wakes ten times a second.
const STALLED_AFTER: Duration = Duration::from_secs(2);

/// What a device is known by in its fabric, in network byte order.
pub type Gid = [u8; 16];
/// Sends an offer to another server.
pub(crate) type SendOffer = Box<dyn Fn(TenantOffer) + Send + Sync>;

/// What the thread of a device shows to others, who never wait for it.
#[derive(Debug, Default)]
pub(crate) struct Shown {
    pub(crate) contexts: AtomicU32,
    pub(crate) queue_pairs: AtomicU32,
    pub(crate) regions: AtomicU32,
    /// Of these, those whose memory is mapped here as well.
    pub(crate) windows: AtomicU32,
    /// Packets that asked for memory which they may not reach.
    pub(crate) refused: AtomicU64,
    /// Offers of other tenants.
    pub(crate) refused_offers: AtomicU64,
    /// As [`Counters::refused_calls`].
    pub(crate) refused_calls: AtomicU64,
    /// As [`Counters::operations`].
    pub(crate) operations: AtomicU64,
    /// Payload bytes that peers have acknowledged, and that have come.
    pub(crate) bytes_sent: AtomicU64,
    pub(crate) bytes_received: AtomicU64,
    /// As [`Counters::copied`].
    pub(crate) bytes_by_window: AtomicU64,
    pub(crate) bytes_by_address_space: AtomicU64,
    /// When its last turn began, in milliseconds.
    pub(crate) turned_at: AtomicU64,
}

impl Shown {
    fn counters(&self) -> Counters {
        let [
            refused,
            refused_offers,
            refused_calls,
            operations,
            bytes_sent,
            bytes_received,
            by_window,
            by_address_space,
        ] = [
            &self.refused,
            &self.refused_offers,
            &self.refused_calls,
            &self.operations,
            &self.bytes_sent,
            &self.bytes_received,
            &self.bytes_by_window,
            &self.bytes_by_address_space,
        ]
        .map(|count| count.load(Ordering::Relaxed));
        Counters {
            refused,
            refused_offers,
            refused_calls,
            operations,
            bytes_sent,
            bytes_received,
            copied: CopiedBytes {
                by_window,
                by_address_space,
            },
        }
    }

    /// It counts for nothing any more in what all devices of the node have.
    pub(crate) fn hide(&self, all: &OpenDevices) {
        for (shown, all) in [
            (&self.contexts, &all.contexts),
            (&self.queue_pairs, &all.queue_pairs),
        ] {
            all.fetch_sub(shown.swap(0, Ordering::Relaxed), Ordering::Relaxed);
        }
    }
}

/// An open device, for other threads.
#[derive(Debug, Clone)]
pub(crate) struct OpenDevice {
    pub(crate) commands: Sender<Command>,
    pub(crate) offers: Sender<ReceivedOffer>,
    pub(crate) wake: Arc<OwnedFd>,
    /// Which of the ranges of ports it has.
    pub(crate) slot: u16,
    pub(crate) device: Arc<Device>,
    pub(crate) shown: Arc<Shown>,
}

impl OpenDevice {
    /// Gives its thread a command and wakes it.
    pub(crate) fn send(&self, command: Command) {
        // The thread is gone only with the server.
        let _ = self.commands.send(command);
        wake_worker(&self.wake);
    }
}

/// What was counted while devices were open before.
#[derive(Debug, Default)]
struct Counted {
    by_device: HashMap<Gid, Counters>,
    /// Of devices that were destroyed.
    of_gone: Counters,
}

/// All open devices, by GID.
pub(crate) struct OpenDevices {
    /// With the first range of ports; the others follow it.
    pub(crate) config: EngineConfig,
    pub(crate) slots: u16,
    /// Set where there is a limit to what all devices send together.
    pub(crate) link_share: Option<LinkShare>,
    /// Where offers to other servers go.
    send_offer: SendOffer,
    /// Held by each thread until it ends. None once all are to end.
    ended: Mutex<Option<Sender<()>>>,
    open: Mutex<HashMap<Gid, OpenDevice>>,
    /// What was counted while devices were open before.
    counted: Mutex<Counted>,
    /// Connections to the control socket that showed no device's token.
    refused_connections: AtomicU64,
    /// Those, and others that opened no device that is open: the control thread logs them.
    unlogged: AtomicU64,
    /// What pods have tried and may not.
    pub(crate) refused_attempts: RefusedAttempts,
    /// How many programs have a thread here, by the device that they open or have open.
    programs: Mutex<HashMap<Gid, u32>>,
    /// Of all of them.
    pub(crate) contexts: AtomicU32,
    pub(crate) queue_pairs: AtomicU32,
}

impl OpenDevices {
    pub(crate) fn new(
        config: EngineConfig,
        slots: u16,
        send_offer: SendOffer,
        ended: Sender<()>,
    ) -> Self {
        // Devices of one node reach each other through memory.
        let local_switch = Some(Arc::default());
        let config = EngineConfig {
            local_switch,
            ..config
        };
        Self {
            link_share: config.egress.cap_bps.map(LinkShare::new),
            config,
            slots,
            send_offer,
            ended: Mutex::new(Some(ended)),
            open: Mutex::default(),
            counted: Mutex::default(),
            refused_connections: AtomicU64::new(0),
            unlogged: AtomicU64::new(0),
            refused_attempts: RefusedAttempts::default(),
            programs: Mutex::default(),
            contexts: AtomicU32::new(0),
            queue_pairs: AtomicU32::new(0),
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, HashMap<Gid, OpenDevice>> {
        // Each change is whole.
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a new thread holds until it ends, unless all are to end.
    pub(crate) fn ended(&self) -> Option<Sender<()>> {
        self.lock_ended().clone()
    }

    fn lock_ended(&self) -> MutexGuard<'_, Option<Sender<()>>> {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn programs(&self) -> MutexGuard<'_, HashMap<Gid, u32>> {
        self.programs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets one more program have a thread, unless as many do as may have this device open, or any. A device that stands
    /// still opens nothing, and the threads of those who try wait.
    pub(crate) fn admit(self: &Arc<Self>, gid: Gid) -> Option<Admitted> {
        let Totals { device, node } = Totals::DEFAULT;
        let mut programs = self.programs();
        let all: u32 = programs.values().sum();
        let of_device = programs.get(&gid).copied().unwrap_or(0);
        if of_device >= device.opens || all >= node.opens {
            return None;
        }
        programs.insert(gid, of_device + 1);
        let devices = Arc::clone(self);
        Some(Admitted { devices, gid })
    }

    /// Whether a device has a thread, and so an engine.
    pub(crate) fn has(&self, gid: &Gid) -> bool {
        self.lock().contains_key(gid)
    }

    /// The machine's clock, which goes on for the next engine.
    pub(crate) fn now(&self) -> Duration {
        let now = clock_gettime(ClockId::Monotonic);
        Duration::new(now.tv_sec.cast_unsigned(), now.tv_nsec as u32)
    }

    /// Ends the thread of a device that nobody has open, unless somebody is just opening it. Answers whether it ends.
    pub(crate) fn end(&self, gid: Gid, has_commands: impl FnOnce() -> bool) -> bool {
        let mut open = self.lock();
        let ends = !has_commands();
        if ends && let Some(thread) = open.remove(&gid) {
            let mut counted = self.lock_counted();
            let before = counted.by_device.entry(gid).or_default();
            *before = before.plus(thread.shown.counters());
        }
        ends
    }

    fn lock_counted(&self) -> MutexGuard<'_, Counted> {
        self.counted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What was counted of a device, open or not.
    pub(crate) fn counters(&self, gid: &Gid) -> Counters {
        let open = self.lock();
        let before = self.lock_counted().by_device.get(gid).copied();
        let before = before.unwrap_or_default();
        match open.get(gid) {
            Some(thread) => before.plus(thread.shown.counters()),
            None => before,
        }
    }

    /// Forgets what was counted of devices that are gone.
    pub(crate) fn forget_counters(&self, is_there: impl Fn(&Gid) -> bool) {
        let Counted { by_device, of_gone } = &mut *self.lock_counted();
        for (_, counters) in by_device.extract_if(|gid, _| !is_there(gid)) {
            *of_gone = of_gone.plus(counters);
        }
    }

    /// What was counted of all devices, also of those that are gone.
    pub(crate) fn total(&self) -> Counters {
        let open = self.lock();
        let counted = self.lock_counted();
        let before = counted.by_device.values().copied();
        let now = open.values().map(|thread| thread.shown.counters());
        let all = before.chain(now);
        all.fold(counted.of_gone, Counters::plus)
    }

    /// Counts a connection to the control socket that opened nothing and was no mistake of this server's: for the device
    /// whose token it has shown, if it has shown one.
    pub(crate) fn count_refused_opening(&self, gid: Option<Gid>) {
        let Some(gid) = gid else {
            self.refused_connections.fetch_add(1, Ordering::Relaxed);
            self.unlogged.fetch_add(1, Ordering::Relaxed);
            return;
        };
        let open = self.lock();
        if let Some(thread) = open.get(&gid) {
            // Its own thread logs it.
            thread.shown.refused_calls.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let mut counted = self.lock_counted();
        counted.by_device.entry(gid).or_default().refused_calls += 1;
        self.unlogged.fetch_add(1, Ordering::Relaxed);
    }

    /// How many connections showed no device's token.
    pub(crate) fn refused_connections(&self) -> u64 {
        self.refused_connections.load(Ordering::Relaxed)
    }

    /// How many refused openings are still to be logged.
    pub(crate) fn take_unlogged(&self) -> u64 {
        self.unlogged.swap(0, Ordering::Relaxed)
    }

    /// Takes all out, to end them. None is started after that.
    pub(crate) fn take_all(&self) -> HashMap<Gid, OpenDevice> {
        *self.lock_ended() = None;
        std::mem::take(&mut *self.lock())
    }

    /// Ends all.
    pub(crate) fn stop(&self) {
        for thread in self.take_all().into_values() {
            thread.send(Command::Stop);
        }
    }

    /// Sends an offer of a device's on: to the thread of the device that it is for, or to another server.
    pub(crate) fn pass_on(&self, device: &Device, offer: Offer) {
        let offer = TenantOffer {
            tenant: Arc::clone(&device.tenant),
            pod: Arc::clone(&device.owner),
            offer,
        };
        if self.lock().contains_key(&offer.offer.to.gid) {
            // One that finds no room comes again.
            let _ = self.receive_offer(Arc::from("this node"), offer);
        } else {
            (self.send_offer)(offer);
        }
    }

    /// An offer has come from the node `owner`, as authenticated. Nothing is kept of one to a device that is not open.
    ///
    /// # Errors
    /// Too many wait.
    pub(crate) fn receive_offer(
        &self,
        owner: Arc<str>,
        offer: TenantOffer,
    ) -> Result<(), TooManyOffers> {
        let TenantOffer { tenant, pod, offer } = offer;
        let Some(thread) = self.lock().get(&offer.to.gid).cloned() else {
            return Ok(());
        };
        if tenant != thread.device.tenant {
            thread.shown.refused_offers.fetch_add(1, Ordering::Relaxed);
            self.refused_attempts.add(RefusedAttempt {
                kind: AttemptKind::Connection,
                from: pod,
                to: Arc::clone(&thread.device.owner),
            });
            return Ok(());
        }
        let received = ReceivedOffer { owner, pod, offer };
        let sent = thread.offers.try_send(received);
        sent.map_err(|_| TooManyOffers)?;
        wake_worker(&thread.wake);
        Ok(())
    }

    /// What the thread of a device shows, if it is open, and whether it stands still.
    pub(crate) fn shown(&self, gid: &Gid) -> Option<(Arc<Shown>, bool)> {
        let shown = Arc::clone(&self.lock().get(gid)?.shown);
        let turned_at = Duration::from_millis(shown.turned_at.load(Ordering::Relaxed));
        let is_stalled = self.now().saturating_sub(turned_at) > STALLED_AFTER;
        Some((shown, is_stalled))
    }
}

/// A program that has a thread, until this is dropped.
pub(crate) struct Admitted {
    devices: Arc<OpenDevices>,
    gid: Gid,
}

impl Drop for Admitted {
    fn drop(&mut self) {
        let mut programs = self.devices.programs();
        if let Some(of_device) = programs.get_mut(&self.gid) {
            *of_device -= 1;
            if *of_device == 0 {
                programs.remove(&self.gid);
            }
        }
    }
}

impl std::fmt::Debug for OpenDevices {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OpenDevices")
            .field("open", &self.lock().len())
            .finish_non_exhaustive()
    }
}

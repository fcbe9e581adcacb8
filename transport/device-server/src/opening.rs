//! Opens devices, and starts the thread of one that was not open.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crossbeam_channel::{bounded, unbounded};
use weft_engine::{AddressSpace, Egress, EngineConfig, EngineError, PortRange};

use crate::command::Command;
use crate::context::Device;
use crate::devices::{Devices, OpenError, Opened};
use crate::offer::OFFERS_WAITING_MAX;
use crate::open_devices::{Gid, OpenDevice, OpenDevices};
use crate::thread::spawn;
use crate::work::{Logged, Worker};

impl OpenDevices {
    /// Opens a device for a program, whose memory is `program`.
    ///
    /// # Errors
    /// [`OpenError`].
    pub(crate) fn open(
        self: &Arc<Self>,
        device: Device,
        program: AddressSpace,
    ) -> Result<(OpenDevice, Opened), OpenError> {
        let (answer, answered) = bounded(1);
        let thread = {
            let mut open = self.lock();
            let thread = match open.get(&device.gid) {
                Some(thread) => thread.clone(),
                None => {
                    let started = self.start(&open, &Arc::new(device.clone()))?;
                    open.insert(device.gid, started.clone());
                    started
                }
            };
            // Under the lock: a thread that has a command does not end.
            thread.send(Command::Open {
                device,
                program,
                answer,
            });
            thread
        };
        let opened = answered.recv().unwrap_or(Err(OpenError::Ended))?;
        Ok((thread, opened))
    }

    /// Starts a device's thread, with a range of ports that no other one has.
    fn start(
        self: &Arc<Self>,
        open: &HashMap<Gid, OpenDevice>,
        device: &Arc<Device>,
    ) -> Result<OpenDevice, OpenError> {
        let gid = device.gid;
        // Not the first that is free: two nodes whose ports are the same have half the paths (decision 0002).
        let first = gid.iter().fold(0_u32, |hash, byte| {
            hash.wrapping_mul(31).wrapping_add(u32::from(*byte))
        });
        let slots = u32::from(self.slots);
        let slots = (0..slots).map(|after| ((first % slots + after) % slots) as u16);
        let free = slots.filter(|slot| open.values().all(|it| it.slot != *slot));
        for slot in free {
            let devices = match Devices::start(self.config_of(slot, device.cap_bps)) {
                Ok(devices) => devices,
                Err(EngineError::Link(error)) if error.reason() == "PortTaken" => continue,
                Err(error) => return Err(error.into()),
            };
            return self.run(slot, device, devices);
        }
        Err(OpenError::TooManyDevices(self.slots))
    }

    /// Starts the thread of a device.
    pub(crate) fn run(
        self: &Arc<Self>,
        slot: u16,
        device: &Arc<Device>,
        mut devices: Devices,
    ) -> Result<OpenDevice, OpenError> {
        let (commands, received) = unbounded();
        let (offers, received_offers) = bounded(OFFERS_WAITING_MAX);
        let thread = OpenDevice {
            commands,
            offers,
            wake: Arc::new(devices.waker()?),
            slot,
            device: Arc::clone(device),
            shown: Arc::default(),
        };
        let now = self.now();
        if let Some(link) = &self.link_share
            && let Some(report) = devices.take_egress_report()
        {
            devices.limit_rate(link.limit(slot, device.share, now, report));
        }
        let turned_at = &thread.shown.turned_at;
        turned_at.store(now.as_millis() as u64, Ordering::Relaxed);
        let worker = Worker {
            slot,
            device: Arc::clone(device),
            devices,
            commands: received,
            offers: received_offers,
            shown: Arc::clone(&thread.shown),
            all: Arc::clone(self),
            spin: Duration::from_nanos(self.config.spin.get()),
            used_at: now,
            counted_at: now,
            pods: HashMap::new(),
            logged: Logged::default(),
            shared_at: now,
        };
        let ended = self.ended().ok_or(OpenError::Ended)?;
        worker.show();
        let spawned = spawn("weft-device", move || {
            worker.run();
            drop(ended);
        });
        spawned.map_err(|error| {
            thread.shown.hide(self);
            OpenError::Thread(error)
        })?;
        Ok(thread)
    }

    pub(crate) fn config_of(&self, slot: u16, cap_bps: Option<u64>) -> EngineConfig {
        let ports = self.config.address.ports();
        let first = ports.first + slot * ports.count;
        let ports = PortRange { first, ..ports };
        EngineConfig {
            address: self.config.address.with_ports(ports),
            egress: Egress {
                cap_bps,
                ..self.config.egress
            },
            ..self.config.clone()
        }
    }
}

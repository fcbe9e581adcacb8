//! All devices of a node on their way to the next engine.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use crossbeam_channel::bounded;
use serde::{Deserialize, Serialize};
use weft_device::VERSION;
use weft_device_socket::descriptor_store::Stored;
use weft_engine::{EngineConfig, Secret};

use super::{END_TIMEOUT, Server, ServerError, Start, open_devices_of};
use crate::command::Command;
use crate::context::Device;
use crate::control::{OpenProgram, Released};
use crate::device_table::{DeviceTable, Token, lock};
use crate::devices::{ContextId, Devices, SavedDevices};
use crate::offer::TenantOffer;
use crate::open_devices::{OpenDevice, OpenDevices};
use crate::saved::{Descriptors, HandOverError};

/// Changed with [`Head`].
const HEAD_VERSION: u32 = 3;
/// Changed with everything else that is saved: an engine goes on with the open devices of its own version only.
const SAVED_VERSION: u32 = 6;

/// The beginning of the record, which engines of several versions can read. Behind it come [`SAVED_VERSION`], the [`VERSION`]
/// that the programs' libraries have, and the devices that are open. The descriptors: the listening socket, those of programs
/// that have opened nothing, and those of the devices.
#[derive(Serialize, Deserialize)]
struct Head {
    directory: PathBuf,
    node_key: Secret,
    table: Vec<(Token, String, Device)>,
    unopened: usize,
}

/// A device that is open. Its descriptors: the control sockets of its programs, and those of its contexts.
#[derive(Serialize, Deserialize)]
struct SavedDevice {
    device: Arc<Device>,
    slot: u16,
    programs: Vec<ContextId>,
    devices: SavedDevices,
    descriptors: usize,
}

fn damaged(error: &postcard::Error) -> ServerError {
    ServerError::NotRestored(format!("it cannot be read: {error}"))
}

/// The devices that are open, behind the head of a record; otherwise the problem.
fn open_of(record: &[u8]) -> Result<Vec<SavedDevice>, String> {
    let versions = postcard::take_from_bytes::<(u32, u32)>(record);
    let ((saved, shared), open) = versions.map_err(|error| error.to_string())?;
    if (saved, shared) != (SAVED_VERSION, VERSION) {
        return Err(format!(
            "they are of version {saved}, with libraries of version {shared}; this is {SAVED_VERSION}, with {VERSION}"
        ));
    }
    postcard::from_bytes(open).map_err(|error| error.to_string())
}

impl Server {
    /// Ends the server so that [`Server::restore`] goes on with its devices, open or not: programs notice a pause. What
    /// stands still is left out, and its programs find that the engine is gone.
    ///
    /// # Errors
    /// Nothing is left to the next one. The devices are gone.
    pub fn save(mut self) -> Result<Stored, ServerError> {
        self.stop = None;
        let begun = Instant::now();
        let (mut unopened, mut programs) = (Vec::new(), Vec::new());
        // A thread that is held up gives nothing back. Half of the time is left for the devices.
        while let Ok(released) = self.released.recv_deadline(begun + END_TIMEOUT / 2) {
            match released {
                Released::Unopened(sockets) => unopened = sockets,
                Released::Program(program) => programs.push(program),
            }
        }
        let listening = self.listening.try_clone().map_err(ServerError::Thread)?;
        let threads = self.devices.take_all();
        let asked = threads.into_iter().map(|(gid, thread)| {
            let (answer, answered) = bounded(1);
            thread.send(Command::Save(answer));
            (gid, thread.slot, thread.device, answered)
        });
        let asked: Vec<_> = asked.collect();
        let deadline = begun + END_TIMEOUT;
        let mut descriptors = vec![listening];
        let unopened_count = unopened.len();
        descriptors.extend(unopened);
        let mut open = Vec::new();
        for (gid, slot, device, answered) in asked {
            let saved = match answered.recv_deadline(deadline) {
                Ok(Ok(saved)) => saved,
                Ok(Err(error)) => {
                    tracing::warn!("a device does not go on: {error}");
                    continue;
                }
                Err(_) => {
                    tracing::warn!("a device does not go on: it stands still");
                    continue;
                }
            };
            let (devices, of_contexts) = saved;
            if devices.is_empty() {
                continue;
            }
            let is_of_it = |program: &mut OpenProgram| program.context.is_of(&gid);
            let of_it: Vec<OpenProgram> = programs.extract_if(.., is_of_it).collect();
            let before = descriptors.len();
            let contexts = of_it.iter().map(|program| program.context).collect();
            descriptors.extend(of_it.into_iter().map(|program| program.socket));
            descriptors.extend(of_contexts);
            open.push(SavedDevice {
                device,
                slot,
                programs: contexts,
                devices,
                descriptors: descriptors.len() - before,
            });
        }
        let head = Head {
            directory: self.directory.clone(),
            node_key: self.devices.config.node_key.clone(),
            table: lock(&self.table).all(),
            unopened: unopened_count,
        };
        let record = postcard::to_allocvec(&(HEAD_VERSION, head, SAVED_VERSION, VERSION, open));
        let record = record.map_err(|error| damaged(&error))?;
        self.is_saved = true;
        Ok(Stored {
            record,
            descriptors,
        })
    }

    /// As [`Server::start`], and goes on with what another server has saved. A device that cannot go on is there, and its
    /// programs find that the engine is gone.
    ///
    /// # Errors
    /// [`ServerError`]. What was saved is lost, so [`Server::check`] the arguments before it is taken.
    pub fn restore(
        directory: &Path,
        engine: &EngineConfig,
        open_devices: u16,
        saved: Stored,
        send_offer: impl Fn(TenantOffer) + Send + Sync + 'static,
    ) -> Result<Self, ServerError> {
        let version = postcard::take_from_bytes::<u32>(&saved.record);
        let (version, record) = version.map_err(|error| damaged(&error))?;
        if version != HEAD_VERSION {
            let problem = format!("it is of version {version}, this is {HEAD_VERSION}");
            return Err(ServerError::NotRestored(problem));
        }
        let head = postcard::take_from_bytes::<Head>(record);
        let (record, open) = head.map_err(|error| damaged(&error))?;
        if record.directory != directory {
            let problem = format!(
                "its devices are in {}: give that directory",
                record.directory.display()
            );
            return Err(ServerError::NotRestored(problem));
        }
        let engine = EngineConfig {
            node_key: record.node_key,
            ..engine.clone()
        };
        let (devices, ended) = open_devices_of(engine, open_devices, Box::new(send_offer));
        let mut descriptors = Descriptors::new(saved.descriptors);
        let failed = |error: HandOverError| ServerError::NotRestored(error.to_string());
        let listening = descriptors.next().map_err(failed)?;
        let unopened = (0..record.unopened).map(|_| descriptors.next());
        let unopened = unopened.collect::<Result<_, _>>().map_err(failed)?;
        // Without them the others go on.
        let open = open_of(open).unwrap_or_else(|problem| {
            tracing::error!("no open device goes on, and programs open theirs again: {problem}");
            Vec::new()
        });
        let mut programs = Vec::new();
        for device in open {
            let (gid, of_it) = (device.device.gid, descriptors.split_off(device.descriptors));
            match devices.resume(device, of_it) {
                Ok(resumed) => programs.extend(resumed.into_iter().map(|program| (gid, program))),
                Err(error) => tracing::warn!("a device does not go on: {error}"),
            }
        }
        let mut table = DeviceTable::default();
        for (token, name, device) in record.table {
            table.insert(token, &name, device);
        }
        let start = Start {
            listening,
            unopened,
            programs,
            table,
        };
        Self::run(directory, devices, ended, start)
    }
}

impl OpenDevices {
    /// Starts the thread of a device that was saved. Its programs are still to be served.
    fn resume(
        self: &Arc<Self>,
        saved: SavedDevice,
        mut descriptors: Descriptors,
    ) -> Result<Vec<OpenProgram>, HandOverError> {
        let sockets = saved.programs.iter().map(|_| descriptors.next());
        let sockets = sockets.collect::<Result<Vec<_>, _>>()?;
        if saved.slot >= self.slots {
            return Err(HandOverError::Damaged("--open-devices was larger"));
        }
        let config = self.config_of(saved.slot, saved.devices.cap_bps());
        let devices = Devices::restore(config, saved.devices, &mut descriptors, self.now())?;
        let contexts = devices.ids();
        let thread = self.run(saved.slot, &saved.device, devices);
        let thread: OpenDevice = thread.map_err(HandOverError::Open)?;
        self.lock().insert(saved.device.gid, thread.clone());
        // The thread of a program that stood still has given no socket back.
        let served = |context: &ContextId| saved.programs.contains(context);
        for context in contexts.into_iter().filter(|context| !served(context)) {
            thread.send(Command::Close(context));
        }
        let programs = saved.programs.into_iter().zip(sockets);
        let program = |(context, socket)| OpenProgram {
            socket,
            context,
            thread: thread.clone(),
        };
        Ok(programs.map(program).collect())
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;
    use std::net::IpAddr;

    use serde_reflection::{Samples, Tracer, TracerConfig};
    use weft_device::completion::{Opcode, Status};
    use weft_device::event::EventType;
    use weft_device::state::{QueuePairType, State};
    use weft_engine::LinkAddress;

    use super::*;
    use crate::regions::SavedPiece;

    /// An engine must not read what another one has written in another form. When this fails, raise the version that the
    /// changed part has ([`HEAD_VERSION`] or [`SAVED_VERSION`]), and accept the new form.
    #[test]
    fn what_is_saved_has_the_form_of_its_version() {
        // A limit of 0 is none.
        let config = TracerConfig::default().default_u32_value(1);
        let mut tracer = Tracer::new(config);
        let samples = Samples::new();
        macro_rules! trace {
            ($($type:ty),*) => {
                $(tracer.trace_type::<$type>(&samples).expect("it has a form");)*
            };
        }
        trace!(Head, SavedDevice);
        // Of an enum only one variant is traced with what holds it.
        trace!(
            EventType,
            IpAddr, LinkAddress, Opcode, QueuePairType, SavedPiece, State, Status
        );
        let mut forms = format!("head {HEAD_VERSION}, open devices {SAVED_VERSION}");
        for (name, form) in tracer.registry().expect("all forms are known") {
            write!(forms, "\n{name}: {form:?}").expect("it is text");
        }
        insta::assert_snapshot!(forms);
    }

    #[test]
    fn open_devices_of_another_version_or_with_other_libraries_do_not_go_on() {
        for (saved, shared, goes_on) in [
            (SAVED_VERSION, VERSION, true),
            (SAVED_VERSION - 1, VERSION, false),
            (SAVED_VERSION, VERSION + 1, false),
        ] {
            let record = (saved, shared, Vec::<SavedDevice>::new());
            let record = postcard::to_allocvec(&record).expect("it is small");
            let open = open_of(&record);
            assert_eq!(open.is_ok(), goes_on, "{saved}, {shared}: {:?}", open.err());
        }
    }
}

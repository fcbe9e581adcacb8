//! All devices of a node on their way to the next engine.

use std::fmt;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Instant;

use crossbeam_channel::bounded;
use serde::{Deserialize, Serialize};
use weft_engine::{EngineConfig, Secret};

use super::{END_TIMEOUT, Server, ServerError, Start, open_devices_of};
use crate::command::Command;
use crate::context::Device;
use crate::control::{OpenProgram, Released};
use crate::device_table::{DeviceTable, Token, lock};
use crate::devices::{ContextId, Devices, SavedDevices};
use crate::offer::Offer;
use crate::open_devices::{Gid, OpenDevice, OpenDevices};
use crate::saved::{Descriptors, HandOverError};

/// Changed with everything that is saved: a server goes on with its own version only.
const SAVED_VERSION: u32 = 1;

/// What a server leaves to the next one: [`Server::save`]. It holds secrets, and descriptors by which programs are served.
pub struct SavedServer {
    /// What the next server is told.
    pub record: Vec<u8>,
    /// In the order of the record.
    pub descriptors: Vec<OwnedFd>,
}

/// Shows how much it is, never a secret.
impl fmt::Debug for SavedServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SavedServer")
            .field("record_bytes", &self.record.len())
            .field("descriptors", &self.descriptors.len())
            .finish()
    }
}

/// The record. The descriptors: the listening socket, those of programs that have opened nothing, and those of the devices.
#[derive(Serialize, Deserialize)]
struct Record {
    directory: PathBuf,
    node_key: Secret,
    table: Vec<(Token, String, Device)>,
    unopened: usize,
    open: Vec<SavedDevice>,
}

/// A device that is open. Its descriptors: the control sockets of its programs, and those of its contexts.
#[derive(Serialize, Deserialize)]
struct SavedDevice {
    gid: Gid,
    slot: u16,
    programs: Vec<ContextId>,
    devices: SavedDevices,
    descriptors: usize,
}

fn damaged(error: &postcard::Error) -> ServerError {
    ServerError::NotRestored(format!("it cannot be read: {error}"))
}

impl Server {
    /// Ends the server so that [`Server::restore`] goes on with its devices, open or not: programs notice a pause. What
    /// stands still is left out, and its programs find that the engine is gone.
    ///
    /// # Errors
    /// Nothing is left to the next one. The devices are gone.
    pub fn save(mut self) -> Result<SavedServer, ServerError> {
        self.stop = None;
        let deadline = Instant::now() + END_TIMEOUT;
        let (mut listening, mut programs) = (None, Vec::new());
        while let Ok(released) = self.released.recv_deadline(deadline) {
            match released {
                Released::Listening(socket, unopened) => listening = Some((socket, unopened)),
                Released::Program(program) => programs.push(program),
            }
        }
        let none = || ServerError::NotRestored("the control thread does not end".to_owned());
        let (socket, unopened) = listening.ok_or_else(none)?;
        let threads = self.devices.take_all();
        let asked = threads.into_iter().map(|(gid, thread)| {
            let (answer, answered) = bounded(1);
            thread.send(Command::Save(answer));
            (gid, thread.slot, answered)
        });
        let asked: Vec<_> = asked.collect();
        let deadline = Instant::now() + END_TIMEOUT;
        let mut descriptors = vec![socket];
        let unopened_count = unopened.len();
        descriptors.extend(unopened);
        let mut open = Vec::new();
        for (gid, slot, answered) in asked {
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
            let is_of_it = |program: &mut OpenProgram| program.context.is_of(&gid);
            let of_it: Vec<OpenProgram> = programs.extract_if(.., is_of_it).collect();
            let before = descriptors.len();
            let contexts = of_it.iter().map(|program| program.context).collect();
            descriptors.extend(of_it.into_iter().map(|program| program.socket));
            descriptors.extend(of_contexts);
            open.push(SavedDevice {
                gid,
                slot,
                programs: contexts,
                devices,
                descriptors: descriptors.len() - before,
            });
        }
        let record = Record {
            directory: self.directory.clone(),
            node_key: self.devices.config.node_key.clone(),
            table: lock(&self.table).all(),
            unopened: unopened_count,
            open,
        };
        let record = postcard::to_allocvec(&(SAVED_VERSION, record));
        let record = record.map_err(|error| damaged(&error))?;
        self.is_saved = true;
        Ok(SavedServer {
            record,
            descriptors,
        })
    }

    /// As [`Server::start`], and goes on with what another server has saved. A device that cannot go on is there, and its
    /// programs find that the engine is gone.
    ///
    /// # Errors
    /// [`ServerError`]. What was saved is lost.
    pub fn restore(
        directory: &Path,
        engine: EngineConfig,
        open_devices: u16,
        saved: SavedServer,
        send_offer: impl Fn(Offer) + Send + Sync + 'static,
    ) -> Result<Self, ServerError> {
        let version = postcard::take_from_bytes::<u32>(&saved.record);
        let (version, record) = version.map_err(|error| damaged(&error))?;
        if version != SAVED_VERSION {
            let problem = format!("it is of version {version}, this is {SAVED_VERSION}");
            return Err(ServerError::NotRestored(problem));
        }
        let record: Record = postcard::from_bytes(record).map_err(|error| damaged(&error))?;
        if record.directory != directory {
            let problem = format!(
                "its devices are in {}: give that directory",
                record.directory.display()
            );
            return Err(ServerError::NotRestored(problem));
        }
        let engine = EngineConfig {
            node_key: record.node_key,
            ..engine
        };
        let (devices, ended) = open_devices_of(engine, open_devices, Box::new(send_offer))?;
        let mut descriptors = Descriptors::new(saved.descriptors);
        let failed = |error: HandOverError| ServerError::NotRestored(error.to_string());
        let listening = descriptors.next().map_err(failed)?;
        let unopened = (0..record.unopened).map(|_| descriptors.next());
        let unopened = unopened.collect::<Result<_, _>>().map_err(failed)?;
        let mut programs = Vec::new();
        for device in record.open {
            let (gid, of_it) = (device.gid, descriptors.split_off(device.descriptors));
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
        self: &std::sync::Arc<Self>,
        saved: SavedDevice,
        mut descriptors: Descriptors,
    ) -> Result<Vec<OpenProgram>, HandOverError> {
        let sockets = saved.programs.iter().map(|_| descriptors.next());
        let sockets = sockets.collect::<Result<Vec<_>, _>>()?;
        if saved.slot >= self.slots {
            return Err(HandOverError::Damaged("--open-devices was larger"));
        }
        let config = self.config_of(saved.slot, saved.devices.cap_bps());
        let mut devices = Devices::restore(config, saved.devices, &mut descriptors, self.now())?;
        // A program that was told of nothing has gone meanwhile.
        devices.retain(|context| saved.programs.contains(context));
        let thread = self.run(saved.gid, saved.slot, devices);
        let thread: OpenDevice = thread.map_err(HandOverError::Open)?;
        self.lock().insert(saved.gid, thread.clone());
        let programs = saved.programs.into_iter().zip(sockets);
        let program = |(context, socket)| OpenProgram {
            socket,
            context,
            thread: thread.clone(),
        };
        Ok(programs.map(program).collect())
    }
}

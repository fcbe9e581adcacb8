//! The devices of a node as a service: their directories, their control socket, and the threads of those that are open.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::net::Ipv6Addr;
use std::num::NonZeroU32;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crossbeam_channel::{Receiver, bounded, unbounded};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with,
};
use weft_device_socket::{CONTROL_FILE, GID_FILE, TOKEN_FILE};
use weft_engine::{CopiedBytes, EngineConfig, EngineError, PortRange};

use crate::context::{CAP_BPS_MIN, Device, SHARE_MAX};
use crate::control::{Control, OpenProgram, Released};
use crate::device_table::{DeviceTable, lock};
use crate::devices::Devices;
use crate::offer::{TenantOffer, TooManyOffers};
use crate::open_devices::{OpenDevices, SendOffer};
use crate::random;
use crate::refused_attempts::RefusedAttempt;
use crate::thread::spawn;

mod saved;

/// Connections that wait to be accepted.
const BACKLOG: i32 = 128;
/// How long the end of a server waits for its threads: one whose program's memory holds up a copy may end only with the
/// process.
const END_TIMEOUT: Duration = Duration::from_secs(1);

/// Why a server was not started, or a device not made.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The engine did not start.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// A file could not be made.
    #[error(
        "{path}: {source}: give a directory that this process may write to, with a path of at most 90 bytes"
    )]
    File {
        /// Which.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// There is one of this name.
    #[error("there is a device {name} already: destroy it first, or choose another name")]
    Exists {
        /// The name.
        name: String,
    },
    /// There is one of this GID.
    #[error("device {name} has this GID: give each device of the fabric another one")]
    GidInUse {
        /// The name of the other.
        name: String,
    },
    /// There is none of this name.
    #[error("there is no device {name}")]
    NoDevice {
        /// The name.
        name: String,
    },
    /// A name that is no directory's.
    #[error("{name:?} is no name of a device: use 1 to 20 letters, digits, and -")]
    Name {
        /// The name.
        name: String,
    },
    /// A device that was destroyed had this GID, and its engine goes on.
    #[error(
        "a device that was destroyed has this GID and is open: end the programs that use it, and wait 10 s"
    )]
    StillOpen,
    /// A limit with which transfers would stall.
    #[error(
        "a device cannot be limited to {cap_bps} bit/s: give at least {CAP_BPS_MIN}, or no limit"
    )]
    Cap {
        /// The limit.
        cap_bps: u64,
    },
    /// A weight that is none.
    #[error("a device cannot have a share of {share}: give 1 to {SHARE_MAX}")]
    Share {
        /// The share.
        share: u32,
    },
    /// No device could be open, or there are not so many ports.
    #[error(
        "{open_devices} devices cannot be open at a time: give at least 1, and at most as many as have {} ports each from {} on",
        .ports.count, .ports.first
    )]
    OpenDevices {
        /// How many.
        open_devices: u16,
        /// Those of the first.
        ports: PortRange,
    },
    /// What an earlier engine has saved cannot go on.
    #[error(
        "what the engine before has saved cannot go on: {0}: make the devices again, and restart their programs"
    )]
    NotRestored(String),
    /// A thread could not be started.
    #[error("a thread could not be started: {0}: raise the limit of threads")]
    Thread(io::Error),
}

/// A device of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceStatus {
    /// Its name.
    pub name: String,
    /// Its GID.
    pub gid: [u8; 16],
    /// Its directory.
    pub directory: PathBuf,
    /// As [`Device::tenant`].
    pub tenant: Arc<str>,
    /// As [`Device::owner`].
    pub owner: Arc<str>,
    /// Most that it sends, bits per second.
    pub cap_bps: Option<u64>,
    /// Most work requests that begin per second.
    pub ops_per_s: Option<NonZeroU32>,
    /// As [`Device::share`].
    pub share: u32,
    /// How often it is open.
    pub contexts: u32,
    /// Queue pairs of all who have it open.
    pub queue_pairs: u32,
    /// Packets that asked for memory which they may not reach, since the device was made or another engine has gone on with
    /// it; counted each second.
    pub refused: u64,
    /// Offers of other tenants' queue pairs to connect to its own, counted in the same way.
    pub refused_offers: u64,
    /// Calls and work requests for objects that are not the program's, or of another protection domain than its queue pair's,
    /// and connections that showed its token and spoke another protocol or version; counted in the same way.
    pub refused_calls: u64,
    /// Work requests of send queues that have begun, counted in the same way.
    pub operations: u64,
    /// Payload bytes that peers have acknowledged, counted in the same way.
    pub bytes_sent: u64,
    /// Payload bytes that have come, counted in the same way.
    pub bytes_received: u64,
    /// Memory regions.
    pub regions: u32,
    /// Of these, those whose memory the program has shared, and the engine has mapped as well.
    pub windows: u32,
    /// Bytes of its programs' memory that were copied each way, counted as `refused` is. What programs send inline is in
    /// neither.
    pub copied: CopiedBytes,
    /// It does nothing: its program's memory holds up a copy. That is so until the program, or who serves that memory, ends.
    pub is_stalled: bool,
}

/// What was refused at all devices of a node since the server was started, also at those that are gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Refused {
    /// As [`DeviceStatus::refused`].
    pub packets: u64,
    /// As [`DeviceStatus::refused_offers`].
    pub offers: u64,
    /// As [`DeviceStatus::refused_calls`].
    pub calls: u64,
    /// Connections to the control socket that showed no device's token.
    pub connections: u64,
}

/// The devices of a node, in a directory. Dropping it ends them all: programs find that the engine is gone.
#[derive(Debug)]
pub struct Server {
    directory: PathBuf,
    table: Arc<Mutex<DeviceTable>>,
    devices: Arc<OpenDevices>,
    /// Given to the next server.
    listening: Arc<OwnedFd>,
    /// Dropped to end the control threads.
    stop: Option<OwnedFd>,
    /// What the threads of the control socket give back when `stop` is dropped.
    released: Receiver<Released>,
    /// Closed when the threads of all devices have ended.
    ended: Receiver<()>,
    /// The directory is the next server's.
    is_saved: bool,
}

/// What a server begins with.
struct Start {
    listening: OwnedFd,
    /// Programs that have connected and have opened no device.
    unopened: Vec<OwnedFd>,
    /// Programs that have one open, each with its GID.
    programs: Vec<([u8; 16], OpenProgram)>,
    table: DeviceTable,
}

/// No device is open yet. The other is closed when the threads of all have ended.
fn open_devices_of(
    engine: EngineConfig,
    open_devices: u16,
    send_offer: SendOffer,
) -> (Arc<OpenDevices>, Receiver<()>) {
    let (ending, ended) = bounded(0);
    let devices = OpenDevices::new(engine, open_devices, send_offer, ending);
    (Arc::new(devices), ended)
}

impl Server {
    /// Makes the directory, which only its owner may enter, and the control socket in it. Each device that is open has an
    /// engine of its own as `engine` says. At most `open_devices` are open at a time: each has a range of ports, and the
    /// ranges begin with that of `engine` and follow each other. What `engine` limits is what all devices send together; they
    /// share it evenly, and what one does not send the others may. `send_offer` is called with each offer to a device of
    /// another server. It must not wait: it is called by the threads that move the bytes.
    ///
    /// # Errors
    /// [`ServerError`].
    pub fn start(
        directory: &Path,
        engine: EngineConfig,
        open_devices: u16,
        send_offer: impl Fn(TenantOffer) + Send + Sync + 'static,
    ) -> Result<Self, ServerError> {
        Self::check(&engine, open_devices)?;
        // A wrong setting is an error now, and not when the first device is opened.
        Devices::start(engine.clone())?;
        let (devices, ended) = open_devices_of(engine, open_devices, Box::new(send_offer));
        let start = Start {
            listening: listen_in(directory)?,
            unopened: Vec::new(),
            programs: Vec::new(),
            table: DeviceTable::default(),
        };
        Self::run(directory, devices, ended, start)
    }

    /// Checks arguments of [`Server::start`].
    ///
    /// # Errors
    /// [`ServerError::OpenDevices`].
    pub fn check(engine: &EngineConfig, open_devices: u16) -> Result<(), ServerError> {
        let ports = engine.address.ports();
        let last = u32::from(ports.first) + u32::from(ports.count) * u32::from(open_devices);
        if open_devices == 0 || last > 1 << 16 {
            return Err(ServerError::OpenDevices {
                open_devices,
                ports,
            });
        }
        Ok(())
    }

    /// Starts the threads of the control socket.
    fn run(
        directory: &Path,
        devices: Arc<OpenDevices>,
        ended: Receiver<()>,
        start: Start,
    ) -> Result<Self, ServerError> {
        let (stop, stopped) = io::pipe()
            .map(|(reader, writer)| (OwnedFd::from(writer), OwnedFd::from(reader)))
            .map_err(ServerError::Thread)?;
        let table = Arc::new(Mutex::new(start.table));
        let (release, released) = unbounded();
        let listening = Arc::new(start.listening);
        let control = Control {
            listening: Arc::clone(&listening),
            stopped: Arc::new(stopped),
            table: Arc::clone(&table),
            devices: Arc::clone(&devices),
            refusing: Arc::default(),
            released: release,
        };
        for (gid, program) in start.programs {
            if let Err(error) = control.resume(program, gid) {
                tracing::warn!("a program does not go on: {error}");
            }
        }
        let unopened = start.unopened;
        spawn("weft-control", move || control.run(unopened)).map_err(ServerError::Thread)?;
        Ok(Self {
            directory: directory.to_owned(),
            table,
            devices,
            listening,
            stop: Some(stop),
            released,
            ended,
            is_saved: false,
        })
    }

    /// Makes a device: a directory of this name, which may be mounted where its programs run. Its token lets anybody open
    /// the device who can read it.
    ///
    /// # Errors
    /// [`ServerError`].
    pub fn create(&self, name: &str, device: Device) -> Result<PathBuf, ServerError> {
        let is_letter = |letter: char| letter.is_ascii_alphanumeric() || letter == '-';
        if name.is_empty() || name.len() > 20 || !name.chars().all(is_letter) {
            return Err(ServerError::Name {
                name: name.to_owned(),
            });
        }
        if let Some(cap_bps) = device.cap_bps.filter(|cap| *cap < CAP_BPS_MIN) {
            return Err(ServerError::Cap { cap_bps });
        }
        if !(1..=SHARE_MAX).contains(&device.share) {
            let share = device.share;
            return Err(ServerError::Share { share });
        }
        let mut devices = lock(&self.table);
        if let Some(name) = devices.name_of(&device.gid) {
            let name = name.to_owned();
            return Err(ServerError::GidInUse { name });
        }
        if self.devices.has(&device.gid) {
            return Err(ServerError::StillOpen);
        }
        let path = self.directory.join(name);
        let failed = |source| ServerError::File {
            path: path.clone(),
            source,
        };
        fs::create_dir(&path).map_err(|source| match source.kind() {
            io::ErrorKind::AlreadyExists => ServerError::Exists {
                name: name.to_owned(),
            },
            _ => failed(source),
        })?;
        let token: [u8; 32] = random::draw();
        let fill = || {
            fs::hard_link(self.directory.join(CONTROL_FILE), path.join(CONTROL_FILE))?;
            let secret = path.join(TOKEN_FILE);
            fs::write(&secret, token)?;
            set_mode(&secret, 0o444)?;
            let gid = path.join(GID_FILE);
            fs::write(&gid, format!("{}\n", Ipv6Addr::from(device.gid)))?;
            set_mode(&gid, 0o444)?;
            set_mode(&path, 0o755)
        };
        if let Err(source) = fill() {
            // What is left of it would keep its name.
            let _ = remove_device(&path);
            return Err(failed(source));
        }
        devices.insert(token, name, device);
        Ok(path)
    }

    /// Takes a device away: nobody opens it any more. Who has it open keeps it.
    ///
    /// # Errors
    /// There is no such device, or its directory could not be removed.
    pub fn destroy(&self, name: &str) -> Result<(), ServerError> {
        let mut devices = lock(&self.table);
        if !devices.contains(name) {
            let name = name.to_owned();
            return Err(ServerError::NoDevice { name });
        }
        let path = self.directory.join(name);
        remove_device(&path).map_err(|source| ServerError::File { path, source })?;
        devices.remove(name);
        Ok(())
    }

    /// All devices, by name.
    #[must_use]
    pub fn list(&self) -> Vec<DeviceStatus> {
        let status = |(name, device): (&str, &Device)| {
            let counters = self.devices.counters(&device.gid);
            let mut status = DeviceStatus {
                name: name.to_owned(),
                gid: device.gid,
                directory: self.directory.join(name),
                tenant: Arc::clone(&device.tenant),
                owner: Arc::clone(&device.owner),
                cap_bps: device.cap_bps,
                ops_per_s: device.ops_per_s,
                share: device.share,
                contexts: 0,
                queue_pairs: 0,
                refused: counters.refused,
                refused_offers: counters.refused_offers,
                refused_calls: counters.refused_calls,
                operations: counters.operations,
                bytes_sent: counters.bytes_sent,
                bytes_received: counters.bytes_received,
                regions: 0,
                windows: 0,
                copied: counters.copied,
                is_stalled: false,
            };
            if let Some((shown, is_stalled)) = self.devices.shown(&device.gid) {
                status.contexts = shown.contexts.load(Ordering::Relaxed);
                status.queue_pairs = shown.queue_pairs.load(Ordering::Relaxed);
                status.regions = shown.regions.load(Ordering::Relaxed);
                status.windows = shown.windows.load(Ordering::Relaxed);
                status.is_stalled = is_stalled;
            }
            status
        };
        let table = lock(&self.table);
        self.devices
            .forget_counters(|gid| table.name_of(gid).is_some());
        table.iter().map(status).collect()
    }

    /// Which pods have tried what they may not, since this was asked last: each kind for a pair of pods once, and a bounded number.
    #[must_use]
    pub fn take_refused_attempts(&self) -> BTreeSet<RefusedAttempt> {
        self.devices.refused_attempts.take()
    }

    /// What was refused at all of them together, and where it was at none.
    #[must_use]
    pub fn refused(&self) -> Refused {
        let total = self.devices.total();
        Refused {
            packets: total.refused,
            offers: total.refused_offers,
            calls: total.refused_calls,
            connections: self.devices.refused_connections(),
        }
    }

    /// An offer has come from the node `owner`, as authenticated. One of another tenant than the device's that it is for is
    /// counted there, and dropped.
    ///
    /// # Errors
    /// Too many wait. The peer's engine sends it again.
    pub fn receive_offer(&self, owner: Arc<str>, offer: TenantOffer) -> Result<(), TooManyOffers> {
        self.devices.receive_offer(owner, offer)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop = None;
        self.devices.stop();
        if self.is_saved {
            // Who has it saved stores the record next. What stands still ends with the process.
            return;
        }
        // Nothing is ever sent.
        let _ = self.ended.recv_timeout(END_TIMEOUT);
        if let Err(error) = clear(&self.directory) {
            tracing::warn!("{}: {error}: it is left", self.directory.display());
        }
    }
}

/// Removes a directory of devices that a server has left, and nothing else.
fn clear(directory: &Path) -> io::Result<()> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    let (mut devices, mut is_foreign) = (Vec::new(), false);
    for entry in entries {
        let path = entry?.path();
        if path.join(CONTROL_FILE).exists() || path.join(TOKEN_FILE).exists() {
            devices.push(path);
        } else {
            is_foreign |= path.file_name().is_none_or(|name| name != CONTROL_FILE);
        }
    }
    if is_foreign {
        let problem = "there are files in it that are not of devices: give another directory";
        return Err(io::Error::other(problem));
    }
    for device in devices {
        remove_device(&device)?;
    }
    remove_file(&directory.join(CONTROL_FILE))?;
    fs::remove_dir(directory)
}

/// Removes the directory of a device.
fn remove_device(path: &Path) -> io::Result<()> {
    remove_file(&path.join(TOKEN_FILE))?;
    remove_file(&path.join(GID_FILE))?;
    remove_file(&path.join(CONTROL_FILE))?;
    fs::remove_dir(path)
}

fn remove_file(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

fn set_mode(path: &Path, mode: u32) -> io::Result<()> {
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
}

/// Makes the directory anew, with a socket in it that anybody may connect to who comes that far.
fn listen_in(directory: &Path) -> Result<OwnedFd, ServerError> {
    let failed = |source| ServerError::File {
        path: directory.to_owned(),
        source,
    };
    clear(directory).map_err(failed)?;
    fs::create_dir_all(directory).map_err(failed)?;
    set_mode(directory, 0o700).map_err(failed)?;
    let path = directory.join(CONTROL_FILE);
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let made = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
    let listening = made.and_then(|socket| {
        bind(&socket, &SocketAddrUnix::new(&path)?)?;
        listen(&socket, BACKLOG)?;
        Ok(socket)
    });
    let socket = listening.map_err(|errno| failed(errno.into()))?;
    set_mode(&path, 0o666).map_err(failed)?;
    Ok(socket)
}

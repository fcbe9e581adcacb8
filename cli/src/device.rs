//! `weft device`: the virtual devices of a small fabric that `weft play --device --keep` has left running.
//!
//! Everything of such a fabric is in namespaces of its own. A [`Record`] lies in its private `/run`; it is found through
//! `/proc`, so nothing that has ended is found.

mod doctor;
mod error;
mod inject;
mod node_program;
mod record;
mod restart;

use std::{
    ffi::OsString,
    fmt,
    fs::{self, Permissions},
    io,
    net::Ipv6Addr,
    num::NonZeroU32,
    os::unix::{fs::PermissionsExt as _, process::CommandExt as _},
};

use clap::Subcommand;
use weft_fabric::quantity;
use weft_proto::engine::v1::{
    CreateDeviceRequest, DestroyDeviceRequest, Device, ListDevicesRequest, ListDevicesResponse,
};

pub use self::{
    error::DeviceError,
    node_program::NodeProgram,
    record::{NodeRecord, Record},
};
use crate::columns::columns;

/// What is done with devices.
#[derive(Debug, Subcommand)]
pub enum Action {
    /// Run a program at a node, with the node's device and the library for it.
    ///
    /// It runs as uid 1000 (in a fabric of an ordinary user: as that user), without capabilities, and may lock 64 KiB of
    /// memory, as in a pod.
    Run {
        /// The node, as node0.
        node: String,
        /// The program and its arguments, as -- ib_write_bw 10.0.0.1.
        #[arg(last = true, required = true, value_name = "PROGRAM")]
        command: Vec<OsString>,
    },
    /// Say which libraries and which devices a program here meets.
    ///
    /// In a container, or as weft device run node0 -- weft device doctor.
    Doctor,
    /// Run a program with the devices of a directory. weft device run does so at a node.
    #[command(hide = true)]
    Inject(inject::Args),
    /// List the devices.
    List,
    /// Show one device.
    Show {
        /// As node0/weft0.
        device: Name,
    },
    /// Make a device again that was destroyed, or that was gone with its engine.
    ///
    /// A node of a small fabric has one.
    Create {
        /// As node0/weft0.
        device: Name,
        /// Most that it sends, as 400mbit [default: no limit].
        #[arg(long, value_name = "RATE", value_parser = quantity::parse_rate)]
        rate: Option<u64>,
        /// Most work requests that it begins per second [default: no limit].
        #[arg(long, value_name = "COUNT")]
        ops: Option<NonZeroU32>,
    },
    /// Restart the engine or the agent of a node, as an upgrade does.
    ///
    /// Programs that use the node's devices go on after a pause: the engine leaves its devices and connections to the next
    /// one, and the agent keeps them until that is there. An engine that was killed leaves nothing: another one begins
    /// without devices, and programs have found that theirs are gone.
    Restart {
        /// The node, as node0.
        node: String,
        /// Which of its two programs.
        #[arg(default_value = "engine")]
        which: NodeProgram,
    },
    /// Take a device away. A program that has it open keeps it.
    Destroy {
        /// As node0/weft0.
        device: Name,
    },
}

/// A node and a device of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Name {
    node: String,
    device: String,
}

impl std::str::FromStr for Name {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (node, device) = text.split_once('/').ok_or_else(|| {
            format!("{text:?} is not NODE/DEVICE: write node0/weft0, as `weft device list` does")
        })?;
        Ok(Self {
            node: node.to_owned(),
            device: device.to_owned(),
        })
    }
}

/// Carries it out; a program that runs takes the place of this one.
///
/// # Errors
/// [`DeviceError`].
pub fn run(
    action: &Action,
    play: Option<u32>,
    out: &mut impl io::Write,
) -> Result<(), DeviceError> {
    let runtime = || {
        let built = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        built.map_err(DeviceError::Runtime)
    };
    let write = |out: &mut _, text: &dyn fmt::Display| {
        let out: &mut dyn io::Write = out;
        write!(out, "{text}").map_err(DeviceError::Output)
    };
    let record = || Record::find(play);
    match action {
        Action::Run { node, command } => {
            let mut command = record()?.command(node, command)?;
            Err(DeviceError::NotRun(command.exec()))
        }
        Action::Doctor => {
            let report = doctor::Report::gather();
            write(out, &report)?;
            report
                .is_well()
                .then_some(())
                .ok_or(DeviceError::Unreachable)
        }
        Action::Inject(args) => Err(inject::run(args)),
        Action::List => {
            let list = runtime()?.block_on(list(&record()?))?;
            write(out, &list)
        }
        Action::Show { device } => {
            let list = runtime()?.block_on(list(&record()?))?;
            let found = list
                .devices()
                .find(|(node, found)| *node == device.node && found.name == device.device);
            let found = found.ok_or_else(|| {
                let Name { node, device } = device.clone();
                DeviceError::NoDevice { node, device }
            })?;
            write(out, &Detail(found))
        }
        Action::Restart { node, which } => {
            let paused = restart::restart(&record()?, node, *which)?;
            let paused = paused.as_millis();
            write(
                out,
                &format_args!("{node}: another {which} serves after {paused} ms\n"),
            )
        }
        Action::Create { device, rate, ops } => {
            runtime()?.block_on(create(&record()?, device, *rate, *ops))?;
            write(
                out,
                &format_args!("{}/{} created\n", device.node, device.device),
            )
        }
        Action::Destroy { device } => {
            runtime()?.block_on(destroy(&record()?, device))?;
            write(
                out,
                &format_args!("{}/{} destroyed\n", device.node, device.device),
            )
        }
    }
}

fn refused(node: &str, status: &tonic::Status) -> DeviceError {
    let node = node.to_owned();
    if status.code() == tonic::Code::Unavailable {
        return DeviceError::NoEngine { node };
    }
    let problem = status.message().to_owned();
    DeviceError::Engine { node, problem }
}

async fn create(
    record: &Record,
    device: &Name,
    rate: Option<u64>,
    ops: Option<NonZeroU32>,
) -> Result<(), DeviceError> {
    let node = record.node(&device.node)?;
    let request = CreateDeviceRequest {
        name: device.device.clone(),
        gid: node.gid.octets().to_vec(),
        cap_bps: rate.unwrap_or(0),
        ops_per_s: ops.map_or(0, NonZeroU32::get),
        ..CreateDeviceRequest::default()
    };
    let mut engine = weft_proto::engine::client(&record.socket(&device.node)?);
    let created = engine.create_device(request).await;
    created.map_err(|status| refused(&device.node, &status))?;
    // Any user may have devices of a fabric that is tried out.
    let path = record.outside(&node.devices);
    let opened = fs::set_permissions(&path, Permissions::from_mode(0o755));
    opened.map_err(|source| DeviceError::Files { path, source })
}

async fn destroy(record: &Record, device: &Name) -> Result<(), DeviceError> {
    let mut engine = weft_proto::engine::client(&record.socket(&device.node)?);
    let name = device.device.clone();
    let destroyed = engine.destroy_device(DestroyDeviceRequest { name }).await;
    destroyed.map_err(|status| refused(&device.node, &status))?;
    Ok(())
}

async fn list(record: &Record) -> Result<List, DeviceError> {
    let mut all = Vec::new();
    for node in record.nodes.keys() {
        let mut engine = weft_proto::engine::client(&record.socket(node)?);
        let listed = engine.list_devices(ListDevicesRequest {}).await;
        let listed = listed.map_err(|status| refused(node, &status))?;
        all.push((node.clone(), listed.into_inner()));
    }
    Ok(List(all))
}

fn gid(device: &Device) -> String {
    let octets = <[u8; 16]>::try_from(device.gid.as_slice());
    octets.map_or_else(
        |_| String::new(),
        |octets| Ipv6Addr::from(octets).to_string(),
    )
}

/// Whether it moves bytes.
fn state(device: &Device) -> &'static str {
    match device.stalled {
        false => "Active",
        true => "Stalled",
    }
}

/// What the engine of each node has said.
struct List(Vec<(String, ListDevicesResponse)>);

impl List {
    fn devices(&self) -> impl Iterator<Item = (&str, &Device)> {
        self.0
            .iter()
            .flat_map(|(node, listed)| listed.devices.iter().map(|device| (&**node, device)))
    }
}

impl fmt::Display for List {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let row = |(node, device): (&str, &Device)| {
            let refused = device.refused + device.refused_offers + device.refused_calls;
            vec![
                format!("{node}/{}", device.name),
                gid(device),
                device.contexts.to_string(),
                device.queue_pairs.to_string(),
                refused.to_string(),
                state(device).to_owned(),
            ]
        };
        let rows: Vec<Vec<String>> = self.devices().map(row).collect();
        columns(
            f,
            &["DEVICE", "GID", "OPEN", "QUEUE PAIRS", "REFUSED", "STATE"],
            &rows,
        )?;
        for (node, listed) in &self.0 {
            let refused = listed.refused.unwrap_or_default().connections;
            if refused > 0 {
                let what = "connections to the control socket showed no device's token: refused";
                writeln!(f, "{node}: {refused} {what}")?;
            }
        }
        Ok(())
    }
}

struct Detail<'a>((&'a str, &'a Device));

impl fmt::Display for Detail<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (node, device) = self.0;
        writeln!(f, "Device:       {}", device.name)?;
        writeln!(f, "Node:         {node}")?;
        writeln!(f, "GID:          {}", gid(device))?;
        writeln!(f, "Directory:    {}", device.directory)?;
        if device.cap_bps > 0 {
            writeln!(f, "Rate:         {} bit/s at most", device.cap_bps)?;
        }
        if device.ops_per_s > 0 {
            let most = device.ops_per_s;
            writeln!(f, "Operations:   {most} work requests per second at most")?;
        }
        writeln!(f, "Open:         {} times", device.contexts)?;
        writeln!(f, "Queue pairs:  {}", device.queue_pairs)?;
        writeln!(
            f,
            "Regions:      {}, of which the engine has mapped {}",
            device.regions, device.windows
        )?;
        writeln!(
            f,
            "Memory:       {} bytes copied by Window (mapped by the engine), {} by MemFd (/proc/PID/mem)",
            device.window_bytes, device.mem_fd_bytes
        )?;
        let (sent, received) = (device.bytes_sent, device.bytes_received);
        writeln!(f, "Bytes:        {sent} sent, {received} received")?;
        writeln!(
            f,
            "Refused:      {} packets, {} offers, {} calls",
            device.refused, device.refused_offers, device.refused_calls
        )?;
        writeln!(f, "State:        {}", state(device))?;
        if device.stalled {
            let cause =
                "the memory of a program that has it open holds up a copy: end that program";
            writeln!(f, "              {cause}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use weft_proto::engine::v1::RefusedAttempts;

    use super::*;

    #[test]
    fn a_device_is_named_with_its_node() {
        let name: Name = "node1/weft0".parse().unwrap();
        assert_eq!((&*name.node, &*name.device), ("node1", "weft0"));
        assert!("weft0".parse::<Name>().unwrap_err().contains("node0/weft0"));
    }

    #[test]
    fn devices_are_listed_in_columns() {
        let device = Device {
            name: "weft0".to_owned(),
            gid: "::ffff:10.0.0.1"
                .parse::<Ipv6Addr>()
                .unwrap()
                .octets()
                .to_vec(),
            directory: "/run/weft-devices/node0/weft0".to_owned(),
            contexts: 1,
            queue_pairs: 4,
            refused: 2,
            refused_offers: 3,
            refused_calls: 5,
            bytes_sent: 7,
            bytes_received: 8,
            stalled: true,
            regions: 3,
            windows: 1,
            window_bytes: 11,
            mem_fd_bytes: 12,
            cap_bps: 400_000_000,
            ops_per_s: 20_000,
            ..Device::default()
        };
        let detail = Detail(("node0", &device)).to_string();
        let listed = ListDevicesResponse {
            devices: vec![device],
            refused: Some(RefusedAttempts {
                connections: 6,
                ..RefusedAttempts::default()
            }),
            ..ListDevicesResponse::default()
        };
        assert_eq!(
            List(vec![("node0".to_owned(), listed)]).to_string(),
            "DEVICE       GID              OPEN  QUEUE PAIRS  REFUSED  STATE\nnode0/weft0  ::ffff:10.0.0.1  1     4            10       Stalled\n\
             node0: 6 connections to the control socket showed no device's token: refused\n"
        );
        assert!(detail.contains("Rate:         400000000 bit/s at most\n"));
        assert!(detail.contains(
            "Operations:   20000 work requests per second at most\nOpen:         1 times\n"
        ));
        assert!(
            detail.contains(
                "Regions:      3, of which the engine has mapped 1\nMemory:       11 bytes copied by Window (mapped by the engine), 12 by MemFd (/proc/PID/mem)\nBytes:        7 sent, 8 received\nRefused:      2 packets, 3 offers, 5 calls\nState:        Stalled\n"
            )
        );
    }
}

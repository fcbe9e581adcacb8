//! The agent's configuration file: what it says, its defaults and its limits.
//!
//! [`parse`] is pure, so that it can be fuzzed and tested as a table. [`crate::tls`] and [`crate::agent`] read the
//! files that it names.

pub mod values;

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use weft_core::congestion::CongestionKind;
use weft_core::path::PolicyKind;

use crate::config::values::{
    ByteCount, Congestion, Duration, FabricName, NodeName, PublicKey, is_label,
};
use crate::files::{Access, MinFree, RootLimits, RootVolumes};
use crate::object::{Authorities, ProxyUrl, WorkloadIdentity};

/// Slots of one incoming connection: enough to keep a link busy while the writer hashes one.
pub const DEFAULT_SLOTS: u16 = 8;
/// Slots of a connection for which there is no more memory: one is filled while the other is emptied.
pub const SLOTS_MIN: u16 = 2;
/// Smallest `limits.memory` that holds one incoming connection's slots and one sender's buffers.
pub const MEMORY_BYTES_MIN: u64 = 16 << 20;
/// Largest MTU that the data path builds packets for (Ethernet jumbo frames, and loopback's 64 KiB).
pub const MTU_BYTES_MAX: u16 = 65_535;
/// Smallest MTU: IPv6's (RFC 8200), with room for every control packet.
pub const MTU_BYTES_MIN: u16 = 1280;

/// The whole file.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Config {
    /// This node's name: the NAME of its certificate's `weft://FABRIC/node/NAME`.
    pub node: NodeName,
    /// The fabric this node belongs to.
    pub fabric: FabricName,
    /// The control API.
    pub control: Listen,
    /// The data path.
    pub data: Data,
    /// `/metrics`, `/healthz`, `/readyz`.
    pub metrics: Listen,
    /// What identifies the operator beyond its certificate.
    pub operator: Operator,
    /// This node's certificate and the fabric's certificate authority.
    pub tls: TlsFiles,
    /// The directories that jobs may name.
    pub roots: Vec<RootEntry>,
    /// How bytes move; must agree within a fabric.
    #[serde(default)]
    pub transport: Transport,
    /// What the agent may use.
    #[serde(default)]
    pub limits: Limits,
    /// How stores of objects are read.
    #[serde(default)]
    pub objects: Objects,
    /// The node's virtual devices; none when absent.
    #[serde(default)]
    pub devices: Option<Devices>,
    /// The directory by which the node's driver of volumes finds the agent; not a field of the file.
    #[serde(skip)]
    pub volumes: Option<PathBuf>,
    /// Where it comes from; not a field of the file.
    #[serde(skip)]
    pub config_source: ConfigSource,
}

/// Where a configuration comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ConfigSource {
    /// A file. It changes when a person edits it and restarts the agent.
    #[default]
    File,
    /// An operator, which may be about to send another one.
    Operator,
}

/// The node's virtual devices.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Devices {
    /// The Unix socket of the node's `weft-engine`.
    pub socket: PathBuf,
    /// The devices of all nodes, where the operator is not asked for them.
    pub peers: Vec<DevicePeer>,
    /// How their programs are started; not a field of the file.
    #[serde(skip)]
    pub programs: Programs,
}

/// Whether and how a node's `weft-engine` and `weft-device-plugin` are started.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Programs {
    /// Somebody else says it.
    #[default]
    External,
    /// By the agent, so.
    Configured(DevicePrograms),
    /// The fabric has no devices any more. Those that pods have go on.
    Disabled,
}

/// How a node's `weft-engine` and `weft-device-plugin` are started, besides what the engine has of the data path and the
/// transport.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DevicePrograms {
    /// The first UDP port of devices.
    pub first_port: u16,
    /// How many devices may be open at a time.
    pub open: u16,
    /// What the node's link carries, Mbit/s; 0 where that is not known.
    pub link_mbps: u32,
    /// The NUMA node of the interface; none where that is not known.
    pub numa_node: Option<u32>,
    /// How many devices the pods of the node can have.
    pub per_node: u32,
    /// Most that each sends, Mbit/s; 0 is no limit.
    pub cap_mbps: u32,
    /// Most work requests that each begins per second; 0 is no limit.
    pub operations_per_second: u32,
    /// Pods of different namespaces may reach each other.
    pub cross_namespace: bool,
    /// The namespaces whose pods may have devices; all when empty.
    pub namespaces: Vec<String>,
    /// The part of the node's link that each has, a weight; 0 is what the device plugin takes by default.
    pub share: u32,
}

/// A device of the fabric, and whose it is.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct DevicePeer {
    /// What other devices know it by.
    pub gid: Ipv6Addr,
    /// Its node.
    pub node: NodeName,
    /// Where the agent of that node serves its control API.
    pub control: SocketAddr,
}

/// How stores of objects are read.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct Objects {
    /// Also without TLS, and from this node's own services.
    pub allow_insecure: bool,
    /// A request to a store that brings no byte for this long fails, and is made again.
    pub stall_timeout: Duration,
    /// For a whole listing. Less than the two minutes that an operator waits for the answer, so that it gets the
    /// reason. A million objects take it, at 1,000 in 100 ms.
    pub list_timeout: Duration,
    /// For 1 MiB of an object, with repetitions: a store that sends slower than that fails the attempt, which would
    /// keep its place at the node.
    pub block_timeout: Duration,
    /// The proxy by which stores are reached, as `http://HOST:PORT`; without it: directly.
    pub proxy: Option<ProxyUrl>,
    /// Hosts, domains and CIDRs, separated by commas, that are reached without it.
    pub no_proxy: String,
    /// PEM: authorities that vouch for stores, besides the public ones.
    pub authorities: Authorities,
    /// Jobs without a Secret that read with the agent's identity.
    pub workload_identity: WorkloadIdentity,
}

impl Default for Objects {
    fn default() -> Self {
        Self {
            allow_insecure: false,
            stall_timeout: Duration::from_millis(30_000),
            list_timeout: Duration::from_millis(100_000),
            block_timeout: Duration::from_millis(120_000),
            proxy: None,
            no_proxy: String::new(),
            authorities: Authorities::default(),
            workload_identity: WorkloadIdentity::default(),
        }
    }
}

/// Where a server listens.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Listen {
    /// Address and port to listen on; port 0 takes a free one.
    pub listen: SocketAddr,
}

/// The data path.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Data {
    /// The address packets are sent from and to: that of the first NIC.
    pub address: Ipv4Addr,
    /// Those of further NICs, over which files move, too. Virtual devices have the first one only.
    #[serde(default)]
    pub other_addresses: Vec<Ipv4Addr>,
    /// UDP ports; each NIC has some of them.
    pub ports: Ports,
    /// Bytes of an IP packet on this network.
    #[serde(default = "default_mtu")]
    pub mtu: u16,
}

impl Data {
    /// The addresses of all NICs, the first one first.
    pub(crate) fn nics(&self) -> Vec<Ipv4Addr> {
        let others = self.other_addresses.iter().copied();
        std::iter::once(self.address).chain(others).collect()
    }
}

/// A range of UDP ports: one socket each, count² paths.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ports {
    /// First port.
    pub first: u16,
    /// Consecutive ports, 1 to 16.
    #[serde(default = "default_ports")]
    pub count: u16,
}

/// What identifies the operator beyond its certificate.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Operator {
    /// The Ed25519 public key tickets are signed with, 64 hexadecimal digits.
    pub ticket_key: PublicKey,
}

/// PEM files.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct TlsFiles {
    /// Certificate authority of the fabric.
    pub ca: PathBuf,
    /// This node's certificate chain.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
}

/// A directory that jobs may name.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct RootEntry {
    /// What jobs call it.
    pub name: String,
    /// Where it is.
    pub path: PathBuf,
    /// What jobs may do there.
    #[serde(deserialize_with = "text")]
    pub access: Access,
    /// What jobs leave free: a percentage of the file system, or bytes. Nothing when absent.
    #[serde(deserialize_with = "text", default)]
    pub min_free: MinFree,
    /// What copies and transfers of one namespace may have; no limit when absent.
    #[serde(default)]
    pub bytes_per_namespace: Option<ByteCount>,
    /// How pods mount its copies, where they do; not a field of the file.
    #[serde(skip)]
    pub volumes: Option<RootVolumes>,
}

impl RootEntry {
    /// What transfers may take of its disk.
    pub(crate) fn limits(&self) -> RootLimits {
        RootLimits {
            min_free: self.min_free,
            bytes_per_namespace: self.bytes_per_namespace.map(|bytes| bytes.0),
        }
    }
}

/// How bytes move.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct Transport {
    /// Paths per pair of nodes, 1 to `data.ports.count`².
    pub paths: Option<u16>,
    /// How a chunk's path is chosen.
    #[serde(deserialize_with = "text")]
    pub policy: PolicyKind,
    /// What bounds the bytes in flight.
    pub congestion: Congestion,
    /// Smallest retransmission timeout.
    pub rto_min: Duration,
    /// Payload of a full chunk; at most 64 KiB with its headers.
    pub chunk: ByteCount,
    /// Silence of a peer that owes an acknowledgement, after which its connection fails.
    pub stall_timeout: Duration,
    /// Which link carries the packets.
    pub link: LinkKind,
    /// Whether the data path is encrypted.
    pub encryption: Encryption,
    /// Most that this node sends over the data path, Mbit/s; no limit when absent.
    pub cap_mbps: Option<u32>,
    /// Differentiated services code point of the data path's packets, 0 to 63.
    pub dscp: u8,
}

impl Default for Transport {
    fn default() -> Self {
        Self {
            paths: None,
            policy: PolicyKind::default(),
            congestion: Congestion(CongestionKind::ECN_RTT),
            // The engine sleeps between packets, and a sleep takes milliseconds to end.
            rto_min: Duration::from_millis(5),
            chunk: ByteCount(64 << 10),
            stall_timeout: Duration::from_millis(10_000),
            link: LinkKind::Auto,
            encryption: Encryption::Off,
            cap_mbps: None,
            dscp: 0,
        }
    }
}

/// Over TCP a path is a connection with buffers of its own in both kernels. Eight already take eight ways through the network,
/// and the kernel's threads are not more on most nodes.
const TCP_PATHS_MAX: u16 = 8;

/// A link that this build has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LinkKind {
    /// The faster of UDP and TCP to each peer, or the one that passes.
    #[default]
    Auto,
    /// Kernel UDP with segmentation offload.
    Udp,
    /// Kernel TCP: each path is a connection.
    Tcp,
}

/// Whether the data path is encrypted: the same on all nodes of a fabric.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Encryption {
    /// Files are readable on the network; damage is found.
    #[default]
    Off,
    /// Every connection is encrypted.
    Required,
}

/// What the agent may use.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct Limits {
    /// Bytes of transfer buffers, over all jobs. One job alone uses what it can; several share it, down to
    /// two slots and a buffer for each node sent to and one more, 17 at most. What needs more than is left
    /// then is refused, and tried again in the next attempt. The default is for eight jobs of any kind at once.
    pub memory: ByteCount,
    /// Receive slots of 1 MiB + 64 KiB per incoming connection, at most.
    pub slots: u16,
    /// Time after which an attempt that no operator asks about cancels itself.
    pub lease: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            memory: ByteCount(48 << 20),
            slots: DEFAULT_SLOTS,
            lease: Duration::from_millis(15 * 60 * 1000),
        }
    }
}

fn default_mtu() -> u16 {
    1500
}

fn default_ports() -> u16 {
    16
}

/// Reads a value that the file spells as text.
fn text<'de, T, D>(deserializer: D) -> Result<T, D::Error>
where
    T: FromStr<Err: fmt::Display>,
    D: Deserializer<'de>,
{
    let text = String::deserialize(deserializer)?;
    text.parse().map_err(D::Error::custom)
}

/// What is wrong with a configuration file, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigError {
    /// Line in the file, from 1, where the text cannot be read; else 0.
    pub line: u64,
    /// The field, as written in the file; "" when there is none.
    pub field: String,
    /// What is wrong and what would be right.
    pub message: String,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.line > 0 {
            write!(f, "line {}: ", self.line)?;
        }
        if !self.field.is_empty() {
            write!(f, "{}: ", self.field)?;
        }
        f.write_str(&self.message)
    }
}

impl std::error::Error for ConfigError {}

/// Reads a configuration file's text.
pub fn parse(text: &str) -> Result<Config, ConfigError> {
    let options = serde_saphyr::options! { with_snippet: false };
    let config: Config = serde_saphyr::from_str_with_options(text, options).map_err(|error| {
        let line = error.location().map_or(0, |l| l.line());
        let said = error.to_string();
        // The parser has the place at the end of its message; it goes in front, with the text of the line.
        let said = said
            .rsplit_once(" at line ")
            .map_or(said.as_str(), |(what, _)| what);
        let written = written_at(text, line).trim();
        if let Some(error) = in_plain_words(said, line) {
            return error;
        }
        ConfigError {
            line,
            field: field_at(text, line),
            message: if written.is_empty() {
                said.to_owned()
            } else {
                format!("{said} (in `{written}`)")
            },
        }
    })?;
    check(&config)?;
    Ok(config)
}

/// What the parser says of a whole field, for who writes the file.
fn in_plain_words(said: &str, line: u64) -> Option<ConfigError> {
    let error = |line, field: &str, message: &str| ConfigError {
        line,
        field: field.to_owned(),
        message: message.to_owned(),
    };
    // The line is that where the fields end.
    if let Some(field) = said.strip_prefix("missing field `") {
        let field = field.trim_end_matches('`');
        return Some(error(0, field, "is missing: add it"));
    }
    if let Some(rest) = said.strip_prefix("duplicate mapping key: ") {
        let field = rest.split(',').next().unwrap_or(rest);
        return Some(error(line, field, "is there twice: remove one of the two"));
    }
    said.contains("unexpected end of input").then(|| {
        let message =
            "the file is empty or ends too early: write the fields that `docs/joining.md` lists";
        error(0, "", message)
    })
}

/// A line of the file.
fn written_at(text: &str, line: u64) -> &str {
    let index = usize::try_from(line)
        .ok()
        .and_then(|line| line.checked_sub(1));
    index
        .and_then(|index| text.lines().nth(index))
        .unwrap_or_default()
}

/// The key written on a line: what a reader of the message looks for.
fn field_at(text: &str, line: u64) -> String {
    let written = written_at(text, line).trim_start_matches([' ', '-']);
    match written.split_once(':') {
        Some((key, _)) if key.chars().all(|c| c.is_ascii_alphanumeric()) => key.to_owned(),
        _ => String::new(),
    }
}

/// Whether the values fit together and keep their limits.
pub(crate) fn check(config: &Config) -> Result<(), ConfigError> {
    let nics = config.data.nics();
    check_nics(&nics)?;
    let (control, metrics) = (config.control.listen, config.metrics.listen);
    let overlap = control.ip() == metrics.ip()
        || control.ip().is_unspecified()
        || metrics.ip().is_unspecified();
    let is_same = overlap && control.port() == metrics.port() && control.port() != 0;
    let message = format!("`{metrics}` is taken by control.listen: give another port");
    require(!is_same, "metrics.listen", &message)?;
    let ports = config.data.ports;
    require(ports.first > 0, "data.ports.first", "must be 1 or more")?;
    let few = (1..=16).contains(&ports.count);
    let message = format!("{} is not 1 to 16", ports.count);
    require(few, "data.ports.count", &message)?;
    let message = format!(
        "{} is fewer than the {} NICs, and each has a port of its own: raise it, or give fewer NICs",
        ports.count,
        nics.len()
    );
    let is_enough = nics.len() <= ports.count.into();
    require(is_enough, "data.ports.count", &message)?;
    let last = ports.first.checked_add(ports.count - 1);
    let message = format!(
        "{} ports from {} on end beyond port 65535: lower `first` or `count`",
        ports.count, ports.first
    );
    require(last.is_some(), "data.ports", &message)?;
    let mtu = (MTU_BYTES_MIN..=MTU_BYTES_MAX).contains(&config.data.mtu);
    let message = format!("{} is not 1280 to 65535", config.data.mtu);
    require(mtu, "data.mtu", &message)?;
    let transport = &config.transport;
    let most = ports.count * ports.count;
    let paths = transport
        .paths
        .is_none_or(|paths| (1..=most).contains(&paths));
    let message = format!(
        "must be 1 to {most}, the square of data.ports.count, which is {}: lower one or raise the other",
        ports.count
    );
    require(paths, "transport.paths", &message)?;
    let is_enough = |paths: u16| nics.len() <= paths.into();
    let message = format!("must be {} or more: each NIC needs a path", nics.len());
    let enough = transport.paths.is_none_or(is_enough);
    require(enough, "transport.paths", &message)?;
    let chunk = (512..=64 << 10).contains(&transport.chunk.0);
    require(chunk, "transport.chunk", "must be 512 to 64KiB")?;
    let cap = transport.cap_mbps != Some(0);
    require(cap, "transport.capMbps", "must be 1 or more")?;
    require(transport.dscp <= 63, "transport.dscp", "must be 0 to 63")?;
    let limits = &config.limits;
    let memory = limits.memory.0 >= MEMORY_BYTES_MIN;
    require(memory, "limits.memory", "must be 16MiB or more")?;
    let slots = (SLOTS_MIN..=64).contains(&limits.slots);
    require(slots, "limits.slots", "must be 2 to 64")?;
    let lease = limits.lease.nanos() >= 1_000_000_000;
    require(lease, "limits.lease", "must be 1s or more")?;
    for (field, timeout) in [
        ("transport.stallTimeout", transport.stall_timeout),
        ("objects.stallTimeout", config.objects.stall_timeout),
        ("objects.listTimeout", config.objects.list_timeout),
        ("objects.blockTimeout", config.objects.block_timeout),
    ] {
        let long = timeout.nanos() >= 100_000_000;
        require(long, field, "must be 100ms or more")?;
    }
    check_devices(config.devices.as_ref())?;
    check_roots(&config.roots)
}

/// Each is an address of an interface, and none is there twice.
fn check_nics(nics: &[Ipv4Addr]) -> Result<(), ConfigError> {
    for (index, address) in nics.iter().enumerate() {
        let field = match index.checked_sub(1) {
            None => "data.address".to_owned(),
            Some(other) => format!("data.otherAddresses[{other}]"),
        };
        let is_of_an_interface =
            !(address.is_unspecified() || address.is_multicast() || address.is_broadcast());
        let message = format!(
            "`{address}` is of no interface: give the address that this node's data interface has (`ip addr` shows it)"
        );
        require(is_of_an_interface, &field, &message)?;
        let is_new = !nics[..index].contains(address);
        let message = format!("`{address}` is there twice: give each NIC once");
        require(is_new, &field, &message)?;
    }
    Ok(())
}

fn check_devices(devices: Option<&Devices>) -> Result<(), ConfigError> {
    let peers = devices.map_or(&[][..], |devices| &devices.peers);
    for (index, peer) in peers.iter().enumerate() {
        let earlier = &peers[..index];
        let is_new = !earlier.iter().any(|other| other.gid == peer.gid);
        let message = format!(
            "`{}` is taken by an earlier device: give each another one",
            peer.gid
        );
        require(is_new, &format!("devices.peers[{index}].gid"), &message)?;
    }
    Ok(())
}

fn check_roots(roots: &[RootEntry]) -> Result<(), ConfigError> {
    for (index, root) in roots.iter().enumerate() {
        let RootEntry { name, path, .. } = root;
        let field = |name: &str| format!("roots[{index}].{name}");
        let message = format!("`{name}` is not 1 to 63 of [a-z0-9-]");
        require(is_label(name), &field("name"), &message)?;
        for (earlier, other) in roots.iter().take(index).enumerate() {
            let message = format!("`{name}` is taken by roots[{earlier}]");
            require(other.name != *name, &field("name"), &message)?;
            // A job's lock lies in its root's directory, and must be the only one for a file.
            let nested = path.starts_with(&other.path) || other.path.starts_with(path);
            let message = format!(
                "`{}` and the path of root `{}` lie within each other: roots must be apart",
                path.display(),
                other.name
            );
            require(!nested, &field("path"), &message)?;
        }
        let message = format!("`{}` must be absolute", path.display());
        require(path.is_absolute(), &field("path"), &message)?;
    }
    Ok(())
}

fn require(holds: bool, field: &str, message: &str) -> Result<(), ConfigError> {
    if holds {
        return Ok(());
    }
    Err(ConfigError {
        line: 0,
        field: field.to_owned(),
        message: message.to_owned(),
    })
}

impl Config {
    /// Paths per pair of nodes: as configured, or 128, or all that the ports give. Where the link is TCP, 8 at most.
    #[must_use]
    pub fn paths(&self) -> u16 {
        self.paths_over(match self.transport.link {
            LinkKind::Auto | LinkKind::Udp => weft_engine::LinkKind::Udp,
            LinkKind::Tcp => weft_engine::LinkKind::Tcp,
        })
    }

    /// The same over one of the links.
    pub(crate) fn paths_over(&self, link: weft_engine::LinkKind) -> u16 {
        let ports = self.data.ports.count;
        let paths = self.transport.paths.unwrap_or((ports * ports).min(128));
        match link {
            weft_engine::LinkKind::Tcp => paths.min(TCP_PATHS_MAX),
            weft_engine::LinkKind::Udp
            | weft_engine::LinkKind::Xdp
            | weft_engine::LinkKind::Shm => paths,
        }
    }
}

#[cfg(test)]
mod tests;

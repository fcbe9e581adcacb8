//! The agent's configuration file: what it says, its defaults and its limits.
//!
//! [`parse`] is pure, so that it can be fuzzed and tested as a table; files it names are read later,
//! by [`crate::tls`] and [`crate::agent`]. Nothing here is changed while the agent runs.

pub mod values;

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use serde::Deserialize;
use serde_saphyr::Spanned;
use weft_core::congestion::CongestionKind;
use weft_core::path::PolicyKind;

use crate::config::values::{
    ByteCount, Congestion, Duration, FabricName, NodeName, PublicKey, is_label,
};
use crate::files::{Access, MinFree, RootLimits};

/// Slots of one incoming connection: enough to keep a link busy while the writer hashes one.
pub const DEFAULT_SLOTS: u16 = 8;
/// Slots of a connection for which there is no more memory: one is filled while the other is emptied.
pub const SLOTS_LEAST: u16 = 2;
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
    pub control: Control,
    /// The data path.
    pub data: Data,
    /// `/metrics`, `/healthz`, `/readyz`.
    pub metrics: Metrics,
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
    /// Whose word all of this is; no field of the file.
    #[serde(skip)]
    pub author: Author,
}

/// Whose word a configuration is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Author {
    /// A file's: it changes when somebody edits it and starts the agent anew.
    #[default]
    File,
    /// An operator's, which may have another one under way already.
    Operator,
}

/// How stores of objects are read.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct Objects {
    /// Also without TLS, and from this node's own services.
    pub allow_insecure: bool,
    /// Silence of a store, after which a request has failed and is made again.
    pub stall_timeout: Spanned<Duration>,
    /// For all that a store is asked to say what there is. Less than the two minutes that an operator
    /// waits for the answer, so that it hears why there is none; a million objects, 1,000 at a time, are
    /// listed in it at 100 ms each.
    pub list_timeout: Spanned<Duration>,
}

impl Default for Objects {
    fn default() -> Self {
        Self {
            allow_insecure: false,
            stall_timeout: unplaced(Duration::from_millis(30_000)),
            list_timeout: unplaced(Duration::from_millis(100_000)),
        }
    }
}

/// The control API.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Control {
    /// Address and port to listen on; port 0 takes a free one.
    pub listen: SocketAddr,
}

/// The data path.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Data {
    /// The address packets are sent from and to.
    pub address: Ipv4Addr,
    /// UDP ports.
    pub ports: Spanned<Ports>,
    /// Bytes of an IP packet on this network.
    #[serde(default = "default_mtu")]
    pub mtu: Spanned<u16>,
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

/// The metrics endpoint.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Metrics {
    /// Address and port to listen on; port 0 takes a free one.
    pub listen: SocketAddr,
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
    pub name: Spanned<String>,
    /// Where it is.
    pub path: Spanned<PathBuf>,
    /// What jobs may do there.
    #[serde(with = "access")]
    pub access: Access,
    /// What jobs leave free: a percentage of the file system, or bytes. Nothing when absent.
    #[serde(with = "min_free", default)]
    pub min_free: MinFree,
    /// What copies and transfers of one namespace may have; no limit when absent.
    #[serde(default)]
    pub bytes_per_namespace: Option<ByteCount>,
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
    pub paths: Option<Spanned<u16>>,
    /// How a chunk's path is chosen.
    #[serde(with = "policy")]
    pub policy: PolicyKind,
    /// What bounds the bytes in flight.
    pub congestion: Congestion,
    /// Smallest retransmission timeout.
    pub rto_min: Duration,
    /// Payload of a full chunk; at most 64 KiB with its headers.
    pub chunk: Spanned<ByteCount>,
    /// Silence of a peer that owes an acknowledgement, after which its connection fails.
    pub stall_timeout: Spanned<Duration>,
    /// Which link carries the packets.
    pub link: LinkKind,
    /// Whether the data path is encrypted.
    pub encryption: Encryption,
    /// Most that this node sends over the data path, Mbit/s; no limit when absent.
    pub cap_mbps: Option<Spanned<u32>>,
    /// Differentiated services code point of the data path's packets, 0 to 63.
    pub dscp: Spanned<u8>,
}

impl Default for Transport {
    fn default() -> Self {
        Self {
            paths: None,
            policy: PolicyKind::default(),
            congestion: Congestion(CongestionKind::ECN_RTT),
            // The engine sleeps between packets, and a sleep takes milliseconds to end.
            rto_min: Duration::from_millis(5),
            chunk: unplaced(ByteCount(64 << 10)),
            stall_timeout: unplaced(Duration::from_millis(10_000)),
            link: LinkKind::Auto,
            encryption: Encryption::Off,
            cap_mbps: None,
            dscp: unplaced(0),
        }
    }
}

/// A link that this build has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LinkKind {
    /// The best that both ends have.
    #[default]
    Auto,
    /// Kernel UDP with segmentation offload.
    Udp,
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
    /// two slots and a buffer for each node sent to and one more. What needs more than is left then is
    /// refused, and tried again in the next attempt. The default is for eight jobs of any kind at once.
    pub memory: Spanned<ByteCount>,
    /// Receive slots of 1 MiB + 64 KiB per incoming connection, at most.
    pub slots: Spanned<u16>,
    /// Time after which an attempt that no operator asks about cancels itself.
    pub lease: Spanned<Duration>,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            memory: unplaced(ByteCount(48 << 20)),
            slots: unplaced(DEFAULT_SLOTS),
            lease: unplaced(Duration::from_millis(15 * 60 * 1000)),
        }
    }
}

/// A value that stands in no file.
pub(crate) fn unplaced<T>(value: T) -> Spanned<T> {
    let nowhere = serde_saphyr::Location::UNKNOWN;
    Spanned::new(value, nowhere, nowhere)
}

fn default_mtu() -> Spanned<u16> {
    unplaced(1500)
}

fn default_ports() -> u16 {
    16
}

mod access {
    use serde::{Deserialize, Deserializer, de::Error};

    use crate::files::Access;

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Access, D::Error> {
        let text = String::deserialize(d)?;
        match text.as_str() {
            "ReadOnly" => Ok(Access::ReadOnly),
            "ReadWrite" => Ok(Access::ReadWrite),
            _ => Err(D::Error::custom(format!(
                "`{text}` is not ReadOnly or ReadWrite"
            ))),
        }
    }
}

mod min_free {
    use serde::{Deserialize, Deserializer, de::Error};

    use crate::config::values::ByteCount;
    use crate::files::MinFree;

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<MinFree, D::Error> {
        let text = String::deserialize(d)?;
        let parsed = match text.strip_suffix('%') {
            Some(percent) => percent
                .parse()
                .ok()
                .filter(|percent| *percent <= 100)
                .map(MinFree::Percent),
            None => text
                .parse()
                .ok()
                .map(|ByteCount(bytes)| MinFree::Bytes(bytes)),
        };
        parsed.ok_or_else(|| {
            D::Error::custom(format!(
                "`{text}` is not 0% to 100%, or a whole number of bytes, with KiB, MiB or GiB if wanted"
            ))
        })
    }
}

mod policy {
    use serde::{Deserialize, Deserializer, de::Error};
    use weft_core::path::PolicyKind;

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<PolicyKind, D::Error> {
        let text = String::deserialize(d)?;
        text.parse().map_err(D::Error::custom)
    }
}

/// What is wrong with a configuration file, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigError {
    /// Line in the file, from 1; 0 when the file as a whole is meant.
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
        // The parser says the place at the end; we say it in front, and show what is written there.
        let said = said
            .rsplit_once(" at line ")
            .map_or(said.as_str(), |(what, _)| what);
        let written = written_at(text, line).trim();
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
    let ports = &config.data.ports;
    if ports.value.first == 0 {
        return wrong(ports, "data.ports.first", "must be 1 or more");
    }
    if !(1..=16).contains(&ports.value.count) {
        return wrong(ports, "data.ports.count", "must be 1 to 16");
    }
    if ports
        .value
        .first
        .checked_add(ports.value.count - 1)
        .is_none()
    {
        return wrong(ports, "data.ports", "the range ends beyond port 65535");
    }
    let mtu = &config.data.mtu;
    if !(MTU_BYTES_MIN..=MTU_BYTES_MAX).contains(&mtu.value) {
        return wrong(mtu, "data.mtu", "must be 1280 to 65535");
    }
    let most = ports.value.count * ports.value.count;
    if let Some(paths) = &config.transport.paths
        && !(1..=most).contains(&paths.value)
    {
        let message = format!(
            "must be 1 to {most}: {} ports at either end make so many paths",
            ports.value.count
        );
        return wrong(paths, "transport.paths", &message);
    }
    let chunk = &config.transport.chunk;
    if !(512..=64 << 10).contains(&chunk.value.0) {
        return wrong(chunk, "transport.chunk", "must be 512 to 64KiB");
    }
    let stall = &config.transport.stall_timeout;
    if stall.value.nanos() < 100_000_000 {
        return wrong(stall, "transport.stallTimeout", "must be 100ms or more");
    }
    if let Some(cap) = &config.transport.cap_mbps
        && cap.value == 0
    {
        return wrong(cap, "transport.capMbps", "must be 1 or more");
    }
    let dscp = &config.transport.dscp;
    if dscp.value > 63 {
        return wrong(dscp, "transport.dscp", "must be 0 to 63");
    }
    let limits = &config.limits;
    if limits.memory.value.0 < MEMORY_BYTES_MIN {
        return wrong(&limits.memory, "limits.memory", "must be 16MiB or more");
    }
    if !(SLOTS_LEAST..=64).contains(&limits.slots.value) {
        return wrong(&limits.slots, "limits.slots", "must be 2 to 64");
    }
    if limits.lease.value.nanos() < 1_000_000_000 {
        return wrong(&limits.lease, "limits.lease", "must be 1s or more");
    }
    let stall = &config.objects.stall_timeout;
    if stall.value.nanos() < 100_000_000 {
        return wrong(stall, "objects.stallTimeout", "must be 100ms or more");
    }
    let list = &config.objects.list_timeout;
    if list.value.nanos() < 100_000_000 {
        return wrong(list, "objects.listTimeout", "must be 100ms or more");
    }
    check_roots(&config.roots)
}

fn check_roots(roots: &[RootEntry]) -> Result<(), ConfigError> {
    for (index, root) in roots.iter().enumerate() {
        let field = |name: &str| format!("roots[{index}].{name}");
        let name = &root.name.value;
        if !is_label(name) {
            let message = format!("`{name}` is not 1 to 63 of [a-z0-9-]");
            return wrong(&root.name, &field("name"), &message);
        }
        if let Some(other) = roots.iter().take(index).find(|r| r.name.value == *name) {
            let message = match other.name.referenced.line() {
                0 => format!("`{name}` is taken by another root"),
                line => format!("`{name}` is taken by line {line}"),
            };
            return wrong(&root.name, &field("name"), &message);
        }
        // A job's lock lies in its root's directory, and must be the only one for a file.
        let nested = roots.iter().take(index).find(|other| {
            let (inner, outer) = (&root.path.value, &other.path.value);
            inner.starts_with(outer) || outer.starts_with(inner)
        });
        if let Some(other) = nested {
            let message = format!(
                "`{}` and the path of root `{}` lie within each other: roots must be apart",
                root.path.value.display(),
                other.name.value
            );
            return wrong(&root.path, &field("path"), &message);
        }
        if !root.path.value.is_absolute() {
            let message = format!("`{}` must be absolute", root.path.value.display());
            return wrong(&root.path, &field("path"), &message);
        }
    }
    Ok(())
}

fn wrong<T>(at: &Spanned<T>, field: &str, message: &str) -> Result<(), ConfigError> {
    Err(ConfigError {
        line: at.referenced.line(),
        field: field.to_owned(),
        message: message.to_owned(),
    })
}

impl Config {
    /// Paths per pair of nodes: as configured, or 128, or all that the ports give.
    #[must_use]
    pub fn paths(&self) -> u16 {
        let ports = self.data.ports.value.count;
        self.transport
            .paths
            .as_ref()
            .map_or((ports * ports).min(128), |p| p.value)
    }
}

#[cfg(test)]
mod tests;

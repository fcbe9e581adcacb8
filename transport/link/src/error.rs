//! What can go wrong when a link is opened or asked about a route; each error names its remedy.

use std::net::IpAddr;

use crate::nics::BadNics;
use crate::ports::{BadPorts, PortRange};

/// Why a link could not be opened, or why it cannot serve a peer.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// `count` is 0, above 256, or runs past port 65535.
    #[error(transparent)]
    BadPorts(#[from] BadPorts),
    /// There are none, too many, or two that do not fit each other.
    #[error(transparent)]
    BadNics(#[from] BadNics),
    /// Some would have no port.
    #[error(
        "{nics} NICs have only {ports} ports to share: give each worker as many ports as there are NICs"
    )]
    TooFewPorts {
        /// How many NICs.
        nics: usize,
        /// How many ports.
        ports: u16,
    },
    /// Someone else holds a port of the range.
    #[error(
        "port {port} of the range {ports} on {address} is taken by another socket: \
         stop its owner (`ss -tulpn sport = :{port}`) or set another ports.first"
    )]
    PortTaken {
        /// The address of the NIC.
        address: IpAddr,
        /// The port that is taken.
        port: u16,
        /// The whole range asked for.
        ports: PortRange,
    },
    /// Another end over shared memory has the name.
    #[error(
        "@{name} is taken by another process of this network namespace: \
         stop it (`ss -xlp src @{name}`) or set another ports.first"
    )]
    NameTaken {
        /// The name, of address and port.
        name: String,
    },
    /// No interface of this machine has the address.
    #[error("no interface here has the address {address}: set address to one that `ip addr` shows")]
    AddressNotHere {
        /// The configured address.
        address: IpAddr,
    },
    /// Ports below `net.ipv4.ip_unprivileged_port_start` without the capability.
    #[error(
        "binding {address}, ports {ports}, is not permitted: choose ports.first of 1024 or more, \
         or grant CAP_NET_BIND_SERVICE"
    )]
    NotPermitted {
        /// The address of the NIC.
        address: IpAddr,
        /// The range asked for.
        ports: PortRange,
    },
    /// A datagram of the configured size does not fit the way to the peer.
    #[error(
        "mtu {mtu} is larger than the {route_mtu} that the route from {address} to {peer} carries: \
         lower mtu to {route_mtu} on both ends or raise the interface's"
    )]
    MtuTooBig {
        /// The address of the NIC.
        address: IpAddr,
        /// The peer.
        peer: IpAddr,
        /// The configured MTU, bytes of IP packet.
        mtu: u16,
        /// What the kernel's route says, bytes of IP packet.
        route_mtu: u32,
    },
    /// The kernel knows no way to the peer.
    #[error(
        "no route from {address} to {peer} ({source}): check `ip route get {peer} from {address}`"
    )]
    NoRoute {
        /// The address of the NIC.
        address: IpAddr,
        /// The peer.
        peer: IpAddr,
        /// What the kernel said.
        source: std::io::Error,
    },
    /// One end has an IPv4 address and the other one an IPv6 address.
    #[error(
        "{address} and {peer} are of two IP versions: give both ends an IPv4 address or both an IPv6 address"
    )]
    OtherIpVersion {
        /// The address of the NIC.
        address: IpAddr,
        /// The peer.
        peer: IpAddr,
    },
    /// No link has this name.
    #[error("link is {name:?}: it must be udp, tcp, shm or xdp")]
    UnknownLink {
        /// The name.
        name: String,
    },
    /// The two ends have different links.
    #[error("{address} and {peer} are of two links: set link to the same at both ends")]
    OtherLink {
        /// The address here.
        address: String,
        /// The peer's.
        peer: String,
    },
    /// AF_XDP cannot be used on an interface. The link `udp` needs none of it.
    #[error("no AF_XDP on {interface}: {problem}")]
    Xdp {
        /// The interface.
        interface: String,
        /// Why.
        problem: XdpProblem,
    },
    /// Any other refusal of the kernel.
    #[error(
        "{call} on {address} failed ({source}): check limits (`ulimit -n`) and the kernel's log"
    )]
    System {
        /// The call that failed.
        call: &'static str,
        /// The address of the NIC.
        address: IpAddr,
        /// What the kernel said.
        source: std::io::Error,
    },
}

impl LinkError {
    /// A stable name for conditions and metric labels.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::BadPorts(_) | Self::TooFewPorts { .. } => "BadPorts",
            Self::BadNics(_) => "BadNics",
            Self::PortTaken { .. } | Self::NameTaken { .. } => "PortTaken",
            Self::AddressNotHere { .. } => "AddressNotHere",
            Self::NotPermitted { .. } => "NotPermitted",
            Self::MtuTooBig { .. } => "MtuTooBig",
            Self::NoRoute { .. } => "NoRoute",
            Self::OtherIpVersion { .. } => "OtherIpVersion",
            Self::UnknownLink { .. } => "UnknownLink",
            Self::OtherLink { .. } => "OtherLink",
            Self::Xdp { .. } => "XdpUnavailable",
            Self::System { .. } => "SystemCallFailed",
        }
    }
}

/// Why AF_XDP cannot be used on an interface.
#[derive(Debug, thiserror::Error)]
pub enum XdpProblem {
    /// A capability is missing, in the machine's own user namespace.
    #[error(
        "{call} is not permitted ({source}): run as root of the machine, or grant CAP_NET_RAW, CAP_NET_ADMIN and CAP_BPF"
    )]
    NotPermitted {
        /// The call that was refused.
        call: &'static str,
        /// What the kernel said.
        source: std::io::Error,
    },
    /// Loopback, bridges and many virtual devices.
    #[error(
        "its driver has no XDP, or not with its present settings (MTU, LRO): use the link udp, or another interface"
    )]
    NoDriver,
    /// AF_XDP was left out of the kernel.
    #[error("the kernel has no AF_XDP: use the link udp, or another kernel")]
    NoKernelSupport,
    /// The engine's packets are longer than a frame.
    #[error(
        "mtu {mtu} is more than the {most} that a frame holds: lower mtu to {most} or less on both ends"
    )]
    MtuTooBig {
        /// The configured MTU, bytes of IP packet.
        mtu: usize,
        /// The largest possible.
        most: usize,
    },
    /// The engine's packets are longer than the interface takes.
    #[error(
        "mtu {mtu} is more than its MTU {least}: lower mtu to {least} or less on both ends, or raise that of the interface"
    )]
    MtuTooSmall {
        /// The configured MTU, bytes of IP packet.
        mtu: usize,
        /// The interface's.
        least: u32,
    },
    /// The interface's own MTU, or on a veth that of its peer.
    #[error(
        "packets of its MTU do not fit in a frame: lower the MTU of the interface to 3498 or less, on a veth at both ends"
    )]
    InterfaceMtu,
    /// An interface has one program.
    #[error(
        "another XDP program is on it: remove that (`ip link show` names it), or use the link udp"
    )]
    ProgramThere,
    /// A queue has one socket.
    #[error(
        "another program's AF_XDP socket has a queue of it: stop that program, or use the link udp"
    )]
    QueueTaken,
    /// The limit on locked memory.
    #[error(
        "the frames are more memory than may be locked, 24 MiB or more: raise the limit (`ulimit -l`) or grant CAP_IPC_LOCK"
    )]
    LockedMemory,
    /// The link has one interface.
    #[error("several NICs were given: give one, or use the link udp")]
    SeveralNics,
    /// The frames for all queues would be too much memory.
    #[error("it has {count} queues, more than {most}: lower their number (`ethtool -L`)")]
    TooManyQueues {
        /// How many it has.
        count: u32,
        /// How many are opened at most.
        most: u32,
    },
    /// Any other refusal of the kernel.
    #[error("{call} failed ({source}): check the kernel's log, or use the link udp")]
    System {
        /// The call that failed.
        call: &'static str,
        /// What the kernel said.
        source: std::io::Error,
    },
}

/// Why the kernel refused a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// A packet is larger than the device's MTU (EMSGSIZE).
    TooBig,
    /// A firewall of this machine forbids it (EPERM, EACCES).
    NotPermitted,
    /// No route, or the device is down (ENETUNREACH, EHOSTUNREACH, ENETDOWN, ENODEV, EADDRNOTAVAIL).
    Unreachable,
    /// An earlier datagram met a closed port (ECONNREFUSED).
    PortClosed,
    /// Any other errno.
    Other(i32),
}

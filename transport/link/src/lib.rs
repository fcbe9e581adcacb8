//! How chunks leave the machine and how packets enter it.
//!
//! A [`Link`] carries packets for one NIC queue and never decides anything: it holds no window, no timer and no
//! path state, and it resends nothing. Ports, sockets, segmentation offload and full send buffers are its own
//! affair. Its caller is a worker of the engine, which is generic over the link: calls are dispatched statically.
//!
//! [`UdpLink`] is the link over UDP: one socket per port of a range, one GSO system call per chunk, batched
//! receive with GRO. [`TcpLink`] is the one over TCP: one connection per path.
//! [`XdpLink`] is the one over UDP past the kernel's stack.
//! [`ShmLink`] reaches other processes of the node through memory. [`AnyLink`] is whichever a configuration names.
//! [`RouteProbe`] and [`ProbeSocket`] answer questions about the network beside any link.

mod address;
mod any;
mod datagram;
mod error;
mod incoming;
mod link;
mod local;
mod nics;
mod outgoing;
mod poller;
mod ports;
mod preamble;
mod probe;
mod route;
mod shm;
mod tcp;
mod udp;
mod xdp;

pub use address::{LinkAddress, LinkKind, LinkToken};
pub use any::{AnyConfig, AnyLink, AnyPeer};
pub use error::{LinkError, Refusal, XdpProblem};
pub use link::{
    Capabilities, Counters, Destination, Handler, Link, PathChange, PathCondition, Sent,
};
pub use local::LocalSwitch;
pub use nics::{BadNics, NICS_MAX, NicAddresses};
pub use poller::{Poller, Waiter, Waker};
pub use ports::{BadPorts, PortPair, PortRange};
pub use probe::{Offers, ProbeSocket};
pub use route::RouteProbe;
pub use shm::{ShmConfig, ShmLink, ShmPeer};
pub use tcp::{TcpConfig, TcpLink, TcpPeer};
pub use udp::{SocketBuffers, UdpConfig, UdpLink, UdpPeer};
pub use xdp::XdpLink;

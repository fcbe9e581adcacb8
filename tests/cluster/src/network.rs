//! The address plan above the fabric's own, and the routes that it needs.

use std::fmt::Write as _;
use std::fs;
use std::net::Ipv4Addr;
use std::process::Command;

use weft_fabric::Fabric;

use crate::{ClusterError, output_of};

/// What Services have addresses in.
pub(crate) const SERVICES: &str = "10.96.0.0/16";
/// The Service `kubernetes`: the first of them.
pub(crate) const API_SERVICE: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 1);
/// Where a cluster's DNS usually is. There is none here.
pub(crate) const DNS_SERVICE: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 10);
/// What pods have addresses in.
pub(crate) const PODS: &str = "10.244.0.0/16";
/// The API server's port.
pub(crate) const API_PORT: u16 = 6443;

/// What the pods of node `i` have addresses in.
pub(crate) fn pods_of(i: usize) -> String {
    format!("10.244.{i}.0/24")
}

/// Lets pods of different nodes, and the API server, reach each other over the management network.
pub(crate) fn connect(fabric: &Fabric) -> Result<(), ClusterError> {
    let forward = "/proc/sys/net/ipv4/ip_forward";
    fs::write(forward, "1").map_err(ClusterError::system(forward))?;
    routes(fabric, None)?;
    // A Service's address leads nowhere, but the kernel asks for a way before kube-proxy's rules
    // change it.
    let default = format!("route add default via {}\n", fabric.management_address());
    for i in 0..fabric.nodes().len() {
        fabric.in_node(i, || {
            ip(&default)?;
            routes(fabric, Some(i))
        })??;
    }
    Ok(())
}

/// In the namespace of the calling thread, to the pods of every node but `own`.
fn routes(fabric: &Fabric, own: Option<usize>) -> Result<(), ClusterError> {
    let mut script = String::new();
    for (i, node) in fabric.nodes().iter().enumerate() {
        if Some(i) != own {
            let (pods, via) = (pods_of(i), node.management_address);
            // Writing to a String cannot fail.
            let _ = writeln!(script, "route add {pods} via {via}");
        }
    }
    ip(&script)
}

fn ip(script: &str) -> Result<(), ClusterError> {
    output_of(Command::new("ip").args(["-batch", "-"]), script).map(drop)
}

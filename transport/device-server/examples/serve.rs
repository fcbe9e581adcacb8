//! Serves devices over loopback until its input ends: `serve DIRECTORY NAME...`. For trying verbs programs by hand.

use std::io::{Read as _, Write as _};
use std::net::Ipv4Addr;
use std::path::Path;

use weft_device::control::Limits;
use weft_device_server::{Device, Server};
use weft_engine::{EngineConfig, PortRange, Secret};

const LIMITS: Limits = Limits {
    domains: 1024,
    regions: 65_536,
    completion_queues: 4096,
    queue_pairs: 4096,
    address_handles: 4096,
    completions: 1 << 16,
    work_requests: 1 << 14,
    sges: 30,
    inline_bytes: 512,
    requests: 16,
    path_mtu: 5,
    ring_bytes: 1 << 30,
};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let directory = arguments.next().ok_or("usage: serve DIRECTORY NAME...")?;
    let ports = PortRange {
        first: 59_000,
        count: 16,
    };
    let mut config = EngineConfig::new(Ipv4Addr::LOCALHOST, ports, Secret([7; 32]));
    config.mtu = 9000;
    let server = Server::start(Path::new(&directory), config)?;
    for (last, name) in (1..).zip(arguments) {
        let mut gid = [0; 16];
        gid[10..].copy_from_slice(&[0xff, 0xff, 10, 0, 0, last]);
        let path = server.create(
            &name,
            Device {
                gid,
                limits: LIMITS,
            },
        )?;
        writeln!(std::io::stdout(), "{}", path.display())?;
    }
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

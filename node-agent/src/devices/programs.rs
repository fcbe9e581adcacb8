//! With which flags the programs of virtual devices are started, of which the operator tells the agent only.

use std::io;
use std::path::{Path, PathBuf};

use crate::config::{Config, DevicePrograms, Encryption};

const BITS_PER_MEGABIT: u64 = 1_000_000;
/// What a device has of which nothing else is said.
const SHARE_DEFAULT: u32 = 100;

/// Writes the flags of the engine that serves at this socket and of the device plugin beside it. A program that runs goes on with
/// what it was started with.
///
/// # Errors
/// The file that cannot be written, and why.
pub(crate) fn write(
    socket: &Path,
    config: &Config,
    programs: &DevicePrograms,
) -> Result<(), (PathBuf, io::Error)> {
    let directory = socket.parent().unwrap_or(socket);
    for (name, flags) in [
        ("engine.args", engine(config, programs)),
        ("device-plugin.args", device_plugin(programs)),
    ] {
        let path = directory.join(name);
        weft_argument_file::write(&path, &flags).map_err(|source| (path, source))?;
    }
    Ok(())
}

fn engine(config: &Config, programs: &DevicePrograms) -> Vec<String> {
    let transport = &config.transport;
    let encryption = match transport.encryption {
        Encryption::Off => "off",
        Encryption::Required => "required",
    };
    let link_mbps = (programs.link_mbps > 0).then_some(programs.link_mbps);
    let mut flags = vec![
        format!("--address={}", config.data.address),
        format!("--first-port={}", programs.first_port),
        format!("--ports={}", config.data.ports.count),
        format!("--open-devices={}", programs.open),
        format!("--mtu={}", config.data.mtu),
        format!("--paths={}", config.paths()),
        format!("--policy={}", transport.policy),
        format!("--encryption={encryption}"),
        format!("--dscp={}", transport.dscp),
    ];
    let limit = transport.cap_mbps.or(link_mbps);
    flags.extend(limit.map(|mbps| format!("--link-bps={}", u64::from(mbps) * BITS_PER_MEGABIT)));
    flags
}

fn device_plugin(programs: &DevicePrograms) -> Vec<String> {
    let mut flags = vec![format!("--count={}", programs.per_node)];
    flags.extend(programs.numa_node.map(|node| format!("--numa-node={node}")));
    if programs.cap_mbps > 0 {
        let cap_bps = u64::from(programs.cap_mbps) * BITS_PER_MEGABIT;
        flags.push(format!("--cap-bps={cap_bps}"));
    }
    if programs.operations_per_second > 0 {
        flags.push(format!("--ops={}", programs.operations_per_second));
    }
    // One of an earlier release knows no such flag.
    if !matches!(programs.share, 0 | SHARE_DEFAULT) {
        flags.push(format!("--share={}", programs.share));
    }
    if programs.cross_namespace {
        flags.push("--cross-namespace".to_owned());
    }
    if !programs.namespaces.is_empty() {
        flags.push(format!("--namespaces={}", programs.namespaces.join(",")));
    }
    flags
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_device_plugin_is_told_what_the_fabric_says_and_nothing_of_what_it_leaves_out() {
        let little = DevicePrograms {
            first_port: 16_000,
            open: 8,
            link_mbps: 0,
            numa_node: None,
            per_node: 8,
            cap_mbps: 0,
            operations_per_second: 0,
            cross_namespace: false,
            namespaces: Vec::new(),
            share: 100,
        };
        assert_eq!(device_plugin(&little), ["--count=8"]);
        let all = DevicePrograms {
            numa_node: Some(0),
            cap_mbps: 400,
            operations_per_second: 20_000,
            cross_namespace: true,
            share: 200,
            namespaces: vec!["team-a".to_owned(), "team-b".to_owned()],
            ..little
        };
        let flags = [
            "--count=8",
            "--numa-node=0",
            "--cap-bps=400000000",
            "--ops=20000",
            "--share=200",
            "--cross-namespace",
            "--namespaces=team-a,team-b",
        ];
        assert_eq!(device_plugin(&all), flags);
        let names = flags.map(|flag| flag.split('=').next().unwrap_or_default());
        let known: BTreeSet<&str> = weft_argument_file::DEVICE_PLUGIN.iter().copied().collect();
        assert_eq!(BTreeSet::from(names), known);
    }
}

//! With which flags the programs of virtual devices are started, of which the operator tells the agent only.

use std::fs;
use std::io;
use std::iter::once;
use std::path::{Path, PathBuf};

use crate::config::{Config, DevicePrograms, Encryption};

const BITS_PER_MEGABIT: u64 = 1_000_000;
/// What a device has of which nothing else is said.
const SHARE_DEFAULT: u32 = 100;
/// Beside the socket of the engine: the flags of the engine, and of the device plugin.
const ENGINE: &str = "engine.args";
const DEVICE_PLUGIN: &str = "device-plugin.args";
const COUNT: &str = "--count=";

/// Writes the flags of the engine that serves at this socket and of the device plugin beside it. The device plugin takes other
/// flags within seconds, an engine when it is started anew.
///
/// # Errors
/// The file that cannot be written, and why.
pub(crate) fn write(
    socket: &Path,
    config: &Config,
    programs: &DevicePrograms,
) -> Result<(), (PathBuf, io::Error)> {
    for (name, flags) in [
        (ENGINE, engine(config, programs)),
        (DEVICE_PLUGIN, device_plugin(programs)),
    ] {
        let path = socket.with_file_name(name);
        weft_argument_file::write(&path, &flags).map_err(|source| (path, source))?;
    }
    Ok(())
}

/// Whether an agent has written them here.
pub(crate) fn are_there(socket: &Path) -> bool {
    socket.with_file_name(DEVICE_PLUGIN).exists()
}

/// Has the device plugin offer no devices. Those that pods have go on, and are as they were when their containers start again; and the
/// plugin gives claims back, also those that it has refused.
///
/// # Errors
/// The file that cannot be read or written, and why.
pub(crate) fn withdraw(socket: &Path) -> Result<(), (PathBuf, io::Error)> {
    let path = socket.with_file_name(DEVICE_PLUGIN);
    let change = || {
        let text = fs::read_to_string(&path)?;
        let others = text.lines().filter(|flag| !flag.starts_with(COUNT));
        let flags = once(format!("{COUNT}0")).chain(others.map(str::to_owned));
        weft_argument_file::write(&path, &flags.collect::<Vec<String>>())
    };
    change().map_err(|source| (path.clone(), source))
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
    let mut flags = vec![format!("{COUNT}{}", programs.per_node)];
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

    #[test]
    fn flags_that_are_withdrawn_offer_no_device_and_are_as_they_were_otherwise() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("engine.sock");
        assert!(!are_there(&socket));
        let flags = ["--count=8", "--share=200"].map(str::to_owned);
        let path = socket.with_file_name("device-plugin.args");
        weft_argument_file::write(&path, &flags).unwrap();
        // Of this agent, and of the next one.
        for _ in 0..2 {
            assert!(are_there(&socket));
            withdraw(&socket).unwrap();
            assert_eq!(
                fs::read_to_string(&path).unwrap(),
                "--count=0\n--share=200\n"
            );
        }
    }
}

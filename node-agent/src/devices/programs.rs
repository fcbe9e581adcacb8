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
const ENGINE_FILE: &str = "engine.args";
const DEVICE_PLUGIN_FILE: &str = "device-plugin.args";
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
        (ENGINE_FILE, engine(config, programs)),
        (DEVICE_PLUGIN_FILE, device_plugin(programs)),
    ] {
        let path = socket.with_file_name(name);
        weft_argument_file::write(&path, &flags).map_err(|source| (path, source))?;
    }
    Ok(())
}

/// Where the flags of the engine at this socket are.
pub(crate) fn engine_file(socket: &Path) -> PathBuf {
    socket.with_file_name(ENGINE_FILE)
}

/// Whether an agent has written them here.
pub(crate) fn are_there(socket: &Path) -> bool {
    socket.with_file_name(DEVICE_PLUGIN_FILE).exists()
}

/// Has the device plugin offer no devices. Those that pods have go on, and are as they were when their containers start again; and the
/// plugin gives claims back, also those that it has refused.
///
/// # Errors
/// The file that cannot be read or written, and why.
pub(crate) fn disable(socket: &Path) -> Result<(), (PathBuf, io::Error)> {
    let path = socket.with_file_name(DEVICE_PLUGIN_FILE);
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
    use crate::config;

    fn little() -> DevicePrograms {
        DevicePrograms {
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
        }
    }

    fn names(flags: &[impl AsRef<str>]) -> BTreeSet<&str> {
        let flags = flags.iter().map(AsRef::as_ref);
        flags.map(|flag| flag.split('=').next().unwrap()).collect()
    }

    #[test]
    fn the_engine_takes_every_flag_that_the_agent_writes_for_it() {
        let config = config::parse(
            "
node: node0
fabric: lab
control: {listen: 127.0.0.1:7400}
metrics: {listen: 127.0.0.1:7401}
data: {address: 127.0.0.1, ports: {first: 7500}}
operator: {ticketKey: 000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f}
tls: {ca: ca.pem, certificate: node.pem, key: node.key}
roots: []
",
        );
        let programs = DevicePrograms {
            link_mbps: 1000,
            ..little()
        };
        let flags = engine(&config.unwrap(), &programs);
        assert_eq!(names(&flags), names(weft_argument_file::ENGINE_FLAGS));
    }

    #[test]
    fn the_device_plugin_is_told_what_the_fabric_says_and_nothing_of_what_it_leaves_out() {
        assert_eq!(device_plugin(&little()), ["--count=8"]);
        let all = DevicePrograms {
            numa_node: Some(0),
            cap_mbps: 400,
            operations_per_second: 20_000,
            cross_namespace: true,
            share: 200,
            namespaces: vec!["team-a".to_owned(), "team-b".to_owned()],
            ..little()
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
        assert_eq!(
            names(&flags),
            names(weft_argument_file::DEVICE_PLUGIN_FLAGS)
        );
    }

    #[test]
    fn disabled_flags_offer_no_device_and_keep_the_others() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("engine.sock");
        assert!(!are_there(&socket));
        let flags = ["--count=8", "--share=200"].map(str::to_owned);
        let path = socket.with_file_name("device-plugin.args");
        weft_argument_file::write(&path, &flags).unwrap();
        // Of this agent, and of the next one.
        for _ in 0..2 {
            assert!(are_there(&socket));
            disable(&socket).unwrap();
            assert_eq!(
                fs::read_to_string(&path).unwrap(),
                "--count=0\n--share=200\n"
            );
        }
    }
}

//! What the rows change at one spine of a fabric while packets pass.

use std::ffi::OsString;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use weft_fabric::Fabric;

use super::BenchError;

/// Of the rows' own rules, beside the fabric's.
const TABLE: &str = "bench";
/// The token bucket that the fabric uses too.
const BUCKET: &str = "burst 256kb latency 5ms";

/// A spine's network namespace.
pub(super) struct Spine {
    namespace: PathBuf,
    ports: Vec<String>,
}

impl Spine {
    pub(super) fn new(fabric: &Fabric, spine: usize) -> Self {
        let namespace = fabric
            .node(0)
            .namespace
            .with_file_name(format!("spine{spine}"));
        let ports = (0..fabric.spec().leaves)
            .map(|leaf| format!("leaf{leaf}"))
            .collect();
        Self { namespace, ports }
    }

    /// The rate of each of its ports, bit/s. The fabric must have been built with a rate.
    pub(super) fn set_rate(&self, rate: u64) -> Result<(), BenchError> {
        self.each_port("tc", |port| {
            format!("qdisc replace dev {port} root tbf rate {rate}bit {BUCKET}")
        })
    }

    /// The largest IP packet that its ports send and receive, in bytes.
    pub(super) fn set_mtu(&self, bytes: u32) -> Result<(), BenchError> {
        self.each_port("ip", |port| format!("link set dev {port} mtu {bytes}"))
    }

    /// Drops every IP packet that is longer.
    pub(super) fn drop_longer_than(&self, bytes: u32) -> Result<(), BenchError> {
        self.nft(&format!(
            "table ip {TABLE} {{\nchain forward {{\ntype filter hook forward priority 0\n\
             meta length > {bytes} drop\n}}\n}}\n"
        ))
    }

    /// Ends [`Self::drop_longer_than`].
    pub(super) fn drop_none(&self) -> Result<(), BenchError> {
        self.nft(&format!("add table ip {TABLE}\ndelete table ip {TABLE}"))
    }

    fn nft(&self, script: &str) -> Result<(), BenchError> {
        run_inside(&self.namespace, "nft", &["-f", "-"], script).map(drop)
    }

    /// One batch of a program of iproute2, a line for each port.
    fn each_port(&self, program: &str, line: impl Fn(&str) -> String) -> Result<(), BenchError> {
        let lines: Vec<String> = self.ports.iter().map(|port| line(port)).collect();
        let script = lines.join("\n") + "\n";
        run_inside(&self.namespace, program, &["-batch", "-"], &script).map(drop)
    }
}

/// Runs a program in a network namespace and answers what it prints.
pub(super) fn run_inside(
    namespace: &std::path::Path,
    program: &str,
    arguments: &[&str],
    input: &str,
) -> Result<String, BenchError> {
    let mut net = OsString::from("--net=");
    net.push(namespace);
    let mut child = Command::new("nsenter")
        .arg(net)
        .args(["--", program])
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(BenchError::system("nsenter"))?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin
            .write_all(input.as_bytes())
            .map_err(BenchError::system(program))?;
    }
    let output = child
        .wait_with_output()
        .map_err(BenchError::system(program))?;
    if !output.status.success() {
        let message = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        return Err(BenchError::Program {
            program: program.to_owned(),
            message,
        });
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

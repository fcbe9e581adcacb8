//! The programs that configure the kernel's network, found and run.

use std::{
    ffi::OsStr,
    fmt,
    io::Write,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use crate::FabricError;

/// Where administrators' programs are, also for users whose `PATH` leaves them out.
const ADMIN_PATHS: [&str; 3] = ["/usr/local/sbin", "/usr/sbin", "/sbin"];

/// A program that the fabric needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tool {
    /// Links, addresses, routes.
    Ip,
    /// Rates.
    Tc,
    /// Loss, corruption, black holes.
    Nft,
    /// Offloads.
    Ethtool,
    /// Programs in a node's namespace.
    Nsenter,
}

impl Tool {
    const ALL: [Self; 5] = [Self::Ip, Self::Tc, Self::Nft, Self::Ethtool, Self::Nsenter];

    /// The program's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ip => "ip",
            Self::Tc => "tc",
            Self::Nft => "nft",
            Self::Ethtool => "ethtool",
            Self::Nsenter => "nsenter",
        }
    }

    /// The package that brings it, by the name that Debian, Ubuntu and Fedora share or nearly so.
    pub fn package(self) -> &'static str {
        match self {
            Self::Ip | Self::Tc => "iproute2",
            Self::Nft => "nftables",
            Self::Ethtool => "ethtool",
            Self::Nsenter => "util-linux",
        }
    }

    fn find(self) -> Option<PathBuf> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&path)
            .chain(ADMIN_PATHS.iter().map(PathBuf::from))
            .map(|directory| directory.join(self.name()))
            .find(|file| file.is_file())
    }
}

impl fmt::Display for Tool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// All of them, found.
#[derive(Debug, Clone)]
pub struct Tools {
    paths: [PathBuf; Tool::ALL.len()],
}

impl Tools {
    /// Finds every tool, or says which packages to install.
    pub fn find() -> Result<Self, FabricError> {
        let found = Tool::ALL.map(|tool| (tool, tool.find()));
        let missing: Vec<Tool> = found
            .iter()
            .filter(|(_, path)| path.is_none())
            .map(|(tool, _)| *tool)
            .collect();
        if missing.is_empty() {
            Ok(Self {
                paths: found.map(|(_, path)| path.unwrap_or_default()),
            })
        } else {
            Err(FabricError::MissingTools(MissingTools(missing)))
        }
    }

    /// Where it is.
    pub(crate) fn path(&self, tool: Tool) -> &Path {
        &self.paths[tool as usize]
    }

    /// Runs it in the namespace of the calling thread, with a script on its standard input, and
    /// returns what it says.
    pub(crate) fn run<A: AsRef<OsStr>>(
        &self,
        tool: Tool,
        arguments: &[A],
        script: &str,
    ) -> Result<String, FabricError> {
        let failed = |message: String| FabricError::Tool { tool, message };
        let not_run = |source| FabricError::NotRun { tool, source };
        let mut child = Command::new(self.path(tool))
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(not_run)?;
        // If it does not read to the end, its own message says why.
        let written = child
            .stdin
            .take()
            .map(|mut stdin| stdin.write_all(script.as_bytes()));
        let output = child.wait_with_output().map_err(not_run)?;
        if output.status.success() && matches!(written, Some(Ok(()))) {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        let message = String::from_utf8_lossy(&output.stderr)
            .trim()
            .replace('\n', "; ");
        Err(failed(match failed_line(&message, script) {
            Some(line) => format!("{message} (`{line}`)"),
            None => message,
        }))
    }
}

/// `ip` and `tc` end with `Command failed -:7` for the seventh line of a batch.
fn failed_line<'a>(message: &str, script: &'a str) -> Option<&'a str> {
    let number: usize = message
        .rsplit_once("Command failed -:")?
        .1
        .trim()
        .parse()
        .ok()?;
    script.lines().nth(number.checked_sub(1)?)
}

/// The tools that are not installed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MissingTools(pub Vec<Tool>);

impl fmt::Display for MissingTools {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.0.iter().map(|tool| tool.name()).collect();
        let mut packages: Vec<_> = self.0.iter().map(|tool| tool.package()).collect();
        packages.dedup();
        write!(
            f,
            "not installed: {}; install the packages {} (apt-get install {})",
            names.join(", "),
            packages.join(", "),
            packages.join(" ")
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_tools_are_named_with_the_packages_that_bring_them() {
        let missing = MissingTools(vec![Tool::Ip, Tool::Tc, Tool::Nft]);
        assert_eq!(
            missing.to_string(),
            "not installed: ip, tc, nft; install the packages iproute2, nftables \
             (apt-get install iproute2 nftables)"
        );
    }

    #[test]
    fn a_failed_batch_names_the_line_that_failed() {
        let message = "RTNETLINK answers: File exists; Command failed -:2";
        assert_eq!(failed_line(message, "one\ntwo\nthree\n"), Some("two"));
        assert_eq!(failed_line("other", "one\n"), None);
    }
}

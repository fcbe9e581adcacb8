//! An agent in a process of its own: one that can be killed, measured and confined.

use std::process::{Child as Process, Command};

use rustix::process::{Pid, Resource, Rlimit, prlimit};

use crate::support::Lab;

/// An agent as a process of its own, killed when dropped.
pub(crate) struct Kept(pub(crate) Process);

impl Kept {
    pub(crate) fn start(lab: &Lab, node: usize, extra: &str) -> Self {
        Self::start_in(lab, node, extra, &[])
    }

    /// In an environment with these variables.
    pub(crate) fn start_in(
        lab: &Lab,
        node: usize,
        extra: &str,
        variables: &[(&str, &str)],
    ) -> Self {
        let config = lab.configure(node, extra);
        let process = Command::new(env!("CARGO_BIN_EXE_weft-agent"))
            // As the chart starts it.
            .env("MALLOC_MMAP_THRESHOLD_", "524288")
            .envs(variables.iter().copied())
            .arg("--config")
            .arg(config)
            .args(["--log", "warn"])
            .spawn()
            .unwrap();
        Self(process)
    }

    /// Kilobytes of anonymous memory.
    pub(crate) fn anonymous_kb(&self) -> u64 {
        self.kb("RssAnon:")
    }

    fn kb(&self, field: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.0.id())).unwrap();
        let line = status.lines().find(|line| line.starts_with(field)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    }

    /// Leaves no addresses for the 2 MiB of another thread's stack.
    pub(crate) fn allow_no_more_threads(&self) {
        let pid = i32::try_from(self.0.id()).ok().and_then(Pid::from_raw);
        let limit = Rlimit {
            current: Some((self.kb("VmSize:") << 10) + (1 << 20)),
            maximum: None,
        };
        prlimit(pid, Resource::As, limit).unwrap();
    }

    pub(crate) fn kill(mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

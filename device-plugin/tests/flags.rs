//! The program itself: what it does by the file of its flags.

#[path = "../../node-agent/tests/agents/eventually.rs"]
mod eventually;

use std::fs::{self, File};
use std::process::{Child, Command};

use tempfile::TempDir;

use crate::eventually::eventually;

/// Beside no engine and no kubelet: it makes its socket and calls both again and again.
struct Program {
    home: TempDir,
    child: Child,
}

impl Drop for Program {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Program {
    fn start() -> Self {
        let home = tempfile::tempdir().expect("a directory");
        let at = |name: &str| home.path().join(name);
        fs::create_dir(at("device-plugins")).expect("it is ours");
        let flag = |flag: &str, name: &str| format!("{flag}{}", at(name).display());
        let child = Command::new(env!("CARGO_BIN_EXE_weft-device-plugin"))
            .args([
                flag("--engine=", "engine.sock"),
                flag("--directory=", "devices"),
                flag("--device-plugins=", "device-plugins"),
                flag("--pod-resources=", "pod-resources"),
                flag("--cdi=", "cdi"),
                flag("@", "device-plugin.args"),
            ])
            .stderr(File::create(at("log")).expect("it is ours"))
            .spawn()
            .expect("it starts");
        Self { home, child }
    }

    fn set_flags(&self, text: &str) {
        // At once, as the agent writes it.
        let new = self.home.path().join("new");
        fs::write(&new, text).expect("it is ours");
        fs::rename(new, self.home.path().join("device-plugin.args")).expect("it is ours");
    }

    fn remove_flags(&self) {
        fs::remove_file(self.home.path().join("device-plugin.args")).expect("it is there");
    }

    /// The socket at which it serves the kubelet.
    fn socket(&self) -> Option<String> {
        let entries = fs::read_dir(self.home.path().join("device-plugins"));
        let mut names = entries.expect("it is there").map(|entry| {
            let name = entry.expect("it is there").file_name();
            name.to_string_lossy().into_owned()
        });
        names.next()
    }

    fn has_ended(&mut self) -> bool {
        self.child.try_wait().expect("it is a child").is_some()
    }
}

#[tokio::test]
async fn the_program_serves_by_its_files_flags_and_ends_what_it_does_when_that_is_gone() {
    let mut program = Program::start();
    program.set_flags("--count=4\n");
    let first = eventually("it serves", async || program.socket()).await;
    // Its fabric has no devices any more.
    program.set_flags("--count=0\n");
    let second = eventually("it takes other flags", async || {
        program.socket().filter(|socket| *socket != first)
    })
    .await;
    program.remove_flags();
    eventually("it serves nobody", async || {
        program.socket().is_none().then_some(())
    })
    .await;
    program.set_flags("--count=4\n");
    let third = eventually("it serves again", async || program.socket()).await;
    assert!(third != first && third != second);
    assert!(!program.has_ended(), "a container would be started again");
    program.set_flags("--count=4\n--hook=/weft/roots/models/program\n");
    let has_ended = || std::future::ready(program.has_ended().then_some(()));
    eventually("it ends", has_ended).await;
    let log = fs::read_to_string(program.home.path().join("log")).expect("it is there");
    let told = "`--hook=/weft/roots/models/program` is not for a file";
    assert!(log.contains(told), "{log}");
}

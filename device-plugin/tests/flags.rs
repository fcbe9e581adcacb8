//! The program itself: what it does by the file of its flags.

#[path = "../../node-agent/tests/agents/eventually.rs"]
mod eventually;

use std::fs::{self, File};
use std::process::{Child, Command};

use tempfile::TempDir;
use tonic::Streaming;
use weft_device_plugin::kubelet;
use weft_device_plugin::kubelet::device_plugin::device_plugin_client::DevicePluginClient;
use weft_device_plugin::kubelet::device_plugin::{Empty, ListAndWatchResponse};

use crate::eventually::{DEADLINE, eventually};

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

    fn log(&self) -> String {
        fs::read_to_string(self.home.path().join("log")).expect("it is there")
    }

    fn has_ended(&mut self) -> bool {
        self.child.try_wait().expect("it is a child").is_some()
    }
}

async fn list(lists: &mut Streaming<ListAndWatchResponse>) -> Option<ListAndWatchResponse> {
    let list = tokio::time::timeout(DEADLINE, lists.message()).await;
    list.expect("it takes a moment").expect("it goes on")
}

#[tokio::test]
async fn other_flags_of_its_file_change_the_list_and_without_the_file_the_last_ones_stay() {
    let mut program = Program::start();
    program.set_flags("--count=4\n");
    let socket = eventually("it serves", async || program.socket()).await;
    let at_socket = program.home.path().join("device-plugins").join(&socket);
    let mut plugin = DevicePluginClient::new(kubelet::channel(&at_socket));
    let lists = plugin.list_and_watch(Empty {}).await;
    let mut lists = lists.expect("it answers").into_inner();
    let first = list(&mut lists).await.expect("a list");
    assert_eq!(first.devices.len(), 4);
    // Its fabric has no devices any more.
    program.set_flags("--count=0\n");
    let none = list(&mut lists).await.expect("a list");
    assert!(none.devices.is_empty());
    program.remove_flags();
    eventually("it has read them", async || {
        program
            .log()
            .contains("the flags stay as they are")
            .then_some(())
    })
    .await;
    program.set_flags("--count=2\n");
    let two = list(&mut lists).await.expect("a list");
    assert_eq!(two.devices.len(), 2);
    assert_eq!(program.socket(), Some(socket));
    assert!(!program.has_ended(), "a container would be started again");
    program.set_flags("--count=2\n--hook=/weft/roots/models/program\n");
    let has_ended = || std::future::ready(program.has_ended().then_some(()));
    eventually("it ends", has_ended).await;
    let log = program.log();
    let told = "`--hook=/weft/roots/models/program` is not for a file";
    assert!(log.contains(told), "{log}");
}

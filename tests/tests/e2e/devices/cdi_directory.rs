//! The node's directory with the files for the container runtime takes no file.

use std::fs;
use std::time::Instant;

use nix::mount::{MsFlags, mount, umount};
use weft_cluster::in_mounts_of;

use super::{Devices, TEAM, claims, pod};
use crate::test_cluster::report;

const NODE: &str = "node2";
const DIRECTORY: &str = "/var/run/cdi";

/// What an event of the pod says.
fn until_event(devices: &Devices, name: &str, texts: &[&str]) {
    let cluster = &devices.cluster;
    let of_pod = format!("--field-selector=involvedObject.name={name}");
    let path = "-o=jsonpath={.items[*].message}";
    let what = format!("an event of {name} says {texts:?}");
    cluster.wait_until(&what, || {
        let asked = ["get", "events", "--namespace", TEAM, &of_pod, path];
        let said = cluster.inner.kubectl(&asked).ok()?;
        texts.iter().all(|text| said.contains(text)).then_some(())
    });
}

/// As the device plugin sees it, from now on.
fn change(devices: &Devices, change: impl FnOnce() -> nix::Result<()> + Send) {
    let plugin = devices.plugin(NODE).as_raw().cast_unsigned();
    in_mounts_of(plugin, change).unwrap().unwrap();
}

fn end(devices: &Devices, pods: &[&str], begun: Instant, what: &str) {
    for name in pods {
        devices.wait_for(TEAM, name);
        let shown = devices.run((TEAM, name), &["ibv_devinfo"]);
        assert!(shown.contains("PORT_ACTIVE"), "{shown}");
    }
    report(what, begun);
    for name in pods {
        devices.delete(TEAM, name);
    }
}

pub(super) fn a_pod_says_that_files_for_the_container_runtime_have_no_room_and_runs_when_they_have(
    devices: &Devices,
) {
    let cluster = &devices.cluster;
    cluster.apply(&claims::template());
    change(devices, || {
        let size = Some("size=4k");
        let (kind, flags) = (Some("tmpfs"), MsFlags::empty());
        mount(Some("full"), DIRECTORY, kind, flags, size)?;
        fs::write(format!("{DIRECTORY}/other"), [0; 4096]).map_err(|_| nix::Error::EIO)
    });
    cluster.apply(&pod(TEAM, "by-resource", NODE, 1));
    cluster.apply(&claims::pod("by-claim", NODE));
    for name in ["by-resource", "by-claim"] {
        let texts = [
            "No space left on device",
            "make room in the node's directory for these files (devices.cdiPath",
        ];
        until_event(devices, name, &texts);
    }
    let begun = Instant::now();
    change(devices, || umount(DIRECTORY));
    let what = "there is room for files again, to the pods Ready";
    end(devices, &["by-resource", "by-claim"], begun, what);
}

pub(super) fn a_pod_says_that_files_for_the_container_runtime_cannot_be_written_and_runs_when_they_can(
    devices: &Devices,
) {
    let cluster = &devices.cluster;
    let remount = |flags: MsFlags| {
        let flags = MsFlags::MS_REMOUNT | MsFlags::MS_BIND | flags;
        let none = None::<&str>;
        mount(none, DIRECTORY, none, flags, none)
    };
    // A pod that has the device of one that has just gone finds its file there.
    cluster.wait_until("no pod of the node has a device", || {
        (devices.made(NODE, "vdev-") == [0, 0]).then_some(())
    });
    change(devices, || remount(MsFlags::MS_RDONLY));
    cluster.apply(&pod(TEAM, "by-resource", NODE, 1));
    cluster.apply(&claims::pod("by-claim", NODE));
    for name in ["by-resource", "by-claim"] {
        let texts = [
            "Read-only file system",
            "make the node's directory for these files (devices.cdiPath",
        ];
        until_event(devices, name, &texts);
    }
    let begun = Instant::now();
    change(devices, || remount(MsFlags::empty()));
    let what = "files can be written again, to the pods Ready";
    end(devices, &["by-resource", "by-claim"], begun, what);
}

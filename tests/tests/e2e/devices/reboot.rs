//! What another boot of a node has left.

use std::fs;

use serde_json::json;

use super::{Devices, PER_NODE, TEAM, pod};

/// As where the directory outlives a boot, and where one was cut off while it was written.
pub(super) fn files_of_another_boot_for_the_container_runtime_do_no_harm(devices: &Devices) {
    let cluster = &devices.cluster;
    let directory = format!("/proc/{}/root/var/run/cdi", devices.plugin("node2"));
    let gone = json!({
        "cdiVersion": "0.6.0",
        "kind": "weft.dev/vdev",
        "devices": [{"name": "vdev-00001", "containerEdits": {"mounts": [
            {"hostPath": "/run/weft/devices/of-another-boot", "containerPath": "/dev/weft/weft0"},
        ]}}],
    });
    for (id, text) in [
        ("vdev-00000", r#"{"cdiVersion": "0.6"#),
        ("vdev-00001", &gone.to_string()),
    ] {
        fs::write(format!("{directory}/weft.dev-vdev_{id}.json"), text).unwrap();
    }
    // One of each is among the devices of the pod, or none is left that it could have.
    cluster.apply(&pod(TEAM, "all", "node2", PER_NODE));
    devices.wait_for(TEAM, "all");
    let shown = devices.run((TEAM, "all"), &["ibv_devices"]);
    assert_eq!(shown.matches("weft").count() as u64, PER_NODE, "{shown}");
    devices.delete(TEAM, "all");
    for (id, text) in [
        ("vdev-00000", "half a file"),
        ("vdev-00001", &gone.to_string()),
    ] {
        fs::write(format!("{directory}/weft.dev-vdev_{id}.json"), text).unwrap();
    }
    cluster.wait_until("what no pod has is removed", || {
        (devices.made("node2", "vdev-") == [0, 0]).then_some(())
    });
}

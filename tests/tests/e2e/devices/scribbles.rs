//! A pod that overwrites the rings of its device.

use std::process::Stdio;
use std::time::Instant;

use super::{Devices, TEAM};
use crate::harness::processes;
use crate::test_cluster::report;

/// Runs in the pod.
const SCRIBBLES: &str = include_str!("scribbles.sh");

pub(super) fn a_pod_that_scribbles_over_its_rings_hurts_no_other_pod(devices: &Devices) {
    let cluster = &devices.cluster;
    let [a, b] = devices.two_pods();
    devices.start(TEAM, "scribbles", "node0");
    let scribbles = (TEAM, "scribbles");
    let engines = || {
        let mut engines = processes(cluster, "weft-engine");
        engines.sort_unstable();
        engines
    };
    let before = engines();
    let begun = Instant::now();
    let mut scribbling = devices
        .command(scribbles, &["sh", "-c", SCRIBBLES])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    cluster.wait_until("it has scribbled", || {
        let mut has = devices.command(scribbles, &["test", "-e", "/dev/shm/scribbled"]);
        has.output().unwrap().status.success().then_some(())
    });
    for (server, client, words) in [
        (
            a,
            b,
            &["ibv_rc_pingpong", "-c", "-g", "0", "-n", "10000"][..],
        ),
        (b, a, &["ib_write_bw", "-D", "5"]),
    ] {
        let said = devices.pair(server, client, words);
        said.unwrap_or_else(|said| cluster.fail(&format!("{words:?}: {said}")));
    }
    assert!(scribbling.try_wait().unwrap().is_none(), "it goes on still");
    devices.run(scribbles, &["touch", "/dev/shm/enough"]);
    let said = scribbling.wait_with_output().unwrap();
    assert!(said.status.success(), "{said:?}");
    let said = String::from_utf8_lossy(&said.stdout).into_owned();
    let times = said.split(' ').find_map(|word| word.parse::<u64>().ok());
    assert!(times > Some(100), "{said}");
    report(
        &format!("other pods beside one that has {}", said.trim()),
        begun,
    );
    assert_eq!(engines(), before, "an engine has ended");
    // A program that opens the device anew gets rings of its own.
    let said = devices.pair(a, scribbles, &["ibv_rc_pingpong", "-c", "-g", "0"]);
    said.unwrap_or_else(|said| cluster.fail(&said));
    devices.delete(TEAM, "scribbles");
}

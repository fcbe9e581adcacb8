//! An agent of a node with several NICs. The test runs itself again in a child process, with a network of its own.

use std::process::Command;

use weft_proto::operator::v1::{Nics, NodeReport};

use crate::operator::Operator;
use crate::support::Lab;

const TEST: &str =
    "nics::a_nic_that_goes_down_and_comes_up_ends_nothing_and_a_new_one_starts_the_agent_anew";
/// Set in the child process.
const MARK: &str = "WEFT_TEST_NICS";

#[test]
fn a_nic_that_goes_down_and_comes_up_ends_nothing_and_a_new_one_starts_the_agent_anew() {
    if std::env::var_os(MARK).is_some() {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        return runtime.block_on(go_down_and_up());
    }
    let ways: [&[&str]; 2] = [&["-nm", "--propagation", "private"], &["-Urnm"]];
    let may = |way: &&&[&str]| {
        let tried = Command::new("unshare").args(**way).arg("true").output();
        tried.is_ok_and(|output| output.status.success())
    };
    let way = ways.iter().find(may);
    let way = way.expect("this test needs unshare(1) and the right to make network namespaces");
    let output = Command::new("unshare")
        .args(*way)
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", TEST, "--nocapture"])
        .env(MARK, "1")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let log = String::from_utf8_lossy(&output.stderr);
    let is_run = output.status.success() && text.contains("1 passed");
    assert!(is_run, "{text}{log}");
}

/// Runs ip(8) once for each line.
fn ip(lines: &str) {
    lines.lines().for_each(|line| run("ip", line));
}

fn run(program: &str, arguments: &str) {
    let words = arguments.split_whitespace();
    let status = Command::new(program).args(words).status();
    assert!(status.unwrap().success(), "{program} {arguments}");
}

/// Which of the NICs are up.
fn up(report: &NodeReport) -> Vec<(&str, bool)> {
    let nics = report.nics.iter();
    nics.map(|nic| (nic.interface.as_str(), nic.up)).collect()
}

async fn go_down_and_up() {
    // The one that is there is of the network of the parent process.
    run("mount", "-t sysfs weft-test /sys");
    ip("link set lo up");
    for number in 0..3 {
        ip(&format!(
            "link add rail{number} type veth peer name far{number}\n\
             address add 192.168.{number}.5/24 dev rail{number}\n\
             link set far{number} up"
        ));
    }
    ip("link set rail0 up\nlink set rail1 up");
    let operator = Operator::new(Lab::new());
    let running = operator.serve().await;
    operator.set_engine("1", |engine| {
        // One for each of the NICs that there will be.
        engine.ports.as_mut().unwrap().count = 3;
        engine.nics = Some(Nics {
            include: vec!["rail*".to_owned()],
            exclude: Vec::new(),
        });
    });
    let member = operator.join(0).await;
    let all_up =
        |report: &NodeReport| report.ready && up(report) == [("rail0", true), ("rail1", true)];
    let report = operator.report("it starts with both", all_up).await;
    assert_eq!((&*report.data_address, report.mtu), ("192.168.0.5", 1500));
    assert_eq!(report.findings, []);
    // As when a cable is pulled, and then as when somebody sets it down.
    for down in ["link set far1 down", "link set rail1 down"] {
        ip(down);
        let is_down = |report: &NodeReport| up(report) == [("rail0", true), ("rail1", false)];
        operator.report("one is down", is_down).await;
        // More reports than after which the agent ends for a changed interface.
        for _ in 0..8 {
            let report = operator.report("it goes on", is_down).await;
            let [finding] = &report.findings[..] else {
                panic!("{down}: {:?}", report.findings);
            };
            assert!(report.ready && finding.reason == "NicDown", "{finding:?}");
            assert!(
                finding.message.contains("rail1 (192.168.1.5)"),
                "{finding:?}"
            );
        }
        let metrics = operator.lab().await.get(0, "/metrics").await;
        for (interface, address, value) in
            [("rail0", "192.168.0.5", 1), ("rail1", "192.168.1.5", 0)]
        {
            let line =
                format!("weft_nic_up{{interface=\"{interface}\",address=\"{address}\"}} {value}\n");
            assert!(metrics.contains(&line), "{line} is not in:\n{metrics}");
        }
    }
    ip("link set rail1 up\nlink set far1 up");
    let report = operator.report("both are up again", all_up).await;
    assert_eq!(report.findings, []);
    assert_eq!(operator.streams(), 1, "the agent was not started anew");
    ip("link set rail2 up");
    let ended = member.ended().await.unwrap_err().to_string();
    assert!(ended.contains("rail2 (192.168.2.5"), "{ended}");
    running.stop().await;
}

//! Engines and agents of two nodes where a network does not pass everything, and over several NICs.
//!
//! This program starts itself again in namespaces, before any thread exists; where that is refused, it fails and says what
//! would allow it.

// Not `#[test]` functions, so clippy does not see that these are tests.
#![allow(clippy::unwrap_used, clippy::print_stderr)]

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::net::IpAddr;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use libtest_mimic::{Arguments, Failed, Trial};
use tokio::runtime::Runtime;
use weft_cli::stage::{Access, CongestionControl, Ground, Link, PathPolicy, Root, Setup, Stage};
use weft_fabric::isolation::{self, Entered};
use weft_fabric::{Fabric, Spec};
use weft_planner::Strategy;
use weft_proto::agent::v1::{Algorithm, Overwrite, Symlinks};
use weft_tests::program;
use weft_transfer::{LeaderContext, Runner, Timing};
use weft_transfer_engine::{
    LinkChoice, LinkInUse, LinkKind, MemoryRegion, MrDescriptor, Operation, Options, Outcome,
    SingleWrite, TransferEngine, TransferEngineConfig,
};

/// Nothing here takes a tenth of this on an idle machine.
const PATIENCE: Duration = Duration::from_secs(60);
const BYTES: u64 = 100_000;

fn main() {
    match isolation::enter() {
        Ok(Entered::Inside) => {}
        Ok(Entered::Ended(status)) => std::process::exit(status.into()),
        Err(refused) => {
            eprintln!("{refused}");
            std::process::exit(1);
        }
    }
    let trials = vec![
        Trial::test(
            "where_udp_is_blocked_peers_that_are_called_at_once_are_reached_over_tcp",
            where_udp_is_blocked,
        ),
        Trial::test(
            "a_job_goes_over_the_link_that_passes_to_each_node_and_says_why",
            a_job_over_the_link_that_passes,
        ),
        Trial::test(
            "a_job_whose_link_is_chosen_by_name_fails_where_that_does_not_pass",
            a_job_over_a_link_by_name,
        ),
        Trial::test(
            "where_only_set_up_passes_connecting_fails_and_nothing_is_remembered_of_it",
            where_only_set_up_passes,
        ),
        Trial::test(
            "over_udp_all_nics_carry_data_but_one_that_is_unplugged",
            || nics(LinkKind::Udp),
        ),
        Trial::test(
            "over_tcp_all_nics_carry_data_but_one_that_is_unplugged",
            || nics(LinkKind::Tcp),
        ),
        Trial::test(
            "engines_with_af_xdp_by_name_reach_each_other_and_those_with_udp",
            af_xdp_by_name,
        ),
        Trial::test(
            "a_way_that_is_open_in_one_direction_only_is_not_taken_and_ends_what_was_on_it_by_name",
            open_in_one_direction,
        ),
        Trial::test(
            "packets_that_no_switch_passes_are_sent_again_as_shorter_ones",
            where_switches_pass_short_packets_only,
        ),
        Trial::test(
            "an_interface_that_is_renamed_goes_on_and_one_without_its_address_is_waited_for",
            renamed_and_addressed_anew,
        ),
    ];
    let mut arguments = Arguments::from_args();
    // A fabric has names of its own.
    arguments.test_threads = Some(1);
    libtest_mimic::run(&arguments, trials).exit();
}

fn fabric(nics: usize) -> Fabric {
    let spec = Spec {
        nodes: 3,
        nics,
        leaves: 1,
        spines: 1,
        ..Spec::default()
    };
    Fabric::build(&spec).unwrap()
}

/// An engine in a node, with memory.
struct End {
    engine: TransferEngine,
    memory: (MemoryRegion, MrDescriptor),
}

impl End {
    fn start(fabric: &Fabric, node: usize) -> Self {
        Self::start_over(fabric, node, TransferEngineConfig::default())
    }

    fn start_over(fabric: &Fabric, node: usize, config: TransferEngineConfig) -> Self {
        let config = TransferEngineConfig {
            nics: fabric
                .node(node)
                .nics
                .iter()
                .map(|it| (*it).into())
                .collect(),
            mtu: fabric.spec().mtu as u16,
            // Longer than all else: what waits for it is found.
            cancel_timeout: PATIENCE,
            ..config
        };
        let started = fabric.in_node(node, || TransferEngine::start(config));
        let engine = started.unwrap().unwrap();
        let memory = engine.alloc(BYTES).unwrap();
        Self { engine, memory }
    }

    fn write(&self, to: &Self) -> Operation {
        let write = SingleWrite {
            source: (self.memory.0.clone(), 0),
            destination: (to.memory.1.clone(), 0),
            bytes: BYTES,
            immediate: None,
        };
        let submitted = self
            .engine
            .submit_single_write(&write, Options::within(PATIENCE));
        submitted.unwrap()
    }

    /// The link to a peer, once it is connected.
    fn link(&self, to: &Self) -> LinkInUse {
        loop {
            if let Some(link) = self.engine.link(to.engine.main_address()) {
                return link;
            }
            std::thread::yield_now();
        }
    }
}

/// Has a node drop what comes in and matches.
fn block(fabric: &Fabric, node: usize, what: &str) {
    let rules = format!(
        "table inet block {{\nchain input {{\ntype filter hook input priority 0\n{what} drop\n}}\n}}\n"
    );
    nft(fabric, node, &rules);
}

fn nft(fabric: &Fabric, node: usize, rules: &str) {
    let mut command = fabric.command(node, "nft");
    let mut child = command
        .args(["-f", "-"])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    input.write_all(rules.as_bytes()).unwrap();
    drop(input);
    assert!(child.wait().unwrap().success());
}

/// The time depends on how long set-up took.
fn assert_udp_is_blocked(link: &LinkInUse) {
    let said = link.to_string();
    let is_named = said.starts_with("tcp: udp did not pass 64 KiB in ") && said.ends_with(" ms");
    assert!(is_named, "{said}");
}

fn where_udp_is_blocked() -> Result<(), Failed> {
    let fabric = fabric(1);
    let [a, b, c] = [0, 1, 2].map(|node| End::start(&fabric, node));
    for node in [1, 2] {
        block(&fabric, node, "meta l4proto udp");
    }
    let writes = [a.write(&b), a.write(&c)];
    for write in &writes {
        assert_eq!(write.wait(), Outcome::Done);
    }
    for peer in [&b, &c] {
        assert_udp_is_blocked(&a.link(peer));
    }
    Ok(())
}

/// Agents at the nodes of a fabric, which use this link.
fn stage(fabric: &Arc<Fabric>, home: &Path, link: Link) -> Stage {
    let root = |node| Root {
        name: "data",
        directory: home.join(format!("root{node}")),
        access: Access::ReadWrite,
    };
    let setup = Setup {
        name: "links",
        ground: Ground::Fabric(Arc::clone(fabric)),
        program: program("weft-agent"),
        home: home.join("agents"),
        roots: (0..fabric.spec().nodes).map(root).collect(),
        paths: 16,
        policy: PathPolicy::default(),
        link,
        encryption: weft_cli::stage::Encryption::Off,
        congestion: CongestionControl::default(),
        devices: None,
        stays: false,
    };
    Stage::set(setup).unwrap()
}

/// Sends a file from node 0 to the others, to the end of the job.
async fn send(stage: &Stage, backoff_limit: u32) -> Runner {
    fs::write(stage.root(0).join("model"), vec![7; 4 << 20]).unwrap();
    let mut runner = stage.begin(weft_transfer::Spec {
        uid: "job".to_owned(),
        name: None,
        source: stage.place(0, "model"),
        symlinks: Symlinks::Follow,
        object: None,
        destinations: (1..stage.nodes())
            .map(|node| stage.place(node, "model"))
            .collect(),
        topology: stage.topology(),
        strategy: Strategy::Direct,
        payload_share: stage.ground().payload_share(),
        algorithm: Algorithm::Blake3,
        expect: String::new(),
        overwrite: Overwrite::IfDifferent,
        backoff_limit,
        timing: Timing::INTERACTIVE,
        leader: LeaderContext::ONLY,
    });
    while !runner.transfer().is_over() {
        runner.run_once().await;
    }
    runner
}

/// The data port of a node over TCP is the first one of its range.
fn block_tcp(fabric: &Fabric, stage: &Stage, node: usize) {
    let port = stage.ground().addresses(node).first_port;
    block(fabric, node, &format!("tcp dport {port}"));
}

fn a_job_over_the_link_that_passes() -> Result<(), Failed> {
    let (fabric, home) = (Arc::new(fabric(1)), tempfile::tempdir()?);
    let mut stage = stage(&fabric, home.path(), Link::Auto);
    Runtime::new()?.block_on(async {
        stage.start_all().await.unwrap();
        block(&fabric, 1, "meta l4proto udp");
        block_tcp(&fabric, &stage, 2);
        let runner = send(&stage, 0).await;
        let job = runner.transfer();
        assert!(job.is_complete(), "{:?}", job.source_fault());
        let (name, reason) = job.link();
        assert_eq!(name, "tcp, udp");
        let (tcp, udp) = reason.split_once("; ").unwrap();
        for (said, link, other, node) in [(tcp, "tcp", "udp", 1), (udp, "udp", "tcp", 2)] {
            let begin = format!("{link} to node{node}: {other} did not pass 64 KiB in ");
            assert!(said.starts_with(&begin), "{reason}");
        }
        Ok(())
    })
}

fn a_job_over_a_link_by_name() -> Result<(), Failed> {
    let (fabric, home) = (Arc::new(fabric(1)), tempfile::tempdir()?);
    let mut stage = stage(&fabric, home.path(), Link::Udp);
    Runtime::new()?.block_on(async {
        stage.start_all().await.unwrap();
        block(&fabric, 1, "meta l4proto udp");
        let runner = send(&stage, 0).await;
        let job = runner.transfer();
        let nodes: Vec<String> = job
            .destinations()
            .map(|it| format!("{:?}", it.phase))
            .collect();
        assert!(nodes[0].contains("PeerStalled"), "{nodes:?}");
        assert!(nodes[1].contains("Verified"), "{nodes:?}");
        let chosen = ("udp".to_owned(), "chosen by transport.link".to_owned());
        assert_eq!(job.link(), chosen);
        Ok(())
    })
}

fn where_only_set_up_passes() -> Result<(), Failed> {
    let fabric = fabric(1);
    let [a, b] = [0, 1].map(|node| End::start(&fabric, node));
    // Set-up has the first port of the range, and the link tcp the next one.
    block(&fabric, 1, "meta l4proto udp");
    nft(
        &fabric,
        1,
        "add rule inet block input tcp dport 20001 drop\n",
    );
    let Outcome::Failed(failure) = a.write(&b).wait() else {
        panic!("nothing passes");
    };
    assert_eq!(failure.cause.reason(), "Unreachable");
    let said = failure.cause.to_string();
    assert!(said.contains("nothing over udp and tcp"), "{said}");
    nft(&fabric, 1, "delete table inet block\n");
    assert_eq!(a.write(&b).wait(), Outcome::Done);
    // The kernel tries TCP again after a second.
    assert_eq!(a.link(&b).link, LinkKind::Udp);
    Ok(())
}

/// A session's set-up connection is given up after ten seconds of silence: an outage of a NIC is longer once.
const LONGER_THAN_SET_UP: Duration = Duration::from_secs(12);

fn nics(link: LinkKind) -> Result<(), Failed> {
    let fabric = fabric(2);
    let start = |node| {
        let config = TransferEngineConfig {
            link: LinkChoice::Only(link),
            ..TransferEngineConfig::default()
        };
        End::start_over(&fabric, node, config)
    };
    let [a, b] = [0, 1].map(start);
    let sent = || {
        let pairs = a.engine.nic_pairs().unwrap().into_iter();
        let of_b = pairs.filter(|pair| fabric.node(1).nics.iter().any(|it| *it == pair.there));
        of_b.map(|pair| ((pair.here, pair.there), pair.sent_chunks))
            .collect::<BTreeMap<_, _>>()
    };
    // Writes until all pairs of NICs carry data but those with one that is unplugged, for this long at least.
    let write = |unplugged: &[IpAddr], at_least: Duration| {
        let begun = Instant::now();
        loop {
            let before = sent();
            for _ in 0..100 {
                assert_eq!(a.write(&b).wait(), Outcome::Done);
            }
            let after = sent();
            let is_right = after.iter().all(|(pair, sent)| {
                let is_used = *sent > before.get(pair).copied().unwrap_or(0);
                let is_unplugged = [pair.0, pair.1].iter().any(|nic| unplugged.contains(nic));
                is_used != is_unplugged
            });
            if after.len() == 4 && is_right && begun.elapsed() >= at_least {
                return;
            }
            assert!(begun.elapsed() < PATIENCE, "{:?}", a.engine.nic_pairs());
        }
    };
    write(&[], Duration::ZERO);
    let outages = [
        (1, 1, Duration::ZERO),
        (0, 1, Duration::ZERO),
        (0, 0, LONGER_THAN_SET_UP),
    ];
    for (node, nic, outage) in outages {
        fabric.unplug_nic(node, nic).unwrap();
        write(&[fabric.node(node).nics[nic].into()], outage);
        // Connecting does without it, too.
        let c = start(2);
        assert_eq!(a.write(&c).wait(), Outcome::Done);
        fabric.plug_nic(node, nic).unwrap();
        write(&[], Duration::ZERO);
    }
    Ok(())
}

fn udp_only() -> TransferEngineConfig {
    TransferEngineConfig {
        link: LinkChoice::Only(LinkKind::Udp),
        stall_timeout: Duration::from_secs(2),
        ..TransferEngineConfig::default()
    }
}

fn af_xdp_by_name() -> Result<(), Failed> {
    let spec = Spec {
        nodes: 3,
        leaves: 1,
        spines: 1,
        mtu: 1500,
        ..Spec::default()
    };
    let fabric = Fabric::build(&spec).unwrap();
    let config = || TransferEngineConfig {
        link: "xdp".parse().unwrap(),
        ..TransferEngineConfig::default()
    };
    let start_again = |node: usize| {
        let config = TransferEngineConfig {
            nics: vec![fabric.node(node).data_address.into()],
            ..config()
        };
        let started = fabric.in_node(node, || TransferEngine::start(config));
        started.unwrap().map(drop).unwrap_err().to_string()
    };
    if isolation::is_own_user_namespace() {
        let refused = start_again(0);
        assert!(refused.contains("AF_XDP"), "{refused}");
        return Ok(());
    }
    let [a, b] = [0, 1].map(|node| End::start_over(&fabric, node, config()));
    // The NICs have its program.
    for node in [0, 1] {
        let refused = start_again(node);
        assert!(refused.contains("another XDP program"), "{refused}");
    }
    let over_udp = End::start_over(&fabric, 2, udp_only());
    let auto = End::start(&fabric, 2);
    for (from, to, link) in [
        (&a, &b, LinkKind::Xdp),
        (&a, &over_udp, LinkKind::Xdp),
        (&a, &auto, LinkKind::Xdp),
        (&over_udp, &b, LinkKind::Udp),
        (&auto, &b, LinkKind::Udp),
    ] {
        from.memory.0.write(0, &[7; BYTES as usize]).unwrap();
        to.memory.0.write(0, &[0; BYTES as usize]).unwrap();
        assert_eq!(from.write(to).wait(), Outcome::Done);
        let mut arrived = vec![0; BYTES as usize];
        to.memory.0.read(0, &mut arrived).unwrap();
        assert!(arrived.iter().all(|byte| *byte == 7));
        assert_eq!(from.link(to).link, link);
    }
    Ok(())
}

fn open_in_one_direction() -> Result<(), Failed> {
    let fabric = fabric(1);
    let [a, b] = [0, 1].map(|node| End::start(&fabric, node));
    let [c, d] = [0, 1].map(|node| End::start_over(&fabric, node, udp_only()));
    assert_eq!(c.write(&d).wait(), Outcome::Done);
    // What node 0 sends arrives, and no answer comes back.
    block(&fabric, 0, "meta l4proto udp");
    assert_eq!(a.write(&b).wait(), Outcome::Done);
    assert_udp_is_blocked(&a.link(&b));
    let Outcome::Failed(failure) = c.write(&d).wait() else {
        panic!("nothing comes back");
    };
    let path = failure.path.unwrap_or_default();
    let there = fabric.node(1).data_address.to_string();
    assert!(path.contains(&there), "{path}");
    assert_eq!(failure.cause.reason(), "Stalled", "{}", failure.cause);
    Ok(())
}

fn where_switches_pass_short_packets_only() -> Result<(), Failed> {
    let spec = Spec {
        nodes: 2,
        leaves: 2,
        spines: 2,
        // With a rate, switches see single packets.
        rate: Some(10_000_000_000),
        ..Spec::default()
    };
    let fabric = Fabric::build(&spec).unwrap();
    let [a, b] = [0, 1].map(|node| End::start_over(&fabric, node, udp_only()));
    assert_eq!(a.write(&b).wait(), Outcome::Done);
    for spine in 0..spec.spines {
        fabric.drop_longer_than(spine, Some(1500)).unwrap();
        assert_eq!(a.write(&b).wait(), Outcome::Done);
    }
    Ok(())
}

fn renamed_and_addressed_anew() -> Result<(), Failed> {
    let fabric = fabric(1);
    let [a, b] = [0, 1].map(|node| End::start_over(&fabric, node, udp_only()));
    assert_eq!(a.write(&b).wait(), Outcome::Done);
    let address = fabric.node(0).data_address;
    let ip = |lines: &str| {
        for line in lines.lines() {
            let words = line.split_whitespace();
            let status = fabric.command(0, "ip").args(words).status().unwrap();
            assert!(status.success(), "{line}");
        }
    };
    let routes = format!(
        "neigh replace 10.87.0.1 lladdr 02:57:46:02:00:00 dev rail7 nud permanent\n\
         route add 10.87.0.1/32 dev rail7 scope link\n\
         route add 10.87.0.0/16 via 10.87.0.1 dev rail7 src {address}"
    );
    ip(&format!(
        "link set data0 down\nlink set data0 name rail7\nlink set rail7 up\n{routes}"
    ));
    assert_eq!(a.write(&b).wait(), Outcome::Done);
    ip(&format!("addr del {address}/32 dev rail7"));
    let waiting = a.write(&b);
    ip(&format!("addr add {address}/32 dev rail7"));
    // The kernel has removed the routes with the address.
    ip(&routes.replace("route add", "route replace"));
    assert_eq!(waiting.wait(), Outcome::Done);
    Ok(())
}

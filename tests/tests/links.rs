//! Engines of two nodes where a network does not pass everything, and over several NICs.
//!
//! This program starts itself again in namespaces, before any thread exists; where that is refused, it fails and says what
//! would allow it.

// Not `#[test]` functions, so clippy does not see that these are tests.
#![allow(clippy::unwrap_used, clippy::print_stderr)]

use std::io::Write as _;
use std::net::IpAddr;
use std::process::Stdio;
use std::time::{Duration, Instant};

use libtest_mimic::{Arguments, Failed, Trial};
use weft_fabric::isolation::{self, Entered};
use weft_fabric::{Fabric, Spec};
use weft_transfer_engine::{
    LinkChoice, LinkKind, MemoryRegion, MrDescriptor, Operation, Options, Outcome, SingleWrite,
    TransferEngine, TransferEngineConfig,
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
            "where_only_set_up_passes_connecting_fails_and_nothing_is_remembered_of_it",
            where_only_set_up_passes,
        ),
        Trial::test(
            "all_nics_carry_data_and_one_that_is_unplugged_is_done_without_over_udp",
            || nics(LinkKind::Udp),
        ),
        Trial::test(
            "all_nics_carry_data_and_one_that_is_unplugged_is_done_without_over_tcp",
            || nics(LinkKind::Tcp),
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
    fn link(&self, to: &Self) -> weft_transfer_engine::LinkInUse {
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
        assert_eq!(a.link(peer).to_string(), "tcp: the others do not pass");
    }
    Ok(())
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

fn nics(link: LinkKind) -> Result<(), Failed> {
    let fabric = fabric(2);
    let [a, b] = [0, 1].map(|node| {
        let config = TransferEngineConfig {
            link: LinkChoice::Only(link),
            ..TransferEngineConfig::default()
        };
        End::start_over(&fabric, node, config)
    });
    let live = |unplugged: &[IpAddr]| {
        let pairs = a.engine.nic_pairs().unwrap();
        assert_eq!(pairs.len(), 4, "{pairs:?}");
        pairs.iter().all(|pair| {
            let is_out = [pair.here, pair.there]
                .iter()
                .any(|nic| unplugged.contains(nic));
            assert!(pair.sent_chunks > 0 || is_out || pair.live_paths < pair.paths);
            (pair.live_paths == 0) == is_out
        })
    };
    let write_until = |unplugged: &[IpAddr]| {
        let begun = Instant::now();
        loop {
            for _ in 0..100 {
                assert_eq!(a.write(&b).wait(), Outcome::Done);
            }
            if live(unplugged) {
                return;
            }
            assert!(begun.elapsed() < PATIENCE, "{:?}", a.engine.nic_pairs());
        }
    };
    write_until(&[]);
    for (node, nic) in [(1, 1), (0, 0)] {
        fabric.unplug_nic(node, nic).unwrap();
        write_until(&[fabric.node(node).nics[nic].into()]);
        fabric.plug_nic(node, nic).unwrap();
        write_until(&[]);
    }
    Ok(())
}

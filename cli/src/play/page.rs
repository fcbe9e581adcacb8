//! `--ui`: the fabric's page, while it plays and until the user ends it.
//!
//! The address is one of the machine, and the small fabric is in namespaces of its own. So the first process listens
//! before it enters them and hands the listener down as its standard input, as inetd does: a socket stays in the network
//! namespace in which it was made.

mod agents;
mod server;

use std::{
    fs::File,
    io,
    net::{Ipv4Addr, SocketAddr, TcpListener},
    os::fd::AsFd,
    time::{Instant, SystemTime},
};

use nix::unistd::dup2_stdin;
use rustix::net::sockopt::socket_acceptconn;
use tokio::{sync::watch, task::AbortHandle};
use weft_page::{Destination, Fabric, Finding, Job, Leaf, Node, Phase};
use weft_transfer::{DestinationPhase, Transfer, TransferPhase};

use super::{FaultKind, progress::Rate};
use crate::stage::{Stage, node_name};

/// What the page calls the small fabric.
const NAME: &str = "play";

/// Listens at a port of 127.0.0.1, or a free one for 0, on standard input. A copy of this program has the listener
/// there already.
pub(super) fn listen(port: u16) -> io::Result<()> {
    let input = io::stdin();
    if socket_acceptconn(input.as_fd()).unwrap_or(false) {
        return Ok(());
    }
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port))?;
    Ok(dup2_stdin(&listener)?)
}

/// Takes the listener from standard input, so that no program started later has it.
pub(super) fn take_listener() -> io::Result<TcpListener> {
    let listener = TcpListener::from(io::stdin().as_fd().try_clone_to_owned()?);
    dup2_stdin(File::open("/dev/null")?)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// The page, served until this is dropped.
#[derive(Debug)]
pub(super) struct Page {
    address: SocketAddr,
    fabric: watch::Sender<Fabric>,
    job: Job,
    /// Of the bytes that destinations have got.
    rate: Rate,
    tasks: Vec<AbortHandle>,
}

impl Page {
    /// Serves at the listener; nothing is known of the fabric yet.
    pub(super) fn serve(listener: TcpListener) -> io::Result<Self> {
        let address = listener.local_addr()?;
        let fabric = watch::Sender::new(Fabric::new(NAME, SystemTime::now()));
        let listener = tokio::net::TcpListener::from_std(listener)?;
        let served = tokio::spawn(server::serve(listener, fabric.subscribe()));
        Ok(Self {
            address,
            fabric,
            job: Job::default(),
            rate: Rate::default(),
            tasks: vec![served.abort_handle()],
        })
    }

    /// Where a browser finds it.
    pub(super) fn url(&self) -> String {
        format!("http://{}/", self.address)
    }

    /// From now on it shows the nodes of a stage.
    pub(super) fn show_nodes(&mut self, stage: &Stage) {
        let ground = stage.ground();
        let spines = ground.fabric().map_or(0, |fabric| fabric.spec().spines);
        self.fabric.send_modify(|fabric| {
            for node in ground.topology().nodes {
                let at = fabric.leaves.iter().position(|leaf| leaf.name == node.leaf);
                let at = at.unwrap_or_else(|| {
                    let (name, nodes) = (node.leaf, Vec::new());
                    fabric.leaves.push(Leaf { name, nodes });
                    fabric.leaves.len() - 1
                });
                let name = node.name;
                fabric.leaves[at].nodes.push(Node {
                    name,
                    ..Node::default()
                });
            }
            fabric.spines = Some(spines);
        });
        let watched = tokio::spawn(agents::watch(ground.clone(), self.fabric.clone()));
        self.tasks.push(watched.abort_handle());
    }

    /// The name of the data, and where it goes.
    pub(super) fn begin_job(&mut self, name: &str, to: &[usize]) {
        let to = to.iter().map(|i| Destination {
            node: node_name(*i),
            ..Destination::default()
        });
        self.job = Job {
            name: name.to_owned(),
            from: node_name(0),
            destinations: to.len(),
            to: to.collect(),
            ..Job::default()
        };
        self.fabric
            .send_modify(|fabric| fabric.jobs = vec![self.job.clone()]);
    }

    /// Shows how the job stands.
    pub(super) fn show_job(&mut self, transfer: &Transfer) {
        self.rate.note(Instant::now(), transfer.bytes_received());
        let of_one = transfer.listing().map(|_| transfer.bytes());
        let job = &mut self.job;
        job.phase = phase(transfer);
        job.rate = match job.phase {
            Phase::Complete | Phase::Failed => 0,
            _ => self.rate.per_second(),
        };
        job.done = transfer.bytes_verified();
        job.total = of_one.map(|bytes| bytes.saturating_mul(job.destinations as u64));
        job.to = transfer
            .destinations()
            .map(|one| destination(one, of_one))
            .collect();
        job.reason = transfer.destinations().find_map(reason).unwrap_or_default();
        self.fabric
            .send_modify(|fabric| fabric.jobs.clone_from_slice(std::slice::from_ref(job)));
    }

    /// A fault that was asked for has happened. Of an agent that was killed its silence tells.
    pub(super) fn add_fault(&mut self, kind: FaultKind, index: usize) {
        let target = kind.target(index);
        let problem = match kind {
            FaultKind::FailSpine => format!("{target} drops everything"),
            FaultKind::FailNic => format!("the last NIC of {target} has no carrier"),
            FaultKind::KillNode | FaultKind::RestartNode => return,
        };
        let fix = format!("leave out --{}, which asked for it", kind.name());
        self.fabric
            .send_modify(|fabric| fabric.findings.push(Finding { problem, fix }));
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        self.tasks.iter().for_each(AbortHandle::abort);
    }
}

fn phase(transfer: &Transfer) -> Phase {
    match transfer.phase() {
        TransferPhase::Listing => Phase::Planning,
        TransferPhase::Preparing => Phase::Preparing,
        TransferPhase::Running | TransferPhase::Ending => Phase::Transferring,
        TransferPhase::BetweenAttempts => Phase::Waiting,
        TransferPhase::Over if transfer.is_complete() => Phase::Complete,
        TransferPhase::Over => Phase::Failed,
    }
}

fn destination(one: &weft_transfer::Destination, of_one: Option<u64>) -> Destination {
    let (state, is_verified) = match &one.phase {
        DestinationPhase::InProgress => ("Transferring", false),
        DestinationPhase::Retrying(_) => ("Pending", false),
        DestinationPhase::Verified { .. } => ("Verified", true),
        DestinationPhase::Failed(_) => ("Failed", false),
    };
    let part = |of_one: u64| match (is_verified, of_one) {
        (true, _) => 1.0,
        (false, 0) => 0.0,
        (false, of_one) => one.bytes as f64 / of_one as f64,
    };
    Destination {
        node: one.location.node.clone(),
        done: of_one.map(part),
        state: state.to_owned(),
    }
}

fn reason(one: &weft_transfer::Destination) -> Option<String> {
    match &one.phase {
        DestinationPhase::Retrying(failure) | DestinationPhase::Failed(failure) => Some(format!(
            "{}: {}: {}",
            one.location.node, failure.reason, failure.message
        )),
        DestinationPhase::InProgress | DestinationPhase::Verified { .. } => None,
    }
}

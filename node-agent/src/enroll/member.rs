//! The loop that keeps the right agent running: enrolled, with the configuration in force, on the
//! interface that is there.
//!
//! An agent is replaced within the process and never while a job runs. What cannot be used changes
//! nothing: the agent goes on as it is, and the operator is told why.

use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::sync::watch;
use tokio::time::{Instant, Interval};
use weft_identity::cause::chain;
use weft_proto::operator::v1::{Finding, NodeConfig, NodeReport};
use x509_parser::time::ASN1Time;

use crate::agent::{Agent, AgentError};
use crate::config::Config;
use crate::copies::{CopyWatcher, Listing};
use crate::enroll::interface::{self, Nic};
use crate::enroll::keys::{Keys, Validity};
use crate::enroll::lobby::Lobby;
use crate::enroll::report::Reporter;
use crate::enroll::trouble::Tries;
use crate::enroll::{EnrollError, Settings, Trouble, assigned, operator};
use crate::fence::Fence;
use crate::files::FileError;
use crate::guard;
use crate::opener::Opener;

/// A configuration that cannot be used.
const CONFIG_REFUSED: &str = "ConfigRefused";
/// A root whose directory is not there.
const ROOT_MISSING: &str = "RootMissing";
/// A root whose directory does not answer.
const ROOT_HUNG: &str = "RootHung";
/// Findings that keep no agent from working.
const HARMLESS: [&str; 7] = [
    CONFIG_REFUSED,
    ROOT_MISSING,
    ROOT_HUNG,
    "RestartPending",
    "NotRenewed",
    MISUSED,
    COPIES_FULL,
];
/// Somebody shows a node's certificate for what it is not for; the agent refuses, and works.
const MISUSED: &str = "CertificateMisused";
/// More copies than a report lists.
const COPIES_FULL: &str = "CopiesFull";

/// Joins the fabric and works in it until `stop`.
pub async fn run(settings: Settings, stop: impl Future<Output = ()>) -> Result<(), EnrollError> {
    let mut stop = pin!(stop);
    let settings = Arc::new(settings);
    let directory = settings.state.clone();
    let keys = guard::blocking("keys", move || Keys::open(&directory)).await?;
    let keys = Arc::new(keys);
    let lobby = Lobby::open(settings.metrics_listen()).await?;
    tracing::info!(
        node = %settings.node, fabric = %settings.fabric, operator = settings.operator, "enrolling"
    );
    let fence = Arc::new(Fence::default());
    let mut tries = Tries::new("enroll", &settings.node, settings.pace);
    let enrolled = tokio::select! {
        enrolled = enroll(&settings, &keys, &fence, &mut tries) => Some(enrolled),
        () = &mut stop => None,
    };
    let Some((config, validity)) = enrolled else {
        lobby.close().await;
        return Ok(());
    };
    tracing::info!(expires_unix_s = validity.ends, "enrolled");
    let standing = watch::Sender::new(Standing {
        validity,
        trouble: None,
    });
    let ordered = watch::Sender::new(config);
    let report = watch::Sender::new(NodeReport {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        certificate_expires_unix_s: validity.ends,
        ..NodeReport::default()
    });
    let doubted = watch::Sender::default();
    let reporter = Reporter {
        settings: settings.clone(),
        keys: keys.clone(),
        report: report.subscribe(),
        ordered: ordered.clone(),
        doubted: doubted.clone(),
        fence: fence.clone(),
    };
    let member = Member {
        settings: settings.clone(),
        keys: keys.clone(),
        ordered: ordered.subscribe(),
        standing: standing.subscribe(),
        copies: CopyWatcher::new(settings.pace.report),
        looks: tokio::time::interval(settings.pace.report),
        report,
        fence: fence.clone(),
        opener: Arc::default(),
    };
    tokio::select! {
        never = renew((&settings, &keys, &fence), &standing, &ordered, doubted.subscribe()) => match never {},
        never = reporter.run() => match never {},
        ended = member.work(lobby, stop) => Ok(ended?),
    }
}

/// Where the node stands with its operator.
#[derive(Debug, Clone)]
struct Standing {
    validity: Validity,
    /// Why the certificate has not been renewed, when it should have been.
    trouble: Option<Trouble>,
}

/// One certificate and configuration, however long it takes.
async fn enroll(
    settings: &Settings,
    keys: &Arc<Keys>,
    fence: &Fence,
    tries: &mut Tries,
) -> (NodeConfig, Validity) {
    loop {
        match enroll_once(settings, keys, fence).await {
            Ok(enrolled) => {
                tries.succeeded();
                return enrolled;
            }
            Err(trouble) => tokio::time::sleep(tries.failed(&trouble)).await,
        }
    }
}

async fn enroll_once(
    settings: &Settings,
    keys: &Arc<Keys>,
    fence: &Fence,
) -> Result<(NodeConfig, Validity), Trouble> {
    let mut answer = operator::enroll(settings, keys).await?;
    fence.hears(answer.leader_epoch);
    let config = answer.config.take().ok_or_else(|| Trouble::BadAnswer {
        field: "config",
        problem: "is missing".to_owned(),
    })?;
    let (node, fabric) = (settings.node.clone(), settings.fabric.clone());
    let keys = keys.clone();
    let kept = guard::blocking("keys", move || keys.keep(&answer, &node, &fabric)).await;
    Ok((config, kept?))
}

/// Asks for the next certificate in time, or when the operator does not know the one in force; again
/// and again. The private key stays.
async fn renew(
    (settings, keys, fence): (&Settings, &Arc<Keys>, &Fence),
    standing: &watch::Sender<Standing>,
    ordered: &watch::Sender<NodeConfig>,
    mut doubted: watch::Receiver<u64>,
) -> Infallible {
    let mut tries = Tries::new("renew", &settings.node, settings.pace);
    loop {
        let held = standing.borrow().validity;
        let left = Duration::from_secs(held.renew_at().saturating_sub(unix_s()));
        let soonest = Instant::now() + settings.pace.renew_least;
        tokio::select! {
            () = tokio::time::sleep(left) => {}
            // The sender lives as long as the reporter.
            _ = doubted.wait_for(|ends| *ends == held.ends) => {}
        }
        tokio::time::sleep_until(soonest).await;
        loop {
            match enroll_once(settings, keys, fence).await {
                Ok((config, validity)) => {
                    tries.succeeded();
                    tracing::info!(expires_unix_s = validity.ends, "certificate renewed");
                    ordered.send_if_modified(|known| {
                        let new = *known != config;
                        *known = config;
                        new
                    });
                    standing.send_replace(Standing {
                        validity,
                        trouble: None,
                    });
                    break;
                }
                Err(trouble) => {
                    let wait = tries.failed(&trouble);
                    standing.send_modify(|standing| standing.trouble = Some(trouble));
                    tokio::time::sleep(wait).await;
                }
            }
        }
    }
}

/// Keeps the right agent running.
#[derive(Debug)]
struct Member {
    settings: Arc<Settings>,
    keys: Arc<Keys>,
    ordered: watch::Receiver<NodeConfig>,
    copies: CopyWatcher,
    standing: watch::Receiver<Standing>,
    looks: Interval,
    report: watch::Sender<NodeReport>,
    /// Of all agents that this process has: what a deposed operator orders is refused by the next one,
    /// too.
    fence: Arc<Fence>,
    /// Of all agents that this process has, too: it knows which roots hang.
    opener: Arc<Opener>,
}

/// What an agent is made of: another basis asks for another agent.
#[derive(Debug, Clone)]
struct Basis {
    config: NodeConfig,
    nic: Nic,
}

impl Basis {
    fn asks_for_the_same(&self, other: &Basis) -> bool {
        let nic = |basis: &Basis| {
            let Nic {
                interface,
                address,
                mtu,
                mbps: _,
            } = basis.nic.clone();
            (interface, address, mtu)
        };
        // The hash names the rest; an operator of another release may name the same otherwise.
        let config = |basis: &Basis| NodeConfig {
            hash: String::new(),
            ..basis.config.clone()
        };
        config(self) == config(other) && nic(self) == nic(other)
    }
}

impl Member {
    /// Until `stop`; then the agent has ended, too.
    async fn work(
        mut self,
        mut lobby: Lobby,
        stop: impl Future<Output = ()>,
    ) -> Result<(), AgentError> {
        let mut stop = pin!(stop);
        let mut failed = None;
        loop {
            let mut next = tokio::select! {
                next = self.wait(failed.take()) => Some(next),
                () = &mut stop => None,
            };
            lobby.close().await;
            if next.is_none() {
                return Ok(());
            }
            while let Some((basis, config)) = next.take() {
                match Agent::start_behind(&config, self.fence.clone(), self.opener.clone()).await {
                    Ok(agent) => {
                        next = tokio::select! {
                            next = self.attend(&agent, &basis) => Some(next),
                            () = &mut stop => None,
                        };
                        if next.is_none() {
                            let stopping = finding("Stopping", "the agent has been told to stop");
                            self.tell(None, vec![stopping], Listing::default());
                            agent.stop().await;
                            return Ok(());
                        }
                        tracing::info!("the agent is restarted with the new configuration");
                        agent.stop().await;
                    }
                    Err(error) => failed = Some(unusable(&error)),
                }
            }
            lobby = Lobby::open(self.settings.metrics_listen()).await?;
        }
    }

    /// Waits until there is something that an agent can be made of. After a failure something must
    /// have changed, or time must have passed.
    async fn wait(&mut self, mut failed: Option<Finding>) -> (Basis, Config) {
        loop {
            let wanted = self.wanted().await;
            let mut findings = self.standing_findings();
            match (failed.take(), wanted) {
                (None, Ok(next)) => return next,
                (Some(finding), _) | (None, Err(finding)) => findings.push(finding),
            }
            self.tell(None, findings, Listing::default());
            self.changed().await;
        }
    }

    /// While an agent runs; the answer is what another is to be made of, for which this one has
    /// stopped to take jobs.
    async fn attend(&mut self, agent: &Agent, basis: &Basis) -> (Basis, Config) {
        let jobs = agent.jobs();
        let mut records = jobs.records.subscribe();
        loop {
            let mut findings = self.standing_findings();
            let mut told = basis.clone();
            let mut waits = None;
            match self.wanted().await {
                Ok((next, config)) => {
                    told.nic.mbps = next.nic.mbps;
                    if next.asks_for_the_same(basis) {
                        told.config.hash.clone_from(&next.config.hash);
                        // A file system was mounted after the agent had opened its roots.
                        if self.copies.has_moved() {
                            if agent.jobs().close_if_idle() {
                                tracing::info!("a root's path leads to another directory");
                                self.copies.opened_anew();
                                return (next, config);
                            }
                            waits = Some(
                                "a file system has been mounted over a root, or another directory put in its place: the agent opens its roots anew as soon as no job runs here",
                            );
                        }
                    } else {
                        // An agent that works is not given up for one that cannot start: the pod with
                        // the volume of a new root comes later than the word of it.
                        let opener = self.opener.clone();
                        let check = move || (config.check_files_by(&opener), config);
                        let (usable, config) = guard::blocking("roots", check).await;
                        if usable.is_ok() {
                            if agent.jobs().close_if_idle() {
                                return (next, config);
                            }
                            waits = Some(
                                "another configuration is in force: the agent restarts itself with it as soon as no job runs here",
                            );
                        }
                        findings.extend(usable.err().map(|error| refused(&error)));
                    }
                }
                Err(finding) => findings.push(finding),
            }
            findings.extend(waits.map(|why| finding("RestartPending", why)));
            findings.extend(agent.jobs().misuse().map(|told| finding(MISUSED, told)));
            self.copies.begin(jobs, *records.borrow_and_update());
            let listing = self.copies.listing();
            if listing.is_full {
                findings.push(finding(
                    COPIES_FULL,
                    "the node has more copies than a report can list (48 KiB): the others get no labels; delete jobs with deletionPolicy Delete, or copies",
                ));
            }
            self.tell(Some((agent, &told)), findings, listing);
            tokio::select! {
                () = self.changed() => {}
                // The sender lives as long as the agent.
                _ = records.changed() => {}
                () = jobs.idle(), if waits.is_some() => {}
            }
        }
    }

    /// Waits until it is time to look again.
    async fn changed(&mut self) {
        // The senders live as long as the process enrols.
        tokio::select! {
            () = self.copies.ended() => {}
            _ = self.looks.tick() => {}
            _ = self.ordered.changed() => {}
            _ = self.standing.changed() => {}
        }
    }

    /// What the agent should be made of, by the configuration in force and what the node has now.
    async fn wanted(&mut self) -> Result<(Basis, Config), Finding> {
        let config = self.ordered.borrow_and_update().clone();
        let interfaces = guard::blocking("interfaces", interface::list)
            .await
            .map_err(|error| {
                let problem = format!("the node's interfaces cannot be listed: {error}");
                finding("InterfacesUnknown", problem)
            })?;
        let nics = config.nics.clone().unwrap_or_default();
        let nic = interface::choose(&interfaces, &nics, self.settings.address)?;
        let made = assigned::config(&self.settings, self.keys.files(), &config, &nic).map_err(
            |error| {
                let problem = format!(
                    "{error}: correct it in the RdmaFabric; until then nothing changes here"
                );
                finding(CONFIG_REFUSED, problem)
            },
        )?;
        Ok((Basis { config, nic }, made))
    }

    /// What is wrong between the node and its operator.
    fn standing_findings(&mut self) -> Vec<Finding> {
        let standing = self.standing.borrow_and_update().clone();
        let (now, Validity { begins, ends }) = (unix_s(), standing.validity);
        let mut findings = Vec::new();
        if now < begins {
            // Nothing that changes from second to second: each other text is another write and Event.
            let problem = format!(
                "this node's clock is behind the operator's, whose certificate for it holds from {}: synchronise the clocks",
                moment(begins)
            );
            findings.push(finding("ClockBehind", problem));
        }
        if now >= ends {
            let problem = format!(
                "the node's certificate ended at {}: peers and operator refuse it; see why it is not renewed, and whether the clocks agree",
                moment(ends)
            );
            findings.push(finding("CertificateExpired", problem));
        }
        if let Some(trouble) = standing.trouble {
            let problem = format!("the certificate is not renewed: {trouble}");
            findings.push(finding("NotRenewed", problem));
        }
        findings
    }

    /// Tells the operator and the log.
    fn tell(&self, running: Option<(&Agent, &Basis)>, findings: Vec<Finding>, listing: Listing) {
        let standing = self.standing.borrow();
        let mut report = NodeReport {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            certificate_expires_unix_s: standing.validity.ends,
            ready: running.is_some()
                && findings
                    .iter()
                    .all(|f| HARMLESS.contains(&f.reason.as_str())),
            findings,
            copies: listing.copies,
            copies_listed: listing.is_complete && !listing.is_full,
            ..NodeReport::default()
        };
        if let Some((agent, Basis { config, nic })) = running {
            report.control_address = agent.control().to_string();
            report.data_address = nic.address.to_string();
            report.interface.clone_from(&nic.interface);
            report.mtu = nic.mtu.into();
            report.link_mbps = nic.mbps;
            report.ports = config.ports;
            report.configuration.clone_from(&config.hash);
        }
        self.report.send_if_modified(|told| {
            for finding in &report.findings {
                if told
                    .findings
                    .iter()
                    .all(|known| known.reason != finding.reason)
                {
                    tracing::warn!(reason = finding.reason, "{}", finding.message);
                }
            }
            let new = *told != report;
            *told = report;
            new
        });
    }
}

/// Why there is no agent of a configuration.
fn unusable(error: &AgentError) -> Finding {
    let reason = match error {
        AgentError::Root(FileError::RootHung { .. }) => ROOT_HUNG,
        AgentError::Root(_) => ROOT_MISSING,
        _ => "AgentNotStarted",
    };
    finding(reason, chain(error))
}

/// Why a configuration is not taken over by the agent that works.
fn refused(error: &AgentError) -> Finding {
    let mut finding = unusable(error);
    if ![ROOT_MISSING, ROOT_HUNG].contains(&finding.reason.as_str()) {
        CONFIG_REFUSED.clone_into(&mut finding.reason);
    }
    finding
}

fn finding(reason: &str, message: impl Into<String>) -> Finding {
    Finding {
        reason: reason.to_owned(),
        message: message.into(),
    }
}

/// For people, in UTC.
fn moment(unix_s: u64) -> String {
    i64::try_from(unix_s)
        .ok()
        .and_then(|seconds| ASN1Time::from_timestamp(seconds).ok())
        .map_or_else(
            || format!("second {unix_s} after 1970"),
            |at| at.to_string(),
        )
}

fn unix_s() -> u64 {
    SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs()
}

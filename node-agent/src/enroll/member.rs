//! The life of a cluster's agent: it enrols, starts with the configuration in force, and takes over what of
//! it may change while it works.
//!
//! What cannot be used changes nothing: the agent goes on as it is, and the operator is told why. Another
//! configuration of the engine is for another process: Kubernetes replaces the pod. An interface that has
//! changed ends the process, which is then started anew.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::sync::watch;
use tokio::time::{Instant, Interval};
use weft_identity::cause::chain;
use weft_proto::operator::v1::{AgentConfig, Finding, NodeConfig, NodeReport};
use x509_parser::time::ASN1Time;

use crate::abort;
use crate::agent::{Agent, AgentError, Beside, listen};
use crate::config::Config;
use crate::control::fence::Fence;
use crate::copy_watcher::{CopyWatcher, Listing};
use crate::enroll::interface::{self, Nic};
use crate::enroll::keys::{Keys, Validity};
use crate::enroll::report::Reporter;
use crate::enroll::trouble::Tries;
use crate::enroll::{EnrollError, Settings, Trouble, assigned, operator};
use crate::files::FileError;
use crate::root_opener::Opener;
use crate::web::HealthServer;

/// A configuration that cannot be used.
const CONFIG_REFUSED: &str = "ConfigRefused";
/// A root whose directory is not there.
const ROOT_MISSING: &str = "RootMissing";
/// A root whose directory does not answer.
const ROOT_HUNG: &str = "RootHung";
/// Findings that keep no agent from working.
const HARMLESS: [&str; 6] = [
    CONFIG_REFUSED,
    ROOT_MISSING,
    ROOT_HUNG,
    "NotRenewed",
    MISUSED,
    COPIES_FULL,
];
/// Somebody shows a node's certificate for what it is not for; the agent refuses, and works.
const MISUSED: &str = "CertificateMisused";
/// More copies than a report lists.
const COPIES_FULL: &str = "CopiesFull";

/// The data interface has changed for so many reports when the agent ends: a link that is down for a moment may
/// have another one chosen meanwhile.
const INTERFACE_REPORTS: u32 = 3;

/// Joins the fabric and works in it until `stop`.
pub async fn run(settings: Settings, stop: impl Future<Output = ()>) -> Result<(), EnrollError> {
    let mut stop = pin!(stop);
    let settings = Arc::new(settings);
    let directory = settings.state.clone();
    let keys = abort::blocking("keys", move || Keys::open(&directory)).await?;
    let keys = Arc::new(keys);
    let (listener, metrics) = listen("--metrics-port", settings.metrics_listen()).await?;
    let health = Arc::new(HealthServer::start(listener));
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
        health.close().await;
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
        metrics,
        health: health.clone(),
    };
    let ended = tokio::select! {
        never = renew((&settings, &keys, &fence), &standing, &ordered, doubted.subscribe()) => match never {},
        never = reporter.run() => match never {},
        ended = member.work(stop) => ended,
    };
    health.close().await;
    ended
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
    let kept = abort::blocking("keys", move || keys.keep(&answer, &node, &fabric)).await;
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

/// Runs the agent.
#[derive(Debug)]
struct Member {
    settings: Arc<Settings>,
    keys: Arc<Keys>,
    ordered: watch::Receiver<NodeConfig>,
    copies: CopyWatcher,
    standing: watch::Receiver<Standing>,
    looks: Interval,
    report: watch::Sender<NodeReport>,
    fence: Arc<Fence>,
    /// Of all tries to start: it knows which roots hang.
    opener: Arc<Opener>,
    metrics: SocketAddr,
    health: Arc<HealthServer>,
}

/// What an agent is started with.
#[derive(Debug, Clone)]
struct Basis {
    /// Of the fabric, as it was then.
    node_config: NodeConfig,
    nic: Nic,
    config: Config,
}

impl Member {
    /// Until `stop`, or until the data interface changes; then the agent has ended, too.
    async fn work(mut self, stop: impl Future<Output = ()>) -> Result<(), EnrollError> {
        let mut stop = pin!(stop);
        let started = tokio::select! {
            started = self.start() => started,
            () = &mut stop => return Ok(()),
        };
        let (agent, basis) = started;
        let ended = tokio::select! {
            changed = self.attend(&agent, &basis) => Err(changed),
            () = &mut stop => Ok(()),
        };
        let why = ended.as_ref().err().map_or_else(
            || "the agent has been told to stop".to_owned(),
            EnrollError::to_string,
        );
        let stopping = finding("Stopping", why);
        self.tell(None, vec![stopping], Listing::default());
        agent.stop().await;
        ended
    }

    /// Starts the agent, as soon as there is something to start it with. After a failure something must have
    /// changed, or time must have passed.
    async fn start(&mut self) -> (Agent, Basis) {
        loop {
            let mut findings = self.standing_findings();
            match self.basis().await {
                Ok(basis) => {
                    let beside = Beside {
                        metrics: self.metrics,
                        health: self.health.clone(),
                        fence: self.fence.clone(),
                        opener: self.opener.clone(),
                    };
                    match Agent::start_beside(&basis.config, beside).await {
                        Ok(agent) => return (agent, basis),
                        Err(error) => findings.push(unusable(&error)),
                    }
                }
                Err(finding) => findings.push(finding),
            }
            self.tell(None, findings, Listing::default());
            self.changed().await;
        }
    }

    /// While the agent runs. Returns why it cannot go on.
    async fn attend(&mut self, agent: &Agent, basis: &Basis) -> EnrollError {
        let jobs = agent.jobs();
        let mut records = jobs.records.subscribe();
        let mut applied = basis.node_config.agent.clone();
        let mut nic = basis.nic.clone();
        let mut changed_since = None;
        loop {
            let mut findings = self.standing_findings();
            match self.nic(&basis.node_config).await {
                Ok(found) if found.is_same_link(&basis.nic) => {
                    nic = found;
                    changed_since = None;
                }
                Ok(now) => {
                    let changed = EnrollError::InterfaceChanged {
                        before: basis.nic.to_string(),
                        now: now.to_string(),
                    };
                    let since = *changed_since.get_or_insert_with(Instant::now);
                    if since.elapsed() >= self.settings.pace.report * INTERFACE_REPORTS {
                        return changed;
                    }
                    findings.push(finding("InterfaceChanged", changed.to_string()));
                }
                Err(finding) => findings.push(finding),
            }
            let ordered = self.ordered.borrow_and_update().clone();
            if ordered.pod_configuration == self.settings.pod_configuration
                && ordered.engine != basis.node_config.engine
            {
                return EnrollError::ConfigurationChanged;
            }
            let wanted = ordered.agent;
            if wanted != applied || self.copies.has_replaced_root() {
                match self.apply(agent, basis, wanted.clone()).await {
                    Ok(()) => {
                        tracing::info!(
                            "the configuration in force is another, or a root's directory"
                        );
                        applied = wanted;
                        if self.copies.has_replaced_root() {
                            self.copies.reopened_roots();
                        }
                    }
                    Err(finding) => findings.push(finding),
                }
            }
            findings.extend(jobs.misuse().map(|told| finding(MISUSED, told)));
            self.copies.begin(jobs, *records.borrow_and_update());
            let listing = self.copies.listing();
            if listing.is_full {
                findings.push(finding(
                    COPIES_FULL,
                    "the node has more copies than a report can list (48 KiB): the others get no labels; delete jobs with deletionPolicy Delete, or copies",
                ));
            }
            self.tell(Some((agent, basis, &nic)), findings, listing);
            tokio::select! {
                () = self.changed() => {}
                // The sender lives as long as the agent.
                _ = records.changed() => {}
            }
        }
    }

    /// Puts the part of a configuration in force that a running agent takes over.
    async fn apply(
        &self,
        agent: &Agent,
        basis: &Basis,
        wanted: Option<AgentConfig>,
    ) -> Result<(), Finding> {
        let node_config = NodeConfig {
            agent: wanted,
            ..basis.node_config.clone()
        };
        let config = self.config(&node_config, &basis.nic)?;
        agent.apply(&config).await.map_err(|error| unusable(&error))
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

    /// What an agent is to be started with, by the configuration in force and what the node has now.
    async fn basis(&mut self) -> Result<Basis, Finding> {
        let node_config = self.ordered.borrow_and_update().clone();
        let nic = self.nic(&node_config).await?;
        let config = self.config(&node_config, &nic)?;
        Ok(Basis {
            node_config,
            nic,
            config,
        })
    }

    /// The data interface.
    async fn nic(&self, config: &NodeConfig) -> Result<Nic, Finding> {
        let interfaces = abort::blocking("interfaces", interface::list)
            .await
            .map_err(|error| {
                let problem = format!("the node's interfaces cannot be listed: {error}");
                finding("InterfacesUnknown", problem)
            })?;
        let nics = config
            .engine
            .as_ref()
            .and_then(|engine| engine.nics.clone());
        interface::choose(
            &interfaces,
            &nics.unwrap_or_default(),
            self.settings.address,
        )
    }

    fn config(&self, config: &NodeConfig, nic: &Nic) -> Result<Config, Finding> {
        assigned::config(&self.settings, self.keys.files(), config, nic).map_err(|error| {
            let problem =
                format!("{error}: correct it in the RdmaFabric; until then nothing changes here");
            finding(CONFIG_REFUSED, problem)
        })
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
    fn tell(
        &self,
        running: Option<(&Agent, &Basis, &Nic)>,
        findings: Vec<Finding>,
        listing: Listing,
    ) {
        let standing = self.standing.borrow();
        let mut report = NodeReport {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            configuration: self.settings.pod_configuration.clone(),
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
        if let Some((agent, basis, nic)) = running {
            report.control_address = agent.control().to_string();
            report.data_address = nic.address.to_string();
            report.interface.clone_from(&nic.interface);
            report.mtu = nic.mtu.into();
            report.link_mbps = nic.mbps;
            let engine = basis.node_config.engine.as_ref();
            report.ports = engine.and_then(|engine| engine.ports);
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

/// Why a configuration cannot be used.
fn unusable(error: &AgentError) -> Finding {
    let reason = match error {
        AgentError::Root(FileError::RootHung { .. }) => ROOT_HUNG,
        AgentError::Root(_) => ROOT_MISSING,
        _ => "AgentNotStarted",
    };
    finding(reason, chain(error))
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

//! Runs the agent of a cluster's node: it enrols, starts the agent, and applies changes of its configuration.
//!
//! A configuration that cannot be used changes nothing, and the report says why. Another configuration of the
//! engine needs another process: Kubernetes replaces the pod. A changed interface ends the process, which Kubernetes
//! then starts again. One of several that is down is no change.

use std::convert::Infallible;
use std::io;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::sync::watch;
use tokio::time::{Instant, Interval};
use weft_engine::NICS_MAX;
use weft_identity::cause::chain;
use weft_identity::metrics_access::MetricsAccess;
use weft_proto::operator::v1::{AgentConfig, Finding, NodeConfig, NodeNic, NodeReport};
use weft_proto::operator::{COPIES_FULL, DEVICES_NOT_SERVED, STOPPING};
use x509_parser::time::ASN1Time;

use crate::agent::{Agent, AgentError, Environment};
use crate::config::Config;
use crate::control::fence::Fence;
use crate::copy_watcher::{CopyReport, CopyWatcher};
use crate::devices::health::NodeDevices;
use crate::enroll::affinity::Affinity;
use crate::enroll::error::{EnrollError, OperatorError};
use crate::enroll::interface::{self, Chosen, MTU_DIFFERS, NIC_LEFT_OUT, Nic, finding};
use crate::enroll::keys::{Keys, Validity};
use crate::enroll::queries::OperatorQueries;
use crate::enroll::report::{Reporter, replace_if_different};
use crate::enroll::retry::Retry;
use crate::enroll::review_token::{NEW_TOKENS_PER_SECOND, OperatorReviewer};
use crate::enroll::settings::Settings;
use crate::enroll::{assigned, operator};
use crate::fail_fast;
use crate::files::FileError;
use crate::nic_state::NicState;
use crate::volumes;
use crate::web::HealthServer;

/// A configuration that cannot be used.
const CONFIG_REFUSED: &str = "ConfigRefused";
/// A root whose directory is not there.
const ROOT_MISSING: &str = "RootMissing";
/// A root whose directory does not answer.
const ROOT_HUNG: &str = "RootHung";
/// Namespaces whose copies are left out of a report, which it names: so many names are within its size.
const UNLISTED_NAMESPACES_MAX: usize = 256;
/// Findings with which the agent is ready all the same.
const HARMLESS: [&str; 11] = [
    CONFIG_REFUSED,
    DEVICES_NOT_SERVED,
    ROOT_MISSING,
    ROOT_HUNG,
    "NotRenewed",
    MISUSED,
    COPIES_FULL,
    ENGINE_OUTDATED,
    NIC_DOWN,
    NIC_LEFT_OUT,
    MTU_DIFFERS,
];
/// One of several NICs is down.
const NIC_DOWN: &str = "NicDown";
/// The engine of devices runs with flags of an earlier configuration.
const ENGINE_OUTDATED: &str = "EngineOutdated";
/// A node's certificate was used for calls that it does not allow; the agent has refused them.
const MISUSED: &str = "CertificateMisused";

/// The agent ends when there has been another data interface for this many reports. A link that is down for a moment does
/// not end it.
const INTERFACE_REPORTS: u32 = 3;

/// Joins the fabric and works in it until `stop`.
pub async fn run(settings: Settings, stop: impl Future<Output = ()>) -> Result<(), EnrollError> {
    let mut stop = pin!(stop);
    let settings = Arc::new(settings);
    let directory = settings.state.clone();
    let keys = fail_fast::spawn_blocking("keys", move || Keys::open(&directory)).await?;
    let keys = Arc::new(keys);
    let connection = watch::Sender::default();
    let access = settings.metrics_auth.then(|| {
        let reviewer = OperatorReviewer {
            settings: settings.clone(),
            connection: connection.subscribe(),
        };
        Arc::new(MetricsAccess::new(reviewer, NEW_TOKENS_PER_SECOND))
    });
    let listen = settings.metrics_listen();
    let mut environment = Environment::new("--metrics-port", listen, access.as_ref()).await?;
    let queries = || Arc::new(OperatorQueries::new(settings.clone(), keys.clone()));
    // Each with a connection of its own: a pod that waits for its volume holds up no device.
    environment.operator = Some(queries());
    environment.jobs = Some(queries());
    environment.claims = Some(queries());
    let (health, fence) = (environment.health.clone(), environment.fence.clone());
    tracing::info!(
        node = %settings.node, fabric = %settings.fabric, operator = settings.operator, "enrolling"
    );
    let enrolled = tokio::select! {
        enrolled = enroll("enroll", (&settings, &keys, &fence, &health), drop) => Some(enrolled),
        () = &mut stop => None,
    };
    let Some((config, validity)) = enrolled else {
        drop(environment);
        health.close().await;
        return Ok(());
    };
    tracing::info!(expires_unix_s = validity.ends, "enrolled");
    let enrollment = watch::Sender::new(Enrollment {
        validity,
        error: None,
    });
    let assigned_config = watch::Sender::new(config);
    let report = watch::Sender::new(NodeReport {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        certificate_expires_unix_s: validity.ends,
        ..NodeReport::default()
    });
    let rejected_certificate_expiry = watch::Sender::default();
    let reporter = Reporter {
        settings: settings.clone(),
        keys: keys.clone(),
        report: report.subscribe(),
        assigned_config: assigned_config.clone(),
        rejected_certificate_expiry: rejected_certificate_expiry.clone(),
        connection,
        fence: fence.clone(),
    };
    let member = Member {
        settings: settings.clone(),
        keys: keys.clone(),
        assigned_config: assigned_config.subscribe(),
        enrollment: enrollment.subscribe(),
        copies: CopyWatcher::new(settings.timing.report),
        ticks: tokio::time::interval(settings.timing.report),
        report,
        environment,
    };
    let ended = tokio::select! {
        never = renew((&settings, &keys, &fence, &health), &enrollment, &assigned_config, rejected_certificate_expiry.subscribe()) => match never {},
        never = reporter.run() => match never {},
        ended = member.work(stop) => ended,
    };
    health.close().await;
    ended
}

/// The node's certificate.
#[derive(Debug, Clone)]
struct Enrollment {
    validity: Validity,
    /// Why it was not renewed in time.
    error: Option<OperatorError>,
}

/// What an enrolment works with.
type Node<'a> = (
    &'a Settings,
    &'a Arc<Keys>,
    &'a Fence,
    &'a Arc<HealthServer>,
);

/// Gets a certificate and a configuration; tries until it succeeds. `failed` learns of each failure.
async fn enroll(
    call: &'static str,
    node: Node<'_>,
    failed: impl Fn(OperatorError),
) -> (NodeConfig, Validity) {
    let mut retry = Retry::new(call, node.0.timing);
    loop {
        match enroll_once(node).await {
            Ok(enrolled) => {
                retry.succeeded();
                return enrolled;
            }
            Err(error) => {
                let wait = retry.failed(&error);
                failed(error);
                tokio::time::sleep(wait).await;
            }
        }
    }
}

async fn enroll_once(
    (settings, keys, fence, health): Node<'_>,
) -> Result<(NodeConfig, Validity), OperatorError> {
    let mut answer = operator::enroll(settings, keys).await?;
    fence.observe(answer.leader_epoch);
    let config = answer
        .config
        .take()
        .ok_or_else(|| OperatorError::BadAnswer {
            field: "config",
            problem: "is missing".to_owned(),
        })?;
    let (node, fabric) = (settings.node.clone(), settings.fabric.clone());
    let keys = keys.clone();
    let kept = fail_fast::spawn_blocking("keys", move || {
        let validity = keys.keep(&answer, &node, &fabric)?;
        Ok::<_, OperatorError>((validity, keys.page_server()?))
    });
    let (validity, server) = kept.await?;
    health.set_certificate(server);
    Ok((config, validity))
}

/// Renews the certificate in time, or when the operator does not know the one in force. The private key stays.
async fn renew(
    node: Node<'_>,
    enrollment: &watch::Sender<Enrollment>,
    assigned_config: &watch::Sender<NodeConfig>,
    mut rejected_certificate_expiry: watch::Receiver<u64>,
) -> Infallible {
    loop {
        let held = enrollment.borrow().validity;
        let remaining = Duration::from_secs(held.renew_at().saturating_sub(unix_s()));
        let soonest = Instant::now() + node.0.timing.renew_least;
        tokio::select! {
            () = tokio::time::sleep(remaining) => {}
            // The sender lives as long as the reporter.
            _ = rejected_certificate_expiry.wait_for(|ends| *ends == held.ends) => {}
        }
        tokio::time::sleep_until(soonest).await;
        let (config, validity) = enroll("renew", node, |error| {
            enrollment.send_modify(|enrollment| enrollment.error = Some(error));
        })
        .await;
        tracing::info!(expires_unix_s = validity.ends, "certificate renewed");
        replace_if_different(assigned_config, config);
        enrollment.send_replace(Enrollment {
            validity,
            error: None,
        });
    }
}

/// Runs the agent.
#[derive(Debug)]
struct Member {
    settings: Arc<Settings>,
    keys: Arc<Keys>,
    assigned_config: watch::Receiver<NodeConfig>,
    copies: CopyWatcher,
    enrollment: watch::Receiver<Enrollment>,
    ticks: Interval,
    report: watch::Sender<NodeReport>,
    /// Outlives all tries to start.
    environment: Environment,
}

/// What an agent is started with.
#[derive(Debug, Clone)]
struct StartConfig {
    /// The fabric's, at that time.
    node_config: NodeConfig,
    nics: Chosen,
    config: Config,
}

/// A running agent, for a report.
#[derive(Debug, Clone, Copy)]
struct Running<'a> {
    agent: &'a Agent,
    start: &'a StartConfig,
    /// Those that it was started with, as they are now.
    nics: &'a Chosen,
    nic_states: &'a [NicState],
}

impl Member {
    /// Until `stop`, or until the data interfaces change; then the agent has ended, too.
    async fn work(mut self, stop: impl Future<Output = ()>) -> Result<(), EnrollError> {
        let mut stop = pin!(stop);
        let started = tokio::select! {
            started = self.start() => started,
            () = &mut stop => return Ok(()),
        };
        let (agent, start) = started;
        let ended = tokio::select! {
            changed = self.run_agent(&agent, &start) => Err(changed),
            () = &mut stop => Ok(()),
        };
        let why = ended.as_ref().err().map_or_else(
            || "the agent is being stopped".to_owned(),
            EnrollError::to_string,
        );
        let stopping = finding(STOPPING, why);
        self.send_report(None, vec![stopping], CopyReport::default());
        agent.stop().await;
        ended
    }

    /// Starts the agent. After a failure it tries again when something has changed, or with the next report.
    async fn start(&mut self) -> (Agent, StartConfig) {
        loop {
            let mut findings = self.certificate_findings();
            match self.start_config().await {
                Ok(start) => {
                    let environment = self.environment.clone();
                    match Agent::start_in(environment, &start.config).await {
                        Ok(agent) => return (agent, start),
                        Err(error) => findings.push(unusable(&error)),
                    }
                }
                Err(finding) => findings.push(finding),
            }
            self.send_report(None, findings, CopyReport::default());
            self.changed().await;
        }
    }

    /// Applies changes while the agent runs. Returns why it cannot go on.
    async fn run_agent(&mut self, agent: &Agent, start: &StartConfig) -> EnrollError {
        let registry = agent.registry();
        let mut copies_changed = registry.copies_changed.subscribe();
        let mut devices = agent.devices();
        let mut applied = start.node_config.agent.clone();
        let mut nics = start.nics.clone();
        let mut changed_since = None;
        loop {
            let mut findings = self.certificate_findings();
            match self.nics(&start.node_config).await {
                // One that is down is missing among them, and no reason to end: the engine uses the others, and it again later.
                Ok(found) if start.nics.has_all_of(&found) => {
                    nics.update(&found);
                    findings.extend(found.findings);
                    changed_since = None;
                }
                Ok(now) => {
                    let changed = EnrollError::InterfaceChanged {
                        before: start.nics.to_string(),
                        now: now.to_string(),
                    };
                    let since = *changed_since.get_or_insert_with(Instant::now);
                    if since.elapsed() >= self.settings.timing.report * INTERFACE_REPORTS {
                        return changed;
                    }
                    findings.push(finding("InterfaceChanged", changed.to_string()));
                }
                Err(finding) => findings.push(finding),
            }
            let engine_nics = agent.nics().clone();
            let nic_states = fail_fast::spawn_blocking("nics", move || engine_nics.states()).await;
            findings.extend(nics_down(&nic_states));
            let assigned_config = self.assigned_config.borrow_and_update().clone();
            if assigned_config.pod_configuration == self.settings.pod_configuration
                && assigned_config.engine != start.node_config.engine
            {
                return EnrollError::ConfigurationChanged;
            }
            let wanted = assigned_config.agent;
            if wanted != applied || self.copies.has_replaced_root() {
                match self.apply(agent, start, wanted.clone()).await {
                    Ok(()) => {
                        tracing::info!(
                            "applied a changed configuration, or a root's new directory"
                        );
                        applied = wanted;
                        if self.copies.has_replaced_root() {
                            self.copies.reopened_roots();
                        }
                    }
                    Err(finding) => findings.push(finding),
                }
            }
            if self.settings.engine_socket.is_none() && has_devices(&start.node_config) {
                findings.push(finding(
                    DEVICES_NOT_SERVED,
                    "the fabric has spec.devices, and this agent has no --engine-socket: set devices.enabled of the chart, or remove spec.devices",
                ));
            }
            let outdated = agent.engine_flags();
            findings.extend(outdated.map(|message| finding(ENGINE_OUTDATED, message)));
            let misuse = registry.misuses.report(Instant::now().into_std());
            findings.extend(misuse.map(|message| finding(MISUSED, message)));
            self.copies
                .begin(registry, *copies_changed.borrow_and_update());
            let copy_report = self.copies.report();
            if copy_report.is_full {
                findings.push(finding(
                    COPIES_FULL,
                    "the node has more copies than a report can list (48 KiB): the others get no labels; delete jobs with deletionPolicy Delete, or copies",
                ));
            }
            let running = Running {
                agent,
                start,
                nics: &nics,
                nic_states: &nic_states,
            };
            self.send_report(Some(running), findings, copy_report);
            tokio::select! {
                () = self.changed() => {}
                // The sender lives as long as the agent.
                _ = copies_changed.changed() => {}
                () = changes(&mut devices) => {}
            }
        }
    }

    /// Applies the part of a configuration that a running agent can change.
    async fn apply(
        &self,
        agent: &Agent,
        start: &StartConfig,
        wanted: Option<AgentConfig>,
    ) -> Result<(), Finding> {
        let node_config = NodeConfig {
            agent: wanted,
            ..start.node_config.clone()
        };
        let config = self.config(&node_config, &start.nics)?;
        agent.apply(&config).await.map_err(|error| unusable(&error))
    }

    /// Waits for a change, or for the next report.
    async fn changed(&mut self) {
        // The senders live as long as the process.
        tokio::select! {
            () = self.copies.ended() => {}
            _ = self.ticks.tick() => {}
            _ = self.assigned_config.changed() => {}
            _ = self.enrollment.changed() => {}
        }
    }

    /// The configuration in force, with the node's data interfaces.
    async fn start_config(&mut self) -> Result<StartConfig, Finding> {
        let node_config = self.assigned_config.borrow_and_update().clone();
        let nics = self.nics(&node_config).await?;
        let config = self.config(&node_config, &nics)?;
        Ok(StartConfig {
            node_config,
            nics,
            config,
        })
    }

    /// The data interfaces that are up.
    async fn nics(&self, config: &NodeConfig) -> Result<Chosen, Finding> {
        let engine = config.engine.as_ref();
        let nics = engine.and_then(|engine| engine.nics.clone());
        let ports = engine.and_then(|engine| engine.ports);
        // Each NIC has a port of its own.
        let most = ports.map_or(NICS_MAX, |ports| ports.count as usize);
        let most = most.clamp(1, NICS_MAX);
        let (nics, node) = (nics.unwrap_or_default(), self.settings.address);
        let find = move || {
            let mut chosen = interface::choose(&interface::list()?, &nics, node, most);
            if let Ok(Chosen { first, .. }) = &mut chosen {
                first.affinity = Affinity::of(Path::new("/sys"), &first.interface);
            }
            io::Result::Ok(chosen)
        };
        let found = fail_fast::spawn_blocking("interfaces", find).await;
        found.map_err(|error| {
            let problem = format!("the node's interfaces cannot be listed: {error}");
            finding("InterfacesUnknown", problem)
        })?
    }

    fn config(&self, config: &NodeConfig, nics: &Chosen) -> Result<Config, Finding> {
        assigned::config(&self.settings, self.keys.files(), config, nics).map_err(|error| {
            let problem =
                format!("{error}: correct it in the RdmaFabric; until then nothing changes here");
            finding(CONFIG_REFUSED, problem)
        })
    }

    /// What is wrong with the certificate.
    fn certificate_findings(&mut self) -> Vec<Finding> {
        let enrollment = self.enrollment.borrow_and_update().clone();
        let (now, Validity { begins, ends }) = (unix_s(), enrollment.validity);
        let mut findings = Vec::new();
        if now < begins {
            // Nothing that changes from second to second: each other text is another write and Event.
            let problem = format!(
                "this node's clock is behind the operator's, whose certificate for it holds from {}: synchronise the clocks",
                format_utc(begins)
            );
            findings.push(finding("ClockBehind", problem));
        }
        if now >= ends {
            let problem = format!(
                "the node's certificate ended at {}: peers and operator refuse it; see why it is not renewed, and whether the clocks agree",
                format_utc(ends)
            );
            findings.push(finding("CertificateExpired", problem));
        }
        if let Some(error) = enrollment.error {
            let problem = format!("the certificate is not renewed: {error}");
            findings.push(finding("NotRenewed", problem));
        }
        findings
    }

    /// Replaces the report, and logs new findings.
    fn send_report(
        &self,
        running: Option<Running<'_>>,
        findings: Vec<Finding>,
        copy_report: CopyReport,
    ) {
        let enrollment = self.enrollment.borrow();
        let unlisted = copy_report.unlisted_namespaces;
        let is_told = copy_report.is_complete && unlisted.len() <= UNLISTED_NAMESPACES_MAX;
        let unlisted_namespaces = match is_told {
            true => unlisted.into_iter().collect(),
            false => Vec::new(),
        };
        let mut report = NodeReport {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            configuration: self.settings.pod_configuration.clone(),
            certificate_expires_unix_s: enrollment.validity.ends,
            ready: running.is_some()
                && findings
                    .iter()
                    .all(|f| HARMLESS.contains(&f.reason.as_str())),
            findings,
            copies: copy_report.copies,
            copies_listed: copy_report.is_complete && !copy_report.is_full,
            unlisted_namespaces,
            volumes_in_use: self
                .settings
                .volumes
                .as_deref()
                .map_or(0, volumes::count_in_use),
            ..NodeReport::default()
        };
        if let Some(Running {
            agent,
            start,
            nics,
            nic_states,
        }) = running
        {
            let first = &nics.first;
            report.control_address = agent.control().to_string();
            report.data_address = first.address.to_string();
            report.interface.clone_from(&first.interface);
            report.mtu = nics.mtu().into();
            report.nics = report_nics(nics, nic_states);
            report.link_mbps = (report.nics.iter().filter(|nic| nic.up))
                .fold(0, |sum, nic| nic.mbps.saturating_add(sum));
            report.numa_node = first.affinity.numa_node;
            report.pcie_root = first.affinity.pcie_root.clone().unwrap_or_default();
            let engine = start.node_config.engine.as_ref();
            report.ports = engine.and_then(|engine| engine.ports);
            let devices = agent.devices();
            let devices = devices.map(|devices| devices.borrow().report());
            // A fabric that has none any more has those that pods still have.
            report.devices = devices.filter(|devices| devices.total > 0 || devices.in_use > 0);
            report.refused_attempts = agent.refused_attempts();
        }
        self.report.send_if_modified(|sent| {
            for finding in &report.findings {
                if sent
                    .findings
                    .iter()
                    .all(|known| known.reason != finding.reason)
                {
                    tracing::warn!(reason = finding.reason, "{}", finding.message);
                }
            }
            let is_different = *sent != report;
            *sent = report;
            is_different
        });
    }
}

/// The NICs of the data path, with what the kernel says of each.
fn report_nics(nics: &Chosen, states: &[NicState]) -> Vec<NodeNic> {
    let nic = |(nic, state): (&Nic, &NicState)| NodeNic {
        interface: nic.interface.clone(),
        address: nic.address.to_string(),
        mbps: nic.mbps,
        up: state.is_up,
    };
    nics.all().zip(states).map(nic).collect()
}

/// Names those of several NICs that are down. Where there is one only, its engine of devices says so.
fn nics_down(states: &[NicState]) -> Vec<Finding> {
    let (reason, effect) = match states.iter().any(|nic| nic.is_up) {
        true => (NIC_DOWN, "the other NICs carry the data until it is back"),
        false => ("AllNicsDown", "no data moves until one of the NICs is back"),
    };
    let down = states.iter().filter(|nic| !nic.is_up && states.len() > 1);
    let finding_of = |NicState {
                          interface, address, ..
                      }: &NicState| {
        let problem = format!(
            "{interface} ({address}) is not up, has no carrier, or has lost its address: {effect}; look at its cable, at its \
             switch port and at `ip addr` on the node"
        );
        finding(reason, problem)
    };
    down.map(finding_of).collect()
}

fn has_devices(config: &NodeConfig) -> bool {
    let engine = config.engine.as_ref();
    engine.is_some_and(|engine| engine.devices.is_some())
}

/// Waits until devices become healthy or unhealthy; for ever where pods can have none.
async fn changes(devices: &mut Option<watch::Receiver<NodeDevices>>) {
    let is_changed = match devices {
        Some(devices) => devices.changed().await.is_ok(),
        None => false,
    };
    if !is_changed {
        std::future::pending::<()>().await;
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

/// For people, in UTC.
fn format_utc(unix_s: u64) -> String {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_has_each_nic_and_a_finding_names_those_of_several_that_are_down() {
        let nic = |number: u8| Nic {
            interface: format!("rail{number}"),
            address: [192, 168, number, 5].into(),
            mtu: 9000,
            mbps: 100_000,
            affinity: Affinity::default(),
        };
        let nics = Chosen {
            first: nic(0),
            others: vec![nic(1)],
            findings: Vec::new(),
        };
        let state = |number: u8, is_up| NicState {
            interface: format!("rail{number}"),
            address: [192, 168, number, 5].into(),
            is_up,
        };
        let states = [state(0, true), state(1, false)];
        let reported = |number: u8, up| NodeNic {
            interface: format!("rail{number}"),
            address: format!("192.168.{number}.5"),
            mbps: 100_000,
            up,
        };
        assert_eq!(
            report_nics(&nics, &states),
            [reported(0, true), reported(1, false)]
        );
        let found = nics_down(&states);
        assert_eq!(found.len(), 1);
        assert!(found[0].message.starts_with("rail1 (192.168.1.5) is not"));
        assert!(HARMLESS.contains(&found[0].reason.as_str()));
        // Without any no job can work here.
        let found = nics_down(&[state(0, false), state(1, false)]);
        assert_eq!(found.len(), 2);
        assert!(
            found
                .iter()
                .all(|it| !HARMLESS.contains(&it.reason.as_str()))
        );
        assert!(found[1].message.contains("no data moves"), "{found:?}");
        // Alone it is as before.
        assert_eq!(nics_down(&states[1..]), []);
    }
}

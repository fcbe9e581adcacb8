//! The program's life: look for the API server, wait for the lead, lead until it is lost.
//!
//! Losing the lead, or anything that a leader needs, ends the process with an error; the kubelet
//! starts it anew, as a candidate. SIGTERM gives the lead back first. An API server that does not answer
//! ends nothing: it is waited for, and /readyz says so.
//!
//! Three things go on beside each other and never wait for one another: the Lease, on a thread of its
//! own; the HTTP endpoint; and what a leader does. When one of them ends, the process does.

use std::{
    convert::Infallible,
    future::Future,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    num::NonZeroU32,
    panic::AssertUnwindSafe,
    path::{Path, PathBuf},
    pin::pin,
    sync::{Arc, OnceLock},
    time::Duration,
};

use futures::FutureExt as _;
use k8s_openapi::api::apps::v1::DaemonSet;
use kube::{Client, Config};
use opentelemetry_otlp::ExporterBuildError;
use opentelemetry_sdk::trace::SdkTracer;
use prometheus_client::{
    metrics::{gauge::Gauge, info::Info},
    registry::Registry,
};
use tokio::{
    net::TcpListener,
    signal::unix::{SignalKind, signal},
    sync::{mpsc, watch},
    task::JoinHandle,
    time::{Instant, sleep},
};
use weft_identity::{
    authority::{AuthorityError, unique},
    health_server,
    metrics_access::MetricsAccess,
    tls_listener::TlsRefusals,
};
use weft_metrics::{register, table};
use weft_transfer::ConnectionPool;

use crate::{
    NAME,
    api::{ANSWER_WITHIN, CallError, call, retry_until_answered},
    claims::Claims,
    consumable_capacity,
    control::{self, Control, ControlError, Metrics, OpenCalls},
    controllers,
    enrollment_limit::{EnrollmentLimit, ReviewLimit},
    home::{Home, HomeError},
    lease::{Held, LeaseBoard, Lost},
    live::{self, Live},
    pod_jobs::PodJobs,
    refused_attempts::RefusedAttempts,
    reports::{Fabrics, Reports},
    review::{MetricsReviewer, NEW_READERS_PER_SECOND, Reviews},
    traces::{self, Traces},
    web::{self, Heartbeat, Standing},
};

/// A leader ends and comes back with another server certificate: at two thirds of that one's life.
const CERTIFICATE_RENEWAL: Duration = Duration::from_secs(240 * 24 * 60 * 60);

/// Questions that wait for the controllers; who asks beyond them waits, too.
const QUESTIONS: usize = 64;

/// What the command line says.
#[derive(Debug, Clone, clap::Args)]
pub struct Settings {
    /// The namespace of the operator's own objects and of the agents.
    #[arg(
        long,
        global = true,
        env = "POD_NAMESPACE",
        default_value = "weft-system"
    )]
    pub namespace: String,
    /// Tells this candidate from the others; in a pod the pod's name [default: a unique one].
    #[arg(long, env = "POD_NAME")]
    name: Option<String>,
    /// Where agents reach this process when it leads: an address of this pod or machine.
    #[arg(long, env = "POD_IP", value_name = "IP", required = true)]
    address: Option<IpAddr>,
    /// TCP port of the control API, which agents call.
    #[arg(long, value_name = "PORT", default_value_t = 7410)]
    control_port: u16,
    /// TCP port of /metrics, /healthz and /readyz.
    #[arg(long, global = true, value_name = "PORT", default_value_t = 7411)]
    pub metrics_port: u16,
    /// Give metrics over TLS only, and only with the token of a user who may get the nonResourceURL /metrics. The probes'
    /// pages need neither.
    #[arg(long)]
    metrics_auth: bool,
    /// TCP port of the live API, which the API server passes `kubectl weft` on to; without it that API
    /// is not served.
    #[arg(long, value_name = "PORT")]
    live_port: Option<u16>,
    /// The agents' service account, in the same namespace.
    #[arg(long, value_name = "NAME", default_value = "weft-agent")]
    agent_account: String,
    /// The manifest of the agents' DaemonSet, to which the operator adds what depends on the fabric.
    #[arg(long, value_name = "FILE", default_value = "/etc/weft/agent.yaml")]
    agent_template: PathBuf,
    /// Requests that change something in the API, in a second, at most; Events are among them.
    #[arg(long, value_name = "NUMBER", default_value = "50")]
    writes_per_second: NonZeroU32,
    /// Jobs of one namespace that may run at a time. The others wait with the condition Queued.
    #[arg(long, value_name = "NUMBER", default_value = "256")]
    jobs_per_namespace: NonZeroU32,
    /// Labels of models of one namespace that a node may have.
    #[arg(long, value_name = "NUMBER", default_value = "32")]
    labels_per_namespace: NonZeroU32,
    /// Publish the virtual devices of nodes as ResourceSlices (resource.k8s.io/v1), for pods that ask for them by claims.
    #[arg(long)]
    resource_slices: bool,
    /// Publish one device of each node that claims share, by its capacity, where the API server takes that (its feature gate
    /// DRAConsumableCapacity, which the scheduler must have, too).
    #[arg(long, requires = "resource_slices")]
    consumable_capacity: bool,
    /// Send traces of jobs to this collector, by OTLP over gRPC, such as `http://collector.monitoring:4317`.
    #[arg(long, value_name = "URL", value_parser = traces::endpoint)]
    otlp_endpoint: Option<String>,
}

/// Why the program ended.
#[derive(Debug, thiserror::Error)]
pub enum ProcessError {
    /// Nobody could reach a leader.
    #[error("--address: give an address of this pod or machine")]
    NoAddress,
    /// Traces cannot be sent.
    #[error(
        "--otlp-endpoint: {0}: give the URL of a collector, such as http://collector.monitoring:4317"
    )]
    Traces(#[from] ExporterBuildError),
    /// There is no name for this candidate.
    #[error(transparent)]
    NoName(#[from] AuthorityError),
    /// The template of the agents' DaemonSet is not there or is none.
    #[error("--agent-template: {}: {problem}; give the DaemonSet's manifest, as the chart mounts it", path.display())]
    Template {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// No API server is known.
    #[error(
        "no API server is known: {0}; run this as the chart's Deployment, or give a kubeconfig in KUBECONFIG"
    )]
    NoCluster(String),
    /// It is known, and does not answer, though somebody waits for it.
    #[error(
        "no API server answers at {url}: {problem}; check that it runs and that this address is its own"
    )]
    NoAnswer {
        /// Where it was looked for.
        url: String,
        /// What came instead.
        problem: CallError,
    },
    /// A port is not free.
    #[error("port {port} cannot be listened on: {source}; choose another with {option}")]
    Port {
        /// Which.
        port: u16,
        /// What sets it.
        option: &'static str,
        /// The system's answer.
        source: std::io::Error,
    },
    /// The operator's own objects.
    #[error(transparent)]
    Home(#[from] HomeError),
    /// What agents call.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// Another leads.
    #[error(transparent)]
    Lost(#[from] Lost),
    /// Of the server that agents call.
    #[error("the server certificate is due to be renewed; the next process makes a new one")]
    CertificateDue,
    /// Something that never ends has ended.
    #[error("{0} has ended; this is a bug")]
    Ended(&'static str),
    /// Signals cannot be awaited.
    #[error("signals cannot be awaited: {0}")]
    Signal(std::io::Error),
}

/// Runs until SIGTERM or SIGINT, or until it cannot go on.
pub async fn run(settings: Settings) -> Result<(), ProcessError> {
    let mut stop = pin!(stopped()?);
    let pod = settings.address.ok_or(ProcessError::NoAddress)?;
    let name = match &settings.name {
        Some(name) if !name.is_empty() => name.clone(),
        _ => format!("{NAME}-{}", unique()?),
    };
    let template = template(&settings.agent_template)?;
    let config = config().await?;
    let meters = Meters::default();
    let (standing, readiness) = watch::channel(Standing::Starting);
    let heartbeat = Heartbeat::default();
    let metrics = listen(settings.metrics_port, "--metrics-port").await?;
    let control = listen(settings.control_port, "--control-port").await?;
    let live = match settings.live_port {
        Some(port) => Some(listen(port, "--live-port").await?),
        None => None,
    };
    let (certificate, in_force) = watch::channel(None);
    // It connects with its first call.
    let client = Client::try_from(config.clone());
    let client = client.map_err(|error| ProcessError::NoCluster(error.to_string()))?;
    let reviewer = MetricsReviewer::new(client.clone());
    let access = Arc::new(MetricsAccess::new(reviewer, NEW_READERS_PER_SECOND));
    let protection = settings.metrics_auth.then_some((&access, in_force));
    let pages = web::pages(meters.registry(), readiness, heartbeat.clone(), protection);
    let mut web = tokio::spawn(health_server::serve(metrics, pages));
    if settings.metrics_auth {
        let namespace = settings.namespace.clone();
        spawn_vital(async move { web::keep_certificate(client, &namespace, certificate).await });
    }
    let live_leader = live.is_some().then(|| Arc::new(OnceLock::new()));

    let prepared = async {
        let client = reach(&config, &standing).await?;
        let (namespace, standing) = (settings.namespace.clone(), standing.clone());
        if let Some((listener, leader)) = live.zip(live_leader.clone()) {
            let (client, namespace) = (client.clone(), namespace.clone());
            let live = Live {
                client,
                namespace,
                leader,
                refusals: meters.live.clone(),
            };
            spawn_vital(live::serve(listener, live));
        }
        let board = move || LeaseBoard::of(config, &namespace);
        let looked = move || {
            standing.send_replace(Standing::Standby);
        };
        let held = Held::acquire(board, name, looked).await?;
        Ok::<(Client, Held), ProcessError>((client, held))
    };
    let (client, mut held) = tokio::select! {
        prepared = prepared => prepared?,
        _ = &mut web => return Err(ProcessError::Ended("the HTTP endpoint")),
        () = &mut stop => return Ok(()),
    };
    let epoch = held.epoch;
    meters.epoch.set(i64::try_from(epoch).unwrap_or(i64::MAX));
    tracing::info!(epoch, "this process leads");
    let traces = settings.otlp_endpoint.as_deref().map(Traces::to);
    let traces = traces.transpose()?;
    let leader = Leader {
        tracer: traces.as_ref().map(Traces::tracer),
        settings,
        pod,
        client,
        epoch,
        renewals: held.renewals.clone(),
        heartbeat,
        template,
        metrics: meters.control,
        controllers: meters.controllers,
        live: live_leader,
        access,
    };
    let mut work = tokio::spawn(leader.work(control, standing));
    let ended = tokio::select! {
        ended = &mut work => Err(ending(ended)),
        lost = held.lost() => return Err(lost.into()),
        _ = &mut web => Err(ProcessError::Ended("the HTTP endpoint")),
        () = &mut stop => Ok(()),
    };
    cease(work).await;
    held.release().await;
    if let Some(traces) = traces {
        traces.flush().await;
    }
    ended
}

/// Starts a task without which this replica must not go on: it would stay an endpoint of what it does not serve. A panic
/// is in the log then.
fn spawn_vital(task: impl Future<Output: Send> + Send + 'static) {
    tokio::spawn(async move {
        if AssertUnwindSafe(task).catch_unwind().await.is_err() {
            std::process::abort();
        }
    });
}

/// Why a leader's work has ended, which it never does of itself.
fn ending(ended: Result<Result<Infallible, ProcessError>, tokio::task::JoinError>) -> ProcessError {
    match ended {
        Ok(Ok(never)) => match never {},
        Ok(Err(error)) => error,
        Err(_) => ProcessError::Ended("what a leader does"),
    }
}

/// Ends a leader's work: nothing is written any more when this returns. Work that has ended is left as
/// it is.
async fn cease<T>(work: JoinHandle<T>) {
    if !work.is_finished() {
        work.abort();
        // It was told to end: that is what it answers.
        let _ = work.await;
    }
}

/// What is measured.
#[derive(Default)]
struct Meters {
    control: Metrics,
    controllers: controllers::Metrics,
    live: TlsRefusals,
    epoch: Gauge,
}

impl Meters {
    fn registry(&self) -> Registry {
        let mut registry = Registry::default();
        let build = table::OPERATOR_BUILD.with([env!("CARGO_PKG_VERSION")]);
        let build = Info::new(build.to_vec());
        register(&mut registry, &table::OPERATOR_BUILD, build);
        let epoch = self.epoch.clone();
        register(&mut registry, &table::OPERATOR_LEADER_EPOCH, epoch);
        self.control.register(&mut registry);
        self.live
            .register(&mut registry, &table::OPERATOR_LIVE_TLS_REFUSED);
        self.controllers.register(&mut registry);
        registry
    }
}

/// What leads.
struct Leader {
    tracer: Option<SdkTracer>,
    settings: Settings,
    /// Where agents reach this process.
    pod: IpAddr,
    client: Client,
    epoch: u64,
    renewals: watch::Receiver<Instant>,
    heartbeat: Heartbeat,
    template: DaemonSet,
    metrics: Metrics,
    controllers: controllers::Metrics,
    /// Where the live API finds what it answers from; nowhere where it is not served.
    live: Option<Arc<OnceLock<live::Leader>>>,
    /// Knows who may read metrics.
    access: Arc<MetricsAccess>,
}

impl Leader {
    /// Until something that it needs fails.
    async fn work(
        self,
        listener: TcpListener,
        standing: watch::Sender<Standing>,
    ) -> Result<Infallible, ProcessError> {
        let settings = self.settings;
        let home = Home::new(self.client.clone(), &settings.namespace);
        let authority = Arc::new(patient(|| home.authority()).await?);
        patient(|| home.publish(&authority)).await?;
        let address = patient(|| home.address(settings.control_port)).await?;
        let (queries, asked) = mpsc::channel(QUESTIONS);
        let (fabrics, known) = watch::channel(Fabrics::new());
        let reports = Reports::default();
        let (service_problem, problem) = watch::channel(None);
        let pool = ConnectionPool::new(Arc::clone(&authority));
        let has_consumable_capacity =
            settings.consumable_capacity && consumable_capacity(&self.client).await;
        let context = controllers::Context {
            client: self.client.clone(),
            epoch: self.epoch,
            renewals: self.renewals,
            heartbeat: self.heartbeat,
            authority: Arc::clone(&authority),
            pool: pool.clone(),
            tracer: self.tracer,
            reports: reports.subscribe(),
            fabrics,
            template: controllers::AgentTemplate {
                manifest: self.template,
                namespace: settings.namespace.clone(),
                leader_address: address.dial.clone(),
                owner: address.owner.clone(),
            },
            service_problem: problem,
            resource_slices: settings.resource_slices,
            consumable_capacity: has_consumable_capacity,
            writes_per_second: settings.writes_per_second,
            jobs_per_namespace: settings.jobs_per_namespace,
            labels_per_namespace: settings.labels_per_namespace,
            metrics: self.controllers,
        };
        let controllers = pin!(controllers::run(context, asked));
        if let Some(live) = &self.live {
            // A process leads once.
            let _ = live.set(live::Leader {
                pool,
                queries,
                epoch: self.epoch,
            });
        }
        let control = Control {
            authority: Arc::clone(&authority),
            epoch: self.epoch,
            limit: EnrollmentLimit::default(),
            reviews: Reviews::new(self.client.clone()),
            metrics_access: self.access,
            review_limit: ReviewLimit::default(),
            pod_jobs: PodJobs::new(self.client.clone()),
            claims: Claims::new(self.client.clone()),
            refused_attempts: Arc::new(RefusedAttempts::new(self.client.clone())),
            open_calls: OpenCalls::default(),
            account: format!(
                "system:serviceaccount:{}:{}",
                settings.namespace, settings.agent_account
            ),
            fabrics: known,
            reports,
            metrics: self.metrics,
        };
        let name = format!("{NAME}.{}.svc", settings.namespace);
        let names = [name.as_str()];
        let serve = pin!(control::serve(listener, control, &names));
        let pod = self.pod;
        patient(|| home.lead(&address, pod)).await?;
        standing.send_replace(Standing::Leading);
        tokio::select! {
            never = controllers => match never {},
            kept = home.keep(&authority, &address, pod, self.live.is_some(), &service_problem) => Ok(kept?),
            served = serve => Err(served.map_or_else(ProcessError::from, |()| ProcessError::Ended("the control API"))),
            () = sleep(CERTIFICATE_RENEWAL) => Err(ProcessError::CertificateDue),
        }
    }
}

/// Whether devices can be published by their capacity. If not, the log says why.
async fn consumable_capacity(client: &Client) -> bool {
    let problem = match consumable_capacity::is_offered(client).await {
        Ok(true) => return true,
        Ok(false) => {
            "the API server leaves the field out: turn on its feature gate DRAConsumableCapacity"
                .to_owned()
        }
        Err(error) => error.to_string(),
    };
    tracing::warn!(
        problem,
        "--consumable-capacity: each device of a node is published by itself, 1,024 at most"
    );
    false
}

fn template(path: &Path) -> Result<DaemonSet, ProcessError> {
    let wrong = |problem: String| ProcessError::Template {
        path: path.to_owned(),
        problem,
    };
    let text = std::fs::read_to_string(path).map_err(|error| wrong(error.to_string()))?;
    serde_saphyr::from_str(&text).map_err(|error| wrong(error.to_string()))
}

/// A leader's request about its own objects, until the API server answers. The Lease is lost meanwhile if
/// it is away for long.
async fn patient<T, F: Future<Output = Result<T, HomeError>>>(
    attempt: impl FnMut() -> F,
) -> Result<T, HomeError> {
    retry_until_answered("a leader cannot begin", HomeError::is_transient, attempt).await
}

/// A client of an API server that answers.
///
/// # Errors
/// None is known, or it does not answer.
pub async fn client() -> Result<Client, ProcessError> {
    answering(&config().await?).await
}

/// Where the API server is.
async fn config() -> Result<Config, ProcessError> {
    let mut config = Config::infer()
        .await
        .map_err(|error| ProcessError::NoCluster(error.to_string()))?;
    config.connect_timeout = Some(ANSWER_WITHIN);
    Ok(config)
}

/// A client, once its API server has answered.
async fn answering(config: &Config) -> Result<Client, ProcessError> {
    let url = config.cluster_url.to_string();
    let answered = async {
        let client = Client::try_from(config.clone())?;
        let version = call(client.apiserver_version()).await?;
        Ok((client, version.git_version))
    };
    match answered.await {
        Ok((client, version)) => {
            tracing::info!(url, version, "API server");
            Ok(client)
        }
        Err(problem) => Err(ProcessError::NoAnswer { url, problem }),
    }
}

/// The same, however long that takes.
async fn reach(
    config: &Config,
    standing: &watch::Sender<Standing>,
) -> Result<Client, ProcessError> {
    let attempt = || async {
        answering(config).await.inspect_err(|error| {
            standing.send_replace(Standing::Alone(error.to_string()));
        })
    };
    let client = retry_until_answered("this process waits", |_| true, attempt).await?;
    standing.send_replace(Standing::Starting);
    Ok(client)
}

async fn listen(port: u16, option: &'static str) -> Result<TcpListener, ProcessError> {
    // Both families where there are both.
    let any = match TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)).await {
        Ok(listener) => return Ok(listener),
        Err(_) => TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).await,
    };
    any.map_err(|source| ProcessError::Port {
        port,
        option,
        source,
    })
}

/// SIGTERM or SIGINT.
fn stopped() -> Result<impl Future<Output = ()>, ProcessError> {
    let wait = |kind| signal(kind).map_err(ProcessError::Signal);
    let (mut terminate, mut interrupt) = (
        wait(SignalKind::terminate())?,
        wait(SignalKind::interrupt())?,
    );
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => tracing::info!("SIGTERM: ending"),
            _ = interrupt.recv() => tracing::info!("SIGINT: ending"),
        }
    })
}

#[cfg(test)]
mod tests {
    use weft_identity::metrics;
    use weft_metrics::{Page, check};

    use super::*;
    use crate::fault::Fault;

    #[test]
    fn an_operator_exports_what_is_declared() {
        let meters = Meters::default();
        // A family is exported from its first series on.
        meters.live.count("OtherName");
        meters.control.tls_refusals.count("Timeout");
        let fault = Fault::TokenWithoutNode;
        meters.control.refuse("Enroll", &fault);
        let text = metrics::page(&meters.registry()).2;
        assert_eq!(check(&text, Page::Operator), Vec::<String>::new());
    }
}

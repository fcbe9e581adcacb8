//! One play from the empty ground to the summary.

use std::{
    cell::Cell,
    fs,
    io::Write,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};
use weft_proto::agent::v1::Algorithm;

use super::{
    Fault, FaultKind, Happened, PlayError, Settings, Summary,
    agent::{self, Agents},
    ground::{Ground, node_name, port_count},
    progress::Progress,
    scratch::{Origin, Scratch, directory},
};
use crate::{
    authority::{self, Authority},
    fabric::{Fabric, isolation},
    operator::{Contact, Place, Runner, Spec},
};

/// The fabric's name in certificates.
const FABRIC: &str = "play";
/// The source's root.
const SOURCE_ROOT: &str = "source";
/// The destinations' root.
const DATA_ROOT: &str = "data";
/// Attempts in a row that may bring nothing: with the backoff, 8 s without a sign of life.
const BACKOFF_LIMIT: u32 = 6;
/// The longest backoff: what a node that is to be restarted may cost per attempt.
const BACKOFF_LONGEST: Duration = Duration::from_secs(2);
/// How often bars move.
const SHOW_INTERVAL: Duration = Duration::from_millis(100);

/// Plays; whether everything is as it was asked for. With `--keep` it says so in `kept` and returns
/// only when an agent ends by itself.
pub(super) async fn play(
    settings: &Settings,
    program: &Path,
    terminal: bool,
    kept: &Cell<Option<bool>>,
    out: &mut impl Write,
    err: &mut impl Write,
) -> Result<bool, PlayError> {
    let mut stage = Stage::set(settings, program).await?;
    let mut progress = Progress::new(terminal);
    let (summary, complete) = stage.transfer(&mut progress, err).await?;
    if !settings.keep {
        stage.agents.kill_all().await;
    }
    if settings.json {
        // In one write: a reader that takes only the beginning is no failure.
        let text = serde_json::to_string(&summary.report)? + "\n";
        out.write_all(text.as_bytes()).map_err(PlayError::Output)?;
        for cause in &summary.failures {
            complain(err, cause);
        }
    } else {
        write!(out, "{summary}").map_err(PlayError::Output)?;
    }
    out.flush().map_err(PlayError::Output)?;
    let missed = summary.missed();
    for text in &missed {
        complain(err, text);
    }
    if settings.keep {
        complain(err, &stage.how_to_enter());
        kept.set(Some(complete && missed.is_empty()));
        return Err(stage.agents.ended().await);
    }
    Ok(complete && missed.is_empty())
}

fn complain(err: &mut impl Write, text: &str) {
    // Nobody may be listening.
    let _ = writeln!(err, "weft play: {text}");
}

/// Everything that has to be there before a byte moves. Dropping it ends it; the agents go first.
struct Stage<'a> {
    settings: &'a Settings,
    program: PathBuf,
    agents: Agents,
    ground: Ground,
    authority: Arc<Authority>,
    origin: Origin,
    /// The nodes' roots.
    roots: Vec<PathBuf>,
    scratch: Scratch,
}

impl<'a> Stage<'a> {
    async fn set(settings: &'a Settings, program: &Path) -> Result<Self, PlayError> {
        let nodes = settings.fabric.nodes;
        let scratch = Scratch::new()?;
        let base = match &settings.out {
            Some(out) => out.clone(),
            None => scratch.path().join("roots"),
        };
        directory(&base)?;
        let base = fs::canonicalize(&base).map_err(|source| PlayError::Files {
            path: base.clone(),
            source,
        })?;
        if settings.out.is_none() {
            let made_here = matches!(settings.data, super::Data::Random { .. });
            let copies = settings.to.len() as u64 + u64::from(made_here);
            scratch.check_room(settings.data.bytes(), copies)?;
        }

        // Data and fabric are made at the same time, on threads that a signal does not wait for.
        let (data, made) = (settings.data.clone(), base.join(node_name(0)));
        let data = tokio::task::spawn_blocking(move || data.lay_out(&made));
        let ground = if isolation::is_inside() {
            let spec = settings.fabric.clone();
            let fabric =
                unpanicked(tokio::task::spawn_blocking(move || Fabric::build(&spec)).await)?;
            Ground::Fabric(Arc::new(fabric))
        } else {
            Ground::loopback(nodes)?
        };
        let origin = unpanicked(data.await)?;
        let mut roots = vec![origin.root.clone()];
        for i in 1..nodes {
            let root = base.join(node_name(i));
            directory(&root)?;
            roots.push(root);
        }

        let mut stage = Self {
            settings,
            program: program.to_owned(),
            agents: Agents::default(),
            ground,
            authority: Arc::new(Authority::new(FABRIC)?),
            origin,
            roots,
            scratch,
        };
        for i in 0..nodes {
            stage.configure(i)?;
            stage.start_agent(i)?;
        }
        for i in 0..nodes {
            let metrics = stage.ground.addresses(i).metrics;
            stage.agents.ready(i, metrics).await?;
        }
        Ok(stage)
    }

    fn home(&self, i: usize) -> PathBuf {
        self.scratch.path().join("agents").join(node_name(i))
    }

    fn configure(&mut self, i: usize) -> Result<(), PlayError> {
        let (name, home) = (node_name(i), self.home(i));
        directory(&home)?;
        let files = self.authority.node(&name)?.write(&self.authority, &home)?;
        let addresses = self.ground.addresses(i);
        let paths = self.ground.paths(self.settings);
        let root = if i == 0 {
            (SOURCE_ROOT, self.roots[i].as_path(), "ReadOnly")
        } else {
            (DATA_ROOT, self.roots[i].as_path(), "ReadWrite")
        };
        let config = agent::Config {
            node: &name,
            fabric: FABRIC,
            control: addresses.control,
            metrics: addresses.metrics,
            data: addresses.data,
            first_port: addresses.first_port,
            ports: port_count(paths),
            paths,
            mtu: self.settings.fabric.mtu,
            policy: self.settings.path_policy,
            ticket_key: &self.authority.ticket_key(),
            files: &files,
            root,
        };
        let path = home.join("agent.yaml");
        fs::write(&path, config.yaml()?).map_err(|source| PlayError::Files { path, source })?;
        self.agents.add(&name, home.join("agent.log"));
        Ok(())
    }

    fn start_agent(&mut self, i: usize) -> Result<(), PlayError> {
        let mut command = self.ground.command(i, &self.program);
        command.arg("--config").arg(self.home(i).join("agent.yaml"));
        self.agents.start(i, command)
    }

    fn spec(&self) -> Result<Spec, PlayError> {
        let settings = self.settings;
        let destination = |i: &usize| Place {
            node: node_name(*i),
            root: DATA_ROOT.to_owned(),
            path: self.origin.name.clone(),
        };
        Ok(Spec {
            uid: format!("play-{}", authority::unique()?),
            source: Place {
                node: node_name(0),
                root: SOURCE_ROOT.to_owned(),
                path: self.origin.path.clone(),
            },
            destinations: settings.to.iter().map(destination).collect(),
            topology: self.ground.topology(settings),
            strategy: settings.strategy,
            payload_share: Ground::payload_share(settings),
            algorithm: Algorithm::Blake3,
            backoff_limit: BACKOFF_LIMIT + patience(&settings.faults),
        })
    }

    async fn transfer(
        &mut self,
        progress: &mut Progress,
        err: &mut impl Write,
    ) -> Result<(Summary, bool), PlayError> {
        let contact = |i| Contact {
            node: node_name(i),
            address: self.ground.addresses(i).control.to_string(),
        };
        let contacts: Vec<Contact> = (0..self.settings.fabric.nodes).map(contact).collect();
        let before = self.spine_bytes()?;
        let mut faults: Vec<(Fault, Happened)> = self
            .settings
            .faults
            .iter()
            .map(|fault| (*fault, Happened::No))
            .collect();
        let mut next = 0;
        let mut runner = Runner::begin(self.spec()?, Arc::clone(&self.authority), &contacts)?;
        let mut show = interval(SHOW_INTERVAL);
        show.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while !runner.job().is_over() {
            let now = runner.now();
            let due = runner
                .job()
                .started()
                .zip(faults.get(next))
                .map(|(started, (fault, _))| {
                    Instant::now() + (started + fault.at).saturating_sub(now)
                });
            tokio::select! {
                () = runner.turn() => {}
                error = self.agents.ended() => return Err(error),
                _ = show.tick() => progress.show(runner.job(), err),
                () = at(due) => {
                    let (fault, happened) = &mut faults[next];
                    next += 1;
                    self.strike(*fault).await?;
                    let started = runner.job().started().unwrap_or_default();
                    let after = runner.now().saturating_sub(started);
                    *happened = Happened::At { after, bytes: runner.job().bytes_moved() };
                    let target = fault.kind.target(fault.index);
                    progress.say(&format!("{} {target}", fault.kind.name()), err);
                }
            }
        }
        let ended = runner.now();
        progress.show(runner.job(), err);
        progress.end(err);
        let after = self.spine_bytes()?;
        let spines = after
            .iter()
            .zip(before)
            .map(|(after, before)| after - before)
            .collect();
        let roots = |name: &str| {
            let i = (0..self.roots.len()).find(|i| node_name(*i) == name);
            i.map(|i| self.roots[i].display().to_string())
                .unwrap_or_default()
        };
        let source = self.settings.data.describe();
        let assumed = Ground::assumed(self.settings);
        let summary = Summary::new(
            runner.job(),
            ended,
            source,
            roots,
            spines,
            &faults,
            &assumed,
        );
        Ok((summary, runner.job().is_complete()))
    }

    fn spine_bytes(&self) -> Result<Vec<u64>, PlayError> {
        match self.ground.fabric() {
            Some(fabric) => Ok(fabric.spine_bytes()?),
            None => Ok(Vec::new()),
        }
    }

    async fn strike(&mut self, fault: Fault) -> Result<(), PlayError> {
        match fault.kind {
            FaultKind::FailSpine => {
                if let Some(fabric) = self.ground.fabric().cloned() {
                    let fail = move || fabric.fail_spine(fault.index);
                    unpanicked(tokio::task::spawn_blocking(fail).await)?;
                }
                Ok(())
            }
            FaultKind::KillNode => {
                self.agents
                    .kill(fault.index)
                    .await
                    .map_err(|source| PlayError::AgentNotStarted {
                        node: node_name(fault.index),
                        source,
                    })
            }
            FaultKind::RestartNode => self.start_agent(fault.index),
        }
    }

    /// For `--keep`.
    fn how_to_enter(&self) -> String {
        let pid = isolation::outside_pid();
        let mut text =
            format!("agents and fabric are left running; Ctrl-C or `kill {pid}` ends them\n");
        for i in 0..self.settings.fabric.nodes {
            let addresses = self.ground.addresses(i);
            text += &format!(
                "  {}: control {}, metrics http://{}/metrics, root {}\n",
                node_name(i),
                addresses.control,
                addresses.metrics,
                self.roots[i].display()
            );
        }
        if self.ground.fabric().is_some() {
            let user = if isolation::is_own_user_namespace() {
                " --user --preserve-credentials"
            } else {
                ""
            };
            text += &format!(
                "a shell in node1, likewise in leaf0 or spine0, from another terminal:\n  \
                 nsenter --target $(pgrep -P {pid}){user} --mount --net ip netns exec node1 bash\n"
            );
        }
        text
    }
}

/// What a job has to wait for nodes that are to be restarted, in attempts.
fn patience(faults: &[Fault]) -> u32 {
    let of = |kind| move |fault: &&Fault| fault.kind == kind;
    let first = faults
        .iter()
        .find(of(FaultKind::KillNode))
        .map(|fault| fault.at);
    let last = faults
        .iter()
        .rfind(of(FaultKind::RestartNode))
        .map(|fault| fault.at);
    let dead = last
        .zip(first)
        .map_or(Duration::ZERO, |(last, first)| last.saturating_sub(first));
    u32::try_from(dead.as_secs() / BACKOFF_LONGEST.as_secs()).unwrap_or(u32::MAX / 2)
}

fn unpanicked<T, E>(joined: Result<Result<T, E>, tokio::task::JoinError>) -> Result<T, PlayError>
where
    PlayError: From<E>,
{
    match joined {
        Ok(result) => Ok(result?),
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(cancelled) => Err(PlayError::Runtime(std::io::Error::other(cancelled))),
        },
    }
}

async fn at(due: Option<Instant>) {
    match due {
        Some(due) => sleep_until(due).await,
        None => std::future::pending().await,
    }
}

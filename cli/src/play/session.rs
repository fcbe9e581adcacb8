//! One play from the empty ground to the summary.

use std::{
    fs,
    io::{ErrorKind, Write},
    path::{Path, PathBuf},
    sync::Arc,
    thread,
    time::Duration,
};

use tokio::{
    sync::oneshot,
    time::{Instant, MissedTickBehavior, interval, sleep_until},
};

use weft_fabric::{Fabric, FabricError, isolation};
use weft_proto::agent::v1::Overwrite;
use weft_transfer::{LeaderContext, Spec, Timing};

use super::{
    Data, Fault, FaultKind, Happened, PlayError, Settings, Summary, out,
    page::Page,
    progress::Progress,
    scratch::{Origin, Scratch},
};
use crate::{
    device::{NodeRecord, Record},
    stage::{
        Access, Devices, Ground, Root, Setup, Stage, StageError, devices, directory, node_name,
    },
};

/// The fabric's name in certificates.
const FABRIC: &str = "play";
/// Paths where the user did not say, over a fabric: the transport's own default.
const FABRIC_PATHS: u16 = 128;
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

/// What came of a play.
pub(super) struct Played<'a> {
    /// Everything is as it was asked for.
    pub(super) is_good: bool,
    /// What the page goes on to show.
    _play: Option<Play<'a>>,
}

/// Plays.
pub(super) async fn play<'a>(
    settings: &'a Settings,
    program: &Path,
    terminal: bool,
    mut page: Option<&mut Page>,
    out: &mut impl Write,
    err: &mut impl Write,
) -> Result<Played<'a>, PlayError> {
    let mut play = Play::set(settings, program).await?;
    if let Some(page) = &mut page {
        page.show_nodes(&play.stage);
        page.begin_job(&play.origin.name, &settings.to);
    }
    let is_shown = page.is_some();
    let mut progress = Progress::new(terminal, settings.quiet);
    let (summary, complete) = play.transfer(&mut progress, page, err).await?;
    let stays = settings.keep || is_shown;
    let mut staying = stays.then_some(play);
    let text = match settings.json {
        true => serde_json::to_string(&summary.report)? + "\n",
        false => summary.to_string(),
    };
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        // A reader that takes only the beginning is no failure.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => {}
        written => written.map_err(PlayError::Output)?,
    }
    if settings.json {
        for cause in &summary.failures {
            complain(err, cause);
        }
    }
    let missed = summary.missed();
    for text in &missed {
        complain(err, text);
    }
    if let Some(text) = settings.out.as_deref().and_then(out::left) {
        complain(err, &text);
    }
    // Last: whatever failed before ends it.
    if settings.keep
        && let Some(play) = staying.take()
    {
        complain(err, &play.keep()?);
    }
    Ok(Played {
        is_good: complete && missed.is_empty(),
        _play: staying,
    })
}

fn complain(err: &mut impl Write, text: &str) {
    // Nobody may be listening.
    let _ = writeln!(err, "weft play: {text}");
}

/// Everything that has to be there before a byte moves. Dropping it ends it; the agents go first.
pub(super) struct Play<'a> {
    settings: &'a Settings,
    stage: Stage,
    origin: Origin,
    scratch: Scratch,
    run: out::Run,
}

impl<'a> Play<'a> {
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
        // What a run has brought before takes no more room.
        if fs::read_dir(&base).is_ok_and(out::is_unused) {
            let made_here = matches!(settings.data, Data::Random { .. });
            let copies = settings.to.len() as u64 + u64::from(made_here);
            scratch.check_room(&base, settings.data.bytes(), copies)?;
        }

        // Before anything is laid out: what an interrupted run has made is then known by its record.
        let run = out::begin(
            settings.out.as_ref().map(|_| &*base),
            settings.data.describe(),
        )?;

        // Data and fabric are made at the same time, on threads that a signal does not wait for.
        let (data, made) = (settings.data.clone(), base.join(node_name(0)));
        let data = on_a_thread(move || data.lay_out(&made));
        let ground = async {
            if isolation::is_inside() {
                let spec = settings.fabric.clone();
                let fabric = on_a_thread(move || Fabric::build(&spec)).await?;
                Ok(Ground::Fabric(Arc::new(fabric)))
            } else {
                Ok(Ground::loopback(nodes, settings.fabric.mtu)?)
            }
        };
        let (origin, ground) = tokio::try_join!(data, ground)?;
        let source = Root {
            name: SOURCE_ROOT,
            directory: origin.root.clone(),
            access: Access::ReadOnly,
        };
        let destination = |i| Root {
            name: DATA_ROOT,
            directory: base.join(node_name(i)),
            access: Access::ReadWrite,
        };
        let paths = match &ground {
            Ground::Fabric(_) => settings.paths.unwrap_or(FABRIC_PATHS),
            Ground::Loopback { .. } => 1,
        };
        let mut stage = Stage::set(Setup {
            name: FABRIC,
            ground,
            program: program.to_owned(),
            home: scratch.path().join("agents"),
            roots: std::iter::once(source)
                .chain((1..nodes).map(destination))
                .collect(),
            paths,
            policy: settings.path_policy,
            link: settings.link,
            encryption: settings.encryption,
            congestion: settings.congestion,
            devices: match settings.devices.as_slice() {
                [] => None,
                nodes => Some(Devices::at(nodes.to_vec(), settings.device_limits)?),
            },
            stays: settings.keep,
        })?;
        stage.start_all().await?;
        Ok(Self {
            settings,
            stage,
            origin,
            scratch,
            run,
        })
    }

    fn spec(&self) -> Spec {
        let settings = self.settings;
        let destination = |i: &usize| self.stage.place(*i, &self.origin.name);
        Spec {
            uid: self.run.uid.clone(),
            name: None,
            source: self.stage.place(0, &self.origin.path),
            symlinks: settings.symlinks.into(),
            object: None,
            destinations: settings.to.iter().map(destination).collect(),
            topology: self.stage.topology(),
            strategy: settings.strategy,
            payload_share: self.stage.ground().payload_share(),
            algorithm: settings.verification.into(),
            expect: String::new(),
            overwrite: Overwrite::IfDifferent,
            timing: Timing::INTERACTIVE,
            leader: LeaderContext::ONLY,
            backoff_limit: BACKOFF_LIMIT + patience(&settings.faults),
        }
    }

    async fn transfer(
        &mut self,
        progress: &mut Progress,
        mut page: Option<&mut Page>,
        err: &mut impl Write,
    ) -> Result<(Summary, bool), PlayError> {
        let before = self.spine_bytes()?;
        let mut faults: Vec<(Fault, Happened)> = self
            .settings
            .faults
            .iter()
            .map(|fault| (*fault, Happened::No))
            .collect();
        let mut next = 0;
        let mut runner = self.stage.begin(self.spec());
        let mut show = interval(SHOW_INTERVAL);
        show.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while !runner.transfer().is_over() {
            let now = runner.now();
            let due =
                runner
                    .transfer()
                    .started()
                    .zip(faults.get(next))
                    .map(|(started, (fault, _))| {
                        Instant::now() + (started + fault.at).saturating_sub(now)
                    });
            tokio::select! {
                () = runner.run_once() => {}
                error = self.stage.ended() => return Err(error.into()),
                _ = show.tick() => {
                    progress.show(runner.transfer(), err);
                    if let Some(page) = &mut page {
                        page.show_job(runner.transfer());
                    }
                }
                () = at(due) => {
                    let (fault, happened) = &mut faults[next];
                    next += 1;
                    self.strike(*fault).await?;
                    let started = runner.transfer().started().unwrap_or_default();
                    let after = runner.now().saturating_sub(started);
                    *happened = Happened::At { after, bytes: runner.transfer().bytes_verified() };
                    let target = fault.kind.target(fault.index);
                    let text = format!("{} {target}", fault.kind.name());
                    progress.say(&text, err);
                    if let Some(page) = &mut page {
                        page.add_fault(fault.kind, fault.index);
                    }
                }
            }
        }
        let ended = runner.now();
        progress.show(runner.transfer(), err);
        progress.end(err);
        if let Some(page) = &mut page {
            page.show_job(runner.transfer());
        }
        let after = self.spine_bytes()?;
        let spines = after
            .iter()
            .zip(before)
            .map(|(after, before)| after - before)
            .collect();
        let root = |name: &str| {
            let i = (0..self.stage.nodes()).find(|i| node_name(*i) == name);
            i.and_then(|i| self.lasting(self.stage.root(i)))
                .map(|path| path.display().to_string())
        };
        let summary = Summary::new(
            runner.transfer(),
            ended,
            self.settings.data.describe(),
            root,
            spines,
            &faults,
            &self.stage.ground().assumed(),
        );
        Ok((summary, runner.transfer().is_complete()))
    }

    /// Where the user finds a directory of a destination afterwards, if it is still there.
    fn lasting(&self, directory: &Path) -> Option<PathBuf> {
        if self.settings.out.is_some() {
            Some(directory.to_owned())
        } else {
            self.settings.keep.then(|| self.scratch.seen(directory))
        }
    }

    fn spine_bytes(&self) -> Result<Vec<u64>, PlayError> {
        match self.stage.ground().fabric() {
            Some(fabric) => Ok(fabric.spine_bytes()?),
            None => Ok(Vec::new()),
        }
    }

    async fn strike(&mut self, fault: Fault) -> Result<(), PlayError> {
        match fault.kind {
            FaultKind::FailSpine => {
                if let Some(fabric) = self.stage.ground().fabric().cloned() {
                    let fail = move || fabric.fail_spine(fault.index);
                    on_a_thread(fail).await?;
                }
                Ok(())
            }
            FaultKind::FailNic => {
                if let Some(fabric) = self.stage.ground().fabric().cloned() {
                    let last = fabric.spec().nics - 1;
                    let fail = move || fabric.unplug_nic(fault.index, last);
                    on_a_thread(fail).await?;
                }
                Ok(())
            }
            FaultKind::KillNode => {
                let killed = self.stage.kill(fault.index);
                Ok(killed.map_err(|source| StageError::AgentNotKilled {
                    node: node_name(fault.index),
                    source,
                })?)
            }
            FaultKind::RestartNode => Ok(self.stage.start(fault.index, &[])?),
        }
    }

    /// For `--keep`: everything goes on without this program. Says how to look at it and how to end
    /// it, in commands.
    fn keep(self) -> Result<String, PlayError> {
        let (stage, scratch) = (self.stage, self.scratch);
        let mut nodes = String::new();
        for i in 0..stage.nodes() {
            let addresses = stage.ground().addresses(i);
            nodes += &format!(
                "\n  {}: control {}, metrics http://{}/metrics, log {}",
                node_name(i),
                addresses.control,
                addresses.metrics,
                scratch.seen(&stage.log_file(i)).display()
            );
        }
        let text = if stage.ground().fabric().is_some() {
            let pid = isolation::pid();
            let (user, who) = if isolation::is_own_user_namespace() {
                // Its owner is root in there, and nobody else but the machine's root may enter.
                (
                    "--user --preserve-credentials ",
                    ", for this user and root only",
                )
            } else {
                ("", "")
            };
            let enter = format!("nsenter --target {pid} {user}--mount --net --pid");
            let address = stage.ground().addresses(1).metrics;
            format!(
                "agents and fabric are left running; to end them:\n  kill {pid}\n\
                 a shell at node1, likewise at leaf0 or spine0{who}:\n  {enter} ip netns exec node1 bash\n\
                 node1's metrics:\n  {enter} curl -s http://{address}/metrics\n\
                 the agents:{nodes}{}",
                try_devices(&stage)?
            )
        } else {
            let pids: Vec<String> = (0..stage.nodes())
                .filter_map(|i| Some(stage.pid(i)?.to_string()))
                .collect();
            let (pids, home) = (pids.join(" "), quoted(scratch.path()));
            format!(
                "agents are left running; to end them and remove their files:\n  \
                 kill {pids}; rm -r {home}\n\
                 the agents:{nodes}"
            )
        };
        stage.keep()?;
        scratch.keep();
        Ok(text)
    }
}

/// Writes down the devices of a fabric that is left running. Says how to use them.
fn try_devices(stage: &Stage) -> Result<String, PlayError> {
    let nodes = stage.nodes_with_devices();
    let Some(first) = nodes.first().copied() else {
        return Ok(String::new());
    };
    let node = |i: &usize| {
        let record = NodeRecord {
            socket: stage.socket(*i),
            devices: devices::directory(*i),
            gid: devices::gid(stage.ground().addresses(*i).data),
            engine: stage
                .engine(*i)
                .iter()
                .map(|word| word.to_string_lossy().into_owned())
                .collect(),
        };
        (node_name(*i), record)
    };
    let record = Record {
        pid: isolation::pid(),
        own_user_namespace: isolation::is_own_user_namespace(),
        program: devices::program(),
        library: devices::library(),
        nodes: nodes.iter().map(node).collect(),
    };
    record.write().map_err(|source| PlayError::Files {
        path: stage.socket(first),
        source,
    })?;
    // On the management network: there a program's own connection depends on no spine.
    let address = stage.ground().addresses(first).control.ip();
    let here = node_name(first);
    let peer = nodes
        .get(1)
        .copied()
        .map_or_else(|| here.clone(), node_name);
    let weft = std::env::current_exe();
    let weft = weft.map_or_else(|_| "weft".to_owned(), |path| quoted(&path));
    Ok(format!(
        "\nthe devices:\n  {weft} device list\n  {weft} device run {here} -- ibv_devinfo\n\
         between two of them, in two shells:\n  {weft} device run {here} -- ib_write_bw\n  \
         {weft} device run {peer} -- ib_write_bw {address}"
    ))
}

/// One word to a shell.
fn quoted(path: &Path) -> String {
    let text = path.display().to_string();
    format!("'{}'", text.replace('\'', r"'\''"))
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

/// Does what blocks beside the runtime. A panic of it goes on here.
async fn on_a_thread<T, E>(
    work: impl FnOnce() -> Result<T, E> + Send + 'static,
) -> Result<T, PlayError>
where
    T: Send + 'static,
    E: Send + 'static,
    PlayError: From<E>,
{
    let (running, ended) = oneshot::channel::<()>();
    let started = thread::Builder::new().spawn(move || {
        let _running = running;
        work()
    });
    let thread = started.map_err(|source| FabricError::NoThread { source })?;
    // Nothing is sent: it ends when the other half is gone, after a panic too.
    let _ = ended.await;
    match thread.join() {
        Ok(result) => Ok(result?),
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

async fn at(due: Option<Instant>) {
    match due {
        Some(due) => sleep_until(due).await,
        None => std::future::pending().await,
    }
}

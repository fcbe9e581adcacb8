//! One row of the table, played once: lay out, begin, strike at the drawn moment, judge the end.

mod judge;

use std::{
    collections::BTreeMap,
    fs::{self, OpenOptions, Permissions},
    os::unix::{
        ffi::OsStrExt,
        fs::{FileExt, PermissionsExt, symlink},
        net::UnixListener,
    },
    panic::panic_any,
    path::PathBuf,
    time::Duration,
};

pub(crate) use judge::assert_refusal;
use nix::mount::{MsFlags, mount};
use tokio::time::timeout;
use weft_fabric::Unreachable;
use weft_planner::Strategy;
use weft_proto::{
    Message as _,
    agent::v1::{
        Algorithm, AttemptRef, CancelRequest, ErrorDetail, Location, Overwrite, PrepareRequest,
        Symlinks, Verification,
    },
};
use weft_sim::draw::Draw;
use weft_transfer::{Destination, Failure, LeaderContext, Runner, Spec, Timing, Transfer};

use crate::{
    TooLate,
    packets::Attack,
    stage::{ROOT, SPINES, Stage, mount_tmpfs, name},
    tree::{Tree, Work, below},
};

/// Nothing here takes longer, even on a machine that does ten other things.
const DEADLINE: Duration = Duration::from_secs(120);
/// Bytes of an IP packet that still passes where long ones are dropped.
const SHORT: u32 = 1600;
/// How long the outage of all spines lasts; the transport's stall timeout is 10 s.
const OUTAGE: Duration = Duration::from_secs(3);
/// Attempts in a row that may bring nothing.
const BACKOFF_LIMIT: u32 = 6;
/// For what does not get better: no time is spent on waiting.
const BACKOFF_LIMIT_VAIN: u32 = 0;
/// Of the bytes, when a fault may strike: reports come every 50 ms, some 5 % of a transfer, and the
/// machine may be busy while it strikes.
const MOMENT_PERCENT: (u64, u64) = (5, 40);
/// The least that a remedy needs: a verb and an object.
const REMEDY_BYTES: usize = 8;

/// A fault, and what must come of it.
#[derive(Debug, Clone)]
pub(crate) struct Row {
    pub(crate) name: &'static str,
    pub(crate) work: Work,
    pub(crate) to: &'static [usize],
    pub(crate) strategy: Strategy,
    pub(crate) fault: Fault,
    pub(crate) end: End,
}

/// What is wrong, and from when on.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Fault {
    /// Nothing: the work itself is the unusual thing.
    None,
    /// With the source, before the job begins.
    Source(AtSource),
    /// With node 1's destination, before the job begins.
    Destination(AtDestination),
    /// Happens when the drawn part of the bytes is at this node.
    Within(usize, Strike),
}

/// The largest file of the source is the one it happens to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AtSource {
    Missing,
    Unreadable,
    Socket,
    Device,
    NameNotUtf8,
    Symlink,
    Parent,
    Absolute,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AtDestination {
    /// A file system smaller than the data.
    Full,
    /// A file system mounted read-only.
    ReadOnly,
    /// A file of another kind in the way.
    DirectoryInTheWay,
    Symlink,
    Parent,
    Absolute,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Strike {
    /// One byte, in place.
    ChangeSource,
    /// Another file under the same name.
    ReplaceSource,
    TruncateSource,
    RemoveSource,
    /// Another job wants the same destination.
    Rival,
    /// A node that nobody hears of any more.
    Unreachable(usize),
    /// SIGKILL, and a new agent at once.
    Restart(usize),
    /// The same, and the new agent's monotonic clock is hours apart.
    RestartWithOtherClock(usize),
    /// One spine drops everything.
    BlackHole,
    /// So many spines drop what is longer than [`SHORT`]: one of them, or all.
    LongPackets(usize),
    /// All spines drop everything for [`OUTAGE`].
    Outage,
    Loss(f64),
    Corruption(f64),
    /// Replayed, forged and truncated packets from another node.
    Attack,
}

/// The expected final state.
#[derive(Debug, Clone, Copy)]
pub(crate) enum End {
    /// Everywhere.
    Verified,
    /// These nodes fail for one of these reasons, with these words; all others are Verified.
    Failed {
        nodes: &'static [usize],
        reasons: &'static [&'static str],
        /// What the message names besides the node: the remedy's verb.
        says: &'static [&'static str],
    },
}

/// What a row knows while it is played.
struct Play<'a> {
    row: &'a Row,
    stage: &'a mut Stage,
    draw: Draw,
    job: String,
    tree: Tree,
    /// Of the source, below node 0's root; `destination` below the others'.
    source: String,
    destination: String,
    /// Bytes at each node when the fault struck.
    struck: BTreeMap<usize, u64>,
    drops: BTreeMap<String, u64>,
    attack: Option<Attack>,
}

/// Plays a row with a seed; panics when anything is not as it must be.
pub(crate) async fn play(stage: &mut Stage, row: &Row, seed: u64) {
    // Rows that stand side by side draw different moments.
    let mix = |sum: u64, byte| sum.wrapping_mul(31).wrapping_add(u64::from(byte));
    let stream = row.name.bytes().fold(0, mix);
    let mut draw = Draw::new(seed, stream);
    let tree = Tree::draw(row.work, &mut draw);
    let job = stage.new_job();
    let path = format!("{}-{seed}", row.name.replace('_', "-"));
    tree.write(&stage.root(0).join(&path));
    let mut play = Play {
        row,
        stage,
        draw,
        job,
        tree,
        source: path.clone(),
        destination: path,
        struck: BTreeMap::new(),
        drops: BTreeMap::new(),
        attack: None,
    };
    play.prepare();
    timeout(DEADLINE, play.run()).await.expect("the job ends");
}

impl Play<'_> {
    /// The source's largest file.
    fn file(&self) -> PathBuf {
        below(&self.stage.root(0).join(&self.source), &self.tree.largest())
    }

    /// The faults that are there before the job.
    fn prepare(&mut self) {
        match self.row.fault {
            Fault::Source(fault) => self.spoil_source(fault),
            Fault::Destination(fault) => self.spoil_destination(fault),
            Fault::None | Fault::Within(..) => {}
        }
    }

    fn spoil_source(&mut self, fault: AtSource) {
        let file = self.file();
        match fault {
            AtSource::Missing => fs::remove_file(file).unwrap(),
            AtSource::Unreadable => {
                fs::set_permissions(file, Permissions::from_mode(0o000)).unwrap();
            }
            AtSource::Socket => drop(UnixListener::bind(file.with_file_name("socket")).unwrap()),
            AtSource::Device => {
                // A device node cannot be made in a user namespace, but it can be mounted.
                let device = file.with_file_name("device");
                fs::write(&device, []).unwrap();
                let bind = MsFlags::MS_BIND;
                mount(Some("/dev/null"), &device, None::<&str>, bind, None::<&str>).unwrap();
            }
            AtSource::NameNotUtf8 => {
                let name = std::ffi::OsStr::from_bytes(b"model-\xff\xfe.bin");
                fs::write(file.with_file_name(name), []).unwrap();
            }
            AtSource::Symlink => {
                let link = file.with_file_name("link");
                symlink("/etc/passwd", link).unwrap();
            }
            AtSource::Parent => self.source = format!("{}/../../node1", self.source),
            AtSource::Absolute => self.source = file.display().to_string(),
        }
    }

    fn spoil_destination(&mut self, fault: AtDestination) {
        let root = self.stage.root(1);
        let (place, path) = (root.join("place"), self.destination.clone());
        match fault {
            AtDestination::Full => {
                fs::create_dir(&place).unwrap();
                mount_tmpfs(&place, "size=1m");
                self.destination = format!("place/{path}");
            }
            AtDestination::ReadOnly => {
                fs::create_dir(&place).unwrap();
                mount_tmpfs(&place, "size=64m,ro");
                self.destination = format!("place/{path}");
            }
            AtDestination::DirectoryInTheWay => {
                fs::create_dir_all(root.join(&path).join("model.bin").join("kept")).unwrap();
            }
            AtDestination::Symlink => {
                // Out of the root, to a directory that could be written.
                symlink(self.stage.root(3), &place).unwrap();
                self.destination = format!("place/{path}");
            }
            AtDestination::Parent => self.destination = format!("../node3/{path}"),
            AtDestination::Absolute => {
                self.destination = self.stage.root(3).join(path).display().to_string();
            }
        }
    }

    fn spec(&self) -> Spec {
        let lasting = !matches!(self.row.fault, Fault::Within(..))
            || matches!(self.row.fault, Fault::Within(_, Strike::Unreachable(_)));
        Spec {
            uid: self.job.clone(),
            name: None,
            source: self.stage.place(0, &self.source),
            symlinks: Symlinks::Follow,
            object: None,
            destinations: self
                .row
                .to
                .iter()
                .map(|node| self.stage.place(*node, &self.destination))
                .collect(),
            topology: self.stage.topology(),
            strategy: self.row.strategy,
            payload_share: self.stage.ground().payload_share(),
            algorithm: Algorithm::Blake3,
            expect: String::new(),
            overwrite: Overwrite::IfDifferent,
            timing: Timing::INTERACTIVE,
            leader: LeaderContext::ONLY,
            backoff_limit: if lasting {
                BACKOFF_LIMIT_VAIN
            } else {
                BACKOFF_LIMIT
            },
        }
    }

    async fn run(&mut self) {
        let mut runner = self.stage.begin(self.spec());
        if let Fault::Within(node, strike) = self.row.fault {
            let percent = self.draw.within(MOMENT_PERCENT.0, MOMENT_PERCENT.1);
            let due = (self.tree.bytes() * percent / 100).max(1);
            drive(&mut runner, |job| bytes_at(job, node) >= due).await;
            let job = runner.transfer();
            assert!(
                !job.is_over() || job.is_complete(),
                "it fails without any fault: {}",
                standings(job)
            );
            in_time(!job.is_over(), || {
                format!("over before the moment: {}", standings(job))
            });
            self.strike(&mut runner, node, strike).await;
        }
        drive(&mut runner, |_| false).await;
        self.judge(runner.transfer());
    }

    /// Does it; where that was not done while bytes moved, the seed is played again.
    async fn strike(&mut self, runner: &mut Runner, node: usize, strike: Strike) {
        let total = self.tree.bytes();
        for &node in self.row.to.iter().chain([&node]) {
            self.struck.insert(node, self.stage.moved(node, &self.job));
        }
        self.drops = self.stage.drops(node);
        let fabric = &self.stage.fabric;
        match strike {
            Strike::ChangeSource => {
                let file = OpenOptions::new()
                    .write(true)
                    .read(true)
                    .open(self.file())
                    .unwrap();
                let at = self.draw.within(0, file.metadata().unwrap().len() - 1);
                let mut byte = [0];
                file.read_exact_at(&mut byte, at).unwrap();
                file.write_all_at(&[!byte[0]], at).unwrap();
            }
            Strike::ReplaceSource => {
                let (file, other) = (self.file(), self.file().with_file_name("other"));
                fs::copy(&file, &other).unwrap();
                fs::rename(&other, &file).unwrap();
            }
            Strike::TruncateSource => {
                let file = OpenOptions::new().write(true).open(self.file()).unwrap();
                file.set_len(self.draw.within(0, file.metadata().unwrap().len() - 1))
                    .unwrap();
            }
            Strike::RemoveSource => fs::remove_file(self.file()).unwrap(),
            Strike::Rival => {
                let manifest = runner
                    .transfer()
                    .listing()
                    .unwrap()
                    .stat
                    .manifest_digest
                    .clone();
                self.rival(manifest, node).await;
            }
            Strike::Unreachable(node) => {
                fabric.fail_node(node, Unreachable::Everywhere).unwrap();
                self.assert_silenced_within(node);
            }
            Strike::Restart(node) => {
                self.stage.kill(node).unwrap();
                self.assert_silenced_within(node);
                self.stage.serve(node, &[]).await;
            }
            Strike::RestartWithOtherClock(node) => {
                self.stage.kill(node).unwrap();
                self.assert_silenced_within(node);
                let offset = self.draw.within(1, 1 << 20).to_string();
                let clocks = ["unshare", "--time", "--monotonic", &offset, "--"];
                self.stage.serve(node, &clocks).await;
            }
            Strike::BlackHole => {
                fabric
                    .fail_spine(self.draw.within(0, SPINES as u64 - 1) as usize)
                    .unwrap();
            }
            Strike::LongPackets(spines) => {
                for spine in 0..spines {
                    fabric.drop_longer_than(spine, Some(SHORT)).unwrap();
                }
            }
            Strike::Outage => {
                fabric.fail_all().unwrap();
                let job = drive(runner, |_| false);
                timeout(OUTAGE, job)
                    .await
                    .expect_err("nothing arrives meanwhile");
                let moved = self.stage.moved(node, &self.job);
                in_time(moved < total, || "it ended before".to_owned());
                self.stage.fabric.heal_all().unwrap();
            }
            Strike::Loss(share) => fabric.set_loss(share).unwrap(),
            Strike::Corruption(share) => fabric.set_corrupt(share).unwrap(),
            Strike::Attack => self.attack = Some(Attack::carry_out(self.stage, node)),
        }
        assert!(self.struck[&node] > 0, "nothing had moved yet");
        let cannot_say = matches!(
            strike,
            Strike::Restart(_) | Strike::RestartWithOtherClock(_) | Strike::Unreachable(_)
        );
        if !cannot_say {
            let moved = self.stage.moved(node, &self.job);
            in_time(moved < total, || {
                format!("struck too late: {moved} of {total} bytes had moved")
            });
        }
    }

    /// What an agent that is dead or out of reach cannot say: its file was not whole, or it is the source.
    fn assert_silenced_within(&self, node: usize) {
        if self.row.to.contains(&node) {
            let path = self.stage.root(node).join(&self.destination);
            self.tree.assert_nothing_wrong(&path);
            in_time(!self.tree.is_published(&path), || {
                format!("{} is published", path.display())
            });
        } else {
            let (total, others) = (self.tree.bytes(), self.row.to);
            let least = others
                .iter()
                .map(|node| self.stage.moved(*node, &self.job))
                .min();
            in_time(least < Some(total), || {
                "killed after the last byte had moved".to_owned()
            });
        }
    }

    /// Another job's Prepare for the same place.
    async fn rival(&mut self, manifest: Vec<u8>, node: usize) {
        let rival = self.stage.new_job();
        let (job, mut agent) = (job(&rival), self.stage.operator(node));
        let request = prepare(&job, &self.destination, manifest, Overwrite::IfDifferent);
        let answer = agent.prepare(request).await;
        let moved = self.stage.moved(node, &self.job);
        in_time(moved < self.tree.bytes(), || {
            "the rival came too late".to_owned()
        });
        let status = answer.unwrap_err();
        let failure = failure(&status);
        assert_refusal(
            &failure,
            node,
            &["DestinationBusy"],
            &[&self.job, "wait for that job"],
        );
        assert!(failure.retriable);
        let cancel = CancelRequest {
            attempt: Some(job),
            leader_epoch: 1,
            remove_partials: true,
            release_copies: false,
        };
        agent.cancel(cancel).await.unwrap();
    }
}

/// That the fault struck while bytes moved: without it nothing was tried.
fn in_time(holds: bool, why: impl FnOnce() -> String) {
    if !holds {
        eprintln!("{}", why());
        panic_any(TooLate);
    }
}

/// Plays the operator until the job is over or this holds.
async fn drive(runner: &mut Runner, until: impl Fn(&Transfer) -> bool) {
    while !runner.transfer().is_over() && !until(runner.transfer()) {
        runner.run_once().await;
    }
}

/// Bytes that are known to be at a node; at the source, bytes that it has read.
fn bytes_at(job: &Transfer, node: usize) -> u64 {
    if node == 0 {
        return job.source_progress().bytes;
    }
    let at = name(node);
    let mut views = job.destinations().filter(|view| view.location.node == at);
    views.next().map_or(0, |view| view.progress.bytes)
}

fn standings(job: &Transfer) -> String {
    let text = |view: &Destination| {
        format!(
            "{}: {:?} with {} bytes",
            view.location.node, view.phase, view.bytes
        )
    };
    let all: Vec<String> = job.destinations().map(text).collect();
    let source = job.source_progress();
    format!(
        "attempt {}; {}; source: {} {}",
        job.attempt(),
        all.join("; "),
        source.reason,
        source.message
    )
}

pub(crate) fn job(uid: &str) -> AttemptRef {
    AttemptRef {
        uid: uid.to_owned(),
        generation: 1,
        number: 1,
    }
}

pub(crate) fn prepare(
    job: &AttemptRef,
    path: &str,
    manifest_digest: Vec<u8>,
    overwrite: Overwrite,
) -> PrepareRequest {
    PrepareRequest {
        attempt: Some(job.clone()),
        leader_epoch: 1,
        location: Some(Location {
            root: ROOT.to_owned(),
            path: path.to_owned(),
        }),
        manifest_digest,
        verification: Some(Verification {
            algorithm: Algorithm::Blake3.into(),
            expect: String::new(),
        }),
        overwrite: overwrite.into(),
        job_name: None,
        fingerprint: Vec::new(),
        // The node has it, or is told where it is.
        manifest_from: None,
    }
}

/// An agent's error, as the operator understands it.
pub(crate) fn failure(status: &tonic::Status) -> Failure {
    let detail = ErrorDetail::decode(status.details()).unwrap();
    assert!(detail.remedy.len() >= REMEDY_BYTES, "{detail:?}");
    assert!(status.message().ends_with(&detail.remedy), "{detail:?}");
    Failure {
        node: detail.node,
        reason: detail.reason,
        message: status.message().to_owned(),
        retriable: detail.retriable,
    }
}

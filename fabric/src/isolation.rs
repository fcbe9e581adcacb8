//! Runs the rest of the program in namespaces of its own, so that nothing it makes outlives it.
//!
//! [`enter`] is called first thing in `main`, before any thread exists. It starts the same program
//! again in a chain of four processes:
//!
//! ```text
//! program          what the shell started: waits, passes signals down, returns the exit status
//! └ unsharer       makes the user (if needed), network, mount and pid namespaces
//!   └ init         pid 1 inside: private mounts, reaps orphans, ends when the program ends
//!     └ program    the same command line; here `enter` returns `Entered::Inside`
//! ```
//!
//! The first process stays untouched, so that a caller whose namespaces are refused can go on
//! without them. Each process is killed by the kernel when the one above it dies, and all processes
//! below `init` die with it: a SIGKILL anywhere takes everything down, and with the last process go
//! the mounts, the interfaces and the network namespaces.
//!
//! This is done here and not by the `unshare` program because a refusal has to come back as a
//! reason with a remedy, because pid 1 must reap, and because pid 1 would ignore Ctrl-C if it were
//! the program itself.
//!
//! The exception is asked for, by [`keep`]: when the program then ends, `init` leaves the session and
//! the processes above it, which end as usual, and goes on until it is told to end.
//!
//! All four are in the process group of the first: the terminal stays theirs. A signal sent to the
//! first process alone is passed down; one sent to the whole group may reach the program more than
//! once, so its handling must be idempotent.

use std::{
    fmt, fs, io,
    io::{PipeReader, Write},
    os::{fd::AsFd, unix::process::CommandExt},
    path::Path,
    process::{Child, Command},
    sync::atomic::{AtomicBool, Ordering},
};

use nix::{
    errno::Errno,
    fcntl::{FcntlArg, FdFlag, fcntl},
    mount::{MsFlags, mount},
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sched::{CloneFlags, unshare},
    sys::{
        prctl::set_pdeathsig,
        signal::{SigSet, Signal, kill},
        signalfd::SignalFd,
        wait::{WaitPidFlag, WaitStatus, waitpid},
    },
    unistd::{
        Pid, close, dup2_stderr, dup2_stdin, dup2_stdout, getegid, geteuid, getpid, getppid, setsid,
    },
};

/// Tells a re-executed copy which process of the chain it is.
const ROLE: &str = "WEFT_ISOLATION";
/// Tells the isolated program the pid of `init`, as the user sees it.
const INIT: &str = "WEFT_ISOLATION_PID";
/// Value of [`ROLE`] in the program that runs inside.
const INSIDE: &str = "inside";
/// Is there when [`keep`] was called: in the private `/run`, so it speaks of this isolation only.
const KEPT: &str = "/run/weft-kept";
/// What `init` reports when everything is there.
const READY: &str = "ready\n";
/// What it reports, before the program's exit status, when it stays.
const STAYS: &str = "stays ";
/// What shells report for a program that died of a signal: this plus the signal's number.
const SIGNALLED: i32 = 128;
/// `si_code` of a signal that the kernel sent, which the terminal sends to the whole group.
const SI_KERNEL: i32 = 0x80;

/// A terminal that hangs up tells the leader of its session only.
fn is_hangup(signal: u32) -> bool {
    i32::try_from(signal) == Ok(Signal::SIGHUP as i32)
}

static IS_INSIDE: AtomicBool = AtomicBool::new(false);

/// What [`enter`] made of this process.
#[derive(Debug, PartialEq, Eq)]
pub enum Entered {
    /// This process is isolated: go on with the program.
    Inside,
    /// The isolated program has ended: exit with this status.
    Ended(u8),
}

/// The step at which isolation was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Starting the program a second time.
    Start,
    /// Making the namespaces.
    Unshare,
    /// Becoming root inside the user namespace.
    MapUser,
    /// Making the mounts private.
    PrivateMounts,
    /// A private `/run`.
    PrivateRun,
}

const STEPS: [Step; 5] = [
    Step::Start,
    Step::Unshare,
    Step::MapUser,
    Step::PrivateMounts,
    Step::PrivateRun,
];

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Start => "starting this program again",
            Self::Unshare => "making namespaces",
            Self::MapUser => "mapping this user to root",
            Self::PrivateMounts => "making the mounts private",
            Self::PrivateRun => "mounting a private /run",
        })
    }
}

/// Why this program cannot have namespaces of its own.
#[derive(Debug, thiserror::Error)]
pub enum IsolationError {
    /// The kernel or its policy said no.
    #[error("no namespaces here: {step} failed ({cause}); {remedy}")]
    Refused {
        /// What was refused.
        step: Step,
        /// With which error.
        cause: Errno,
        /// What would allow it.
        remedy: String,
    },
    /// A process of the chain died before the program was started.
    #[error("no namespaces here: the process that makes them died with status {status}; run again")]
    Died {
        /// Its exit status.
        status: i32,
    },
    /// A pipe, a wait or a signal descriptor failed.
    #[error("cannot watch over the isolated program: {0}")]
    Watch(#[from] io::Error),
}

impl IsolationError {
    /// A stable word for the cause.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Refused { .. } => "NamespacesRefused",
            Self::Died { .. } => "IsolationDied",
            Self::Watch(_) => "IsolationLost",
        }
    }
}

/// Whether this process runs isolated: [`enter`] returned [`Entered::Inside`] in it.
pub fn is_inside() -> bool {
    IS_INSIDE.load(Ordering::Acquire)
}

/// Pid of the process that everything isolated ends with, as the user sees it; this process where
/// nothing is isolated.
pub fn pid() -> u32 {
    let init = std::env::var(INIT).ok().filter(|_| is_inside());
    init.and_then(|pid| pid.parse().ok())
        .unwrap_or_else(std::process::id)
}

/// Lets what runs in the namespaces go on when this program ends, until [`pid`] is told to end by
/// SIGTERM. Without it, everything ends with this program.
pub fn keep() -> io::Result<()> {
    fs::File::create(KEPT).map(drop)
}

/// Whether the isolated program is root in a user namespace of its own only.
pub fn is_own_user_namespace() -> bool {
    let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    is_inside() && map.split_whitespace().last() == Some("1")
}

/// Continues this program in fresh namespaces.
///
/// Call it first in `main`, before any thread is started: the copies come through here as well.
/// In the process that the user started it returns when the isolated program has ended, or at once
/// with the reason why there are no namespaces; that process is then as it was before the call.
pub fn enter() -> Result<Entered, IsolationError> {
    let role = std::env::var(ROLE).unwrap_or_default();
    let mut words = role.split(':');
    match (
        words.next(),
        words.next().map(str::parse::<i32>),
        words.next().map(str::parse::<i32>),
    ) {
        (Some(INSIDE), None, None) if getppid().as_raw() == 1 => {
            supervised_signals()
                .thread_unblock()
                .map_err(io::Error::from)?;
            IS_INSIDE.store(true, Ordering::Release);
            Ok(Entered::Inside)
        }
        (Some("unsharer"), Some(Ok(report)), Some(Ok(parent))) if getppid().as_raw() == parent => {
            Ok(reported(report, || unsharer(report, parent)))
        }
        (Some("init"), Some(Ok(report)), None) if getpid().as_raw() == 1 => {
            Ok(reported(report, init))
        }
        _ => outermost(),
    }
}

/// The process that the user started.
fn outermost() -> Result<Entered, IsolationError> {
    let before = SigSet::thread_get_mask().map_err(io::Error::from)?;
    let entered = start_and_watch();
    if entered.is_err() {
        before.thread_set_mask().map_err(io::Error::from)?;
    }
    entered
}

fn start_and_watch() -> Result<Entered, IsolationError> {
    let signals = block_signals().map_err(io::Error::from)?;
    let (mut report, writer) = io::pipe()?;
    // Inherited by the two processes that may have something to report, and by nothing else:
    // this one starts no other process.
    fcntl(&writer, FcntlArg::F_SETFD(FdFlag::empty())).map_err(io::Error::from)?;
    let role = format!(
        "unsharer:{}:{}",
        std::os::fd::AsRawFd::as_raw_fd(&writer),
        getpid()
    );
    let child = start(&role).map_err(|cause| refused(Step::Start, cause))?;
    drop(writer);

    let mut said = read_message(&mut report)?;
    if said == READY {
        return Ok(Entered::Ended(exit_status(watch(
            &child,
            &signals,
            Some(report),
        )?)));
    }
    let status = watch(&child, &signals, None)?;
    said.retain(|c| c != '\n');
    let mut words = said.split(' ').map(str::parse::<usize>);
    match (words.next(), words.next()) {
        (Some(Ok(step)), Some(Ok(errno))) if step < STEPS.len() => {
            let errno = Errno::from_raw(i32::try_from(errno).unwrap_or_default());
            Err(refused(STEPS[step], errno))
        }
        _ => Err(IsolationError::Died { status }),
    }
}

/// Up to the end of the line, or to the end: the writers are dead.
fn read_message(report: &mut PipeReader) -> io::Result<String> {
    let mut said = String::new();
    io::BufRead::read_line(&mut io::BufReader::with_capacity(1, report), &mut said)?;
    Ok(said)
}

type Failure = (Step, Errno);

/// Runs one of the two middle processes and reports its failure to start the next one.
fn reported(report: i32, run: impl FnOnce() -> Result<(Child, SignalFd), Failure>) -> Entered {
    let pipe = fs::OpenOptions::new()
        .write(true)
        .open(format!("/proc/self/fd/{report}"));
    let is_init = getpid().as_raw() == 1;
    // What was inherited goes on to pid 1 and no further: the program must not hold it open.
    let early = if is_init { close(report) } else { Ok(()) };
    let outcome = run();
    let closed = if is_init { early } else { close(report) };
    let Ok(mut pipe) = pipe else {
        return Entered::Ended(1);
    };
    match outcome {
        Ok((child, signals)) => {
            // Pid 1 is the last that can fail. If nobody listens, the first process is dead
            // already, and ending here ends everything below.
            let alive = !is_init || pipe.write_all(READY.as_bytes()).is_ok();
            if !alive || closed.is_err() {
                return Entered::Ended(1);
            }
            let status = watch(&child, &signals, None).unwrap_or(1);
            if is_init && Path::new(KEPT).exists() {
                stay(&mut pipe, status, &signals);
            }
            Entered::Ended(exit_status(status))
        }
        Err((step, errno)) => {
            let index = STEPS.iter().position(|s| *s == step).unwrap_or_default();
            // Without a reader there is nobody left to tell.
            let _ = writeln!(pipe, "{index} {}", errno as i32);
            Entered::Ended(1)
        }
    }
}

/// Pid 1 takes leave of those above it and goes on until a signal ends it, and with it everything.
fn stay(pipe: &mut fs::File, status: i32, signals: &SignalFd) {
    let mut leave = || -> io::Result<()> {
        set_pdeathsig(None)?;
        // Its terminal is no concern of it any more, and nobody shall wait for what it might say.
        setsid()?;
        let null = fs::OpenOptions::new()
            .read(true)
            .write(true)
            .open("/dev/null")?;
        dup2_stdin(&null)?;
        dup2_stdout(&null)?;
        dup2_stderr(&null)?;
        writeln!(pipe, "{STAYS}{status}")
    };
    if leave().is_err() {
        return;
    }
    loop {
        // Its children now are orphans.
        while matches!(waitpid(None, Some(WaitPidFlag::WNOHANG)), Ok(status) if status != WaitStatus::StillAlive)
        {
        }
        match signals.read_signal() {
            Ok(Some(info)) if info.ssi_signo != Signal::SIGCHLD as u32 => return,
            Ok(_) | Err(Errno::EINTR) => {}
            Err(_) => return,
        }
    }
}

/// Makes the namespaces; its child is pid 1 in them.
fn unsharer(report: i32, parent: i32) -> Result<(Child, SignalFd), Failure> {
    let signals = block_signals().map_err(|e| (Step::Start, e))?;
    let (user, group) = (geteuid(), getegid());
    let inner = CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWPID;
    let as_root = if user.is_root() {
        unshare(inner)
    } else {
        Err(Errno::EPERM)
    };
    if as_root == Err(Errno::EPERM) {
        unshare(CloneFlags::CLONE_NEWUSER | inner).map_err(|e| (Step::Unshare, e))?;
        let map = |file: &str, text: String| {
            fs::write(Path::new("/proc/self").join(file), text)
                .map_err(|e| (Step::MapUser, errno_of(&e)))
        };
        map("setgroups", "deny".into())?;
        map("uid_map", format!("0 {user} 1"))?;
        map("gid_map", format!("0 {group} 1"))?;
    } else {
        as_root.map_err(|e| (Step::Unshare, e))?;
    }
    // After the change of credentials, which may clear it.
    set_pdeathsig(Signal::SIGKILL).map_err(|e| (Step::Start, e))?;
    if getppid().as_raw() != parent {
        return Err((Step::Start, Errno::ESRCH));
    }
    let child = start(&format!("init:{report}")).map_err(|e| (Step::Start, e))?;
    Ok((child, signals))
}

/// Pid 1 of the new namespaces.
fn init() -> Result<(Child, SignalFd), Failure> {
    set_pdeathsig(Signal::SIGKILL).map_err(|e| (Step::Start, e))?;
    let signals = block_signals().map_err(|e| (Step::Start, e))?;
    // The /proc of outside, still: the pid that the user sees.
    let pid = fs::read_link("/proc/self").map_err(|e| (Step::Start, errno_of(&e)))?;
    mount(
        none(),
        "/",
        none(),
        MsFlags::MS_REC | MsFlags::MS_PRIVATE,
        none(),
    )
    .map_err(|e| (Step::PrivateMounts, e))?;
    // So that `ps` and /proc show the pids of this namespace. A container that masks parts of
    // /proc refuses it, and everything works without.
    if let Err(e) = mount(
        Some("proc"),
        "/proc",
        Some("proc"),
        MsFlags::empty(),
        none(),
    ) {
        tracing::debug!("no /proc of its own: {e}");
    }
    private_run().map_err(|e| (Step::PrivateRun, errno_of(&e)))?;
    let child = start_with(INSIDE, |command| {
        command.env(INIT, pid);
    });
    Ok((child.map_err(|e| (Step::Start, e))?, signals))
}

/// Puts a tmpfs over `/run` whose `netns` directory is private, with everything else that was
/// there bound back to its place: a user's files under `/run/user` stay where they are.
fn private_run() -> io::Result<()> {
    let run = Path::new("/run");
    let old = fs::File::open(run)?;
    let old = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&old));
    let entries: Vec<_> = fs::read_dir(&old)?.collect::<io::Result<_>>()?;
    mount(
        Some("weft"),
        run,
        Some("tmpfs"),
        MsFlags::empty(),
        Some("mode=0755"),
    )?;
    for entry in entries {
        let (source, target) = (
            Path::new(&old).join(entry.file_name()),
            run.join(entry.file_name()),
        );
        let kind = entry.file_type()?;
        // What is ours there belongs to the isolation around this one.
        let name = entry.file_name();
        if name == "netns" || name.to_string_lossy().starts_with("weft-") {
            continue;
        } else if kind.is_symlink() {
            std::os::unix::fs::symlink(fs::read_link(&source)?, &target)?;
            continue;
        } else if kind.is_dir() {
            fs::create_dir(&target)?;
        } else {
            fs::File::create(&target)?;
        }
        let flags = MsFlags::MS_BIND | MsFlags::MS_REC;
        if let Err(e) = mount(Some(&source), &target, none(), flags, none()) {
            tracing::debug!("{} is not visible in here: {e}", target.display());
        }
    }
    fs::create_dir(run.join("netns"))
}

fn none() -> Option<&'static str> {
    None
}

/// Starts this program with the same arguments in another role.
fn start(role: &str) -> Result<Child, Errno> {
    start_with(role, |_| {})
}

fn start_with(role: &str, change: impl FnOnce(&mut Command)) -> Result<Child, Errno> {
    let mut arguments = std::env::args_os();
    let name = arguments.next();
    let program = std::env::current_exe().map_err(|e| errno_of(&e))?;
    let mut command = Command::new(program);
    if let Some(name) = name {
        command.arg0(name);
    }
    command.args(arguments).env(ROLE, role);
    change(&mut command);
    command.spawn().map_err(|e| errno_of(&e))
}

/// The signals that the processes of the chain take by descriptor instead of dying of them.
fn supervised_signals() -> SigSet {
    [
        Signal::SIGINT,
        Signal::SIGTERM,
        Signal::SIGHUP,
        Signal::SIGQUIT,
        Signal::SIGCHLD,
    ]
    .into_iter()
    .collect()
}

fn block_signals() -> nix::Result<SignalFd> {
    let signals = supervised_signals();
    signals.thread_block()?;
    SignalFd::with_flags(&signals, nix::sys::signalfd::SfdFlags::SFD_CLOEXEC)
}

/// Reaps until the child has ended, passing on signals that were meant for it, or until the report
/// says that what is below stays.
fn watch(child: &Child, signals: &SignalFd, mut report: Option<PipeReader>) -> io::Result<i32> {
    let child = Pid::from_raw(i32::try_from(child.id()).map_err(io::Error::other)?);
    loop {
        loop {
            match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
                Ok(WaitStatus::Exited(pid, status)) if pid == child => return Ok(status),
                Ok(WaitStatus::Signaled(pid, signal, _)) if pid == child => {
                    return Ok(SIGNALLED + signal as i32);
                }
                Ok(WaitStatus::StillAlive) => break,
                Ok(_) | Err(Errno::EINTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
        if let Some(pipe) = &mut report {
            let mut ready = [
                PollFd::new(pipe.as_fd(), PollFlags::POLLIN),
                PollFd::new(signals.as_fd(), PollFlags::POLLIN),
            ];
            match poll(&mut ready, PollTimeout::NONE) {
                Ok(_) => {}
                Err(Errno::EINTR) => continue,
                Err(e) => return Err(e.into()),
            }
            let [said, signalled] = ready.map(|fd| fd.any().unwrap_or_default());
            if said {
                let said = read_message(pipe)?;
                if let Some(status) = said.strip_prefix(STAYS) {
                    return status.trim().parse().map_err(io::Error::other);
                }
                report = None;
            }
            if !signalled {
                continue;
            }
        }
        match signals.read_signal() {
            Ok(Some(info)) if info.ssi_code != SI_KERNEL || is_hangup(info.ssi_signo) => {
                let signal = i32::try_from(info.ssi_signo)
                    .ok()
                    .and_then(|n| Signal::try_from(n).ok());
                if let Some(signal) = signal.filter(|s| *s != Signal::SIGCHLD) {
                    // It may have ended in this moment; the next turn reaps it.
                    let _ = kill(child, signal);
                }
            }
            Ok(_) | Err(Errno::EINTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
}

fn exit_status(status: i32) -> u8 {
    u8::try_from(status & 0xff).unwrap_or(u8::MAX)
}

fn errno_of(error: &io::Error) -> Errno {
    Errno::from_raw(error.raw_os_error().unwrap_or(Errno::EIO as i32))
}

fn refused(step: Step, cause: Errno) -> IsolationError {
    let says = |file: &str, value: &str| {
        fs::read_to_string(Path::new("/proc/sys").join(file)).is_ok_and(|s| s.trim() == value)
    };
    let kinds = ["user", "net", "mnt", "pid"];
    let none_allowed = kinds.map(|kind| format!("user/max_{kind}_namespaces"));
    let none_allowed = none_allowed.iter().find(|file| says(file, "0"));
    let remedy = if step == Step::Start {
        "see that the program's file is still in place and that processes may be started".to_owned()
    } else if let Some(file) = none_allowed {
        let sysctl = file.replace('/', ".");
        format!("run as root, or set the sysctl {sysctl} above 0")
    } else if cause == Errno::ENOSPC {
        let sysctls = kinds.map(|kind| format!("user.max_{kind}_namespaces"));
        format!(
            "as many as allowed are in use: raise the sysctls {}",
            sysctls.join(", ")
        )
    } else if says("kernel/unprivileged_userns_clone", "0") {
        "run as root, or set the sysctl kernel.unprivileged_userns_clone=1".to_owned()
    } else if says("kernel/apparmor_restrict_unprivileged_userns", "1") {
        "run as root, or set the sysctl kernel.apparmor_restrict_unprivileged_userns=0".to_owned()
    } else {
        "run as root; inside a container, run the container privileged".to_owned()
    };
    IsolationError::Refused {
        step,
        cause,
        remedy,
    }
}

//! The fabric under `weft play`, in real namespaces: as the user who runs the tests and, if that is
//! root, as an ordinary user too.
//!
//! Each case is this program started again with [`CASE`] set: it isolates itself, builds a fabric
//! and ends with status 0, or panics. Where namespaces are refused the cases fail and say why.

// Not `#[test]` functions, so clippy does not see that these are tests.
#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr)]

mod cases;

use std::{
    fs,
    io::{self, Read, Write},
    os::fd::AsFd,
    os::unix::{
        fs::{MetadataExt, PermissionsExt},
        process::CommandExt,
    },
    path::PathBuf,
    process::{Command, Output, Stdio},
};

use libtest_mimic::{Arguments, Trial};
use nix::{
    poll::{PollFd, PollFlags, poll},
    sys::signal::{Signal, kill},
    unistd::{Pid, geteuid},
};
use rustix::process::{PidfdFlags, pidfd_open};
use weft_fabric::{
    Fabric, FabricError, Spec,
    isolation::{self, Entered},
};

/// Names the case that this process shall run.
const CASE: &str = "WEFT_FABRIC_CASE";
/// Where a case leaves a file for the host to find.
const OUT: &str = "WEFT_FABRIC_OUT";
/// A kernel ends a dozen processes in milliseconds.
const GONE_WITHIN_MS: u16 = 60_000;
/// User id of `nobody`.
const NOBODY: u32 = 65_534;
/// A name and what it runs inside.
type Case = (&'static str, fn());

/// What the trials on the host make an isolated program do.
const PROGRAMS: [Case; 3] = [
    ("says_and_writes", says_and_writes),
    ("stays_up", stays_up),
    ("keeps", keeps),
];

fn main() {
    if let Ok(name) = std::env::var(CASE) {
        match isolation::enter() {
            Ok(Entered::Inside) => {}
            Ok(Entered::Ended(status)) => std::process::exit(status.into()),
            Err(e) => {
                eprintln!("{e}");
                std::process::exit(1);
            }
        }
        let all = cases::CASES.iter().chain(&PROGRAMS);
        let (_, run) = all.into_iter().find(|(known, _)| *known == name).unwrap();
        run();
        return;
    }
    let users = if geteuid().is_root() {
        vec![None, Some(NOBODY)]
    } else {
        vec![None]
    };
    let mut trials = vec![Trial::test("nothing_is_built_outside_of_isolation", || {
        let refused = Fabric::build(&Spec::default());
        assert!(matches!(refused, Err(FabricError::NotIsolated)));
        Ok(())
    })];
    trials.push(Trial::test("a_refusal_says_what_would_allow_it", || {
        a_refusal_says_what_would_allow_it();
        Ok(())
    }));
    for user in users {
        let mut add = |name: &str, run: Box<dyn FnOnce() + Send>| {
            let by = if user.is_some() {
                "as_nobody"
            } else {
                "as_this_user"
            };
            trials.push(Trial::test(format!("{by}::{name}"), || {
                run();
                Ok(())
            }));
        };
        for (name, _) in cases::CASES {
            add(
                name,
                Box::new(move || {
                    let said = Program::new(user).command(name).output().unwrap();
                    assert!(said.status.success(), "{}", text(&said));
                }),
            );
        }
        add(
            "output_status_and_files_pass_through",
            Box::new(move || output_status_and_files_pass_through(user)),
        );
        add(
            "a_killed_program_leaves_nothing_on_the_host",
            Box::new(move || a_killed_program_leaves_nothing(user)),
        );
        add(
            "what_is_kept_outlives_the_program_until_it_is_killed",
            Box::new(move || what_is_kept_outlives_the_program(user)),
        );
        add(
            "sigterm_reaches_the_program",
            Box::new(move || sigterm_reaches_the_program(user)),
        );
    }
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}

/// A copy of this program that any user can run, with a directory that the user can write.
struct Program {
    directory: tempfile::TempDir,
    user: Option<u32>,
}

impl Program {
    fn new(user: Option<u32>) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = |mode| fs::Permissions::from_mode(mode);
        fs::set_permissions(directory.path(), path(0o777)).unwrap();
        if user.is_some() {
            let file = directory.path().join("fabric");
            // Another program copies it: were the file written by this one, a fork of another
            // thread could still hold it open, and the kernel runs no file that is being written.
            let copied = Command::new("cp")
                .arg(std::env::current_exe().unwrap())
                .arg(&file)
                .status()
                .unwrap();
            assert!(copied.success());
            fs::set_permissions(&file, path(0o755)).unwrap();
        }
        Self { directory, user }
    }

    fn command(&self, case: &str) -> Command {
        let mut command = match self.user {
            Some(_) => Command::new(self.directory.path().join("fabric")),
            None => Command::new(std::env::current_exe().unwrap()),
        };
        if let Some(user) = self.user {
            command.uid(user).gid(user);
        }
        command
            .env(CASE, case)
            .env(OUT, self.directory.path())
            .current_dir(self.directory.path());
        command
    }
}

fn text(output: &Output) -> String {
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    format!(
        "{}\n{}{}",
        output.status,
        text(&output.stdout),
        text(&output.stderr)
    )
}

fn says_and_writes() {
    println!("to stdout");
    eprintln!("to stderr");
    let out = PathBuf::from(std::env::var_os(OUT).unwrap());
    fs::write(out.join("written"), "inside").unwrap();
    std::process::exit(7);
}

fn output_status_and_files_pass_through(user: Option<u32>) {
    let program = Program::new(user);
    let output = program.command("says_and_writes").output().unwrap();
    assert_eq!(output.status.code(), Some(7), "{}", text(&output));
    assert_eq!(output.stdout, b"to stdout\n");
    assert_eq!(output.stderr, b"to stderr\n");
    let file = program.directory.path().join("written");
    assert_eq!(fs::read_to_string(&file).unwrap(), "inside");
    assert_eq!(
        fs::metadata(&file).unwrap().uid(),
        user.unwrap_or(geteuid().as_raw())
    );
}

/// In a user namespace that allows none of a kind, without capabilities.
fn a_refusal_says_what_would_allow_it() {
    for kind in ["user", "net", "mnt", "pid"] {
        let sysctl = format!("user.max_{kind}_namespaces");
        let file = format!("/proc/sys/user/max_{kind}_namespaces");
        let script = format!("echo 0 > {file} && exec setpriv --bounding-set=-all $0");
        let output = Command::new("unshare")
            .args(["--user", "--map-root-user", "sh", "-c", &script])
            .arg(std::env::current_exe().unwrap())
            .env(CASE, "says_and_writes")
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(1), "{}", text(&output));
        assert_eq!(
            String::from_utf8(output.stderr).unwrap(),
            format!(
                "no namespaces here: making namespaces failed (ENOSPC: No space left on device); \
                 run as root, or set the sysctl {sysctl} above 0\n"
            )
        );
    }
}

/// With a fabric, and a process in a node.
fn stays_up() {
    let fabric = Fabric::build(&Spec::default()).unwrap();
    let mut child = fabric
        .command(0, "cat")
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    print!("up");
    io::stdout().flush().unwrap();
    // `wait` would close its standard input, and that would end it.
    let _open = child.stdin.take();
    child.wait().unwrap();
}

/// Starts `stays_up` and reads until its fabric is there.
fn start_staying(program: &Program) -> std::process::Child {
    let mut child = program
        .command("stays_up")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut up = [0; 2];
    if child.stdout.as_mut().unwrap().read_exact(&mut up).is_err() {
        panic!("{}", text(&child.wait_with_output().unwrap()));
    }
    child
}

/// Names of ours among the host's interfaces and named namespaces.
fn traces_on_the_host() -> Vec<String> {
    let ours = ["weft-", "mgmt", "node", "leaf", "spine", "data0"];
    ["/sys/class/net", "/run/netns"]
        .into_iter()
        .filter_map(|directory| fs::read_dir(directory).ok())
        .flatten()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| ours.iter().any(|start| name.starts_with(start)))
        .collect()
}

fn a_killed_program_leaves_nothing(user: Option<u32>) {
    let program = Program::new(user);
    let mounts = || {
        fs::read_to_string("/proc/self/mountinfo")
            .unwrap()
            .lines()
            .count()
    };
    let before = mounts();
    let mut child = start_staying(&program);
    assert_eq!(traces_on_the_host(), Vec::<String>::new(), "while it runs");
    child.kill().unwrap();
    // Every process of the tree holds the other end: this ends when the last of them is gone.
    child
        .stdout
        .take()
        .unwrap()
        .read_to_end(&mut Vec::new())
        .unwrap();
    child.wait().unwrap();
    assert_eq!(traces_on_the_host(), Vec::<String>::new());
    assert_eq!(mounts(), before);
}

/// Leaves a fabric and a process in it, and says what ends both.
fn keeps() {
    let fabric = Fabric::build(&Spec::default()).unwrap();
    isolation::keep().unwrap();
    let mut left = fabric.command(1, "sleep");
    left.arg("infinity").stdin(Stdio::null());
    left.stdout(Stdio::null()).stderr(Stdio::null());
    left.spawn().unwrap();
    std::mem::forget(fabric);
    print!("{}", isolation::pid());
    io::stdout().flush().unwrap();
    std::process::exit(3);
}

fn what_is_kept_outlives_the_program(user: Option<u32>) {
    let program = Program::new(user);
    // Returns: nothing that stays holds its standard output.
    let output = program.command("keeps").output().unwrap();
    assert_eq!(output.status.code(), Some(3), "{}", text(&output));
    let pid = String::from_utf8(output.stdout).unwrap();
    assert_eq!(traces_on_the_host(), Vec::<String>::new());
    let mut enter = Command::new("nsenter");
    enter.args(["--target", &pid, "--mount", "--net", "--pid"]);
    if let Some(user) = user {
        enter.args(["--user", "--preserve-credentials"]);
        enter.uid(user).gid(user);
    }
    enter.args("ip netns exec node1 sh -c".split(' '));
    enter.arg("ip -brief address; ps -e -o comm");
    let inside = enter.output().unwrap();
    let said = text(&inside);
    assert!(inside.status.success(), "{said}");
    assert!(said.contains("data0") && said.contains("sleep"), "{said}");

    let init = Pid::from_raw(pid.parse().unwrap());
    let handle = rustix::process::Pid::from_raw(init.as_raw()).unwrap();
    let handle = pidfd_open(handle, PidfdFlags::empty()).unwrap();
    kill(init, Signal::SIGTERM).unwrap();
    // The kernel ends everything in the namespaces before pid 1 is gone from them.
    let mut ended = [PollFd::new(handle.as_fd(), PollFlags::POLLIN)];
    assert_eq!(poll(&mut ended, GONE_WITHIN_MS).unwrap(), 1, "{pid} stays");
}

fn sigterm_reaches_the_program(user: Option<u32>) {
    let program = Program::new(user);
    let child = start_staying(&program);
    kill(
        Pid::from_raw(i32::try_from(child.id()).unwrap()),
        Signal::SIGTERM,
    )
    .unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(128 + 15), "{}", text(&output));
}

//! Libraries that are used through Python: a process in each of two nodes, which are told what to do line by line.
//!
//! `python/turns.py` says how they are spoken to.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::thread;
use std::time::Duration;

use crossbeam_channel::{Receiver, unbounded};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;
use weft_fabric::Fabric;

use super::BenchError;
use super::peers::{Killed, failed};
use super::turns::{Many, Paged, Took, Writer};
use super::ucx;

/// No answer takes this long.
const PATIENCE: Duration = Duration::from_secs(120);
const PYTHON: &str = "python3";
const TURNS: &str = include_str!("python/turns.py");
/// The module's library, as cargo names it and as Python does.
const MODULE: [&str; 2] = ["libweft_python.so", "_weft.abi3.so"];

/// A library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Library {
    /// NVIDIA's, over UCX, which runs over TCP.
    Nixl,
    /// Mooncake's TransferEngine, over TCP.
    Mooncake,
    /// The Python face of ours.
    Weft,
}

impl Library {
    fn name(self) -> &'static str {
        match self {
            Self::Nixl => "NIXL",
            Self::Mooncake => "Mooncake",
            Self::Weft => "the module weft",
        }
    }

    fn program(self) -> (&'static str, &'static str) {
        match self {
            Self::Nixl => ("by_nixl.py", include_str!("python/by_nixl.py")),
            Self::Mooncake => ("by_mooncake.py", include_str!("python/by_mooncake.py")),
            Self::Weft => ("by_weft.py", include_str!("python/by_weft.py")),
        }
    }

    /// What has to be in PYTHONPATH, and its version.
    fn find(self, scratch: &Path) -> Result<(PathBuf, String), String> {
        let (directory, package) = match self {
            Self::Nixl => (fetched("hack/nixl.sh", "WEFT_NIXL")?, "nixl_cu12"),
            Self::Mooncake => (fetched("hack/mooncake.sh", "WEFT_MOONCAKE")?, ""),
            Self::Weft => return Ok((assemble(scratch)?, String::new())),
        };
        let name = directory.file_name().unwrap_or_default();
        let name = name.to_string_lossy().into_owned();
        let version = name.rsplit('-').next().unwrap_or_default();
        Ok((directory.join(package), format!(" {version}")))
    }
}

/// Where a script of this repository has put a package. `variable` has it where the Makefile has asked the script, for it
/// may give another answer to who is root in a namespace only.
fn fetched(script: &str, variable: &str) -> Result<PathBuf, String> {
    let directory = match std::env::var_os(variable) {
        Some(directory) => PathBuf::from(directory),
        None => {
            let path = Path::new(env!("CARGO_MANIFEST_DIR"))
                .join("..")
                .join(script);
            let output = Command::new(path).arg("--where").output();
            let output = output.map_err(|error| format!("{script}: {error}"))?;
            PathBuf::from(String::from_utf8_lossy(&output.stdout).trim())
        }
    };
    match directory.is_dir() {
        true => Ok(directory),
        false => Err(format!("not fetched: run {script}")),
    }
}

/// Puts the Python package together from its sources and the library that cargo has built beside this program.
fn assemble(scratch: &Path) -> Result<PathBuf, String> {
    let beside = std::env::current_exe().map_err(|error| error.to_string())?;
    let library = beside.with_file_name(MODULE[0]);
    if !library.is_file() {
        return Err("not built: run cargo build --release -p weft-python".to_owned());
    }
    let package = scratch.join("weft");
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../python/weft");
    let copy = || -> std::io::Result<()> {
        fs::create_dir_all(&package)?;
        for entry in fs::read_dir(sources)? {
            let entry = entry?;
            if entry.file_type()?.is_file() {
                fs::copy(entry.path(), package.join(entry.file_name()))?;
            }
        }
        std::os::unix::fs::symlink(library, package.join(MODULE[1]))
    };
    copy().map_err(|error| error.to_string())?;
    Ok(scratch.to_owned())
}

/// The two processes, with so much memory each. They are stopped but in their turns: their libraries may poll, and what is
/// measured beside them needs the processors.
pub(crate) struct Pair {
    library: Library,
    version: String,
    target: Process,
    initiator: Process,
    /// Their programs, and what they say on standard error.
    _directory: TempDir,
}

impl Pair {
    /// Starts both, or says why they do not run.
    pub(crate) fn start(fabric: &Fabric, library: Library, bytes: usize) -> Result<Self, String> {
        let directory = tempfile::tempdir().map_err(|error| error.to_string())?;
        let (path, version) = library.find(directory.path())?;
        let (program, text) = library.program();
        let write = |name, text| fs::write(directory.path().join(name), text);
        write(program, text).map_err(|error| error.to_string())?;
        write("turns.py", TURNS).map_err(|error| error.to_string())?;
        let start = |node: usize, role: &'static str, name: Option<&str>| {
            let errors = directory.path().join(format!("{role}.log"));
            let mut command = ucx::with_own_devices(fabric, node, PYTHON);
            command
                .arg("-B")
                .arg(directory.path().join(program))
                .args([role, &bytes.to_string()])
                .arg(fabric.node(node).data_address.to_string())
                .args(name)
                .env("PYTHONPATH", &path)
                // NIXL fails where it may not look into its home.
                .env("HOME", directory.path())
                .env("NIXL_LOG_LEVEL", "ERROR")
                .env("GLOG_minloglevel", "2")
                .env("WEFT_MTU", fabric.spec().mtu.to_string());
            Process::start(library.name(), command, errors)
        };
        let told = |error: BenchError| error.to_string();
        let target = start(1, "target", None).map_err(told)?;
        let name = target.answer().map_err(told)?;
        let initiator = start(0, "initiator", Some(&name)).map_err(told)?;
        initiator.answer().map_err(told)?;
        let pair = Self {
            library,
            version,
            target,
            initiator,
            _directory: directory,
        };
        pair.signal(Signal::SIGSTOP).map_err(told)?;
        Ok(pair)
    }

    /// How a row names it.
    pub(crate) fn name(&self) -> String {
        let over = match self.library {
            Library::Nixl => ", UCX over TCP",
            Library::Mooncake => ", TCP",
            Library::Weft => "",
        };
        format!("{}{}{over}", self.library.name(), self.version)
    }

    fn signal(&self, signal: Signal) -> Result<(), BenchError> {
        [&self.target, &self.initiator]
            .into_iter()
            .try_for_each(|process| process.signal(signal))
    }

    fn measure(&mut self, order: &str, check: &str) -> Result<Took, BenchError> {
        self.signal(Signal::SIGCONT)?;
        self.target.ask("clear")?;
        self.target.ask("serve")?;
        let answer = self.initiator.ask(order)?;
        let told = self.target.ask(check)?;
        self.signal(Signal::SIGSTOP)?;
        if told != "same" {
            let message = format!("what was written {told} from what was sent, by {order:?}");
            return Err(failed(self.library.name(), &message));
        }
        took(&answer).ok_or_else(|| failed(self.library.name(), &answer))
    }
}

fn took(answer: &str) -> Option<Took> {
    let mut words = answer.split_whitespace().map(str::parse);
    Some(Took {
        seconds: words.next()?.ok()?,
        median_us: words.next()?.ok()?,
    })
}

impl Writer for Pair {
    fn write(&mut self, work: Many) -> Result<Took, BenchError> {
        let Many {
            bytes,
            count,
            outstanding,
        } = work;
        self.measure(
            &format!("write {bytes} {count} {outstanding}"),
            &format!("check {bytes} {count}"),
        )
    }

    fn write_pages(&mut self, work: Paged) -> Result<Took, BenchError> {
        let Paged {
            page,
            pages,
            operations,
            outstanding,
        } = work;
        self.measure(
            &format!("write_pages {page} {pages} {operations} {outstanding}"),
            &format!("check_pages {page} {pages} {operations}"),
        )
    }
}

/// How a row names a peer, which may not run.
pub(super) fn peer(pair: &Result<Pair, String>, library: Library) -> String {
    match pair {
        Ok(pair) => pair.name(),
        Err(why) => format!("{} ({why})", library.name()),
    }
}

/// A process that answers each line with a line.
struct Process {
    name: &'static str,
    orders: ChildStdin,
    answers: Receiver<String>,
    errors: PathBuf,
    child: Killed,
}

impl Process {
    fn start(
        name: &'static str,
        mut command: Command,
        errors: PathBuf,
    ) -> Result<Self, BenchError> {
        let log = File::create(&errors).map_err(BenchError::system(name))?;
        let child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn();
        let mut child = Killed(child.map_err(BenchError::system(name))?);
        let ends = |child: &mut Child| Some((child.stdin.take()?, child.stdout.take()?));
        let (orders, output) = ends(&mut child.0).ok_or(BenchError::Panicked(name))?;
        let (sends, answers) = unbounded();
        // It ends with the process.
        thread::spawn(move || {
            let lines = BufReader::new(output).lines();
            lines
                .map_while(Result::ok)
                .try_for_each(|line| sends.send(line))
        });
        Ok(Self {
            name,
            orders,
            answers,
            errors,
            child,
        })
    }

    fn signal(&self, signal: Signal) -> Result<(), BenchError> {
        let pid = Pid::from_raw(self.child.0.id().cast_signed());
        kill(pid, signal).map_err(BenchError::system(self.name))
    }

    fn ask(&mut self, order: &str) -> Result<String, BenchError> {
        let sent = writeln!(self.orders, "{order}");
        // One that has ended says why on standard error.
        sent.map_or_else(|_| Err(self.ended()), |()| self.answer())
    }

    fn answer(&self) -> Result<String, BenchError> {
        let answer = self.answers.recv_timeout(PATIENCE);
        answer.map_err(|_| self.ended())
    }

    fn ended(&self) -> BenchError {
        let said = fs::read_to_string(&self.errors).unwrap_or_default();
        let last = said.lines().rfind(|line| !line.trim().is_empty());
        failed(self.name, last.unwrap_or("gives no answer"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_has_seconds_and_the_median_of_one_write() {
        let Took { seconds, median_us } = took("0.25 16.5").unwrap();
        assert!((seconds - 0.25).abs() < 1e-9 && (median_us - 16.5).abs() < 1e-9);
        assert!(took("").is_none() && took("same").is_none());
    }

    #[test]
    fn a_process_that_fails_is_quoted_from_its_standard_error() {
        let directory = tempfile::tempdir().unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", "read line; echo \"no module\" >&2; exit 1"]);
        let errors = directory.path().join("log");
        let mut process = Process::start("a peer", command, errors).unwrap();
        let error = process.ask("write 8 1 1").unwrap_err();
        assert!(error.to_string().contains("no module"), "{error}");
    }
}

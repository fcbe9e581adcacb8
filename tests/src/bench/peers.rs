//! The programs that people move a file with: `nc` and `scp`, in the same two nodes as our agents.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use nix::unistd::{User, getuid};
use weft_fabric::Fabric;

use super::BenchError;

const NC_PORT: u16 = 7001;
const SSH_PORT: u16 = 7002;
/// A server that takes longer than this to listen has failed.
const LISTENS_WITHIN: Duration = Duration::from_secs(10);

/// Moves `source` of node 0 to `destination` of node 1 with `nc`; from the sender's start to the
/// receiver's end. It checks nothing and fsyncs nothing.
pub(super) fn nc(
    fabric: &Fabric,
    source: &Path,
    destination: &Path,
) -> Result<Duration, BenchError> {
    let address = fabric.node(1).data_address.to_string();
    let port = NC_PORT.to_string();
    let out = File::create(destination).map_err(BenchError::system("nc: its file"))?;
    let mut receiver = Killed(
        fabric
            .command(1, "nc")
            .args(["-l", &address, &port])
            .stdin(Stdio::null())
            .stdout(out)
            .stderr(Stdio::inherit())
            .spawn()
            .map_err(BenchError::system("nc"))?,
    );
    let deadline = Instant::now() + LISTENS_WITHIN;
    loop {
        let input = File::open(source).map_err(BenchError::system("nc: the source"))?;
        let begun = Instant::now();
        // A receiver that does not listen yet refuses, and the sender ends at once.
        let sent = fabric
            .command(0, "nc")
            .args(["-N", &address, &port])
            .stdin(input)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .map_err(BenchError::system("nc"))?;
        if sent.success() {
            let received = receiver.0.wait().map_err(BenchError::system("nc"))?;
            let took = begun.elapsed();
            succeeded("nc -l", received, "")?;
            same_size(source, destination)?;
            return Ok(took);
        }
        if Instant::now() > deadline {
            return Err(failed("nc", &format!("ended with {sent}")));
        }
    }
}

/// Copies a file within its file system with `cp`, which checks nothing and shares no blocks.
pub(super) fn cp(source: &Path, destination: &Path) -> Result<Duration, BenchError> {
    let begun = Instant::now();
    let copied = Command::new("cp")
        .args(["--reflink=never", "--sparse=never"])
        .args([source, destination])
        .status()
        .map_err(BenchError::system("cp"))?;
    let took = begun.elapsed();
    succeeded("cp", copied, "")?;
    same_size(source, destination)?;
    Ok(took)
}

/// An sshd of our own in node 1, with throw-away keys. Killed when dropped.
pub(super) struct Scp {
    directory: PathBuf,
    user: String,
    _server: Killed,
}

impl Scp {
    /// Makes keys in `directory` and starts the server.
    pub(super) fn start(fabric: &Fabric, directory: &Path) -> Result<Self, BenchError> {
        fs::create_dir_all(directory).map_err(BenchError::system("scp: its directory"))?;
        // Where sshd goes to live without privileges; a private directory inside of isolation.
        fs::create_dir_all("/run/sshd").map_err(BenchError::system("/run/sshd"))?;
        for key in ["host", "user"] {
            let file = directory.join(key);
            let made = Command::new("ssh-keygen")
                .args(["-q", "-t", "ed25519", "-N", "", "-f"])
                .arg(&file)
                .output()
                .map_err(BenchError::system("ssh-keygen"))?;
            succeeded(
                "ssh-keygen",
                made.status,
                &String::from_utf8_lossy(&made.stderr),
            )?;
        }
        let at = |name: &str| directory.join(name).display().to_string();
        let config = format!(
            "ListenAddress {}:{SSH_PORT}\nHostKey {}\nAuthorizedKeysFile {}\nPidFile none\n\
             StrictModes no\nUsePAM no\nPasswordAuthentication no\nPermitRootLogin yes\n\
             Subsystem sftp internal-sftp\n",
            fabric.node(1).data_address,
            at("host"),
            at("user.pub")
        );
        fs::write(directory.join("sshd_config"), config)
            .map_err(BenchError::system("sshd_config"))?;
        let log =
            File::create(directory.join("sshd.log")).map_err(BenchError::system("sshd.log"))?;
        // It starts itself again and wants to be called by its whole path.
        let server = fabric
            .command(1, sshd()?)
            .args(["-D", "-e", "-f"])
            .arg(directory.join("sshd_config"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .map_err(BenchError::system("sshd"))?;
        let user = User::from_uid(getuid()).ok().flatten();
        let user = user.map_or_else(|| "root".to_owned(), |user| user.name);
        Ok(Self {
            directory: directory.to_owned(),
            user,
            _server: Killed(server),
        })
    }

    /// Moves `source` of node 0 to `destination` of node 1; from scp's start to its end.
    pub(super) fn copy(
        &self,
        fabric: &Fabric,
        source: &Path,
        destination: &Path,
    ) -> Result<Duration, BenchError> {
        let to = format!(
            "{}@{}:{}",
            self.user,
            fabric.node(1).data_address,
            destination.display()
        );
        let deadline = Instant::now() + LISTENS_WITHIN;
        loop {
            let begun = Instant::now();
            let copied = fabric
                .command(0, "scp")
                .args(["-q", "-B", "-F", "none", "-o", "StrictHostKeyChecking=no"])
                .args(["-o", "UserKnownHostsFile=/dev/null", "-o", "LogLevel=ERROR"])
                .arg("-i")
                .arg(self.directory.join("user"))
                .args(["-P", &SSH_PORT.to_string()])
                .arg(source)
                .arg(&to)
                .stdin(Stdio::null())
                .output()
                .map_err(BenchError::system("scp"))?;
            let took = begun.elapsed();
            if copied.status.success() {
                same_size(source, destination)?;
                return Ok(took);
            }
            let text = String::from_utf8_lossy(&copied.stderr).into_owned();
            // Until the server listens; anything else is the end of it.
            if !text.contains("refused") || Instant::now() > deadline {
                let log = fs::read_to_string(self.directory.join("sshd.log")).unwrap_or_default();
                return Err(failed("scp", &format!("{} {}", text.trim(), log.trim())));
            }
        }
    }
}

/// A child that does not outlive this.
pub(super) struct Killed(pub(super) Child);

impl Drop for Killed {
    fn drop(&mut self) {
        // It may have ended by itself, which is as good.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn sshd() -> Result<PathBuf, BenchError> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain([PathBuf::from("/usr/sbin"), PathBuf::from("/usr/local/sbin")])
        .map(|directory| directory.join("sshd"))
        .find(|file| file.is_file())
        .ok_or_else(|| {
            failed(
                "sshd",
                "is not installed: install the package openssh-server",
            )
        })
}

fn same_size(source: &Path, destination: &Path) -> Result<(), BenchError> {
    let bytes = |path: &Path| fs::metadata(path).map(|metadata| metadata.len());
    let (had, got) = (bytes(source), bytes(destination));
    match (had, got) {
        (Ok(had), Ok(got)) if had == got => Ok(()),
        (had, got) => Err(failed("the copy", &format!("has {got:?} of {had:?} bytes"))),
    }
}

fn succeeded(program: &str, status: ExitStatus, said: &str) -> Result<(), BenchError> {
    if status.success() {
        Ok(())
    } else {
        Err(failed(
            program,
            &format!("ended with {status} {}", said.trim()),
        ))
    }
}

/// Where a program is, if it is installed.
pub(super) fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|directory| directory.join(program))
        .find(|file| file.is_file())
}

pub(crate) fn failed(program: &str, message: &str) -> BenchError {
    BenchError::Program {
        program: program.to_owned(),
        message: message.to_owned(),
    }
}

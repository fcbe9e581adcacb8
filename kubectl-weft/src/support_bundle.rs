//! `kubectl weft support-bundle`: what somebody who helps has to know, in one file, without secrets.

mod archive;
mod gather;
mod removal;

use std::{
    fs::{File, OpenOptions},
    io::{self, BufWriter, Write},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
};

use k8s_openapi::jiff::Timestamp;
use serde_json::Value;
use thiserror::Error;

use self::{
    archive::{Archive, Index},
    gather::Gatherer,
};
use crate::{
    cluster::{Cluster, ClusterError, Reach},
    output::{say, text},
};

/// What `kubectl weft support-bundle` takes.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// The file to write, which must not exist [default: weft-support-DATE-TIME.tar.gz in the current directory].
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Logs of this time: a number and s, m, h or d.
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = seconds)]
    pub since: u64,
    /// Which cluster to ask, and with which user. The namespace is that of Weft; without one it is looked for.
    #[command(flatten)]
    pub reach: Reach,
}

/// Why there is no bundle.
#[derive(Debug, Error)]
pub enum BundleError {
    /// The cluster did not answer at all.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// The file cannot be written.
    #[error(
        "--output: {path}: {source}; name a file that does not exist in a directory that has room"
    )]
    File {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The list could not be shown.
    #[error("the output could not be written: {0}; check the pipe or the disk behind it")]
    Write(#[from] io::Error),
}

/// Seconds of `90s`, `30m`, `1h` or `2d`.
fn seconds(text: &str) -> Result<u64, String> {
    let units = [("s", 1), ("m", 60), ("h", 3600), ("d", 86_400)];
    let parsed = units.into_iter().find_map(|(unit, seconds)| {
        let number: u64 = text.strip_suffix(unit)?.parse().ok()?;
        number.checked_mul(seconds).filter(|seconds| *seconds > 0)
    });
    parsed.ok_or_else(|| "write a number and s, m, h or d, as in 90s, 30m, 1h or 2d".to_owned())
}

/// Gathers, writes the file and prints what is in it. Meanwhile `err` gets what is being read.
///
/// # Errors
/// The cluster does not answer, or the file cannot be written. What the user may not read is no error: the list has it.
pub async fn run(
    args: &Args,
    out: &mut impl Write,
    err: &mut impl Write,
) -> Result<bool, BundleError> {
    let cluster = Cluster::reach(&args.reach).await?;
    // Nothing is written where there is no cluster.
    let server: Value = match cluster.send("GET", "/version", Vec::new()).await {
        Ok(server) => server,
        Err(ClusterError::Refused { message, .. }) => message.into(),
        Err(error) => return Err(error.into()),
    };
    let now = Timestamp::now();
    let name = format!("weft-support-{}", now.strftime("%Y%m%d-%H%M%S"));
    let path = args.output.clone();
    let path = path.unwrap_or_else(|| PathBuf::from(format!("{name}.tar.gz")));
    let failed = |source| BundleError::File {
        path: path.clone(),
        source,
    };
    refuse_existing(&path).map_err(failed)?;
    // Who is interrupted finds no half bundle under the name of a whole one.
    let mut part = path.clone().into_os_string();
    part.push(".part");
    let part = PathBuf::from(part);
    let file = create(&part).map_err(|source| BundleError::File {
        path: part.clone(),
        source,
    })?;
    let made_by = format!(
        "Made by kubectl weft {} at {now}, with logs of the last {} s.",
        weft_cli::VERSION,
        args.since
    );
    let seconds = u64::try_from(now.as_second()).unwrap_or_default();
    let mut gatherer = Gatherer {
        cluster: &cluster,
        archive: Archive::new(BufWriter::new(file), &name, made_by, seconds),
        progress: err,
        since_seconds: args.since,
    };
    let gathered = gatherer
        .gather(&server, args.reach.namespace.as_deref())
        .await;
    let written = gathered.and_then(|()| {
        let index = finish(gatherer.archive)?;
        refuse_existing(&path)?;
        std::fs::rename(&part, &path)?;
        Ok(index)
    });
    let index = written.map_err(|error| {
        // Half a bundle is none.
        let _ = std::fs::remove_file(&part);
        failed(error)
    })?;
    text(&index, out)?;
    say(format!("written to {}", path.display()), out)?;
    Ok(true)
}

fn refuse_existing(path: &Path) -> io::Result<()> {
    match path.symlink_metadata() {
        Ok(_) => Err(io::ErrorKind::AlreadyExists.into()),
        Err(_) => Ok(()),
    }
}

/// For its user only: it says much about a cluster.
fn create(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(0o600).open(path)
}

fn finish(archive: Archive<BufWriter<File>>) -> io::Result<Index> {
    let (index, file) = archive.finish()?;
    file.into_inner()?.sync_all()?;
    Ok(index)
}

#[cfg(test)]
mod tests {
    use super::seconds;

    #[test]
    fn a_time_is_a_number_and_a_unit() {
        for (text, expected) in [("90s", 90), ("30m", 1800), ("1h", 3600), ("2d", 172_800)] {
            assert_eq!(seconds(text), Ok(expected));
        }
        for text in ["", "h", "1", "-1h", "0s", "1w", "99999999999999999d"] {
            assert!(seconds(text).is_err(), "{text}");
        }
    }
}

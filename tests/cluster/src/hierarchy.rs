//! The nodes' control groups. A node gets one group in each hierarchy and sees it as the whole, so
//! two nodes' containers never meet, and what is left of a cluster is one directory.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use nix::unistd::Pid;

use crate::ClusterError;

/// Where every distribution mounts them.
pub(crate) const MOUNTED: &str = "/sys/fs/cgroup";
/// Holds a directory for each cluster, named by the pid that the cluster ends with.
const OURS: &str = "weft-cluster";
/// A group of these starts without processors and memory nodes, and takes no process until it has some.
const INHERITED: [&str; 2] = ["cpuset.cpus", "cpuset.mems"];

/// One hierarchy and a node's group in it.
#[derive(Debug)]
pub(crate) struct Group {
    /// Where the hierarchy is mounted.
    pub(crate) hierarchy: PathBuf,
    /// The node's group.
    pub(crate) directory: PathBuf,
}

/// Makes a node's group in every hierarchy.
pub(crate) fn make(cluster: u32, node: &str) -> Result<Vec<Group>, ClusterError> {
    let mut groups = Vec::new();
    for hierarchy in hierarchies()? {
        let mut directory = hierarchy.clone();
        for part in [OURS, &cluster.to_string(), node] {
            delegate(&directory)?;
            directory.push(part);
            make_one(&directory)?;
        }
        groups.push(Group {
            hierarchy,
            directory,
        });
    }
    Ok(groups)
}

fn make_one(directory: &Path) -> Result<(), ClusterError> {
    let failed = || format!("making the control group {}", directory.display());
    match fs::create_dir(directory) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            return Err(ClusterError::system(failed())(error));
        }
        _ => {}
    }
    for file in INHERITED {
        let (own, above) = (directory.join(file), directory.join("..").join(file));
        // The second hierarchy version has these files and inherits by itself.
        if own.exists() && above.exists() && read(&own)?.trim().is_empty() {
            fs::write(&own, read(&above)?).map_err(ClusterError::system(failed()))?;
        }
    }
    Ok(())
}

/// In the second version a group's children have the controllers that it says they have.
fn delegate(directory: &Path) -> Result<(), ClusterError> {
    let control = directory.join("cgroup.subtree_control");
    if !control.exists() {
        return Ok(());
    }
    for controller in read(&directory.join("cgroup.controllers"))?.split_whitespace() {
        let failed = format!(
            "giving {controller} to the children of {}",
            directory.display()
        );
        fs::write(&control, format!("+{controller}")).map_err(ClusterError::system(failed))?;
    }
    Ok(())
}

fn read(file: &Path) -> Result<String, ClusterError> {
    fs::read_to_string(file).map_err(ClusterError::system(file.display().to_string()))
}

/// Removes what an ended cluster left.
pub(crate) fn remove(cluster: u32) -> Result<(), ClusterError> {
    for hierarchy in hierarchies()? {
        let ours = hierarchy.join(OURS);
        let directory = ours.join(cluster.to_string());
        if directory.exists() {
            remove_tree(&directory).map_err(ClusterError::system(format!(
                "removing the control group {}",
                directory.display()
            )))?;
        }
        // Another cluster may have its own there.
        if ours.exists() && fs::read_dir(&ours).is_ok_and(|mut all| !all.any(is_directory)) {
            fs::remove_dir(&ours).map_err(ClusterError::system(ours.display().to_string()))?;
        }
    }
    Ok(())
}

/// The processes in these groups, and in those below.
pub(crate) fn processes(groups: &[Group]) -> Vec<Pid> {
    let mut found = Vec::new();
    for group in groups {
        list(&group.directory, &mut found);
    }
    found
}

/// A group that has just gone has no process.
fn list(directory: &Path, found: &mut Vec<Pid>) {
    let listed = fs::read_to_string(directory.join("cgroup.procs")).unwrap_or_default();
    found.extend(
        listed
            .lines()
            .filter_map(|pid| pid.parse().ok())
            .map(Pid::from_raw),
    );
    let entries = fs::read_dir(directory).into_iter().flatten();
    for entry in entries.flatten() {
        if entry.path().is_dir() {
            list(&entry.path(), found);
        }
    }
}

/// Removes those below these groups, in which no process is.
pub(crate) fn clear(groups: &[Group]) -> io::Result<()> {
    for group in groups {
        for entry in fs::read_dir(&group.directory)? {
            let path = entry?.path();
            if path.is_dir() {
                remove_tree(&path)?;
            }
        }
    }
    Ok(())
}

/// The files of a control group go with it.
fn remove_tree(directory: &Path) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            remove_tree(&entry.path())?;
        }
    }
    fs::remove_dir(directory)
}

fn is_directory(entry: io::Result<fs::DirEntry>) -> bool {
    entry.is_ok_and(|entry| entry.path().is_dir())
}

fn hierarchies() -> Result<Vec<PathBuf>, ClusterError> {
    let mounts = read(Path::new("/proc/thread-self/mountinfo"))?;
    let found = mounted(&mounts);
    if found.is_empty() {
        return Err(ClusterError::Setting(format!(
            "no control groups are mounted at {MOUNTED}: a kubelet needs them; in a container, \
             mount the host's"
        )));
    }
    Ok(found)
}

/// In the words of mountinfo: `32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu`.
fn mounted(mounts: &str) -> Vec<PathBuf> {
    mounts
        .lines()
        .filter_map(|line| {
            let (place, kind) = line.split_once(" - ")?;
            let point = Path::new(place.split(' ').nth(4)?);
            (kind.starts_with("cgroup") && point.starts_with(MOUNTED)).then(|| point.to_owned())
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_versions_of_control_groups_are_found_where_they_are_mounted() {
        let first = "31 23 0:28 / /sys/fs/cgroup rw shared:9 - tmpfs tmpfs rw,mode=755\n\
                     32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
                     41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n\
                     42 31 0:39 / /mnt/cgroup rw - cgroup cgroup rw,pids\n";
        assert_eq!(
            mounted(first),
            [
                Path::new("/sys/fs/cgroup/cpu"),
                Path::new("/sys/fs/cgroup/unified")
            ]
        );
        let second = "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate\n";
        assert_eq!(mounted(second), [Path::new("/sys/fs/cgroup")]);
    }
}

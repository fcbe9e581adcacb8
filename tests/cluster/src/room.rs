//! A node's view of the file system: a mount namespace in which `/var`, `/run` and `/tmp` are its
//! own, `/sys` shows its network, and the rest of this machine is read-only.

use std::fs::{self, File};
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, setns, unshare};
use weft_fabric::Fabric;

use crate::ClusterError;
use crate::hierarchy::{Group, MOUNTED};
use crate::process::lock;

/// The cluster's programs, as the nodes see them.
pub(crate) const PROGRAMS: &str = "/run/weft-programs";

/// Where the groups are while `/sys` is changed.
const ASIDE: &str = "/run/weft-groups";

/// What a node's `/var` begins with.
const DIRECTORIES: [&str; 5] = ["lib/kubelet", "lib/containerd", "lib/cni", "log", "tmp"];

/// A mount namespace beside a node's network namespace.
#[derive(Debug)]
pub(crate) struct Room {
    node: usize,
    /// The node's `/var`, on the disk.
    var: PathBuf,
    programs: PathBuf,
    groups: Vec<Group>,
    /// The namespace.
    mounts: Mutex<File>,
}

impl Room {
    /// Makes it, with `directory`/var as its `/var`.
    pub(crate) fn make(
        fabric: &Fabric,
        node: usize,
        directory: &Path,
        programs: &Path,
        groups: Vec<Group>,
    ) -> Result<Self, ClusterError> {
        let var = directory.join("var");
        for part in DIRECTORIES {
            let part = var.join(part);
            fs::create_dir_all(&part).map_err(ClusterError::system(part.display().to_string()))?;
        }
        let run = var.join("run");
        std::os::unix::fs::symlink("/run", &run)
            .map_err(ClusterError::system(run.display().to_string()))?;
        let mounts = fabric.in_node(node, || furnish(&var, programs, &groups))??;
        Ok(Self {
            node,
            var,
            programs: programs.to_owned(),
            groups,
            mounts: Mutex::new(mounts),
        })
    }

    /// Its number in the fabric.
    pub(crate) fn node(&self) -> usize {
        self.node
    }

    /// The control groups of the node.
    pub(crate) fn groups(&self) -> &[Group] {
        &self.groups
    }

    /// Replaces the namespace by one as it was at first: what is not in `/var` is gone, and so is what was mounted there.
    pub(crate) fn renew(&self, fabric: &Fabric) -> Result<(), ClusterError> {
        let furnish = || furnish(&self.var, &self.programs, &self.groups);
        *lock(&self.mounts) = fabric.in_node(self.node, furnish)??;
        Ok(())
    }

    /// Calls `f` on a thread that has the node's files and network. What it starts has them too.
    pub(crate) fn inside<T: Send>(
        &self,
        fabric: &Fabric,
        f: impl FnOnce() -> Result<T, ClusterError> + Send,
    ) -> Result<T, ClusterError> {
        let failed = || format!("entering the mount namespace of node{}", self.node);
        let mounts = lock(&self.mounts).try_clone();
        let mounts = mounts.map_err(ClusterError::system(failed()))?;
        fabric.in_node(self.node, || {
            // A thread that shares its root directory with others may not change it.
            unshare(CloneFlags::CLONE_FS).map_err(ClusterError::system(failed()))?;
            setns(&mounts, CloneFlags::CLONE_NEWNS).map_err(ClusterError::system(failed()))?;
            f()
        })?
    }
}

/// Makes the calling thread's own mount namespace the node's, and returns it.
fn furnish(var: &Path, programs: &Path, groups: &[Group]) -> Result<File, ClusterError> {
    unshare(CloneFlags::CLONE_NEWNS).map_err(ClusterError::system("making a mount namespace"))?;
    // What is mounted below may lie over each other's sources: whoever holds a file open still
    // finds it.
    let (var, programs) = (Source::open(var)?, Source::open(programs)?);
    let links = links()?;
    let groups: Vec<(&Path, Source)> = groups
        .iter()
        .map(|group| Ok((&*group.hierarchy, Source::open(&group.directory)?)))
        .collect::<Result<_, ClusterError>>()?;

    tmpfs("/run", "mode=0755")?;
    tmpfs("/tmp", "mode=1777")?;
    for directory in [PROGRAMS, "/run/netns", "/run/cdi", "/run/lock"] {
        fs::create_dir(directory).map_err(ClusterError::system(directory))?;
    }
    programs.bind(Path::new(PROGRAMS))?;
    var.bind(Path::new("/var"))?;

    let groups: Vec<(&Path, String)> = groups
        .iter()
        .enumerate()
        .map(|(i, (hierarchy, group))| {
            let aside = format!("{ASIDE}/{i}");
            fs::create_dir_all(&aside).map_err(ClusterError::system(aside.clone()))?;
            group.bind(Path::new(&aside))?;
            Ok((*hierarchy, aside))
        })
        .collect::<Result<_, ClusterError>>()?;
    // A sysfs shows the network of who mounts it. The old one goes, and is not only covered: runc
    // believes the first mount of a hierarchy that the kernel lists.
    umount2("/sys", MntFlags::MNT_DETACH).map_err(ClusterError::system("unmounting /sys"))?;
    mount_on(Some("sysfs"), "/sys", Some("sysfs"), MsFlags::empty(), None)?;
    if groups
        .iter()
        .all(|(hierarchy, _)| *hierarchy != Path::new(MOUNTED))
    {
        tmpfs(MOUNTED, "mode=0755")?;
    }
    for (hierarchy, aside) in &groups {
        if !hierarchy.exists() {
            fs::create_dir(hierarchy)
                .map_err(ClusterError::system(hierarchy.display().to_string()))?;
        }
        let to = hierarchy.display().to_string();
        mount_on(Some(aside), &to, None, MsFlags::MS_MOVE, None)?;
    }
    fs::remove_dir_all(ASIDE).map_err(ClusterError::system(ASIDE))?;
    for (link, target) in links {
        std::os::unix::fs::symlink(&target, &link)
            .map_err(ClusterError::system(link.display().to_string()))?;
    }

    let read_only = MsFlags::MS_BIND | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY;
    mount_on(None, "/", None, read_only, None)?;
    // Volumes that a pod mounts for others to see are seen.
    mount_on(None, "/", None, MsFlags::MS_REC | MsFlags::MS_SHARED, None)?;
    let own = "/proc/thread-self/ns/mnt";
    File::open(own).map_err(ClusterError::system(own))
}

/// `cpu -> cpu,cpuacct` and the like, beside the hierarchies.
fn links() -> Result<Vec<(PathBuf, PathBuf)>, ClusterError> {
    let failed = ClusterError::system::<std::io::Error>;
    let mut links = Vec::new();
    for entry in fs::read_dir(MOUNTED).map_err(failed(MOUNTED))? {
        let path = entry.map_err(failed(MOUNTED))?.path();
        if path.is_symlink() {
            let target = fs::read_link(&path).map_err(failed(MOUNTED))?;
            links.push((path, target));
        }
    }
    Ok(links)
}

/// A directory that stays reachable when something is mounted over it.
struct Source {
    path: PathBuf,
    directory: File,
}

impl Source {
    fn open(path: &Path) -> Result<Self, ClusterError> {
        Ok(Self {
            path: path.to_owned(),
            directory: File::open(path)
                .map_err(ClusterError::system(path.display().to_string()))?,
        })
    }

    fn bind(&self, to: &Path) -> Result<(), ClusterError> {
        let source = format!("/proc/thread-self/fd/{}", self.directory.as_raw_fd());
        let flags = MsFlags::MS_BIND | MsFlags::MS_REC;
        mount(Some(&*source), to, None::<&str>, flags, None::<&str>).map_err(ClusterError::system(
            format!("binding {} to {}", self.path.display(), to.display()),
        ))
    }
}

fn tmpfs(to: &str, options: &str) -> Result<(), ClusterError> {
    mount_on(
        Some("weft"),
        to,
        Some("tmpfs"),
        MsFlags::empty(),
        Some(options),
    )
}

fn mount_on(
    source: Option<&str>,
    to: &str,
    kind: Option<&str>,
    flags: MsFlags,
    options: Option<&str>,
) -> Result<(), ClusterError> {
    mount(source, to, kind, flags, options)
        .map_err(ClusterError::system(format!("mounting {to} of a node")))
}

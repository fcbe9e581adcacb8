//! A network namespace with a name under `/run/netns`, as `ip netns` knows it.

use std::{
    fs::File,
    io,
    path::{Path, PathBuf},
    thread,
};

use nix::{
    errno::Errno,
    mount::{MntFlags, MsFlags, mount, umount2},
    sched::{CloneFlags, setns, unshare},
};

use crate::{FabricError, NAMESPACES_MAX, join, spawn};

const DIRECTORY: &str = "/run/netns";

/// For every namespace of the fabric, before it has an interface.
///
/// The multipath hash is policy 3 on exactly the fields of policy 1 (addresses, protocol, ports),
/// because policy 1 believes the hash that a sender's socket left in the packet: TCP and connected
/// UDP sockets then take a random spine, another in each direction, and TCP another after each
/// timeout. No real switch sees that hash.
const SETTINGS: [(&str, &str); 7] = [
    ("net/ipv4/ip_forward", "1"),
    ("net/ipv4/fib_multipath_hash_policy", "3"),
    ("net/ipv4/fib_multipath_hash_fields", "55"),
    ("net/ipv4/conf/all/rp_filter", "0"),
    ("net/ipv4/conf/default/rp_filter", "0"),
    ("net/ipv6/conf/all/disable_ipv6", "1"),
    ("net/ipv6/conf/default/disable_ipv6", "1"),
];

/// Owns the name and keeps the namespace alive.
#[derive(Debug)]
pub(crate) struct Namespace {
    name: String,
    file: File,
}

impl Namespace {
    /// Makes it and configures what is the same in all of them.
    pub(crate) fn create(name: String) -> Result<Self, FabricError> {
        let failed = |step: &'static str, source: io::Error| FabricError::Namespace {
            name: name.clone(),
            step,
            source,
        };
        let path = Path::new(DIRECTORY).join(&name);
        File::create_new(&path).map_err(|e| failed("naming it", e))?;
        let make = || {
            unshare(CloneFlags::CLONE_NEWNET).map_err(|e| match e {
                Errno::ENOSPC => too_few(&name),
                e => failed("making it", e.into()),
            })?;
            let this = Path::new("/proc/thread-self/ns/net");
            mount(
                Some(this),
                &path,
                None::<&str>,
                MsFlags::MS_BIND,
                None::<&str>,
            )
            .map_err(|e| failed("naming it", e.into()))?;
            for (setting, value) in SETTINGS {
                let file = Path::new("/proc/sys").join(setting);
                // A kernel without IPv6 has nothing to switch off.
                if setting.starts_with("net/ipv6") && !file.exists() {
                    continue;
                }
                std::fs::write(file, value).map_err(|e| failed(setting, e))?;
            }
            File::open(&path).map_err(|e| failed("opening it", e))
        };
        let made = thread::scope(|scope| join(spawn(scope, make)?));
        match made {
            Ok(file) => Ok(Self { name, file }),
            Err(e) => {
                remove(&path);
                Err(e)
            }
        }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn path(&self) -> PathBuf {
        Path::new(DIRECTORY).join(&self.name)
    }

    /// Calls `f` on a thread of this namespace. Processes that it starts are in it too, and so are
    /// sockets that it opens, for as long as they live.
    pub(crate) fn inside<T: Send>(
        &self,
        f: impl FnOnce() -> Result<T, FabricError> + Send,
    ) -> Result<T, FabricError> {
        let entered = || {
            setns(&self.file, CloneFlags::CLONE_NEWNET).map_err(|e| FabricError::Namespace {
                name: self.name.clone(),
                step: "entering it",
                source: e.into(),
            })?;
            f()
        };
        thread::scope(|scope| join(spawn(scope, entered)?))
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        remove(&self.path());
    }
}

fn too_few(name: &str) -> FabricError {
    let file = Path::new("/proc/sys").join(NAMESPACES_MAX.replace('.', "/"));
    let allowed = std::fs::read_to_string(file).unwrap_or_default();
    FabricError::TooFewNamespaces {
        name: name.to_owned(),
        allowed: allowed.trim().to_owned(),
    }
}

/// Takes the name away. The namespace itself ends with the last process and socket in it.
fn remove(path: &Path) {
    if let Err(e) = umount2(path, MntFlags::MNT_DETACH) {
        tracing::debug!("{}: {e}", path.display());
    }
    if let Err(e) = std::fs::remove_file(path) {
        tracing::debug!("{}: {e}", path.display());
    }
}

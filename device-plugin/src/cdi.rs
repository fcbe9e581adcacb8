//! What a container gets with a device: a file of the Container Device Interface for each, which the container runtime reads
//! when it makes the container.
//!
//! <https://github.com/cncf-tags/container-device-interface/blob/main/SPEC.md>, version 0.6.0.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::engine::DeviceLimits;
use crate::pods::Pod;

/// The version of the format: the first that containerd 1.7 and CRI-O 1.27 know.
const VERSION: &str = "0.6.0";
/// Where programs look for devices (`weft_device_socket::directory`).
const DEVICES: &str = "/dev/weft";
/// Where a container finds the libraries.
pub(crate) const LIBRARIES: &str = "/opt/weft/lib";
/// The libraries that are preloaded.
const PRELOADED: [&str; 2] = ["libibverbs.so.1", "librdmacm.so.1"];
/// How directories are mounted.
const READ_ONLY: [&str; 5] = ["ro", "nosuid", "nodev", "rbind", "rprivate"];

/// A device of a claim, as the annotations of its file say. The container runtime reads none of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ClaimDevice {
    /// Which of its pod's devices it is.
    pub(crate) index: usize,
    pub(crate) pod: Pod,
    pub(crate) pod_uid: String,
    /// The limits of its DeviceClass. The device has them again when it is made anew.
    pub(crate) limits: DeviceLimits,
    /// As what the claim has been allocated it: a device of a pool. Empty in a file of an earlier release.
    pub(crate) pool: String,
    pub(crate) device: String,
}

const INDEX: &str = "weft.dev/index";
const POD_NAMESPACE: &str = "weft.dev/pod-namespace";
const POD_NAME: &str = "weft.dev/pod-name";
const POD_UID: &str = "weft.dev/pod-uid";
const CAP_BPS: &str = "weft.dev/cap-bps";
const OPERATIONS: &str = "weft.dev/operations-per-second";
const SHARE: &str = "weft.dev/share";
const POOL: &str = "weft.dev/pool";
const DEVICE: &str = "weft.dev/device";

impl ClaimDevice {
    fn annotations(&self) -> BTreeMap<&'static str, String> {
        let DeviceLimits {
            cap_bps,
            ops_per_s,
            share,
        } = self.limits;
        let limits = [
            (CAP_BPS, cap_bps),
            (OPERATIONS, ops_per_s.into()),
            (SHARE, share.into()),
        ];
        let limits = limits.into_iter().filter(|(_, limit)| *limit > 0);
        let limits = limits.map(|(name, limit)| (name, limit.to_string()));
        let mut annotations = BTreeMap::from([
            (INDEX, self.index.to_string()),
            (POD_NAMESPACE, self.pod.namespace.clone()),
            (POD_NAME, self.pod.name.clone()),
            (POD_UID, self.pod_uid.clone()),
            (POOL, self.pool.clone()),
            (DEVICE, self.device.clone()),
        ]);
        annotations.extend(limits);
        annotations
    }

    fn of(mut annotations: BTreeMap<String, String>) -> Option<Self> {
        let number = |name| {
            let text: Option<&String> = annotations.get(name);
            text.and_then(|text| text.parse().ok()).unwrap_or(0)
        };
        let small = |name| u32::try_from(number(name)).unwrap_or(0);
        let limits = DeviceLimits {
            cap_bps: number(CAP_BPS),
            ops_per_s: small(OPERATIONS),
            share: small(SHARE),
        };
        Some(Self {
            limits,
            index: annotations.get(INDEX)?.parse().ok()?,
            pod: Pod {
                namespace: annotations.remove(POD_NAMESPACE)?,
                name: annotations.remove(POD_NAME)?,
            },
            pod_uid: annotations.remove(POD_UID)?,
            pool: annotations.remove(POOL).unwrap_or_default(),
            device: annotations.remove(DEVICE).unwrap_or_default(),
        })
    }
}

/// Of a file, what is read again.
#[derive(Debug, Deserialize)]
struct Annotated {
    #[serde(default)]
    annotations: BTreeMap<String, String>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Spec<'a> {
    cdi_version: &'a str,
    kind: &'a str,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    annotations: BTreeMap<&'static str, String>,
    devices: [Device<'a>; 1],
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Device<'a> {
    name: &'a str,
    container_edits: Edits<'a>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Edits<'a> {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    env: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    hooks: Vec<Hook<'a>>,
    mounts: [Mount<'a>; 3],
}

/// Of the OCI runtime.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Hook<'a> {
    hook_name: &'static str,
    path: &'a Path,
    args: [String; 3],
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Mount<'a> {
    host_path: &'a Path,
    container_path: &'a str,
    options: &'a [&'a str],
}

/// The directory with these files, for devices of one resource.
#[derive(Debug)]
pub(crate) struct Cdi {
    directory: PathBuf,
    /// `weft.dev/vdev`.
    kind: String,
    libraries: PathBuf,
    /// None where there may be no hooks: then the libraries are preloaded by a variable.
    hook: Option<PathBuf>,
}

impl Cdi {
    pub(crate) fn new(directory: &Path, kind: &str, libraries: &Path, hook: Option<&Path>) -> Self {
        Self {
            directory: directory.to_owned(),
            kind: kind.to_owned(),
            libraries: libraries.to_owned(),
            hook: hook.map(Path::to_owned),
        }
    }

    /// How the container runtime is told the device.
    pub(crate) fn name(&self, id: &str) -> String {
        format!("{}={id}", self.kind)
    }

    fn prefix(&self) -> String {
        format!("{}_", self.kind.replace('/', "-"))
    }

    fn path(&self, id: &str) -> PathBuf {
        self.directory.join(format!("{}{id}.json", self.prefix()))
    }

    /// Writes what the container of a device gets whose directory that is. It is the container's device number `index`, from 0.
    pub(crate) fn write(&self, id: &str, index: usize, device: &Path) -> io::Result<()> {
        self.write_annotated(id, index, device, BTreeMap::new())
    }

    /// The same for a device of a claim.
    pub(crate) fn write_for_claim(
        &self,
        id: &str,
        claim: &ClaimDevice,
        device: &Path,
    ) -> io::Result<()> {
        self.write_annotated(id, claim.index, device, claim.annotations())
    }

    /// What was written for a device of a claim. None where there is no file, or another one.
    pub(crate) fn read(&self, id: &str) -> io::Result<Option<ClaimDevice>> {
        let text = match fs::read(self.path(id)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            other => other?,
        };
        let found: Option<Annotated> = serde_json::from_slice(&text).ok();
        Ok(found.and_then(|found| ClaimDevice::of(found.annotations)))
    }

    fn write_annotated(
        &self,
        id: &str,
        index: usize,
        device: &Path,
        annotations: BTreeMap<&'static str, String>,
    ) -> io::Result<()> {
        let name = format!("weft{index}");
        let preloaded = PRELOADED.map(|library| format!("{LIBRARIES}/{library}"));
        let preloaded = format!("LD_PRELOAD={}", preloaded.join(":"));
        let hook = |path| Hook {
            hook_name: "createContainer",
            path,
            args: [
                "weft-container-hook".to_owned(),
                format!("--libraries={}", self.libraries.display()),
                format!("--device={name}={}", device.display()),
            ],
        };
        let spec = Spec {
            cdi_version: VERSION,
            kind: &self.kind,
            annotations,
            devices: [Device {
                name: id,
                container_edits: Edits {
                    env: match self.hook {
                        None => vec![preloaded],
                        Some(_) => Vec::new(),
                    },
                    hooks: self.hook.as_deref().map(hook).into_iter().collect(),
                    mounts: [
                        Mount {
                            host_path: device,
                            container_path: &format!("{DEVICES}/{name}"),
                            options: &READ_ONLY,
                        },
                        Mount {
                            host_path: &self.libraries,
                            container_path: LIBRARIES,
                            options: &READ_ONLY,
                        },
                        // UCX looks whether it is there and a character device, and does not open it. A mount, because a
                        // pod in a user namespace can have no device node.
                        Mount {
                            host_path: Path::new("/dev/null"),
                            container_path: &format!("/dev/infiniband/{name}"),
                            options: &["nosuid", "noexec", "bind"],
                        },
                    ],
                },
            }],
        };
        let text = serde_json::to_vec_pretty(&spec).map_err(io::Error::other)?;
        let path = self.path(id);
        if fs::read(&path).is_ok_and(|found| found == text) {
            return Ok(());
        }
        fs::create_dir_all(&self.directory)?;
        // Renamed in the same directory, which is what runtimes watch for: they never read half a file.
        let temporary = path.with_extension("tmp");
        let written = fs::write(&temporary, text).and_then(|()| fs::rename(&temporary, &path));
        written.inspect_err(|_| {
            // Where there was no room, half of it may be there.
            let _ = fs::remove_file(&temporary);
        })
    }

    /// The ids that have a file, of those that begin so.
    pub(crate) fn ids(&self, begin: &str) -> io::Result<BTreeSet<String>> {
        let entries = match fs::read_dir(&self.directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BTreeSet::new()),
            other => other?,
        };
        let prefix = self.prefix();
        let mut ids = BTreeSet::new();
        for entry in entries {
            let name = entry?.file_name();
            let id = name.to_str().and_then(|name| name.strip_prefix(&prefix));
            let id = id.and_then(|id| id.strip_suffix(".json"));
            ids.extend(id.filter(|id| id.starts_with(begin)).map(str::to_owned));
        }
        Ok(ids)
    }

    /// Removes a device's file, if it is there.
    pub(crate) fn remove(&self, id: &str) -> io::Result<()> {
        match fs::remove_file(self.path(id)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}

/// What to do where a file cannot be written or removed.
pub(crate) fn remedy(error: &io::Error) -> String {
    let directory = "the node's directory for these files (devices.cdiPath of the chart, by default /var/run/cdi)";
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            format!("make room in {directory}")
        }
        io::ErrorKind::ReadOnlyFilesystem | io::ErrorKind::PermissionDenied => {
            format!("make {directory} writable for root")
        }
        _ => format!("the container runtime reads it in {directory}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_container_gets_its_device_the_libraries_and_a_null_device() {
        let directory = tempfile::tempdir().unwrap();
        let own = directory.path().join("cdi");
        let libraries = Path::new("/opt/weft/lib");
        let cdi = Cdi::new(&own, "weft.dev/vdev", libraries, None);
        assert!(cdi.ids("vdev-").unwrap().is_empty());
        let device = Path::new("/run/weft/devices/vdev-00007");
        cdi.write("vdev-00007", 1, device).unwrap();
        assert_eq!(cdi.name("vdev-00007"), "weft.dev/vdev=vdev-00007");
        assert_eq!(cdi.ids("vdev-").unwrap(), ["vdev-00007".to_owned()].into());
        let text = fs::read(own.join("weft.dev-vdev_vdev-00007.json")).unwrap();
        let spec: serde_json::Value = serde_json::from_slice(&text).unwrap();
        let wanted = serde_json::json!({
            "cdiVersion": "0.6.0",
            "kind": "weft.dev/vdev",
            "devices": [{
                "name": "vdev-00007",
                "containerEdits": {
                    "env": ["LD_PRELOAD=/opt/weft/lib/libibverbs.so.1:/opt/weft/lib/librdmacm.so.1"],
                    "mounts": [
                        {
                            "hostPath": "/run/weft/devices/vdev-00007",
                            "containerPath": "/dev/weft/weft1",
                            "options": ["ro", "nosuid", "nodev", "rbind", "rprivate"],
                        },
                        {
                            "hostPath": "/opt/weft/lib",
                            "containerPath": "/opt/weft/lib",
                            "options": ["ro", "nosuid", "nodev", "rbind", "rprivate"],
                        },
                        {
                            "hostPath": "/dev/null",
                            "containerPath": "/dev/infiniband/weft1",
                            "options": ["nosuid", "noexec", "bind"],
                        },
                    ],
                },
            }],
        });
        assert_eq!(spec, wanted);
        let hook = Path::new("/opt/weft/bin/weft-container-hook");
        let cdi = Cdi::new(&own, "weft.dev/vdev", libraries, Some(hook));
        cdi.write("vdev-00007", 1, device).unwrap();
        let text = fs::read(own.join("weft.dev-vdev_vdev-00007.json")).unwrap();
        let mut spec: serde_json::Value = serde_json::from_slice(&text).unwrap();
        let edits = &mut spec["devices"][0]["containerEdits"];
        assert_eq!(edits["env"], serde_json::Value::Null);
        let wanted = serde_json::json!([{
            "hookName": "createContainer",
            "path": "/opt/weft/bin/weft-container-hook",
            "args": [
                "weft-container-hook",
                "--libraries=/opt/weft/lib",
                "--device=weft1=/run/weft/devices/vdev-00007",
            ],
        }]);
        assert_eq!(edits["hooks"], wanted);
        cdi.remove("vdev-00007").unwrap();
        cdi.remove("vdev-00007").unwrap();
        assert!(cdi.ids("vdev-").unwrap().is_empty());
    }

    #[test]
    fn the_file_of_a_claims_device_says_whose_it_is() {
        let directory = tempfile::tempdir().unwrap();
        let cdi = Cdi::new(directory.path(), "weft.dev/vdev", Path::new("/lib"), None);
        let claim = ClaimDevice {
            index: 1,
            pod: Pod {
                namespace: "team-a".to_owned(),
                name: "trainer-0".to_owned(),
            },
            pod_uid: "77".to_owned(),
            limits: DeviceLimits {
                share: 400,
                ..DeviceLimits::default()
            },
            pool: "n1".to_owned(),
            device: "vdev-7".to_owned(),
        };
        assert_eq!(cdi.read("dra-1").unwrap(), None);
        let device = Path::new("/run/weft/devices/dra-1");
        cdi.write_for_claim("dra-1", &claim, device).unwrap();
        assert_eq!(cdi.read("dra-1").unwrap(), Some(claim));
        cdi.write("vdev-00001", 0, device).unwrap();
        assert_eq!(cdi.read("vdev-00001").unwrap(), None);
        // Of the two ways to a device each sees its own.
        assert_eq!(cdi.ids("vdev-").unwrap(), ["vdev-00001".to_owned()].into());
        assert_eq!(cdi.ids("dra-").unwrap(), ["dra-1".to_owned()].into());
    }
}

//! Where the kubelet wants a volume.

use std::path::{Component, Path, PathBuf};

use tonic::Status;

/// The mount point of a pod's volume: `KUBELET/pods/POD-UID/volumes/kubernetes.io~csi/NAME/mount`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) path: PathBuf,
    /// Of the pod. It is drawn when the pod is made, so no pod's author knows it before.
    pub(crate) pod_uid: String,
}

impl Target {
    /// Checks it: nothing is mounted or unmounted elsewhere.
    pub(crate) fn parse(kubelet: &Path, path: &str) -> Result<Self, Status> {
        let refused = || {
            let text = format!(
                "target_path: {path:?} is no pod's volume in {}: give the driver the kubelet's directory",
                kubelet.display()
            );
            Status::invalid_argument(text)
        };
        let below = Path::new(path)
            .strip_prefix(kubelet)
            .map_err(|_| refused())?;
        let names: Option<Vec<&str>> = below
            .components()
            .map(|component| match component {
                Component::Normal(name) => name.to_str(),
                _ => None,
            })
            .collect();
        match names.as_deref() {
            Some(["pods", uid, "volumes", "kubernetes.io~csi", _, "mount"]) => Ok(Self {
                path: kubelet.join(below),
                pod_uid: (*uid).to_owned(),
            }),
            _ => Err(refused()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_but_a_pods_volume_is_a_target() {
        let kubelet = Path::new("/var/lib/kubelet");
        let parse = |path: &str| Target::parse(kubelet, path);
        let volume = "/var/lib/kubelet/pods/uid-1/volumes/kubernetes.io~csi/model/mount";
        assert_eq!(parse(volume).unwrap().pod_uid, "uid-1");
        for path in [
            "",
            "/var/lib/kubelet",
            "/etc/passwd",
            "/var/lib/kubelet/pods/uid-1/volumes/kubernetes.io~csi/model",
            "/var/lib/kubelet/pods/uid-1/volumes/kubernetes.io~empty-dir/model/mount",
            "/var/lib/kubelet/pods/../pods/uid-1/volumes/kubernetes.io~csi/model/mount",
            "/var/lib/kubelet/pods/uid-1/volumes/kubernetes.io~csi/model/mount/deeper",
        ] {
            let refused = parse(path).unwrap_err();
            assert!(refused.message().starts_with("target_path"), "{refused}");
        }
    }
}

//! Which copy a pod asks for, by the attributes of its volume; and the file or directory itself.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags, fstat, openat, openat2};
use rustix::io::Errno;
use tonic::Status;
use weft_proto::volumes::v1::use_copy_request::Copy;
use weft_proto::volumes::v1::{Place, UseCopyResponse};

/// What the kubelet adds to the attributes begins with this.
const OF_KUBELET: &str = "csi.storage.k8s.io/";
/// Times a lookup is repeated when directories are renamed under it (openat2's EAGAIN).
const LOOKUP_TRIES: usize = 64;
/// Below a directory, and by no link.
const NO_LINKS: ResolveFlags = ResolveFlags::BENEATH
    .union(ResolveFlags::NO_SYMLINKS)
    .union(ResolveFlags::NO_MAGICLINKS);

/// A copy that is open, by a descriptor that reads nothing.
#[derive(Debug)]
pub(crate) struct OpenCopy {
    pub(crate) file: File,
    pub(crate) is_directory: bool,
}

/// The pod's namespace and the copy that it asks for.
pub(crate) fn of_attributes(
    attributes: &HashMap<String, String>,
    pod_uid: &str,
) -> Result<(String, Copy), Status> {
    let of_kubelet = |name: &str| attributes.get(&format!("{OF_KUBELET}{name}"));
    // A kubelet that adds nothing would leave a pod's author to name any namespace; no author knows the pod's UID.
    let is_kubelets = of_kubelet("pod.uid").is_some_and(|uid| uid == pod_uid);
    let namespace = of_kubelet("pod.namespace").filter(|name| is_kubelets && !name.is_empty());
    let namespace = namespace.ok_or_else(|| {
        let text = "the kubelet does not say which pod the volume is for: the CSIDriver csi.weft.dev must have podInfoOnMount: true, as \
                    the chart has it";
        Status::failed_precondition(text)
    })?;
    if of_kubelet("ephemeral").is_none_or(|is_so| is_so != "true") {
        let text =
            "csi.weft.dev has no persistent volumes: name it in the pod, under volumes[].csi";
        return Err(Status::failed_precondition(text));
    }
    let wrong = |text: String| Status::invalid_argument(format!("volumeAttributes: {text}"));
    let mut own: Vec<&str> = attributes.keys().map(String::as_str).collect();
    own.retain(|name| !name.starts_with(OF_KUBELET));
    own.sort_unstable();
    let value = |name: &str| attributes.get(name).cloned().unwrap_or_default();
    let copy = match own.as_slice() {
        ["job"] => Copy::Job(value("job")),
        ["path", "root"] => Copy::Place(Place {
            root: value("root"),
            path: value("path"),
        }),
        _ => {
            return Err(wrong(format!(
                "has [{}]: give either job, or root and path",
                own.join(", ")
            )));
        }
    };
    if own
        .iter()
        .any(|name| *name != "path" && value(name).is_empty())
    {
        return Err(wrong(format!("one of {} is empty", own.join(", "))));
    }
    Ok((namespace.clone(), copy))
}

/// Opens the copy: the same file or directory as the agent has compared with its record.
/// An agent that others have taken over names no other namespace's directory, and no root but in the allowed directories.
pub(crate) fn open(
    host: &Path,
    allowed: &[PathBuf],
    namespace: &str,
    copy: &UseCopyResponse,
) -> Result<OpenCopy, Status> {
    let failed = |cause: io::Error| {
        let text = format!(
            "{:?} in {}: {cause}: the node's agent has it there; the pod's volume is tried again",
            copy.path, copy.root_directory
        );
        Status::unavailable(text)
    };
    if !is_within(namespace, &copy.path) {
        let text = format!("is not in the directory of namespace {namespace}");
        return Err(failed(io::Error::other(text)));
    }
    let root = Path::new(&copy.root_directory);
    let within = allowed.iter().filter(|path| root.starts_with(path));
    // The outermost: of nested ones the inner may be a link that a writer of the outer has made.
    let Some(allowed) = within.min_by_key(|path| path.components().count()) else {
        let list: Vec<_> = allowed
            .iter()
            .map(|path| path.display().to_string())
            .collect();
        let text = format!(
            "the root's directory {} is not in {}: choose a directory there for the RdmaFabric's root, or add one to the value \
             roots.allowedHostPaths of the chart",
            root.display(),
            list.join(", ")
        );
        return Err(Status::failed_precondition(text));
    };
    let root = open_root(host, allowed, root).map_err(|cause| match cause {
        Errno::LOOP => failed(io::Error::other(format!(
            "there is a link between {} and the root's directory: name the directory itself in the RdmaFabric, and its parent in \
             the value roots.allowedHostPaths of the chart",
            allowed.display()
        ))),
        cause => failed(cause.into()),
    })?;
    let opened = open_in(&root, copy).map_err(|cause| failed(cause.into()))?;
    let stat = fstat(&opened).map_err(|cause| failed(cause.into()))?;
    if (stat.st_dev, stat.st_ino) != (copy.device, copy.inode) {
        let other = "is another file than the agent's, which may not see yet what is mounted there";
        return Err(failed(io::Error::other(other)));
    }
    Ok(OpenCopy {
        file: File::from(opened),
        is_directory: FileType::from_raw_mode(stat.st_mode) == FileType::Directory,
    })
}

/// Whether the path, relative to a root, is in the directory of the namespace: `openat2` takes a `..` that stays in the root.
fn is_within(namespace: &str, path: &str) -> bool {
    let mut components = Path::new(path).components();
    components.next() == Some(Component::Normal(namespace.as_ref()))
        && components.all(|component| matches!(component, Component::Normal(_)))
}

/// The way to an allowed directory is the administrator's, and may have links. Below it, anybody who can write to a root may have made
/// them.
fn open_root(host: &Path, allowed: &Path, root: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::CLOEXEC | OFlags::DIRECTORY;
    let host = openat(CWD, host, flags, Mode::empty())?;
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    let opened = lookup(&host, allowed, flags, resolve)?;
    match root.strip_prefix(allowed) {
        Ok(below) if below.components().next().is_some() => lookup(&opened, below, flags, NO_LINKS),
        _ => Ok(opened),
    }
}

fn open_in(root: &OwnedFd, copy: &UseCopyResponse) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    lookup(root, Path::new(&copy.path), flags, NO_LINKS)
}

fn lookup(
    directory: &OwnedFd,
    path: &Path,
    flags: OFlags,
    resolve: ResolveFlags,
) -> Result<OwnedFd, Errno> {
    let mut last = Errno::AGAIN;
    for _ in 0..LOOKUP_TRIES {
        match openat2(directory, path, flags, Mode::empty(), resolve) {
            Err(cause @ (Errno::AGAIN | Errno::INTR)) => last = cause,
            answer => return answer,
        }
    }
    Err(last)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt as _, symlink};

    use super::*;

    fn attributes(given: &[(&str, &str)]) -> HashMap<String, String> {
        let of_kubelet = [
            ("csi.storage.k8s.io/ephemeral", "true"),
            ("csi.storage.k8s.io/pod.uid", "uid-1"),
            ("csi.storage.k8s.io/pod.namespace", "team-a"),
            ("csi.storage.k8s.io/pod.name", "serve"),
        ];
        let all = of_kubelet.iter().chain(given);
        all.map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect()
    }

    #[test]
    fn a_volume_names_a_job_or_a_place_and_nothing_else() {
        let of = |given: &[(&str, &str)]| of_attributes(&attributes(given), "uid-1");
        let (namespace, copy) = of(&[("job", "minilm")]).unwrap();
        assert_eq!(
            (&*namespace, copy),
            ("team-a", Copy::Job("minilm".to_owned()))
        );
        let (_, copy) = of(&[("root", "models"), ("path", "minilm")]).unwrap();
        let place = Place {
            root: "models".to_owned(),
            path: "minilm".to_owned(),
        };
        assert_eq!(copy, Copy::Place(place));
        for given in [
            &[][..],
            &[("job", "")],
            &[("root", "models")],
            &[("path", "minilm")],
            &[("job", "minilm"), ("root", "models")],
            &[("job", "minilm"), ("namespace", "team-b")],
        ] {
            let refused = of(given).unwrap_err();
            assert!(
                refused.message().starts_with("volumeAttributes"),
                "{refused}"
            );
        }
    }

    #[test]
    fn a_namespace_that_the_kubelet_has_not_written_is_not_believed() {
        let mut forged = attributes(&[("job", "minilm")]);
        forged.remove("csi.storage.k8s.io/pod.uid");
        let refused = of_attributes(&forged, "uid-1").unwrap_err();
        assert!(refused.message().contains("podInfoOnMount"), "{refused}");
        let refused = of_attributes(&attributes(&[("job", "minilm")]), "uid-2").unwrap_err();
        assert!(refused.message().contains("podInfoOnMount"), "{refused}");
        let mut persistent = attributes(&[("job", "minilm")]);
        persistent.remove("csi.storage.k8s.io/ephemeral");
        let refused = of_attributes(&persistent, "uid-1").unwrap_err();
        assert!(refused.message().contains("persistent"), "{refused}");
    }

    #[test]
    fn a_link_on_the_way_to_a_copy_is_not_followed_and_one_on_the_way_to_the_root_is() {
        let host = tempfile::tempdir().unwrap();
        let at = |path: &str| host.path().join(path);
        std::fs::create_dir_all(at("disks/one/models/team-a/minilm")).unwrap();
        std::fs::create_dir_all(at("disks/one/models/team-b/secret")).unwrap();
        // As on the node, where `/` is what is `host` here.
        symlink("/disks/one", at("data")).unwrap();
        symlink("../team-b/secret", at("disks/one/models/team-a/link")).unwrap();
        let stat = std::fs::metadata(at("disks/one/models/team-a/minilm")).unwrap();
        let copy = |path: &str| UseCopyResponse {
            root_directory: "/data/models".to_owned(),
            path: path.to_owned(),
            device: stat.dev(),
            inode: stat.ino(),
        };
        let allowed = [PathBuf::from("/data")];
        open(host.path(), &allowed, "team-a", &copy("team-a/minilm")).unwrap();
        for path in [
            "team-a/link",
            "team-b/secret",
            "../models/team-a/minilm",
            "team-a/none",
            "",
        ] {
            let refused = open(host.path(), &allowed, "team-a", &copy(path)).unwrap_err();
            assert_eq!(refused.code(), tonic::Code::Unavailable, "{path}");
        }
    }

    #[test]
    fn a_copy_in_the_directory_of_another_namespace_is_not_opened() {
        let host = tempfile::tempdir().unwrap();
        let at = |path: &str| host.path().join(path);
        std::fs::create_dir_all(at("models/team-a/minilm")).unwrap();
        std::fs::create_dir_all(at("models/team-b/secret")).unwrap();
        // As an agent answers that others have taken over: it is the file that it says.
        let answer = |path: &str| {
            let stat = std::fs::metadata(at("models").join(path)).unwrap();
            UseCopyResponse {
                root_directory: "/models".to_owned(),
                path: path.to_owned(),
                device: stat.dev(),
                inode: stat.ino(),
            }
        };
        let allowed = [PathBuf::from("/models")];
        open(host.path(), &allowed, "team-a", &answer("team-a/minilm")).unwrap();
        open(host.path(), &allowed, "team-a", &answer("team-a")).unwrap();
        for path in ["", "team-b/secret", "team-a/../team-b/secret", "./team-b"] {
            let refused = open(host.path(), &allowed, "team-a", &answer(path)).unwrap_err();
            assert!(
                refused.message().contains("of namespace team-a"),
                "{refused}"
            );
        }
    }

    #[test]
    fn a_root_that_the_chart_does_not_allow_is_not_opened() {
        let host = tempfile::tempdir().unwrap();
        let at = |path: &str| host.path().join(path);
        for root in ["data/models", "database", "etc"] {
            std::fs::create_dir_all(at(root).join("team-a/minilm")).unwrap();
        }
        symlink("../etc", at("data/link")).unwrap();
        // As an agent answers that others have taken over: it is the file that it says.
        let open = |root: &str| {
            let stat = std::fs::metadata(at(root).join("team-a/minilm")).unwrap();
            let answer = UseCopyResponse {
                root_directory: format!("/{root}"),
                path: "team-a/minilm".to_owned(),
                device: stat.dev(),
                inode: stat.ino(),
            };
            let allowed = ["/data", "/srv"].map(PathBuf::from);
            super::open(host.path(), &allowed, "team-a", &answer)
        };
        open("data/models").unwrap();
        for root in ["etc", "database"] {
            let refused = open(root).unwrap_err();
            let said = refused.message();
            assert!(said.contains("is not in /data, /srv"), "{root}: {said}");
            assert!(said.contains("roots.allowedHostPaths"), "{root}: {said}");
        }
        let refused = open("data/../etc").unwrap_err();
        assert_eq!(refused.code(), tonic::Code::Unavailable, "{refused}");
        let refused = open("data/link").unwrap_err();
        assert!(refused.message().contains("there is a link"), "{refused}");
    }
}

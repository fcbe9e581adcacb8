//! Which copy a pod's volume shows, and that the copy stays while it is shown.

use std::os::unix::fs::{MetadataExt as _, symlink};

use super::*;
use crate::files::copies::{CopyJob, Records, reconcile, release};
use crate::files::volumes::{CopyInUse, NotShown, PodNamespace, WantedCopy, compare, use_copy};

fn owner(namespace: &str, uid: &str) -> CopyJob {
    CopyJob {
        uid: uid.to_owned(),
        namespace: namespace.to_owned(),
        name: "minilm".to_owned(),
        namespace_uid: format!("uid-of-{namespace}"),
    }
}

/// A node whose pods have volumes.
fn node() -> Node {
    let node = Node::new();
    let in_use = node.directory.path().with_extension("in-use");
    std::fs::create_dir(&in_use).unwrap();
    node.root.set_volumes(Some(RootVolumes {
        host_path: "/var/lib/weft/models".into(),
        in_use,
    }));
    node
}

fn in_use(node: &Node) -> PathBuf {
    node.directory.path().with_extension("in-use")
}

fn config(node: &Node, path: &str, source: &Source, job: &CopyJob) -> DestinationConfig {
    DestinationConfig {
        job: job.uid.parse().unwrap(),
        recorded_for: Some(job.clone()),
        ..node.config(path, source)
    }
}

/// Makes a copy, with its record; the attempt is over.
fn copy(node: &Node, path: &str, source: &Source, job: &CopyJob) -> Result<(), FileError> {
    let destination = Destination::prepare(config(node, path, source, job))?;
    for (index, _, _) in source.manifest().files() {
        send_file(source, &destination, index, u32::MAX, &mut Sent::default())?;
    }
    let digest = destination.publish()?;
    destination.record(&digest)
}

fn namespace(name: &str) -> PodNamespace {
    PodNamespace {
        name: name.to_owned(),
        uid: format!("uid-of-{name}"),
    }
}

fn by_name(uids: &[&str]) -> WantedCopy {
    WantedCopy::Job {
        name: "minilm".to_owned(),
        uids: uids.iter().map(|uid| (*uid).to_owned()).collect(),
    }
}

fn at(path: &str) -> WantedCopy {
    WantedCopy::Path(RootPath::parse(path).unwrap())
}

fn shown(node: &Node, pod: &str, wanted: &WantedCopy) -> Result<Option<CopyInUse>, NotShown> {
    use_copy(&node.root, "csi-1", &namespace(pod), wanted)
}

fn path_shown(node: &Node, pod: &str, wanted: &WantedCopy) -> Option<String> {
    let found = shown(node, pod, wanted).unwrap();
    found.map(|copy| copy.path.as_str().to_owned())
}

#[test]
fn a_volume_shows_a_verified_copy_of_its_own_namespace_and_no_other() {
    let (from, node) = (Node::new(), node());
    from.write("m/weights", b"w");
    let source = from.source("m").unwrap();
    let wanted = [by_name(&[]), by_name(&["a"]), at("team-a/m")];
    for wanted in &wanted {
        assert_eq!(path_shown(&node, "team-a", wanted), None);
    }
    copy(&node, "team-a/m/", &source, &owner("team-a", "a")).unwrap();
    for wanted in &wanted {
        assert_eq!(
            path_shown(&node, "team-a", wanted).as_deref(),
            Some("team-a/m")
        );
        assert_eq!(path_shown(&node, "team-b", wanted), None);
    }
    let found = shown(&node, "team-a", &wanted[0]).unwrap().unwrap();
    let stat = node.path("team-a/m").metadata().unwrap();
    assert_eq!((found.device, found.inode), (stat.dev(), stat.ino()));
    assert_eq!(found.host_path.to_str(), Some("/var/lib/weft/models"));
    // The job has been made again, and its copy is not there yet.
    assert_eq!(path_shown(&node, "team-a", &by_name(&["later"])), None);
    // The namespace has been made again.
    let again = PodNamespace {
        uid: "another".to_owned(),
        ..namespace("team-a")
    };
    for wanted in &wanted {
        assert!(
            use_copy(&node.root, "csi-1", &again, wanted)
                .unwrap()
                .is_none()
        );
    }
}

#[test]
fn a_copy_outside_of_the_namespaces_directory_is_not_shown() {
    let (from, node) = (Node::new(), node());
    from.write("m/weights", b"w");
    let source = from.source("m").unwrap();
    // As jobs do that say Shared: around the files of others, and beside them.
    for path in ["shared", "team-b/m", "team-ab/m"] {
        let job = owner("team-a", "a");
        copy(&node, path, &source, &job).unwrap();
        let refused = shown(&node, "team-a", &by_name(&["a"])).unwrap_err();
        assert!(matches!(refused, NotShown::NotOwn(_)), "{path}: {refused}");
        release(&node.root, "a").unwrap();
    }
    for path in ["shared", "team-a/m"] {
        copy(&node, path, &source, &owner("team-a", "a")).unwrap();
    }
    let found = path_shown(&node, "team-a", &by_name(&["a"]));
    assert_eq!(found.as_deref(), Some("team-a/m"));
    std::fs::remove_file(in_use(&node).join("csi-1")).unwrap();
    assert_eq!(std::fs::read_dir(in_use(&node)).unwrap().count(), 0);
}

#[test]
fn a_copy_that_has_changed_and_a_link_in_its_place_are_not_shown() {
    let (from, node) = (Node::new(), node());
    from.write("m/weights", b"w");
    let job = owner("team-a", "a");
    copy(&node, "team-a/m", &from.source("m").unwrap(), &job).unwrap();
    node.write("team-b/m/weights", b"secret");
    std::fs::rename(node.path("team-a/m"), node.path("team-a/away")).unwrap();
    symlink("../team-b/m", node.path("team-a/m")).unwrap();
    let refused = shown(&node, "team-a", &by_name(&["a"])).unwrap_err();
    assert!(matches!(refused, NotShown::Changed(..)), "{refused}");
    std::fs::remove_file(node.path("team-a/m")).unwrap();
    std::fs::rename(node.path("team-a/away"), node.path("team-a/m")).unwrap();
    assert!(shown(&node, "team-a", &by_name(&["a"])).unwrap().is_some());
    node.write("team-a/m/weights", b"other");
    let refused = shown(&node, "team-a", &by_name(&["a"])).unwrap_err();
    assert!(
        refused
            .to_string()
            .contains("run a job that copies it again"),
        "{refused}"
    );
    assert!(!in_use(&node).join("csi-1").exists());
}

#[test]
fn a_volume_that_is_unmounted_during_the_comparison_shows_nothing() {
    let (from, node) = (Node::new(), node());
    from.write("m/weights", b"w");
    let job = owner("team-a", "a");
    copy(&node, "team-a/m", &from.source("m").unwrap(), &job).unwrap();
    shown(&node, "team-a", &by_name(&["a"])).unwrap().unwrap();
    let records = Records::open(&node.root).unwrap().unwrap();
    let name = records.names().unwrap().remove(0);
    let record = records.read(&name).unwrap().unwrap();
    let volumes = node.root.volumes().unwrap();
    compare((&node.root, &records), &record, &volumes, "csi-1").unwrap();
    std::fs::remove_file(in_use(&node).join("csi-1")).unwrap();
    let refused = compare((&node.root, &records), &record, &volumes, "csi-1").unwrap_err();
    assert!(matches!(refused, NotShown::Unmounted(_)), "{refused}");
}

#[test]
fn a_copy_in_use_is_neither_removed_nor_replaced_until_its_volume_is_gone() {
    let (from, other, node) = (Node::new(), Node::new(), node());
    from.write("m/weights", b"w");
    other.write("m/weights", b"x").write("m/more", b"y");
    let (source, others) = (from.source("m").unwrap(), other.source("m").unwrap());
    let job = owner("team-a", "a");
    copy(&node, "team-a/m", &source, &job).unwrap();
    shown(&node, "team-a", &by_name(&["a"])).unwrap().unwrap();
    // The same content is another job's, too.
    copy(&node, "team-a/m", &source, &owner("team-a", "b")).unwrap();
    for overwrite in [Overwrite::IfDifferent, Overwrite::Always] {
        let config = DestinationConfig {
            overwrite,
            ..config(&node, "team-a/m", &others, &owner("team-a", "c"))
        };
        let destination = Destination::prepare(config).unwrap();
        let sent = others.manifest().files().try_for_each(|(index, _, _)| {
            let none = &mut Sent::default();
            send_file(&others, &destination, index, u32::MAX, none).map(drop)
        });
        let refused = sent
            .and_then(|()| destination.publish().map(drop))
            .unwrap_err();
        assert_fault(&refused, "PathInUse", "team-a/m/weights");
    }
    for job in ["a", "b", "c"] {
        release(&node.root, job).unwrap();
        assert!(reconcile(&node.root).unwrap().len() <= 1);
        assert_eq!(node.read("team-a/m/weights"), b"w");
    }
    // Nobody mounts it any more.
    assert_eq!(path_shown(&node, "team-a", &by_name(&[])), None);
    std::fs::remove_file(in_use(&node).join("csi-1")).unwrap();
    reconcile(&node.root).unwrap();
    assert!(!node.path("team-a/m/weights").exists());
}

#[test]
fn a_copy_that_a_job_writes_to_is_shown_after_that() {
    let (from, node) = (Node::new(), node());
    from.write("m/weights", b"w");
    let source = from.source("m").unwrap();
    copy(&node, "team-a/m", &source, &owner("team-a", "a")).unwrap();
    let writing = Destination::prepare(config(&node, "team-a/m", &source, &owner("team-a", "b")));
    let writing = writing.unwrap();
    let refused = shown(&node, "team-a", &by_name(&["a"])).unwrap_err();
    assert!(matches!(refused, NotShown::Busy(_)), "{refused}");
    drop(writing);
    assert!(shown(&node, "team-a", &by_name(&["a"])).unwrap().is_some());
}

//! Sparse files: holes stay holes, and only data takes space.

use std::fs::File;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};

use super::*;
use crate::files::copies::{CopyJob, bytes_outside};
use crate::files::space::RootLimits;

const MIB: u64 = 1 << 20;

/// 64 MiB with data in the blocks 5, 6 and the last, which is short.
fn sparse(node: &Node) -> Source {
    let path = node.path("m/sparse");
    node.write("m/sparse", b"");
    let file = File::options().write(true).open(&path).unwrap();
    file.set_len(64 * MIB + 7).unwrap();
    file.write_all_at(&content(1 << 20, 1), 5 * MIB + 4096)
        .unwrap();
    file.write_all_at(b"the end", 64 * MIB).unwrap();
    node.source("m").unwrap()
}

fn allocated(node: &Node, below: &str) -> u64 {
    std::fs::metadata(node.path(below)).unwrap().blocks() * 512
}

/// Of a namespace that may have so many bytes.
fn limited(node: &Node, source: &Source, bytes: u64) -> DestinationConfig {
    node.root.set_limits(RootLimits {
        bytes_per_namespace: Some(bytes),
        ..RootLimits::default()
    });
    DestinationConfig {
        recorded_for: Some(CopyJob {
            uid: "job-1".into(),
            namespace: "team".into(),
            name: "sparse".into(),
            namespace_uid: String::new(),
        }),
        ..node.config("m", source)
    }
}

#[test]
fn a_sparse_file_arrives_with_its_digest_and_its_holes_and_only_data_is_sent() {
    let (from, to) = (Node::new(), Node::new());
    let source = sparse(&from);
    assert_eq!(source.manifest().bytes(), 64 * MIB + 7);
    assert_eq!(source.manifest().disk_bytes(), 2 * MIB + 4096);
    let (digest, counts) = send(&source, to.config("m", &source)).unwrap();
    assert_eq!((counts.sent, counts.confirmed), (3, 62));
    assert_eq!(to.read("m/sparse"), from.read("m/sparse"));
    assert!(allocated(&to, "m/sparse") <= 4 * MIB);
    // The same content without holes has the same digest.
    let (dense, other) = (Node::new(), Node::new());
    dense.write("m/sparse", &from.read("m/sparse"));
    let source = dense.source("m").unwrap();
    assert_eq!(send(&source, other.config("m", &source)).unwrap().0, digest);
}

#[test]
fn only_the_data_of_a_sparse_file_is_counted_against_a_namespaces_limit() {
    let (from, to) = (Node::new(), Node::new());
    let source = sparse(&from);
    let refused = Destination::prepare(limited(&to, &source, 2 * MIB)).unwrap_err();
    assert_fault(&refused, "NamespaceQuota", "2105344 bytes are needed");
    let destination = Destination::prepare(limited(&to, &source, 3 * MIB)).unwrap();
    assert!(to.root.space().values().eq([&(2 * MIB + 2 * 4096)]));
    send_file(&source, &destination, 0, u32::MAX, &mut Sent::default()).unwrap();
    let digest = destination.publish().unwrap();
    destination.record(&digest).unwrap();
    assert_eq!(bytes_outside(&to.root, "team"), Ok(2 * MIB + 4096));
}

#[test]
fn a_sparse_file_that_is_resumed_or_replaces_another_keeps_its_holes() {
    let (from, to) = (Node::new(), Node::new());
    let source = sparse(&from);
    let destination = Destination::prepare(to.config("m", &source)).unwrap();
    send_file(&source, &destination, 0, 1, &mut Sent::default()).unwrap();
    drop(destination);
    let to = reopened(to);
    let (_, counts) = send(&source, to.config("m", &source)).unwrap();
    assert_eq!((counts.sent, counts.confirmed), (2, 63));
    assert_eq!(to.read("m/sparse"), from.read("m/sparse"));
    assert!(allocated(&to, "m/sparse") <= 4 * MIB);
    // One that differs in a block, and has bytes where the source has a hole.
    let copy = File::options()
        .write(true)
        .open(to.path("m/sparse"))
        .unwrap();
    copy.write_all_at(b"x", 20 * MIB).unwrap();
    let (_, counts) = send(&source, to.config("m", &source)).unwrap();
    assert_eq!((counts.sent, counts.confirmed), (1, 64));
    assert_eq!(to.read("m/sparse"), from.read("m/sparse"));
    assert!(allocated(&to, "m/sparse") <= 4 * MIB);
}

#[test]
fn bytes_that_an_earlier_attempt_left_in_the_place_of_a_hole_are_overwritten() {
    let (from, to) = (Node::new(), Node::new());
    let source = sparse(&from);
    drop(Destination::prepare(to.config("m", &source)).unwrap());
    let partial = to
        .path(&names::partial_name(&"job-1".parse().unwrap(), "m"))
        .join("sparse");
    let file = File::options().write(true).open(partial).unwrap();
    file.write_all_at(&[7; 1 << 20], 30 * MIB).unwrap();
    send(&source, to.config("m", &source)).unwrap();
    assert_eq!(to.read("m/sparse"), from.read("m/sparse"));
}

#[test]
fn holes_are_part_of_a_manifests_digest_and_no_larger_than_the_file() {
    let build = |holes: u64| {
        let mut manifest = ManifestBuilder::new(Shape::Directory);
        for (path, kind) in [
            ("b", EntryKind::File { bytes: 3 }),
            ("a", EntryKind::Directory),
        ] {
            manifest
                .add(Entry {
                    path,
                    kind,
                    mode: 0o700,
                })
                .unwrap();
            manifest.set_hole_bytes(if path == "b" { holes } else { 0 });
        }
        manifest.finish()
    };
    assert_eq!(build(2).unwrap().hole_bytes(1), 2);
    assert_ne!(build(0).unwrap().digest(), build(2).unwrap().digest());
    assert_fault(&build(4).unwrap_err(), "BadManifest", "more bytes in holes");
}

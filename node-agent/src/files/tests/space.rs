//! What a root keeps free, and what a namespace may have in it.

use super::alone::{Alone, alone, mount, this_test};
use super::*;
use crate::files::copies::{CopyJob, reconcile};
use crate::files::space::{MinFree, RootLimits};

/// A destination of a job of a namespace, or of none.
fn config(node: &Node, path: &str, source: &Source, uid: &str, team: &str) -> DestinationConfig {
    let recorded_for = (!team.is_empty()).then(|| CopyJob {
        uid: uid.to_owned(),
        namespace: team.to_owned(),
        name: uid.to_owned(),
        namespace_uid: String::new(),
    });
    DestinationConfig {
        job: uid.parse().unwrap(),
        recorded_for,
        ..node.config(path, source)
    }
}

/// Makes and records a copy.
fn copy(source: &Source, config: DestinationConfig) -> Result<(), FileError> {
    let destination = Destination::prepare(config)?;
    for (index, _, _) in source.manifest().files() {
        send_file(source, &destination, index, u32::MAX, &mut Sent::default())?;
    }
    let digest = destination.publish()?;
    destination.record(&digest)
}

fn allow(node: &Node, bytes_per_namespace: u64) {
    node.root.set_limits(RootLimits {
        bytes_per_namespace: Some(bytes_per_namespace),
        ..RootLimits::default()
    });
}

#[test]
fn a_namespace_has_as_many_bytes_of_copies_and_transfers_as_the_root_allows() {
    let (from, node) = (Node::new(), Node::new());
    let large = content(3 << 20, 1);
    from.write("m/a", &large).write("n", &content(1 << 20, 2));
    let (m, n) = (from.source("m").unwrap(), from.source("n").unwrap());
    allow(&node, (4 << 20) - 1);
    copy(&m, config(&node, "m", &m, "first", "team")).unwrap();
    // The copy is counted from its record, also after a restart.
    let node = reopened(node);
    allow(&node, (4 << 20) - 1);
    let error = Destination::prepare(config(&node, "n", &n, "second", "team")).unwrap_err();
    assert_fault(&error, "NamespaceQuota", "\"team\"");
    let text = error.to_string();
    for bytes in [
        "1048576 bytes are needed",
        "3145728 bytes in its directory and in other copies",
        "may have 4194303",
    ] {
        assert!(text.contains(bytes), "{text}");
    }
    assert!(
        !node
            .names()
            .iter()
            .any(|name| name.contains(".weft-second"))
    );
    // What is there needs no bytes, others have their own, and what has no namespace has no limit.
    copy(&m, config(&node, "m", &m, "again", "team")).unwrap();
    let others = Destination::prepare(config(&node, "o", &n, "other", "others")).unwrap();
    Destination::prepare(config(&node, "p", &n, "play", "")).unwrap();
    // A transfer under way is counted until it is given up.
    let wide = config(&node, "wide", &m, "wide", "others");
    assert_fault(
        &Destination::prepare(wide.clone()).unwrap_err(),
        "NamespaceQuota",
        "wide",
    );
    assert!(give_up(&others).is_empty());
    others.release_path();
    Destination::prepare(wide).unwrap();
}

#[test]
fn tiny_files_count_the_blocks_that_they_take() {
    let (from, node) = (Node::new(), Node::new());
    for index in 0..100 {
        from.write(&format!("m/{index}"), b"x");
    }
    let m = from.source("m").unwrap();
    // A block for each file, and one for their directory.
    allow(&node, 101 * 4096 - 1);
    let error = Destination::prepare(config(&node, "m", &m, "a", "team")).unwrap_err();
    assert_fault(&error, "NamespaceQuota", "413696 bytes are needed");
    allow(&node, 101 * 4096);
    copy(&m, config(&node, "m", &m, "a", "team")).unwrap();
    let error = Destination::prepare(config(&node, "n", &m, "b", "team")).unwrap_err();
    assert_fault(&error, "NamespaceQuota", "409600 bytes in its directory");
}

#[test]
fn what_is_in_the_directory_of_a_namespace_counts_whoever_wrote_it() {
    let (from, node) = (Node::new(), Node::new());
    let (large, small) = (content(3 << 20, 1), content(1 << 20, 2));
    from.write("m/a", &large).write("m/b", &small);
    from.write("n/b", &content(1 << 20, 3));
    let (m, n) = (from.source("m").unwrap(), from.source("n").unwrap());
    allow(&node, 6 << 20);
    copy(&m, config(&node, "team/m", &m, "first", "team")).unwrap();
    // Another job of the namespace overwrites one file of the copy: the rest is no copy any more, and counts.
    copy(&n, config(&node, "team/m", &n, "second", "team")).unwrap();
    let recorded: Vec<u64> = reconcile(&node.root)
        .unwrap()
        .iter()
        .map(|copy| copy.files)
        .collect();
    assert_eq!(recorded, [1]);
    let error = Destination::prepare(config(&node, "team/x", &m, "third", "team")).unwrap_err();
    assert_fault(&error, "NamespaceQuota", "4198400 bytes in its directory");
    // So does what a pod writes there, and a partial file counts once.
    node.write("team/notes", &small);
    let held = Destination::prepare(config(&node, "team/y", &n, "held", "team"));
    assert_fault(&held.unwrap_err(), "NamespaceQuota", "5246976 bytes in");
    std::fs::remove_file(node.path("team/notes")).unwrap();
    let _held = Destination::prepare(config(&node, "team/y", &n, "held", "team")).unwrap();
    let error = Destination::prepare(config(&node, "team/z", &n, "more", "team")).unwrap_err();
    assert_fault(&error, "NamespaceQuota", "4198400 bytes in its directory");
}

#[test]
fn an_attempt_counts_once_and_a_file_that_proves_to_differ_counts_from_then_on() {
    let (from, node) = (Node::new(), Node::new());
    from.write("n", &content(1 << 20, 1));
    let n = from.source("n").unwrap();
    allow(&node, 1 << 20);
    for _ in 0..2 {
        let destination = Destination::prepare(config(&node, "n", &n, "a", "team")).unwrap();
        destination.abort();
        destination.release_path();
    }
    // Of the right size, and another file.
    node.write("m", &content(1 << 20, 2));
    let destination = Destination::prepare(config(&node, "m", &n, "b", "team")).unwrap();
    allow(&node, (1 << 20) - 1);
    let sent = send_file(&n, &destination, 0, u32::MAX, &mut Sent::default());
    assert_fault(&sent.unwrap_err(), "NamespaceQuota", "\"m\"");
    assert_eq!(node.read("m"), content(1 << 20, 2));
}

#[test]
fn a_root_keeps_as_much_free_as_it_says() {
    let name = this_test!(a_root_keeps_as_much_free_as_it_says);
    alone(name, Alone::Mounts, || {
        let from = Node::new();
        from.write("m", &content(8 << 20, 1));
        let m = from.source("m").unwrap();
        let directory = tempfile::tempdir().unwrap();
        mount("tmpfs", "size=100m", directory.path());
        let node = Node::at(directory);
        let limit = |min_free| {
            node.root.set_limits(RootLimits {
                min_free,
                ..RootLimits::default()
            });
        };
        for min_free in [MinFree::Percent(93), MinFree::Bytes(93 << 20)] {
            limit(min_free);
            let error = Destination::prepare(config(&node, "m", &m, "a", "")).unwrap_err();
            assert_fault(&error, "RootReserve", "\"m\"");
            let text = error.to_string();
            assert!(text.contains("8388608 bytes are needed"), "{text}");
            assert!(text.contains("must stay free"), "{text}");
            assert!(node.names().is_empty(), "nothing is taken");
        }
        limit(MinFree::Percent(91));
        copy(&m, config(&node, "m", &m, "a", "")).unwrap();
        // What is there needs no space, however little is left.
        limit(MinFree::Percent(100));
        copy(&m, config(&node, "m", &m, "b", "")).unwrap();
        let error = Destination::prepare(config(&node, "n", &m, "c", "")).unwrap_err();
        assert_fault(&error, "RootReserve", "\"n\"");
    });
}

#[test]
fn a_directory_without_files_is_checked_like_others() {
    let (from, node) = (Node::new(), Node::new());
    std::fs::create_dir_all(from.path("m/a/b")).unwrap();
    let m = from.source("m").unwrap();
    allow(&node, 3 * 4096 - 1);
    let error = Destination::prepare(config(&node, "m", &m, "a", "team")).unwrap_err();
    assert_fault(&error, "NamespaceQuota", "12288 bytes are needed");
    assert!(node.names().is_empty());
    allow(&node, 3 * 4096);
    copy(&m, config(&node, "m", &m, "a", "team")).unwrap();
}

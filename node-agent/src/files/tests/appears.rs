//! A directory appears whole, or not at all.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::time::{Duration, SystemTime};

use super::*;
use crate::files::EntryKind;
use crate::files::copies::{CopyJob, reconcile};

/// Two files in two directories, and how many blocks they have.
fn model(seed: u64) -> (Node, Source, u32) {
    let from = Node::new();
    from.write("m/a", &content(3 * BLOCK_BYTES, seed))
        .write("m/d/b", &content(2 * BLOCK_BYTES, seed + 1));
    let source = from.source("m").unwrap();
    (from, source, 5)
}

fn staging(node: &Node, job: &str, name: &str) -> PathBuf {
    node.path(&names::partial_name(&job.parse().unwrap(), name))
}

/// Sends up to so many blocks of each file.
fn send_some(source: &Source, destination: &Destination, most: u32) -> Sent {
    let mut all = Sent::default();
    for (index, _, _) in source.manifest().files() {
        let mut counts = Sent::default();
        send_file(source, destination, index, most, &mut counts).unwrap();
        all.sent += counts.sent;
        all.confirmed += counts.confirmed;
    }
    all
}

#[test]
fn nobody_sees_half_a_new_directory() {
    let (from, source, _) = model(1);
    let node = Node::new();
    let destination = Destination::prepare(node.config("team/m", &source)).unwrap();
    assert!(!node.path("team/m").exists(), "prepared");
    let files = source.manifest().files();
    for (index, _, _) in files {
        send_file(&source, &destination, index, u32::MAX, &mut Sent::default()).unwrap();
        assert!(!node.path("team/m").exists(), "file {index}");
        // Whoever passes it on reads it where it is.
        let mut buffer = vec![0; BLOCK_BYTES];
        let file = destination.open(index).unwrap();
        assert!(file.read_block(1, &mut buffer).unwrap().is_some());
    }
    destination.publish().unwrap();
    assert_eq!(
        node.names(),
        ["team/", "team/m/", "team/m/a", "team/m/d/", "team/m/d/b"]
    );
    assert_eq!(node.read("team/m/d/b"), from.read("m/d/b"));
    let mut buffer = vec![0; BLOCK_BYTES];
    let file = destination.open(0).unwrap();
    assert!(file.read_block(1, &mut buffer).unwrap().is_some());
}

#[test]
fn a_restarted_agent_goes_on_in_the_directory_that_it_has_begun() {
    let (_from, source, blocks) = model(1);
    let node = Node::new();
    let destination = Destination::prepare(node.config("m", &source)).unwrap();
    assert_eq!(send_some(&source, &destination, 1).sent, 2);
    drop(destination);
    // Another manifest had files that this one has not, and a directory where this one has a file.
    let begun = staging(&node, "job-1", "m");
    fs::remove_file(begun.join("d/b")).unwrap();
    fs::create_dir_all(begun.join("d/b/x")).unwrap();
    fs::write(begun.join("more"), b"of another manifest").unwrap();
    // And a directory had its final mode already.
    fs::set_permissions(begun.join("d"), fs::Permissions::from_mode(0o555)).unwrap();
    let node = reopened(node);
    let (_, counts) = send(&source, node.config("m", &source)).unwrap();
    assert_eq!((counts.sent, counts.confirmed), (blocks - 1, 1));
    assert_eq!(node.names(), ["m/", "m/a", "m/d/", "m/d/b"]);
}

#[test]
fn a_crash_between_the_name_and_the_record_leaves_what_the_next_attempt_completes() {
    let (_from, source, blocks) = model(1);
    let node = Node::new();
    let destination = Destination::prepare(node.config("m", &source)).unwrap();
    send_some(&source, &destination, u32::MAX);
    let digest = destination.publish().unwrap();
    // The agent dies before it records the copy.
    drop(destination);
    let node = reopened(node);
    let config = DestinationConfig {
        recorded_for: Some(CopyJob {
            uid: "job-1".to_owned(),
            namespace: "team".to_owned(),
            name: "m".to_owned(),
            namespace_uid: String::new(),
        }),
        ..node.config("m", &source)
    };
    let destination = Destination::prepare(config).unwrap();
    let counts = send_some(&source, &destination, 0);
    assert_eq!(counts.confirmed, blocks);
    assert_eq!(destination.publish().unwrap(), digest);
    destination.record(&digest).unwrap();
    let copies = reconcile(&node.root).unwrap();
    assert_eq!((copies.len(), copies[0].path.as_str()), (1, "m"));
}

#[test]
fn a_directory_that_somebody_makes_meanwhile_stays_and_the_next_attempt_fills_it_file_by_file() {
    let (_from, source, _) = model(1);
    let node = Node::new();
    let destination = Destination::prepare(node.config("m", &source)).unwrap();
    send_some(&source, &destination, u32::MAX);
    node.write("m/notes", b"mine");
    let error = destination.publish().unwrap_err();
    assert_fault(&error, "DestinationExists", "\"m\"");
    destination.abort();
    drop(destination);
    assert_eq!(names_below(&node.path("m")), ["notes"]);
    send(&source, node.config("m", &source)).unwrap();
    assert_eq!(node.names(), ["m/", "m/a", "m/d/", "m/d/b", "m/notes"]);
    assert_eq!(node.read("m/notes"), b"mine");
}

#[test]
fn a_destination_says_whether_files_were_replaced_one_after_the_other() {
    let (_from, source, _) = model(1);
    let (_other, newer, _) = model(7);
    let node = Node::new();
    for (source, expected) in [(&source, false), (&source, false), (&newer, true)] {
        let destination = Destination::prepare(node.config("m", source)).unwrap();
        send_some(source, &destination, u32::MAX);
        destination.publish().unwrap();
        assert_eq!(destination.is_file_by_file(), expected);
    }
}

#[test]
fn what_was_assembled_goes_when_its_job_is_given_up_and_when_nobody_takes_it_up_again() {
    let (_from, source, _) = model(1);
    let node = Node::new();
    let config = node.config("made/m", &source);
    let begin = || {
        let destination = Destination::prepare(config.clone()).unwrap();
        send_some(&source, &destination, 2);
        destination
    };
    assert!(give_up(&begin()).is_empty());
    assert_eq!(node.names(), Vec::<String>::new(), "aborted");
    let mut known = Leftover::default();
    known.note_attempt(&config);
    let unknown = Leftover::anywhere(std::slice::from_ref(&node.root));
    for mut leftover in [known, unknown] {
        leftover.add(&begin());
        assert!(leftover.remove_partials(&config.job).is_empty());
        assert!(!node.names().iter().any(|name| name.contains(".weft-")));
    }
    // A file that was written to lately keeps all of it, and a job that runs, too.
    let hour = Duration::from_secs(3600);
    let running = begin();
    let begun = node
        .path("made")
        .join(names::partial_name(&config.job, "m"));
    let long_ago = SystemTime::now() - 3 * hour;
    let old = |path: &str| {
        let file = fs::File::open(begun.join(path)).unwrap();
        file.set_modified(long_ago).unwrap();
    };
    for path in ["", "d", "d/b"] {
        old(path);
    }
    assert_eq!(sweep(&node.root, Duration::ZERO).unwrap(), 0);
    drop(running);
    assert_eq!(sweep(&node.root, hour).unwrap(), 0);
    old("a");
    assert_eq!(sweep(&node.root, hour).unwrap(), 1);
    assert!(!begun.exists());
}

#[test]
fn a_directory_may_not_be_called_like_one_that_is_assembled() {
    let (_from, source, _) = model(1);
    assert!(
        source
            .manifest()
            .entries()
            .any(|entry| entry.kind == EntryKind::Directory)
    );
    let node = Node::new();
    let name = names::partial_name(&"other".parse().unwrap(), "m");
    let error = Destination::prepare(node.config(&name, &source)).unwrap_err();
    assert_fault(&error, "ReservedName", &name);
    // Nor does anybody write into one, or read from it.
    let inside = format!("{name}/sub");
    std::fs::create_dir_all(node.path(&inside)).unwrap();
    let error = Destination::prepare(node.config(&inside, &source)).unwrap_err();
    assert_fault(&error, "ReservedName", &name);
    let error = node.source(&inside).unwrap_err();
    assert_fault(&error, "ReservedName", &name);
}

//! Attempts that end early and those that go on from there.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::time::Duration;

use proptest::prelude::*;

use super::alone::{Alone, alone, this_test};
use super::*;

#[test]
fn a_restarted_agent_goes_on_where_it_was() {
    let from = Node::new();
    from.write("m/a", &content(8 * BLOCK_BYTES + 3, 1))
        .write("m/b", &content(10, 2));
    let source = from.source("m").unwrap();
    let node = Node::new();
    for stop in [0, 3, 2, 1] {
        let destination = Destination::prepare(node.config("m", &source)).unwrap();
        let mut counts = Sent::default();
        send_file(&source, &destination, 0, stop, &mut counts).unwrap();
        assert_eq!(counts.sent, stop);
        assert!(
            !node.path("m/a").exists(),
            "half a file under its final name"
        );
        drop(destination);
    }
    let (digest, counts) = send(&source, node.config("m", &source)).unwrap();
    assert_eq!(
        counts,
        Sent {
            sent: 4,
            confirmed: 6
        }
    );
    assert_eq!(node.names(), ["m/", "m/a", "m/b"]);
    assert_eq!(node.read("m/a"), from.read("m/a"));
    // And once it is done, doing it again changes nothing.
    let inode = std::fs::metadata(node.path("m/a")).unwrap().ino();
    let (again, counts) = send(&source, node.config("m", &source)).unwrap();
    assert_eq!(
        (again, counts),
        (
            digest,
            Sent {
                sent: 0,
                confirmed: 10
            }
        )
    );
    assert_eq!(std::fs::metadata(node.path("m/a")).unwrap().ino(), inode);
    assert_eq!(node.names(), ["m/", "m/a", "m/b"]);
}

#[test]
fn a_damaged_partial_file_is_mended_and_not_believed() {
    use std::os::unix::fs::FileExt;
    let from = Node::new();
    from.write("a", &content(4 * BLOCK_BYTES, 1));
    let source = from.source("a").unwrap();
    let node = Node::new();
    let destination = Destination::prepare(node.config("a", &source)).unwrap();
    send_file(&source, &destination, 0, 3, &mut Sent::default()).unwrap();
    drop(destination);
    let partial = node.path(&names::partial_name(&"job-1".parse().unwrap(), "a"));
    let file = std::fs::File::options().write(true).open(partial).unwrap();
    file.write_all_at(b"torn", BLOCK_BYTES as u64 + 77).unwrap();
    let (_, counts) = send(&source, node.config("a", &source)).unwrap();
    assert_eq!(
        counts,
        Sent {
            sent: 2,
            confirmed: 2
        }
    );
    assert_eq!(node.read("a"), from.read("a"));
}

#[test]
fn a_file_that_differs_in_one_block_gets_one_block() {
    let from = Node::new();
    let new = content(5 * BLOCK_BYTES + 9, 1);
    from.write("a", &new);
    let source = from.source("a").unwrap();
    for differs in [0, 2, 5] {
        let node = Node::new();
        let mut old = new.clone();
        old[differs * BLOCK_BYTES] ^= 1;
        node.write("a", &old);
        let (_, counts) = send(&source, node.config("a", &source)).unwrap();
        assert_eq!(
            counts,
            Sent {
                sent: 1,
                confirmed: 5
            }
        );
        assert_eq!(node.read("a"), new);
        assert_eq!(node.names(), ["a"]);
    }
    let node = Node::new();
    node.write("a", &new);
    let always = DestinationConfig {
        overwrite: Overwrite::Always,
        ..node.config("a", &source)
    };
    assert_eq!(
        send(&source, always).unwrap().1,
        Sent {
            sent: 6,
            confirmed: 0
        }
    );
}

#[test]
fn an_attempt_whose_source_has_another_size_now_starts_from_what_fits() {
    let from = Node::new();
    let data = content(4 * BLOCK_BYTES, 1);
    from.write("a", &data);
    let node = Node::new();
    let source = from.source("a").unwrap();
    let destination = Destination::prepare(node.config("a", &source)).unwrap();
    send_file(&source, &destination, 0, 3, &mut Sent::default()).unwrap();
    drop(destination);
    from.write("a", &data[..2 * BLOCK_BYTES + 5]);
    let source = from.source("a").unwrap();
    let (_, counts) = send(&source, node.config("a", &source)).unwrap();
    assert_eq!(
        counts,
        Sent {
            sent: 0,
            confirmed: 3
        }
    );
    assert_eq!(node.read("a"), data[..2 * BLOCK_BYTES + 5]);
}

#[test]
fn an_abort_keeps_what_is_partial_and_a_discard_removes_it() {
    let from = Node::new();
    from.write("m/d/a", &content(2 * BLOCK_BYTES, 1))
        .write("m/b", b"1");
    let source = from.source("m").unwrap();
    let node = Node::new();
    node.write("kept", b"");
    let config = node.config("deep/m", &source);
    let destination = Destination::prepare(config.clone()).unwrap();
    let index = source
        .manifest()
        .files()
        .find(|(_, entry, _)| entry.path == "d/a")
        .unwrap()
        .0;
    send_file(&source, &destination, index, 1, &mut Sent::default()).unwrap();
    destination.abort();
    assert_eq!(
        node.names()
            .iter()
            .filter(|name| name.contains(".weft-"))
            .count(),
        4
    );
    let destination = Destination::prepare(config.clone()).unwrap();
    let mut counts = Sent::default();
    send_file(&source, &destination, index, 9, &mut counts).unwrap();
    assert_eq!(
        counts,
        Sent {
            sent: 1,
            confirmed: 1
        }
    );
    assert!(give_up(&destination).is_empty());
    assert!(
        !node.names().iter().any(|name| name.contains(".weft-")),
        "{:?}",
        node.names()
    );
    // One attempt only: its directories go, too.
    let node = Node::new();
    let config = DestinationConfig {
        root: node.root.clone(),
        ..config
    };
    assert!(give_up(&Destination::prepare(config).unwrap()).is_empty());
    assert_eq!(node.names(), Vec::<String>::new());
}

#[test]
fn after_the_end_no_byte_lands_and_another_attempt_may_begin() {
    let from = Node::new();
    let data = content(2 * BLOCK_BYTES, 1);
    from.write("d/a", &data);
    let source = from.source("d").unwrap();
    let node = Node::new();
    let config = node.config("d", &source);
    for is_discarded in [false, true] {
        let destination = Destination::prepare(config.clone()).unwrap();
        let file = destination.open(0).unwrap();
        let blocks = file.blocks();
        let digest = blocks.digest(0, &data[..BLOCK_BYTES]);
        let block = blocks.verify(0, &data[..BLOCK_BYTES], &digest).unwrap();
        if is_discarded {
            assert!(give_up(&destination).is_empty());
        }
        destination.abort();
        let before = node.names();
        assert_fault(
            &file.write_block(&block).unwrap_err(),
            "AttemptEnded",
            "d/a",
        );
        assert_fault(&destination.publish().unwrap_err(), "AttemptEnded", "d");
        assert_eq!(node.names(), before);
        // While the old one is still held.
        Destination::prepare(config.clone()).unwrap();
    }
    let destination = Destination::prepare(config.clone()).unwrap();
    send_file(&source, &destination, 0, 9, &mut Sent::default()).unwrap();
    destination.publish().unwrap();
    // Too late to be aborted.
    assert!(give_up(&destination).is_empty());
    assert_eq!(node.names(), ["d/", "d/a"]);
    // A relay may still read.
    let mut buffer = vec![0; BLOCK_BYTES];
    assert!(
        destination
            .open(0)
            .unwrap()
            .read_block(1, &mut buffer)
            .unwrap()
            .is_some()
    );
    assert_eq!(buffer, data[BLOCK_BYTES..]);
}

/// Discards what an attempt may have left that could not be prepared.
fn discard(config: &DestinationConfig) {
    let mut leftover = Leftover::default();
    leftover.note_attempt(config);
    assert!(leftover.remove_partials(&config.job).is_empty());
}

#[test]
fn what_a_job_left_is_discarded_even_where_it_cannot_be_prepared_any_more() {
    let from = Node::new();
    from.write("m/a", &content(100, 1)).write("m/d/b", b"2");
    let source = from.source("m").unwrap();
    let node = Node::new();
    let config = node.config("m", &source);
    drop(Destination::prepare(config.clone()).unwrap());
    // Meanwhile somebody needed the name.
    std::fs::create_dir_all(node.path("m/a")).unwrap();
    let refused = Destination::prepare(config.clone()).unwrap_err();
    assert_eq!(refused.reason(), "DestinationExists");
    discard(&config);
    assert_eq!(node.names(), ["m/", "m/a/"]);
    // And where nothing was ever made, nothing is made.
    discard(&node.config("other", &source));
    assert_eq!(node.names(), ["m/", "m/a/"]);
}

#[test]
fn the_empty_directories_that_any_attempt_of_a_job_made_go_with_what_it_left() {
    let from = Node::new();
    from.write("m/a", &content(100, 1)).write("m/d/e/b", b"2");
    let source = from.source("m").unwrap();
    let node = Node::new();
    std::fs::create_dir_all(node.path("users/m/d")).unwrap();
    let config = node.config("users/m", &source);
    // The second attempt finds the directory that the first has made.
    let mut leftover = Leftover::default();
    for _ in 0..2 {
        let destination = Destination::prepare(config.clone()).unwrap();
        leftover.note_attempt(&config);
        leftover.add(&destination);
        let busy = leftover.remove_partials(&config.job);
        assert_eq!(busy[0].reason(), "DestinationBusy");
        destination.abort();
    }
    assert!(leftover.remove_partials(&config.job).is_empty());
    assert_eq!(node.names(), ["users/", "users/m/", "users/m/d/"]);
}

#[test]
fn jobs_that_end_take_no_directory_from_under_jobs_that_begin() {
    let from = Node::new();
    from.write("a", b"1");
    let source = from.source("a").unwrap();
    let node = Node::in_memory();
    let turns = |job: &str| {
        let config = DestinationConfig {
            job: job.parse().unwrap(),
            ..node.config(&format!("team/deep/{job}"), &source)
        };
        for turn in 0..500 {
            let destination = Destination::prepare(config.clone())
                .unwrap_or_else(|error| panic!("{job}, turn {turn}: {error}"));
            assert!(give_up(&destination).is_empty());
        }
    };
    let turns = &turns;
    std::thread::scope(|threads| {
        for job in ["one", "two", "three"] {
            threads.spawn(move || turns(job));
        }
    });
    // The last to make them may not be the last to leave.
    let left = node.names();
    assert!(left.iter().all(|name| name.ends_with('/')), "{left:?}");
}

#[test]
fn what_a_job_left_is_found_by_its_name_alone() {
    let from = Node::new();
    from.write("m/a", &content(100, 1)).write("m/d/b", b"2");
    let source = from.source("m").unwrap();
    let node = Node::new();
    drop(Destination::prepare(node.config("m", &source)).unwrap());
    let other = DestinationConfig {
        job: "job-10".parse().unwrap(),
        ..node.config("n", &source)
    };
    drop(Destination::prepare(other.clone()).unwrap());
    let anywhere = |job: &str| {
        let job: JobUid = job.parse().unwrap();
        Leftover::anywhere(std::slice::from_ref(&node.root)).remove_partials(&job)
    };
    assert!(anywhere("job-1").is_empty() && anywhere("job-1").is_empty());
    let names = node.names();
    let of = |job: &str| names.iter().filter(|name| name.contains(job)).count();
    assert_eq!(
        (of(".weft-job-1-"), of(".weft-job-10-")),
        (0, 4),
        "{names:?}"
    );
    let _running = Destination::prepare(other).unwrap();
    let busy = anywhere("job-10");
    assert_eq!(busy[0].reason(), "DestinationBusy");
}

#[test]
fn what_attempts_with_other_paths_and_manifests_left_goes_too() {
    let from = Node::new();
    from.write("m/a", &content(100, 1)).write("m/d/b", b"2");
    let source = from.source("m").unwrap();
    from.write("m/c", b"3");
    let grown = from.source("m").unwrap();
    let node = Node::new();
    let table = [
        [node.config("m", &source), node.config("n", &source)],
        [node.config("m", &grown), node.config("m", &source)],
    ];
    for attempts in table {
        let mut leftover = Leftover::default();
        for config in &attempts {
            leftover.note_attempt(config);
            let destination = Destination::prepare(config.clone()).unwrap();
            leftover.add(&destination);
            destination.abort();
        }
        assert!(leftover.remove_partials(&attempts[0].job).is_empty());
        assert_eq!(node.names(), Vec::<String>::new());
    }
}

#[test]
fn what_cannot_be_removed_is_named_and_still_owed_and_the_rest_goes() {
    alone(
        this_test!(what_cannot_be_removed_is_named_and_still_owed_and_the_rest_goes),
        Alone::Unprivileged,
        || {
            let from = Node::new();
            from.write("m/a", b"1").write("m/d/b", b"2");
            let source = from.source("m").unwrap();
            let (node, other) = (Node::new(), Node::new());
            for node in [&node, &other] {
                std::fs::create_dir_all(node.path("m/d")).unwrap();
            }
            let other_root =
                Arc::new(Root::open("other", other.directory.path(), Access::ReadWrite).unwrap());
            let config = node.config("m", &source);
            let elsewhere = DestinationConfig {
                root: other_root.clone(),
                ..config.clone()
            };
            let mode = |mode| {
                let mode = std::fs::Permissions::from_mode(mode);
                std::fs::set_permissions(node.path("m/d"), mode).unwrap();
            };
            let mut known = Leftover::default();
            known.note_attempt(&config);
            known.note_attempt(&elsewhere);
            let unknown = Leftover::anywhere(&[node.root.clone(), other_root]);
            for mut leftover in [known, unknown] {
                drop(Destination::prepare(config.clone()).unwrap());
                drop(Destination::prepare(elsewhere.clone()).unwrap());
                mode(0o555);
                let faults = leftover.remove_partials(&config.job);
                assert_eq!(faults.len(), 1, "{faults:?}");
                assert_fault(&faults[0], "DestinationDenied", "m/d/");
                assert_eq!(node.names().len(), 3, "{:?}", node.names());
                assert_eq!(other.names(), ["m/", "m/d/"]);
                mode(0o755);
                assert!(leftover.remove_partials(&config.job).is_empty());
                assert_eq!(node.names(), ["m/", "m/d/"]);
            }
        },
    );
}

#[test]
fn an_empty_directory_that_another_job_needs_stays() {
    let from = Node::new();
    from.write("m/a", b"1");
    std::fs::create_dir(from.path("m/empty")).unwrap();
    let source = from.source("m").unwrap();
    let node = Node::new();
    let config = node.config("m", &source);
    let mut leftover = Leftover::default();
    leftover.note_attempt(&config);
    let destination = Destination::prepare(config.clone()).unwrap();
    leftover.add(&destination);
    destination.abort();
    let other = DestinationConfig {
        job: "job-2".parse().unwrap(),
        ..config.clone()
    };
    send(&source, other).unwrap();
    assert!(leftover.remove_partials(&config.job).is_empty());
    assert_eq!(node.names(), ["m/", "m/a", "m/empty/"]);
}

#[test]
fn a_sweep_removes_what_is_old_and_nobodys_only() {
    let from = Node::new();
    from.write("m/a", &content(100, 1)).write("m/d/b", b"2");
    let source = from.source("m").unwrap();
    let node = Node::new();
    let running = Destination::prepare(node.config("m", &source)).unwrap();
    let left = DestinationConfig {
        job: "job-2".parse().unwrap(),
        ..node.config("n", &source)
    };
    drop(Destination::prepare(left).unwrap());
    node.write(".weft-notes", b"a user's");
    assert_eq!(
        sweep(&node.root, Duration::from_secs(3600)).unwrap(),
        0,
        "too young"
    );
    assert_eq!(sweep(&node.root, Duration::ZERO).unwrap(), 1);
    assert_eq!(
        node.names()
            .iter()
            .filter(|name| name.contains(".weft-"))
            .count(),
        // The lock, the directory with two files and a directory, and the user's.
        6
    );
    for (index, _, _) in source.manifest().files() {
        send_file(&source, &running, index, 9, &mut Sent::default()).unwrap();
    }
    running.publish().unwrap();
    assert_eq!(node.names(), [".weft-notes", "m/", "m/a", "m/d/", "m/d/b"]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn any_sizes_and_any_interruptions_end_with_the_same_files(
        sizes in prop::collection::vec((0usize..3, -1200i64..1200), 1..4),
        stops in prop::collection::vec(0u32..4, 0..4),
        seed: u64,
        xxh3: bool,
        known: bool,
    ) {
        let from = Node::new();
        for (number, (blocks, near)) in sizes.iter().enumerate() {
            let len = ((blocks * BLOCK_BYTES) as i64 + near).max(0) as usize;
            from.write(&format!("m/{}/f", number), &content(len, seed ^ number as u64));
        }
        let source = from.source("m").unwrap();
        let node = Node::new();
        let algorithm = if xxh3 { Algorithm::Xxh3 } else { Algorithm::Blake3 };
        let mut config = DestinationConfig { algorithm, ..node.config("m", &source) };
        if known {
            let other = Node::new();
            let elsewhere = DestinationConfig { root: other.root.clone(), ..config.clone() };
            config.expect = Some(send(&source, elsewhere).unwrap().0);
        }
        let mut total = 0;
        for stop in stops {
            let destination = Destination::prepare(config.clone()).unwrap();
            let mut counts = Sent::default();
            for (index, _, _) in source.manifest().files() {
                send_file(&source, &destination, index, stop, &mut counts).unwrap();
            }
            prop_assert!(!node.path("m").exists());
            total += counts.sent;
        }
        let (digest, counts) = send(&source, config).unwrap();
        let blocks = source.manifest().files().map(|(_, _, bytes)| BlockLayout::new(algorithm, bytes).count());
        // Nothing that arrived was sent twice.
        prop_assert_eq!(total + counts.sent, blocks.sum::<u32>());
        prop_assert_eq!(node.names(), from.names());
        for (_, entry, _) in source.manifest().files() {
            let path = format!("m/{}", entry.path);
            prop_assert_eq!(node.read(&path), from.read(&path));
        }
        if !xxh3 {
            let lines: String = source.manifest().files().map(|(_, entry, _)| {
                let hash = blake3::hash(&from.read(&format!("m/{}", entry.path)));
                format!("{}  {}\n", hash.to_hex(), entry.path)
            }).collect();
            let expected = blake3::hash(lines.as_bytes());
            prop_assert_eq!(digest.as_bytes(), expected.as_bytes());
        }
    }
}

#[test]
fn a_whole_file_that_may_only_be_read_is_resumed_by_an_agent_that_obeys_modes() {
    alone(
        this_test!(a_whole_file_that_may_only_be_read_is_resumed_by_an_agent_that_obeys_modes),
        Alone::Unprivileged,
        || {
            let (from, to) = (Node::new(), Node::new());
            from.write("m/a", &content(100, 1))
                .write("m/b", &content(100, 2));
            let read_only = fs::Permissions::from_mode(0o444);
            fs::set_permissions(from.path("m/a"), read_only).unwrap();
            let source = from.source("m").unwrap();
            let destination = Destination::prepare(to.config("m", &source)).unwrap();
            send_file(&source, &destination, 0, 1, &mut Sent::default()).unwrap();
            drop(destination);
            let to = reopened(to);
            let (_, counts) = send(&source, to.config("m", &source)).unwrap();
            assert_eq!((counts.sent, counts.confirmed), (1, 1));
            let mode = fs::metadata(to.path("m/a")).unwrap().permissions().mode();
            assert_eq!(mode & 0o7777, 0o444);
        },
    );
}

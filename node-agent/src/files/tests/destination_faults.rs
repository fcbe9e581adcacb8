//! What a destination can get wrong.

use std::fs::{self, Permissions};
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::time::Duration;

use super::alone::{Alone, alone, mount, this_test};
use super::*;
use crate::files::space::{MinFree, RootLimits};

/// A source directory `m` of three files, five blocks and one empty directory.
fn source_node() -> (Node, Source) {
    let node = Node::new();
    node.write("m/a", &content(3 * BLOCK_BYTES + 1, 1));
    node.write("m/d/b", &content(100, 2))
        .write("m/d/empty", b"");
    fs::create_dir(node.path("m/hollow")).unwrap();
    let source = node.source("m").unwrap();
    (node, source)
}

#[test]
fn what_is_in_the_way_is_refused_before_any_byte_and_stays_as_it_was() {
    type Setup = fn(&Node);
    use Overwrite::{Always, IfDifferent, Never};
    let table: &[(&str, Overwrite, Setup, &str, &str)] = &[
        (
            "another size",
            Never,
            |node| _ = node.write("m/a", b"old"),
            "DestinationExists",
            "m/a",
        ),
        (
            "a directory under a file's name",
            Always,
            |node| fs::create_dir_all(node.path("m/a")).unwrap(),
            "DestinationExists",
            "a directory",
        ),
        (
            "a file under a directory's name",
            Always,
            |node| _ = node.write("m/d", b"old"),
            "DestinationExists",
            "m/d",
        ),
        (
            "a file on the way",
            Always,
            |node| _ = node.write("m", b"old"),
            "DestinationExists",
            "\"m\"",
        ),
        (
            "a link under a file's name",
            IfDifferent,
            |node| {
                fs::create_dir(node.path("m")).unwrap();
                symlink("/etc/passwd", node.path("m/a")).unwrap();
            },
            "SymlinkRefused",
            "/etc/passwd",
        ),
        (
            "a link under a directory's name",
            Always,
            |node| {
                fs::create_dir(node.path("m")).unwrap();
                symlink("/etc", node.path("m/d")).unwrap();
            },
            "SymlinkRefused",
            "m/d",
        ),
        (
            "a link on the way",
            Always,
            |node| symlink("/etc", node.path("m")).unwrap(),
            "SymlinkRefused",
            "\"m\"",
        ),
    ];
    let (_node, source) = source_node();
    for (fault, overwrite, setup, reason, named) in table {
        let node = Node::new();
        setup(&node);
        let before = node.names();
        let config = DestinationConfig {
            overwrite: *overwrite,
            ..node.config("m", &source)
        };
        let error = Destination::prepare(config)
            .err()
            .unwrap_or_else(|| panic!("{fault}: accepted"));
        assert_fault(&error, reason, named);
        assert_eq!(node.names(), before, "{fault}: something was left behind");
    }
}

#[test]
fn a_root_that_is_read_only_by_configuration_is_refused() {
    let (_node, source) = source_node();
    let node = Node::new();
    let root = Root::open("models", node.directory.path(), Access::ReadOnly).unwrap();
    let config = DestinationConfig {
        root: Arc::new(root),
        ..node.config("m", &source)
    };
    assert_fault(
        &Destination::prepare(config).unwrap_err(),
        "RootReadOnly",
        "models",
    );
}

#[test]
fn a_full_disk_is_found_before_any_byte_and_nothing_stays() {
    alone(
        this_test!(a_full_disk_is_found_before_any_byte_and_nothing_stays),
        Alone::Mounts,
        || {
            let (_node, source) = source_node();
            let node = Node::new();
            mount("tmpfs", "size=3m", node.directory.path());
            let node = reopened(node);
            let error = Destination::prepare(node.config("deep/m", &source)).unwrap_err();
            assert_fault(&error, "DiskFull", "deep/m");
            assert_eq!(node.names(), Vec::<String>::new());
            // Enough space for all but the last block, taken by somebody else.
            mount("tmpfs", "size=5m", node.directory.path());
            let node = reopened(node);
            node.write("other", &content(2 * BLOCK_BYTES, 9));
            let error = Destination::prepare(node.config("m", &source)).unwrap_err();
            assert_fault(&error, "DiskFull", "3170304 bytes");
            fs::remove_file(node.path("other")).unwrap();
            // What is reserved nobody else gets.
            let destination = Destination::prepare(node.config("m", &source)).unwrap();
            let greedy = fs::write(node.path("other"), content(4 * BLOCK_BYTES, 9));
            assert_eq!(greedy.unwrap_err().kind(), std::io::ErrorKind::StorageFull);
            for (index, _, _) in source.manifest().files() {
                send_file(&source, &destination, index, u32::MAX, &mut Sent::default()).unwrap();
            }
            destination.publish().unwrap();
            assert_eq!(node.read("m/a"), content(3 * BLOCK_BYTES + 1, 1));
        },
    );
}

#[test]
fn a_large_file_on_tmpfs_is_checked_before_any_byte_and_may_be_short_of_space_at_its_blocks() {
    alone(
        this_test!(
            a_large_file_on_tmpfs_is_checked_before_any_byte_and_may_be_short_of_space_at_its_blocks
        ),
        Alone::Mounts,
        || {
            let from = Node::new();
            from.write("m", b"");
            let large = fs::File::options().write(true).open(from.path("m"));
            let large = large.unwrap();
            large.set_len(64 << 20).unwrap();
            // No block is a hole.
            for block in 0..64 {
                large.write_all_at(b"x", block << 20).unwrap();
            }
            let source = from.source("m").unwrap();
            let node = Node::new();
            mount("tmpfs", "size=60m", node.directory.path());
            let node = reopened(node);
            let error = Destination::prepare(node.config("deep/m", &source)).unwrap_err();
            assert_fault(&error, "DiskFull", "deep/m");
            assert_eq!(node.names(), Vec::<String>::new());
            mount("tmpfs", "size=70m", node.directory.path());
            let node = reopened(node);
            let destination = Destination::prepare(node.config("m", &source)).unwrap();
            node.write("other", &content(20 * BLOCK_BYTES, 9));
            let mut counts = Sent::default();
            let error = send_file(&source, &destination, 0, u32::MAX, &mut counts).unwrap_err();
            assert_fault(&error, "DiskFull", "\"m\"");
        },
    );
}

#[test]
fn replacing_a_file_on_a_full_disk_fails_and_leaves_the_old_one() {
    alone(
        this_test!(replacing_a_file_on_a_full_disk_fails_and_leaves_the_old_one),
        Alone::Mounts,
        || {
            let (_node, source) = source_node();
            let node = Node::new();
            mount("tmpfs", "size=6m", node.directory.path());
            let node = reopened(node);
            // Of the same size: only the first block that differs shows that space is needed.
            let old = content(3 * BLOCK_BYTES + 1, 8);
            node.write("m/a", &old);
            let error = send(&source, node.config("m", &source)).unwrap_err();
            assert_fault(&error, "DiskFull", "m/a");
            assert_eq!(node.read("m/a"), old);
        },
    );
}

#[test]
fn a_file_system_out_of_inodes_is_found_before_any_byte() {
    alone(
        this_test!(a_file_system_out_of_inodes_is_found_before_any_byte),
        Alone::Mounts,
        || {
            let (_node, source) = source_node();
            let node = Node::new();
            mount("tmpfs", "size=64m,nr_inodes=6", node.directory.path());
            let node = reopened(node);
            let error = Destination::prepare(node.config("m", &source)).unwrap_err();
            assert_fault(&error, "InodesExhausted", "3 files");
            assert_eq!(node.names(), Vec::<String>::new());
            // A part of them stays free.
            mount("tmpfs", "size=64m,nr_inodes=100", node.directory.path());
            let node = reopened(node);
            let keep = |percent| {
                node.root.set_limits(RootLimits {
                    min_free: MinFree::Percent(percent),
                    ..RootLimits::default()
                });
            };
            keep(95);
            let error = Destination::prepare(node.config("m", &source)).unwrap_err();
            assert_fault(&error, "InodesExhausted", "minFree");
            keep(10);
            Destination::prepare(node.config("m", &source)).unwrap();
        },
    );
}

#[test]
fn a_file_system_mounted_read_only_is_refused() {
    alone(
        this_test!(a_file_system_mounted_read_only_is_refused),
        Alone::Mounts,
        || {
            let (_node, source) = source_node();
            let node = Node::new();
            mount("tmpfs", "size=64m,ro", node.directory.path());
            let node = reopened(node);
            let error = Destination::prepare(node.config("m", &source)).unwrap_err();
            assert_fault(&error, "DestinationReadOnly", "models");
        },
    );
}

#[test]
fn a_file_system_without_fallocate_holds_files_all_the_same() {
    alone(
        this_test!(a_file_system_without_fallocate_holds_files_all_the_same),
        Alone::Mounts,
        || {
            let (_node, source) = source_node();
            let node = Node::new();
            mount("ramfs", "mode=755", node.directory.path());
            let node = reopened(node);
            send(&source, node.config("m", &source)).unwrap();
            assert_eq!(node.read("m/a"), content(3 * BLOCK_BYTES + 1, 1));
        },
    );
}

#[test]
fn a_directory_that_may_not_be_written_is_refused() {
    alone(
        this_test!(a_directory_that_may_not_be_written_is_refused),
        Alone::Unprivileged,
        || {
            let (_node, source) = source_node();
            let node = Node::new();
            fs::create_dir_all(node.path("m/d")).unwrap();
            for (path, named) in [
                ("m/d", "m/d"),
                ("m", "\"m/hollow\""),
                ("", ".weft-job-1.lock"),
            ] {
                fs::set_permissions(node.path(path), Permissions::from_mode(0o500)).unwrap();
                let error = Destination::prepare(node.config("m", &source)).unwrap_err();
                assert_fault(&error, "DestinationDenied", named);
                fs::set_permissions(node.path(path), Permissions::from_mode(0o700)).unwrap();
                assert_eq!(node.names(), ["m/", "m/d/"]);
            }
        },
    );
}

#[test]
fn a_destination_that_another_job_writes_is_busy_and_names_that_job() {
    let (_node, source) = source_node();
    let node = Node::new();
    let first = Destination::prepare(node.config("m", &source)).unwrap();
    let second = DestinationConfig {
        job: "job-2".parse().unwrap(),
        ..node.config("m", &source)
    };
    let error = Destination::prepare(second.clone()).unwrap_err();
    assert_fault(&error, "DestinationBusy", "job-1");
    // The same job from another process.
    let error = Destination::prepare(node.config("m", &source)).unwrap_err();
    assert_fault(&error, "DestinationBusy", "job-1");
    // Within its directory, whether that is there or is being assembled, and around it.
    let other = Node::new();
    other.write("m/other", b"1");
    let other = other.source("m").unwrap();
    let there = Node::new();
    fs::create_dir(there.path("m")).unwrap();
    let _first = Destination::prepare(there.config("m", &source)).unwrap();
    for node in [&node, &there] {
        for (path, is_free) in [("m", false), ("m/sub", false), ("", false), ("mm", true)] {
            let beside = DestinationConfig {
                job: "job-3".parse().unwrap(),
                ..node.config(path, &other)
            };
            let before = node.names();
            match Destination::prepare(beside) {
                Ok(destination) => assert!(is_free && give_up(&destination).is_empty(), "{path}"),
                Err(error) => {
                    assert!(!is_free, "{path}: {error}");
                    assert_fault(&error, "DestinationBusy", "job-1");
                }
            }
            assert_eq!(node.names(), before, "{path}");
        }
    }
    // What a dead job left is nobody's.
    drop(first);
    let second = Destination::prepare(second).unwrap();
    assert!(give_up(&second).is_empty());
    // And the first job still finds its own.
    send(&source, node.config("m", &source)).unwrap();
}

#[test]
fn another_content_under_overwrite_never_is_an_error_and_the_same_content_is_not() {
    let (from, source) = source_node();
    let node = Node::new();
    let mut other = content(3 * BLOCK_BYTES + 1, 1);
    other[BLOCK_BYTES + 5] ^= 1;
    node.write("m/a", &other);
    let never = DestinationConfig {
        overwrite: Overwrite::Never,
        ..node.config("m", &source)
    };
    let error = send(&source, never.clone()).unwrap_err();
    assert_fault(&error, "DestinationExists", "m/a");
    assert_eq!(node.read("m/a"), other);
    node.write("m/a", &from.read("m/a"));
    let (_, counts) = send(&source, never.clone()).unwrap();
    assert_eq!(
        counts,
        Sent {
            sent: 1,
            confirmed: 4
        }
    );

    // A file that appears while the job runs is not replaced, either.
    let node = Node::new();
    let never = DestinationConfig {
        root: node.root.clone(),
        ..never
    };
    let destination = Destination::prepare(never).unwrap();
    for (index, _, _) in source.manifest().files() {
        send_file(&source, &destination, index, u32::MAX, &mut Sent::default()).unwrap();
    }
    node.write("m/a", b"somebody else's");
    assert_fault(
        &destination.publish().unwrap_err(),
        "DestinationExists",
        "\"m\"",
    );
    assert_eq!(node.read("m/a"), b"somebody else's");
}

#[test]
fn a_file_is_not_finished_before_it_is_whole_and_has_the_right_digest() {
    let (_node, source) = source_node();
    let node = Node::new();
    let destination = Destination::prepare(node.config("m", &source)).unwrap();
    let mut counts = Sent::default();
    assert_eq!(
        send_file(&source, &destination, 0, 2, &mut counts).unwrap(),
        None
    );
    let digest: Digest = "0".repeat(64).parse().unwrap();
    let file = destination.open(0).unwrap();
    assert_eq!(
        file.missing(),
        4,
        "what was written by an earlier user counts after a rehash only"
    );
    assert_fault(
        &destination.finish(&file, &digest).unwrap_err(),
        "BlocksMissing",
        "4 blocks",
    );
    drop(file);
    let right = send_file(&source, &destination, 0, 9, &mut counts)
        .unwrap()
        .unwrap();
    assert_eq!(
        counts,
        Sent {
            sent: 4,
            confirmed: 2
        }
    );
    let file = destination.open(0).unwrap();
    let error = destination.finish(&file, &digest).unwrap_err();
    assert_fault(&error, "DigestMismatch", &right.to_string());
    assert_fault(&destination.publish().unwrap_err(), "BlocksMissing", "m");
}

#[test]
fn a_corrupt_block_never_reaches_the_disk() {
    let (_node, source) = source_node();
    let node = Node::new();
    let destination = Destination::prepare(node.config("m", &source)).unwrap();
    let file = destination.open(0).unwrap();
    let data = content(3 * BLOCK_BYTES + 1, 1);
    let digest = file.blocks().digest(0, &data[..BLOCK_BYTES]);
    let mut damaged = data[..BLOCK_BYTES].to_vec();
    damaged[BLOCK_BYTES - 1] ^= 0x80;
    let fault = file.blocks().verify(0, &damaged, &digest).unwrap_err();
    assert_eq!(fault, BlockFault::Corrupt { index: 0 });
    // Nor does one that was verified as a block of another file.
    let elsewhere = BlockLayout::new(Algorithm::Blake3, BLOCK_BYTES as u64);
    let root = elsewhere.digest(0, &data[..BLOCK_BYTES]);
    let verified = elsewhere.verify(0, &data[..BLOCK_BYTES], &root).unwrap();
    let write = || file.write_block(&verified);
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(write)).is_err());
    assert_eq!(file.missing(), 4);
}

#[test]
fn a_digest_that_the_job_does_not_expect_publishes_nothing() {
    let (from, source) = source_node();
    let wrong = Some("1".repeat(64).parse().unwrap());
    for path in ["m", "m/a"] {
        let source = if path == "m" {
            source.clone()
        } else {
            from.source(path).unwrap()
        };
        let node = Node::new();
        let config = DestinationConfig {
            expect: wrong,
            ..node.config(path, &source)
        };
        let error = send(&source, config.clone()).unwrap_err();
        assert_fault(&error, "ExpectMismatch", path);
        assert!(
            node.names()
                .iter()
                .all(|name| name.contains(".weft-") || name.ends_with('/'))
        );
        // With the right one nothing has to be sent again.
        let (digest, _) = send(&source, Node::new().config(path, &source)).unwrap();
        let (again, counts) = send(
            &source,
            DestinationConfig {
                expect: Some(digest),
                ..config
            },
        )
        .unwrap();
        assert_eq!((again, counts.sent), (digest, 0));
    }
    let node = Node::new();
    let expect = Some("1".repeat(32).parse().unwrap());
    let config = DestinationConfig {
        expect,
        ..node.config("m", &source)
    };
    assert_fault(
        &Destination::prepare(config).unwrap_err(),
        "BadExpect",
        "Blake3",
    );
}

#[test]
fn files_that_others_touch_while_they_are_written_are_not_verified() {
    let (from, source) = source_node();
    type Meddle = fn(&Node);
    let job: JobUid = "job-1".parse().unwrap();
    let staged = format!("{}/a", names::partial_name(&job, "m"));
    let beside = format!("m/{}", names::partial_name(&job, "a"));
    let table: &[(&str, bool, Meddle)] = &[
        ("the partial file is removed", false, |node| {
            let name = names::partial_name(&"job-1".parse().unwrap(), "m");
            fs::remove_file(node.path(&name).join("a")).unwrap();
        }),
        ("the existing file is written to", true, |node| {
            let file = fs::File::options()
                .write(true)
                .open(node.path("m/a"))
                .unwrap();
            file.write_all_at(b"x", 3).unwrap();
        }),
    ];
    for (fault, existing, meddle) in table {
        let node = Node::new();
        if *existing {
            node.write("m/a", &from.read("m/a"));
        }
        let destination = Destination::prepare(node.config("m", &source)).unwrap();
        let partial = if *existing { &beside } else { &staged };
        assert!(node.path(partial).exists());
        let from = source.open(0).unwrap();
        let to = destination.open(0).unwrap();
        let mut buffer = vec![0; BLOCK_BYTES];
        to.rehash(&mut buffer).unwrap();
        let mut tree = HashTree::new(to.blocks());
        for block in 0..4 {
            let len = from.read_block(block, &mut buffer).unwrap();
            let digest = to.blocks().digest(block, &buffer[..len]);
            tree.set(block, digest);
            if !to.confirm(block, &digest).unwrap() {
                to.write_block(&to.blocks().verify(block, &buffer[..len], &digest).unwrap())
                    .unwrap();
            }
        }
        meddle(&node);
        let finished = destination.finish(&to, &tree.root().unwrap());
        for index in [2, 3] {
            send_file(&source, &destination, index, u32::MAX, &mut Sent::default()).unwrap();
        }
        let error = finished
            .and_then(|()| destination.publish())
            .expect_err(fault);
        assert_fault(&error, "DestinationChanged", "m/a");
    }
}

#[test]
fn a_file_that_is_kept_and_changes_before_the_end_is_not_verified() {
    let (from, source) = source_node();
    type Meddle = fn(&Node);
    let table: &[(&str, Meddle)] = &[
        ("written to", |node| {
            let file = fs::File::options().write(true).open(node.path("m/a"));
            file.unwrap().write_all_at(b"x", 3).unwrap();
        }),
        ("written to, and its time set back", |node| {
            let file = fs::File::options().write(true).open(node.path("m/a"));
            let file = file.unwrap();
            let before = file.metadata().unwrap().modified().unwrap();
            file.write_all_at(b"x", 3).unwrap();
            file.set_modified(before).unwrap();
        }),
        ("replaced by another", |node| {
            node.write("other", &content(3 * BLOCK_BYTES + 1, 9));
            fs::rename(node.path("other"), node.path("m/a")).unwrap();
        }),
        ("removed", |node| {
            fs::remove_file(node.path("m/a")).unwrap();
        }),
    ];
    for mode in [0o644, 0o600] {
        for (fault, meddle) in table {
            let node = Node::new();
            node.write("m/a", &from.read("m/a"));
            let file = fs::File::open(node.path("m/a")).unwrap();
            // Long ago, so that no tick of the kernel's clock is too coarse to see the change.
            file.set_modified(std::time::UNIX_EPOCH + Duration::from_secs(1))
                .unwrap();
            file.set_permissions(Permissions::from_mode(mode)).unwrap();
            let destination = Destination::prepare(node.config("m", &source)).unwrap();
            for (index, _, _) in source.manifest().files() {
                let mut counts = Sent::default();
                send_file(&source, &destination, index, u32::MAX, &mut counts).unwrap();
                assert_eq!(counts.sent, u32::from(index == 2), "{fault}: index {index}");
            }
            meddle(&node);
            let error = destination.publish().expect_err(fault);
            assert_fault(&error, "DestinationChanged", "m/a");
        }
    }
}

//! Whole transfers that go well.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, SystemTime};

use super::alone::{Alone, alone, peak_kib, reset_peak_kib, this_test};
use super::*;
use crate::files::copies::CopyJob;
use crate::files::not_kept::NotKept;

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

/// Sets when a file was last written to, and gives it.
fn written_at(path: &Path, seconds: u64) -> SystemTime {
    let time = SystemTime::UNIX_EPOCH + Duration::new(seconds, 123_456_789);
    let file = fs::File::options().write(true).open(path).unwrap();
    file.set_modified(time).unwrap();
    time
}

fn modified(path: PathBuf) -> SystemTime {
    fs::metadata(path).unwrap().modified().unwrap()
}

#[test]
fn a_source_says_what_copies_of_it_will_not_have() {
    let from = Node::new();
    from.write("m/a", b"1").write("m/sub/b", b"2");
    let not_kept = || {
        let source = from.source("m").unwrap();
        source.manifest().not_kept().collect::<Vec<_>>()
    };
    assert_eq!(not_kept(), []);
    let (a, sub) = (from.path("m/a"), from.path("m/sub"));
    fs::hard_link(&a, from.path("m/c")).unwrap();
    assert_eq!(not_kept(), [NotKept::HardLinks]);
    fs::set_permissions(&sub, Permissions::from_mode(0o2755)).unwrap();
    assert_eq!(not_kept(), [NotKept::SpecialModeBits, NotKept::HardLinks]);
    let flags = rustix::fs::XattrFlags::empty();
    rustix::fs::setxattr(&a, "user.origin", b"hub", flags).unwrap();
    std::os::unix::fs::chown(&sub, Some(1000), None).unwrap();
    let all = [
        NotKept::Owner,
        NotKept::SpecialModeBits,
        NotKept::ExtendedAttributes,
        NotKept::HardLinks,
    ];
    assert_eq!(not_kept(), all);
    // A source that is one file.
    let source = from.source("m/c").unwrap();
    let of_file: Vec<NotKept> = source.manifest().not_kept().collect();
    assert_eq!(of_file, [NotKept::ExtendedAttributes, NotKept::HardLinks]);
}

#[test]
fn a_file_arrives_with_the_time_of_its_last_change_and_one_that_is_there_keeps_its_own() {
    let (from, to) = (Node::new(), Node::new());
    from.write("m/a", b"1").write("m/b", b"2");
    let a = written_at(&from.path("m/a"), 1_000_000_000);
    let source = from.source("m").unwrap();
    send(&source, to.config("m", &source)).unwrap();
    assert_eq!(modified(to.path("m/a")), a);
    assert_eq!(modified(to.path("m/b")), modified(from.path("m/b")));
    // Another time alone is another listing of the same manifest, and nothing is sent or touched.
    written_at(&from.path("m/a"), 1_100_000_000);
    let b = from.write("m/b", b"3").path("m/b");
    let b = written_at(&b, 1_200_000_000);
    let again = from.source("m").unwrap();
    let (first, second) = (source.manifest(), again.manifest());
    assert_eq!(first.digest(), second.digest());
    assert_ne!(first.fingerprint(), second.fingerprint());
    let (_, counts) = send(&again, to.config("m", &again)).unwrap();
    assert_eq!((counts.sent, counts.confirmed), (1, 1));
    assert_eq!(modified(to.path("m/a")), a);
    assert_eq!(modified(to.path("m/b")), b);
    // A single file; and a copy is listed with the times that its files have.
    let one = from.source("m/b").unwrap();
    send(&one, to.config("one", &one)).unwrap();
    assert_eq!(modified(to.path("one")), b);
    written_at(&to.path("one"), 5);
    let path = RootPath::parse("one").unwrap();
    let copy = Source::new(to.root.clone(), path, one.manifest().clone());
    assert_eq!(copy.relist().unwrap().modified_ns(0), 5_123_456_789);
}

#[test]
fn what_an_ended_attempt_left_is_as_old_as_its_last_write_and_not_as_its_source() {
    let (from, to) = (Node::new(), Node::new());
    from.write("m/a", b"1");
    written_at(&from.path("m/a"), 1_000_000_000);
    let source = from.source("m").unwrap();
    let destination = Destination::prepare(to.config("m", &source)).unwrap();
    send_file(&source, &destination, 0, u32::MAX, &mut Sent::default()).unwrap();
    drop(destination);
    assert_eq!(sweep(&to.root, Duration::from_secs(3600)), Ok(0));
}

#[test]
fn a_directory_arrives_with_its_modes_empty_files_and_empty_directories() {
    let from = Node::new();
    from.write("m/a.txt", b"1")
        .write("m/a/b", &content(BLOCK_BYTES, 2))
        .write("m/zero", b"");
    from.write("m/run", b"#!/bin/sh\n")
        .write("m/sealed/x", b"x");
    fs::create_dir_all(from.path("m/hollow/inner")).unwrap();
    for (path, mode) in [
        ("m/run", 0o4751),
        ("m/zero", 0o400),
        ("m/sealed", 0o555),
        ("m/hollow/inner", 0o700),
    ] {
        fs::set_permissions(from.path(path), Permissions::from_mode(mode)).unwrap();
    }
    let source = from.source("m").unwrap();
    let node = Node::new();
    let (digest, _) = send(&source, node.config("deep/in/m", &source)).unwrap();
    assert_eq!(
        names_below(&node.path("deep/in/m")),
        names_below(&from.path("m"))
    );
    assert_eq!(
        mode(&node.path("deep/in/m/run")),
        0o751,
        "set-uid does not travel"
    );
    assert_eq!(mode(&node.path("deep/in/m/zero")), 0o400);
    assert_eq!(mode(&node.path("deep/in/m/sealed")), 0o555);
    assert_eq!(mode(&node.path("deep/in/m/hollow/inner")), 0o700);
    // As `b3sum` lists them: "a.txt" sorts before "a/b".
    let files = ["a.txt", "a/b", "run", "sealed/x", "zero"];
    let line = |path: &str| {
        format!(
            "{}  {path}\n",
            blake3::hash(&from.read(&format!("m/{path}"))).to_hex()
        )
    };
    let lines: String = files.into_iter().map(line).collect();
    assert_eq!(
        digest.to_string(),
        blake3::hash(lines.as_bytes()).to_hex().to_string()
    );
    // The temporary directories can be removed.
    for node in [&from.path("m/sealed"), &node.path("deep/in/m/sealed")] {
        fs::set_permissions(node, Permissions::from_mode(0o755)).unwrap();
    }
}

#[test]
fn a_single_file_goes_to_a_name_or_into_a_directory() {
    let from = Node::new();
    from.write("m/model.bin", &content(BLOCK_BYTES + 1, 1));
    let source = from.source("m/model.bin").unwrap();
    let node = Node::new();
    let (digest, _) = send(&source, node.config("x/renamed.bin", &source)).unwrap();
    send(&source, node.config("y/", &source)).unwrap();
    send(&source, node.config("", &source)).unwrap();
    assert_eq!(
        node.names(),
        ["model.bin", "x/", "x/renamed.bin", "y/", "y/model.bin"]
    );
    assert_eq!(
        digest.to_string(),
        blake3::hash(&from.read("m/model.bin")).to_hex().to_string()
    );
    // Without the slash a directory is in the way, and the remedy says how to put it there.
    let error = send(&source, node.config("y", &source)).unwrap_err();
    assert_fault(&error, "DestinationExists", "slash");
}

#[test]
fn an_empty_directory_is_a_source_too() {
    let from = Node::new();
    fs::create_dir(from.path("m")).unwrap();
    let source = from.source("m").unwrap();
    let node = Node::new();
    let (digest, _) = send(&source, node.config("m", &source)).unwrap();
    assert_eq!(node.names(), ["m/"]);
    assert_eq!(digest.as_bytes(), blake3::hash(b"").as_bytes());
}

#[test]
fn the_whole_root_can_be_sent_into_the_whole_root() {
    let from = Node::new();
    from.write("a", b"1").write("d/b", b"2");
    let source = from.source(".").unwrap();
    let node = Node::new();
    send(&source, node.config("", &source)).unwrap();
    assert_eq!(node.names(), from.names());
}

#[test]
fn ten_thousand_small_files_arrive() {
    let from = Node::in_memory();
    for directory in 0..10 {
        fs::create_dir_all(from.path(&format!("m/{directory}"))).unwrap();
        for file in 0..1000 {
            let path = from.path(&format!("m/{directory}/{file}"));
            fs::write(path, format!("{directory} {file}")).unwrap();
        }
    }
    let source = from.source("m").unwrap();
    assert_eq!(source.manifest().file_count(), 10_000);
    let node = Node::in_memory();
    let (digest, counts) = send(&source, node.config("m", &source)).unwrap();
    assert_eq!(
        counts,
        Sent {
            sent: 10_000,
            confirmed: 0
        }
    );
    assert_eq!(node.names(), from.names());
    assert_eq!(node.read("m/7/77"), b"7 77");
    // A second run finds all of it there.
    let (again, counts) = send(&source, node.config("m", &source)).unwrap();
    assert_eq!(
        (again, counts),
        (
            digest,
            Sent {
                sent: 0,
                confirmed: 10_000
            }
        )
    );
}

#[test]
fn a_relay_reads_the_blocks_that_are_there_before_and_after_they_are_published() {
    let from = Node::new();
    let data = content(3 * BLOCK_BYTES, 1);
    from.write("a", &data);
    let source = from.source("a").unwrap();
    let node = Node::new();
    let destination = Destination::prepare(node.config("a", &source)).unwrap();
    let file = destination.open(0).unwrap();
    let mut buffer = vec![0; BLOCK_BYTES];
    let blocks = file.blocks();
    let mut tree = HashTree::new(blocks);
    for block in [2u32, 0, 1] {
        assert_eq!(file.read_block(block, &mut buffer).unwrap(), None);
        let range = blocks.range(block);
        let part = &data[range.start as usize..range.end as usize];
        let digest = blocks.digest(block, part);
        let verified = blocks.verify(block, part, &digest).unwrap();
        assert!(file.write_block(&verified).unwrap());
        assert!(
            !file.write_block(&verified).unwrap(),
            "the second time it is there"
        );
        tree.set(block, digest);
        assert_eq!(file.read_block(block, &mut buffer).unwrap(), Some(digest));
        assert_eq!(buffer, part);
    }
    destination.finish(&file, &tree.root().unwrap()).unwrap();
    assert!(!node.path("a").exists());
    destination.publish().unwrap();
    assert_eq!(file.read_block(1, &mut buffer).unwrap(), tree.get(1));
    drop(file);
    // Closed and opened again: hashed anew, then all of it is there.
    let file = destination.open(0).unwrap();
    assert_eq!(
        (file.missing(), file.read_block(1, &mut buffer).unwrap()),
        (0, tree.get(1))
    );
    assert_eq!(buffer, data[BLOCK_BYTES..2 * BLOCK_BYTES]);
}

#[test]
fn several_threads_may_write_one_file() {
    let from = Node::new();
    let data = content(8 * BLOCK_BYTES + 100, 1);
    from.write("a", &data);
    let source = from.source("a").unwrap();
    let node = Node::new();
    let destination = Destination::prepare(node.config("a", &source)).unwrap();
    let file = destination.open(0).unwrap();
    let blocks = file.blocks();
    std::thread::scope(|scope| {
        for first in 0..3u32 {
            let (file, data) = (&file, &data);
            scope.spawn(move || {
                // Overlapping on purpose: every block is written by two threads.
                for block in (0..blocks.count()).filter(|block| block % 3 != first) {
                    let range = blocks.range(block);
                    let part = &data[range.start as usize..range.end as usize];
                    let verified = blocks.verify(block, part, &blocks.digest(block, part));
                    file.write_block(&verified.unwrap()).unwrap();
                }
            });
        }
    });
    let digest: Digest = blake3::hash(&data).to_hex().parse().unwrap();
    destination.finish(&file, &digest).unwrap();
    destination.publish().unwrap();
    assert_eq!(node.read("a"), data);
}

#[test]
fn each_of_50_000_files_takes_less_than_200_bytes_of_memory_at_source_and_destination_together() {
    alone(
        this_test!(
            each_of_50_000_files_takes_less_than_200_bytes_of_memory_at_source_and_destination_together
        ),
        Alone::Mounts,
        || {
            let (from, node) = (Node::in_memory(), Node::in_memory());
            for directory in 0..50 {
                fs::create_dir_all(from.path(&format!("m/{directory}"))).unwrap();
                for file in 0..1000 {
                    fs::write(from.path(&format!("m/{directory}/{file}")), b"").unwrap();
                }
            }
            let warm = from.source("m/0").unwrap();
            send(&warm, node.config("warm", &warm)).unwrap();
            let before = reset_peak_kib();
            let source = from.source("m").unwrap();
            let config = DestinationConfig {
                recorded_for: Some(CopyJob {
                    uid: "job-1".to_owned(),
                    namespace: "team".to_owned(),
                    name: "m".to_owned(),
                    namespace_uid: String::new(),
                }),
                ..node.config("m", &source)
            };
            // The buffers for blocks are not of the files.
            let destination = Destination::prepare(config).unwrap();
            for (index, _, _) in source.manifest().files() {
                send_file(&source, &destination, index, u32::MAX, &mut Sent::default()).unwrap();
            }
            let digest = destination.publish().unwrap();
            destination.record(&digest).unwrap();
            let bytes = (peak_kib() - before) * 1024 / 50_000;
            assert!(bytes < 200, "{bytes} bytes");
        },
    );
}

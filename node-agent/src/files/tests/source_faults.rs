//! What a source can get wrong.

use std::ffi::OsStr;
use std::fs::{self, Permissions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::time::SystemTime;

use super::alone::{Alone, alone, this_test};
use super::*;

#[test]
fn a_source_that_cannot_be_sent_says_why_and_names_the_path() {
    type Setup = fn(&Node);
    let table: &[(&str, Setup, &str, &str, &str)] = &[
        ("missing", |_| {}, "m/none", "SourceMissing", "m/none"),
        (
            "in a directory that is not there",
            |_| {},
            "m/team/x/none",
            "SourceMissing",
            "\"m/team/x/none\" in root \"models\" does not exist, from \"m/team\" on",
        ),
        ("below a file", |_| {}, "m/a/b", "SourceMissing", "m/a/b"),
        ("parent directory", |_| {}, "m/../../etc", "BadPath", ".."),
        ("absolute", |_| {}, "/etc/passwd", "BadPath", "/etc/passwd"),
        (
            "a file as a directory",
            |_| {},
            "m/a/",
            "NotARegularFile",
            "m/a",
        ),
        (
            "link out of the root",
            |node| symlink("/etc/passwd", node.path("link")).unwrap(),
            "link",
            "SymlinkRefused",
            "/etc/passwd",
        ),
        (
            "link within the root",
            |node| symlink("a", node.path("m/link")).unwrap(),
            "m",
            "SymlinkRefused",
            "m/link",
        ),
        (
            "link on the way",
            |node| symlink("/etc", node.path("out")).unwrap(),
            "out/passwd",
            "SymlinkRefused",
            "\"out\" is a symbolic link to \"/etc\"",
        ),
        (
            "socket",
            |node| drop(UnixListener::bind(node.path("m/s")).unwrap()),
            "m",
            "NotARegularFile",
            "a socket",
        ),
        (
            "pipe in a directory",
            |node| pipe(&node.path("m/p")),
            "m",
            "NotARegularFile",
            "m/p",
        ),
        (
            "pipe itself",
            |node| pipe(&node.path("m/p")),
            "m/p",
            "NotARegularFile",
            "a named pipe",
        ),
        (
            "name that is not UTF-8",
            |node| fs::write(node.path("m").join(OsStr::from_bytes(b"x\xff")), "").unwrap(),
            "m",
            "NameNotUtf8",
            "m/x\\\\xff",
        ),
        (
            "too deep",
            |node| fs::create_dir_all(node.path("m").join("d/".repeat(MAX_DEPTH + 1))).unwrap(),
            "m",
            "TooDeep",
            "d/d/d",
        ),
        (
            "a partial file of ours",
            |node| _ = node.write(&names::partial_name(&"j".parse().unwrap(), "a"), b""),
            ".weft-j-17762fddd969a453925d65717ac3eea2",
            "ReservedName",
            ".weft-",
        ),
    ];
    for (fault, setup, path, reason, named) in table {
        let node = Node::new();
        node.write("m/a", b"1");
        setup(&node);
        let error = node
            .source(path)
            .err()
            .unwrap_or_else(|| panic!("{fault}: was accepted"));
        assert_fault(&error, reason, named);
    }
}

#[test]
fn a_device_is_refused() {
    let root = Root::open("dev", Path::new("/dev"), Access::ReadOnly).unwrap();
    let error =
        Manifest::scan(&root, &RootPath::parse("null").unwrap(), &Symlinks::Refuse).unwrap_err();
    assert_fault(&error, "NotARegularFile", "a character device");
}

#[test]
fn what_may_not_be_read_is_found_by_the_scan() {
    alone(
        this_test!(what_may_not_be_read_is_found_by_the_scan),
        Alone::Unprivileged,
        || {
            let node = Node::new();
            node.write("m/a", b"1").write("d/x/a", b"1");
            fs::set_permissions(node.path("m/a"), Permissions::from_mode(0o000)).unwrap();
            fs::set_permissions(node.path("d/x"), Permissions::from_mode(0o000)).unwrap();
            for path in ["m", "m/a"] {
                assert_fault(&node.source(path).unwrap_err(), "SourceUnreadable", "m/a");
            }
            assert_fault(&node.source("d").unwrap_err(), "SourceUnreadable", "d/x");
            fs::set_permissions(node.path("d/x"), Permissions::from_mode(0o700)).unwrap();
        },
    );
}

#[test]
fn a_source_that_changes_is_noticed_at_the_latest_at_the_end() {
    type Change = fn(&Path);
    let long_ago = || SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000_000);
    let table: &[(&str, Change, &str)] = &[
        (
            "written in location",
            |path| open(path).write_all_at(b"x", 7).unwrap(),
            "SourceChanged",
        ),
        (
            "written in location with its time set back",
            |path| {
                open(path).write_all_at(b"x", 7).unwrap();
                let old = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000_000);
                open(path).set_modified(old).unwrap();
            },
            "SourceChanged",
        ),
        (
            "grown",
            |path| {
                open(path)
                    .write_all_at(b"x", 3 * BLOCK_BYTES as u64)
                    .unwrap();
            },
            "SourceChanged",
        ),
        (
            "cut",
            |path| open(path).set_len(5).unwrap(),
            "SourceTruncated",
        ),
        (
            "removed",
            |path| fs::remove_file(path).unwrap(),
            "SourceChanged",
        ),
        (
            "replaced",
            |path| {
                fs::copy(path, path.with_extension("new")).unwrap();
                fs::rename(path.with_extension("new"), path).unwrap();
            },
            "SourceChanged",
        ),
        (
            "replaced by a link",
            |path| {
                fs::rename(path, path.with_extension("old")).unwrap();
                symlink(path.with_extension("old"), path).unwrap();
            },
            "SourceChanged",
        ),
        (
            "replaced by a pipe",
            |path| {
                fs::remove_file(path).unwrap();
                pipe(path);
            },
            "",
        ),
    ];
    for (fault, change, reason) in table {
        let node = Node::new();
        node.write("m/a", &content(2 * BLOCK_BYTES + 9, 1));
        open(&node.path("m/a")).set_modified(long_ago()).unwrap();
        let source = node.source("m").unwrap();
        let file = source.open(0).unwrap();
        let mut buffer = vec![0; BLOCK_BYTES];
        assert_eq!(file.read_block(0, &mut buffer).unwrap(), BLOCK_BYTES);
        source.entry_unchanged(0).unwrap();
        source.unchanged().unwrap();

        change(&node.path("m/a"));

        let read = (1..3).try_for_each(|block| file.read_block(block, &mut buffer).map(drop));
        assert_eq!(read.is_err(), *fault == "cut", "{fault}");
        let found = [
            read.err(),
            source.entry_unchanged(0).err(),
            source.unchanged().err(),
            source.open(0).err(),
        ];
        assert!(
            found[1].is_some() && found[2].is_some() && found[3].is_some(),
            "{fault}"
        );
        for error in found.into_iter().flatten() {
            if reason.is_empty() || (*fault == "cut" && error.reason() == "SourceChanged") {
                assert_fault(&error, error.reason(), "m/a");
            } else {
                assert_fault(&error, reason, "m/a");
            }
        }
    }
}

#[test]
fn a_manifest_that_no_scan_makes_is_refused() {
    let node = Node::new();
    node.write("m/a/x", b"1").write("m/b", b"22");
    fs::create_dir(node.path("m/empty")).unwrap();
    let manifest = node.source("m").unwrap().manifest().as_ref().clone();
    let paths: Vec<&str> = manifest.entries().map(|entry| entry.path).collect();
    assert_eq!(paths, ["a", "a/x", "b", "empty"]);
    assert_eq!((manifest.bytes(), manifest.file_count()), (3, 2));
    let build = |shape, entries: &[Owned]| {
        let mut building = ManifestBuilder::new(shape);
        for (path, kind, mode) in entries {
            let (kind, mode) = (*kind, *mode);
            building.add(Entry { path, kind, mode })?;
        }
        building.finish()
    };
    let listed = |entry: Entry<'_>| {
        let kind = match entry.kind {
            EntryKind::File { bytes } => EntryKind::File { bytes },
            _ => EntryKind::Directory,
        };
        (entry.path.to_owned(), kind, entry.mode)
    };
    let entries: Vec<Owned> = manifest.entries().map(listed).collect();
    // Whatever order they come in, it is the same manifest.
    for order in [[3, 2, 1, 0], [1, 2, 3, 0], [2, 0, 3, 1]] {
        let shuffled = order.map(|index: usize| entries[index].clone());
        let built = build(Shape::Directory, &shuffled).unwrap();
        assert!(built.entries().eq(manifest.entries()), "{order:?}");
        assert_eq!(built.digest(), manifest.digest());
    }

    type Owned = (String, EntryKind<'static>, u32);
    type Damage = Box<dyn Fn(&mut Vec<Owned>)>;
    type Fixed = fn(&mut Vec<Owned>);
    let reserved = names::partial_name(&"j".parse().unwrap(), "a");
    let deep = "d/".repeat(MAX_DEPTH + 1) + "x";
    let mut table: Vec<(&str, Damage)> = Vec::new();
    for path in [
        "../x",
        "/etc/passwd",
        "a/../b",
        "a//x",
        "a/x/",
        "",
        "no/dir",
        "b/below",
    ] {
        table.push((path, Box::new(move |entries| entries[1].0 = path.into())));
    }
    table.push((
        "reserved",
        Box::new(move |entries| entries[1].0.clone_from(&reserved)),
    ));
    table.push((
        "deep",
        Box::new(move |entries| entries[1].0.clone_from(&deep)),
    ));
    let others: [(&str, Fixed); 3] = [
        ("twice", |entries| entries[2].0 = "a/x".into()),
        ("set-uid", |entries| entries[1].2 = 0o4755),
        ("huge", |entries| {
            entries[1].1 = EntryKind::File {
                bytes: MAX_FILE_BYTES + 1,
            }
        }),
    ];
    for (name, damage) in others {
        table.push((name, Box::new(damage)));
    }
    for (name, damage) in table {
        let mut entries = entries.clone();
        damage(&mut entries);
        let answer = build(Shape::Directory, &entries);
        let error = answer
            .err()
            .unwrap_or_else(|| panic!("{name}: was accepted"));
        assert_eq!(error.reason(), "BadManifest", "{name}: {error}");
    }
    let error = build(Shape::File, &entries).unwrap_err();
    assert_eq!(error.reason(), "BadManifest");
}

#[test]
fn more_blocks_than_one_job_moves_are_refused_at_the_source_and_at_a_destination() {
    // 64 files of 4 TiB are just the limit.
    let entries = |files: u64, more: u64| {
        let mut building = ManifestBuilder::new(Shape::Directory);
        for index in 0..files {
            let bytes = if index < 64 { MAX_FILE_BYTES } else { more };
            building.add(Entry {
                path: &format!("f{index:02}"),
                kind: EntryKind::File { bytes },
                mode: 0o644,
            })?;
        }
        building.finish()
    };
    entries(65, 0).unwrap();
    let error = entries(65, 1).unwrap_err();
    assert_fault(&error, "TooManyBlocks", "f64");
    let node = Node::in_memory();
    for index in 0..65 {
        let file = node
            .write(&format!("m/f{index:02}"), b"")
            .path(&format!("m/f{index:02}"));
        open(&file).set_len(MAX_FILE_BYTES).unwrap();
    }
    let error = node.source("m").unwrap_err();
    assert_fault(&error, "TooManyBlocks", "f64");
}

#[test]
fn partial_files_and_locks_of_a_running_job_are_left_out_of_a_scan() {
    let node = Node::new();
    node.write("m/a", b"1").write("m/.weft-notes", b"2");
    node.write(
        &format!("m/{}", names::partial_name(&"j".parse().unwrap(), "b")),
        b"3",
    );
    node.write("m/.weft-j.lock", b"");
    let source = node.source("m").unwrap();
    let paths: Vec<_> = source
        .manifest()
        .entries()
        .map(|entry| entry.path)
        .collect();
    assert_eq!(paths, [".weft-notes", "a"]);
}

pub(super) fn pipe(path: &Path) {
    rustix::fs::mkfifoat(rustix::fs::CWD, path, rustix::fs::Mode::RUSR).unwrap();
}

fn open(path: &Path) -> fs::File {
    fs::File::options()
        .read(true)
        .write(true)
        .open(path)
        .unwrap()
}

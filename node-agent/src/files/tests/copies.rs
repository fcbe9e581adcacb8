//! What records say of verified copies, and what goes when a copy is removed.

use std::os::unix::fs::{PermissionsExt as _, symlink};

use super::alone::{Alone, alone, mount, peak_kib, reset_peak_kib, this_test};
use super::*;
use crate::files::copies::{CopyHeader, CopyJob, reconcile, release};

fn job(uid: &str) -> CopyJob {
    CopyJob {
        uid: uid.to_owned(),
        namespace: "team".to_owned(),
        name: format!("name-of-{uid}"),
        namespace_uid: String::new(),
    }
}

/// Makes a destination that is complete, and records it for the job.
fn complete(node: &Node, path: &str, source: &Source, uid: &str) -> Destination {
    let config = DestinationConfig {
        job: uid.parse().unwrap(),
        recorded_for: Some(job(uid)),
        ..node.config(path, source)
    };
    let destination = Destination::prepare(config).unwrap();
    for (index, _, _) in source.manifest().files() {
        send_file(source, &destination, index, u32::MAX, &mut Sent::default()).unwrap();
    }
    let digest = destination.publish().unwrap();
    destination.record(&digest).unwrap();
    destination
}

/// The same, and the attempt is over.
fn copy(node: &Node, path: &str, source: &Source, uid: &str) {
    complete(node, path, source, uid);
}

fn all(node: &Node) -> Vec<CopyHeader> {
    reconcile(&node.root).unwrap()
}

/// The paths of the copies that are as they were verified.
fn listed(node: &Node) -> Vec<String> {
    all(node).into_iter().map(|copy| copy.path).collect()
}

fn released(node: &Node, uid: &str) {
    release(&node.root, uid).unwrap();
}

/// All names but those of the records.
fn names(node: &Node) -> Vec<String> {
    let mut names = node.names();
    names.retain(|name| !name.starts_with(".weft-copies/"));
    names
}

/// The files of the records.
fn records(node: &Node) -> Vec<PathBuf> {
    let directory = std::fs::read_dir(node.path(".weft-copies")).unwrap();
    directory.map(|entry| entry.unwrap().path()).collect()
}

/// Changes the text of the one record.
fn rewrite(node: &Node, change: impl FnOnce(String) -> String) {
    let [record] = records(node).try_into().unwrap();
    let text = std::fs::read_to_string(&record).unwrap();
    std::fs::write(record, change(text)).unwrap();
}

/// What `path` is a destination of: another job's.
fn another(node: &Node, path: &str, source: &Source) -> Result<Destination, FileError> {
    Destination::prepare(DestinationConfig {
        job: "job-2".parse().unwrap(),
        ..node.config(path, source)
    })
}

#[test]
fn a_record_says_what_a_copy_is_and_survives_a_restart_of_the_agent() {
    let (from, node) = (Node::new(), Node::new());
    from.write("m/weights", b"w").write("m/sub/config", b"{}");
    copy(&node, "a/m", &from.source("m").unwrap(), "a");
    let node = reopened(node);
    let [record] = all(&node).try_into().unwrap();
    assert_eq!(
        (&*record.path, record.bytes, record.files, record.removable),
        ("a/m", 3, 2, true)
    );
    assert_eq!((record.digest.len(), record.jobs), (64, vec![job("a")]));
    let mode = |path: PathBuf| path.metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(node.path(".weft-copies")), 0o700);
    assert_eq!(mode(records(&node)[0].clone()), 0o600);
    released(&node, "a");
    assert_eq!(names(&node), ["a/"]);
    assert!(records(&node).is_empty());
}

#[test]
fn what_lay_beside_a_copy_stays_when_the_copy_is_removed() {
    let (from, node) = (Node::new(), Node::new());
    from.write("m/weights", b"w").write("m/sub/config", b"{}");
    node.write("m/notes", b"mine").write("m/sub/mine/x", b"x");
    copy(&node, "m", &from.source("m").unwrap(), "a");
    node.write("m/later", b"mine");
    symlink("notes", node.path("m/link")).unwrap();
    assert_eq!(listed(&node), ["m"]);
    for time in ["first", "repeated"] {
        released(&node, "a");
        let left = [
            "m/",
            "m/later",
            "m/link",
            "m/notes",
            "m/sub/",
            "m/sub/mine/",
            "m/sub/mine/x",
        ];
        assert_eq!(names(&node), left, "{time}");
        assert!(listed(&node).is_empty(), "{time}");
    }
}

#[test]
fn a_model_that_lay_where_another_job_put_its_files_stays() {
    let (base, adapter, node) = (Node::new(), Node::new(), Node::new());
    base.write("m/base", b"b").write("m/config", b"{}");
    adapter.write("m/adapter", b"a");
    copy(&node, "m", &base.source("m").unwrap(), "below");
    copy(&node, "m", &adapter.source("m").unwrap(), "above");
    // A path has one record: the copy that came last.
    assert_eq!(all(&node)[0].jobs, [job("above")]);
    released(&node, "below");
    assert_eq!(listed(&node), ["m"]);
    released(&node, "above");
    assert_eq!(names(&node), ["m/", "m/base", "m/config"]);
}

#[test]
fn files_that_two_overlapping_copies_name_stay_until_both_are_released() {
    let from = Node::new();
    from.write("m/weights", b"w")
        .write("m/sub/config", b"{}")
        .write("m/sub/empty/x", b"");
    for order in [["outer", "inner"], ["inner", "outer"]] {
        let node = Node::new();
        copy(&node, "m", &from.source("m").unwrap(), "outer");
        copy(&node, "m/sub", &from.source("m/sub").unwrap(), "inner");
        assert_eq!(listed(&node), ["m", "m/sub"]);
        released(&node, order[0]);
        let inner = ["m/", "m/sub/", "m/sub/config", "m/sub/empty/"];
        for name in inner {
            assert!(names(&node).contains(&name.to_owned()), "{order:?} {name}");
        }
        assert_eq!(node.path("m/weights").exists(), order[0] == "inner");
        assert_eq!(listed(&node).len(), 1, "{order:?}");
        released(&node, order[1]);
        // The directory around the inner one was not empty when the outer one went.
        let left: &[&str] = if order[0] == "outer" { &["m/"] } else { &[] };
        assert_eq!(names(&node), left, "{order:?}");
    }
}

#[test]
fn the_last_of_two_jobs_takes_the_copy_with_it() {
    let (from, node) = (Node::new(), Node::new());
    from.write("m/weights", b"w");
    let source = from.source("m").unwrap();
    for uid in ["a", "b", "a"] {
        copy(&node, "m", &source, uid);
    }
    assert_eq!(all(&node)[0].jobs, [job("a"), job("b")]);
    for uid in ["a", "never"] {
        released(&node, uid);
        assert_eq!(all(&node)[0].jobs, [job("b")]);
    }
    released(&node, "b");
    assert_eq!(names(&node), Vec::<String>::new());
}

#[test]
fn a_copy_is_recorded_for_so_many_jobs_and_the_oldest_goes() {
    let (from, node) = (Node::new(), Node::new());
    from.write("weights", b"w");
    let source = from.source("weights").unwrap();
    for number in 0..40 {
        copy(&node, "weights", &source, &number.to_string());
    }
    let jobs = all(&node).remove(0).jobs;
    let wanted: Vec<CopyJob> = (8..40).map(|number| job(&number.to_string())).collect();
    assert_eq!(jobs, wanted);
}

#[test]
fn a_sources_own_files_stay_and_are_listed_as_long_as_a_job_needs_them() {
    let node = Node::new();
    node.write("m/weights", b"w").write("one", b"1");
    for path in ["m", "one"] {
        let source = node.source(path).unwrap();
        let digest = Digest::from_bytes(Algorithm::Blake3, &[7; 32]).unwrap();
        source.record(&digest, job("a")).unwrap();
    }
    assert_eq!(listed(&node), ["m", "one"]);
    released(&node, "a");
    assert!(listed(&node).is_empty() && records(&node).is_empty());
    assert_eq!(names(&node), ["m/", "m/weights", "one"]);
}

#[test]
fn files_that_weft_wrote_go_also_when_a_later_job_has_read_them() {
    let (from, node) = (Node::new(), Node::new());
    from.write("m/weights", b"w");
    copy(&node, "m", &from.source("m").unwrap(), "a");
    let digest = all(&node).remove(0).digest.parse().unwrap();
    let source = node.source("m").unwrap();
    source.record(&digest, job("b")).unwrap();
    drop(source);
    released(&node, "a");
    assert_eq!(all(&node)[0].jobs, [job("b")]);
    released(&node, "b");
    assert_eq!(names(&node), Vec::<String>::new());
}

#[test]
fn in_a_read_only_root_nothing_is_recorded_or_removed() {
    let (from, node) = (Node::new(), Node::new());
    from.write("m/weights", b"w");
    copy(&node, "m", &from.source("m").unwrap(), "a");
    let before = names_below(node.directory.path());
    let root = Root::open("models", node.directory.path(), Access::ReadOnly).unwrap();
    let node = Node {
        root: Arc::new(root),
        directory: node.directory,
    };
    let digest = Digest::from_bytes(Algorithm::Blake3, &[7; 32]).unwrap();
    let source = node.source("m/weights").unwrap();
    source.record(&digest, job("b")).unwrap();
    released(&node, "a");
    assert!(all(&node).is_empty());
    assert_eq!(names_below(node.directory.path()), before);
}

#[test]
fn a_directory_of_a_copy_that_something_is_mounted_on_stays_and_its_files_go() {
    alone(
        this_test!(a_directory_of_a_copy_that_something_is_mounted_on_stays_and_its_files_go),
        Alone::Mounts,
        || {
            let (from, node) = (Node::new(), Node::new());
            from.write("weights", b"w").write("sub/config", b"{}");
            std::fs::create_dir_all(node.path("m/sub")).unwrap();
            mount("tmpfs", "size=1m", &node.path("m"));
            std::fs::create_dir_all(node.path("m/sub")).unwrap();
            mount("tmpfs", "size=1m", &node.path("m/sub"));
            copy(&node, "m", &from.source("").unwrap(), "a");
            assert_eq!(names(&node), ["m/", "m/sub/", "m/sub/config", "m/weights"]);
            released(&node, "a");
            assert_eq!(names(&node), ["m/", "m/sub/"]);
        },
    );
}

#[test]
fn nothing_is_prepared_or_removed_in_a_root_that_something_is_mounted_over() {
    alone(
        this_test!(nothing_is_prepared_or_removed_in_a_root_that_something_is_mounted_over),
        Alone::Mounts,
        || {
            let (from, node) = (Node::new(), Node::new());
            from.write("m/weights", b"w");
            let source = from.source("m").unwrap();
            copy(&node, "m", &source, "a");
            mount("tmpfs", "size=1m", node.directory.path());
            let error = Destination::prepare(node.config("n", &source)).unwrap_err();
            assert_fault(&error, "RootReplaced", "models");
            released(&node, "a");
            let covered = rustix::fs::statat(
                node.root.directory(),
                "m/weights",
                rustix::fs::AtFlags::empty(),
            );
            assert_eq!(covered.unwrap().st_size, 1);
            let node = reopened(node);
            Destination::prepare(node.config("n", &source)).unwrap();
        },
    );
}

#[test]
fn a_copy_goes_from_a_full_disk_on_which_no_record_can_be_written() {
    alone(
        this_test!(a_copy_goes_from_a_full_disk_on_which_no_record_can_be_written),
        Alone::Mounts,
        || {
            let (from, node) = (Node::new(), Node::new());
            from.write("m/weights", b"w");
            mount("tmpfs", "size=1m", node.directory.path());
            let node = reopened(node);
            copy(&node, "m", &from.source("m").unwrap(), "a");
            std::fs::write(node.path("full"), vec![0; 2 << 20]).unwrap_err();
            released(&node, "a");
            assert_eq!(names(&node), ["full"]);
        },
    );
}

#[test]
fn one_file_goes_and_the_directory_that_it_was_put_into_stays_with_the_rest() {
    let (from, node) = (Node::new(), Node::new());
    from.write("weights", b"w");
    node.write("m/notes", b"mine");
    let source = from.source("weights").unwrap();
    for (path, name) in [("m/", "m/weights"), ("m/other", "m/other")] {
        copy(&node, path, &source, "a");
        assert!(node.names().contains(&name.to_owned()));
        assert_eq!(listed(&node), [name]);
        released(&node, "a");
        assert_eq!(names(&node), ["m/", "m/notes"]);
    }
}

/// What may become of a copy `m` of `weights` and `config`.
const SPOIL: [fn(&Node); 6] = [
    |node| std::fs::remove_file(node.path("m/config")).unwrap(),
    |node| {
        node.write("m/config", b"[]");
    },
    |node| {
        std::fs::rename(node.path("m/config"), node.path("m/was")).unwrap();
        symlink("was", node.path("m/config")).unwrap();
    },
    |node| {
        std::fs::rename(node.path("m"), node.path("was")).unwrap();
        symlink("was", node.path("m")).unwrap();
    },
    |node| {
        std::fs::rename(node.path("m"), node.path("was")).unwrap();
        node.write("m", b"");
    },
    |node| {
        std::fs::remove_dir(node.path("m/none")).unwrap();
        node.write("m/none", b"");
    },
];

#[test]
fn a_copy_of_which_a_file_is_changed_or_gone_is_not_listed_and_stays() {
    let from = Node::new();
    from.write("m/weights", b"w").write("m/config", b"{}");
    std::fs::create_dir(from.path("m/none")).unwrap();
    let source = from.source("m").unwrap();
    for spoil in SPOIL {
        for is_seen_before in [true, false] {
            let node = Node::new();
            copy(&node, "m", &source, "a");
            spoil(&node);
            let before = names(&node);
            if is_seen_before {
                assert!(listed(&node).is_empty(), "{before:?}");
            }
            released(&node, "a");
            assert_eq!(names(&node), before);
            assert!(listed(&node).is_empty() && records(&node).is_empty());
            assert_eq!(names(&node), before);
        }
    }
}

#[test]
fn a_copy_of_an_empty_directory_is_lost_and_removed_like_others() {
    let (from, node) = (Node::new(), Node::new());
    std::fs::create_dir(from.path("m")).unwrap();
    let source = from.source("m").unwrap();
    copy(&node, "m", &source, "a");
    assert_eq!(listed(&node), ["m"]);
    std::fs::remove_dir(node.path("m")).unwrap();
    assert!(listed(&node).is_empty());
    copy(&node, "m", &source, "a");
    released(&node, "a");
    assert_eq!(names(&node), Vec::<String>::new());
}

#[test]
fn a_copy_that_is_verified_again_after_a_change_has_a_new_record() {
    let (from, node) = (Node::new(), Node::new());
    from.write("m/weights", b"w").write("m/config", b"{}");
    let source = from.source("m").unwrap();
    copy(&node, "m", &source, "a");
    node.write("m/config", b"[]");
    copy(&node, "m", &source, "b");
    assert_eq!(all(&node)[0].jobs, [job("b")]);
    released(&node, "b");
    assert_eq!(names(&node), Vec::<String>::new());
}

#[test]
fn a_copy_of_very_many_files_is_told_from_others_and_removed() {
    let (from, node) = (Node::in_memory(), Node::in_memory());
    for number in 0..300 {
        from.write(&format!("m/{number}"), b"x");
    }
    node.write("among/notes", b"mine");
    copy(&node, "among", &from.source("m").unwrap(), "a");
    assert_eq!(listed(&node), ["among"]);
    released(&node, "a");
    assert_eq!(names(&node), ["among/", "among/notes"]);
}

#[test]
fn a_record_of_100_000_entries_is_read_without_holding_them_all() {
    alone(
        this_test!(a_record_of_100_000_entries_is_read_without_holding_them_all),
        Alone::Mounts,
        || {
            let (from, node) = (Node::new(), Node::new());
            std::fs::create_dir(from.path("m")).unwrap();
            copy(&node, "m", &from.source("m").unwrap(), "a");
            // The same directory, each time by 300 bytes.
            let line = format!("{{\"path\":\"{}\"}}\n", "./".repeat(150));
            rewrite(&node, |text| text + &line.repeat(100_000));
            let before = reset_peak_kib();
            assert_eq!(listed(&node), ["m"]);
            let more = peak_kib() - before;
            assert!(more < 8 << 10, "{more} KiB");
        },
    );
}

#[test]
fn a_copy_that_is_not_complete_or_was_written_to_is_not_recorded() {
    let (from, node) = (Node::new(), Node::new());
    from.write("m/weights", b"w");
    let source = from.source("m").unwrap();
    let config = DestinationConfig {
        recorded_for: Some(job("a")),
        ..node.config("m", &source)
    };
    let destination = Destination::prepare(config).unwrap();
    send_file(&source, &destination, 0, u32::MAX, &mut Sent::default()).unwrap();
    let digest = destination.digest().unwrap();
    let early = destination.record(&digest).unwrap_err();
    assert_eq!(
        early.reason(),
        "DestinationChanged",
        "before it is complete"
    );
    destination.publish().unwrap();
    node.write("m/weights", b"W");
    assert_fault(
        &destination.record(&digest).unwrap_err(),
        "DestinationChanged",
        "m/weights",
    );
    assert!(listed(&node).is_empty());
}

#[test]
fn a_copy_is_removed_after_another_job_has_written_at_it_within_it_or_around_it() {
    let (from, elsewhere) = (Node::new(), Node::new());
    from.write("m/weights", b"w").write("m/sub/config", b"{}");
    let source = from.source("m").unwrap();
    for path in ["a/m", "a/m/sub", "a/m/new/deep", "a", ""] {
        let node = Node::new();
        copy(&node, "a/m", &source, "a");
        let other = another(&node, path, &source).unwrap();
        // A name that begins alike is another one.
        let _beside = [
            another(&node, "a/mm", &source),
            another(&elsewhere, "a/m", &source),
        ];
        released(&node, "a");
        assert!(listed(&node).is_empty());
        assert!(node.path("a/m/weights").exists(), "{path}");
        assert!(give_up(&other).is_empty());
        drop(other);
        assert!(listed(&node).is_empty());
        assert!(!node.path("a/m/weights").exists(), "{path}");
        assert!(!node.path("a/m/sub/config").exists(), "{path}");
    }
}

#[test]
fn a_job_that_finds_a_released_copy_keeps_it() {
    let (from, node) = (Node::new(), Node::new());
    from.write("m/weights", b"w");
    let source = from.source("m").unwrap();
    copy(&node, "m", &source, "a");
    let other = another(&node, "m", &source).unwrap();
    released(&node, "a");
    drop(other);
    copy(&node, "m", &source, "b");
    assert_eq!(all(&node)[0].jobs, [job("b")]);
}

#[test]
fn a_file_is_put_into_a_directory_from_which_another_goes() {
    let (from, node) = (Node::new(), Node::new());
    from.write("one", b"1").write("two", b"2");
    copy(&node, "m/one", &from.source("one").unwrap(), "a");
    let two = from.source("two").unwrap();
    let other = another(&node, "m/", &two).unwrap();
    released(&node, "a");
    send_file(&two, &other, 0, u32::MAX, &mut Sent::default()).unwrap();
    other.publish().unwrap();
    assert_eq!(names(&node), ["m/", "m/two"]);
}

#[test]
fn a_complete_copy_is_in_use_until_its_attempt_is_over() {
    let (from, node) = (Node::new(), Node::new());
    from.write("m/weights", b"w");
    let source = from.source("m").unwrap();
    let passed_on = complete(&node, "m", &source, "a");
    released(&node, "a");
    assert!(node.path("m/weights").exists(), "it is passed on");
    passed_on.release_path();
    assert!(listed(&node).is_empty());
    assert_eq!(names(&node), Vec::<String>::new());
}

#[test]
fn a_copy_is_removed_after_it_was_read() {
    let from = Node::new();
    from.write("m/weights", b"w").write("m/sub/config", b"{}");
    let source = from.source("m").unwrap();
    for path in ["a/m", "a/m/sub/config", "a"] {
        let node = Node::new();
        copy(&node, "a/m", &source, "a");
        node.write("a/mm", b"mine");
        let _beside = node.source("a/mm").unwrap();
        let reader = node.source(path).unwrap();
        let another = reader.clone();
        drop(reader);
        released(&node, "a");
        another.unchanged().unwrap();
        drop(another);
        assert!(listed(&node).is_empty());
        assert_eq!(names(&node), ["a/", "a/mm"], "{path}");
    }
}

#[test]
fn nobody_begins_to_write_where_a_copy_is_being_removed() {
    let (from, node) = (Node::new(), Node::new());
    from.write("m/weights", b"w");
    let source = from.source("m").unwrap();
    copy(&node, "a/m", &source, "a");
    let path = RootPath::parse("a/m").unwrap();
    let removal = node.root.occupancy().begin_removal(&path).unwrap();
    for path in ["a/m", "a/m/sub", "a"] {
        let error = another(&node, path, &source).unwrap_err();
        assert_fault(&error, "DestinationBusy", path);
        assert!(crate::fault::Fault::from(error).is_transient());
    }
    another(&node, "a/mm", &source).unwrap();
    // The attempts that were refused are not there.
    released(&node, "a");
    assert!(!node.path("a/m").exists());
    drop(removal);
    another(&node, "a/m", &source).unwrap();
}

#[test]
fn a_removal_that_an_end_of_the_agent_has_cut_short_goes_on() {
    let (from, node) = (Node::new(), Node::new());
    from.write("m/weights", b"w").write("m/config", b"{}");
    copy(&node, "m", &from.source("m").unwrap(), "a");
    rewrite(&node, |text| {
        let jobs = serde_json::to_string(&[job("a")]).unwrap();
        let text = text.replacen(&jobs, "[]", 1);
        text.replacen("\"version\"", "\"removing\":true,\"version\"", 1)
    });
    std::fs::remove_file(node.path("m/config")).unwrap();
    assert!(listed(&node).is_empty());
    assert_eq!(names(&node), Vec::<String>::new());
    assert!(records(&node).is_empty());
}

#[test]
fn a_broken_record_is_skipped_and_left() {
    let from = Node::new();
    from.write("m/weights", b"w").write("m/config", b"{}");
    let source = from.source("m").unwrap();
    let spoil: [fn(String) -> String; 7] = [
        |_| String::new(),
        |text| text[..20].to_owned(),
        |text| text.replacen("\"version\":1", "\"version\":2", 1),
        |text| text.replacen("\"path\":\"m\"", "\"path\":\"../m\"", 1),
        |text| text.replacen("\"path\":\"config\"", "\"path\":\"../x\"", 1),
        // Cut between two lines.
        |text| text[..=text.trim_end().rfind('\n').unwrap()].to_owned(),
        |text| text.replacen('w', &"w".repeat(100_000), 1),
    ];
    for (number, spoil) in spoil.into_iter().enumerate() {
        let node = Node::new();
        copy(&node, "m", &source, "a");
        rewrite(&node, spoil);
        copy(&node, "n", &source, "b");
        assert_eq!(listed(&node), ["n"], "{number}");
        released(&node, "b");
        assert!(listed(&node).is_empty(), "{number}");
        assert_eq!(names(&node), ["m/", "m/config", "m/weights"], "{number}");
        assert_eq!(records(&node).len(), 1, "{number}");
        // The next copy at that path has a good one.
        copy(&node, "m", &source, "a");
        assert_eq!(listed(&node), ["m"], "{number}");
    }
}

#[test]
fn nothing_is_removed_that_a_broken_record_may_name() {
    for (outer, inner) in [("m", "m/sub"), ("m/sub", "m")] {
        let (from, node) = (Node::new(), Node::new());
        from.write("m/sub/weights", b"w");
        copy(&node, outer, &from.source(outer).unwrap(), "a");
        rewrite(&node, |_| "{".to_owned());
        copy(&node, inner, &from.source(inner).unwrap(), "b");
        released(&node, "b");
        assert!(node.path("m/sub/weights").exists(), "{outer}");
    }
}

#[test]
fn files_that_another_jobs_copy_at_the_same_path_has_stay() {
    let (from, fewer, node) = (Node::new(), Node::new(), Node::new());
    from.write("m/weights", b"w").write("m/config", b"{}");
    fewer.write("m/weights", b"w");
    copy(&node, "m", &from.source("m").unwrap(), "a");
    copy(&node, "m", &fewer.source("m").unwrap(), "b");
    released(&node, "b");
    assert_eq!(names(&node), ["m/", "m/config", "m/weights"]);
    // A later version has nothing of the one before.
    let (newer, node) = (Node::new(), Node::new());
    newer.write("m/weights", b"other").write("m/config", b"{1}");
    copy(&node, "m", &from.source("m").unwrap(), "a");
    copy(&node, "m", &newer.source("m").unwrap(), "b");
    released(&node, "b");
    assert_eq!(names(&node), Vec::<String>::new());
}

#[test]
fn a_copy_that_more_jobs_were_recorded_for_than_it_lists_stays() {
    let (from, node) = (Node::new(), Node::new());
    from.write("weights", b"w");
    let source = from.source("weights").unwrap();
    for number in 0..33 {
        copy(&node, "weights", &source, &number.to_string());
    }
    for number in 1..33 {
        released(&node, &number.to_string());
    }
    assert_eq!(names(&node), ["weights"]);
}

#[test]
fn a_copy_whose_directory_is_away_is_listed_again_when_it_is_back() {
    let (from, node) = (Node::new(), Node::new());
    from.write("m/weights", b"w");
    copy(&node, "disk/m", &from.source("m").unwrap(), "a");
    std::fs::rename(node.path("disk/m"), node.path("away")).unwrap();
    assert!(listed(&node).is_empty());
    std::fs::rename(node.path("away"), node.path("disk/m")).unwrap();
    assert_eq!(listed(&node), ["disk/m"]);
}

#[test]
fn records_that_others_can_write_count_for_nothing() {
    let (from, node) = (Node::new(), Node::new());
    from.write("m/weights", b"w");
    copy(&node, "m", &from.source("m").unwrap(), "a");
    let open = std::fs::Permissions::from_mode(0o777);
    std::fs::set_permissions(node.path(".weft-copies"), open).unwrap();
    for error in [
        reconcile(&node.root).unwrap_err(),
        release(&node.root, "a").unwrap_err(),
    ] {
        assert_fault(&error, "DestinationExists", ".weft-copies");
    }
    assert!(node.path("m/weights").exists());
}

#[test]
fn records_are_no_part_of_a_source_and_no_job_names_them() {
    let (from, node) = (Node::new(), Node::new());
    from.write("m/weights", b"w");
    copy(&node, "m", &from.source("m").unwrap(), "a");
    let all = node.source("").unwrap();
    let paths: Vec<&str> = all.manifest().entries().map(|e| e.path).collect();
    assert_eq!(paths, ["m", "m/weights"]);
    for path in [".weft-copies", ".weft-copies/x", "m/.weft-copies/"] {
        let error = RootPath::parse(path).unwrap_err();
        assert_fault(&error, "BadPath", ".weft-copies");
    }
    // A name there that a partial file has.
    let partial = format!(
        ".weft-copies/{}",
        names::partial_name(&"j".parse().unwrap(), "a")
    );
    node.write(&partial, b"");
    assert_eq!(sweep(&node.root, std::time::Duration::ZERO).unwrap(), 0);
    assert_eq!(listed(&node), ["m"]);
}

#[test]
fn a_namespace_made_again_by_the_same_name_opens_nothing_of_the_old_one() {
    let (from, node) = (Node::new(), Node::new());
    from.write("m/weights", b"w");
    let source = from.source("m").unwrap();
    let of = |uid: &str, path: &str| {
        let job = CopyJob {
            namespace_uid: uid.to_owned(),
            ..job(path)
        };
        DestinationConfig {
            recorded_for: Some(job),
            ..node.config(path, &source)
        }
    };
    let reads = |uid: &str, path: &str| {
        let job = of(uid, path).recorded_for.unwrap();
        namespace_directory::read(&node.root, &RootPath::parse(path).unwrap(), &job)
    };
    reads("old", "team/m").unwrap();
    assert_eq!(node.names(), Vec::<String>::new(), "a reader makes nothing");
    send(&source, of("old", "team/m")).unwrap();
    reads("old", "team/m").unwrap();
    // What the old one has is not for the new one, and neither are files that no record names.
    node.write("team/notes", b"secret");
    for path in ["team", "team/m", "team/notes", "team/else"] {
        assert_fault(
            &reads("new", path).unwrap_err(),
            "NamespaceReplaced",
            "team",
        );
        let refused = Destination::prepare(of("new", path)).unwrap_err();
        assert_fault(&refused, "NamespaceReplaced", "team");
    }
    // Elsewhere it is a job as any other, and so is one of which no UID is known.
    reads("new", "shared/m").unwrap();
    reads("", "team/m").unwrap();
    let node = reopened(node);
    let reads = |uid: &str| {
        let job = CopyJob {
            namespace_uid: uid.to_owned(),
            ..job("x")
        };
        namespace_directory::read(&node.root, &RootPath::parse("team").unwrap(), &job)
    };
    assert!(reads("new").is_err(), "also after a restart");
    std::fs::remove_dir_all(node.path("team")).unwrap();
    std::fs::create_dir(node.path("team")).unwrap();
    reads("new").unwrap();
    std::fs::create_dir(node.path("team")).unwrap();
    node.write("team/mine", b"new");
    reads("new").unwrap();
    assert!(reads("old").is_err());
}

//! What a verified copy is told by, and what goes when it is removed.

use super::alone::{Alone, alone, mount, this_test};
use super::*;

/// A destination that is complete, and its fingerprint.
fn copy(node: &Node, path: &str, source: &Source) -> Fingerprint {
    let config = node.config(path, source);
    let destination = Destination::prepare(config).unwrap();
    for (index, _, _) in source.manifest().files() {
        send_file(source, &destination, index, u32::MAX, &mut Sent::default()).unwrap();
    }
    destination.complete().unwrap();
    let made = destination.fingerprint().unwrap();
    // It travels as text.
    let read = Fingerprint::parse(&made.to_string()).unwrap();
    assert_eq!(read, made);
    read
}

fn condition(node: &Node, path: &str, fingerprint: &Fingerprint) -> Condition {
    let path = RootPath::parse(path).unwrap();
    fingerprint.examine(&node.root, &path).unwrap()
}

fn remove(node: &Node, path: &str, fingerprint: &Fingerprint) -> Removed {
    let path = RootPath::parse(path).unwrap();
    super::remove(&node.root, &path, fingerprint).unwrap()
}

#[test]
fn what_lay_beside_a_copy_stays_when_the_copy_is_removed() {
    let (from, node) = (Node::new(), Node::new());
    from.write("m/weights", b"w").write("m/sub/config", b"{}");
    node.write("m/notes", b"mine").write("m/sub/mine/x", b"x");
    let source = from.source("m").unwrap();
    let made = copy(&node, "m", &source);
    node.write("m/later", b"mine");
    std::os::unix::fs::symlink("notes", node.path("m/link")).unwrap();
    assert_eq!(condition(&node, "m", &made), Condition::Intact);
    assert_eq!(remove(&node, "m", &made), Removed::Gone);
    let left = [
        "m/",
        "m/later",
        "m/link",
        "m/notes",
        "m/sub/",
        "m/sub/mine/",
        "m/sub/mine/x",
    ];
    assert_eq!(node.names(), left);
    assert_eq!(condition(&node, "m", &made), Condition::Missing);
    assert_eq!(remove(&node, "m", &made), Removed::Gone, "repeated");
}

#[test]
fn a_model_that_lay_where_another_job_put_its_files_stays() {
    let (base, adapter, node) = (Node::new(), Node::new(), Node::new());
    base.write("m/base", b"b").write("m/config", b"{}");
    adapter.write("m/adapter", b"a");
    let below = copy(&node, "m", &base.source("m").unwrap());
    let above = copy(&node, "m", &adapter.source("m").unwrap());
    assert_eq!(condition(&node, "m", &below), Condition::Intact);
    assert_eq!(remove(&node, "m", &above), Removed::Gone);
    assert_eq!(node.names(), ["m/", "m/base", "m/config"]);
    assert_eq!(condition(&node, "m", &below), Condition::Intact);
    assert_eq!(remove(&node, "m", &below), Removed::Gone);
    assert_eq!(node.names(), Vec::<String>::new());
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
            let made = copy(&node, "m", &from.source("").unwrap());
            assert_eq!(node.names(), ["m/", "m/sub/", "m/sub/config", "m/weights"]);
            assert_eq!(remove(&node, "m", &made), Removed::Gone);
            assert_eq!(node.names(), ["m/", "m/sub/"]);
        },
    );
}

#[test]
fn nothing_is_prepared_listed_or_removed_in_a_root_that_something_is_mounted_over() {
    alone(
        this_test!(nothing_is_prepared_listed_or_removed_in_a_root_that_something_is_mounted_over),
        Alone::Mounts,
        || {
            let (from, node) = (Node::new(), Node::new());
            from.write("m/weights", b"w");
            let source = from.source("m").unwrap();
            let made = copy(&node, "m", &source);
            mount("tmpfs", "size=1m", node.directory.path());
            let error = Destination::prepare(node.config("n", &source)).unwrap_err();
            assert_fault(&error, "RootReplaced", "models");
            let path = RootPath::parse("m").unwrap();
            let error = super::remove(&node.root, &path, &made).unwrap_err();
            assert_fault(&error, "RootReplaced", "models");
            let node = reopened(node);
            Destination::prepare(node.config("n", &source)).unwrap();
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
        let made = copy(&node, path, &source);
        assert!(node.names().contains(&name.to_owned()));
        assert_eq!(condition(&node, path, &made), Condition::Intact);
        assert_eq!(remove(&node, path, &made), Removed::Gone);
        assert_eq!(node.names(), ["m/", "m/notes"]);
    }
}

#[test]
fn a_copy_of_which_a_file_is_changed_or_gone_is_not_intact_and_stays() {
    let from = Node::new();
    from.write("m/weights", b"w").write("m/config", b"{}");
    let source = from.source("m").unwrap();
    let spoil: [fn(&Node); 4] = [
        |node| std::fs::remove_file(node.path("m/config")).unwrap(),
        |node| {
            node.write("m/config", b"[]");
        },
        |node| {
            std::fs::rename(node.path("m/config"), node.path("m/was")).unwrap();
            std::os::unix::fs::symlink("was", node.path("m/config")).unwrap();
        },
        |node| {
            std::fs::rename(node.path("m"), node.path("was")).unwrap();
            std::os::unix::fs::symlink("was", node.path("m")).unwrap();
        },
    ];
    for spoil in spoil {
        let node = Node::new();
        let made = copy(&node, "m", &source);
        spoil(&node);
        let before = node.names();
        assert_eq!(
            condition(&node, "m", &made),
            Condition::Changed,
            "{before:?}"
        );
        assert_eq!(remove(&node, "m", &made), Removed::Changed);
        assert_eq!(node.names(), before);
    }
}

#[test]
fn a_copy_of_very_many_files_among_others_is_looked_after_and_not_removed() {
    let (from, node) = (Node::in_memory(), Node::in_memory());
    for number in 0..300 {
        from.write(&format!("m/{number}"), b"x");
    }
    let source = from.source("m").unwrap();
    let alone = copy(&node, "alone", &source);
    node.write("among/notes", b"mine");
    let among = copy(&node, "among", &source);
    for (path, made, removed) in [
        ("alone", &alone, Removed::Gone),
        ("among", &among, Removed::Mixed),
    ] {
        assert_eq!(condition(&node, path, made), Condition::Intact);
        assert_eq!(remove(&node, path, made), removed);
    }
    assert!(!node.path("alone").exists());
    assert_eq!(std::fs::read_dir(node.path("among")).unwrap().count(), 301);
}

#[test]
fn what_is_written_after_the_check_is_vouched_for_by_nobody() {
    let (from, node) = (Node::new(), Node::new());
    from.write("m/weights", b"w");
    let source = from.source("m").unwrap();
    let destination = Destination::prepare(node.config("m", &source)).unwrap();
    send_file(&source, &destination, 0, u32::MAX, &mut Sent::default()).unwrap();
    assert_eq!(destination.fingerprint(), None, "before it is complete");
    destination.complete().unwrap();
    node.write("m/weights", b"W");
    assert_eq!(destination.fingerprint(), None);
}

/// What `path` is a destination of: another job's.
fn another(node: &Node, path: &str, source: &Source) -> Result<Destination, FileError> {
    Destination::prepare(DestinationConfig {
        job: "job-2".parse().unwrap(),
        ..node.config(path, source)
    })
}

#[test]
fn a_copy_stays_while_another_job_writes_at_it_within_it_or_around_it() {
    let (from, node, elsewhere) = (Node::new(), Node::new(), Node::new());
    from.write("m/weights", b"w").write("m/sub/config", b"{}");
    let source = from.source("m").unwrap();
    let made = copy(&node, "a/m", &source);
    for path in ["a/m", "a/m/sub", "a/m/new/deep", "a", ""] {
        let other = another(&node, path, &source).unwrap();
        assert_eq!(remove(&node, "a/m", &made), Removed::InUse, "{path}");
        other.abort(Partials::Remove).unwrap();
        assert_eq!(condition(&node, "a/m", &made), Condition::Intact, "{path}");
    }
    // A name that begins alike is another one.
    let _beside = [
        another(&node, "a/mm", &source).unwrap(),
        another(&elsewhere, "a/m", &source).unwrap(),
    ];
    assert_eq!(remove(&node, "a/m", &made), Removed::Gone);
    assert!(!node.path("a/m/weights").exists() && !node.path("a/m/sub/config").exists());
}

#[test]
fn a_file_is_put_into_a_directory_from_which_another_goes() {
    let (from, node) = (Node::new(), Node::new());
    from.write("one", b"1").write("two", b"2");
    let made = copy(&node, "m/one", &from.source("one").unwrap());
    let two = from.source("two").unwrap();
    let other = another(&node, "m/", &two).unwrap();
    assert_eq!(remove(&node, "m/one", &made), Removed::Gone);
    send_file(&two, &other, 0, u32::MAX, &mut Sent::default()).unwrap();
    other.complete().unwrap();
    assert_eq!(node.names(), ["m/", "m/two"]);
}

#[test]
fn what_is_complete_is_in_use_until_its_attempt_is_over() {
    let (from, node) = (Node::new(), Node::new());
    from.write("m/weights", b"w");
    let source = from.source("m").unwrap();
    let made = copy(&node, "m", &source);
    let other = another(&node, "m", &source).unwrap();
    send_file(&source, &other, 0, u32::MAX, &mut Sent::default()).unwrap();
    other.complete().unwrap();
    assert_eq!(remove(&node, "m", &made), Removed::InUse, "it is passed on");
    other.leave();
    assert_eq!(remove(&node, "m", &made), Removed::Gone);
}

#[test]
fn a_copy_stays_while_it_is_read() {
    let (from, node) = (Node::new(), Node::new());
    from.write("m/weights", b"w").write("m/sub/config", b"{}");
    let made = copy(&node, "a/m", &from.source("m").unwrap());
    node.write("a/mm", b"mine");
    let _beside = node.source("a/mm").unwrap();
    for path in ["a/m", "a/m/sub/config", "a"] {
        let reader = node.source(path).unwrap();
        let another = reader.clone();
        drop(reader);
        assert_eq!(remove(&node, "a/m", &made), Removed::InUse, "{path}");
        another.unchanged().unwrap();
    }
    assert_eq!(remove(&node, "a/m", &made), Removed::Gone);
    assert_eq!(node.names(), ["a/", "a/mm"]);
}

#[test]
fn nobody_begins_to_write_where_a_copy_is_being_removed() {
    let (from, node) = (Node::new(), Node::new());
    from.write("m/weights", b"w");
    let source = from.source("m").unwrap();
    let made = copy(&node, "a/m", &source);
    let path = RootPath::parse("a/m").unwrap();
    let removal = node.root.occupancy().clear(&path).unwrap();
    for path in ["a/m", "a/m/sub", "a"] {
        let error = another(&node, path, &source).unwrap_err();
        assert_fault(&error, "DestinationBusy", path);
        assert!(crate::fault::Fault::from(error).passes());
    }
    another(&node, "a/mm", &source).unwrap();
    // Asked for once more: whoever was refused is not there.
    assert_eq!(remove(&node, "a/m", &made), Removed::Gone);
    drop(removal);
    another(&node, "a/m", &source).unwrap();
}

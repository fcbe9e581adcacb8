//! Symbolic links: kept, followed or refused at a source, and made at a destination.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, symlink};

use super::*;
use crate::files::copies::{CopyJob, reconcile, release};

/// What a job of a namespace follows.
fn follow(namespace: &str) -> Symlinks {
    Symlinks::Follow {
        boundary: RootPath::parse(namespace).unwrap(),
    }
}

/// As Hugging Face lays out its cache.
fn cache(node: &Node) {
    node.write("team/hub/blobs/f00", &content(2 * BLOCK_BYTES + 7, 1));
    node.write("team/hub/blobs/ba5", b"{}");
    fs::create_dir_all(node.path("team/hub/snapshots/r1")).unwrap();
    for (name, blob) in [("model.safetensors", "f00"), ("config.json", "ba5")] {
        let link = node.path("team/hub/snapshots/r1").join(name);
        symlink(format!("../../blobs/{blob}"), link).unwrap();
    }
}

fn text(node: &Node, below: &str) -> String {
    let text = fs::read_link(node.path(below)).unwrap();
    text.to_str().unwrap().to_owned()
}

#[test]
fn a_hugging_face_cache_arrives_with_its_links_and_each_blob_once() {
    let (from, to) = (Node::new(), Node::new());
    cache(&from);
    let source = from.source_with("team/hub", &follow("team")).unwrap();
    assert_eq!(source.manifest().file_count(), 2);
    assert_eq!(source.manifest().bytes(), 2 * BLOCK_BYTES as u64 + 9);
    let (digest, counts) = send(&source, to.config("hub", &source)).unwrap();
    assert_eq!(counts.sent, 4);
    assert_eq!(
        to.names(),
        [
            "hub/",
            "hub/blobs/",
            "hub/blobs/ba5",
            "hub/blobs/f00",
            "hub/snapshots/",
            "hub/snapshots/r1/",
            "hub/snapshots/r1/config.json",
            "hub/snapshots/r1/model.safetensors",
        ]
    );
    let model = "hub/snapshots/r1/model.safetensors";
    assert_eq!(text(&to, model), "../../blobs/f00");
    assert_eq!(to.read(model), from.read("team/hub/blobs/f00"));
    // The same once more: nothing is sent, and the links are not made anew.
    let inode = || fs::symlink_metadata(to.path(model)).unwrap().ino();
    let before = inode();
    let again = to.config("hub", &source);
    assert_eq!(
        send(&source, again).unwrap(),
        (
            digest,
            Sent {
                sent: 0,
                confirmed: 4
            }
        )
    );
    assert_eq!(inode(), before);
}

#[test]
fn a_link_out_of_the_copied_directory_arrives_as_the_file_that_it_leads_to() {
    let (from, to) = (Node::new(), Node::new());
    cache(&from);
    let source = from.source_with("team/hub/snapshots/r1", &follow("team"));
    let source = source.unwrap();
    assert_eq!(source.manifest().file_count(), 2);
    send(&source, to.config("m", &source)).unwrap();
    assert_eq!(to.names(), ["m/", "m/config.json", "m/model.safetensors"]);
    assert!(!to.path("m/model.safetensors").is_symlink());
    assert_eq!(
        to.read("m/model.safetensors"),
        from.read("team/hub/blobs/f00")
    );

    // And the source may be such a link itself, or be reached over one.
    symlink("hub/snapshots/r1", from.path("team/main")).unwrap();
    for path in ["team/hub/snapshots/r1/config.json", "team/main/config.json"] {
        let (to, source) = (
            Node::new(),
            from.source_with(path, &follow("team")).unwrap(),
        );
        send(&source, to.config("m/", &source)).unwrap();
        assert_eq!(to.names(), ["m/", "m/config.json"], "{path}");
        assert_eq!(to.read("m/config.json"), b"{}");
    }
    let source = from.source_with("team/main", &follow("team")).unwrap();
    assert_eq!(source.manifest().file_count(), 2);
    send(&source, to.config("main", &source)).unwrap();
}

#[test]
fn a_link_that_leads_nowhere_or_out_is_refused_by_name() {
    let table: &[(&str, &str, &str)] = &[
        (
            "of another namespace",
            "../../other/secret",
            "leads out of what the job may read",
        ),
        (
            "of the root",
            "../../../secret",
            "leads out of what the job may read",
        ),
        ("absolute", "/etc/passwd", "make it relative"),
        ("nothing", "none", "which is not there"),
        ("below a file", "a/b", "which is not there"),
        ("itself", "link", "leads back to itself"),
        (
            "a directory outside",
            "../shared",
            "a directory outside of the source",
        ),
        (
            "up within",
            "d/../../shared",
            "a directory outside of the source",
        ),
        ("a pipe", "../pipe", "a named pipe"),
        (
            "our own",
            "../.weft-j-17762fddd969a453925d65717ac3eea2",
            "a file of Weft's own",
        ),
    ];
    for (what, target, said) in table {
        let node = Node::new();
        node.write("team/m/a", b"1")
            .write("team/m/d/b", b"1")
            .write("team/shared/c", b"1");
        node.write("other/secret", b"1");
        node.write("team/.weft-j-17762fddd969a453925d65717ac3eea2", b"1");
        source_faults::pipe(&node.path("team/pipe"));
        symlink(target, node.path("team/m/link")).unwrap();
        let error = node.source_with("team/m", &follow("team")).expect_err(what);
        let text = error.to_string();
        assert!(
            text.contains("team/m/link") && text.contains(said),
            "{what}: {text}"
        );
        if *what != "a pipe" {
            assert_fault(&error, "SymlinkRefused", target);
        }
    }
    // Two that lead to each other, and a chain that leads out at its end.
    let node = Node::new();
    node.write("team/m/a", b"1").write("secret", b"1");
    symlink("two", node.path("team/m/one")).unwrap();
    symlink("one", node.path("team/m/two")).unwrap();
    let error = node.source_with("team/m", &follow("team")).unwrap_err();
    assert_fault(&error, "SymlinkRefused", "leads back to itself");
    fs::remove_file(node.path("team/m/one")).unwrap();
    symlink("../../secret", node.path("team/m/one")).unwrap();
    let error = node.source_with("team/m", &follow("team")).unwrap_err();
    assert_fault(
        &error,
        "SymlinkRefused",
        "leads out of what the job may read",
    );
    // The source itself.
    for (target, reason) in [("../secret", "SymlinkRefused"), ("none", "SymlinkRefused")] {
        let _ = fs::remove_file(node.path("team/l"));
        symlink(target, node.path("team/l")).unwrap();
        let error = node.source_with("team/l", &follow("team")).unwrap_err();
        assert_fault(&error, reason, target);
    }
}

#[test]
fn with_refuse_any_link_is_refused_by_name_and_the_error_says_how_to_follow_it() {
    let node = Node::new();
    cache(&node);
    let error = node.source_with("team/hub", &Symlinks::Refuse).unwrap_err();
    assert_fault(&error, "SymlinkRefused", "set symlinks to Follow");
    assert!(error.to_string().contains("../../blobs/"), "{error}");
    let path = "team/hub/snapshots/r1/config.json";
    let error = node.source_with(path, &Symlinks::Refuse).unwrap_err();
    assert_fault(&error, "SymlinkRefused", "../../blobs/ba5");
}

#[test]
fn a_received_manifest_with_a_link_out_of_the_copy_is_refused() {
    for (path, link_text) in [
        ("l", "/etc/passwd"),
        ("l", "../x"),
        ("d/l", "../../x"),
        ("d/l", "here/../../x"),
        ("l", ""),
        ("l", ".weft-copies/x"),
    ] {
        let mut manifest = ManifestBuilder::new(Shape::Directory);
        let mut add = |path, kind| {
            let mode = 0;
            manifest.add(Entry { path, kind, mode }).unwrap();
        };
        add("d", EntryKind::Directory);
        add("d/here", EntryKind::Link { link_text: "../d" });
        add(path, EntryKind::Link { link_text });
        let error = manifest.finish().unwrap_err();
        assert_fault(&error, "BadManifest", "is a link out of the copy");
    }
    // Nor does a link stand for a directory, or for the single file.
    let mut below = ManifestBuilder::new(Shape::Directory);
    let link = EntryKind::Link { link_text: "a" };
    below
        .add(Entry {
            path: "l",
            kind: link,
            mode: 0,
        })
        .unwrap();
    let file = EntryKind::File { bytes: 1 };
    below
        .add(Entry {
            path: "l/a",
            kind: file,
            mode: 0,
        })
        .unwrap();
    assert_fault(&below.finish().unwrap_err(), "BadManifest", "l/a");
    let mut only = ManifestBuilder::new(Shape::File);
    only.add(Entry {
        path: "l",
        kind: link,
        mode: 0,
    })
    .unwrap();
    assert_fault(&only.finish().unwrap_err(), "BadManifest", "single file");
}

#[test]
fn the_text_of_a_link_is_part_of_the_manifests_digest() {
    let digest = |link_text: &str| {
        let mut manifest = ManifestBuilder::new(Shape::Directory);
        let kind = EntryKind::Link { link_text };
        manifest
            .add(Entry {
                path: "l",
                kind,
                mode: 0,
            })
            .unwrap();
        *manifest.finish().unwrap().digest()
    };
    assert_ne!(digest("a"), digest("b"));
    assert_eq!(digest("a"), digest("a"));
}

#[test]
fn a_link_that_changes_while_it_is_sent_is_noticed() {
    for (path, link) in [
        ("team/hub", "config.json"),
        ("team/hub/snapshots/r1", "config.json"),
    ] {
        let node = Node::new();
        cache(&node);
        let source = node.source_with(path, &follow("team")).unwrap();
        let link = node.path("team/hub/snapshots/r1").join(link);
        fs::remove_file(&link).unwrap();
        symlink("../../blobs/f00", &link).unwrap();
        let error = source.unchanged().unwrap_err();
        assert_fault(&error, "SourceChanged", "config.json");
    }
}

#[test]
fn in_a_directory_that_is_there_a_link_replaces_what_may_be_replaced() {
    let from = Node::new();
    from.write("m/a", b"1");
    symlink("a", from.path("m/l")).unwrap();
    let source = from.source_with("m", &follow("")).unwrap();
    type Setup = fn(&Path);
    let table: &[(&str, Setup, Option<&str>)] = &[
        ("nothing", |_| {}, None),
        ("another link", |l| symlink("none", l).unwrap(), None),
        ("a file", |l| fs::write(l, "x").unwrap(), None),
        (
            "a directory",
            |l| fs::create_dir(l).unwrap(),
            Some("a directory"),
        ),
    ];
    for (what, setup, refused) in table {
        let to = Node::new();
        to.write("m/other", b"2");
        setup(&to.path("m/l"));
        let sent = send(&source, to.config("m", &source));
        match refused {
            None => {
                sent.unwrap();
                assert_eq!(to.names(), ["m/", "m/a", "m/l", "m/other"], "{what}");
                assert_eq!(text(&to, "m/l"), "a", "{what}");
            }
            Some(named) => assert_fault(&sent.unwrap_err(), "DestinationExists", named),
        }
        // With Never only the same link may be there.
        let config = DestinationConfig {
            overwrite: Overwrite::Never,
            ..to.config("m", &source)
        };
        assert_eq!(send(&source, config).is_ok(), refused.is_none(), "{what}");
    }
    let to = Node::new();
    to.write("m/a", b"1");
    symlink("none", to.path("m/l")).unwrap();
    let config = DestinationConfig {
        overwrite: Overwrite::Never,
        ..to.config("m", &source)
    };
    assert_fault(
        &Destination::prepare(config).unwrap_err(),
        "DestinationExists",
        "m/l",
    );
    assert_eq!(text(&to, "m/l"), "none");
}

#[test]
fn links_that_an_ended_attempt_left_are_no_obstacle_and_are_swept() {
    let (from, to) = (Node::new(), Node::new());
    cache(&from);
    let source = from.source_with("team/hub", &follow("team")).unwrap();
    let destination = Destination::prepare(to.config("hub", &source)).unwrap();
    let staging = to.path(&names::partial_name(&"job-1".parse().unwrap(), "hub"));
    symlink("elsewhere", staging.join("snapshots/r1/config.json")).unwrap();
    symlink("elsewhere", staging.join("more")).unwrap();
    drop(destination);
    fs::remove_file(staging.join("blobs/ba5")).unwrap();
    symlink("/etc/passwd", staging.join("blobs/ba5")).unwrap();
    send(&source, to.config("hub", &source)).unwrap();
    assert_eq!(text(&to, "hub/snapshots/r1/config.json"), "../../blobs/ba5");
    assert_eq!(to.read("hub/blobs/ba5"), b"{}");
    assert!(!to.path("hub/more").is_symlink());
    // In a directory that is there, a link is made beside its name.
    let beside = names::partial_name(&"gone".parse().unwrap(), "l");
    symlink("a", to.path("hub").join(beside)).unwrap();
    assert_eq!(sweep(&to.root, std::time::Duration::ZERO), Ok(1));
}

#[test]
fn a_copy_whose_link_was_changed_is_no_copy_any_more_and_its_links_go_with_it() {
    for changed in [false, true] {
        let (from, to) = (Node::new(), Node::new());
        cache(&from);
        let source = from.source_with("team/hub", &follow("team")).unwrap();
        let job = CopyJob {
            uid: "job-1".into(),
            namespace: "team".into(),
            name: "hub".into(),
            namespace_uid: String::new(),
        };
        let config = DestinationConfig {
            recorded_for: Some(job),
            ..to.config("hub", &source)
        };
        let destination = Destination::prepare(config).unwrap();
        for (index, _, _) in source.manifest().files() {
            send_file(&source, &destination, index, u32::MAX, &mut Sent::default()).unwrap();
        }
        let digest = destination.publish().unwrap();
        destination.record(&digest).unwrap();
        drop(destination);
        let [copy] = reconcile(&to.root).unwrap().try_into().unwrap();
        assert_eq!(copy.files, 2);
        // Another agent lists what the copy's manifest names.
        let path = RootPath::parse("hub").unwrap();
        let here = Source::new(to.root.clone(), path, source.manifest().clone());
        assert_eq!(here.relist().unwrap().digest(), source.manifest().digest());
        if changed {
            let link = to.path("hub/snapshots/r1/config.json");
            fs::remove_file(&link).unwrap();
            symlink("../../blobs/f00", link).unwrap();
            assert_fault(&here.relist().unwrap_err(), "SourceChanged", "config.json");
            assert_eq!(reconcile(&to.root).unwrap(), []);
        } else {
            drop(here);
            release(&to.root, "job-1").unwrap();
            assert!(!to.path("hub").exists());
        }
    }
}

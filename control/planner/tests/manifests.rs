//! Which manifests are taken, and what the others are told.

use proptest::prelude::*;
use weft_planner::{DirectoryEntry, FileEntry, Manifest};

fn file(path: &str, size: u64) -> FileEntry {
    FileEntry {
        path: path.to_owned(),
        size,
        mode: 0o644,
    }
}

fn directory(path: &str) -> DirectoryEntry {
    DirectoryEntry {
        path: path.to_owned(),
        mode: 0o755,
    }
}

#[test]
fn a_model_directory_is_taken_and_its_bytes_add_up() {
    let manifest = Manifest {
        files: vec![
            file("model.safetensors", 90_868_376),
            file("1_Pooling/config.json", 190),
        ],
        directories: vec![
            directory("1_Pooling"),
            directory("empty"),
            directory("..data"),
        ],
    };
    assert_eq!(manifest.validate(), Ok(()));
    assert_eq!(manifest.bytes(), 90_868_566);
    let text = serde_json::to_string(&manifest).unwrap();
    assert_eq!(serde_json::from_str::<Manifest>(&text).unwrap(), manifest);
}

#[test]
fn nothing_at_all_is_a_manifest() {
    assert_eq!(
        serde_json::from_str::<Manifest>("{}").unwrap().validate(),
        Ok(())
    );
}

#[test]
fn bad_entries_are_named_with_the_remedy() {
    let deep = ["a"; 2100].join("/");
    let long = "x".repeat(256);
    let cases = [
        ("", "ManifestEmptyPath", "give the path relative"),
        ("/etc/passwd", "ManifestAbsolutePath", "give it relative"),
        ("..", "ManifestDotComponent", "write the path without it"),
        (
            "a/../b",
            "ManifestDotComponent",
            "write the path without it",
        ),
        ("./a", "ManifestDotComponent", "write the path without it"),
        (
            "a//b",
            "ManifestEmptyComponent",
            "remove the doubled or closing '/'",
        ),
        (
            "a/",
            "ManifestEmptyComponent",
            "remove the doubled or closing '/'",
        ),
        ("a\0b", "ManifestNulInPath", "rename the file"),
        (deep.as_str(), "ManifestPathTooLong", "shorten it"),
        (long.as_str(), "ManifestPathTooLong", "shorten it"),
        ("good", "ManifestDuplicatePath", "list every path once"),
        ("good/below", "ManifestBelowFile", "remove one of the two"),
    ];
    for (path, reason, remedy) in cases {
        let files = vec![file("good", 1), file(path, 1)];
        let error = Manifest {
            files,
            directories: Vec::new(),
        }
        .validate()
        .unwrap_err();
        assert_eq!(error.reason(), reason, "{path:?}");
        let text = error.to_string();
        assert!(
            text.starts_with("files[1]") && text.contains(remedy),
            "{text}"
        );

        let files = vec![file("good", 1)];
        let directories = vec![directory(path)];
        let error = Manifest { files, directories }.validate().unwrap_err();
        assert_eq!(error.reason(), reason, "{path:?}");
        assert!(error.to_string().starts_with("directories[0]"), "{error}");
    }
}

#[test]
fn modes_have_bounds() {
    let manifest = Manifest {
        files: vec![FileEntry {
            mode: 0o100_644,
            ..file("b", 0)
        }],
        directories: Vec::new(),
    };
    assert_eq!(
        manifest.validate().unwrap_err().to_string(),
        "files[0] \"b\" has mode 0o100644: only bits within 0o7777 are allowed, \
         leave the file type out"
    );
}

#[test]
fn a_manifest_of_more_blocks_than_one_job_moves_is_refused_at_the_file_that_is_too_much() {
    let tebibyte = 1 << 40;
    let mut manifest = Manifest {
        files: vec![file("a", 255 * tebibyte), file("b", tebibyte - 1)],
        directories: Vec::new(),
    };
    assert_eq!(manifest.validate(), Ok(()));
    // Blocks count, not bytes: a short one is one.
    manifest.files.push(file("c", 1));
    let error = manifest.validate().unwrap_err();
    assert_eq!(error.reason(), "ManifestTooManyBlocks");
    assert_eq!(
        error.to_string(),
        "files[2] \"c\" of 1 bytes takes the manifest beyond 268435456 blocks of 1 MiB (256 TiB): \
         check its size, or send the files by several jobs"
    );
    let files = vec![file("a", u64::MAX), file("b", u64::MAX)];
    let manifest = Manifest {
        files,
        directories: Vec::new(),
    };
    assert_eq!(manifest.bytes(), u64::MAX);
    assert!(
        manifest
            .validate()
            .unwrap_err()
            .to_string()
            .starts_with("files[0] \"a\"")
    );
}

#[test]
fn unknown_fields_are_refused() {
    let error = serde_json::from_str::<Manifest>(r#"{"file": []}"#).unwrap_err();
    assert!(
        error.to_string().contains("unknown field `file`"),
        "{error}"
    );
}

proptest! {
    #[test]
    fn what_is_taken_stays_below_the_root(path in "[a./\\\\\u{0}é]{0,12}") {
        let manifest = Manifest { files: vec![file(&path, 1)], directories: Vec::new() };
        if manifest.validate().is_ok() {
            use std::path::{Component, Path};
            let components: Vec<_> = Path::new(&path).components().collect();
            prop_assert!(!components.is_empty());
            prop_assert!(components.iter().all(|c| matches!(c, Component::Normal(_))));
        }
    }
}

//! What `hack/krew.sh` packs: the manifest has what krew asks of one, and the archive what it names.
//!
//! krew itself does not run here: its rules are those of `internal/index/validation` of krew v0.4.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use serde_json::Value;

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn pack(out: &Path) -> Output {
    Command::new(repository().join("hack/krew.sh"))
        .args([out, Path::new(env!("CARGO_BIN_EXE_kubectl-weft"))])
        .output()
        .expect("bash starts")
}

fn said(command: &mut Command) -> String {
    let output = command.output().expect("the program starts");
    assert!(output.status.success(), "{command:?}: {output:?}");
    String::from_utf8(output.stdout).expect("text")
}

/// The one archive beside a manifest.
fn archive(out: &Path) -> PathBuf {
    let files = fs::read_dir(out).expect("a directory");
    let mut paths = files.map(|file| file.expect("a file").path());
    let is_archive = |path: &PathBuf| path.extension().is_some_and(|end| end == "gz");
    paths.find(is_archive).expect("an archive")
}

#[test]
fn the_manifest_has_what_krew_asks_for_and_the_archive_what_the_manifest_names() {
    let out = tempfile::tempdir().expect("a directory");
    let packed = pack(out.path());
    assert!(packed.status.success(), "{packed:?}");
    let text = fs::read_to_string(out.path().join("weft.yaml")).expect("a manifest");
    assert!(!text.contains('@'), "{text}");
    let manifest: Value = serde_saphyr::from_str(&text).expect("YAML");

    assert_eq!(
        manifest["apiVersion"],
        "krew.googlecontainertools.github.com/v1alpha2"
    );
    assert_eq!(manifest["kind"], "Plugin");
    // The manifest's file has the same name.
    assert_eq!(manifest["metadata"]["name"], "weft");
    let spec = &manifest["spec"];
    assert_eq!(spec["version"], concat!("v", env!("CARGO_PKG_VERSION")));
    let short = spec["shortDescription"].as_str().expect("a description");
    assert!(!short.is_empty() && !short.contains('\n'), "{short}");

    let platforms = spec["platforms"].as_array().expect("platforms");
    assert_eq!(platforms.len(), 1);
    let platform = &platforms[0];
    let arch = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => panic!("Weft is not built for {other}"),
    };
    let labels = serde_json::json!({"os": std::env::consts::OS, "arch": arch});
    assert_eq!(platform["selector"]["matchLabels"], labels);
    let archive = archive(out.path());
    let name = archive.file_name().and_then(|name| name.to_str());
    let uri = platform["uri"].as_str().expect("a URI");
    assert!(uri.starts_with("https://"), "{uri}");
    assert_eq!(uri.rsplit('/').next(), name);
    let sum = said(Command::new("sha256sum").arg(&archive));
    assert_eq!(platform["sha256"].as_str(), sum.split(' ').next());

    // As krew does: unpack, copy each of `files` to its place, run `bin` there.
    let (unpacked, installed) = (out.path().join("unpacked"), out.path().join("installed"));
    for directory in [&unpacked, &installed] {
        fs::create_dir(directory).expect("a directory");
    }
    said(
        Command::new("tar")
            .arg("-xzf")
            .arg(&archive)
            .arg("-C")
            .arg(&unpacked),
    );
    let files = platform["files"].as_array().expect("files");
    for file in files {
        assert_eq!(file["to"], ".");
        let name = file["from"].as_str().expect("a name");
        fs::copy(unpacked.join(name), installed.join(name)).expect(name);
    }
    assert!(installed.join("LICENSE").is_file());
    let bin = platform["bin"].as_str().expect("a name");
    let version = said(Command::new(installed.join(bin)).args(["version", "--client"]));
    assert!(
        version.starts_with(concat!("client    ", env!("CARGO_PKG_VERSION"))),
        "{version}"
    );
}

#[test]
fn the_same_program_makes_the_same_archive() {
    let [first, second] = [(), ()].map(|()| {
        let out = tempfile::tempdir().expect("a directory");
        assert!(pack(out.path()).status.success());
        fs::read(archive(out.path())).expect("an archive")
    });
    assert!(first == second, "the archives differ");
}

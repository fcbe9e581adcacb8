//! What `hack/krew.sh` packs: krew installs it, and the manifest says what is in the archive.

use std::{
    fs,
    io::{BufRead as _, BufReader, Write as _},
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Command, Output},
    thread,
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
}

/// krew itself, built once a machine.
fn krew(root: &Path, index: &str) -> Command {
    let script = repository().join("hack/cluster-binaries.sh");
    let directory = said(Command::new(script).arg("krew"));
    let mut command = Command::new(Path::new(directory.trim()).join("krew"));
    command.env("KREW_ROOT", root);
    command.env("KREW_NO_UPGRADE_CHECK", "1");
    // Not the one on the internet.
    command.env("KREW_DEFAULT_INDEX_URI", index);
    command
}

/// Answers every request with these bytes, until the process ends; returns its address.
fn web_server(bytes: Vec<u8>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.expect("a connection");
            let mut request = BufReader::new(stream.try_clone().expect("a socket"));
            let mut line = String::new();
            while request.read_line(&mut line).expect("a request") > 2 {
                line.clear();
            }
            let length = bytes.len();
            let head =
                format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n");
            stream.write_all(head.as_bytes()).expect("a reader");
            stream.write_all(&bytes).expect("a reader");
        }
    });
    format!("http://{address}")
}

#[test]
fn krew_installs_it_from_a_local_index() {
    let out = tempfile::tempdir().expect("a directory");
    assert!(pack(out.path()).status.success());
    let archive = archive(out.path());
    let address = web_server(fs::read(&archive).expect("an archive"));
    // An index is a git repository; this one has our manifest, with the archive where the test serves it.
    let index = out.path().join("index");
    fs::create_dir_all(index.join("plugins")).expect("a directory");
    let manifest = fs::read_to_string(out.path().join("weft.yaml")).expect("a manifest");
    let uri = manifest
        .lines()
        .find(|line| line.trim_start().starts_with("uri: "))
        .expect("a URI");
    let manifest = manifest.replace(uri, &format!("      uri: {address}/weft.tar.gz"));
    fs::write(index.join("plugins/weft.yaml"), manifest).expect("a file");
    let git = |arguments: &[&str]| {
        let mut git = Command::new("git");
        git.current_dir(&index).args(arguments);
        said(&mut git);
    };
    git(&["init"]);
    git(&["add", "."]);
    fs::write(
        index.join(".git/config"),
        "[user]\nname = test\nemail = test@example.org\n",
    )
    .expect("a file");
    git(&["commit", "--all", "--message", "weft"]);
    let index = format!("file://{}", index.display());

    let root = out.path().join("krew");
    said(krew(&root, &index).arg("update"));
    said(krew(&root, &index).args(["install", "weft"]));
    let installed = root.join("bin/kubectl-weft");
    let version = said(Command::new(&installed).args(["version", "--client"]));
    assert!(
        version.starts_with(concat!("client    ", env!("CARGO_PKG_VERSION"))),
        "{version}"
    );
    said(krew(&root, &index).args(["uninstall", "weft"]));
    assert!(!installed.exists());
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

//! `weft-container-hook`: a hook of the OCI runtime (`createContainer`), which gives a container Weft's libraries and devices.
//!
//! The runtime calls it in the container's mount namespace, before the container's files become `/`, and writes the container's
//! state to its standard input (OCI runtime specification, `config.md`, "POSIX-platform Hooks"). What is in the container may be
//! hostile; its variables are not looked at.

use std::fs;
use std::io::{self, Read as _, Write as _};
use std::net::Ipv6Addr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;
use serde::Deserialize;
use weft_device_injection::{
    Description, Environment, NAMES, Root, copies, describe, is_weft, mount_over,
};

/// Of the state and of the configuration: a pod's is some 20 kB.
const JSON_BYTES_MAX: u64 = 4 << 20;
/// Of a device, for programs that look by themselves.
const GID_FILE: &str = "gid";
/// The libraries that the dynamic linker of glibc loads with every program. musl's does not look there.
const PRELOAD: &str = "/etc/ld.so.preload";
/// The dynamic linkers of glibc.
const LINKERS: [&str; 2] = ["/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-aarch64.so.1"];

/// Gives a container Weft's libraries and devices: a createContainer hook of the OCI runtime.
#[derive(Debug, Parser)]
#[command(name = "weft-container-hook", version)]
struct Arguments {
    /// The node's directory with the libraries, and with the list of them that is mounted at /etc/ld.so.preload.
    #[arg(long, value_name = "DIR")]
    libraries: PathBuf,
    /// A device, as the container calls it, and its directory on the node: as weft0=/run/weft/devices/vdev-00000.
    #[arg(long, value_name = "NAME=DIR", value_parser = device)]
    device: Vec<(String, PathBuf)>,
}

fn device(text: &str) -> Result<(String, PathBuf), String> {
    let (name, directory) = text.split_once('=').ok_or("it is not NAME=DIR")?;
    Ok((name.to_owned(), directory.into()))
}

/// What the runtime says of the container.
#[derive(Debug, Deserialize)]
struct State {
    bundle: PathBuf,
}

/// What a container is made from.
#[derive(Debug, Deserialize)]
struct Configuration {
    root: ConfiguredRoot,
}

#[derive(Debug, Deserialize)]
struct ConfiguredRoot {
    /// Within the bundle, unless it is absolute.
    path: PathBuf,
}

/// Why the container is not started.
#[derive(Debug, thiserror::Error)]
enum HookError {
    #[error("{what}: {source}")]
    Json {
        what: &'static str,
        source: serde_json::Error,
    },
    #[error("{}: {source}", path.display())]
    File { path: PathBuf, source: io::Error },
    #[error("{}: it is no library of Weft's", .0.display())]
    NotWeft(PathBuf),
    #[error("Weft's library cannot be mounted over {}: {source}", path.display())]
    Mount { path: PathBuf, source: io::Error },
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say(&format!("the container is not started: {error}"));
            ExitCode::FAILURE
        }
    }
}

/// The runtime may show it.
fn say(text: &str) {
    let _ = writeln!(io::stderr(), "weft-container-hook: {text}");
}

fn run(arguments: &Arguments) -> Result<(), HookError> {
    let root = root(io::stdin())?;
    let libraries = NAMES.map(|name| arguments.libraries.join(format!("{name}.1")));
    if let Some(other) = libraries.iter().find(|file| is_weft(file) != Some(true)) {
        return Err(HookError::NotWeft(other.clone()));
    }
    for copy in copies(&root, &Environment::default()) {
        let own = NAMES.iter().zip(&libraries);
        let own = own.filter(|(name, _)| **name == copy.library && !copy.is_weft);
        for (_, library) in own {
            mount_over(library, &copy.file).map_err(|source| HookError::Mount {
                path: copy.path.clone(),
                source,
            })?;
        }
    }
    // What fails from here on, few programs need.
    if let Err(error) = preload(&root, &arguments.libraries) {
        say(&format!("{PRELOAD}: {error}: nothing is preloaded"));
    }
    let described = descriptions(&arguments.device).and_then(|devices| describe(&root, &devices));
    if let Err(error) = described {
        say(&format!("no device is in /sys/class: {error}"));
    }
    Ok(())
}

/// The container's files.
fn root(state: impl io::Read) -> Result<Root, HookError> {
    let json = |what| move |source| HookError::Json { what, source };
    let state: State =
        serde_json::from_reader(state.take(JSON_BYTES_MAX)).map_err(json("the state"))?;
    let path = state.bundle.join("config.json");
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| HookError::File { path, source }
    };
    let file = fs::File::open(&path).map_err(failed(&path))?;
    let configuration: Configuration =
        serde_json::from_reader(file.take(JSON_BYTES_MAX)).map_err(json("config.json"))?;
    let path = state.bundle.join(configuration.root.path);
    Root::open(&path).map_err(failed(&path))
}

/// Has the dynamic linker load the libraries with every program: for those that bring copies under names of their own.
fn preload(root: &Root, libraries: &Path) -> io::Result<()> {
    let has_glibc = LINKERS
        .iter()
        .any(|linker| root.find(Path::new(linker)).is_ok());
    if !has_glibc {
        return Ok(());
    }
    let file = root.find_or_make(Path::new(PRELOAD))?;
    if file.read()?.metadata()?.len() > 0 {
        return Err(io::Error::other("the image has one of its own"));
    }
    mount_over(&libraries.join("ld.so.preload"), &file)
}

fn descriptions(devices: &[(String, PathBuf)]) -> io::Result<Vec<Description>> {
    let description = |(name, directory): &(String, PathBuf)| {
        let gid = fs::read_to_string(directory.join(GID_FILE))?;
        let gid: Ipv6Addr = gid.trim_end().parse().map_err(io::Error::other)?;
        Ok(Description {
            name: name.clone(),
            gid,
            files: Vec::new(),
        })
    };
    devices.iter().map(description).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_container_s_files_are_where_its_bundle_says() {
        let bundle = tempfile::tempdir().unwrap();
        fs::create_dir_all(bundle.path().join("rootfs/etc")).unwrap();
        fs::write(bundle.path().join("rootfs/etc/name"), "it").unwrap();
        let state = serde_json::json!({"ociVersion": "1.0.2", "bundle": bundle.path()}).to_string();
        let text = |path: &str| {
            let configuration = serde_json::json!({"root": {"path": path, "readonly": true}});
            fs::write(bundle.path().join("config.json"), configuration.to_string()).unwrap();
            let root = root(state.as_bytes()).unwrap();
            root.text(Path::new("/etc/name"), 100)
        };
        assert_eq!(text("rootfs"), "it");
        assert_eq!(text(bundle.path().join("rootfs").to_str().unwrap()), "it");
        let error = root(&b"{}"[..]).unwrap_err().to_string();
        assert!(
            error.contains("the state: missing field `bundle`"),
            "{error}"
        );
    }
}

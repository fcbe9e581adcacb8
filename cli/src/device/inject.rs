//! Gives a program devices and Weft's libraries, whatever libraries come with it.
//!
//! A program meets Weft's libraries in two ways at once: they are mounted over every copy that is found, and they are
//! preloaded. The mounts serve a program that loads a copy by its path; preloading serves one whose copy is not found. Mounts
//! and files are in a mount namespace of this process: they are gone when the program has ended.

use std::{
    env,
    ffi::{OsStr, OsString},
    io::{self, Write as _},
    net::Ipv6Addr,
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::Command,
    slice,
};

use nix::{
    ifaddrs::{InterfaceAddress, getifaddrs},
    mount::{MsFlags, mount},
    sched::{CloneFlags, unshare},
    sys::stat::{Mode, umask},
};
use weft_device_injection::{
    CLASSES, Description, Environment, NAMES, Root, copies, is_weft, mount_over,
};
use weft_device_socket::{DIRECTORY_VARIABLE, devices_in, gid};

use super::DeviceError;

/// Names the network interface of a GID. Newer UCX looks whether it has a route to a peer.
const INTERFACE: &str = "ports/1/gid_attrs/ndevs/0";

/// What a program is given.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A directory with Weft's libibverbs.so.1 and librdmacm.so.1.
    #[arg(long)]
    libraries: PathBuf,
    /// The directory with the devices.
    #[arg(long)]
    devices: PathBuf,
    /// The program and its arguments.
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    command: Vec<OsString>,
}

/// The list of paths that a variable has, with these before or behind it.
fn list(variable: &str, own: &[PathBuf], is_before: bool) -> OsString {
    let own = own.iter().map(|path| path.as_os_str().to_owned());
    let others = env::var_os(variable).filter(|value| !value.is_empty());
    let paths: Vec<OsString> = match is_before {
        true => own.chain(others).collect(),
        false => others.into_iter().chain(own).collect(),
    };
    paths.join(OsStr::new(":"))
}

/// The program takes the place of this one, which must be root in its user namespace.
pub(super) fn run(args: &Args) -> DeviceError {
    let libraries = NAMES.map(|name| args.libraries.join(format!("{name}.1")));
    if let Some(file) = libraries.iter().find(|file| is_weft(file) != Some(true)) {
        return DeviceError::Libraries { file: file.clone() };
    }
    // So that `weft device doctor` runs as well. In another mount namespace the kernel knows no path of this program.
    let own = env::current_exe().ok();
    if let Err(error) = mount_libraries(&libraries) {
        return error;
    }
    if let Err(error) = describe(&args.devices) {
        // Most programs do not look there. Nobody may be listening.
        let _ = writeln!(
            io::stderr(),
            "weft device: no device is in {CLASSES}: {error}"
        );
    }
    let mut command = Command::new("env");
    command
        .args(&args.command)
        .env("LD_PRELOAD", list("LD_PRELOAD", &libraries, true))
        // For the names without a version.
        .env(
            "LD_LIBRARY_PATH",
            list("LD_LIBRARY_PATH", slice::from_ref(&args.libraries), true),
        )
        .env(DIRECTORY_VARIABLE, &args.devices);
    if let Some(folder) = own.as_deref().and_then(Path::parent) {
        command.env("PATH", list("PATH", &[folder.to_owned()], false));
    }
    DeviceError::NotInjected(command.exec())
}

/// Mounts the libraries over every copy, where only this process and what it starts see it.
fn mount_libraries(libraries: &[PathBuf; NAMES.len()]) -> Result<(), DeviceError> {
    const NOTHING: Option<&str> = None;
    let failed = |file: &Path, source: io::Error| DeviceError::Mount {
        path: file.to_owned(),
        source,
    };
    let path = Path::new("/");
    unshare(CloneFlags::CLONE_NEWNS).map_err(|errno| failed(path, errno.into()))?;
    let flags = MsFlags::MS_SLAVE | MsFlags::MS_REC;
    let separated = mount(NOTHING, path, NOTHING, flags, NOTHING);
    separated.map_err(|errno| failed(path, errno.into()))?;
    let root = Root::open(path).map_err(|error| failed(path, error))?;
    let copies = copies(&root, &Environment::own()).into_iter();
    for copy in copies.filter(|copy| !copy.is_weft) {
        let own = NAMES.iter().zip(libraries);
        let own = own.filter(|(name, _)| **name == copy.library);
        for (_, library) in own {
            mount_over(library, &copy.file).map_err(|error| failed(&copy.path, error))?;
        }
    }
    Ok(())
}

/// The network interface that has a GID's address.
fn interface_of(gid: Ipv6Addr) -> Option<String> {
    let ip = |address: &InterfaceAddress| {
        let address = address.address.as_ref()?;
        match address.as_sockaddr_in() {
            Some(address) => Some(address.ip().to_ipv6_mapped()),
            None => Some(address.as_sockaddr_in6()?.ip()),
        }
    };
    let found = getifaddrs().ok()?.find(|address| ip(address) == Some(gid));
    found.map(|address| address.interface_name)
}

/// Describes the devices where programs look.
fn describe(devices: &Path) -> io::Result<()> {
    let description = |name: String| {
        let gid = gid(&devices.join(&name))?;
        let interface = interface_of(gid).map(|interface| (INTERFACE, interface + "\n"));
        Ok(Description {
            name,
            gid,
            files: interface.into_iter().collect(),
        })
    };
    let devices = devices_in(devices).into_iter().map(description);
    let devices = devices.collect::<io::Result<Vec<_>>>()?;
    // Any user reads it.
    let mask = umask(Mode::S_IWGRP | Mode::S_IWOTH);
    let described = weft_device_injection::describe(&Root::open(Path::new("/"))?, &devices);
    umask(mask);
    described
}

//! How programs meet Weft's libraries and find their devices, whatever libraries come with them: `weft device inject`, as
//! `weft device run` uses it, and `weft device doctor`.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Command,
};

use weft_device::control::{self, ErrorNumber, MESSAGE_BYTES_MAX, Outcome};
use weft_device_socket::packet;
use weft_tests::{
    container::{SECCOMP_PROFILE, in_container},
    program, stdout_of,
    verbs::{Node, ended, listening},
};

/// Prints the devices of the library that it is linked with, or of the one whose path it is given; then what the library
/// says of a file of sysfs.
const SOURCE: &str = r#"
#include <dlfcn.h>
#include <stdio.h>
void **ibv_get_device_list(int *);
const char *ibv_get_device_name(void *);
int ibv_read_sysfs_file(const char *, const char *, char *, size_t);
int main(int count, char **words) {
    void **(*list)(int *) = ibv_get_device_list;
    const char *(*name)(void *) = ibv_get_device_name;
    if (count > 1) {
        void *library = dlopen(words[1], RTLD_NOW);
        if (!library) { puts(dlerror()); return 1; }
        list = (void **(*)(int *))dlsym(library, "ibv_get_device_list");
        name = (const char *(*)(void *))dlsym(library, "ibv_get_device_name");
    }
    void **devices = list(0);
    for (; devices && *devices; devices++) puts(name(*devices));
    char gid[64];
    if (ibv_read_sysfs_file("/sys/class/infiniband/weft1", "ports/1/gids/0", gid, sizeof gid) > 0) puts(gid);
    return 0;
}"#;
/// What it prints of a node's two devices.
const MET: &str = "weft0\nweft1\n0000:0000:0000:0000:0000:ffff:0a00:0002\n";

/// Debian's library under another name, which it also has as its soname, as in a wheel.
fn renamed(folder: &Path) -> PathBuf {
    const NAMES: [&[u8]; 2] = [b"\0libibverbs.so.1\0", b"\0libibverbs-1.so\0"];
    fs::create_dir_all(folder).expect("it is ours");
    let listed = Command::new("ldconfig").arg("-p").output();
    let listed = stdout_of("ldconfig -p", &listed.expect("it starts"));
    let mut lines = listed
        .lines()
        .filter(|line| line.trim().starts_with("libibverbs.so.1 "));
    let (_, system) = lines
        .next()
        .and_then(|line| line.split_once(" => "))
        .expect("libibverbs1");
    let mut bytes = fs::read(system).expect("it is there");
    let places = bytes.windows(NAMES[0].len()).enumerate();
    let places: Vec<usize> = places
        .filter(|(_, name)| *name == NAMES[0])
        .map(|(at, _)| at)
        .collect();
    assert!(!places.is_empty(), "{system} has no soname");
    for at in places {
        bytes[at..at + NAMES[1].len()].copy_from_slice(NAMES[1]);
    }
    let library = folder.join("libibverbs-1.so");
    fs::write(&library, bytes).expect("it is ours");
    library
}

/// The program, linked with this library and with its folder as the search path.
fn linked(node: &Node, library: &Path) -> PathBuf {
    let [source, program] = ["devices.c", "devices-of"].map(|name| node.path(name));
    fs::write(&source, SOURCE).expect("it is ours");
    let folder = library.parent().expect("a folder").display();
    let mut compiler = Command::new("cc");
    compiler
        .arg("-o")
        .args([&program, &source])
        .arg(library)
        .arg("-ldl");
    compiler.arg(format!(
        "-Wl,-rpath,{folder},--enable-new-dtags,--no-as-needed"
    ));
    assert!(compiler.status().expect("a C compiler").success());
    program
}

/// What a program prints.
fn printed(line: &str, mut command: Command) -> String {
    stdout_of(line, &command.output().expect("it starts"))
}

#[test]
fn a_program_with_a_library_of_its_own_meets_weft_s() {
    let node = Node::default();
    let library = renamed(&node.path("private"));
    let program = linked(&node, &library);
    let line = program.display().to_string();
    // It needs `libibverbs-1.so`, which only it has.
    assert_eq!(printed(&line, node.command(&line)), "");
    // No folder beside its own is searched, so this is what preloading does.
    assert_eq!(printed(&line, node.injected(&node.path("bin"), &line)), MET);
}

#[test]
fn a_program_that_loads_a_library_by_its_path_meets_weft_s() {
    let node = Node::default();
    let library = renamed(&node.path("lib/python3.11/site-packages/some.libs"));
    let linked = linked(&node, &library);
    let line = format!("{} {}", linked.display(), library.display());
    // Preloaded or not: what it loads by its path, it asks for names.
    let preloaded = format!(
        "env LD_PRELOAD={} {line}",
        node.path("lib/libibverbs.so.1").display()
    );
    let told = printed(&preloaded, node.command(&preloaded));
    assert!(!told.contains("weft0\n"), "{told}");
    assert_eq!(printed(&line, node.injected(&node.path("bin"), &line)), MET);
    // What was mounted was so for the program only.
    assert!(
        !fs::read(&library)
            .expect("it is there")
            .windows(12)
            .any(|bytes| bytes == b"WEFT_LIBRARY")
    );
}

#[test]
fn sysfs_says_of_a_device_what_the_library_says() {
    let node = Node::default();
    let said = node.run("ibv_devinfo -d weft1 -v");
    let value = |label: &str| {
        let line = said
            .lines()
            .find_map(|line| line.trim().strip_prefix(label));
        line.expect("it is there").trim().to_owned()
    };
    let read = |file: &str| {
        let line = format!("cat /sys/class/infiniband/weft1/{file}");
        printed(&line, node.injected(Path::new("/bin"), &line))
            .trim_end()
            .to_owned()
    };
    assert_eq!(read("node_guid"), value("node_guid:"));
    assert_eq!(read("sys_image_guid"), value("sys_image_guid:"));
    assert_eq!(read("fw_ver"), value("fw_ver:"));
    assert_eq!(read("ports/1/state"), "4: ACTIVE");
    assert_eq!(value("state:"), "PORT_ACTIVE (4)");
    assert_eq!(read("ports/1/link_layer"), value("link_layer:"));
    assert_eq!(
        read("ports/1/gids/0"),
        "0000:0000:0000:0000:0000:ffff:0a00:0002"
    );
    assert_eq!(read("ports/1/gid_attrs/types/0"), "RoCE v2");
    // What the kernel has is still there.
    let line = "ls /sys/class/net /sys/class/infiniband /sys/class/infiniband_verbs/weft0/ibdev";
    let listed = printed(line, node.injected(Path::new("/bin"), line));
    assert!(
        listed.contains("lo\n") && listed.contains("weft0\nweft1\n"),
        "{listed}"
    );
}

#[test]
fn doctor_names_what_keeps_a_program_from_its_device() {
    let node = Node::default();
    let library = renamed(&node.path("lib/python3.11/site-packages/some.libs"));
    // Where any user may run it.
    let weft = node.path("bin/weft");
    fs::create_dir(node.path("bin")).expect("it is ours");
    fs::copy(program("weft"), &weft).expect("it was built");
    let doctor = format!("{} device doctor", weft.display());
    let mut outside = Command::new(program("weft"));
    outside
        .args(["device", "doctor"])
        .env_remove("LD_PRELOAD")
        .env_remove("LD_LIBRARY_PATH");
    outside.env("WEFT_DEVICES", node.path("none"));
    let path = std::env::var("PATH").expect("it is text");
    outside.env("PATH", format!("{}:{path}", node.path("bin").display()));
    let output = outside.output().expect("it starts");
    assert_eq!(output.status.code(), Some(2));
    let told = String::from_utf8_lossy(&output.stdout);
    let own = library.canonicalize().expect("it is there");
    for part in [
        "problem: libibverbs.so.1 is /",
        "problem: librdmacm.so.1 is /",
        "problem: LD_PRELOAD does not name Weft's librdmacm.so.1",
        &format!("problem: {} is not Weft's", own.display()),
        &format!(
            "problem: there is no device in {}",
            node.path("none").display()
        ),
        "fix: start the program by `weft device run NODE -- PROGRAM`",
    ] {
        assert!(told.contains(part), "{part}: {told}");
    }
    // What this node lacks is a device file for UCX, and nothing else.
    let mut inside = node.injected(&node.path("bin"), &doctor);
    let output = inside.output().expect("it starts");
    assert_eq!(output.status.code(), Some(2));
    let told = String::from_utf8_lossy(&output.stdout);
    let problems: Vec<&str> = told
        .lines()
        .filter(|line| line.starts_with("problem: "))
        .collect();
    assert_eq!(problems.len(), 2, "{told}");
    assert!(
        problems
            .iter()
            .all(|problem| problem.contains("UCX does not see weft")),
        "{told}"
    );
    let lines: Vec<&str> = told.lines().collect();
    let library = lines
        .iter()
        .find(|line| line.starts_with("librdmacm.so.1 "))
        .expect("it is listed");
    assert!(library.ends_with("  yes"), "{told}");
}

/// A device whose engine is of another release: it speaks this version, and answers each program so.
fn device_of_another_release(directory: &Path, engine: u32) {
    use rustix::net::{
        AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept, bind, listen, socket_with,
    };

    fs::create_dir_all(directory).expect("it is ours");
    fs::write(directory.join("token"), [7; 32]).expect("it is ours");
    fs::write(directory.join("gid"), "::ffff:10.0.0.9\n").expect("it is ours");
    let kind = (AddressFamily::UNIX, SocketType::SEQPACKET);
    let socket = socket_with(kind.0, kind.1, SocketFlags::CLOEXEC, None).expect("a socket");
    let path = directory.join("control");
    bind(&socket, &SocketAddrUnix::new(&path).expect("a short path")).expect("it is ours");
    listen(&socket, 8).expect("it is ours");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).expect("it is ours");
    std::thread::spawn(move || {
        while let Ok(program) = accept(&socket) {
            let mut buffer = [0; MESSAGE_BYTES_MAX];
            let _ = packet::receive(&program, &mut buffer);
            let refusal: Outcome = Err(ErrorNumber::OtherVersion { engine });
            // The program may have gone.
            let _ = packet::send(&program, control::emit(&refusal, &mut buffer), &[]);
        }
    });
}

#[test]
fn a_program_of_another_release_than_the_engine_is_told_both_versions() {
    let node = Node::default();
    let engine = weft_device::VERSION + 5;
    let devices = node.path("other");
    device_of_another_release(&devices.join("weft0"), engine);
    fs::set_permissions(&devices, fs::Permissions::from_mode(0o755)).expect("it is ours");
    let said = format!(
        "speaks version {engine} of the devices' protocol, and this library version {}",
        weft_device::VERSION
    );
    let variable = format!("env WEFT_DEVICES={}", devices.display());
    let mut devinfo = node.command(&format!("{variable} ibv_devinfo -d weft0"));
    let output = devinfo.output().expect("it starts");
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(told.contains(&said), "{told}");
    let mut doctor = Command::new(program("weft"));
    doctor
        .args(["device", "doctor"])
        .env("WEFT_DEVICES", &devices);
    let output = doctor.output().expect("it starts");
    let told = String::from_utf8_lossy(&output.stdout);
    for part in [
        "problem: weft0 does not open",
        &said,
        "restart the container",
    ] {
        assert!(told.contains(part), "{part}: {told}");
    }
}

#[test]
fn programs_of_containers_that_allow_little_use_the_devices() {
    let node = Node::default();
    let profile = node.path("default.py");
    fs::write(&profile, SECCOMP_PROFILE).expect("it is ours");
    let contained = |line: &str| node.injected(Path::new("/bin"), &in_container(&profile, line));
    let line = "cat /proc/self/status /proc/self/limits";
    let status = printed(line, contained(line));
    // The first process of its PID namespace is that which waits for it.
    for part in [
        "\nPid:\t2\n",
        "\nUid:\t1000\t",
        "\nCapEff:\t0000000000000000\n",
        "\nNoNewPrivs:\t1\n",
        "\nSeccomp:\t2\n",
        "\nMax locked memory         65536 ",
    ] {
        assert!(status.contains(part), "{part}: {status}");
    }
    for (line, problem) in [
        ("touch /tmp/file", "Read-only file system"),
        ("unshare --user true", "Operation not permitted"),
    ] {
        let output = contained(line).output().expect("it starts");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(
            !output.status.success() && said.contains(problem),
            "{line}: {said}"
        );
    }
    let pair = |port: u16, server: &str, client: &str| {
        let waiting = listening(contained(server), port);
        let told = printed(client, contained(client));
        [stdout_of(server, &ended(waiting)), told]
    };
    for (port, line) in (18_950..).zip([
        "ibv_rc_pingpong -g 0 -n 500",
        "ibv_rc_pingpong -g 0 -e -n 500",
        "ibv_ud_pingpong -g 0 -n 500",
        "ib_write_bw -x 0 -s 65536 -n 200",
        "ib_atomic_lat -x 0 -n 200",
    ]) {
        let line = format!("{line} -p {port}");
        let [server, client] = ["weft0", "weft1 127.0.0.1"].map(|it| format!("{line} -d {it}"));
        let [_, told] = pair(port, &server, &client);
        let results = ["500 iters in ", "#bytes"];
        assert!(
            results.iter().any(|result| told.contains(result)),
            "{line}: {told}"
        );
    }
    // `-V` compares every byte. A program that connects by librdmacm uses the only device that it has.
    let rping = |device: &str, options: &str| {
        let devices = node.path(device);
        let devices = devices.display();
        format!("env WEFT_DEVICES={devices} rping -v -V -p 18960 {options}")
    };
    let server = rping("weft0", "-s");
    let client = rping("weft1", "-c -C 10 -a 127.0.0.1");
    for told in pair(18_960, &server, &client) {
        assert!(told.contains("ping data: rdma-ping-9: "), "{told}");
    }
}

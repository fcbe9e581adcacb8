//! Devices in `/sys/class`. Each test has a mount namespace of its own.

use std::collections::BTreeSet;
use std::fs;
use std::net::Ipv6Addr;
use std::path::Path;

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use weft_device_injection::{CLASSES, Description, Root, describe};

/// Runs a test on a thread whose mounts nobody else sees.
fn alone(test: impl FnOnce() + Send + 'static) {
    let thread = std::thread::spawn(|| {
        unshare(CloneFlags::CLONE_NEWNS).expect("tests run as root");
        let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
        mount(None::<&str>, "/", None::<&str>, private, None::<&str>).expect("they are its own");
        test();
    });
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

/// As the hook does for each of a container's devices.
fn add(number: u16) {
    let device = Description {
        name: format!("weft{number}"),
        gid: Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, number),
        files: Vec::new(),
    };
    let root = Root::open(Path::new("/")).expect("it is there");
    describe(&root, &[device]).unwrap_or_else(|error| panic!("weft{number}: {error}"));
}

fn gid(number: u16) -> String {
    let file = format!("{CLASSES}/infiniband/weft{number}/ports/1/gids/0");
    let text = fs::read_to_string(&file).unwrap_or_else(|error| panic!("{file}: {error}"));
    text.trim_end().to_owned()
}

fn names(directory: &str) -> BTreeSet<String> {
    let entries = fs::read_dir(directory).expect("it is there");
    let names = entries.map(|entry| entry.expect("it is there").file_name());
    names
        .map(|name| name.to_string_lossy().into_owned())
        .collect()
}

fn mounts_there() -> usize {
    let mounts = fs::read_to_string("/proc/thread-self/mountinfo").expect("Linux");
    let is_there = |line: &&str| line.split(' ').nth(4) == Some(CLASSES);
    mounts.lines().filter(is_there).count()
}

#[test]
fn a_container_has_all_its_devices_however_many_and_the_kernels_stay() {
    alone(|| {
        let kernels = names(CLASSES);
        let before = mounts_there();
        for number in 0..20 {
            add(number);
            // The files, and the overlay that shows them.
            assert_eq!(mounts_there(), before + 2, "after weft{number}");
        }
        for number in 0..20 {
            let end = format!(":{number:04x}");
            assert!(gid(number).ends_with(&end), "{}", gid(number));
        }
        let verbs = names(&format!("{CLASSES}/infiniband_verbs"));
        assert!((0..20).all(|number| verbs.contains(&format!("weft{number}"))));
        let shown = names(CLASSES);
        assert!(kernels.is_subset(&shown), "{shown:?}");
    });
}

#[test]
fn what_another_has_laid_there_stays() {
    alone(|| {
        // Overlays are laid over two others at most, and there may be one below the other directories.
        let directory = tempfile::tempdir_in("/dev/shm").unwrap();
        fs::create_dir(directory.path().join("others")).unwrap();
        let layers = format!("lowerdir={}:{CLASSES}", directory.path().display());
        let none = MsFlags::empty();
        mount(
            Some("overlay"),
            CLASSES,
            Some("overlay"),
            none,
            Some(&*layers),
        )
        .unwrap();
        let before = mounts_there();
        // The second call takes the overlay of the first one off, and no other.
        for number in 0..2 {
            add(number);
            assert_eq!(mounts_there(), before + 2, "after weft{number}");
            assert!(names(CLASSES).contains("others"), "after weft{number}");
        }
        for number in 0..2 {
            let end = format!(":{number:04x}");
            assert!(gid(number).ends_with(&end), "{}", gid(number));
        }
    });
}

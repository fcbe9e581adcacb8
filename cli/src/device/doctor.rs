//! `weft device doctor`: which libraries and which devices a program meets where this one runs.
//!
//! It asks the dynamic linker by a shell whose libraries the linker lists, so it says what is true of any program of glibc that
//! has no search path of its own.

use std::{
    env, fmt, fs,
    os::unix::fs::FileTypeExt as _,
    path::{Path, PathBuf},
    process::Command,
};

use nix::unistd::{AccessFlags, access};
use weft_device::sysfs;
use weft_device_injection::{CLASSES, Copy, Environment, NAMES, Root, copies, is_weft, library_of};
use weft_device_socket::{Client, devices_in, directory, gid};

use crate::{columns::columns, printable};

/// What gives a program both.
const RUN: &str = "start the program by `weft device run NODE -- PROGRAM`";
/// Where UCX looks for a character device of the device's name.
const DEVICE_NODES: &str = "/dev/infiniband";

/// What there is, and what to do about what is missing.
#[derive(Debug)]
pub(super) struct Report {
    names: Vec<Resolved>,
    preloaded: Vec<PathBuf>,
    copies: Vec<Copy>,
    directory: PathBuf,
    devices: Vec<DeviceCheck>,
}

/// What the dynamic linker takes for a name.
#[derive(Debug)]
struct Resolved {
    name: String,
    file: Option<PathBuf>,
    is_weft: bool,
}

/// What keeps a program from its device.
#[derive(Debug)]
struct Problem {
    what: String,
    fix: String,
}

#[derive(Debug)]
struct DeviceCheck {
    name: String,
    /// Why it does not open.
    problem: Option<String>,
    has_node: bool,
    is_described: bool,
}

/// The file that the dynamic linker takes for a name, of what it prints with that name preloaded last.
fn resolved(name: &str, objects: &str, errors: &str) -> Option<PathBuf> {
    if errors.contains(&format!("'{name}' from LD_PRELOAD cannot be preloaded")) {
        return None;
    }
    // As `libc.so.6 => /lib/libc.so.6 (0x7f00)`, or `/a/libibverbs.so.1 (0x7f00)` of what is named by its path.
    let files = objects.lines().filter_map(|line| {
        let (line, _) = line.trim().rsplit_once(" (")?;
        let (asked, file) = line.split_once(" => ").unwrap_or((line, line));
        Some((Path::new(asked).file_name()?.to_str()?, file))
    });
    let files: Vec<(&str, &str)> = files.collect();
    let is_same = |(asked, _): &&(&str, &str)| *asked == name;
    // A file that is loaded already is not listed again: for `libibverbs.so` it is `libibverbs.so.1`.
    let is_longer = |(asked, _): &&(&str, &str)| asked.starts_with(name);
    let found = files
        .iter()
        .find(is_same)
        .or_else(|| files.iter().find(is_longer));
    found.map(|(_, file)| PathBuf::from(file))
}

impl Resolved {
    fn of(name: String) -> Self {
        let mut preload = env::var("LD_PRELOAD").unwrap_or_default();
        preload += ":";
        preload += &name;
        let mut shell = Command::new("sh");
        shell
            .args(["-c", ":"])
            .env("LD_PRELOAD", preload)
            .env("LD_TRACE_LOADED_OBJECTS", "1");
        let file = shell.output().ok().and_then(|output| {
            let [objects, errors] =
                [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
            resolved(&name, &objects, &errors)
        });
        let is_weft = file.as_deref().and_then(is_weft) == Some(true);
        Self {
            name,
            file,
            is_weft,
        }
    }
}

impl DeviceCheck {
    fn of(directory: &Path, name: String) -> Self {
        let path = directory.join(&name);
        let node = Path::new(DEVICE_NODES).join(&name);
        let is_device = fs::metadata(&node).is_ok_and(|node| node.file_type().is_char_device());
        let usable = AccessFlags::R_OK | AccessFlags::W_OK;
        let described = Path::new(CLASSES).join("infiniband").join(&name);
        let is_described = |(file, line): &(&str, String)| {
            fs::read_to_string(described.join(file)).is_ok_and(|text| text == *line)
        };
        Self {
            problem: Client::open(&path).err().map(|error| error.to_string()),
            has_node: is_device && access(&node, usable).is_ok(),
            is_described: gid(&path)
                .is_ok_and(|gid| sysfs::files(&name, gid).iter().all(is_described)),
            name,
        }
    }
}

impl Report {
    /// Looks.
    pub(super) fn gather() -> Self {
        let names = NAMES
            .into_iter()
            .flat_map(|name| [format!("{name}.1"), name.to_owned()]);
        let preload = env::var("LD_PRELOAD").unwrap_or_default();
        let preload = preload.split([':', ' ']).map(PathBuf::from);
        let directory = directory();
        let devices = devices_in(&directory).into_iter();
        Self {
            names: names.map(Resolved::of).collect(),
            preloaded: preload.filter(|file| is_weft(file) == Some(true)).collect(),
            copies: Root::open(Path::new("/"))
                .map(|root| copies(&root, &Environment::own()))
                .unwrap_or_default(),
            devices: devices
                .map(|name| DeviceCheck::of(&directory, name))
                .collect(),
            directory,
        }
    }

    /// Whether a program meets Weft's libraries and devices.
    pub(super) fn is_well(&self) -> bool {
        self.problems().is_empty()
    }

    /// What is wrong.
    fn problems(&self) -> Vec<Problem> {
        let mut problems = Vec::new();
        let mut add = |what: String, fix: &str| {
            let fix = fix.to_owned();
            problems.push(Problem { what, fix });
        };
        for Resolved {
            name,
            file,
            is_weft,
        } in &self.names
        {
            match file {
                Some(_) if *is_weft => {}
                Some(file) => add(format!("{name} is {}, not Weft's", file.display()), RUN),
                // Programs go on to the versioned name.
                None if NAMES.contains(&&**name) => {}
                None => add(format!("{name} is not found"), RUN),
            }
        }
        for name in NAMES {
            let is_it = |file: &PathBuf| library_of(file) == Some(name);
            if !self.preloaded.iter().any(is_it) {
                let what = "so a program with a copy of its own uses that";
                add(
                    format!("LD_PRELOAD does not name Weft's {name}.1, {what}"),
                    RUN,
                );
            }
        }
        for copy in self.copies.iter().filter(|copy| !copy.is_weft) {
            let file = copy.path.display();
            add(
                format!("{file} is not Weft's, for a program that loads it by its path"),
                RUN,
            );
        }
        if self.devices.is_empty() {
            let directory = self.directory.display();
            add(format!("there is no device in {directory}"), RUN);
        }
        for device in &self.devices {
            let name = &device.name;
            if let Some(problem) = &device.problem {
                add(format!("{name} does not open"), problem);
            }
            if !device.has_node {
                let fix =
                    format!("bind /dev/null to {DEVICE_NODES}/{name}, for all to read and write");
                add(format!("UCX does not see {name}"), &fix);
            }
            if !device.is_described {
                add(
                    format!("{CLASSES}/infiniband does not say what is true of {name}"),
                    RUN,
                );
            }
        }
        problems
    }
}

fn yes(is_so: bool) -> String {
    if is_so { "yes" } else { "no" }.to_owned()
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = |path: &Path| path.display().to_string();
        let rows = self.names.iter().map(|found| {
            let file = found.file.as_deref().map_or_else(|| "-".to_owned(), path);
            vec![found.name.clone(), file, yes(found.is_weft)]
        });
        columns(
            f,
            &["LIBRARY", "RESOLVES TO", "WEFT"],
            &rows.collect::<Vec<_>>(),
        )?;
        writeln!(f)?;
        let rows = self
            .copies
            .iter()
            .map(|copy| vec![path(&copy.path), yes(copy.is_weft)]);
        columns(f, &["COPY", "WEFT"], &rows.collect::<Vec<_>>())?;
        writeln!(f)?;
        let preloaded = self.preloaded.iter().map(|file| vec![path(file)]);
        columns(f, &["PRELOADED OF WEFT"], &preloaded.collect::<Vec<_>>())?;
        writeln!(f)?;
        let rows = self.devices.iter().map(|device| {
            vec![
                path(&self.directory.join(&device.name)),
                yes(device.problem.is_none()),
                yes(device.has_node),
                yes(device.is_described),
            ]
        });
        let head = [
            "DEVICE",
            "OPENS",
            "IN /dev/infiniband",
            "IN /sys/class/infiniband",
        ];
        columns(f, &head, &rows.collect::<Vec<_>>())?;
        let problems = self.problems();
        for (at, Problem { what, fix }) in problems.iter().enumerate() {
            writeln!(f, "problem: {}", printable::line(what))?;
            // Said once of several.
            if problems.get(at + 1).is_none_or(|next| next.fix != *fix) {
                writeln!(f, "fix: {}", printable::line(fix))?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OBJECTS: &str = "\tlinux-vdso.so.1 (0x00007fb6)\n\t/w/libibverbs.so.1 (0x00007fb6)\n\
                           \tlibrdmacm.so => /lib/librdmacm.so (0x00007fb6)\n\
                           \tlibrdmacm.so.1 => /lib/librdmacm.so.1 (0x00007fb6)\n";

    #[test]
    fn a_name_is_what_the_linker_lists_or_what_it_has_loaded_before() {
        let file = |name| resolved(name, OBJECTS, "").unwrap();
        assert_eq!(file("libibverbs.so.1"), Path::new("/w/libibverbs.so.1"));
        assert_eq!(file("libibverbs.so"), Path::new("/w/libibverbs.so.1"));
        assert_eq!(file("librdmacm.so"), Path::new("/lib/librdmacm.so"));
        let error = "ERROR: ld.so: object 'libibverbs.so' from LD_PRELOAD cannot be preloaded (cannot open)";
        assert_eq!(resolved("libibverbs.so", OBJECTS, error), None);
    }

    #[test]
    fn what_is_not_weft_s_and_what_is_missing_has_a_fix() {
        let name = |name: &str, file: &str, is_weft| Resolved {
            name: name.to_owned(),
            file: (!file.is_empty()).then(|| PathBuf::from(file)),
            is_weft,
        };
        let mut report = Report {
            names: vec![
                name("libibverbs.so.1", "/w/libibverbs.so.1", true),
                name("libibverbs.so", "", false),
            ],
            preloaded: NAMES.map(PathBuf::from).to_vec(),
            copies: Vec::new(),
            directory: PathBuf::from("/dev/weft"),
            devices: vec![DeviceCheck {
                name: "weft0".to_owned(),
                problem: None,
                has_node: true,
                is_described: true,
            }],
        };
        assert!(report.is_well());
        report
            .names
            .push(name("librdmacm.so", "/lib/librdmacm.so", false));
        report.preloaded.pop();
        report.devices[0].has_node = false;
        report.names[0].is_weft = false;
        let shown = report.to_string();
        let begin = shown.find("problem: ").unwrap();
        assert_eq!(
            &shown[begin..],
            "problem: libibverbs.so.1 is /w/libibverbs.so.1, not Weft's\n\
             problem: librdmacm.so is /lib/librdmacm.so, not Weft's\n\
             problem: LD_PRELOAD does not name Weft's librdmacm.so.1, so a program with a copy of its own uses that\n\
             fix: start the program by `weft device run NODE -- PROGRAM`\n\
             problem: UCX does not see weft0\n\
             fix: bind /dev/null to /dev/infiniband/weft0, for all to read and write\n"
        );
    }
}

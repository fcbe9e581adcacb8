use std::os::unix::net::UnixListener;

use clap::Parser;

use super::*;

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    args: Args,
}

fn check(words: &[&str]) -> Result<Settings, String> {
    let line = Line::try_parse_from(["play"].iter().chain(words)).map_err(|e| e.to_string())?;
    line.args.check().map_err(|e| e.to_string())
}

#[test]
fn without_flags_it_is_four_nodes_and_random_bytes() {
    let settings = check(&[]).unwrap();
    assert_eq!(settings.fabric, Spec::default());
    assert_eq!(
        settings.data,
        Data::Random {
            bytes: 256 << 20,
            seed: 1
        }
    );
    assert_eq!(settings.to, [1, 2, 3]);
    assert!(settings.faults.is_empty() && settings.of_fabric.is_empty());
}

#[test]
fn every_bad_argument_names_its_flag_and_the_remedy() {
    for (words, text) in [
        (
            "--nodes 1",
            "--nodes 1: one sends and another receives; give at least --nodes 2",
        ),
        ("--nodes 0", "give at least --nodes 2"),
        ("--nodes 241", "--nodes 241: give a number from 1 to 240"),
        (
            "--nodes 2 --leaves 3",
            "--leaves 3: there are only 2 nodes; give --leaves 2 or more --nodes",
        ),
        ("--nics 0", "--nics 0: give a number from 1 to 8"),
        ("--fail-nic 1@1s", "no other to go on with; add --nics 2"),
        (
            "--nics 2 --fail-nic 4@1s",
            "--fail-nic 4: there is no node 4; the nodes are 0 to 3",
        ),
        (
            "--nics 2 --nodes 121",
            "--nodes 121: give a number from 1 to 120",
        ),
        ("--ui-port 8080", "--ui"),
        ("--ui --keep", "--keep"),
        ("--spines 0", "--spines 0: give a number from 1 to 64"),
        ("--paths 0", "--paths 0: give a number from 1 to 256"),
        ("--paths 257", "--paths 257: give a number from 1 to 256"),
        ("--mtu 100", "--mtu 100: give a number from 1280 to 65535"),
        ("--to 4", "--to 4: there is no node 4; the nodes are 0 to 3"),
        (
            "--to 1,0",
            "--to 0: node 0 has the data already; leave it out",
        ),
        ("--to 1,3,1", "--to names node 1 twice: name it once"),
        (
            "--to node1",
            "\"node1\" is no node: give all, or numbers as 1,3",
        ),
        (
            "--loss 2",
            "\"2\" is not a share from 0 to 99.9%: write 0.1% or 0.001",
        ),
        (
            "--rate 1",
            "--rate 1 bit/s: give a rate from 1mbit to 400gbit",
        ),
        (
            "--rate 1tbit",
            "--rate 1 Tbit/s: give a rate from 1mbit to 400gbit",
        ),
        (
            "--loss 100%",
            "\"100%\" is not a share from 0 to 99.9%: write 0.1% or 0.001",
        ),
        (
            "--size 5M",
            "which is not one of B, kB, MB, GB, TB, KiB, MiB, GiB, TiB",
        ),
        (
            "--source /etc --size 1MB",
            "the argument '--source <PATH>' cannot be used with '--size <SIZE>'",
        ),
        (
            "--strategy fast",
            "[possible values: auto, direct, chain, binomial]",
        ),
        (
            "--congestion eqds:1tbit",
            "give a rate from 1mbit to 400gbit, as eqds:10gbit",
        ),
        (
            "--path-policy best",
            "[possible values: single, round-robin, oblivious, two-choices, best-rtt, reps, hopper]",
        ),
        (
            "--fail-spine 4@1s",
            "--fail-spine 4: there is no spine 4; the spines are 0 to 3",
        ),
        (
            "--fail-spine 1",
            "\"1\" is not K@TIME: write a number and a time, as 2@500ms",
        ),
        (
            "--fail-spine 1@2",
            "\"1@2\" has no unit of time: write ms, s or m, as 2@500ms",
        ),
        (
            "--fail-spine 1@-2s",
            "\"1@-2s\" is not K@TIME: write a number and a time, as 2@500ms",
        ),
        (
            "--leaves 1 --fail-spine 1@2s",
            "--fail-spine acts on the spines, and with --leaves 1 no packet",
        ),
        (
            "--kill-node 9@1s",
            "--kill-node 9: there is no node 9; the nodes are 0 to 3",
        ),
        (
            "--restart-node 1@1s",
            "add --kill-node 1@TIME with an earlier time",
        ),
        (
            "--kill-node 1@2s --restart-node 1@1s",
            "add --kill-node 1@TIME with an earlier time",
        ),
        (
            "--kill-node 1@1s --kill-node 1@2s",
            "add --restart-node 1@TIME between the two",
        ),
        (
            "--source /nowhere",
            "--source /nowhere: No such file or directory (os error 2); give a file",
        ),
        (
            "--source /dev/null",
            "--source /dev/null: this is a device; give a regular file",
        ),
        (
            "--source /",
            "--source /: it has no name that is UTF-8; give one below it",
        ),
        ("--out /proc/none", "--out /proc/none: "),
        (
            "--out /run/made-for-this",
            "--out /run/made-for-this: the fabric has a /run of its own, which ends with it; give a directory elsewhere",
        ),
        (
            "--out /etc",
            "--out /etc: it is not empty; give an empty directory, one to be made, or that",
        ),
        (
            "--out /etc/passwd",
            "--out /etc/passwd: Not a directory (os error 20); give a directory",
        ),
    ] {
        let words: Vec<&str> = words.split(' ').collect();
        let error = check(&words).unwrap_err();
        let flat = error.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(flat.contains(text), "{words:?}: {error}");
    }
}

#[test]
fn a_socket_is_no_source() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    let _listener = UnixListener::bind(&path).unwrap();
    let error = check(&["--source", path.to_str().unwrap()]).unwrap_err();
    assert!(
        error.ends_with("this is a socket; give a regular file or a directory"),
        "{error}"
    );
}

#[test]
fn faults_are_ordered_by_time_and_a_node_may_die_twice() {
    let words = "--kill-node 1@3s --restart-node 1@1.5s --kill-node 1@500ms --fail-spine 2@1m";
    let faults = check(&words.split(' ').collect::<Vec<_>>()).unwrap().faults;
    let seen: Vec<_> = faults
        .iter()
        .map(|f| (f.kind.name(), f.at.as_millis()))
        .collect();
    assert_eq!(
        seen,
        [
            ("kill-node", 500),
            ("restart-node", 1500),
            ("kill-node", 3000),
            ("fail-spine", 60_000)
        ]
    );
}

#[test]
fn a_source_is_followed_to_where_it_is_and_an_out_may_be_made() {
    let directory = tempfile::tempdir().unwrap();
    let real = directory.path().canonicalize().unwrap().join("model");
    fs::create_dir(&real).unwrap();
    let link = directory.path().join("link");
    std::os::unix::fs::symlink(&real, &link).unwrap();
    let out = directory.path().join("a/b");
    let words = [
        "--source",
        link.to_str().unwrap(),
        "--out",
        out.to_str().unwrap(),
    ];
    let settings = check(&words).unwrap();
    assert_eq!(settings.data, Data::Directory(real));
    assert!(!out.exists());
}

#[test]
fn an_out_within_the_source_and_one_of_other_data_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let source = directory.path().join("model");
    fs::create_dir(&source).unwrap();
    let source = source.to_str().unwrap();
    for out in [source.to_owned(), format!("{source}/a/b")] {
        let error = check(&["--source", source, "--out", &out]).unwrap_err();
        assert!(error.contains("it lies within --source"), "{error}");
    }
    let out = directory.path().join("out");
    fs::create_dir(&out).unwrap();
    super::out::begin(
        Some(&out),
        check(&["--size", "10"]).unwrap().data.describe(),
    )
    .unwrap();
    let out = out.to_str().unwrap();
    check(&["--size", "10", "--out", out]).unwrap();
    let error = check(&["--size", "11", "--out", out]).unwrap_err();
    assert!(
        error.contains("it holds a run of random.bin (10 random bytes of seed 1); give the same"),
        "{error}"
    );
}

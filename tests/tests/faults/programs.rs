//! Faults that are not of a transfer: of programs, and of one call.

use std::{
    fs,
    io::{BufRead, BufReader, Read},
    process::{Command, Stdio},
};

use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use weft_proto::agent::v1::{CancelRequest, Location, Overwrite, StatRequest};
use weft_sim::draw::Draw;
use weft_tests::program;

use crate::{
    row::{assert_refusal, failure, job, prepare},
    stage::{ROOT, Stage},
    tree::{Tree, Work, partials_below},
};

/// SIGKILL to the program that the user started, while bytes move.
pub(crate) fn the_command_line_is_killed(_: &mut Stage, seed: u64) {
    let mut draw = Draw::new(seed, 1);
    let private = tempfile::tempdir().unwrap();
    // Whatever the program starts inherits the writing end.
    let (alive, kept) = nix::unistd::pipe().unwrap();
    fcntl(&alive, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC)).unwrap();
    program("weft-agent");
    let mut weft = Command::new(program("weft"))
        .args("play --nodes 2 --size 64MiB --node-rate 50mbit".split(' '))
        .env("TMPDIR", private.path())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(kept);
    let mut said = String::new();
    let mut reports = draw.within(1, 3);
    for line in BufReader::new(weft.stderr.take().unwrap()).lines() {
        let line = line.unwrap();
        // It has a rate and is not at its end: bytes move.
        reports -= u64::from(line.contains("node1") && line.contains("ETA"));
        said += &line;
        said.push('\n');
        if reports == 0 {
            break;
        }
    }
    assert_eq!(reports, 0, "{said}");
    weft.kill().unwrap();
    weft.wait().unwrap();
    // Ends when the last process has, agents included.
    fs::File::from(alive).read_to_end(&mut Vec::new()).unwrap();
    assert_eq!(fs::read_dir(private.path()).unwrap().count(), 0);
}

/// A second agent on the ports of the first.
pub(crate) fn a_port_range_that_is_taken(stage: &mut Stage, seed: u64) {
    let node = Draw::new(seed, 2).within(0, 3) as usize;
    let output = stage.rival(node);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    let (address, ports) = (stage.address(node), stage.ports(node));
    let ports = format!("{}-{}", ports.start(), ports.end());
    for words in [ports, address.to_string()] {
        assert!(said.contains(&words), "{said}");
    }
    assert!(
        said.contains("set another ports.first"),
        "no remedy: {said}"
    );
    // The first one still serves.
    assert!(!stage.metrics(node).is_empty());
}

/// Another content under `Overwrite::Never`.
pub(crate) async fn a_destination_with_another_content(stage: &mut Stage, seed: u64) {
    let mut draw = Draw::new(seed, 3);
    let tree = Tree::draw(Work::Model { bytes: 1 << 20 }, &mut draw);
    let path = format!("other-{seed}");
    tree.write(&stage.root(0).join(&path));
    let there = stage.root(1).join(&path).join(tree.largest());
    fs::create_dir_all(there.parent().unwrap()).unwrap();
    let other = vec![7; draw.within(1, 1 << 20) as usize];
    fs::write(&there, &other).unwrap();
    let location = Location {
        root: ROOT.to_owned(),
        path: path.clone(),
    };
    let request = StatRequest {
        leader_epoch: 1,
        location: Some(location),
        ..StatRequest::default()
    };
    let listed = stage.operator(0).stat(request).await.unwrap().into_inner();
    let (job, mut agent) = (job(&stage.new_job()), stage.operator(1));
    let mut request = prepare(
        &job,
        &path,
        listed.manifest_digest.clone(),
        Overwrite::Never,
    );
    request.manifest_from = Some(stage.holder(&job, 0, 1, listed.manifest_digest));
    match agent.prepare(request).await {
        Err(status) => {
            let says = ["model.bin", "overwrite"];
            assert_refusal(&failure(&status), 1, &["DestinationExists"], &says);
        }
        Ok(_) => panic!("Never overwrote"),
    }
    let cancel = CancelRequest {
        attempt: Some(job),
        leader_epoch: 1,
        remove_partials: true,
        release_copies: false,
    };
    agent.cancel(cancel).await.unwrap();
    assert!(fs::read(&there).unwrap() == other);
    let left = partials_below(stage.root(1));
    assert!(left.is_empty(), "{left:?}");
}

//! A job whose source is in a store: without the right to its Secret it waits and says how that is given.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};

use rand_core::Rng as _;
use serde_json::{Value, json};
use weft_cluster::in_network_of;
use weft_crds::{FabricNode, Phase};

use crate::harness::{Harness, TEAM, job, process};

const NAME: &str = "object";
const BYTES: usize = 20_000_003;

pub(super) fn a_job_waits_until_the_operator_may_read_its_secret(harness: &mut Harness) {
    let mut file = vec![0; BYTES];
    harness.draw.rng().fill_bytes(&mut file);
    let served = Arc::new(AtomicUsize::new(0));
    let store = serve(harness, file.clone(), Arc::clone(&served));
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "store", "namespace": TEAM},
        "stringData": {"host": store, "bearer_token": "hunter2"},
    });
    harness.cluster.apply(&secret);
    let mut wanted = job(TEAM, NAME, &["node1", "node2"]);
    let object = json!({"url": format!("http://{store}/m"), "secretRef": {"name": "store"}});
    wanted["spec"]["source"] = json!({"object": object});
    harness.cluster.apply(&wanted);
    waits(harness, "ObjectInsecure");
    // The agents take that over; until all have done so the job waits for them.
    let lax = json!({"spec": {"objects": {"allowInsecure": true}}}).to_string();
    let patch = ["patch", "rf", "default", "--type=merge", "--patch", &lax];
    harness.cluster.kubectl(&patch);
    let message = waits(harness, "SecretForbidden");
    let (_, commands) = message.split_once(" by: ").unwrap();
    for command in commands.split("; ") {
        let words: Vec<&str> = command.split_whitespace().collect();
        assert_eq!(words[0], "kubectl", "{message}");
        harness.cluster.kubectl(&words[1..]);
    }
    let job = harness.until_phase(TEAM, NAME, Phase::Complete);
    let reader = job.status.unwrap().reader;
    assert!(["node1", "node2"].contains(&&*reader), "{reader}");
    for node in ["node1", "node2"] {
        let copy = std::fs::read(harness.directory(node, TEAM, NAME)).unwrap();
        assert!(copy == file, "{node}");
    }
    assert_eq!(served.load(Ordering::Relaxed), BYTES);
    harness
        .cluster
        .kubectl(&["delete", "tj", NAME, "--namespace", TEAM]);
    println!("  waits for the fabric and for a Role; then {reader} reads all of it, once");
}

/// The message of the job that waits for this reason.
fn waits(harness: &Harness, reason: &str) -> String {
    harness.cluster.wait_until(reason, || {
        let job = harness
            .cluster
            .json(&["get", "tj", NAME, "--namespace", TEAM]);
        let conditions = job["status"]["conditions"].as_array()?.clone();
        let is_it = |one: &&Value| one["type"] == "Planned" && one["reason"] == reason;
        conditions.iter().find(is_it)?;
        job["status"]["message"].as_str().map(str::to_owned)
    })
}

/// A store on node0, with one object; HOST:PORT. Counts the bytes that it has sent.
fn serve(harness: &Harness, file: Vec<u8>, served: Arc<AtomicUsize>) -> String {
    let pid = process(&harness.cluster, "weft-agent", "NODE_NAME=node0").unwrap();
    let node = harness
        .cluster
        .wait(harness.cluster.all::<FabricNode>().get("node0"));
    let address = node.unwrap().status.unwrap().control_address;
    let (host, _) = address.rsplit_once(':').unwrap();
    let (sender, opened) = mpsc::channel();
    let host = host.to_owned();
    let bound = host.clone();
    let work = move || {
        let listener = TcpListener::bind((&*bound, 0)).unwrap();
        sender.send(listener.local_addr().unwrap().port()).unwrap();
        let file = Arc::new(file);
        for stream in listener.incoming() {
            let (file, served) = (Arc::clone(&file), Arc::clone(&served));
            // A reader that hangs up is no failure.
            std::thread::spawn(move || drop(answer(&stream.unwrap(), &file, &served)));
        }
    };
    in_network_of(pid.as_raw().unsigned_abs(), work).unwrap();
    format!("{host}:{}", opened.recv().unwrap())
}

fn answer(mut stream: &TcpStream, file: &[u8], served: &AtomicUsize) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream).lines();
    // One request after the other, until it is hung up.
    while let Some(request) = lines.next() {
        let request = request?;
        let mut headers = BTreeMap::new();
        for line in lines.by_ref() {
            let line = line?;
            let Some((name, value)) = line.split_once(": ") else {
                break;
            };
            headers.insert(name.to_ascii_lowercase(), value.to_owned());
        }
        let range = headers.get("range").map(|range| {
            let (first, last) = range.trim_start_matches("bytes=").split_once('-').unwrap();
            (first.parse().unwrap(), last.parse::<usize>().unwrap() + 1)
        });
        let (first, end) = range.unwrap_or((0, file.len()));
        let (code, more) = match range {
            Some(_) => (
                206,
                format!("Content-Range: bytes {first}-{}/{BYTES}\r\n", end - 1),
            ),
            None => (200, String::new()),
        };
        let length = end - first;
        let head =
            format!("HTTP/1.1 {code} OK\r\nETag: \"v1\"\r\nContent-Length: {length}\r\n{more}\r\n");
        stream.write_all(head.as_bytes())?;
        if !request.starts_with("HEAD") {
            stream.write_all(&file[first..end])?;
            served.fetch_add(length, Ordering::Relaxed);
        }
    }
    Ok(())
}

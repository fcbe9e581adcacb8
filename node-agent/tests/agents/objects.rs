//! Objects as sources: one node reads a store and passes on what it reads.

use std::collections::BTreeSet;

use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use s3s::auth::SimpleAuth;
use s3s::service::S3ServiceBuilder;
use tokio::net::TcpListener;
use tonic::Status;
use weft_proto::agent::v1::start_request::Task;
use weft_proto::agent::v1::*;

use crate::kept::Kept;
use crate::s3_server::{AnswerFault, S3Server};
use crate::support::{Lab, job, name_of, noise, reason, write};
use crate::transfer::names;

const MIB: usize = 1 << 20;
/// The stores here have no TLS, and are on the node itself.
pub(crate) const INSECURE: &str = "objects: {allowInsecure: true, stallTimeout: 5s}\n";
/// For a server that stops sending.
const SHORT_STALL: &str = "objects: {allowInsecure: true, stallTimeout: 1s}\n";
pub(crate) const PASSWORD: &str = "hunter2hunter2";

pub(crate) fn object(url: &str) -> ObjectSource {
    ObjectSource {
        url: url.to_owned(),
        ..ObjectSource::default()
    }
}

pub(crate) fn with(source: ObjectSource, values: &[(&str, &str)]) -> ObjectSource {
    let value = |(key, value): &(&str, &str)| ((*key).to_owned(), value.as_bytes().to_vec());
    ObjectSource {
        credentials: Some(Credentials {
            values: values.iter().map(value).collect(),
            secret: "team-a/store".to_owned(),
        }),
        ..source
    }
}

pub(crate) async fn stat(lab: &Lab, source: &ObjectSource) -> Result<StatResponse, Status> {
    let request = StatRequest {
        leader_epoch: 1,
        object: Some(source.clone()),
        ..StatRequest::default()
    };
    Ok(lab.operator(0).await.stat(request).await?.into_inner())
}

/// Node 0 reads, and passes on to `others` directly. How it ended at each of them.
pub(crate) async fn read(
    lab: &Lab,
    job: &AttemptRef,
    source: &ObjectSource,
    manifest: &StatResponse,
    others: &[usize],
) -> Vec<ProgressResponse> {
    for node in [&[0], others].concat() {
        let request = lab.prepare(job, node, manifest);
        lab.operator(node).await.prepare(request).await.unwrap();
    }
    for node in others {
        let part = DestinationTask { object: None };
        let request = StartRequest {
            attempt: Some(job.clone()),
            leader_epoch: 1,
            job_name: name_of(job),
            task: Some(Task::Destination(part)),
            sends_to: Vec::new(),
        };
        lab.operator(*node).await.start(request).await.unwrap();
    }
    let part = DestinationTask {
        object: Some(source.clone()),
    };
    let request = StartRequest {
        attempt: Some(job.clone()),
        leader_epoch: 1,
        job_name: name_of(job),
        task: Some(Task::Destination(part)),
        sends_to: others.iter().map(|node| lab.child(job, 0, *node)).collect(),
    };
    lab.operator(0).await.start(request).await.unwrap();
    let mut ends = Vec::new();
    for node in [&[0], others].concat() {
        ends.push(lab.finish(node, job).await);
    }
    ends
}

pub(crate) fn assert_verified(ends: &[ProgressResponse]) {
    for end in ends {
        let why = format!("{}: {} {}", end.node, end.reason, end.message);
        assert_eq!(end.state(), State::Verified, "{why}");
        assert_eq!(end.bytes, end.bytes_total, "{why}");
        assert_eq!(end.digest, ends[0].digest, "{why}");
    }
}

/// A server of S3 with one bucket, `models`, and what is in it.
pub(crate) async fn s3(lab: &Lab, files: &[(&str, &[u8])]) -> String {
    let root = lab.dir.path().join("s3");
    std::fs::create_dir_all(root.join("models")).unwrap();
    for (name, bytes) in files {
        write(&root.join("models").join(name), bytes);
    }
    let mut service = S3ServiceBuilder::new(s3s_fs::FileSystem::new(&root).unwrap());
    service.set_auth(SimpleAuth::from_single("reader", PASSWORD));
    let service = service.build();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let service = service.clone();
            tokio::spawn(async move {
                let connection = Builder::new(TokioExecutor::new());
                // A client that hangs up is no failure.
                let _ = connection
                    .serve_connection(TokioIo::new(stream), service)
                    .await;
            });
        }
    });
    format!("http://{address}")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prefix_of_a_bucket_is_a_directory_that_one_node_reads_and_the_others_get_from_it() {
    let lab = Lab::new();
    let mut agents = Vec::new();
    for node in 0..3 {
        agents.push(lab.agent(node, INSECURE).await);
    }
    let big = noise(3 * MIB + 77, 1);
    let files = [
        ("minilm/a/model.bin", big.as_slice()),
        ("minilm/config.json", b"{}".as_slice()),
        ("minilm/empty", b"".as_slice()),
        ("other/not-this", b"x".as_slice()),
    ];
    let endpoint = s3(&lab, &files).await;
    let source = with(
        object("s3://models/minilm/"),
        &[
            ("AWS_ACCESS_KEY_ID", "reader"),
            ("AWS_SECRET_ACCESS_KEY", PASSWORD),
            ("endpoint", &endpoint),
        ],
    );
    let manifest = stat(&lab, &source).await.unwrap();
    assert_eq!(manifest.files, 3);
    let ends = read(&lab, &job("s3", 1), &source, &manifest, &[1, 2]).await;
    assert_verified(&ends);
    for node in 0..3 {
        let copy = |name: &str| std::fs::read(lab.root(node).join("model").join(name)).unwrap();
        assert!(copy("a/model.bin") == big);
        assert_eq!(copy("config.json"), b"{}");
        assert_eq!(copy("empty"), b"");
        // No partial file, no record, no lock.
        assert_eq!(names(&lab, node), ["model"]);
    }
    for agent in agents {
        agent.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_refuses_is_a_failure_at_once_that_names_secret_and_key_and_tells_neither() {
    let lab = Lab::new();
    let agent = lab.agent(0, INSECURE).await;
    let endpoint = s3(&lab, &[("a", b"a")]).await;
    let wrong = with(
        object("s3://models/a"),
        &[
            ("access_key_id", "reader"),
            ("secret_access_key", "wrong-secret"),
            ("endpoint", &endpoint),
        ],
    );
    let status = stat(&lab, &wrong).await.unwrap_err();
    assert_eq!(reason(&status), "ObjectDenied", "{status:?}");
    let message = status.message();
    assert!(message.contains("team-a/store") && message.contains("secret_access_key"));
    assert!(!message.contains("wrong-secret"), "{message}");

    let missing = with(
        object("s3://models/nothing/"),
        &[
            ("access_key_id", "reader"),
            ("secret_access_key", PASSWORD),
            ("endpoint", &endpoint),
        ],
    );
    let status = stat(&lab, &missing).await.unwrap_err();
    assert_eq!(reason(&status), "ObjectMissing", "{status:?}");
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_stalls_truncates_and_throttles_is_asked_for_the_missing_bytes() {
    let lab = Lab::new();
    let agents = [
        lab.agent(0, SHORT_STALL).await,
        lab.agent(1, SHORT_STALL).await,
    ];
    let bytes = noise(2 * MIB + 5, 2);
    let server = S3Server::open(&[("m.bin", &bytes)]).await;
    server.change(|contents| {
        contents.faults = [
            AnswerFault::Status(429),
            AnswerFault::Status(500),
            AnswerFault::Truncate(1000),
            AnswerFault::Stall(70_000),
            AnswerFault::Status(503),
        ]
        .into();
    });
    let source = object(&server.url("m.bin"));
    let manifest = stat(&lab, &source).await.unwrap();
    let ends = read(&lab, &job("faults", 1), &source, &manifest, &[1]).await;
    assert_verified(&ends);
    assert_eq!(ends[0].digest, blake3::hash(&bytes).to_string());
    assert!(std::fs::read(lab.root(1).join("model")).unwrap() == bytes);
    let starts: BTreeSet<usize> = server.change(|contents| {
        assert!(contents.faults.is_empty());
        contents
            .asked
            .iter()
            .map(|(_, range)| range.unwrap().0)
            .collect()
    });
    // What had come before the answer broke off was not asked for again.
    let within = starts.iter().filter(|start| **start % MIB != 0).count();
    assert_eq!(within, 2, "{starts:?}");
    for agent in agents {
        agent.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_ranges_is_read_once_as_a_whole() {
    let lab = Lab::new();
    let agents = [lab.agent(0, INSECURE).await, lab.agent(1, INSECURE).await];
    let bytes = noise(12 * MIB + 5, 3);
    let server = S3Server::open(&[("m.bin", &bytes)]).await;
    server.change(|contents| contents.whole_only = true);
    let source = object(&server.url("m.bin"));
    let manifest = stat(&lab, &source).await.unwrap();
    let ends = read(&lab, &job("whole", 1), &source, &manifest, &[1]).await;
    assert_verified(&ends);
    assert!(std::fs::read(lab.root(1).join("model")).unwrap() == bytes);
    let whole = server.change(|contents| {
        let whole = contents.asked.iter().filter(|(_, range)| range.is_none());
        whole.count()
    });
    assert_eq!(whole, 1);
    for agent in agents {
        agent.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_read_before_a_restart_is_not_read_again_unless_it_was_torn_or_is_another_version()
{
    let lab = Lab::new();
    let agent = lab.agent(0, INSECURE).await;
    let bytes = noise(20 * MIB, 4);
    let server = S3Server::open(&[("m.bin", &bytes)]).await;
    server.change(|contents| contents.refuses_after = Some(9));
    let source = object(&server.url("m.bin"));
    let manifest = stat(&lab, &source).await.unwrap();
    let ends = read(&lab, &job("again", 1), &source, &manifest, &[]).await;
    assert_eq!(ends[0].reason, "ObjectDenied", "{}", ends[0].message);
    let had = ends[0].bytes;
    assert!(had >= 2 * MIB as u64, "{had}");
    agent.stop().await;

    // A crash has torn the first block.
    let partial = names(&lab, 0)
        .into_iter()
        .map(|name| lab.root(0).join(name))
        .find(|file| file.metadata().unwrap().len() == bytes.len() as u64)
        .unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(&partial);
    std::os::unix::fs::FileExt::write_all_at(&file.unwrap(), &[0; 4096], 4096).unwrap();

    let agent = lab.agent(0, INSECURE).await;
    server.change(|contents| contents.refuses_after = None);
    let manifest = stat(&lab, &source).await.unwrap();
    server.change(|contents| contents.asked.clear());
    let ends = read(&lab, &job("again", 2), &source, &manifest, &[]).await;
    assert_verified(&ends);
    assert_eq!(ends[0].bytes_resumed, had - MIB as u64);
    assert!(std::fs::read(lab.root(0).join("model")).unwrap() == bytes);
    let asked = server.change(|contents| contents.asked.clone());
    assert_eq!(asked.len() as u64, 20 - (had / MIB as u64 - 1), "{asked:?}");
    assert!(asked.iter().any(|(_, range)| *range == Some((0, MIB))));
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn another_version_in_the_store_ends_the_attempt_and_one_that_was_not_expected_begins_none() {
    let lab = Lab::new();
    let agent = lab.agent(0, INSECURE).await;
    let bytes = noise(3 * MIB, 5);
    let server = S3Server::open(&[("m.bin", &bytes)]).await;
    let source = object(&server.url("m.bin"));
    let manifest = stat(&lab, &source).await.unwrap();
    server.change(|contents| contents.etag = "\"v2\"".to_owned());
    let ends = read(&lab, &job("changed", 1), &source, &manifest, &[]).await;
    assert_eq!(ends[0].reason, "ObjectChanged", "{}", ends[0].message);

    let expects = |etag: &str, bytes| ObjectSource {
        expect: Some(ObjectExpect {
            etag: etag.to_owned(),
            bytes,
        }),
        ..source.clone()
    };
    let right = expects("v2", Some(3 * MIB as u64));
    assert!(stat(&lab, &right).await.is_ok());
    for wrong in [expects("v1", None), expects("", Some(1))] {
        let status = stat(&lab, &wrong).await.unwrap_err();
        assert_eq!(reason(&status), "ExpectMismatch", "{status:?}");
    }
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_is_shown_to_the_one_host_that_its_secret_names() {
    let lab = Lab::new();
    let agent = lab.agent(0, INSECURE).await;
    let server = S3Server::open(&[("m.bin", b"m")]).await;
    let source = |host: &str| {
        with(
            object(&server.url("m.bin")),
            &[("host", host), ("bearer_token", PASSWORD)],
        )
    };
    for host in ["store.example", ""] {
        let status = stat(&lab, &source(host)).await.unwrap_err();
        assert_eq!(reason(&status), "SecretInvalid", "{status:?}");
        assert!(!status.message().contains(PASSWORD), "{status:?}");
    }
    assert!(server.change(|contents| contents.shown.is_empty()));
    stat(&lab, &source(&server.address)).await.unwrap();
    let shown = server.change(|contents| contents.shown.clone());
    assert_eq!(shown, [format!("authorization: Bearer {PASSWORD}")]);
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_store_is_read_without_tls_or_on_the_node_itself_unless_that_is_allowed() {
    let lab = Lab::new();
    let agent = lab.agent(0, "").await;
    let server = S3Server::open(&[("m.bin", b"m")]).await;
    let port = server.address.rsplit(':').next().unwrap();
    for url in [
        server.url("m.bin"),
        format!("https://127.0.0.1:{port}/m.bin"),
        format!("https://localhost:{port}/m.bin"),
        "https://169.254.169.254/latest/meta-data".to_owned(),
    ] {
        let status = stat(&lab, &object(&url)).await.unwrap_err();
        assert_eq!(reason(&status), "StoreForbidden", "{status:?}");
    }
    let elsewhere = with(
        object("s3://models/a"),
        &[("endpoint", "http://169.254.169.254/")],
    );
    let status = stat(&lab, &elsewhere).await.unwrap_err();
    assert_eq!(reason(&status), "SecretInvalid", "{status:?}");
    assert!(server.change(|contents| contents.asked.is_empty()));
    agent.stop().await;
}

/// An object of S3 at that server, with a Secret that is only good there.
fn signed(server: &S3Server, url: &str) -> ObjectSource {
    with(
        object(url),
        &[
            ("access_key_id", "reader"),
            ("secret_access_key", PASSWORD),
            ("session_token", "of-the-session"),
            ("endpoint", &format!("http://{}", server.address)),
        ],
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_sends_its_callers_on_has_not_what_they_show_shown_elsewhere() {
    let lab = Lab::new();
    let agent = lab.agent(0, INSECURE).await;
    let (first, second) = (
        S3Server::open(&[]).await,
        S3Server::open(&[("m.bin", b"m")]).await,
    );
    let on_to = format!("http://{}", second.address);
    first.change(|contents| contents.sends_on_to = Some(on_to));
    let public = with(
        object(&first.url("m.bin")),
        &[("host", &first.address), ("bearer_token", PASSWORD)],
    );
    stat(&lab, &public).await.unwrap();
    let status = stat(&lab, &signed(&first, "s3://models/m.bin")).await;
    let status = status.unwrap_err();
    assert_eq!(reason(&status), "StoreForbidden", "{status:?}");
    assert!(status.message().contains(&second.address), "{status:?}");
    let shown = first.change(|contents| contents.shown.clone());
    assert!(shown.iter().any(|shown| shown.contains("of-the-session")));
    assert!(shown.iter().any(|shown| shown.contains(PASSWORD)));
    let shown = second.change(|contents| contents.shown.clone());
    assert!(shown.is_empty(), "{shown:?}");
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_proxy_of_the_environment_is_not_asked() {
    let lab = Lab::new();
    let (server, proxy) = (
        S3Server::open(&[("m.bin", b"m")]).await,
        S3Server::open(&[]).await,
    );
    let address = format!("http://{}", proxy.address);
    let variables = [("HTTP_PROXY", &*address), ("http_proxy", &*address)];
    let direct = [("NO_PROXY", ""), ("no_proxy", "")];
    let _agent = Kept::start_in(&lab, 0, INSECURE, &[variables, direct].concat());
    // There is no such object at the proxy.
    assert!(stat(&lab, &object(&server.url("m.bin"))).await.is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_that_is_too_long_for_one_answer_is_no_stores() {
    let lab = Lab::new();
    let agent = lab.agent(0, INSECURE).await;
    let server = S3Server::open(&[]).await;
    let page = |bytes: usize| {
        let name = "n".repeat(bytes);
        let object = format!(
            "<Contents><Key>m/{name}</Key><Size>1</Size>\
             <LastModified>2026-01-01T00:00:00.000Z</LastModified><ETag>&quot;1&quot;</ETag></Contents>"
        );
        format!("<ListBucketResult><IsTruncated>false</IsTruncated>{object}</ListBucketResult>")
    };
    server.change(|contents| contents.list = page(200).into());
    let source = signed(&server, "s3://models/m/");
    assert_eq!(stat(&lab, &source).await.unwrap().files, 1);
    server.change(|contents| contents.list = page(8 << 20).into());
    let status = stat(&lab, &source).await.unwrap_err();
    assert_eq!(reason(&status), "StoreForbidden", "{status:?}");
    assert!(status.message().contains("8388608 bytes"), "{status:?}");
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_without_end_is_a_refusal_whose_rest_nobody_reads() {
    let lab = Lab::new();
    let agent = lab.agent(0, INSECURE).await;
    let server = S3Server::open(&[("m.bin", b"m")]).await;
    let source = object(&server.url("m.bin"));
    let manifest = stat(&lab, &source).await.unwrap();
    server.change(|contents| contents.faults = [AnswerFault::Endless(403)].into());
    let ends = read(&lab, &job("endless", 1), &source, &manifest, &[]).await;
    assert_eq!(ends[0].reason, "ObjectDenied", "{}", ends[0].message);
    assert!(ends[0].message.len() < 1000, "{}", ends[0].message);
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_sends_almost_nothing_keeps_no_place_at_a_node() {
    let lab = Lab::new();
    let limits = "objects: {allowInsecure: true, stallTimeout: 30s, blockTimeout: 1s}\n";
    let agent = lab.agent(0, limits).await;
    let bytes = noise(MIB + 5, 6);
    let server = S3Server::open(&[("m.bin", &bytes)]).await;
    for (attempt, whole_only) in [(1, false), (2, true)] {
        server.change(|contents| {
            contents.whole_only = whole_only;
            contents.faults = vec![AnswerFault::Trickle(70_000); 4].into();
        });
        let source = object(&server.url("m.bin"));
        let manifest = stat(&lab, &source).await.unwrap();
        let ends = read(&lab, &job("slow", attempt), &source, &manifest, &[]).await;
        assert_eq!(ends[0].reason, "ObjectUnavailable", "{}", ends[0].message);
        let message = &ends[0].message;
        assert!(message.contains("not read within 1 s"), "{message}");
    }
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_does_not_say_what_there_is_is_asked_for_so_long_and_no_longer() {
    let lab = Lab::new();
    let limits = "objects: {allowInsecure: true, stallTimeout: 500ms, listTimeout: 1s}\n";
    let agent = lab.agent(0, limits).await;
    let server = S3Server::open(&[("m.bin", b"m")]).await;
    server.change(|contents| contents.silent = true);
    for source in [
        object(&server.url("m.bin")),
        signed(&server, "s3://models/m.bin"),
        signed(&server, "s3://models/m/"),
    ] {
        let status = stat(&lab, &source).await.unwrap_err();
        assert_eq!(reason(&status), "ObjectUnavailable", "{status:?}");
        assert!(status.message().contains("within 1 s"), "{status:?}");
    }
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_object_without_a_named_version_is_read_from_one_answer_only() {
    let lab = Lab::new();
    let agents = [lab.agent(0, INSECURE).await, lab.agent(1, INSECURE).await];
    let (old, new) = (noise(12 * MIB + 5, 6), noise(12 * MIB + 5, 7));
    let server = S3Server::open(&[("m.bin", &old)]).await;
    server.change(|contents| contents.etag = String::new());
    let source = object(&server.url("m.bin"));
    let manifest = stat(&lab, &source).await.unwrap();
    let once = [("m.bin".to_owned(), None)];

    // The object changes while it is read: the answer has the bytes of when it began.
    server.change(|contents| contents.replaced_by = Some(new.clone()));
    let ends = read(&lab, &job("unnamed", 1), &source, &manifest, &[1]).await;
    assert_verified(&ends);
    assert_eq!(ends[0].digest, blake3::hash(&old).to_string());
    assert_eq!(
        server.change(|contents| std::mem::take(&mut contents.asked)),
        once
    );

    // The answer breaks off, and then the object changes: no byte of the first answer stays.
    server.change(|contents| {
        contents.faults = [AnswerFault::Truncate(5 * MIB + 17)].into();
        contents.replaced_by = Some(old.clone());
    });
    let ends = read(&lab, &job("broken", 1), &source, &manifest, &[1]).await;
    assert_eq!(ends[0].reason, "ObjectUnavailable", "{}", ends[0].message);
    assert!(ends[0].retriable, "{}", ends[0].message);
    assert_eq!(ends[1].state(), State::Failed, "{}", ends[1].message);
    let ends = read(&lab, &job("broken", 2), &source, &manifest, &[1]).await;
    assert_verified(&ends);
    assert_eq!(ends[0].digest, blake3::hash(&old).to_string());
    assert_eq!(
        server.change(|contents| std::mem::take(&mut contents.asked)),
        [once.clone(), once].concat()
    );
    for node in 0..2 {
        assert!(std::fs::read(lab.root(node).join("model")).unwrap() == old);
    }
    for agent in agents {
        agent.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_object_that_changes_before_the_rest_of_a_block_is_read_fails_the_attempt() {
    let lab = Lab::new();
    let agent = lab.agent(0, INSECURE).await;
    let bytes = noise(MIB, 8);
    let server = S3Server::open(&[("m.bin", &bytes)]).await;
    let source = object(&server.url("m.bin"));
    let manifest = stat(&lab, &source).await.unwrap();
    server.change(|contents| {
        contents.faults = [AnswerFault::Truncate(1000)].into();
        contents.next_etag = Some("\"v2\"".to_owned());
    });
    let ends = read(&lab, &job("changed", 1), &source, &manifest, &[]).await;
    assert_eq!(ends[0].reason, "ObjectChanged", "{}", ends[0].message);
    let asked = server.change(|contents| contents.asked.clone());
    let ranges: Vec<_> = asked.into_iter().map(|(_, range)| range.unwrap()).collect();
    assert_eq!(ranges, [(0, MIB), (1000, MIB)]);
    agent.stop().await;
}

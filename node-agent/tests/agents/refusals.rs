//! What an agent refuses, and how it says so: the reason, the node, and the remedy.

use std::io::{Read as _, Write as _};
use std::time::Duration;

use crate::support::{
    DEADLINE, Lab, Wire, eventually, job, noise, reason, start_source, stat, write,
};
use tonic::{Code, Status};
use weft_proto::agent::v1::link_measurement_client::LinkMeasurementClient;
use weft_proto::agent::v1::*;

/// Two agents, a model, and an attempt that is prepared at node 1.
struct Prepared {
    lab: Lab,
    job: AttemptRef,
    manifest: StatResponse,
    agents: [weft_agent::agent::Agent; 2],
}

async fn prepared(uid: &str, extra: [&str; 2]) -> Prepared {
    let lab = Lab::new();
    let agents = [lab.agent(0, extra[0]).await, lab.agent(1, extra[1]).await];
    write(&lab.root(0).join("model"), &noise(100_000, 1));
    let job = job(uid, 1);
    let manifest = stat(&mut lab.operator(0).await).await.unwrap();
    lab.operator(1)
        .await
        .prepare(lab.prepare(&job, 1, &manifest))
        .await
        .unwrap();
    Prepared {
        lab,
        job,
        manifest,
        agents,
    }
}

/// A Connect as node 0 would send it, after a change.
fn connect(ticket: SignedTicket) -> ConnectRequest {
    ConnectRequest {
        ticket: Some(ticket),
        wire_version: 1,
        endpoint: None,
        manifest_digest: vec![0; 32],
        algorithm: Algorithm::Blake3.into(),
        link_reason: String::new(),
    }
}

fn refused<T: std::fmt::Debug>(result: Result<T, Status>, expected: &str) {
    let status = result.unwrap_err();
    assert_eq!(reason(&status), expected, "{status:?}");
    assert!(
        status.message().starts_with("node n"),
        "{}",
        status.message()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_is_who_its_certificate_says_and_may_do_only_that() {
    let lab = Lab::new();
    let _agent = lab.agent(0, "").await;
    write(&lab.root(0).join("model"), b"x");
    let _ = lab.operator(0).await;
    for (uri, expected) in [
        ("weft://lab/node/n1", "NotAllowed"),
        ("weft://other/operator", "WrongCertificate"),
        ("weft://lab/Operator", "WrongCertificate"),
        ("https://lab/operator", "WrongCertificate"),
    ] {
        let pair = lab.issue(uri, "x.lab.weft");
        let mut client = lab.client_as(0, &pair).await.unwrap();
        refused(stat(&mut client).await, expected);
    }
    let metrics = lab.get(0, "/metrics").await;
    for counted in [
        r#"weft_refused_total{reason="NotAllowed"} 1"#,
        r#"weft_refused_total{reason="WrongCertificate"} 3"#,
    ] {
        assert!(metrics.contains(counted), "{metrics}");
    }
    // The operator's certificate does not connect data paths.
    let job = job("roles", 1);
    let ticket = lab.ticket(&job, 1, 0, |_| {});
    refused(
        lab.operator(0).await.connect(connect(ticket)).await,
        "NotAllowed",
    );
    // A certificate of another authority does not get as far as a call.
    let other = Lab::new();
    let pair = other.issue("weft://lab/operator", "operator.lab.weft");
    if let Ok(mut client) = lab.client_as(0, &pair).await {
        // The handshake's end is seen with the first call; no agent has answered it.
        let status = stat(&mut client).await.unwrap_err();
        assert!(status.details().is_empty(), "{status:?}");
    }
    // No certificate at all neither.
    let mut plain = std::net::TcpStream::connect(lab.control(0)).unwrap();
    plain
        .write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        .unwrap();
    let mut rest = Vec::new();
    let _ = plain.read_to_end(&mut rest);
    assert!(!rest.starts_with(b"HTTP"), "{rest:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_is_not_the_callers_is_refused_before_it_is_read() {
    let lab = Lab::new();
    let _agent = lab.agent(0, "").await;
    let _ = lab.operator(0).await;
    let pair = lab.issue("weft://lab/node/n1", "n1.lab.weft");
    let mut node = lab.client_as(0, &pair).await.unwrap();
    // More than anybody may send: it must not matter.
    let location = Location {
        root: "data".to_owned(),
        path: "x".repeat(65 << 20),
    };
    let request = StatRequest {
        leader_epoch: 1,
        location: Some(location),
        ..StatRequest::default()
    };
    refused(node.stat(request).await, "NotAllowed");
    // What a node may call has no manifest in it.
    let ticket = SignedTicket {
        ticket: vec![0; 1 << 20],
        signature: Vec::new(),
    };
    let status = node.connect(connect(ticket)).await.unwrap_err();
    assert_eq!(status.code(), Code::OutOfRange, "{status:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ticket_holds_for_its_nodes_its_time_and_its_transfer() {
    let Prepared {
        lab, job: attempt, ..
    } = &prepared("tickets", ["", ""]).await;
    let as_node = |name: &str| lab.issue(&format!("weft://lab/node/{name}"), "x.lab.weft");
    let mut sender = lab.client_as(1, &as_node("n0")).await.unwrap();
    let measure = async |name: &str, ticket| {
        let channel = lab.channel_by(&lab.control(1), 1, &as_node(name)).await;
        let request = MeasureRequest {
            ticket,
            endpoints: Vec::new(),
        };
        LinkMeasurementClient::new(channel.unwrap())
            .measure(request)
            .await
    };
    type Change = fn(&mut Ticket);
    let table: [(&str, Change); 7] = [
        ("TicketExpired", |t| t.expires_unix_s = 1),
        ("TicketOtherNode", |t| t.to_node = "n2".to_owned()),
        ("TicketOtherNode", |t| t.from_node = "n2".to_owned()),
        ("TicketOtherFabric", |t| t.fabric = "other".to_owned()),
        ("TicketOtherTransfer", |t| {
            t.destination.as_mut().unwrap().path = "else".to_owned();
        }),
        ("UnknownAttempt", |t| {
            t.attempt.as_mut().unwrap().uid = "unknown".to_owned();
        }),
        ("TicketOtherTransfer", |t| t.permission = 0),
    ];
    for (expected, change) in table {
        let ticket = lab.ticket(attempt, 0, 1, change);
        refused(measure("n0", Some(ticket.clone())).await, expected);
        refused(sender.connect(connect(ticket)).await, expected);
    }
    let mut forged = lab.ticket(attempt, 0, 1, |_| {});
    forged.signature[0] ^= 1;
    refused(measure("n0", Some(forged.clone())).await, "TicketForged");
    refused(measure("n0", None).await, "BadRequest");
    refused(sender.connect(connect(forged)).await, "TicketForged");
    // A good ticket in the hands of another node.
    let mut thief = lab.client_as(1, &as_node("n2")).await.unwrap();
    let ticket = lab.ticket(attempt, 0, 1, |_| {});
    refused(measure("n2", Some(ticket.clone())).await, "TicketOtherNode");
    refused(thief.connect(connect(ticket)).await, "TicketOtherNode");
}

#[tokio::test(flavor = "multi_thread")]
async fn ends_that_do_not_fit_each_other_are_told_what_differs() {
    let Prepared {
        lab, job: attempt, ..
    } = &prepared("fit", ["", ""]).await;
    let pair = lab.issue("weft://lab/node/n0", "n0.lab.weft");
    let mut sender = lab.client_as(1, &pair).await.unwrap();
    let good = connect(lab.ticket(attempt, 0, 1, |_| {}));
    let other_version = ConnectRequest {
        wire_version: 9,
        ..good.clone()
    };
    refused(sender.connect(other_version).await, "WireVersionDiffers");
    refused(sender.connect(good).await, "ManifestDiffers");
}

#[tokio::test(flavor = "multi_thread")]
async fn other_transport_settings_fail_the_source_and_name_the_setting() {
    let Prepared {
        lab,
        job: attempt,
        manifest,
        ..
    } = &prepared("settings", ["", "transport: {chunk: 16KiB}\n"]).await;
    let child = lab.child(attempt, 0, 1);
    let request = start_source(attempt, manifest, vec![child], Algorithm::Blake3);
    lab.operator(0).await.start(request).await.unwrap();
    let end = lab.finish(0, attempt).await;
    assert_eq!(
        (end.state(), end.reason.as_str()),
        (State::Failed, "PeerRefused"),
        "{end:?}"
    );
    assert!(end.message.contains("SettingsDiffer"), "{}", end.message);
    assert!(end.message.contains("chunk"), "{}", end.message);
    assert!(!end.retriable);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_is_not_there_is_named_with_its_address() {
    let lab = Lab::new();
    let _agent = lab.agent(0, "transport: {stallTimeout: 200ms}\n").await;
    write(&lab.root(0).join("model"), b"x");
    let attempt = job("unreachable", 1);
    let manifest = stat(&mut lab.operator(0).await).await.unwrap();
    let children = vec![lab.child(&attempt, 0, 1)];
    let request = start_source(&attempt, &manifest, children, Algorithm::Blake3);
    lab.operator(0).await.start(request).await.unwrap();
    let end = lab.finish(0, &attempt).await;
    assert_eq!(
        (end.reason.as_str(), end.retriable),
        ("PeerUnreachable", true),
        "{end:?}"
    );
    assert!(end.message.contains(&lab.control(1)), "{}", end.message);
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_of_an_earlier_leader_and_of_earlier_attempts_are_refused() {
    let Prepared {
        lab,
        job: first,
        manifest,
        ..
    } = &prepared("order", ["", ""]).await;
    let mut operator = lab.operator(1).await;
    // The same again is answered the same.
    operator
        .prepare(lab.prepare(first, 1, manifest))
        .await
        .unwrap();
    let other = PrepareRequest {
        overwrite: Overwrite::Never.into(),
        ..lab.prepare(first, 1, manifest)
    };
    refused(operator.prepare(other).await, "ConflictingRequest");
    // A later attempt takes the place of an earlier one.
    let second = job("order", 2);
    operator
        .prepare(lab.prepare(&second, 1, manifest))
        .await
        .unwrap();
    refused(
        operator.prepare(lab.prepare(first, 1, manifest)).await,
        "StaleAttempt",
    );
    let raised = PrepareRequest {
        leader_epoch: 5,
        ..lab.prepare(&second, 1, manifest)
    };
    operator.prepare(raised).await.unwrap();
    refused(
        operator.prepare(lab.prepare(&second, 1, manifest)).await,
        "StaleEpoch",
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_progress_stream_of_an_earlier_leader_ends_when_a_later_one_is_heard() {
    let Prepared { lab, job, .. } = &prepared("deposed", ["", ""]).await;
    let mut stream = lab.follow(1, job).await;
    stream.message().await.unwrap().unwrap();
    let request = StatRequest {
        leader_epoch: 2,
        ..StatRequest::default()
    };
    refused(lab.operator(1).await.stat(request).await, "BadRequest");
    let told = async {
        loop {
            if let Err(status) = stream.message().await {
                return status;
            }
        }
    };
    let told = tokio::time::timeout(DEADLINE, told).await;
    refused::<()>(Err(told.expect("the stream ends")), "StaleEpoch");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_that_vanishes_without_a_word_renews_nothing_any_more() {
    let Prepared {
        lab, job, agents, ..
    } = &prepared("vanished", ["", ""]).await;
    let wire = Wire::to(lab.control(1)).await;
    let pair = lab.issue("weft://lab/operator", "operator.lab.weft");
    let mut operator = lab.client_by(&wire.address, 1, &pair).await.unwrap();
    let request = ProgressRequest {
        attempt: Some(job.clone()),
        leader_epoch: 1,
        interval_ms: 500,
    };
    let mut stream = operator.progress(request).await.unwrap().into_inner();
    stream.message().await.unwrap().unwrap();
    wire.cut();
    let run = agents[1].registry().find(job).unwrap();
    eventually("nobody renews the lease", || async {
        (run.attempt.idle() > Duration::from_secs(3)).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_another_job_is_writing_is_busy() {
    let Prepared { lab, manifest, .. } = &prepared("one", ["", ""]).await;
    let status = lab
        .operator(1)
        .await
        .prepare(lab.prepare(&job("two", 1), 1, manifest))
        .await
        .unwrap_err();
    assert_eq!(reason(&status), "DestinationBusy");
    assert!(status.message().contains("one"), "{}", status.message());
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_requests_name_the_field() {
    let Prepared { lab, manifest, .. } = &prepared("fields", ["", ""]).await;
    let good = lab.prepare(&job("other", 1), 1, manifest);
    type Change = fn(&mut PrepareRequest);
    let table: [(&str, &str, Change); 10] = [
        ("BadRequest", "attempt", |r| r.attempt = None),
        ("BadRequest", "attempt.uid", |r| {
            r.attempt.as_mut().unwrap().uid = "../x".to_owned();
        }),
        ("BadRequest", "attempt.number", |r| {
            r.attempt.as_mut().unwrap().number = 0;
        }),
        ("BadRequest", "location", |r| r.location = None),
        ("UnknownRoot", "nowhere", |r| {
            r.location.as_mut().unwrap().root = "nowhere".to_owned();
        }),
        ("BadPath", "..", |r| {
            r.location.as_mut().unwrap().path = "a/../../b".to_owned();
        }),
        ("BadPath", "/etc", |r| {
            r.location.as_mut().unwrap().path = "/etc".to_owned();
        }),
        ("BadRequest", "overwrite", |r| r.overwrite = 0),
        ("BadRequest", "verification.algorithm", |r| {
            r.verification.as_mut().unwrap().algorithm = 0;
        }),
        ("BadRequest", "verification.expect", |r| {
            r.verification.as_mut().unwrap().expect = "abc".to_owned();
        }),
    ];
    for (expected, named, change) in table {
        let mut request = good.clone();
        change(&mut request);
        let status = lab.operator(1).await.prepare(request).await.unwrap_err();
        assert_eq!(reason(&status), expected, "{status:?}");
        assert!(
            status.message().contains(named),
            "{named}: {}",
            status.message()
        );
    }
}

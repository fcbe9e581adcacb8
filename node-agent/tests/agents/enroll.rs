//! Agents that get certificate and configuration from an operator.

use std::os::unix::fs::PermissionsExt as _;

use weft_proto::Message as _;
use weft_proto::agent::v1::*;
use weft_proto::operator::v1::NodeReport;

use crate::operator::{Operator, TOKEN};
use crate::support::{Lab, eventually, job, noise, reason, stat, write};

/// Whether a report says this.
fn finds(report: &NodeReport, reason: &str) -> bool {
    report.findings.iter().any(|f| f.reason == reason)
}

#[tokio::test(flavor = "multi_thread")]
async fn two_nodes_join_tell_how_they_are_and_move_a_file() {
    let operator = Operator::new(Lab::new());
    let running = operator.serve().await;
    let members = [operator.join(0).await, operator.join(1).await];
    for (node, member) in members.iter().enumerate() {
        let report = operator.ready(node).await;
        assert_eq!(report.interface, "lo");
        assert_eq!(report.data_address, member.settings.address.to_string());
        assert_eq!(report.mtu, 65_535);
        let [nic] = &report.nics[..] else {
            panic!("{:?}", report.nics);
        };
        assert!(nic.up && nic.interface == "lo" && nic.address == report.data_address);
        assert_eq!(report.version, env!("CARGO_PKG_VERSION"));
        assert_eq!(report.ports.map(|p| (p.first, p.count)), Some((7410, 2)));
        assert!(report.certificate_expires_unix_s > 0 && report.findings.is_empty());
    }
    let lab = operator.lab().await;
    write(&lab.root(0).join("model"), &noise(3 << 20, 1));
    for end in lab.run(&job("first", 1), &[(0, 1)]).await {
        assert_eq!(end.state(), State::Verified, "{end:?}");
    }
    for member in members {
        for file in ["node.key", "node.pem", "ca.pem"] {
            let mode = member.state(file).metadata().unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600, "{file}");
        }
        member.stop().await;
    }
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_waits_for_its_operator_and_works_on_while_it_is_away() {
    let operator = Operator::new(Lab::new());
    let members = [operator.join(0).await, operator.join(1).await];
    let status = async |path: &str| {
        let answer = operator.lab().await.get(0, path).await;
        answer.lines().next().unwrap_or_default().to_owned()
    };
    let lab = operator.lab().await;
    let listens = || async { tokio::net::TcpStream::connect(lab.metrics(0)).await.ok() };
    eventually("the lobby listens", listens).await;
    assert!(status("/healthz").await.contains("200"));
    assert!(status("/readyz").await.contains("503"));
    let running = operator.serve().await;
    for node in 0..2 {
        let ready = || async {
            let answer = lab.try_get(node, "/readyz").await.ok();
            answer.filter(|answer| answer.contains("200 OK"))
        };
        eventually("the node is ready", ready).await;
    }
    running.stop().await;
    write(&lab.root(0).join("model"), &noise(3 << 20, 1));
    for end in lab.run(&job("alone", 1), &[(0, 1)]).await {
        assert_eq!(end.state(), State::Verified, "{end:?}");
    }
    assert!(status("/readyz").await.contains("200"));
    // Back again, as after a new leader's election: the nodes report without being asked.
    let before = operator.streams();
    let running = operator.serve().await;
    operator
        .report("a report comes", |report| report.ready)
        .await;
    assert!(operator.streams() > before);
    assert_eq!(
        operator.requests().len(),
        2,
        "no new certificate was needed"
    );
    for member in members {
        member.stop().await;
    }
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_whose_token_is_refused_asks_until_another_one_holds() {
    let operator = Operator::new(Lab::new());
    let lab = operator.lab().await;
    let token = lab.dir.path().join("token0");
    write(&token, b"somebody else's");
    let running = operator.serve().await;
    let member = operator.join(0).await;
    let asked = || async { (operator.requests().len() >= 3).then_some(()) };
    eventually("it asks again", asked).await;
    assert!(lab.get(0, "/readyz").await.contains("503"));
    assert_eq!(operator.streams(), 0);
    assert!(!member.state("node.pem").exists());
    write(&token, format!("{TOKEN}n0").as_bytes());
    operator
        .report("the node is ready", |report| report.ready)
        .await;
    // Another node's token: its certificate is not for this one, and is not taken.
    write(
        &lab.dir.path().join("token1"),
        format!("{TOKEN}n0").as_bytes(),
    );
    let other = operator.join(1).await;
    let before = operator.requests().len();
    let asked = || async { (operator.requests().len() >= before + 2).then_some(()) };
    eventually("it asks again", asked).await;
    assert!(!other.state("node.pem").exists());
    for member in [member, other] {
        member.stop().await;
    }
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_of_another_authority_is_told_nothing() {
    let operator = Operator::new(Lab::new());
    let running = operator.serve().await;
    let stranger = Lab::new();
    let authority = operator.lab().await.dir.path().join("operator-ca.pem");
    // `join` writes the right one when a node joins first.
    operator.join(0).await.stop().await;
    write(&authority, stranger.authority().as_bytes());
    let (asked, before) = (operator.requests().len(), operator.callers());
    let member = operator.join(0).await;
    let tried = || async { (operator.callers() >= before + 2).then_some(()) };
    eventually("it tries again", tried).await;
    let lab = operator.lab().await;
    assert!(lab.get(0, "/readyz").await.contains("503"));
    assert_eq!(operator.requests().len(), asked, "the token stays here");
    write(&authority, lab.authority().as_bytes());
    operator
        .report("the node is ready", |report| report.ready)
        .await;
    member.stop().await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_is_renewed_in_time_for_the_same_key_and_by_a_new_authority_too() {
    let operator = Operator::new(Lab::new());
    let running = operator.serve().await;
    // Two thirds are over.
    operator.set_life(-600..120);
    let member = operator.join(0).await;
    let first = operator
        .report("the node is ready", |report| report.ready)
        .await;
    let key = std::fs::read(member.state("node.key")).unwrap();
    let asked = || async { (operator.requests().len() >= 3).then_some(()) };
    eventually("it asks for the next one", asked).await;
    running.stop().await;
    operator.rotate().await;
    operator.set_life(-60..86_400);
    let running = operator.serve().await;
    // On a stream of its own: whoever answers looks at a certificate when a stream begins.
    let renewed = operator
        .report("the new certificate is told of", |report| {
            report.certificate_expires_unix_s > first.certificate_expires_unix_s + 10_000
        })
        .await;
    assert!(renewed.ready, "{renewed:?}");
    assert_eq!(std::fs::read(member.state("node.key")).unwrap(), key);
    let keys = |pem: &str| {
        rcgen::CertificateSigningRequestParams::from_pem(pem)
            .unwrap()
            .public_key
    };
    let requests = operator.requests();
    let first_key = keys(&requests[0].certificate_request);
    for request in &requests {
        use rcgen::PublicKeyData as _;
        let key = keys(&request.certificate_request);
        assert_eq!(
            key.subject_public_key_info(),
            first_key.subject_public_key_info()
        );
    }
    // The control API takes it up without a restart, and takes the new authority's operator.
    let _ = operator.lab().await.operator(0).await;
    let again = operator.requests().len();
    assert_eq!(again, requests.len(), "the new one is far from its end");
    member.stop().await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_asks_for_another_certificate_when_the_operator_does_not_know_its_own() {
    let operator = Operator::new(Lab::new());
    let running = operator.serve().await;
    let member = operator.join(0).await;
    operator
        .report("the node is ready", |report| report.ready)
        .await;
    let before = std::fs::read(member.state("node.pem")).unwrap();
    running.stop().await;
    // As when its Secret was deleted: what the old authority signed is worth nothing.
    operator.rotate().await;
    let running = operator.serve().await;
    operator
        .report("the node reports again", |report| report.ready)
        .await;
    assert_ne!(std::fs::read(member.state("node.pem")).unwrap(), before);
    // Whoever comes with the new authority's certificate is let in.
    let _ = operator.lab().await.operator(0).await;
    member.stop().await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_running_agent_takes_over_roots_while_a_job_runs_and_keeps_its_engine() {
    let operator = Operator::new(Lab::new());
    let running = operator.serve().await;
    let members = [operator.join(0).await, operator.join(1).await];
    let lab = operator.lab().await;
    for node in 0..2 {
        operator.ready(node).await;
    }
    write(&lab.root(0).join("model"), &noise(3 << 20, 1));
    let manifest = stat(&mut lab.operator(0).await).await.unwrap();
    let waiting = job("waiting", 1);
    let request = lab.prepare(&waiting, 1, &manifest);
    let prepare = async || lab.operator(1).await.prepare(request.clone()).await;
    let prepared = prepare().await.unwrap().into_inner();
    for member in &members {
        std::fs::create_dir(member.settings.roots_dir.join("more")).unwrap();
    }
    let has_more = async |node: usize| {
        let request = StatRequest {
            leader_epoch: 1,
            location: Some(Location {
                root: "more".to_owned(),
                path: String::new(),
            }),
            ..StatRequest::default()
        };
        lab.operator(node).await.stat(request).await
    };
    // It may have that root soon, and says so: nobody has to change anything.
    let refused = has_more(1).await.unwrap_err();
    assert_eq!(reason(&refused), "UnknownRoot");
    let detail = ErrorDetail::decode(refused.details()).unwrap();
    assert!(detail.retriable, "{detail:?}");
    operator.set_engine("2", |engine| engine.ports.as_mut().unwrap().count = 1);
    operator.set_agent(|agent| {
        agent.roots.push(weft_proto::operator::v1::Root {
            name: "more".to_owned(),
            writable: false,
            ..weft_proto::operator::v1::Root::default()
        });
    });
    for node in 0..2 {
        eventually("the agent has the new root", || async {
            has_more(node).await.ok()
        })
        .await;
    }
    // The engine is that of before, and so is the job's place in its root.
    let report = operator.report("it goes on", |report| report.ready).await;
    assert_eq!(
        (report.configuration.as_str(), report.ports.unwrap().count),
        ("1", 2)
    );
    assert!(report.findings.is_empty(), "{report:?}");
    assert_eq!(prepare().await.unwrap().into_inner(), prepared);
    let cancel = CancelRequest {
        attempt: Some(waiting.clone()),
        leader_epoch: 1,
        remove_partials: true,
        release_copies: false,
    };
    lab.operator(1).await.cancel(cancel).await.unwrap();
    let left = std::fs::read_dir(lab.root(1)).unwrap().count();
    assert_eq!(left, 0);
    // Stores are read by what is in force, too.
    let stat_object = async || {
        let request = StatRequest {
            leader_epoch: 1,
            object: Some(ObjectSource {
                url: "http://127.0.0.1:1/model".to_owned(),
                ..ObjectSource::default()
            }),
            ..StatRequest::default()
        };
        reason(&lab.operator(1).await.stat(request).await.unwrap_err())
    };
    assert_eq!(stat_object().await, "StoreForbidden");
    operator.set_agent(|agent| {
        agent.objects = Some(weft_proto::operator::v1::Objects {
            allow_insecure: true,
        });
    });
    eventually("the store is asked", || async {
        (stat_object().await != "StoreForbidden").then_some(())
    })
    .await;
    // The pod of the next process is made for the other.
    let [_, member] = members;
    member.stop().await;
    let member = operator.join(1).await;
    let is_next = |report: &NodeReport| report.ready && report.configuration == "2";
    let report = operator.report("the next one starts", is_next).await;
    assert_eq!(report.ports.unwrap().count, 1);
    // It was told too early what that is.
    operator.set_engine("2", |engine| engine.ports.as_mut().unwrap().count = 2);
    let ended = member.ended().await.unwrap_err();
    assert!(
        ended
            .to_string()
            .contains("has changed since the agent started"),
        "{ended}"
    );
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_has_just_started_obeys_no_leader_before_the_one_it_joined() {
    let operator = Operator::new(Lab::new());
    operator.lead(7);
    let running = operator.serve().await;
    let member = operator.join(0).await;
    operator.ready(0).await;
    let lab = operator.lab().await;
    let stat_of = async |leader_epoch| {
        let request = StatRequest {
            leader_epoch,
            location: Some(Location {
                root: "data".to_owned(),
                path: String::new(),
            }),
            ..StatRequest::default()
        };
        lab.operator(0).await.stat(request).await
    };
    // The first command that it ever gets.
    assert_eq!(reason(&stat_of(6).await.unwrap_err()), "StaleEpoch");
    stat_of(7).await.unwrap();
    // The next leader says so when it is heard of, before it commands anything.
    operator.lead(8);
    let is_refused = || async { stat_of(7).await.err() };
    let refused = eventually("the leader before is refused", is_refused).await;
    assert_eq!(reason(&refused), "StaleEpoch");
    stat_of(8).await.unwrap();
    member.stop().await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_configuration_that_cannot_be_used_is_reported_by_field_and_changes_nothing() {
    let operator = Operator::new(Lab::new());
    let running = operator.serve().await;
    operator.set_engine("1", |engine| engine.ports.as_mut().unwrap().count = 17);
    let member = operator.join(0).await;
    let report = operator
        .report("it says why", |report| finds(report, "ConfigRefused"))
        .await;
    assert!(!report.ready && report.findings[0].message.contains("ports.count"));
    operator.set_engine("1", |engine| {
        engine.ports.as_mut().unwrap().count = 2;
        engine.nics = Some(nics("ib*"));
    });
    let report = operator
        .report("it says why", |report| finds(report, "InterfaceMissing"))
        .await;
    assert!(!report.ready && report.findings[0].message.contains("ib*"));
    operator.set_engine("1", |engine| engine.nics = Some(nics("l*")));
    operator.report("it starts", |report| report.ready).await;
    let egress = |dscp| {
        Some(weft_proto::operator::v1::Egress {
            cap_mbps: 100,
            dscp,
        })
    };
    operator.set_agent(|agent| agent.egress = egress(64));
    let report = operator
        .report("it says why", |report| finds(report, "ConfigRefused"))
        .await;
    assert!(report.ready && report.findings[0].message.contains("transport.dscp"));
    operator.set_agent(|agent| agent.egress = egress(10));
    operator
        .report("it takes that over", |report| {
            report.ready && report.findings.is_empty()
        })
        .await;
    // A root whose directory is not there.
    operator.set_agent(|agent| agent.roots[0].name = "none".to_owned());
    let report = operator
        .report("it says why", |report| finds(report, "RootMissing"))
        .await;
    assert!(report.ready && report.findings[0].message.contains("none"));
    // Nothing to begin with at a node that joins now.
    let other = operator.join(1).await;
    operator
        .report("it says why", |report| {
            !report.ready && finds(report, "RootMissing")
        })
        .await;
    let address = operator.lab().await.control(1);
    let taken = std::net::TcpListener::bind(&address).unwrap();
    operator.set_agent(|agent| agent.roots[0].name = "data".to_owned());
    let report = operator
        .report("it says why", |report| finds(report, "AgentNotStarted"))
        .await;
    assert!(!report.ready && report.findings[0].message.contains(&address));
    drop(taken);
    for (node, member) in [&member, &other].into_iter().enumerate() {
        let data = member.settings.address.to_string();
        operator
            .report("it starts", |report| {
                report.ready && report.findings.is_empty() && report.data_address == data
            })
            .await;
        let answer = operator.lab().await.get(node, "/readyz").await;
        assert!(answer.contains("200 OK"), "{answer}");
    }
    for member in [member, other] {
        member.stop().await;
    }
    running.stop().await;
}

fn nics(include: &str) -> weft_proto::operator::v1::Nics {
    weft_proto::operator::v1::Nics {
        include: vec![include.to_owned()],
        exclude: Vec::new(),
    }
}

//! The list of a source's files: who keeps it, who may have it, and what it is checked against.

use std::os::unix::fs::symlink;
use std::time::{Duration, SystemTime};

use weft_proto::Message as _;
use weft_proto::agent::v1::start_request::Task;
use weft_proto::agent::v1::*;

use crate::support::{Lab, job, model, name_of, noise, reason, start_source, stat, write};

/// What node 0 has at another place than usual.
async fn stat_at(lab: &Lab, path: &str) -> StatResponse {
    let request = StatRequest {
        leader_epoch: 1,
        location: Some(Location {
            path: path.to_owned(),
            ..model().unwrap()
        }),
        ..StatRequest::default()
    };
    let answer = lab.operator(0).await.stat(request).await;
    answer.unwrap().into_inner()
}

#[tokio::test(flavor = "multi_thread")]
async fn many_files_are_listed_in_parts_and_arrive() {
    let lab = Lab::new();
    let _agents = [lab.agent(0, "").await, lab.agent(1, "").await];
    for number in 0..5_000 {
        let path = format!("model/{:02}/a-file-with-number-{number:05}", number % 70);
        write(&lab.root(0).join(path), b"x");
    }
    let listed = stat(&mut lab.operator(0).await).await.unwrap();
    assert_eq!((listed.files, listed.bytes), (5_000, 5_000));
    let ends = lab.run(&job("many", 1), &[(0, 1)]).await;
    assert_eq!(ends[1].state(), State::Verified, "{:?}", ends[1]);
    let last = "model/69/a-file-with-number-04969";
    assert_eq!(std::fs::read(lab.root(1).join(last)).unwrap(), b"x");
}

#[tokio::test(flavor = "multi_thread")]
async fn links_and_times_of_a_source_arrive_at_every_node_of_a_chain() {
    let lab = Lab::new();
    let _agents = [
        lab.agent(0, "").await,
        lab.agent(1, "").await,
        lab.agent(2, "").await,
    ];
    let (weights, revision) = (noise(3 << 20, 1), lab.root(0).join("model/snapshots/r"));
    write(&lab.root(0).join("model/blobs/f00"), &weights);
    std::fs::create_dir_all(&revision).unwrap();
    symlink("../../blobs/f00", revision.join("weights")).unwrap();
    write(&lab.root(0).join("shared/config"), b"{}");
    symlink("../../../shared/config", revision.join("config")).unwrap();
    let file = std::fs::File::options()
        .write(true)
        .open(revision.join("weights"));
    let long_ago = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    file.unwrap().set_modified(long_ago).unwrap();
    let listed = stat(&mut lab.operator(0).await).await.unwrap();
    assert_eq!((listed.files, listed.bytes), (2, (3 << 20) + 2));
    let ends = lab.run(&job("linked", 1), &[(0, 1), (1, 2)]).await;
    for (node, end) in ends.iter().enumerate().skip(1) {
        assert_eq!(end.state(), State::Verified, "{end:?}");
        let copy = lab.root(node).join("model/snapshots/r");
        let text = std::fs::read_link(copy.join("weights")).unwrap();
        assert_eq!(text.to_str(), Some("../../blobs/f00"));
        assert_eq!(std::fs::read(copy.join("weights")).unwrap(), weights);
        let there = std::fs::metadata(copy.join("weights")).unwrap();
        assert_eq!(there.modified().unwrap(), long_ago);
        assert!(!copy.join("config").is_symlink());
        assert_eq!(std::fs::read(copy.join("config")).unwrap(), b"{}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_link_leads_a_job_out_of_its_namespaces_directory() {
    let lab = Lab::new();
    let _agent = lab.agent(0, "").await;
    write(&lab.root(0).join("team-b/secret"), b"x");
    write(&lab.root(0).join("team-a/model/weights"), b"x");
    symlink("../../team-b/secret", lab.root(0).join("team-a/model/l")).unwrap();
    symlink("../team-b", lab.root(0).join("team-a/all")).unwrap();
    let list = async |path: &str, namespace: &str, symlinks: Symlinks| {
        let request = StatRequest {
            leader_epoch: 1,
            location: Some(Location {
                path: path.to_owned(),
                ..model().unwrap()
            }),
            job_name: Some(JobName {
                namespace: namespace.to_owned(),
                name: "minilm".to_owned(),
                namespace_uid: String::new(),
            }),
            symlinks: symlinks.into(),
            ..StatRequest::default()
        };
        lab.operator(0).await.stat(request).await
    };
    for path in [
        "team-a/model",
        "team-a/model/l",
        "team-a/all",
        "team-a/all/secret",
    ] {
        let refused = list(path, "team-a", Symlinks::Follow).await.unwrap_err();
        assert_eq!(reason(&refused), "SymlinkRefused", "{path}: {refused}");
    }
    // A source in no namespace's directory has the root for itself, and who follows links says so.
    assert!(
        list("team-a/model", "team-c", Symlinks::Follow)
            .await
            .is_ok()
    );
    for symlinks in [Symlinks::Refuse, Symlinks::Unspecified] {
        let refused = list("team-a/model", "team-c", symlinks).await.unwrap_err();
        assert_eq!(reason(&refused), "SymlinkRefused");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_sources_with_the_same_names_and_sizes_each_has_its_own_times() {
    let lab = Lab::new();
    let _agent = lab.agent(0, "").await;
    let mut listings = Vec::new();
    for (source, seconds) in [("a", 1_000), ("b", 2_000)] {
        let path = format!("{source}/model");
        write(&lab.root(0).join(&path), b"x");
        let file = std::fs::File::options()
            .write(true)
            .open(lab.root(0).join(&path));
        let time = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        file.unwrap().set_modified(time).unwrap();
        listings.push((stat_at(&lab, &path).await, seconds));
    }
    assert_eq!(listings[0].0.manifest_digest, listings[1].0.manifest_digest);
    let pair = lab.issue("weft://lab/node/n1", "x.lab.weft");
    let mut client = lab.client_as(0, &pair).await.unwrap();
    let attempt = job("times", 1);
    for (listed, seconds) in &listings {
        let request = FetchManifestRequest {
            ticket: Some(lab.fetching(&attempt, 1, listed)),
            fingerprint: listed.fingerprint.clone(),
        };
        let parts = client.fetch_manifest(request).await.unwrap();
        let part = parts.into_inner().message().await.unwrap().unwrap();
        let modified_ns = i64::try_from(seconds * 1_000_000_000).unwrap();
        assert_eq!(part.entries[0].modified_ns, modified_ns);
    }
    // One that is not there is not another one.
    let request = FetchManifestRequest {
        ticket: Some(lab.fetching(&attempt, 1, &listings[0].0)),
        fingerprint: vec![7; 32],
    };
    let refused = client.fetch_manifest(request).await.unwrap_err();
    assert_eq!(reason(&refused), "ManifestUnknown");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_manifest_is_given_for_a_ticket_that_names_node_and_manifest_only() {
    let lab = Lab::new();
    let _agent = lab.agent(0, "").await;
    write(&lab.root(0).join("model"), b"x");
    let attempt = job("tickets", 1);
    let listed = stat(&mut lab.operator(0).await).await.unwrap();
    let fetch = async |node: &str, ticket: SignedTicket| {
        let pair = lab.issue(&format!("weft://lab/node/{node}"), "x.lab.weft");
        let mut client = lab.client_as(0, &pair).await.unwrap();
        let request = FetchManifestRequest {
            ticket: Some(ticket),
            fingerprint: Vec::new(),
        };
        let mut parts = client.fetch_manifest(request).await?.into_inner();
        Ok::<_, tonic::Status>(parts.message().await?.unwrap())
    };
    let good = lab.fetching(&attempt, 1, &listed);
    let part = fetch("n1", good.clone()).await.unwrap();
    assert_eq!(part.entries[0].path, "model");
    let of = |ticket: SignedTicket, change: fn(&mut Ticket)| {
        let ticket = Ticket::decode(ticket.ticket.as_slice()).unwrap();
        lab.ticket(&attempt, 1, 0, |it| {
            *it = ticket;
            change(it);
        })
    };
    let forged = SignedTicket {
        signature: vec![0; 64],
        ..good.clone()
    };
    for (node, ticket, expected) in [
        ("n2", good.clone(), "TicketOtherNode"),
        ("n1", forged, "TicketForged"),
        (
            "n1",
            lab.ticket(&attempt, 1, 0, |_| {}),
            "TicketOtherTransfer",
        ),
        (
            "n1",
            of(good.clone(), |it| it.expires_unix_s = 1),
            "TicketExpired",
        ),
        (
            "n1",
            of(good.clone(), |it| it.manifest_digest = vec![7; 32]),
            "ManifestUnknown",
        ),
    ] {
        let refused = fetch(node, ticket).await.unwrap_err();
        assert_eq!(reason(&refused), expected, "{refused:?}");
    }
    // Nor does it let anybody write, and the operator needs none.
    let connect = ConnectRequest {
        ticket: Some(good.clone()),
        wire_version: 1,
        ..ConnectRequest::default()
    };
    let pair = lab.issue("weft://lab/node/n1", "x.lab.weft");
    let mut node = lab.client_as(0, &pair).await.unwrap();
    let refused = node.connect(connect).await.unwrap_err();
    assert_eq!(reason(&refused), "TicketOtherTransfer");
    let request = FetchManifestRequest {
        ticket: Some(good),
        fingerprint: Vec::new(),
    };
    let refused = lab.operator(0).await.fetch_manifest(request).await;
    assert_eq!(reason(&refused.unwrap_err()), "NotAllowed");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_destination_takes_no_other_manifest_than_the_operator_named() {
    let lab = Lab::new();
    let _agents = [lab.agent(0, "").await, lab.agent(1, "").await];
    write(&lab.root(0).join("model"), b"x");
    write(&lab.root(0).join("other"), b"four");
    let listed = stat(&mut lab.operator(0).await).await.unwrap();
    let other = stat_at(&lab, "other").await;
    let attempt = job("named", 1);
    let mut request = lab.prepare(&attempt, 1, &listed);
    let holder = request.manifest_from.as_mut().unwrap();
    holder.ticket = Some(lab.fetching(&attempt, 1, &other));
    // The holder sends what the ticket names, and no other listing than that asked for.
    request.fingerprint.clone_from(&other.fingerprint);
    let refused = lab.operator(1).await.prepare(request).await.unwrap_err();
    assert_eq!(reason(&refused), "ManifestNotFetched", "{refused:?}");
    assert!(refused.message().contains("another list"), "{refused:?}");
    // The next attempt may ask another agent.
    let detail = ErrorDetail::decode(refused.details()).unwrap();
    assert!(detail.retriable, "{detail:?}");
    assert_eq!(std::fs::read_dir(lab.root(1)).unwrap().count(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_was_restarted_has_lost_the_list_and_the_next_attempt_brings_it_back() {
    let lab = Lab::new();
    let first = lab.agent(0, "").await;
    let _destination = lab.agent(1, "").await;
    write(&lab.root(0).join("model"), &noise(1 << 20, 3));
    let listed = stat(&mut lab.operator(0).await).await.unwrap();
    first.stop().await;
    let _second = lab.agent(0, "").await;
    // Both ends need it: the one that is to fetch it, and the one that is to read the files.
    let attempt = job("restarted", 1);
    let request = lab.prepare(&attempt, 1, &listed);
    let refused = lab.operator(1).await.prepare(request).await.unwrap_err();
    assert!(refused.message().contains("ManifestUnknown"), "{refused:?}");
    let children = vec![lab.child(&attempt, 0, 1)];
    let start = start_source(&attempt, &listed, children, Algorithm::Blake3);
    let other = lab.operator(0).await.start(start).await.unwrap_err();
    assert_eq!(reason(&other), "ManifestUnknown");
    for refused in [&refused, &other] {
        assert!(ErrorDetail::decode(refused.details()).unwrap().retriable);
    }
    let ends = lab.run(&job("restarted", 2), &[(0, 1)]).await;
    assert_eq!(ends[1].state(), State::Verified, "{:?}", ends[1]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_source_that_was_written_to_has_another_state_and_one_that_was_read_has_not() {
    let lab = Lab::new();
    let _agent = lab.agent(0, "").await;
    let file = lab.root(0).join("model/a");
    write(&file, b"one");
    write(&lab.root(0).join("model/b"), b"two");
    let before = stat(&mut lab.operator(0).await).await.unwrap();
    std::fs::read(&file).unwrap();
    // A file that came and went leaves the directory's times only.
    write(&lab.root(0).join("model/c"), b"three");
    std::fs::remove_file(lab.root(0).join("model/c")).unwrap();
    assert_eq!(stat(&mut lab.operator(0).await).await.unwrap(), before);
    let times = std::fs::FileTimes::new().set_modified(std::time::UNIX_EPOCH);
    std::fs::File::open(&file)
        .unwrap()
        .set_times(times)
        .unwrap();
    let after = stat(&mut lab.operator(0).await).await.unwrap();
    assert_eq!(after.manifest_digest, before.manifest_digest);
    assert_ne!(after.fingerprint, before.fingerprint);
}

#[tokio::test(flavor = "multi_thread")]
async fn of_a_copy_only_what_its_manifest_names_is_listed_and_sent() {
    let lab = Lab::new();
    let _agents = [
        lab.agent(0, "").await,
        lab.agent(1, "").await,
        lab.agent(2, "").await,
    ];
    write(&lab.root(0).join("model/weights"), &noise(2 << 20, 4));
    write(&lab.root(0).join("model/sub/config"), b"{}");
    let first = job("first", 1);
    let ends = lab.run(&first, &[(0, 1)]).await;
    assert_eq!(ends[1].state(), State::Verified, "{:?}", ends[1]);
    write(&lab.root(1).join("model/adapter"), b"of somebody else");
    let named = stat(&mut lab.operator(0).await).await.unwrap();
    let list = |digest: Vec<u8>| StatRequest {
        leader_epoch: 1,
        location: model(),
        manifest_digest: digest,
        ..StatRequest::default()
    };
    let mut copy = lab.operator(1).await;
    let request = list(named.manifest_digest.clone());
    let listed = copy.stat(request.clone()).await.unwrap().into_inner();
    assert_eq!(listed.manifest_digest, named.manifest_digest);
    assert_eq!((listed.files, listed.bytes), (named.files, named.bytes));

    let attempt = job("passed-on", 1);
    let prepare = PrepareRequest {
        manifest_from: Some(ManifestHolder {
            node: "n1".to_owned(),
            control_address: lab.control(1),
            ticket: Some(lab.ticket(&attempt, 2, 1, |ticket| {
                ticket.permission = Permission::FetchManifest.into();
                ticket.manifest_digest.clone_from(&listed.manifest_digest);
            })),
        }),
        ..lab.prepare(&attempt, 2, &listed)
    };
    lab.operator(2).await.prepare(prepare).await.unwrap();
    let start = StartRequest {
        attempt: Some(attempt.clone()),
        leader_epoch: 1,
        job_name: name_of(&attempt),
        task: Some(Task::Destination(DestinationTask { object: None })),
        sends_to: Vec::new(),
    };
    lab.operator(2).await.start(start).await.unwrap();
    let children = vec![lab.child(&attempt, 1, 2)];
    let start = start_source(&attempt, &listed, children, Algorithm::Blake3);
    copy.start(start).await.unwrap();
    let end = lab.finish(2, &attempt).await;
    assert_eq!(end.state(), State::Verified, "{end:?}");
    assert!(!lab.root(2).join("model/adapter").exists());

    write(&lab.root(1).join("model/sub/config"), b"other");
    let refused = copy.stat(request).await.unwrap_err();
    assert_eq!(reason(&refused), "SourceChanged");
    let refused = copy.stat(list(vec![9; 32])).await.unwrap_err();
    assert_eq!(reason(&refused), "ManifestUnknown");
}

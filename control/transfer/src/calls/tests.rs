use std::sync::Arc;

use tokio::{
    sync::mpsc::{UnboundedReceiver, unbounded_channel},
    task::JoinSet,
    time::Instant,
};
use weft_identity::authority::Authority;
use weft_planner::Topology;
use weft_proto::Message as _;

use super::*;
use crate::{
    Tempo,
    stand_in::{self, StandIn},
};

fn spec(report: Duration) -> Spec {
    let tempo = Tempo {
        report,
        ..Tempo::PERSON
    };
    stand_in::spec(Topology::default(), tempo)
}

/// What is heard of a node that has so many reports at once.
async fn following(node: &StandIn, authority: Arc<Authority>, report: Duration) -> Heard {
    let (answers, heard) = unbounded_channel();
    let contacts = std::slice::from_ref(&node.contact);
    let calls = Calls::new(spec(report), Channels::new(authority), contacts, answers);
    let mut tasks = JoinSet::new();
    tasks.spawn(async move { calls.follow("n1".to_owned(), 1).await });
    Heard { heard, tasks }
}

struct Heard {
    heard: UnboundedReceiver<Box<Answer>>,
    /// Ends with this.
    tasks: JoinSet<()>,
}

impl Heard {
    /// The number of the next report.
    async fn next(&mut self) -> u64 {
        assert!(!self.tasks.is_empty());
        match *self.heard.recv().await.unwrap() {
            Answer::Progress { report, .. } => report.bytes,
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn an_agent_that_floods_is_heard_at_its_pace_and_keeps_the_rest_to_itself() {
    let authority = Arc::new(Authority::new("lab").unwrap());
    let node = StandIn::start(&authority, "n1").await;
    node.flood(u64::MAX);
    let report = Duration::from_millis(200);
    let began = Instant::now();
    let mut heard = following(&node, authority, report).await;
    let mut last = heard.next().await;
    for _ in 1..32 {
        let next = heard.next().await;
        assert!(next > last, "{next} after {last}");
        last = next;
    }
    // 16 at once, and as many more that have to wait for 50 ms each.
    assert!(began.elapsed() >= 4 * report, "{:?}", began.elapsed());
    // Beside what was read: what is in the window, and in what libraries hold at the other end.
    let intervals = began.elapsed().as_millis() / report.as_millis() + 1;
    let read = 256 + 64 * usize::try_from(intervals).unwrap();
    assert!(
        node.told() < 2 * read + 1000,
        "{} in {intervals}",
        node.told()
    );
}

#[tokio::test]
async fn the_last_of_a_bunch_of_reports_is_heard_though_nothing_comes_after_it() {
    let authority = Arc::new(Authority::new("lab").unwrap());
    let node = StandIn::start(&authority, "n1").await;
    node.flood(200);
    // In the time that the test takes there is room for a tenth of them.
    let report = Duration::from_millis(500);
    let mut heard = following(&node, authority, report).await;
    let mut count = 1;
    while heard.next().await < 199 {
        count += 1;
    }
    assert!(count < 100, "{count}");
}

#[tokio::test]
async fn a_destination_is_told_who_has_the_manifest_with_a_ticket_for_that_one_only() {
    let authority = Arc::new(Authority::new("lab").unwrap());
    let node = StandIn::start(&authority, "n1").await;
    let source = Contact {
        node: "n0".to_owned(),
        address: "192.0.2.1:7400".to_owned(),
    };
    let (answers, _heard) = unbounded_channel();
    let contacts = [node.contact.clone(), source];
    let calls = Calls::new(
        spec(Duration::from_secs(1)),
        Channels::new(authority),
        &contacts,
        answers,
    );
    // The second time it has listed the files itself.
    for holder in ["n0", "n1"] {
        let command = Command::Prepare {
            node: "n1".to_owned(),
            attempt: 1,
        };
        let listing = Listing {
            node: holder.to_owned(),
            found: StatResponse {
                manifest_digest: vec![7; 32],
                ..StatResponse::default()
            },
        };
        let permits = watch::channel(u32::MAX).1;
        calls.carry_out(command, Some(listing), permits).await;
    }
    let prepared = node.prepared();
    assert!(prepared.iter().all(|it| it.manifest_digest == [7; 32]));
    let [fetches, has] = prepared.as_slice() else {
        panic!("{} calls", prepared.len());
    };
    assert_eq!(has.manifest_from, None);
    let holder = fetches.manifest_from.clone().unwrap();
    assert_eq!(
        (&*holder.node, &*holder.control_address),
        ("n0", "192.0.2.1:7400")
    );
    let ticket = Ticket::decode(&*holder.ticket.unwrap().ticket).unwrap();
    assert_eq!(ticket.direction(), Direction::FetchManifest);
    assert_eq!((&*ticket.from_node, &*ticket.to_node), ("n1", "n0"));
    assert_eq!(ticket.manifest_digest, [7; 32]);
    assert_eq!(ticket.job, fetches.job);
}

use std::sync::Arc;

use tokio::{
    sync::mpsc::{UnboundedReceiver, unbounded_channel},
    task::JoinSet,
    time::Instant,
};
use weft_identity::authority::Authority;
use weft_planner::Topology;

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

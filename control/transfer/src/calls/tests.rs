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
    endpoint::AgentEndpoint,
    spec::Timing,
    tests::stand_in::{self, StandIn},
};

fn spec(progress_interval: Duration) -> Spec {
    let timing = Timing {
        progress_interval,
        ..Timing::INTERACTIVE
    };
    stand_in::spec(Topology::default(), timing)
}

fn context(
    authority: Arc<Authority>,
    endpoints: &[AgentEndpoint],
    inputs: InputSender,
    spec: Spec,
) -> CallContext {
    let pool = ConnectionPool::new(authority);
    CallContext {
        agents: Arc::new(pool.agents(endpoints)),
        pool,
        inputs,
        spec: Arc::new(spec),
        listing: None,
    }
}

/// What the runner gets of a node that has so many reports at once.
async fn following(node: &StandIn, authority: Arc<Authority>, interval: Duration) -> Heard {
    let (inputs, heard) = unbounded_channel();
    let endpoints = std::slice::from_ref(&node.endpoint);
    let context = context(authority, endpoints, inputs, spec(interval));
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let _ = context.watch_progress("n1", 1).await;
    });
    Heard { heard, tasks }
}

struct Heard {
    heard: UnboundedReceiver<Box<Input>>,
    /// Ends with this.
    tasks: JoinSet<()>,
}

impl Heard {
    /// The number of the next message.
    async fn next(&mut self) -> u64 {
        assert!(!self.tasks.is_empty());
        match *self.heard.recv().await.unwrap() {
            Input::Progress { progress, .. } => progress.bytes,
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn of_an_agent_that_floods_four_reports_are_passed_on_in_an_interval_and_the_rest_stays_there()
 {
    let authority = Arc::new(Authority::new("lab").unwrap());
    let node = StandIn::start(&authority, "n1").await;
    node.flood(u64::MAX);
    let interval = Duration::from_millis(200);
    let began = Instant::now();
    let mut heard = following(&node, authority, interval).await;
    let mut last = heard.next().await;
    for _ in 1..16 {
        let next = heard.next().await;
        assert!(next > last && next <= last + 64, "{next} after {last}");
        last = next;
    }
    assert!(began.elapsed() >= 3 * interval, "{:?}", began.elapsed());
    // Beside what was read: what is in the window, and in what libraries hold at the other end.
    let intervals = began.elapsed().as_millis() / interval.as_millis() + 1;
    let read = 4 * 64 * usize::try_from(intervals).unwrap();
    assert!(node.told() < read + 1000, "{} in {intervals}", node.told());
}

/// An agent that reports as often as it was asked to, or seldom, is heard at once.
#[tokio::test]
async fn a_report_that_comes_in_time_is_passed_on_at_once() {
    let authority = Arc::new(Authority::new("lab").unwrap());
    let node = StandIn::start(&authority, "n1").await;
    // A quarter of it is more than the test may take.
    let interval = Duration::from_secs(600);
    let mut heard = following(&node, authority, interval).await;
    assert_eq!(heard.next().await, 0);
}

#[tokio::test]
async fn the_first_report_that_a_node_has_finished_is_passed_on_at_once() {
    let authority = Arc::new(Authority::new("lab").unwrap());
    let node = StandIn::start(&authority, "n1").await;
    node.flood_and_finish(20);
    let interval = Duration::from_secs(600);
    let mut heard = following(&node, authority, interval).await;
    // The first of all, and the one that says so.
    let mut last = 0;
    while last < 20 {
        last = heard.next().await;
    }
}

#[tokio::test]
async fn a_cancel_that_ends_a_job_is_repeated_until_its_node_confirms_or_is_given_up() {
    let authority = Arc::new(Authority::new("lab").unwrap());
    let node = StandIn::start(&authority, "n1").await;
    let (inputs, _heard) = unbounded_channel();
    let endpoints = std::slice::from_ref(&node.endpoint);
    let mut spec = spec(Duration::from_secs(1));
    spec.timing.backoff = Duration::from_millis(1);
    let context = context(authority, endpoints, inputs, spec);
    let cancel = |is_repeated| Call::Cancel {
        cleanup: Cleanup::Partials,
        is_repeated,
    };
    node.fail_cancels(2);
    context.call("n1", 1, &cancel(true)).await.unwrap();
    assert_eq!(node.cancels(), 3);

    node.fail_cancels(10);
    context.call("n1", 1, &cancel(true)).await.unwrap_err();
    assert_eq!(node.cancels(), 1 + CANCEL_REPEATS);
    context.call("n1", 1, &cancel(false)).await.unwrap_err();
    assert_eq!(node.cancels(), 1);
    // There is no agent to confirm it.
    context.call("n2", 1, &cancel(true)).await.unwrap_err();
}

#[tokio::test]
async fn the_last_of_a_bunch_of_reports_is_heard_though_nothing_comes_after_it() {
    let authority = Arc::new(Authority::new("lab").unwrap());
    let node = StandIn::start(&authority, "n1").await;
    node.flood(200);
    // In the time that the test takes there is room for a tenth of them.
    let interval = Duration::from_millis(500);
    let mut heard = following(&node, authority, interval).await;
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
    let source = AgentEndpoint {
        node: "n0".to_owned(),
        address: "192.0.2.1:7400".to_owned(),
    };
    let (inputs, _heard) = unbounded_channel();
    let endpoints = [node.endpoint.clone(), source];
    let mut context = context(authority, &endpoints, inputs, spec(Duration::from_secs(1)));
    // The second time it has listed the files itself.
    for holder in ["n0", "n1"] {
        context.listing = Some(SourceListing {
            holder: holder.to_owned(),
            stat: StatResponse {
                manifest_digest: vec![7; 32],
                ..StatResponse::default()
            },
        });
        context.call("n1", 1, &Call::Prepare).await.unwrap();
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
    assert_eq!(ticket.permission(), Permission::FetchManifest);
    assert_eq!((&*ticket.from_node, &*ticket.to_node), ("n1", "n0"));
    assert_eq!(ticket.manifest_digest, [7; 32]);
    assert_eq!(ticket.attempt, fetches.attempt);
}

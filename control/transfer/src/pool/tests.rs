use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use futures::{StreamExt as _, future::join_all};
use tokio::{
    net::TcpListener,
    time::{Instant, timeout},
};
use tonic::Streaming;
use weft_proto::agent::v1::{CancelRequest, CancelResponse, ProgressRequest, ProgressResponse};

use super::*;
use crate::{
    failure::{Failure, is_of_connection},
    tests::stand_in::StandIn,
    tls::CONNECT_WITHIN,
};

/// What takes so long never happens.
const NEVER: Duration = Duration::from_secs(30);

fn authority() -> Arc<Authority> {
    Arc::new(Authority::new("lab").unwrap())
}

async fn cancel(agent: &AgentHandle) -> Result<(), Failure> {
    let request = CancelRequest::default();
    let call = agent.call(&request, |mut client, request| async move {
        client.cancel(request).await
    });
    let answer: CancelResponse = call.await?;
    assert_eq!(answer, CancelResponse::default());
    Ok(())
}

async fn follow(agent: &AgentHandle) -> Streaming<ProgressResponse> {
    let request = ProgressRequest::default();
    let call = agent.call(&request, |mut client, request| async move {
        client.progress(request).await
    });
    call.await.unwrap()
}

/// The next message's number.
async fn next(stream: &mut Streaming<ProgressResponse>) -> u64 {
    let message = timeout(NEVER, stream.message()).await;
    message.expect("it comes").unwrap().unwrap().bytes
}

#[tokio::test]
async fn all_calls_of_all_jobs_go_over_one_connection_and_each_is_given_up_alone() {
    let authority = authority();
    let mut node = StandIn::start(&authority, "n1").await;
    let pool = ConnectionPool::new(Arc::clone(&authority));
    // Each job has its own.
    let jobs: Vec<AgentHandle> = (0..100).map(|_| pool.agent(&node.endpoint)).collect();
    for called in join_all(jobs.iter().map(cancel)).await {
        called.unwrap();
    }
    let mut streams = join_all(jobs.iter().map(follow)).await;
    let mut last = streams.pop().unwrap();
    assert_eq!(next(&mut last).await, 0);
    drop(streams);
    for beat in 1..=3 {
        node.beat();
        assert_eq!(next(&mut last).await, beat);
    }
    cancel(&jobs[0]).await.unwrap();
    assert_eq!(node.connections(), 1);
    node.kill().await;
    let ended = timeout(NEVER, last.message()).await.expect("it ends");
    assert!(is_of_connection(&ended.unwrap_err()));
}

#[tokio::test]
async fn an_agent_that_was_restarted_is_called_again_at_once() {
    let authority = authority();
    let mut node = StandIn::start(&authority, "n1").await;
    let pool = ConnectionPool::new(Arc::clone(&authority));
    let (one, other) = (pool.agent(&node.endpoint), pool.agent(&node.endpoint));
    let mut stream = follow(&one).await;
    assert_eq!(next(&mut stream).await, 0);
    for times in 2..=4 {
        node.restart(&authority).await;
        for called in join_all([&one, &other, &one, &other].map(cancel)).await {
            called.unwrap();
        }
        assert_eq!(node.connections(), times);
    }
    assert!(stream.message().await.is_err());
}

#[tokio::test]
async fn calls_that_begin_with_a_new_certificate_leave_those_of_the_old_one_alone() {
    let authority = authority();
    let node = StandIn::start(&authority, "n1").await;
    // Every call finds the one before it too old.
    let pool = ConnectionPool::with(
        Arc::clone(&authority),
        Certificates::used_for(Duration::ZERO),
    );
    let agent = pool.agent(&node.endpoint);
    let mut stream = follow(&agent).await;
    assert_eq!(next(&mut stream).await, 0);
    for beat in 1..=3 {
        cancel(&agent).await.unwrap();
        node.beat();
        assert_eq!(next(&mut stream).await, beat);
    }
    assert_eq!(node.connections(), 4);
}

#[tokio::test]
async fn a_certificate_is_used_until_two_thirds_of_its_life_are_over() {
    tokio::time::pause();
    let (certificates, authority) = (Certificates::default(), authority());
    let current = |fabric| {
        let authority = authority.of_fabric(fabric);
        certificates.current(&authority).unwrap().number
    };
    let first = current("lab");
    assert_eq!(current("lab"), first);
    let other = current("other");
    assert_ne!(other, first);
    tokio::time::advance(Duration::from_secs(16 * 3600 - 1)).await;
    assert_eq!(current("lab"), first);
    tokio::time::advance(Duration::from_secs(2)).await;
    assert!(current("lab") > other);
}

/// Takes connections and says nothing; counts them.
async fn silent() -> (AgentEndpoint, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let count = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&count);
    tokio::spawn(async move {
        let mut held = Vec::new();
        while let Ok(caller) = listener.accept().await {
            counted.fetch_add(1, Ordering::Relaxed);
            held.push(caller);
        }
    });
    let node = "n1".to_owned();
    (AgentEndpoint { node, address }, count)
}

#[tokio::test]
async fn all_who_wait_for_an_agent_that_does_not_answer_share_one_try() {
    let (endpoint, tries) = silent().await;
    let pool = ConnectionPool::new(authority());
    let jobs: Vec<AgentHandle> = (0..100).map(|_| pool.agent(&endpoint)).collect();
    let began = Instant::now();
    for called in join_all(jobs.iter().map(cancel)).await {
        assert_eq!(called.unwrap_err().reason, "NodeNeverReached");
    }
    // One after the other it would be a hundred times as long.
    assert!(
        began.elapsed() < 20 * CONNECT_WITHIN,
        "{:?}",
        began.elapsed()
    );
    assert_eq!(tries.load(Ordering::Relaxed), 1);
    // Who comes later tries again.
    cancel(&jobs[0]).await.unwrap_err();
    assert_eq!(tries.load(Ordering::Relaxed), 2);
}

#[tokio::test]
async fn an_agent_that_a_caller_has_reached_is_unreachable_for_all_callers() {
    let authority = authority();
    let mut node = StandIn::start(&authority, "n1").await;
    let pool = ConnectionPool::new(Arc::clone(&authority));
    let first = pool.agent(&node.endpoint);
    cancel(&first).await.unwrap();
    node.kill().await;
    let later = pool.agent(&node.endpoint);
    for _ in 0..2 {
        let failure = cancel(&later).await.unwrap_err();
        assert_eq!(failure.reason, "NodeUnreachable");
        assert!(failure.retriable && !failure.never_connected());
    }
    node.restart(&authority).await;
    cancel(&later).await.unwrap();
    // What listens there now is another node.
    let other = AgentEndpoint {
        node: "n2".to_owned(),
        ..node.endpoint.clone()
    };
    let failure = cancel(&pool.agent(&other)).await.unwrap_err();
    assert_eq!(failure.reason, "NodeNeverReached");
}

#[tokio::test]
async fn an_address_that_is_none_is_a_refusal_of_its_node() {
    let pool = ConnectionPool::new(authority());
    for address in [
        "",
        "n1",
        "n1:",
        "n1:99999",
        "a@n1:7400",
        "n1:7400/x",
        "n 1:7400",
    ] {
        let endpoint = AgentEndpoint {
            node: "n1".to_owned(),
            address: address.to_owned(),
        };
        let failure = cancel(&pool.agent(&endpoint)).await.unwrap_err();
        assert_eq!(
            (&*failure.node, &*failure.reason),
            ("n1", "AddressUnusable")
        );
        assert!(failure.message.contains(address) && failure.never_connected());
        let has_none = failure.message.contains("no address yet");
        assert_eq!(has_none, address.is_empty(), "{}", failure.message);
    }
}

#[tokio::test]
async fn a_connection_ends_with_the_last_of_its_callers() {
    let authority = authority();
    let node = StandIn::start(&authority, "n1").await;
    let pool = ConnectionPool::new(Arc::clone(&authority));
    let one = pool.agent(&node.endpoint);
    cancel(&one).await.unwrap();
    let other = pool.agent(&node.endpoint);
    drop(one);
    cancel(&other).await.unwrap();
    assert_eq!(node.connections(), 1);
    drop(other);
    cancel(&pool.agent(&node.endpoint)).await.unwrap();
    assert_eq!(node.connections(), 2);
    // Nothing is kept of agents that are called no more.
    let elsewhere = AgentEndpoint {
        node: "n2".to_owned(),
        ..node.endpoint.clone()
    };
    let _agent = pool.agent(&elsewhere);
    assert_eq!(pool.connectors.lock().unwrap().len(), 1);
}

#[tokio::test]
async fn a_page_of_metrics_without_an_end_is_given_up() {
    let authority = authority();
    let node = StandIn::start(&authority, "n1").await;
    let pool = ConnectionPool::new(authority);
    let read = crate::read_metrics(Default::default(), &pool, &node.endpoint).await;
    let parts: Vec<_> = read.unwrap().collect().await;
    let (last, parts) = parts.split_last().unwrap();
    assert_eq!(parts.len(), 256);
    assert!(parts.iter().all(Result::is_ok));
    let failure = last.as_ref().unwrap_err();
    assert_eq!(failure.reason, "PageTooLarge");
    assert!(
        failure.message.starts_with("node n1: "),
        "{}",
        failure.message
    );
}

#[tokio::test]
async fn a_second_reader_of_an_agents_metrics_is_refused_while_the_first_reads() {
    let authority = authority();
    let (node, other) = (
        StandIn::start(&authority, "n1").await,
        StandIn::start(&authority, "n2").await,
    );
    let pool = ConnectionPool::new(authority);
    let read =
        async |at: &StandIn| crate::read_metrics(Default::default(), &pool, &at.endpoint).await;
    let first = read(&node).await.unwrap();
    let refused = read(&node).await.map(drop).unwrap_err();
    assert_eq!(refused.reason, crate::PAGE_UNDER_WAY);
    assert!(
        refused.message.ends_with("; try again"),
        "{}",
        refused.message
    );
    // Jobs go on beside it, and another agent's page is read.
    cancel(&pool.agent(&node.endpoint)).await.unwrap();
    read(&other).await.map(drop).unwrap();
    drop(first);
    let agent = pool.agent(&node.endpoint);
    drop(agent.pages().acquire().await.unwrap());
    read(&node).await.map(drop).unwrap();
}

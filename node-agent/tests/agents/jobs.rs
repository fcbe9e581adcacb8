//! Jobs of the operator's own code whose source is an object, on real agents.

use std::collections::BTreeMap;
use std::future::ready;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use weft_identity::authority::Authority;
use weft_planner::{Node, Strategy, Topology};
use weft_proto::agent::v1::{Algorithm, Overwrite, Symlinks};
use weft_transfer::{
    AgentEndpoint, ConnectionPool, DestinationPhase, Failure, LeaderContext, NodeLocation,
    ReadSecret, Runner, Secret, Spec, StoreObject, Timing, Transfer,
};

use crate::objects::{INSECURE, PASSWORD, s3};
use crate::s3_server::S3Server;
use crate::support::{Lab, noise};
use crate::transfer::names;

const MIB: usize = 1 << 20;

/// The Secret `store` of team-a.
struct Store {
    endpoint: String,
}

impl ReadSecret for Store {
    fn read<'a>(
        &'a self,
        namespace: &'a str,
        name: &'a str,
    ) -> BoxFuture<'a, Result<BTreeMap<String, Vec<u8>>, Failure>> {
        assert_eq!((namespace, name), ("team-a", "store"));
        let value = |key: &str, value: &str| (key.to_owned(), value.as_bytes().to_vec());
        Box::pin(ready(Ok(BTreeMap::from([
            value("AWS_ACCESS_KEY_ID", "reader"),
            value("AWS_SECRET_ACCESS_KEY", PASSWORD),
            value("endpoint", &self.endpoint),
        ]))))
    }
}

/// To all nodes; the first is to read.
fn spec(nodes: usize, object: StoreObject) -> Spec {
    let place = |node: usize| NodeLocation {
        node: format!("n{node}"),
        root: "data".to_owned(),
        path: "model".to_owned(),
    };
    let node = |node: usize| Node {
        name: format!("n{node}"),
        address: None,
        leaf: "leaf".to_owned(),
        rate_bps: 1_000_000_000,
    };
    Spec {
        uid: "from-a-store".to_owned(),
        name: None,
        source: place(0),
        symlinks: Symlinks::Follow,
        object: Some(object),
        destinations: (0..nodes).map(place).collect(),
        topology: Topology {
            nodes: (0..nodes).map(node).collect(),
            uplinks: Vec::new(),
        },
        strategy: Strategy::Chain,
        payload_share: 0.9,
        algorithm: Algorithm::Blake3,
        expect: String::new(),
        overwrite: Overwrite::IfDifferent,
        backoff_limit: 1000,
        timing: Timing {
            backoff: Duration::from_millis(50),
            backoff_max: Duration::from_millis(100),
            gives_up_unreached: false,
            progress_interval: Duration::from_millis(50),
        },
        leader: LeaderContext::ONLY,
    }
}

fn object(nodes: usize, url: &str, secret: Option<Secret>) -> StoreObject {
    StoreObject {
        url: url.to_owned(),
        etag: String::new(),
        bytes: None,
        secret,
        readers: (0..nodes).map(|node| format!("n{node}")).collect(),
    }
}

fn begin(lab: &Lab, authority: &Arc<Authority>, spec: Spec) -> Runner {
    let nodes = spec.destinations.iter().enumerate();
    let contact = |(node, place): (usize, &NodeLocation)| AgentEndpoint {
        node: place.node.clone(),
        address: lab.control(node),
    };
    let contacts: Vec<AgentEndpoint> = nodes.map(contact).collect();
    Runner::begin(spec, ConnectionPool::new(Arc::clone(authority)), &contacts)
}

fn verified(job: &Transfer) -> usize {
    let verified =
        |standing: &DestinationPhase| matches!(standing, DestinationPhase::Verified { .. });
    job.destinations().filter(|it| verified(&it.phase)).count()
}

fn said(job: &Transfer) -> Vec<String> {
    let standing = job.destinations().map(|it| format!("{:?}", it.phase));
    standing.collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_of_an_object_ends_with_a_verified_copy_at_every_destination() {
    let (lab, authority) = (Lab::new(), Arc::new(Authority::new("lab").unwrap()));
    let big = noise(3 * MIB + 77, 1);
    let files = [
        ("minilm/a/model.bin", big.as_slice()),
        ("minilm/config.json", b"{}".as_slice()),
    ];
    let endpoint = s3(&lab, &files).await;
    let mut agents = Vec::new();
    for node in 0..3 {
        agents.push(lab.agent_of(&authority, node, INSECURE).await);
    }
    let secret = Secret {
        namespace: "team-a".to_owned(),
        name: "store".to_owned(),
        reader: Arc::new(Store { endpoint }),
    };
    let object = object(3, "s3://models/minilm/", Some(secret));
    let mut runner = begin(&lab, &authority, spec(3, object));
    while !runner.transfer().is_over() {
        runner.run_once().await;
    }
    let job = runner.transfer();
    assert!(job.is_complete(), "{:?}", said(job));
    assert_eq!((job.attempt(), verified(job)), (1, 3));
    assert_eq!(job.digest().len(), 64);
    for node in 0..3 {
        let copy = |name: &str| std::fs::read(lab.root(node).join("model").join(name)).unwrap();
        assert!(copy("a/model.bin") == big);
        assert_eq!(copy("config.json"), b"{}");
        assert_eq!(names(&lab, node), ["model"]);
    }
    for agent in agents {
        agent.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_destination_that_comes_late_gets_it_from_a_verified_copy_and_not_from_the_store() {
    let (lab, authority) = (Lab::new(), Arc::new(Authority::new("lab").unwrap()));
    let bytes = noise(2 * MIB + 5, 2);
    let server = S3Server::open(&[("m.bin", &bytes)]).await;
    let mut agents = Vec::new();
    for node in 0..2 {
        agents.push(lab.agent_of(&authority, node, INSECURE).await);
    }
    let object = object(3, &server.url("m.bin"), None);
    let mut runner = begin(&lab, &authority, spec(3, object));
    while verified(runner.transfer()) < 2 {
        assert!(
            !runner.transfer().is_over(),
            "{:?}",
            said(runner.transfer())
        );
        runner.run_once().await;
    }
    let asked = server.change(|contents| contents.asked.len());
    agents.push(lab.agent_of(&authority, 2, INSECURE).await);
    while !runner.transfer().is_over() {
        runner.run_once().await;
    }
    let job = runner.transfer();
    assert!(job.is_complete(), "{:?}", said(job));
    assert!(job.attempt() > 1);
    assert_eq!(server.change(|contents| contents.asked.len()), asked);
    for node in 0..3 {
        assert!(std::fs::read(lab.root(node).join("model")).unwrap() == bytes);
        assert_eq!(names(&lab, node), ["model"]);
    }
    for agent in agents {
        agent.stop().await;
    }
}

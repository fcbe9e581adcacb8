//! An agent that moves no bytes: it answers as one that has a file of [`BYTES`] and a transfer of a
//! given length would.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, interval};
use tokio_stream::Stream;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};
use weft_proto::agent::v1::agent_server::Agent;
use weft_proto::agent::v1::start_request::Task;
use weft_proto::agent::v1::{
    AttemptRef, CancelRequest, CancelResponse, ConnectRequest, ConnectResponse, DiagnoseRequest,
    DiagnoseResponse, FetchManifestRequest, ListPodDevicesRequest, ListPodDevicesResponse,
    ManifestPart, MetricsPart, OfferQueuePairRequest, OfferQueuePairResponse, PrepareRequest,
    PrepareResponse, ProgressRequest, ProgressResponse, ReadMetricsRequest, StartRequest,
    StartResponse, StatRequest, StatResponse, State,
};

/// Of every source.
const BYTES: u64 = 8 << 30;
/// Of a block, as real agents count them.
const BLOCK_BYTES: u64 = 1 << 20;
/// What every copy says: any digest will do, as long as all say the same.
const DIGEST: &str = "6b86b273ff34fce19d6b804eff5a3f5747ada4eaa22f1d49c01e52ddb7875b4b";
/// What a real agent grants at least.
const INTERVAL_LEAST: Duration = Duration::from_millis(50);

/// What an attempt is known by.
type Attempt = (String, u64, u32);

/// The service of one node.
#[derive(Clone)]
pub(super) struct StandIn {
    node: Arc<str>,
    transfer: Duration,
    begun: Arc<Mutex<HashMap<Attempt, Instant>>>,
}

impl StandIn {
    /// Of `node`; a transfer takes so long.
    pub(super) fn new(node: &str, transfer: Duration) -> Self {
        Self {
            node: node.into(),
            transfer,
            begun: Arc::default(),
        }
    }

    fn begun(&self) -> std::sync::MutexGuard<'_, HashMap<Attempt, Instant>> {
        self.begun.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn progress_of(&self, job: &AttemptRef, begun: Instant) -> ProgressResponse {
        let elapsed = begun.elapsed();
        let share = (elapsed.as_secs_f64() / self.transfer.as_secs_f64()).min(1.0);
        let over = share >= 1.0;
        ProgressResponse {
            attempt: Some(job.clone()),
            node: self.node.to_string(),
            state: if over {
                State::Verified
            } else {
                State::Transferring
            }
            .into(),
            bytes: (BYTES as f64 * share) as u64,
            bytes_total: BYTES,
            digest: if over { DIGEST } else { "" }.to_owned(),
            link: "udp".to_owned(),
            link_reason: "the only one that there is".to_owned(),
            ..ProgressResponse::default()
        }
    }
}

fn attempt(job: Option<AttemptRef>) -> Result<(AttemptRef, Attempt), Status> {
    let job = job.ok_or_else(|| Status::invalid_argument("job: missing"))?;
    let attempt = (job.uid.clone(), job.generation, job.number);
    Ok((job, attempt))
}

#[tonic::async_trait]
impl Agent for StandIn {
    async fn stat(&self, _: Request<StatRequest>) -> Result<Response<StatResponse>, Status> {
        Ok(Response::new(StatResponse {
            not_kept: Vec::new(),
            manifest_digest: vec![1; 32],
            files: 1,
            bytes: BYTES,
            fingerprint: vec![1; 32],
        }))
    }

    async fn prepare(
        &self,
        request: Request<PrepareRequest>,
    ) -> Result<Response<PrepareResponse>, Status> {
        attempt(request.into_inner().attempt)?;
        Ok(Response::new(PrepareResponse {
            blocks_have: 0,
            blocks_total: BYTES / BLOCK_BYTES,
            bytes_missing: BYTES,
        }))
    }

    async fn start(
        &self,
        request: Request<StartRequest>,
    ) -> Result<Response<StartResponse>, Status> {
        let request = request.into_inner();
        let (_, attempt) = attempt(request.attempt)?;
        if let Some(Task::Source(_) | Task::Destination(_)) = request.task {
            self.begun().entry(attempt).or_insert_with(Instant::now);
            return Ok(Response::new(StartResponse {}));
        }
        Err(Status::invalid_argument("part: missing"))
    }

    type ProgressStream = Pin<Box<dyn Stream<Item = Result<ProgressResponse, Status>> + Send>>;

    async fn progress(
        &self,
        request: Request<ProgressRequest>,
    ) -> Result<Response<Self::ProgressStream>, Status> {
        let request = request.into_inner();
        let (job, attempt) = attempt(request.attempt)?;
        let begun = self.begun().get(&attempt).copied();
        let begun = begun.ok_or_else(|| Status::not_found("this attempt was not started here"))?;
        let every = Duration::from_millis(request.interval_ms.into()).max(INTERVAL_LEAST);
        let (sender, receiver) = mpsc::channel(1);
        let this = self.clone();
        tokio::spawn(async move {
            let mut ticks = interval(every);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                ticks.tick().await;
                let progress = this.progress_of(&job, begun);
                let over = progress.state() == State::Verified;
                if sender.send(Ok(progress)).await.is_err() || over {
                    return;
                }
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(receiver))))
    }

    async fn cancel(
        &self,
        request: Request<CancelRequest>,
    ) -> Result<Response<CancelResponse>, Status> {
        let (_, attempt) = attempt(request.into_inner().attempt)?;
        self.begun().remove(&attempt);
        Ok(Response::new(CancelResponse {}))
    }

    async fn diagnose(
        &self,
        _: Request<DiagnoseRequest>,
    ) -> Result<Response<DiagnoseResponse>, Status> {
        Err(Status::unimplemented("a stand-in has no data path"))
    }

    async fn list_pod_devices(
        &self,
        _: Request<ListPodDevicesRequest>,
    ) -> Result<Response<ListPodDevicesResponse>, Status> {
        Ok(Response::new(ListPodDevicesResponse::default()))
    }

    type ReadMetricsStream = Pin<Box<dyn Stream<Item = Result<MetricsPart, Status>> + Send>>;

    async fn read_metrics(
        &self,
        _: Request<ReadMetricsRequest>,
    ) -> Result<Response<Self::ReadMetricsStream>, Status> {
        Err(Status::unimplemented("a stand-in has no metrics"))
    }

    type FetchManifestStream = Pin<Box<dyn Stream<Item = Result<ManifestPart, Status>> + Send>>;

    async fn fetch_manifest(
        &self,
        _: Request<FetchManifestRequest>,
    ) -> Result<Response<Self::FetchManifestStream>, Status> {
        Err(Status::unimplemented("a stand-in needs no manifest"))
    }

    async fn connect(
        &self,
        _: Request<ConnectRequest>,
    ) -> Result<Response<ConnectResponse>, Status> {
        Err(Status::unimplemented("a stand-in takes no data"))
    }

    async fn offer_queue_pair(
        &self,
        _: Request<OfferQueuePairRequest>,
    ) -> Result<Response<OfferQueuePairResponse>, Status> {
        Err(Status::unimplemented("a stand-in has no devices"))
    }
}

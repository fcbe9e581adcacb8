//! Transfers between the agents of a fabric, timed from the request on.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::runtime::Runtime;
use tokio::time::timeout;
use weft_cli::stage::{
    self, Access, CongestionControl, Encryption, Ground, Link, PathPolicy, Program, Root, Setup,
    find,
};
use weft_fabric::Fabric;
use weft_identity::authority;
use weft_planner::Strategy;
use weft_proto::agent::v1::{Algorithm, Overwrite, Symlinks};
use weft_transfer::{DestinationPhase, LeaderContext, Spec, Timing};

use super::BenchError;

const PATHS: u16 = 128;
/// No transfer here takes a tenth of it.
const OVER_WITHIN: Duration = Duration::from_secs(500);

/// What is moved. The source is at node 0.
#[derive(Debug, Clone, Copy)]
pub struct Transfer<'a> {
    /// In node 0's directory.
    pub source: &'a str,
    /// In each destination's directory: every node but the first.
    pub destination: &'a str,
    /// Who sends to whom.
    pub strategy: Strategy,
    /// What is hashed with.
    pub algorithm: Algorithm,
}

/// A fabric's agents. They end with this value.
pub struct Stage {
    stage: stage::Stage,
    runtime: Runtime,
}

impl Stage {
    /// Starts an agent at every node; node `i` has `directories[i]`, and `home` is for keys,
    /// configurations and logs.
    ///
    /// # Errors
    /// [`BenchError`].
    pub fn set(
        fabric: Arc<Fabric>,
        directories: Vec<PathBuf>,
        home: &Path,
    ) -> Result<Self, BenchError> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .map_err(BenchError::system("the runtime of the operator"))?;
        let root = |(i, directory)| Root {
            name: "data",
            directory,
            access: if i == 0 {
                Access::ReadOnly
            } else {
                Access::ReadWrite
            },
        };
        let mut stage = stage::Stage::set(Setup {
            name: "bench",
            ground: Ground::Fabric(fabric),
            program: find(Program::Agent)?,
            home: home.to_owned(),
            roots: directories.into_iter().enumerate().map(root).collect(),
            paths: PATHS,
            policy: PathPolicy::default(),
            // Rows of two runs are compared.
            link: Link::Udp,
            encryption: Encryption::Off,
            congestion: CongestionControl::default(),
            devices: None,
            stays: false,
        })?;
        runtime.block_on(stage.start_all())?;
        Ok(Self { stage, runtime })
    }

    /// Process ids of the agents, by node.
    pub fn pids(&self) -> Vec<u32> {
        (0..self.stage.nodes())
            .filter_map(|i| self.stage.pid(i))
            .collect()
    }

    /// Where node `i` has its files.
    pub fn directory(&self, i: usize) -> &Path {
        self.stage.root(i)
    }

    /// Part of a link's rate that is payload.
    pub fn payload_share(&self) -> f64 {
        self.stage.ground().payload_share()
    }

    /// Moves a file and answers how long it took from the request until every destination had it
    /// fsynced and verified.
    ///
    /// # Errors
    /// [`BenchError`]: also when a destination is not Verified.
    pub fn transfer(&self, transfer: Transfer<'_>) -> Result<Duration, BenchError> {
        let spec = self.spec(transfer)?;
        let begun = Instant::now();
        let transfer = async {
            let mut runner = self.stage.begin(spec);
            while !runner.transfer().is_over() {
                runner.run_once().await;
            }
            Ok::<_, BenchError>((begun.elapsed(), complaint(runner.transfer())))
        };
        let within = async { timeout(OVER_WITHIN, transfer).await };
        let over = self.runtime.block_on(within);
        let Ok(over) = over else {
            return Err(BenchError::Silent {
                what: "the transfer's end",
                seconds: OVER_WITHIN.as_secs(),
            });
        };
        match over? {
            (took, None) => Ok(took),
            (_, Some(message)) => Err(BenchError::Program {
                program: "transfer".into(),
                message,
            }),
        }
    }

    fn spec(&self, transfer: Transfer<'_>) -> Result<Spec, BenchError> {
        Ok(Spec {
            uid: format!("bench-{}", authority::unique()?),
            name: None,
            source: self.stage.place(0, transfer.source),
            symlinks: Symlinks::Follow,
            object: None,
            destinations: (1..self.stage.nodes())
                .map(|i| self.stage.place(i, transfer.destination))
                .collect(),
            topology: self.stage.topology(),
            strategy: transfer.strategy,
            payload_share: self.payload_share(),
            algorithm: transfer.algorithm,
            expect: String::new(),
            overwrite: Overwrite::IfDifferent,
            timing: Timing::INTERACTIVE,
            leader: LeaderContext::ONLY,
            // A benchmark has no second attempts: what fails is reported.
            backoff_limit: 0,
        })
    }
}

/// Why the job is not complete.
fn complaint(transfer: &weft_transfer::Transfer) -> Option<String> {
    if transfer.is_complete() {
        return None;
    }
    let at_source = transfer.source_fault().map(|fault| fault.message);
    let at_destinations = transfer
        .destinations()
        .filter_map(|view| match &view.phase {
            DestinationPhase::Verified { .. } => None,
            DestinationPhase::Failed(failure) | DestinationPhase::Retrying(failure) => {
                Some(failure.message.clone())
            }
            DestinationPhase::InProgress => Some(format!("{} was not started", view.location.node)),
        });
    Some(
        at_source
            .into_iter()
            .chain(at_destinations)
            .collect::<Vec<_>>()
            .join("; "),
    )
}

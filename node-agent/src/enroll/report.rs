//! The stream of reports to the operator, and of its configuration updates.

use std::convert::Infallible;
use std::sync::Arc;

use tokio::sync::{mpsc, watch};
use tokio::time::MissedTickBehavior;
use tokio_stream::wrappers::ReceiverStream;
use weft_proto::operator::v1::{NodeConfig, NodeConfigUpdate, NodeReport};

use crate::control::fence::Fence;
use crate::enroll::error::OperatorError;
use crate::enroll::keys::Keys;
use crate::enroll::operator;
use crate::enroll::retry::Retry;
use crate::enroll::review_token::ReportConnection;
use crate::enroll::settings::Settings;

/// Reports on their way. While the operator has not taken one, the next waits for a tick.
const REPORT_CHANNEL_SIZE: usize = 2;

/// Reports the node to the operator, as long as the agent runs.
#[derive(Debug)]
pub(crate) struct Reporter {
    pub(crate) settings: Arc<Settings>,
    pub(crate) keys: Arc<Keys>,
    /// The newest report.
    pub(crate) report: watch::Receiver<NodeReport>,
    /// The configuration that the operator has assigned.
    pub(crate) assigned_config: watch::Sender<NodeConfig>,
    /// When the certificate ends that the operator does not accept: its authority may have been replaced.
    pub(crate) rejected_certificate_expiry: watch::Sender<u64>,
    /// The connection that the operator answers on.
    pub(crate) connection: watch::Sender<ReportConnection>,
    /// Learns the epochs of later leaders.
    pub(crate) fence: Arc<Fence>,
}

/// How far a stream got with the operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StreamStage {
    NotConnected,
    /// A server answers whose certificate the operator's authorities have signed.
    Connected,
    /// The operator has answered a report.
    Answered,
}

impl Reporter {
    pub(crate) async fn run(mut self) -> Infallible {
        let mut retry = Retry::new("report", self.settings.timing);
        loop {
            let mut stage = StreamStage::NotConnected;
            let presented_expiry = self.report.borrow().certificate_expires_unix_s;
            let ended = self.stream(presented_expiry, &mut retry, &mut stage).await;
            self.connection.send_replace(None);
            if let Err(error) = ended {
                if stage != StreamStage::Answered
                    && error.is_doubt_of_certificate(stage == StreamStage::Connected)
                {
                    self.rejected_certificate_expiry
                        .send_replace(presented_expiry);
                }
                tokio::time::sleep(retry.failed(&error)).await;
            }
        }
    }

    /// One stream. It ends without an error when there is a new certificate to show.
    async fn stream(
        &mut self,
        presented_expiry: u64,
        retry: &mut Retry,
        stage: &mut StreamStage,
    ) -> Result<(), OperatorError> {
        let identity = self.keys.identity()?;
        let mut client = operator::connect(&self.settings, Some(identity)).await?;
        *stage = StreamStage::Connected;
        let (send, sent) = mpsc::channel(REPORT_CHANNEL_SIZE);
        let _ = send.try_send(self.report.borrow_and_update().clone());
        let call = client.report(ReceiverStream::new(sent));
        let mut config_updates = operator::with_timeout(&self.settings, call).await?;
        self.connection.send_replace(Some(client));
        let mut ticks = tokio::time::interval(self.settings.timing.report);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        ticks.reset();
        loop {
            tokio::select! {
                update = config_updates.message() => match update {
                    Ok(Some(update)) => {
                        retry.succeeded();
                        *stage = StreamStage::Answered;
                        self.handle_update(update);
                        continue;
                    }
                    Ok(None) => return Err(OperatorError::Ended),
                    Err(status) => return Err(operator::refused(&self.settings, &status)),
                },
                changed = self.report.changed() => if changed.is_err() {
                    // The agent is stopping.
                    std::future::pending::<()>().await;
                },
                _ = ticks.tick() => {}
            }
            let report = self.report.borrow_and_update().clone();
            if report.certificate_expires_unix_s != presented_expiry {
                return Ok(());
            }
            // A full channel takes the next report; a closed one ends the updates, too.
            let _ = send.try_send(report);
        }
    }

    fn handle_update(&self, update: NodeConfigUpdate) {
        self.fence.observe(update.leader_epoch);
        if let Some(config) = update.config {
            replace_if_different(&self.assigned_config, config);
        }
    }
}

/// Wakes the receivers only when the value is another one.
pub(crate) fn replace_if_different<T: PartialEq>(sender: &watch::Sender<T>, value: T) {
    sender.send_if_modified(|known| {
        let is_different = *known != value;
        *known = value;
        is_different
    });
}

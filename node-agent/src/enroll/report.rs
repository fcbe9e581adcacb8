//! The stream of reports to the operator, and of its orders.

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
use crate::enroll::settings::Settings;

/// Reports on their way. While the operator has not taken one, the next waits for a tick.
const UNDER_WAY: usize = 2;

/// Reports the node to the operator, as long as the agent runs.
#[derive(Debug)]
pub(crate) struct Reporter {
    pub(crate) settings: Arc<Settings>,
    pub(crate) keys: Arc<Keys>,
    /// The newest report.
    pub(crate) report: watch::Receiver<NodeReport>,
    /// Where the operator's orders go.
    pub(crate) ordered: watch::Sender<NodeConfig>,
    /// When the certificate ends that the operator seems not to know: its authority may have been replaced.
    pub(crate) doubted: watch::Sender<u64>,
    /// Learns the epochs of later leaders.
    pub(crate) fence: Arc<Fence>,
}

/// How far a stream got.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reached {
    NoOne,
    /// A server answers whose certificate the operator's authorities have signed.
    Connected,
    /// The operator has answered a report.
    Heard,
}

impl Reporter {
    pub(crate) async fn run(mut self) -> Infallible {
        let mut retry = Retry::new("report", self.settings.timing);
        loop {
            let mut reached = Reached::NoOne;
            let shown = self.report.borrow().certificate_expires_unix_s;
            if let Err(error) = self.stream(shown, &mut retry, &mut reached).await {
                if reached != Reached::Heard
                    && error.is_doubt_of_certificate(reached == Reached::Connected)
                {
                    self.doubted.send_replace(shown);
                }
                tokio::time::sleep(retry.failed(&error)).await;
            }
        }
    }

    /// One stream. It ends without an error when there is a new certificate to show.
    async fn stream(
        &mut self,
        shown: u64,
        retry: &mut Retry,
        reached: &mut Reached,
    ) -> Result<(), OperatorError> {
        let identity = self.keys.identity()?;
        let mut client = operator::connect(&self.settings, Some(identity)).await?;
        *reached = Reached::Connected;
        let (send, sent) = mpsc::channel(UNDER_WAY);
        let _ = send.try_send(self.report.borrow_and_update().clone());
        let call = client.report(ReceiverStream::new(sent));
        let mut orders = operator::within(&self.settings, call).await?;
        let mut ticks = tokio::time::interval(self.settings.timing.report);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        ticks.reset();
        loop {
            tokio::select! {
                order = orders.message() => match order {
                    Ok(Some(order)) => {
                        retry.succeeded();
                        *reached = Reached::Heard;
                        self.take(order);
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
            if report.certificate_expires_unix_s != shown {
                return Ok(());
            }
            // A full channel takes the next report; a closed one ends the orders, too.
            let _ = send.try_send(report);
        }
    }

    fn take(&self, order: NodeConfigUpdate) {
        self.fence.observe(order.leader_epoch);
        if let Some(config) = order.config {
            replace_if_different(&self.ordered, config);
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

//! The stream of reports: what the operator is told, and what it orders in return.

use std::convert::Infallible;
use std::sync::Arc;

use tokio::sync::{mpsc, watch};
use tokio::time::MissedTickBehavior;
use tokio_stream::wrappers::ReceiverStream;
use weft_proto::operator::v1::{NodeConfig, NodeOrder, NodeReport};

use crate::control::fence::Fence;
use crate::enroll::keys::Keys;
use crate::enroll::operator;
use crate::enroll::trouble::Tries;
use crate::enroll::{Settings, Trouble};

/// Reports on their way: with one that the operator has not taken yet, later ones wait for the next
/// tick.
const UNDER_WAY: usize = 2;

/// Tells the operator how the node is, as long as the agent runs.
#[derive(Debug)]
pub(crate) struct Reporter {
    pub(crate) settings: Arc<Settings>,
    pub(crate) keys: Arc<Keys>,
    /// What is to be told now.
    pub(crate) report: watch::Receiver<NodeReport>,
    /// Where the operator's orders go.
    pub(crate) ordered: watch::Sender<NodeConfig>,
    /// The end of the certificate that the operator seems not to know: its authority may have been
    /// lost and made anew.
    pub(crate) doubted: watch::Sender<u64>,
    /// What later leaders than the one that let the node join say of themselves.
    pub(crate) fence: Arc<Fence>,
}

/// How far a stream has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reached {
    Nobody,
    /// Somebody answers whom the operator's authorities vouch for.
    Connected,
    /// The operator has answered a report.
    Heard,
}

impl Reporter {
    pub(crate) async fn run(mut self) -> Infallible {
        let mut tries = Tries::new("report", &self.settings.node, self.settings.pace);
        loop {
            let mut reached = Reached::Nobody;
            let shown = self.report.borrow().certificate_expires_unix_s;
            if let Err(trouble) = self.stream(shown, &mut tries, &mut reached).await {
                if reached != Reached::Heard
                    && trouble.is_doubt_of_certificate(reached == Reached::Connected)
                {
                    self.doubted.send_replace(shown);
                }
                tokio::time::sleep(tries.failed(&trouble)).await;
            }
        }
    }

    /// One stream; it ends well when there is a new certificate to show.
    async fn stream(
        &mut self,
        shown: u64,
        tries: &mut Tries,
        reached: &mut Reached,
    ) -> Result<(), Trouble> {
        let identity = self.keys.identity()?;
        let mut client = operator::connect(&self.settings, Some(identity)).await?;
        *reached = Reached::Connected;
        let (tell, told) = mpsc::channel(UNDER_WAY);
        let _ = tell.try_send(self.report.borrow_and_update().clone());
        let call = client.report(ReceiverStream::new(told));
        let mut orders = operator::within(&self.settings, call).await?;
        let mut ticks = tokio::time::interval(self.settings.pace.report);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        ticks.reset();
        loop {
            tokio::select! {
                order = orders.message() => match order {
                    Ok(Some(order)) => {
                        tries.succeeded();
                        *reached = Reached::Heard;
                        self.take(order);
                        continue;
                    }
                    Ok(None) => return Err(Trouble::Ended),
                    Err(status) => return Err(operator::refused(&self.settings, &status)),
                },
                changed = self.report.changed() => if changed.is_err() {
                    // Nobody has anything to tell any more.
                    std::future::pending::<()>().await;
                },
                _ = ticks.tick() => {}
            }
            let report = self.report.borrow_and_update().clone();
            if report.certificate_expires_unix_s != shown {
                return Ok(());
            }
            // A full channel takes the next one; of a closed one the orders tell.
            let _ = tell.try_send(report);
        }
    }

    fn take(&self, order: NodeOrder) {
        self.fence.observe(order.leader_epoch);
        if let Some(config) = order.config {
            self.ordered.send_if_modified(|known| {
                let new = *known != config;
                *known = config;
                new
            });
        }
    }
}

//! The streams by which nodes report.

use tokio::time::{Instant, sleep_until, timeout_at};
use weft_proto::agent::v1::{ProgressRequest, ProgressResponse};

use super::Calls;
use crate::{Answer, Refusal, pace::Pace, report::tidy};

impl Calls {
    /// Passes on what a node reports, until it reports no more.
    pub(crate) async fn follow(&self, node: String, attempt: u32) {
        let result = self.reports(&node, attempt).await;
        let ended = Answer::FollowEnded {
            node,
            attempt,
            result,
        };
        let _ = self.answers.send(Box::new(ended));
    }

    async fn reports(&self, node: &str, attempt: u32) -> Result<(), Refusal> {
        let request = ProgressRequest {
            job: self.job(node, attempt),
            leader_epoch: self.spec.mandate.leader_epoch,
            interval_ms: u32::try_from(self.spec.tempo.report.as_millis()).unwrap_or(u32::MAX),
        };
        let agent = self.agent(node)?;
        let begun = agent.open(|mut client| {
            let request = request.clone();
            async move { client.progress(request).await }
        });
        // What it takes to begin is let go of once it has.
        let (mut stream, connection) = Box::pin(begun).await?;
        let (began, mut pace) = (Instant::now(), Pace::of(self.spec.tempo.report));
        let ended = loop {
            sleep_until(began + pace.free()).await;
            let message = match pace.due() {
                Some(due) => timeout_at(began + due, stream.message()).await.ok(),
                None => Some(stream.message().await),
            };
            let now = began.elapsed();
            let told = match message {
                None => pace.release(now),
                Some(Ok(Some(mut report))) => {
                    tidy(&mut report);
                    pace.read(now, Box::new(report))
                }
                Some(Ok(None)) => break Ok(()),
                Some(Err(status)) => break Err(agent.failed(&connection, &status)),
            };
            if !told.is_none_or(|report| self.tell(node, attempt, report)) {
                return Ok(());
            }
        };
        if let Some(last) = pace.release(began.elapsed()) {
            self.tell(node, attempt, last);
        }
        ended
    }

    /// Whether anybody is there to hear it.
    fn tell(&self, node: &str, attempt: u32, report: Box<ProgressResponse>) -> bool {
        let answer = Answer::Progress {
            node: node.to_owned(),
            attempt,
            report,
        };
        self.answers.send(Box::new(answer)).is_ok()
    }
}

//! The progress streams of the nodes. An agent that sends too fast has to wait: HTTP/2
//! lets it send no more than a window ahead of what is read.

use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval};
use weft_proto::agent::v1::{ProgressRequest, ProgressResponse, State};

use super::CallContext;
use crate::{command::Input, excerpt::excerpt, failure::Failure};

/// Within one progress interval, the newest message is forwarded at most this many times. A message has the whole
/// state, so an older one that was not forwarded is not needed.
const FORWARDS_PER_INTERVAL: u32 = 4;
/// Between two forwards, at most this many messages are read: an agent reports every thread and task that
/// ends, one for each of 64 children among them.
const READS_PER_FORWARD: u32 = 64;

/// Of a name or a reason: the longest name in Kubernetes.
const NAME_BYTES_MAX: usize = 253;
/// Of a message for people.
const MESSAGE_BYTES_MAX: usize = 1024;
/// Of a digest: BLAKE3 has 64 characters.
const DIGEST_BYTES_MAX: usize = 128;
/// Connections of one attempt: a plan gives a node a handful of children, and at most this many.
const PEERS_MAX: usize = 64;

impl CallContext {
    /// Passes on what a node reports, until the stream ends.
    pub(super) async fn watch_progress(&self, node: &str, attempt: u32) -> Result<(), Failure> {
        let period = self.spec.timing.progress_interval;
        let request = ProgressRequest {
            attempt: self.attempt_ref(node, attempt),
            leader_epoch: self.spec.leader.leader_epoch,
            interval_ms: u32::try_from(period.as_millis()).unwrap_or(u32::MAX),
        };
        let agent = self.agent(node)?;
        let begun = agent.open(&request, |mut client, request| async move {
            client.progress(request).await
        });
        // Boxed: the state of the call is freed once the stream has begun.
        let (mut stream, connection) = Box::pin(begun).await?;
        let mut ticks = interval((period / FORWARDS_PER_INTERVAL).max(Duration::from_millis(1)));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut newest: Option<ProgressResponse> = None;
        let (mut read, mut has_ended) = (0, false);
        let result = loop {
            let message = tokio::select! {
                biased;
                _ = ticks.tick(), if read > 0 => {
                    read = 0;
                    if !self.pass_on(node, attempt, newest.take()) {
                        return Ok(());
                    }
                    continue;
                }
                message = stream.message(), if read < READS_PER_FORWARD => message,
            };
            let mut progress = match message {
                Ok(Some(progress)) => progress,
                Ok(None) => break Ok(()),
                Err(status) => break Err(agent.failed(&connection, &status)),
            };
            limit(&mut progress);
            read += 1;
            let is_end = matches!(progress.state(), State::Verified | State::Failed);
            newest = Some(progress);
            // The first message that the node has finished does not wait.
            if is_end && !has_ended {
                has_ended = true;
                self.pass_on(node, attempt, newest.take());
            }
        };
        self.pass_on(node, attempt, newest);
        result
    }

    /// Whether the runner is there to take it.
    fn pass_on(&self, node: &str, attempt: u32, progress: Option<ProgressResponse>) -> bool {
        let Some(progress) = progress else {
            return true;
        };
        self.send(Input::Progress {
            node: node.to_owned(),
            attempt,
            progress: Box::new(progress),
        })
    }
}

/// Truncates texts that are too long: progress is kept for each destination, and is copied into objects.
fn limit(progress: &mut ProgressResponse) {
    truncate(&mut progress.node, NAME_BYTES_MAX);
    truncate(&mut progress.reason, NAME_BYTES_MAX);
    progress.message = excerpt(&progress.message, MESSAGE_BYTES_MAX);
    truncate(&mut progress.digest, DIGEST_BYTES_MAX);
    truncate(&mut progress.link, NAME_BYTES_MAX);
    progress.link_reason = excerpt(&progress.link_reason, MESSAGE_BYTES_MAX);
    // The call says which job it is.
    progress.attempt = None;
    progress.peers.truncate(PEERS_MAX);
    for peer in &mut progress.peers {
        truncate(&mut peer.node, NAME_BYTES_MAX);
        truncate(&mut peer.reason, NAME_BYTES_MAX);
        peer.message = excerpt(&peer.message, MESSAGE_BYTES_MAX);
    }
}

fn truncate(text: &mut String, bytes_max: usize) {
    if text.len() > bytes_max {
        text.truncate(text.floor_char_boundary(bytes_max));
        text.shrink_to_fit();
    }
}

#[cfg(test)]
mod tests {
    use weft_proto::agent::v1::PeerProgress;

    use super::*;

    #[test]
    fn texts_that_are_too_long_are_cut() {
        let long = "é".repeat(5000);
        let mut progress = ProgressResponse {
            node: long.clone(),
            reason: long.clone(),
            message: format!("{long}: cause"),
            digest: long.clone(),
            link: long.clone(),
            link_reason: long.clone(),
            peers: vec![PeerProgress::default(); 1000],
            ..ProgressResponse::default()
        };
        limit(&mut progress);
        assert_eq!(progress.node.len(), 252);
        assert!(progress.message.len() <= MESSAGE_BYTES_MAX);
        assert!(progress.message.ends_with("é: cause"));
        assert_eq!(progress.digest.len(), DIGEST_BYTES_MAX);
        assert_eq!(progress.peers.len(), PEERS_MAX);
    }
}

//! What pods have tried with devices of this node and may not: from the engine to the reports to the operator, which tells
//! the pods.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior};
use tonic::transport::Channel;
use weft_proto::engine::v1::engine_client::EngineClient;
use weft_proto::engine::v1::{RefusedAttempt, TakeRefusedAttemptsRequest};

use crate::fail_fast;

/// How often the engine is asked.
const TAKE_INTERVAL: Duration = Duration::from_secs(5);
/// A report lists an attempt for so long: six reports, of which the operator needs one.
const LISTED_FOR: Duration = Duration::from_secs(60);
/// Of one report; the operator tells of no more of a node.
const LISTED_MAX: usize = 16;

/// What was tried of late.
#[derive(Debug, Clone, Default)]
pub(crate) struct RefusedAttempts(Arc<Mutex<ListedSince>>);

/// By kind and pods, since when each is listed.
type ListedSince = BTreeMap<(i32, String, String), Instant>;

impl RefusedAttempts {
    fn add(&self, attempts: Vec<RefusedAttempt>, now: Instant) {
        let mut kept = fail_fast::lock(&self.0);
        kept.retain(|_, since| now.saturating_duration_since(*since) < LISTED_FOR);
        for attempt in attempts {
            let RefusedAttempt { kind, from, to } = attempt;
            if kept.len() < LISTED_MAX {
                kept.entry((kind, from, to)).or_insert(now);
            }
        }
    }

    /// For a report.
    pub(crate) fn listed(&self, now: Instant) -> Vec<RefusedAttempt> {
        let kept = fail_fast::lock(&self.0);
        let of_late = kept
            .iter()
            .filter(|(_, since)| now.saturating_duration_since(**since) < LISTED_FOR);
        let attempt = |((kind, from, to), _): (&(i32, String, String), _)| RefusedAttempt {
            kind: *kind,
            from: from.clone(),
            to: to.clone(),
        };
        of_late.map(attempt).collect()
    }

    /// Asks the engine, for ever. One that is away, or of an earlier release, says nothing.
    pub(crate) async fn follow(self, mut engine: EngineClient<Channel>) {
        let mut ticks = tokio::time::interval(TAKE_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let taken = engine.take_refused_attempts(TakeRefusedAttemptsRequest {});
            match taken.await {
                Ok(taken) => self.add(taken.into_inner().attempts, Instant::now()),
                Err(status) => tracing::debug!("no refused attempts are known: {status}"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attempts(froms: &[&str]) -> Vec<RefusedAttempt> {
        let attempt = |from: &&str| RefusedAttempt {
            kind: 1,
            from: (*from).to_owned(),
            to: "team-a/a".to_owned(),
        };
        froms.iter().map(attempt).collect()
    }

    #[test]
    fn an_attempt_is_listed_for_a_minute_and_so_many_are() {
        let kept = RefusedAttempts::default();
        let begun = Instant::now();
        let listed = |after: u64| kept.listed(begun + Duration::from_secs(after));
        kept.add(attempts(&["team-b/d"]), begun);
        kept.add(attempts(&["team-b/d"]), begun + Duration::from_secs(30));
        assert_eq!(listed(59), attempts(&["team-b/d"]));
        assert!(listed(60).is_empty());
        let many: Vec<String> = (0..100).map(|i| format!("team-b/{i}")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        kept.add(attempts(&many), begun + Duration::from_secs(61));
        assert_eq!(listed(62).len(), LISTED_MAX);
    }
}

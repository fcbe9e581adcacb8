//! Pages of metrics of nodes' agents, read twice.

use std::{collections::BTreeMap, time::Duration};

use futures::{StreamExt as _, stream};
use kube::{Api, ResourceExt as _};
use tokio::time::{Instant, sleep_until};
use weft_crds::{FabricNode, NodeMetrics};
use weft_metrics::Samples;

use crate::cluster::{Cluster, ClusterError, NODES_AT_A_TIME};

/// Between the first two readings.
pub(super) const APART: Duration = Duration::from_secs(1);

/// A page, and when it came.
#[derive(Clone, Debug)]
pub(super) struct Reading {
    pub(super) samples: Samples,
    pub(super) at: Instant,
}

/// How a node's page is now, and how it was before, if that is known; or why it is not.
pub(super) type Pair = Result<(Option<Reading>, Reading), ClusterError>;

/// What counters have grown by between two readings of a page.
#[derive(Clone, Copy)]
pub(super) struct Change<'a> {
    before: Option<&'a Samples>,
    now: &'a Samples,
    seconds: f64,
}

impl<'a> Change<'a> {
    /// Of two pages so many seconds apart.
    pub(super) fn new(before: Option<&'a Samples>, now: &'a Samples, seconds: f64) -> Self {
        Self {
            before,
            now,
            seconds,
        }
    }

    /// The later page.
    pub(super) fn now(&self) -> &'a Samples {
        self.now
    }

    /// The earlier page.
    pub(super) fn before(&self) -> Option<&'a Samples> {
        self.before
    }

    /// How much it has grown; none where it is not known before, or has begun again.
    pub(super) fn growth(self, before: Option<f64>, now: Option<f64>) -> Option<f64> {
        let growth = now? - before?;
        (growth >= 0.0).then_some(growth)
    }

    /// How much of it there is in a second.
    pub(super) fn rate(self, growth: Option<f64>) -> Option<f64> {
        growth
            .filter(|_| self.seconds > 0.0)
            .map(|growth| growth / self.seconds)
    }
}

/// How much of the whole a part is; none where there is neither. A part may be counted later than its whole: chunks
/// that were sent before the first reading and lost behind it.
pub(super) fn share(part: Option<f64>, whole: Option<f64>) -> Option<f64> {
    let (part, whole) = (part?, whole?);
    (part > 0.0 || whole > 0.0).then(|| (part / whole).min(1.0))
}

/// The readings of all nodes, the last ones kept for the next comparison.
#[derive(Debug, Default)]
pub(super) struct Readings {
    last: Option<BTreeMap<String, Reading>>,
}

impl Readings {
    /// Reads the pages of these nodes: twice, where it is the first time.
    pub(super) async fn next(
        &mut self,
        cluster: &Cluster,
        nodes: &[String],
        page: NodeMetrics,
    ) -> Result<Vec<(String, Pair)>, ClusterError> {
        let mut last = match self.last.take() {
            Some(last) => last,
            None => {
                let begun = Instant::now();
                let first = read_all(cluster, nodes, page).await?.into_iter();
                sleep_until(begun + APART).await;
                let read = |(node, reading): (String, Result<Reading, ClusterError>)| {
                    Some((node, reading.ok()?))
                };
                first.filter_map(read).collect()
            }
        };
        let mut kept = BTreeMap::new();
        let mut pairs = Vec::new();
        for (node, reading) in read_all(cluster, nodes, page).await? {
            let pair = reading.map(|reading| {
                kept.insert(node.clone(), reading.clone());
                (last.remove(&node), reading)
            });
            pairs.push((node, pair));
        }
        self.last = Some(kept);
        Ok(pairs)
    }
}

/// What is computed of a node's pair of pages.
pub(super) fn compare<T>(
    (before, now): &(Option<Reading>, Reading),
    compute: impl FnOnce(Change<'_>) -> T,
) -> T {
    let seconds = before
        .as_ref()
        .map(|before| now.at.duration_since(before.at));
    let seconds = seconds.unwrap_or_default().as_secs_f64();
    let before = before.as_ref().map(|before| &before.samples);
    compute(Change::new(before, &now.samples, seconds))
}

async fn read_all(
    cluster: &Cluster,
    nodes: &[String],
    page: NodeMetrics,
) -> Result<Vec<(String, Result<Reading, ClusterError>)>, ClusterError> {
    let asked = nodes.iter().cloned().map(|node| async move {
        let reading = read(cluster, &node, page).await?;
        Ok((node, reading))
    });
    let answers: Vec<Result<_, ClusterError>> = stream::iter(asked)
        .buffered(NODES_AT_A_TIME)
        .collect()
        .await;
    answers.into_iter().collect()
}

/// The page of a node, or why this node has none; an error where no node will.
async fn read(
    cluster: &Cluster,
    node: &str,
    page: NodeMetrics,
) -> Result<Result<Reading, ClusterError>, ClusterError> {
    match cluster.live_text(&page.path(node)).await {
        Ok(text) => {
            let at = Instant::now();
            let samples = Samples::parse(&text).map_err(|error| ClusterError::Refused {
                code: 502,
                message: error.to_string(),
            });
            Ok(samples.map(|samples| Reading { samples, at }))
        }
        Err(error) if error.affects_every_node() => Err(error),
        Err(error) => Ok(Err(error)),
    }
}

/// The names of all nodes of fabrics.
pub(super) async fn node_names(cluster: &Cluster) -> Result<Vec<String>, ClusterError> {
    let api: Api<FabricNode> = Api::all(cluster.client());
    let listed = api.list_metadata(&Default::default()).await;
    let listed = listed.map_err(|error| cluster.explain("", error))?;
    Ok(listed.iter().map(|node| node.name_any()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_that_has_begun_again_has_no_rate() {
        let page = Samples::default();
        let change = Change::new(Some(&page), &page, 2.0);
        let rate = |before, now| change.rate(change.growth(before, now));
        assert_eq!(rate(Some(4.0), Some(10.0)), Some(3.0));
        assert_eq!(rate(Some(4.0), Some(1.0)), None);
        assert_eq!(rate(None, Some(1.0)), None);
        let at_once = Change::new(Some(&page), &page, 0.0);
        assert_eq!(at_once.rate(Some(1.0)), None);
    }

    #[test]
    fn of_nothing_there_is_no_share() {
        assert_eq!(share(Some(1.0), Some(4.0)), Some(0.25));
        assert_eq!(share(Some(0.0), Some(0.0)), None);
        assert_eq!(share(Some(5.0), Some(4.0)), Some(1.0));
        assert_eq!(share(Some(3.0), Some(0.0)), Some(1.0));
        assert_eq!(share(None, Some(4.0)), None);
    }
}

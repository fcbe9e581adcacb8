//! Jobs.

use std::cmp::Ordering;

use serde::Serialize;
use weft_crds::{Phase, TransferProgress, TransferProgressList};

use super::{
    TopError,
    readings::share,
    table::{Cell, Column, Row, descending},
};
use crate::cluster::Cluster;

/// How far a job is, and what limits it.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct JobRow {
    namespace: String,
    name: String,
    phase: Phase,
    /// Of its bytes, from 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    done_share: Option<f64>,
    bytes_per_second: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    eta_seconds: Option<u64>,
    #[serde(skip_serializing_if = "String::is_empty")]
    bottleneck: String,
}

impl From<TransferProgress> for JobRow {
    fn from(job: TransferProgress) -> Self {
        let status = job.status;
        let positive = |number: i64| u64::try_from(number).unwrap_or_default();
        let (bytes, all) = (positive(status.bytes), positive(status.bytes_total));
        Self {
            namespace: job.metadata.namespace.unwrap_or_default(),
            name: job.metadata.name.unwrap_or_default(),
            phase: status.phase,
            done_share: share(Some(bytes as f64), Some(all as f64)),
            bytes_per_second: positive(status.bytes_per_second),
            eta_seconds: status.eta_seconds.map(positive),
            bottleneck: status
                .plan
                .and_then(|plan| plan.bottleneck)
                .unwrap_or_default(),
        }
    }
}

impl Row for JobRow {
    const COLUMNS: &'static [Column<Self>] = &[
        Column {
            name: "namespace",
            cell: |row| Cell::name(&row.namespace),
        },
        Column {
            name: "name",
            cell: |row| Cell::name(&row.name),
        },
        Column {
            name: "phase",
            cell: |row| Cell::name(format!("{:?}", row.phase)),
        },
        Column {
            name: "done",
            cell: |row| Cell::share(row.done_share),
        },
        Column {
            name: "rate",
            cell: |row| Cell::rate(row.rate()),
        },
        Column {
            name: "ETA",
            cell: |row| Cell::seconds(row.eta_seconds.map(|left| left as f64)),
        },
        Column {
            name: "bottleneck",
            cell: |row| match row.bottleneck.as_str() {
                "" => Cell::name("-"),
                bottleneck => Cell::name(bottleneck),
            },
        },
    ];
    const NONE: &'static str =
        "no TransferJobs here; --all-namespaces shows those of all namespaces";

    /// The fastest first, and those that are over last.
    fn order(&self, other: &Self) -> Ordering {
        let by_phase = self.phase.is_over().cmp(&other.phase.is_over());
        by_phase
            .then_with(|| descending(self.rate(), other.rate()))
            .then_with(|| self.namespace.cmp(&other.namespace))
            .then_with(|| self.name.cmp(&other.name))
    }

    fn message(&self) -> &str {
        ""
    }
}

impl JobRow {
    /// Bytes per second; none while none are moving.
    fn rate(&self) -> Option<f64> {
        (self.bytes_per_second > 0).then_some(self.bytes_per_second as f64)
    }
}

/// The jobs of the namespace, or of all, as the operator knows them.
pub(super) async fn look(cluster: &Cluster, all_namespaces: bool) -> Result<Vec<JobRow>, TopError> {
    let path = cluster.live_resource(TransferProgress::RESOURCE, all_namespaces);
    let list: TransferProgressList = cluster.live(&path).await?;
    Ok(list.items.into_iter().map(JobRow::from).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::top::table::{self, tests::words};

    fn job(name: &str, status: &serde_json::Value) -> JobRow {
        let job: TransferProgress = serde_json::from_value(serde_json::json!({
            "apiVersion": "live.weft.dev/v1alpha1", "kind": "TransferProgress",
            "metadata": {"namespace": "team-a", "name": name}, "status": status,
        }))
        .unwrap();
        job.into()
    }

    #[test]
    fn the_fastest_job_is_first_and_one_that_is_over_last() {
        let mut rows = [
            job(
                "done",
                &serde_json::json!({"phase": "Complete", "bytes": 8, "bytesTotal": 8}),
            ),
            job("waits", &serde_json::json!({"phase": "Waiting"})),
            job(
                "fast",
                &serde_json::json!({"phase": "Transferring", "bytes": 2_000_000, "bytesTotal": 8_000_000,
                    "bytesPerSecond": 3_000_000, "etaSeconds": 2}),
            ),
        ];
        table::sort(&mut rows, None);
        let shown = words(&rows);
        let expected = [
            "team-a",
            "fast",
            "Transferring",
            "25.00%",
            "3 MB/s",
            "2.00 s",
            "-",
        ];
        assert_eq!(shown[1], expected);
        let expected = ["team-a", "waits", "Waiting", "-", "-", "-", "-"];
        assert_eq!(shown[2], expected);
        assert_eq!(shown[3][1..4], ["done", "Complete", "100.00%"]);
    }
}

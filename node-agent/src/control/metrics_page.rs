//! ReadMetrics: the text of the agent's metrics, in parts that the operator passes on one after the other.

use prometheus_client::encoding::text::encode;
use tokio::sync::watch;
use weft_proto::agent::v1::MetricsPart;

use crate::fail_fast;
use crate::fault::Fault;
use crate::web::Ready;

/// Of a part: the operator lets an agent send so much ahead four times.
const PART_BYTES: usize = 64 << 10;

/// The page of all paths, or that of the agent, as it is now.
pub(crate) async fn page(ready: &watch::Receiver<Ready>, paths: bool) -> Result<String, Fault> {
    let registries = ready.borrow().clone().ok_or(Fault::ShuttingDown)?;
    let encoded = fail_fast::spawn_blocking("metrics", move || {
        let registry = match paths {
            true => &registries.paths,
            false => &registries.agent,
        };
        let mut text = String::new();
        encode(&mut text, registry).map(|()| text)
    });
    let failed = |error| Fault::engine(format!("its metrics cannot be written: {error}"));
    encoded.await.map_err(failed)
}

/// A page in parts.
pub(crate) fn parts(page: String) -> impl Iterator<Item = MetricsPart> {
    let mut rest = page.into_bytes();
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let after = rest.split_off(PART_BYTES.min(rest.len()));
        let text = std::mem::replace(&mut rest, after);
        Some(MetricsPart { text })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_of_a_page_are_the_page() {
        for bytes in [0, 1, PART_BYTES, PART_BYTES + 1, 3 * PART_BYTES] {
            let page = "é".repeat(bytes.div_ceil(2));
            let parts: Vec<_> = parts(page.clone()).collect();
            assert!(parts.iter().all(|part| part.text.len() <= PART_BYTES));
            let text: Vec<u8> = parts.into_iter().flat_map(|part| part.text).collect();
            assert_eq!(text, page.into_bytes());
        }
    }

    #[tokio::test]
    async fn an_agent_that_stops_has_no_page() {
        let (_ready, receiver) = watch::channel(None);
        let refused = page(&receiver, false).await;
        assert!(matches!(refused, Err(Fault::ShuttingDown)));
    }
}

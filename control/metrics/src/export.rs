//! How programs export what is declared.

use std::fmt;

use prometheus_client::{
    encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder},
    metrics::{MetricType, counter::ConstCounter, gauge::ConstGauge},
    registry::{self, Registry},
};

use crate::{Kind, Metric};

/// Shows what is counted as it happens. The labels of a family are made by [`Metric::with`].
pub fn register<const N: usize>(
    registry: &mut Registry,
    metric: &'static Metric<N>,
    counted: impl registry::Metric,
) {
    registry.register(metric.kind.family(metric.name), metric.help, counted);
}

/// Writes what is computed for each request, one metric after the other.
#[derive(Debug)]
pub struct Out<'a>(DescriptorEncoder<'a>);

impl<'a> From<DescriptorEncoder<'a>> for Out<'a> {
    fn from(encoder: DescriptorEncoder<'a>) -> Self {
        Self(encoder)
    }
}

impl Out<'_> {
    /// All series of a counter or a gauge: the values of its labels, in their order, and its value.
    ///
    /// # Errors
    /// The page cannot be written, or the metric is neither of the two.
    pub fn put<const N: usize, V: Value>(
        &mut self,
        metric: &'static Metric<N>,
        series: impl IntoIterator<Item = ([String; N], V)>,
    ) -> fmt::Result {
        let kind = match metric.kind {
            Kind::Counter => MetricType::Counter,
            Kind::Gauge => MetricType::Gauge,
            Kind::Histogram | Kind::Info => return Err(fmt::Error),
        };
        let name = metric.kind.family(metric.name);
        let mut family = self.0.encode_descriptor(name, metric.help, None, kind)?;
        for (labels, value) in series {
            let labels = metric.with(labels);
            value.encode(metric.kind, family.encode_family(&labels)?)?;
        }
        Ok(())
    }
}

/// The value of a series.
pub trait Value {
    /// Writes it.
    ///
    /// # Errors
    /// The page cannot be written.
    fn encode(self, kind: Kind, encoder: MetricEncoder<'_>) -> fmt::Result;
}

macro_rules! values {
    ($($type:ty),*) => {
        $(impl Value for $type {
            fn encode(self, kind: Kind, encoder: MetricEncoder<'_>) -> fmt::Result {
                match kind {
                    Kind::Counter => ConstCounter::new(self).encode(encoder),
                    _ => ConstGauge::new(self).encode(encoder),
                }
            }
        })*
    };
}

values!(u64, f64);

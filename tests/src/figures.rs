//! `make figures`: experiments of papers, measured on this machine and drawn.
//!
//! A figure is a plot in SVG and the same numbers in JSON. A line is measured, or the result of a model, or a number that
//! a paper prints; the plot and the JSON say which.

mod drawing;
mod message_size;
mod plot;
mod start_up;
mod translation_cache;
mod working_set;
mod write_size;

use std::path::{Path, PathBuf};

use clap::ValueEnum;
use serde::Serialize;

use self::drawing::Drawing;
use crate::bench::{BenchError, Context};
use crate::report::{self, Origin, ReportError};

/// A figure of the paper "Alibaba Stellar", by its number there, or of another one, by its row in `docs/status.md`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Figure {
    /// Start-up time against memory size.
    #[value(name = "6")]
    StartUp,
    /// Bandwidth against the working set.
    #[value(name = "8")]
    WorkingSet,
    /// Latency and throughput of RDMA writes against their size.
    #[value(name = "13")]
    MessageSize,
    /// Throughput of the TransferEngine's writes against their size.
    #[value(name = "te8")]
    WriteSize,
}

/// Why there is no figure.
#[derive(Debug, thiserror::Error)]
pub enum FigureError {
    /// It could not be measured.
    #[error(transparent)]
    Bench(#[from] BenchError),
    /// It could not be drawn.
    #[error("the plot: {0}")]
    Plot(String),
    /// It could not be written.
    #[error(transparent)]
    Report(#[from] ReportError),
}

/// What the JSON holds.
#[derive(Serialize)]
struct Record<'a> {
    #[serde(flatten)]
    origin: Origin,
    #[serde(flatten)]
    drawing: &'a Drawing,
}

impl Figure {
    /// Measures it and writes `OUT/figure-NAME.svg` and `OUT/figure-NAME.json`. Returns the path of the plot.
    ///
    /// # Errors
    /// [`FigureError`].
    pub fn draw(self, context: &Context, out: &Path) -> Result<PathBuf, FigureError> {
        let drawing = match self {
            Self::StartUp => start_up::measure(context)?,
            Self::WorkingSet => working_set::measure(context)?,
            Self::MessageSize => message_size::measure(context)?,
            Self::WriteSize => write_size::measure(context)?,
        };
        let svg = plot::svg(&drawing).map_err(|error| FigureError::Plot(error.to_string()))?;
        let record = Record {
            origin: Origin::now(),
            drawing: &drawing,
        };
        let json = report::save(&record, out, &self.name())?;
        let path = json.with_extension("svg");
        let written = std::fs::write(&path, svg);
        written.map_err(|source| ReportError::Write {
            path: path.clone(),
            source,
        })?;
        Ok(path)
    }

    /// `figure-NAME`.
    pub fn name(self) -> String {
        let value = self.to_possible_value();
        let name = value.map(|value| value.get_name().to_owned());
        format!("figure-{}", name.unwrap_or_default())
    }
}

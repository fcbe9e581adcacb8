//! The fabric's page: one HTML document that shows leaves, spines, nodes, jobs and findings.
//!
//! Pure functions from a [`Fabric`] and a [`View`] to text: [`render`] makes the document, [`fragments`] the part that
//! changes, and [`event`] that part as a server-sent event. Their server sets [`HEADERS`]. Nothing is read, opened
//! or remembered here. The operator and `weft play` call it.
//!
//! Every name comes from somebody: maud escapes each value where it is written. The document asks for nothing from
//! elsewhere, and its one script and style are allowed by their hashes.

mod document;
mod drawing;
mod event;
mod fabric;
mod tables;
mod traffic;
mod units;
mod view;

pub use document::{HEADERS, fragments, render};
pub use event::{EVENTS_CONTENT_TYPE, event};
pub use fabric::{
    Destination, Devices, Fabric, Finding, HeatScale, Job, Leaf, Link, Node, NodeState, Pair, Phase,
};
pub use traffic::{Figures, Traffic};
pub use view::{JOBS_SHOWN, View};

//! The node agent: control API, files, certificates, metrics; embeds the transport.

pub mod files;

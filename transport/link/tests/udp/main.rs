//! The UDP link through its public interface only, over loopback and over a veth pair.

mod local;
mod loopback;
mod pair;
mod veth;

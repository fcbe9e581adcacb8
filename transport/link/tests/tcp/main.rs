//! The TCP link through its public interface only, over loopback.

mod hostile;
mod loopback;
mod pair;

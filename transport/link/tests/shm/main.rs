//! The link over shared memory through its public interface only: two ends in one process.

mod hostile;
mod loopback;
mod pair;

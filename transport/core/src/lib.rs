//! The sans-IO transport: wire format, paths, congestion, recovery, connections.

//! Turns a manifest, nodes and links into a transfer plan; pure, no I/O.

//! Workers, memory regions and requests over a link; used by messages only.

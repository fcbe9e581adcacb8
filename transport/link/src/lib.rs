//! How chunks leave the machine: UDP with GSO and GRO.

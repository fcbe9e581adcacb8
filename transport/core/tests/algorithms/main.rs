//! Path policies and congestion controls over lanes with rate, delay and a queue that drops at its end, in
//! virtual time: what an algorithm reaches, without a connection around it.

mod fairness;
mod hopper;
mod incast;
mod network;
mod spraying;

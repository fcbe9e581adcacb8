//! Runs the core's two ends on one thread for so many chunks, and nothing else: what an instruction
//! counter is pointed at (`hack/instructions.sh`).

use clap::Parser;
use std::io::Write as _;
use weft_core::wire::Integrity;
use weft_sim::load::{Load, LoadConfig};

/// Runs two connected cores for so many chunks.
#[derive(Parser)]
struct Args {
    /// Chunks to send.
    #[arg(long)]
    chunks: u64,
    /// Packets of a chunk.
    #[arg(long, default_value_t = 1)]
    packets: u32,
    /// Payload bytes of a packet. Little unless said: what is counted is the core's work, not
    /// copying and CRC32C.
    #[arg(long, default_value_t = 64)]
    payload: u16,
    /// Encrypt the packets.
    #[arg(long)]
    encrypt: bool,
}

fn main() {
    let args = Args::parse();
    let config = LoadConfig {
        payload: args.payload,
        packets: args.packets,
        paths: 128,
        lost: 1_000,
        reordered: 10_000,
        integrity: if args.encrypt {
            Integrity::Aead
        } else {
            Integrity::Sealed
        },
        seed: 1,
    };
    let mut pair = Load::new(config);
    pair.run(args.chunks);
    // Whole writes only: a few more than asked for.
    let _ = writeln!(std::io::stdout(), "chunks {}", pair.chunks());
}

//! Mixture of experts: the ranks dispatch their tokens to experts and combine what comes back.
//!
//! ```text
//! cargo run --release -p weft-transfer-engine --example moe
//! ```
//!
//! Each rank is a thread with an engine of its own, and has some experts. In a round each rank has new tokens, and each token
//! goes to `TOP_K` experts. A copy of a token for one expert is a *row*.
//!
//! 1. **Routes.** A rank scatters how many rows it has for each expert. All ranks then know the same table, and it says where
//!    each row goes: nobody asks a receiver for a place.
//! 2. **Speculative scatter.** The table takes a round trip. Meanwhile the first `PRIVATE_ROWS` rows for each rank
//!    go to a buffer that the receiver keeps for this sender alone.
//! 3. **Remainder.** The other rows go to one buffer that all senders share, at offsets that the table gives.
//! 4. **Combine.** The receiver has its experts compute, and scatters the results back. They land in the order in which
//!    their sender has sent the rows.
//!
//! There is no barrier: `Buffers` says why each buffer is free when it is written again. The result equals that of a plain
//! computation in one thread, bit by bit.
#![expect(clippy::print_stdout, reason = "the program talks to people")]

mod buffers;
mod model;
mod rank;

use std::error::Error;

use weft_transfer_engine::{TransferEngine, TransferEngineConfig};

use buffers::Buffers;
use model::{RANKS, TOKENS, Token, run_expert};
use rank::Rank;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

const ROUNDS: usize = 8;

fn main() -> Result<()> {
    let config = || TransferEngineConfig {
        ports_per_nic: 4,
        ..TransferEngineConfig::default()
    };
    let engines = (0..RANKS).map(|_| TransferEngine::start(config()));
    let engines = engines.collect::<std::result::Result<Vec<_>, _>>()?;
    let buffers = engines
        .iter()
        .map(Buffers::new)
        .collect::<Result<Vec<_>>>()?;
    // In a real program the descriptors go to the other ranks as messages.
    let descriptors: Vec<_> = buffers.iter().map(Buffers::descriptors).collect();
    let token = |round, rank| (0..TOKENS).map(move |number| Token::new(round, rank, number));

    let combined = std::thread::scope(|scope| {
        let start = |(number, (engine, here))| {
            let there = &descriptors;
            scope.spawn(move || -> Result<Vec<_>> {
                let rank = Rank::new(number, engine, here, there)?;
                let run = |round| rank.run(round, &token(round, number).collect::<Vec<_>>());
                (0..ROUNDS).map(run).collect()
            })
        };
        let threads: Vec<_> = engines.iter().zip(buffers).enumerate().map(start).collect();
        let ended = threads.into_iter().map(|thread| thread.join());
        let ended = ended.map(|it| it.unwrap_or_else(|_| Err("a rank has panicked".into())));
        ended.collect::<Result<Vec<_>>>()
    })?;

    for round in 0..ROUNDS {
        for (rank, combined) in combined.iter().enumerate() {
            for (token, combined) in token(round, rank).zip(&combined[round]) {
                let plain = token.combine(&token.experts.map(|it| run_expert(it, &token.hidden)));
                let is_equal = plain
                    .iter()
                    .zip(combined)
                    .all(|(a, b)| a.to_bits() == b.to_bits());
                if !is_equal {
                    return Err(format!("round {round}, rank {rank}: a token differs").into());
                }
            }
        }
        println!(
            "round {round}: the {} tokens of {RANKS} ranks equal the plain computation, bit by bit",
            RANKS * TOKENS
        );
    }
    Ok(())
}

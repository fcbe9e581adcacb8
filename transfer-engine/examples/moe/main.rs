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

use buffers::{Buffers, ROWS};
use model::{RANKS, TOKENS, Token, run_expert};
use rank::{Combined, Rank};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

const ROUNDS: usize = 8;

fn main() -> Result<()> {
    let mut engines = Vec::new();
    for _ in 0..RANKS {
        engines.push(TransferEngine::start(TransferEngineConfig::default())?);
    }
    let buffers: Result<Vec<_>> = engines.iter().map(Buffers::new).collect();
    let buffers = buffers?;
    // In a real program the descriptors go to the other ranks as messages.
    let there: Vec<_> = buffers.iter().map(Buffers::descriptors).collect();

    let ranks: Vec<Vec<Combined>> = std::thread::scope(|scope| {
        let start = |(number, (engine, here))| {
            let there = &there;
            scope.spawn(move || {
                let rank = Rank::new(number, engine, here, there)?;
                let run = |round| rank.run(round, &tokens(round, number));
                (0..ROUNDS).map(run).collect()
            })
        };
        let threads: Vec<_> = engines.iter().zip(buffers).enumerate().map(start).collect();
        let ended = threads.into_iter().map(|thread| thread.join());
        let ended = ended.map(|it| it.unwrap_or_else(|_| Err("a rank has panicked".into())));
        ended.collect::<Result<_>>()
    })?;

    for round in 0..ROUNDS {
        let combined = ranks.iter().map(|rounds| &rounds[round]);
        for (rank, combined) in combined.clone().enumerate() {
            if !is_equal(&tokens(round, rank), &combined.tokens) {
                return Err(format!("round {round}: the result of rank {rank} differs").into());
            }
        }
        let ahead: usize = combined.map(|it| it.rows_ahead).sum();
        println!(
            "round {round}: the {} tokens of {RANKS} ranks equal the plain computation, bit by bit: \
             {ahead} of {} rows went ahead of the routes",
            RANKS * TOKENS,
            RANKS * ROWS
        );
    }
    Ok(())
}

fn tokens(round: usize, rank: usize) -> Vec<Token> {
    let token = |number| Token::new(round, rank, number);
    (0..TOKENS).map(token).collect()
}

/// The plain computation, and whether it has the same bits.
fn is_equal(tokens: &[Token], combined: &[Vec<f32>]) -> bool {
    let plain = tokens.iter().map(|token| {
        let results = token.experts.map(|it| run_expert(it, &token.hidden));
        token.combine(&results)
    });
    let bits = |token: &[f32]| token.iter().map(|it| it.to_bits()).collect::<Vec<_>>();
    plain
        .map(|token| bits(&token))
        .eq(combined.iter().map(|token| bits(token)))
}

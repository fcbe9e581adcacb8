//! The model: what tokens are, where they go, and what experts compute.

pub(crate) const RANKS: usize = 4;
pub(crate) const EXPERTS_PER_RANK: usize = 2;
pub(crate) const EXPERTS: usize = RANKS * EXPERTS_PER_RANK;
/// Tokens of a rank in a round.
pub(crate) const TOKENS: usize = 64;
/// Experts of a token. All of them may be at one rank.
pub(crate) const TOP_K: usize = 2;
const _: () = assert!(TOP_K <= EXPERTS_PER_RANK);

pub(crate) const HIDDEN: usize = 256;
pub(crate) type Hidden = [f32; HIDDEN];

/// A token becomes the weighted sum of what its experts compute.
pub(crate) struct Token {
    pub(crate) hidden: Hidden,
    pub(crate) experts: [usize; TOP_K],
    weights: [f32; TOP_K],
}

impl Token {
    /// Token `number` of a rank. Where tokens go changes from round to round: anywhere; all to rank 0; all to their own rank;
    /// many to expert 0.
    pub(crate) fn new(round: usize, rank: usize, number: usize) -> Self {
        let mut state = ((round * RANKS + rank) * TOKENS + number + 1) as u64;
        let mut next = || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(99);
            (state >> 40) as usize
        };
        let one_of = |rank: usize, choice: usize| {
            let first = rank * EXPERTS_PER_RANK;
            [
                first + choice % EXPERTS_PER_RANK,
                first + (choice + 1) % EXPERTS_PER_RANK,
            ]
        };
        let experts = match round % 4 {
            0 => one_of(next() % RANKS, next()),
            1 => one_of(0, next()),
            2 => one_of(rank, next()),
            _ => {
                let first = next() % (EXPERTS + 4);
                let first = if first < EXPERTS { first } else { 0 };
                [first, (first + 1 + next() % (EXPERTS - 1)) % EXPERTS]
            }
        };
        let weight = next() as f32 / (1 << 24) as f32;
        Self {
            hidden: std::array::from_fn(|_| next() as f32 / (1 << 24) as f32 - 0.5),
            experts,
            weights: [weight, 1.0 - weight],
        }
    }

    pub(crate) fn combine(&self, results: &[Hidden; TOP_K]) -> Vec<f32> {
        let sum = |index| {
            let products = self
                .weights
                .iter()
                .zip(results)
                .map(|(weight, it)| weight * it[index]);
            products.sum()
        };
        (0..HIDDEN).map(sum).collect()
    }
}

pub(crate) fn run_expert(expert: usize, row: &Hidden) -> Hidden {
    let scale = 1.0 + expert as f32 / 7.0;
    std::array::from_fn(|index| row[index] * scale + row[(index + expert + 1) % HIDDEN] / scale)
}

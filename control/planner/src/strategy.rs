//! Who sends to whom. A strategy is one file that turns a line of nodes into a tree, and one entry
//! of [`Strategy::TREES`].

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

mod binomial;
mod chain;
mod direct;

/// How the data reaches the destinations. All of them are pipelined by block.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum Strategy {
    /// Whichever has the lowest estimate; fewer hops where two are equal.
    #[default]
    Auto,
    /// The source sends to every destination.
    Direct,
    /// Every node sends to the next one (Cepheus §II-B, Fig. 1c).
    Chain,
    /// Every node that has the data sends it to one that has not, and so on (Cepheus §II-B, Fig. 1b).
    Binomial,
}

/// Builds a tree: for node 0 (the source) and the nodes after it, whom each sends to, in order.
/// Node `i` of the line may only send to nodes that nobody else sends to.
type Tree = fn(nodes: usize) -> Vec<Vec<usize>>;

impl Strategy {
    /// The strategies that are trees, with what builds them; fewest hops first.
    pub(crate) const TREES: [(Self, Tree); 3] = [
        (Self::Direct, direct::tree),
        (Self::Binomial, binomial::tree),
        (Self::Chain, chain::tree),
    ];

    /// Every strategy.
    pub const ALL: [Self; 4] = [Self::Auto, Self::Direct, Self::Chain, Self::Binomial];

    /// The name as written in specs and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Direct => "direct",
            Self::Chain => "chain",
            Self::Binomial => "binomial",
        }
    }
}

impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Strategy {
    type Err = UnknownStrategy;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let named = Self::ALL
            .into_iter()
            .find(|strategy| strategy.name() == text);
        named.ok_or_else(|| UnknownStrategy(text.to_owned()))
    }
}

/// A word that names no strategy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no strategy: use auto, direct, chain or binomial")]
pub struct UnknownStrategy(String);

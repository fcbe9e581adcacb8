//! The policies' trait, and the one place where they are listed.

use super::{PathId, Rng, RttEstimator, oblivious, round_robin, single, two_choices};
use core::fmt;
use core::str::FromStr;
use serde::{Deserialize, Serialize};

/// What a policy may look at.
#[derive(Clone, Copy, Debug)]
pub struct PathView<'a> {
    live: &'a [PathId],
    rtt: &'a [RttEstimator],
}

impl<'a> PathView<'a> {
    pub(super) fn new(live: &'a [PathId], rtt: &'a [RttEstimator]) -> PathView<'a> {
        PathView { live, rtt }
    }

    /// The paths to choose among; never empty.
    pub fn live(&self) -> &'a [PathId] {
        self.live
    }

    /// The round-trip time of a path.
    pub fn rtt(&self, path: PathId) -> RttEstimator {
        self.rtt[path.0 as usize]
    }

    /// A live path drawn evenly.
    pub fn draw(&self, rng: &mut Rng) -> PathId {
        // Lemire's multiply-shift: even enough for at most 256 out of 2^32.
        let draw = rand_core::Rng::next_u32(rng);
        self.live[((u64::from(draw) * self.live.len() as u64) >> 32) as usize]
    }
}

/// Chooses the path of each chunk. One file per policy; listed in [`PolicyKind`].
pub trait PathPolicy: fmt::Debug + Send {
    /// The path of the next chunk, one of `view.live()`.
    fn choose(&mut self, view: PathView<'_>, rng: &mut Rng) -> PathId;
}

macro_rules! policies {
    ($($(#[$doc:meta])* $kind:ident = $name:literal => $new:expr,)*) => {
        /// The path policies there are.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
        #[serde(rename_all = "kebab-case")]
        pub enum PolicyKind { $($(#[$doc])* $kind,)* }

        impl PolicyKind {
            /// Every policy.
            pub const ALL: &'static [PolicyKind] = &[$(PolicyKind::$kind,)*];

            /// Its name on the command line and in YAML.
            pub const fn name(self) -> &'static str {
                match self { $(PolicyKind::$kind => $name,)* }
            }

            pub(super) fn build(self) -> Box<dyn PathPolicy> {
                match self { $(PolicyKind::$kind => Box::new($new),)* }
            }
        }
    };
}

policies! {
    /// Always the first live path: what one RDMA connection does today.
    Single = "single" => single::Single,
    /// The live paths in turn.
    RoundRobin = "round-robin" => round_robin::RoundRobin::default(),
    /// Drawn evenly for every chunk (STELLAR, section 7).
    Oblivious = "oblivious" => oblivious::Oblivious,
    /// The one with the lower round-trip time of two drawn (UCCL, section 4.1).
    TwoChoices = "two-choices" => two_choices::TwoChoices,
}

impl fmt::Display for PolicyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A policy name that is none.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("no path policy is called {0:?}: use single, round-robin, oblivious or two-choices")]
pub struct UnknownPolicy(pub String);

impl FromStr for PolicyKind {
    type Err = UnknownPolicy;
    fn from_str(name: &str) -> Result<PolicyKind, UnknownPolicy> {
        let found = PolicyKind::ALL.iter().find(|kind| kind.name() == name);
        found.copied().ok_or_else(|| UnknownPolicy(name.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_policy_is_found_by_its_name_and_named_in_the_error() {
        let error = "spray"
            .parse::<PolicyKind>()
            .expect_err("no such policy")
            .to_string();
        for &kind in PolicyKind::ALL {
            assert_eq!(kind.name().parse(), Ok(kind));
            assert!(error.contains(kind.name()), "{error} does not name {kind}");
        }
    }
}

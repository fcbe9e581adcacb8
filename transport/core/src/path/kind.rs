//! The list of the path policies: their names, their parameters, and one connection's policy as an enum.

use super::policy::{PathPolicy, PathSample};
use super::{
    PathId, PathView, Rng, Time, best_rtt, hopper, oblivious, reps, round_robin, single,
    two_choices,
};
use crate::congestion::CongestionKind;
use core::fmt;
use core::str::FromStr;
use serde::{Deserialize, Serialize};

macro_rules! policies {
    ($($(#[$doc:meta])* $kind:ident $(($parameters:ident: $type:ty))? = $name:literal => $policy:ty,)*) => {
        /// The path policies there are, with their parameters.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
        pub enum PolicyKind { $($(#[$doc])* $kind $(($type))?,)* }

        /// One connection's policy with its state.
        #[expect(clippy::large_enum_variant, reason = "one in a connection, which is boxed as a whole")]
        #[derive(Clone, Debug, Serialize, Deserialize)]
        pub enum Policy { $($(#[$doc])* $kind($policy),)* }

        impl PolicyKind {
            /// Every policy, with its default parameters.
            pub const ALL: &'static [PolicyKind] = &[$(PolicyKind::$kind $((<$type>::DEFAULT))?,)*];

            /// Its name on the command line and in YAML.
            pub const fn name(self) -> &'static str {
                match self { $(PolicyKind::$kind { .. } => $name,)* }
            }

            /// A policy that has seen nothing, beside `congestion`.
            pub fn build(self, congestion: CongestionKind) -> Policy {
                match self {
                    $(PolicyKind::$kind $(($parameters))? => Policy::$kind(<$policy>::new($($parameters, congestion)?)),)*
                }
            }

            /// Sets one parameter; `None` where there is none of that name, or it is out of range.
            fn set(&mut self, key: &str, value: u16) -> Option<()> {
                match self {
                    $(PolicyKind::$kind $(($parameters))? => {
                        None $(.or_else(|| $parameters.set(key, value)))?
                    })*
                }
            }
        }

        impl PathPolicy for Policy {
            #[inline]
            fn choose(&mut self, view: &PathView<'_>, rng: &mut Rng) -> PathId {
                match self { $(Policy::$kind(policy) => policy.choose(view, rng),)* }
            }
            #[inline]
            fn keeps(&self, path: PathId) -> bool {
                match self { $(Policy::$kind(policy) => policy.keeps(path),)* }
            }
            #[inline]
            fn on_sent(&mut self, now: Time, path: PathId, bytes: u32) {
                match self { $(Policy::$kind(policy) => policy.on_sent(now, path, bytes),)* }
            }
            #[inline]
            fn on_ack(&mut self, view: &PathView<'_>, sample: &PathSample) {
                match self { $(Policy::$kind(policy) => policy.on_ack(view, sample),)* }
            }
            #[inline]
            fn on_probe_answer(&mut self, view: &PathView<'_>, sample: &PathSample) {
                match self { $(Policy::$kind(policy) => policy.on_probe_answer(view, sample),)* }
            }
            fn on_loss(&mut self, now: Time, path: PathId, packets: u32) {
                match self { $(Policy::$kind(policy) => policy.on_loss(now, path, packets),)* }
            }
            #[inline]
            fn poll_probe(&mut self) -> Option<PathId> {
                match self { $(Policy::$kind(policy) => policy.poll_probe(),)* }
            }
            #[inline]
            fn resumes_at(&self) -> Time {
                match self { $(Policy::$kind(policy) => policy.resumes_at(),)* }
            }
            fn rebase(&mut self, now: Time) {
                match self { $(Policy::$kind(policy) => policy.rebase(now),)* }
            }
        }
    };
}

policies! {
    /// Always the first live path: what one RDMA connection does today.
    Single = "single" => single::Single,
    /// The live paths in turn.
    RoundRobin = "round-robin" => round_robin::RoundRobin,
    /// Drawn evenly for every chunk (STELLAR, section 7).
    Oblivious = "oblivious" => oblivious::Oblivious,
    /// The one with the lower round-trip time of two drawn (UCCL, section 4.1).
    TwoChoices = "two-choices" => two_choices::TwoChoices,
    /// The one with the lowest round-trip time (STELLAR, section 7).
    BestRtt = "best-rtt" => best_rtt::BestRtt,
    /// Paths whose data came back soon and unmarked are used again (REPS).
    Reps = "reps" => reps::Reps,
    /// One path until another is clearly better (Hopper).
    Hopper(parameters: hopper::HopperParameters) = "hopper" => hopper::Hopper,
}

impl Default for PolicyKind {
    /// The policy that delivers most over unequal spines without losing on equal ones.
    fn default() -> PolicyKind {
        PolicyKind::Reps
    }
}

impl fmt::Display for PolicyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        match self {
            PolicyKind::Hopper(parameters) if *parameters != hopper::HopperParameters::DEFAULT => {
                write!(f, ":{parameters}")
            }
            _ => Ok(()),
        }
    }
}

/// Text that names no policy, or a parameter that the policy does not have.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "`{0}` is not {names}; hopper takes {hopper} after a colon, in percent",
    names = Names,
    hopper = hopper::HopperParameters::DEFAULT
)]
pub struct UnknownPolicy(pub String);

/// The names of the policies as a list for an error.
struct Names;

impl fmt::Display for Names {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let last = PolicyKind::ALL.len() - 1;
        for (i, kind) in PolicyKind::ALL.iter().enumerate() {
            let separator = match i {
                0 => "",
                _ if i == last => " or ",
                _ => ", ",
            };
            write!(f, "{separator}{}", kind.name())?;
        }
        Ok(())
    }
}

impl FromStr for PolicyKind {
    type Err = UnknownPolicy;
    fn from_str(text: &str) -> Result<PolicyKind, UnknownPolicy> {
        let (name, parameters) = match text.split_once(':') {
            Some((name, parameters)) => (name, Some(parameters)),
            None => (text, None),
        };
        let found = PolicyKind::ALL.iter().find(|kind| kind.name() == name);
        let unknown = || UnknownPolicy(text.to_owned());
        let mut kind = found.copied().ok_or_else(unknown)?;
        for pair in parameters.into_iter().flat_map(|pairs| pairs.split(',')) {
            let (key, value) = pair.split_once('=').ok_or_else(unknown)?;
            let value = value.parse().map_err(|_| unknown())?;
            kind.set(key, value).ok_or_else(unknown)?;
        }
        Ok(kind)
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

    #[test]
    fn hp1_every_parameter_of_table_1_is_set_by_name_and_shown_again() {
        let text = "hopper:alpha=50,th-probe=120,th-cong=200,ttl-probe=800,delta=70";
        let kind: PolicyKind = text.parse().expect("all of hopper's parameters");
        assert_eq!(kind.to_string(), text);
        for wrong in [
            "hopper:beta=1",
            "hopper:alpha",
            "hopper:alpha=x",
            "single:alpha=1",
            "hopper:alpha=101",
        ] {
            let error = wrong.parse::<PolicyKind>().expect_err(wrong).to_string();
            assert!(
                error.contains(wrong) && error.contains("th-cong=250"),
                "{error}"
            );
        }
    }
}

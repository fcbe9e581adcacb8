//! Limits how often one address calls Enroll, which needs no certificate, and how often one node asks about the tokens that
//! its agent was sent, which need none either.

use std::{net::IpAddr, num::NonZeroU32};

use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};

use crate::fault::Fault;

/// Calls of one address in a second. Where all nodes share an address, behind a NAT, 5,000 of them enroll in
/// 100 s; faster is of no use, for each also needs two writes.
const CALLS_PER_SECOND: NonZeroU32 = NonZeroU32::new(50).unwrap();
/// Calls of one address at once.
const BURST: NonZeroU32 = NonZeroU32::new(100).unwrap();
/// Callers that are remembered before those are forgotten that have not called for some seconds.
const CALLERS: usize = 4096;

/// Counts calls by the address that they come from.
pub(crate) struct EnrollmentLimit(DefaultKeyedRateLimiter<IpAddr>);

impl Default for EnrollmentLimit {
    fn default() -> Self {
        Self(RateLimiter::keyed(
            Quota::per_second(CALLS_PER_SECOND).allow_burst(BURST),
        ))
    }
}

impl EnrollmentLimit {
    /// Counts a call, or refuses it.
    pub(crate) fn check(&self, address: IpAddr) -> Result<(), Fault> {
        if self.0.len() > CALLERS {
            self.0.retain_recent();
        }
        let address = address.to_canonical();
        let checked = self.0.check_key(&address);
        checked.map_err(|_| Fault::TooManyCalls {
            address,
            per_second: CALLS_PER_SECOND,
        })
    }
}

/// Questions of one node in a second: an agent asks about one new token, and once a minute about each reader of metrics, of
/// whom a cluster has a few.
const REVIEWS_PER_SECOND: NonZeroU32 = NonZeroU32::new(2).unwrap();
/// Questions of one node at once.
const REVIEWS_BURST: NonZeroU32 = NonZeroU32::new(20).unwrap();

/// Counts the questions about tokens of readers of metrics by the node that asks.
pub(crate) struct ReviewLimit(DefaultKeyedRateLimiter<String>);

impl Default for ReviewLimit {
    fn default() -> Self {
        let quota = Quota::per_second(REVIEWS_PER_SECOND).allow_burst(REVIEWS_BURST);
        Self(RateLimiter::keyed(quota))
    }
}

impl ReviewLimit {
    /// Counts a question, or refuses it.
    pub(crate) fn check(&self, node: &str) -> Result<(), Fault> {
        if self.0.len() > CALLERS {
            self.0.retain_recent();
        }
        let checked = self.0.check_key(&node.to_owned());
        checked.map_err(|_| Fault::TooManyReviews {
            per_second: REVIEWS_PER_SECOND,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn each_address_has_a_limit_of_its_own() {
        let limit = EnrollmentLimit::default();
        let one: IpAddr = "10.0.0.1".parse().unwrap();
        let mut calls = 0;
        let refused = loop {
            match limit.check(one) {
                Ok(()) => calls += 1,
                Err(fault) => break fault,
            }
        };
        assert!(calls >= BURST.get(), "{calls}");
        assert!(refused.to_string().contains("10.0.0.1"), "{refused}");
        // The same address as a listener of both families shows it.
        assert!(limit.check("::ffff:10.0.0.1".parse().unwrap()).is_err());
        assert!(limit.check("10.0.0.2".parse().unwrap()).is_ok());
    }

    #[test]
    fn addresses_that_have_not_called_lately_are_forgotten() {
        let limit = EnrollmentLimit::default();
        for number in 0..=CALLERS as u32 {
            limit.check(IpAddr::V4(number.into())).unwrap();
        }
        let begun = Instant::now();
        while limit.0.len() > CALLERS {
            assert!(
                begun.elapsed() < Duration::from_secs(10),
                "{}",
                limit.0.len()
            );
            // Whether this one is refused is not the query.
            let _ = limit.check(IpAddr::V4(7.into()));
        }
    }
}

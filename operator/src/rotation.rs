//! One authority follows another, without a moment at which two nodes do not trust each other.
//!
//! ```text
//! A signs; A is trusted          at two thirds of A's life, or on request: B is made
//! A signs; A and B are trusted   until every certificate has been renewed, and B so become known
//! B signs; B and A are trusted   until every certificate of A has ended
//! B signs; B is trusted
//! ```
//!
//! Agents are told which authorities to trust whenever they get a certificate, which lives a day. So a
//! day and an hour, for clocks that are apart, is all that has to be waited for at each step: who has a
//! certificate by then knows. Pure: what is kept and the time go in, what is to be kept comes out.

use time::{Duration, OffsetDateTime};
use weft_identity::{
    CLOCK_SKEW,
    authority::{Authority, AuthorityError, Identity, KeptAuthority, VALID},
};
use x509_parser::pem::Pem;

/// By then every certificate that was valid at the beginning has been renewed, or has ended.
pub const OVERLAP: Duration =
    Duration::seconds(VALID.whole_seconds() + CLOCK_SKEW.as_secs().cast_signed());

/// What happens next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Another authority is made, and trusted from now on.
    Announce,
    /// When the last step was is not known any more; the next comes as long after now.
    Wait,
    /// It signs from now on.
    Switch,
    /// The one before it is not trusted any more.
    Retire,
}

impl std::fmt::Display for Step {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Announce => "another is made and trusted; it signs in 25 h",
            Self::Wait => "when its last step was had been lost; the next one is in 25 h",
            Self::Switch => "the new one signs; the old one is trusted for 25 h more",
            Self::Retire => "the old one is not trusted any more",
        })
    }
}

/// The step that is due, and what is to be kept from then on. `since` is when the last step was;
/// `asked`: somebody wants another authority.
pub fn due(
    kept: &KeptAuthority,
    since: Option<OffsetDateTime>,
    asked: bool,
    now: OffsetDateTime,
) -> Result<Option<(Step, KeptAuthority)>, AuthorityError> {
    let certificates = split(&kept.certificates);
    let waited = since.is_some_and(|since| now - since >= OVERLAP);
    match (certificates.as_slice(), kept.next.is_empty()) {
        ([only], true) if asked || is_old(only, now) => announce(kept).map(Some),
        // Somebody has made the Secret anew, or has taken the note away: nobody knows how long ago the
        // step was, so it counts as having been now.
        ([_, _], false) if since.is_none() => Ok(Some((Step::Wait, kept.clone()))),
        ([old, new], false) if waited => Ok(Some((
            Step::Switch,
            KeptAuthority {
                certificates: [*new, *old].concat(),
                key: kept.next.clone(),
                next: String::new(),
                tickets: kept.tickets.clone(),
            },
        ))),
        ([new, _], true) if waited => Ok(Some((
            Step::Retire,
            KeptAuthority {
                certificates: (*new).to_owned(),
                ..kept.clone()
            },
        ))),
        // Nothing is due, or somebody has put together what is trusted: that stays.
        _ => Ok(None),
    }
}

fn announce(kept: &KeptAuthority) -> Result<(Step, KeptAuthority), AuthorityError> {
    let Identity { certificate, key } = Authority::root(crate::NAME)?;
    let kept = KeptAuthority {
        certificates: [kept.certificates.trim_end(), "\n", &certificate].concat(),
        next: key,
        ..kept.clone()
    };
    Ok((Step::Announce, kept))
}

/// Less than a third of its life is left.
fn is_old(certificate: &str, now: OffsetDateTime) -> bool {
    let Some(Ok(pem)) = Pem::iter_from_buffer(certificate.as_bytes()).next() else {
        return false;
    };
    pem.parse_x509().is_ok_and(|certificate| {
        let validity = certificate.validity();
        let begin = validity.not_before.timestamp();
        let life = validity.not_after.timestamp() - begin;
        now.unix_timestamp() >= begin + life / 3 * 2
    })
}

/// The certificates of a text, each with all that belongs to it.
fn split(text: &str) -> Vec<&str> {
    const END: &str = "-----END CERTIFICATE-----\n";
    text.split_inclusive(END)
        .filter(|part| part.contains("BEGIN CERTIFICATE"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trusts(kept: &KeptAuthority, certificate: &str) -> bool {
        let parse = |text: &str| {
            Pem::iter_from_buffer(text.as_bytes())
                .next()
                .unwrap()
                .unwrap()
        };
        let certificate = parse(certificate);
        let certificate = certificate.parse_x509().unwrap();
        split(&kept.certificates).into_iter().any(|authority| {
            let authority = parse(authority);
            let authority = authority.parse_x509().unwrap();
            certificate
                .verify_signature(Some(authority.public_key()))
                .is_ok()
        })
    }

    fn issued(kept: &KeptAuthority) -> String {
        let authority = Authority::from_kept("weft", kept.clone()).unwrap();
        authority.node("n1").unwrap().certificate
    }

    #[test]
    fn at_no_step_is_a_certificate_unknown_that_is_still_valid() {
        let mut now = OffsetDateTime::now_utc();
        let mut kept = Authority::new("weft").unwrap().to_kept();
        let first = kept.clone();
        // Issued before a step: known until it ends, which is before the next.
        let mut before = issued(&kept);
        let (mut since, mut asked) = (None, true);
        let mut steps = Vec::new();
        while let Some((step, next)) = due(&kept, since, asked, now).unwrap() {
            assert!(trusts(&next, &before), "{step:?}");
            // What the next authority issues is known to who has what was given before.
            assert!(trusts(&kept, &issued(&next)), "{step:?}");
            assert!(trusts(&next, &issued(&next)), "{step:?}");
            assert_eq!(next.tickets, first.tickets);
            before = issued(&next);
            (kept, since, asked) = (next, Some(now), false);
            steps.push(step);
            // Not a minute earlier.
            let early = now + OVERLAP - Duration::minutes(1);
            assert!(due(&kept, since, false, early).unwrap().is_none());
            now += OVERLAP;
        }
        assert_eq!(steps, [Step::Announce, Step::Switch, Step::Retire]);
        assert!(!trusts(&kept, &issued(&first)));
        assert!(kept.next.is_empty() && kept.key != first.key);
    }

    #[test]
    fn an_authority_is_followed_by_another_when_a_third_of_its_life_is_left() {
        let kept = Authority::new("weft").unwrap().to_kept();
        let now = OffsetDateTime::now_utc();
        let at = |days| due(&kept, None, false, now + Duration::days(days)).unwrap();
        assert!(at(0).is_none() && at(240).is_none());
        assert_eq!(at(245).unwrap().0, Step::Announce);
    }

    #[test]
    fn a_rotation_whose_last_step_nobody_remembers_goes_on_later() {
        let kept = Authority::new("weft").unwrap().to_kept();
        let mut now = OffsetDateTime::now_utc();
        let (_, announced) = due(&kept, None, true, now).unwrap().unwrap();
        let (step, same) = due(&announced, None, false, now).unwrap().unwrap();
        assert!(step == Step::Wait && same == announced);
        let since = Some(now);
        assert!(due(&same, since, false, now).unwrap().is_none());
        now += OVERLAP;
        assert_eq!(
            due(&same, since, false, now).unwrap().unwrap().0,
            Step::Switch
        );
    }

    #[test]
    fn what_somebody_put_together_is_left_alone() {
        let mut kept = Authority::new("weft").unwrap().to_kept();
        let other = Authority::new("weft").unwrap().to_kept();
        kept.certificates.push_str(&other.certificates);
        let late = OffsetDateTime::now_utc() + Duration::days(300);
        assert!(due(&kept, None, true, late).unwrap().is_none());
    }
}

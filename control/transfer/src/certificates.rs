//! The operator's certificates as a caller of agents, one for each fabric.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use rustls::ClientConfig;
use tokio::time::Instant;
use weft_identity::authority::{Authority, AuthorityError, VALID};

use crate::tls;

/// A certificate is used for two thirds of its life. A third is left for clocks of agents that are wrong
/// (`CLOCK_SKEW`), and for connections that are made again by themselves.
const USED_FOR: Duration = Duration::from_secs(VALID.whole_seconds().unsigned_abs() / 3 * 2);

/// A certificate in use.
#[derive(Clone)]
pub(crate) struct Certificate {
    /// Grows with every certificate of this process.
    pub(crate) number: u64,
    /// The same for all agents of the fabric.
    pub(crate) tls: Arc<ClientConfig>,
    until: Instant,
}

/// All of them. Owned by the pool.
pub(crate) struct Certificates {
    used_for: Duration,
    made: Mutex<(u64, BTreeMap<String, Certificate>)>,
}

impl Default for Certificates {
    fn default() -> Self {
        Self::used_for(USED_FOR)
    }
}

impl Certificates {
    pub(crate) fn used_for(used_for: Duration) -> Self {
        Self {
            used_for,
            made: Mutex::default(),
        }
    }

    /// The certificate to use now in the authority's fabric; made where there is none.
    pub(crate) fn current(&self, authority: &Authority) -> Result<Certificate, AuthorityError> {
        let now = Instant::now();
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        let (count, by_fabric) = &mut *made;
        if let Some(certificate) = by_fabric.get(authority.fabric())
            && now < certificate.until
        {
            return Ok(certificate.clone());
        }
        let operator = authority.operator()?;
        let tls = tls::config(authority.certificate(), &operator)?;
        *count += 1;
        let certificate = Certificate {
            number: *count,
            tls,
            until: now + self.used_for,
        };
        by_fabric.insert(authority.fabric().to_owned(), certificate.clone());
        Ok(certificate)
    }
}

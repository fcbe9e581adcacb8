//! A connection as bytes: the data path outlives an upgrade of the program that runs it.
//!
//! Versioned: a program refuses what another version wrote rather than guess. Round trips that span the
//! change (times of transmission, echoes) are not measured.

use super::{
    Congestion, CongestionControl, Connection, ConnectionConfig, Drops, Event, Failure, Grants,
    IDLE_AFTER, PacketNumbers, PathPolicy, Policy, ReceiveHalf, SavedKeys, SendHalf, Stats, Timer,
    TimerTable,
};
use crate::units::Time;
use crate::wire::Cipher;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// Changes whenever the layout does.
const SAVED_VERSION: u16 = 21;

#[derive(Serialize)]
struct SavedRef<'a> {
    config: ConnectionConfig,
    keys: SavedKeys,
    transmit: &'a SendHalf,
    receive: &'a ReceiveHalf,
    policy: &'a Policy,
    congestion: &'a Congestion,
    grants: &'a Option<Grants>,
    events: &'a VecDeque<Event>,
    controls: &'a PacketNumbers,
    drops: &'a Drops,
    stats: &'a Stats,
    failed: Option<Failure>,
}

#[derive(Deserialize)]
struct Saved {
    config: ConnectionConfig,
    keys: SavedKeys,
    transmit: SendHalf,
    receive: ReceiveHalf,
    policy: Policy,
    congestion: Congestion,
    grants: Option<Grants>,
    events: VecDeque<Event>,
    controls: PacketNumbers,
    drops: Drops,
    stats: Stats,
    failed: Option<Failure>,
}

/// Why saved bytes are no connection.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RestoreError {
    /// Written by another version.
    #[error("the saved connection is of version {0}, this program reads {SAVED_VERSION}")]
    Version(u16),
    /// Cut off or damaged.
    #[error("the saved connection is cut off or damaged: {0}")]
    Damaged(String),
    /// It has another number of paths than the connections of this endpoint.
    #[error(
        "the saved connection has {saved} paths, this endpoint's have {here}: set `paths` as it was, or connect again"
    )]
    Paths {
        /// Of the saved connection.
        saved: u16,
        /// Of the endpoint.
        here: u16,
    },
}

impl Connection {
    /// The connection as bytes. Contains its secrets: hand it to nobody but the next program. The
    /// connection ends here, so that no packet number is used twice: each is a nonce.
    ///
    /// ```compile_fail,E0382
    /// fn twice(connection: weft_core::connection::Connection) -> [Vec<u8>; 2] {
    ///     [connection.save(), connection.save()]
    /// }
    /// ```
    pub fn save(mut self) -> Vec<u8> {
        let saved = self.to_bytes();
        self.receive.unshare();
        saved
    }

    /// How many bytes [`Connection::save`] would write.
    pub fn saved_bytes(&self) -> usize {
        self.to_bytes().len()
    }

    fn to_bytes(&self) -> Vec<u8> {
        let [send_secret, receive_secret] = self.keys.secrets().map(Clone::clone);
        let saved = SavedRef {
            config: ConnectionConfig {
                send_secret,
                receive_secret,
                ..self.config.clone()
            },
            keys: self.keys.save(),
            transmit: &self.transmit,
            receive: &self.receive,
            policy: &self.policy,
            congestion: &self.congestion,
            grants: &self.grants,
            events: &self.events,
            controls: &self.controls,
            drops: &self.drops,
            stats: &self.stats,
            failed: self.failed,
        };
        let mut out = SAVED_VERSION.to_le_bytes().to_vec();
        // Serialising plain data into a vector has no way to fail.
        if let Ok(body) = postcard::to_allocvec(&saved) {
            out.extend_from_slice(&body);
        }
        out
    }

    /// The connection that [`Connection::save`] wrote. `now` is of the same clock, a machine's: echoes of what
    /// was sent before may yet come, and are known by being older than this moment.
    ///
    /// # Errors
    /// [`RestoreError`].
    pub fn restore(
        bytes: &[u8],
        cipher: &'static dyn Cipher,
        now: Time,
    ) -> Result<Connection, RestoreError> {
        let cut = || RestoreError::Damaged("shorter than its version".to_owned());
        let (version, body) = bytes.split_first_chunk().ok_or_else(cut)?;
        let version = u16::from_le_bytes(*version);
        if version != SAVED_VERSION {
            return Err(RestoreError::Version(version));
        }
        let saved: Saved =
            postcard::from_bytes(body).map_err(|error| RestoreError::Damaged(error.to_string()))?;
        let (mut transmit, mut timers) = (saved.transmit, TimerTable::default());
        if saved.failed.is_none() {
            transmit.rebase(now, saved.config.stall_timeout, &mut timers);
            timers.set(Timer::Idle, now + IDLE_AFTER);
            timers.set(Timer::KeepAlive, now);
            if transmit.is_revoking() {
                timers.set(Timer::Revocation, now);
            }
        }
        let (mut policy, mut congestion) = (saved.policy, saved.congestion);
        policy.rebase(now);
        congestion.rebase(now);
        let mut grants = saved.grants;
        if let Some(grants) = &mut grants {
            grants.rebase();
        }
        let mut connection = Connection {
            keys: saved.config.keys(cipher, saved.keys),
            policy,
            congestion,
            grants,
            transmit,
            receive: saved.receive,
            events: saved.events,
            controls: saved.controls,
            drops: saved.drops,
            stats: saved.stats,
            failed: saved.failed,
            timers,
            active: now,
            since: now,
            unproven: 0,
            keep_alive: None,
            config: saved.config,
        };
        connection.set_acknowledgement_timer();
        Ok(connection)
    }
}

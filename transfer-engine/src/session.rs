//! The connections with a peer that one set-up makes. They begin and end together.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, OnceLock};

use tokio::sync::Notify;
use weft_engine::{Failure, LinkInUse, Post};

use crate::failure::Cause;
use crate::operations::{Connection, PartId};

/// The connections with a peer. Each is sprayed over the NICs of both ends.
pub(crate) struct Session {
    /// For all but sends.
    pub(crate) unordered: Arc<Connection>,
    /// For sends: in order.
    pub(crate) messages: Arc<Connection>,
    /// Which link it goes over, and to which host, at the end that called.
    pub(crate) link: OnceLock<(LinkInUse, IpAddr)>,
    /// Why it is over.
    pub(crate) ended: OnceLock<Cause>,
    /// What a connection of it failed by. It may come after the end that the peer made of the session for it.
    pub(crate) failure: OnceLock<Failure>,
    /// Reads that wait until another read is done.
    pub(crate) reads: Mutex<VecDeque<(PartId, Post, Arc<Connection>)>>,
    /// Whether one of the ends has several NICs.
    pub(crate) has_several_nics: bool,
    /// Ends the control connection.
    pub(crate) hang_up: Notify,
}

impl Session {
    pub(crate) fn new([unordered, messages]: [Arc<Connection>; 2], has_several_nics: bool) -> Self {
        Self {
            unordered,
            messages,
            link: OnceLock::new(),
            ended: OnceLock::new(),
            failure: OnceLock::new(),
            reads: Mutex::default(),
            has_several_nics,
            hang_up: Notify::new(),
        }
    }

    pub(crate) fn connections(&self) -> [&Arc<Connection>; 2] {
        [&self.unordered, &self.messages]
    }
}

//! What only the replica that leads can answer from.

use tokio::sync::mpsc;
use weft_transfer::ConnectionPool;

use crate::controllers::Query;

/// The leader's means to answer calls.
#[derive(Clone)]
pub struct Leader {
    /// The connections to agents.
    pub pool: ConnectionPool,
    /// To the controllers, who know the answers.
    pub queries: mpsc::Sender<Query>,
    /// The leader's epoch, with which agents are asked.
    pub epoch: u64,
}

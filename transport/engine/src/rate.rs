//! Memory-to-memory rate between two engines: the `raw` row of `make bench`, and the connection that
//! its other rows measure on.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, unbounded};
use weft_core::units::ConnectionId;
use weft_core::wire::Secret;

use crate::engine::{Engine, LocalEnd, RemoteEnd, WriteRequest};
use crate::error::EngineError;
use crate::event::{Event, Failure};
use weft_core::memory::DomainId;

const DOMAIN: DomainId = DomainId(0);
/// Nothing measured here takes as long for one message.
const PATIENCE: Duration = Duration::from_secs(60);

/// How the writes are made.
#[derive(Debug, Clone, Copy)]
pub struct Writes {
    /// Bytes of each.
    pub bytes: usize,
    /// How many in all.
    pub count: u64,
    /// How many under way at a time.
    pub outstanding: u64,
    /// Bytes of memory at the sender that the writes go through in turn. More than the caches hold is
    /// what a transfer of anything real meets; one write's worth measures the caches. The receiver
    /// has a slot for each write under way and uses it again, as receivers do.
    pub memory: usize,
}

/// A connection between two engines of one process, and what happens at its ends.
#[derive(Debug)]
pub struct Joined {
    /// The sender's id of it.
    pub near: ConnectionId,
    /// The receiver's.
    pub far: ConnectionId,
    /// What happens at the sender.
    pub sent: Receiver<Event>,
    /// What happens at the receiver.
    pub arrived: Receiver<Event>,
}

/// Why there is no rate.
#[derive(Debug, thiserror::Error)]
pub enum RateError {
    /// The engines refused to work together.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The connection failed on the way.
    #[error("the connection failed: {0}")]
    Failed(Failure),
    /// No write was acknowledged for a minute.
    #[error("no write was acknowledged for {PATIENCE:?}")]
    Silent,
}

/// Connects two engines of this process, in the domain that everything measured is in.
pub fn join(sender: &Engine, receiver: &Engine) -> Result<Joined, EngineError> {
    // Both ends are ours and nobody else's data: the secrets need not be.
    let secrets = [Secret([1; 32]), Secret([2; 32])];
    let near = sender.allocate(DOMAIN, secrets[0].clone());
    let far = receiver.allocate(DOMAIN, secrets[1].clone());
    let (events, arrived) = unbounded();
    receiver.connect(far.id, other_end(&near, &secrets[0]), events)?;
    let (events, sent) = unbounded();
    sender.connect(near.id, other_end(&far, &secrets[1]), events)?;
    Ok(Joined {
        near: near.id,
        far: far.id,
        sent,
        arrived,
    })
}

/// Writes from the memory of `sender` to that of `receiver`, both with threads of their own, and
/// answers payload bytes per second from the first write to the last acknowledgement.
pub fn write_rate(sender: &Engine, receiver: &Engine, writes: Writes) -> Result<f64, RateError> {
    let joined = join(sender, receiver)?;
    let places = (writes.memory / writes.bytes).max(1);
    let slots = writes.outstanding.max(1);
    let key = receiver.register(DOMAIN, vec![0xA5; slots as usize * writes.bytes].into());
    let sources: Vec<Arc<Box<[u8]>>> = (0..places)
        .map(|place| Arc::new(vec![place as u8; writes.bytes].into()))
        .collect();
    let request = |write: u64| WriteRequest {
        connection: joined.near,
        source: Arc::clone(&sources[write as usize % places]),
        bytes: writes.bytes as u64,
        key,
        offset: write % slots * writes.bytes as u64,
        immediate: None,
        context: write,
    };
    let begun = Instant::now();
    let mut posted = 0;
    let mut written = 0;
    while written < writes.count {
        while posted < writes.count && posted - written < writes.outstanding {
            sender.write(request(posted))?;
            posted += 1;
        }
        match joined.sent.recv_timeout(PATIENCE) {
            Ok(Event::Written { .. }) => written += 1,
            Ok(Event::Failed { failure, .. }) => return Err(RateError::Failed(failure)),
            Ok(_) => {}
            Err(_) => return Err(RateError::Silent),
        }
    }
    let seconds = begun.elapsed().as_secs_f64();
    sender.close(joined.near);
    receiver.close(joined.far);
    receiver.deregister(key);
    Ok((writes.bytes as u64 * writes.count) as f64 / seconds)
}

fn other_end(end: &LocalEnd, secret: &Secret) -> RemoteEnd {
    RemoteEnd {
        owner: "peer".into(),
        id: end.id,
        address: end.address,
        ports: end.ports,
        send_secret: secret.clone(),
        settings: end.settings,
        generation: end.generation,
        reset_key: end.reset_key,
    }
}

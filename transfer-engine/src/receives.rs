//! Receives: the messages of all peers go into one set of buffers, and to one handler.

use std::sync::{Arc, OnceLock};

use weft_engine::{
    Access, ConnectionId, Engine, EngineError, Key, ReceiveBuffer, Region, SharedReceiveQueue,
};

use crate::callbacks::Callbacks;
use crate::config::{DOMAIN, LinkEngine, random};
use crate::error::TransferError;

/// Gets the bytes of a message and its immediate, which is not counted. The callback thread calls it, one message after the
/// other.
pub type MessageHandler = Box<dyn Fn(Vec<u8>, Option<u32>) + Send + Sync>;

/// The receives of an engine. The queue is empty until the program submits receives: messages wait.
#[derive(Default)]
pub(crate) struct Receives {
    queue: Arc<SharedReceiveQueue>,
    buffers: OnceLock<Arc<Buffers>>,
}

struct Buffers {
    queue: Arc<SharedReceiveQueue>,
    region: Arc<Region>,
    key: Key,
    buffer_bytes: u64,
    handler: MessageHandler,
}

impl Buffers {
    fn post(&self, buffer: u64) {
        self.queue.post(ReceiveBuffer {
            token: buffer,
            key: self.key,
            offset: buffer * self.buffer_bytes,
            bytes: self.buffer_bytes,
        });
    }
}

impl Receives {
    /// Registers `count` buffers of `bytes` bytes with all engines, and posts them.
    pub(crate) fn submit(
        &self,
        engines: &[LinkEngine],
        bytes: u64,
        count: u64,
        handler: MessageHandler,
    ) -> Result<(), TransferError> {
        TransferError::check_at_least_one("bytes", bytes)?;
        TransferError::check_at_least_one("count", count)?;
        let region = Arc::new(Region::memfd("weft-receives", bytes.saturating_mul(count))?);
        let key = Key(u64::from_le_bytes(random()?));
        let buffers = Arc::new(Buffers {
            queue: Arc::clone(&self.queue),
            region: Arc::clone(&region),
            key,
            buffer_bytes: bytes,
            handler,
        });
        if self.buffers.set(Arc::clone(&buffers)).is_err() {
            return Err(TransferError::Invalid {
                field: "submit_recvs",
                problem: "was called before: an engine has one set of receives",
            });
        }
        for it in engines {
            let region = Arc::clone(&region);
            it.engine.register_as(key, DOMAIN, Access::WRITE, region);
        }
        (0..count).for_each(|buffer| buffers.post(buffer));
        Ok(())
    }

    /// Has a connection of `engine` take the buffers, and wait for them as long as the sender's deadline lets it.
    pub(crate) fn share(
        &self,
        engine: &Engine,
        connection: ConnectionId,
    ) -> Result<(), EngineError> {
        engine.set_waits_for_receiver(connection, true)?;
        engine.share_receives(connection, Arc::clone(&self.queue))
    }

    /// A message is in a buffer, which is posted again when its turn comes: a slow program slows its senders, and its memory
    /// does not grow.
    pub(crate) fn received(
        &self,
        callbacks: &Callbacks,
        buffer: u64,
        bytes: u64,
        immediate: Option<u32>,
    ) {
        let Some(buffers) = self.buffers.get().cloned() else {
            return;
        };
        callbacks.call(Box::new(move || {
            let mut message = vec![0; bytes.min(buffers.buffer_bytes) as usize];
            let offset = buffer * buffers.buffer_bytes;
            let read = buffers.region.read(offset, &mut message);
            buffers.post(buffer);
            if read.is_ok() {
                (buffers.handler)(message, immediate);
            }
        }));
    }
}

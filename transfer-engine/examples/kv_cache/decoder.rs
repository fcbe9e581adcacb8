//! The decoder: it asks prefillers for caches, and knows by a count when a cache is complete.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use weft_transfer_engine::{
    Access, Completion, EngineAddress, MemoryRegion, Options, PeerGroup, Region, TransferEngine,
};

use crate::Result;
use crate::request::{CACHE_BYTES, LAYERS, MESSAGES, Message, PAGES, Request};

/// The immediate of heartbeats. Those of requests are their numbers.
const HEARTBEAT: u32 = 0;
const HEARTBEAT_INTERVAL: Duration = Duration::from_millis(20);
/// A prefiller that does not take a heartbeat for this time is dead. The decoder learns it when the engine has tried to cancel
/// the heartbeat.
const HEARTBEAT_DEADLINE: Duration = Duration::from_secs(3);
/// How long a prefiller may take to confirm a cancel.
const CANCEL_DEADLINE: Duration = Duration::from_secs(15);

pub(crate) struct Decoder {
    engine: TransferEngine,
    cache: Arc<Region>,
    messages: Receiver<Message>,
}

/// A request at a prefiller.
pub(crate) struct Asked {
    request: Request,
    prefiller: EngineAddress,
    /// The prefiller alone.
    group: PeerGroup,
    /// The cache under the key of this request. The key closes when this is dropped: no byte lands by it any more.
    cache: MemoryRegion,
}

impl Decoder {
    pub(crate) fn new(engine: TransferEngine) -> Result<Self> {
        let (to_decoder, messages) = channel();
        let handler = move |message: Vec<u8>, _| {
            if let Ok(message) = postcard::from_bytes(&message) {
                let _ = to_decoder.send(message);
            }
        };
        let (bytes, count) = MESSAGES;
        engine.submit_recvs(bytes, count, Box::new(handler))?;
        Ok(Self {
            engine,
            cache: Region::share(vec![0; CACHE_BYTES as usize]),
            messages,
        })
    }

    /// Asks a prefiller for a cache in the pages from `first_page` on.
    pub(crate) fn ask(
        &self,
        id: u32,
        prefiller: &EngineAddress,
        first_page: u64,
        hangs_after: u64,
    ) -> Result<Asked> {
        let region = Arc::clone(&self.cache);
        let (cache, descriptor) = self.engine.reg_mr(region, Access::WRITE)?;
        let pages = first_page as u32..(first_page + PAGES) as u32;
        let request = Request {
            id,
            prompt: u64::from(id),
            cache: descriptor,
            pages: pages.collect(),
            hangs_after,
        };
        Message::Prefill(request.clone()).send(&self.engine, prefiller)?;
        Ok(Asked {
            request,
            prefiller: prefiller.clone(),
            group: self.engine.add_peer_group(vec![prefiller.clone()])?,
            cache,
        })
    }

    /// Waits until `count` transfers of a request are here. Fails when the prefiller is dead.
    pub(crate) fn wait(&self, asked: &Asked, count: u64) -> Result<()> {
        let (tell, told) = channel();
        let options = Options {
            completion: Completion::Callback(Box::new(move |outcome| drop(tell.send(outcome)))),
            ..Options::default()
        };
        let expected = self
            .engine
            .expect_imm_count(asked.request.id, count, options)?;
        loop {
            match told.recv_timeout(HEARTBEAT_INTERVAL) {
                Ok(outcome) => return Ok(outcome.into_result()?),
                Err(RecvTimeoutError::Disconnected) => return Err("the engine has ended".into()),
                Err(RecvTimeoutError::Timeout) => {}
            }
            // The prefiller's engine counts it; its program does nothing for it.
            let deadline = Options::within(HEARTBEAT_DEADLINE);
            let heartbeat = self
                .engine
                .submit_barrier(&asked.group, HEARTBEAT, deadline)?;
            if let Err(failure) = heartbeat.wait().into_result() {
                expected.cancel();
                return Err(failure.into());
            }
        }
    }

    /// Cancels a request. When this returns, its pages may be used again. The prefiller's connection and its other requests
    /// go on: to close the key of the request instead would end them.
    pub(crate) fn cancel(&self, asked: &Asked) -> Result<()> {
        let id = asked.request.id;
        let decoder = self.engine.main_address().clone();
        Message::Cancel { id, decoder }.send(&self.engine, &asked.prefiller)?;
        match self.messages.recv_timeout(CANCEL_DEADLINE) {
            Ok(Message::Cancelled { id: confirmed }) if confirmed == id => {}
            _ => return Err(format!("the cancel of request {id} is not confirmed").into()),
        }
        // Some transfers may have counted before.
        self.engine.free_imm(id);
        Ok(())
    }

    /// Compares a cache with what the model computes.
    pub(crate) fn check(&self, asked: &Asked) -> Result<()> {
        let request = &asked.request;
        let check = |offset, expected: Vec<u8>| {
            let mut bytes = vec![0; expected.len()];
            asked.cache.read(offset, &mut bytes)?;
            match bytes == expected {
                true => Ok(()),
                false => Err(format!("request {}: wrong bytes at {offset}", request.id).into()),
            }
        };
        for layer in 0..LAYERS {
            for (index, page) in (0..).zip(&request.pages) {
                let expected = request.compute_page(layer, index);
                check(request.page_offset(layer, *page), expected)?;
            }
        }
        check(request.tail_offset(), request.compute_tail())
    }
}

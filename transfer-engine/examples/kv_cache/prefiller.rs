//! The prefiller: it computes requests, and its watcher submits their transfers.

use std::collections::HashMap;
use std::io::Read;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use weft_transfer_engine::{
    EngineAddress, Operation, Options, Outcome, TransferEngine, TransferError,
};

use crate::Result;
use crate::request::{
    LAYERS, MESSAGES, Message, PAGE_BYTES, PAGES, REQUEST_BYTES, REQUEST_TAIL_OFFSET, Request,
    TRANSFERS,
};

/// The transfers of a request. This is its cancellation token too.
#[derive(Default)]
struct Transfers {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    submitted: Vec<Operation>,
    is_cancelled: bool,
}

impl Transfers {
    /// Submits one, unless the request is cancelled.
    fn submit(&self, submit: impl FnOnce() -> std::result::Result<Operation, TransferError>) {
        let mut state = lock(&self.state);
        if !state.is_cancelled {
            match submit() {
                Ok(operation) => state.submitted.push(operation),
                Err(error) => eprintln!("prefiller: {error}"),
            }
        }
        self.changed.notify_all();
    }

    /// Cancels what is submitted, and lets nothing more be submitted. Does not wait.
    fn cancel(&self) {
        let mut state = lock(&self.state);
        state.is_cancelled = true;
        state.submitted.iter().for_each(Operation::cancel);
        self.changed.notify_all();
    }

    fn is_cancelled(&self) -> bool {
        lock(&self.state).is_cancelled
    }

    /// Waits until all are submitted, or the request is cancelled; then for the ends of those that are submitted.
    fn wait(&self) -> Vec<Outcome> {
        let is_open =
            |state: &mut State| !state.is_cancelled && (state.submitted.len() as u64) < TRANSFERS;
        let state = self.changed.wait_while(lock(&self.state), is_open);
        let state = state.unwrap_or_else(PoisonError::into_inner);
        let submitted = state.submitted.clone();
        // A cancel may come while this waits.
        drop(state);
        submitted.iter().map(Operation::wait).collect()
    }
}

struct Prefiller {
    engine: TransferEngine,
    /// The requests whose transfers have not ended, by decoder and number.
    requests: Mutex<HashMap<(EngineAddress, u32), Arc<Transfers>>>,
}

/// Serves decoders until the input of this process ends.
pub(crate) fn run(engine: TransferEngine) -> Result<()> {
    let prefiller = Arc::new(Prefiller {
        engine,
        requests: Mutex::default(),
    });
    // The engine owns the handler: the handler does not own the engine.
    let weak = Arc::downgrade(&prefiller);
    let handler = move |message: Vec<u8>, _| {
        let handled = match weak.upgrade() {
            Some(prefiller) => prefiller.handle(&message),
            None => Ok(()),
        };
        handled.unwrap_or_else(|error| eprintln!("prefiller: a message: {error}"));
    };
    let (bytes, count) = MESSAGES;
    prefiller
        .engine
        .submit_recvs(bytes, count, Box::new(handler))?;
    println!("{}", prefiller.engine.main_address());
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

impl Prefiller {
    /// Runs on the callback thread, so it waits for nothing.
    fn handle(self: &Arc<Self>, message: &[u8]) -> Result<()> {
        match postcard::from_bytes(message)? {
            Message::Prefill(request) => {
                if request.pages.len() as u64 != PAGES {
                    return Err(format!("pages: a request has {PAGES}").into());
                }
                let transfers = Arc::<Transfers>::default();
                lock(&self.requests).insert(request.key(), Arc::clone(&transfers));
                let prefiller = Arc::clone(self);
                std::thread::spawn(move || {
                    if let Err(error) = prefiller.prefill(&request, &transfers) {
                        eprintln!("prefiller: request {}: {error}", request.id);
                    }
                });
            }
            Message::Cancel { id, decoder } => {
                let key = (decoder, id);
                match lock(&self.requests).get(&key) {
                    // The thread of the request answers.
                    Some(transfers) => transfers.cancel(),
                    None => Message::Cancelled { id }.send(&self.engine, &key.0)?,
                }
            }
            Message::Cancelled { .. } => return Err("a prefiller asks for no cancel".into()),
        }
        Ok(())
    }

    fn prefill(self: &Arc<Self>, request: &Request, transfers: &Arc<Transfers>) -> Result<()> {
        let (computed, _) = self.engine.alloc(REQUEST_BYTES)?;
        let on_layers = {
            let (prefiller, transfers) = (Arc::clone(self), Arc::clone(transfers));
            let (request, computed) = (request.clone(), computed.clone());
            move |old, new| {
                let engine = &prefiller.engine;
                for layer in old..new {
                    let layer = request.layer(layer, &computed);
                    transfers.submit(|| engine.submit_paged_writes(&layer, Options::default()));
                }
                if new == LAYERS {
                    let tail = request.tail(&computed);
                    transfers.submit(|| engine.submit_single_write(&tail, Options::default()));
                }
            }
        };
        let layers_done = self.engine.alloc_watcher(Box::new(on_layers))?;

        // What the GPU does. It knows of no transfer: it writes to its memory, and increments the word.
        computed.write(REQUEST_TAIL_OFFSET, &request.compute_tail())?;
        for layer in 0..LAYERS.min(request.hangs_after) {
            if transfers.is_cancelled() {
                break;
            }
            for index in 0..PAGES {
                let offset = (layer * PAGES + index) * PAGE_BYTES;
                computed.write(offset, &request.compute_page(layer, index))?;
            }
            layers_done.add(1);
        }

        let ends = transfers.wait();
        lock(&self.requests).remove(&request.key());
        if !transfers.is_cancelled() {
            // The decoder counts: no message tells it.
            return Ok(ends.into_iter().try_for_each(Outcome::into_result)?);
        }
        // `Done` and `Reusable` promise that nothing lands any more. Without the promise there is no answer.
        let (mut done, mut stopped) = (0, 0);
        for end in &ends {
            match end {
                Outcome::Done => done += 1,
                Outcome::Reusable(_) => stopped += 1,
                Outcome::Unconfirmed(failure) | Outcome::Failed(failure) => {
                    return Err(format!("the cancel is not confirmed: {failure}").into());
                }
            }
        }
        let id = request.id;
        eprintln!(
            "prefiller: request {id}: of {TRANSFERS} transfers {done} were done, {stopped} stopped"
        );
        Message::Cancelled { id }.send(&self.engine, &request.cache.engine)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

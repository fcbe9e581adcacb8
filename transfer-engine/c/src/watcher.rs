//! Watchers: words that a program or a device increments.

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;

use weft_transfer_engine::Watcher;

use crate::argument::{give, given};
use crate::callback::{UserData, call_program};
use crate::engine::{Process, WeftEngine, running};
use crate::status::{WeftStatus, call};

/// Gets the old and the new value of a word.
pub type WeftWatchHandler =
    Option<extern "C-unwind" fn(user_data: *mut c_void, old_value: u64, new_value: u64)>;

/// A word of 64 bits that is watched.
pub struct WeftWatcher {
    watcher: Watcher,
    calls: Arc<Calls>,
    process: Process,
}

/// Whether a handler may be called.
#[derive(Default)]
struct Calls {
    state: Mutex<CallState>,
    returned: Condvar,
}

#[derive(Default, PartialEq)]
enum CallState {
    #[default]
    Idle,
    Running(ThreadId),
    Ended,
}

impl Calls {
    fn lock(&self) -> MutexGuard<'_, CallState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self, handler: impl FnOnce()) {
        {
            let mut state = self.lock();
            if *state == CallState::Ended {
                return;
            }
            *state = CallState::Running(std::thread::current().id());
        }
        call_program(handler);
        let mut state = self.lock();
        // The handler may have freed the watcher.
        if *state != CallState::Ended {
            *state = CallState::Idle;
        }
        self.returned.notify_all();
    }

    /// Waits for a call under way, unless it is this one. None follows.
    fn end(&self) {
        let mut state = self.lock();
        while matches!(*state, CallState::Running(thread) if thread != std::thread::current().id())
        {
            let waited = self.returned.wait(state);
            state = waited.unwrap_or_else(PoisonError::into_inner);
        }
        *state = CallState::Ended;
    }
}

/// Makes a word of 64 bits, 0 at first, which this or another process or a device increments. `handler` gets its old and new
/// value soon after; several changes may come as one.
#[unsafe(no_mangle)]
pub extern "C" fn weft_alloc_watcher(
    engine: Option<&WeftEngine>,
    handler: WeftWatchHandler,
    user_data: *mut c_void,
    watcher: Option<&mut MaybeUninit<*mut WeftWatcher>>,
) -> WeftStatus {
    call(|| {
        let engine = running(engine)?;
        let handler = given(handler, "handler")?;
        let to = given(watcher, "watcher")?;
        let user_data = UserData::new(user_data);
        let calls = Arc::new(Calls::default());
        let of_handler = Arc::clone(&calls);
        let watch = move |old, new| of_handler.run(|| handler(user_data.get(), old, new));
        let watcher = engine.alloc_watcher(Box::new(watch))?;
        let process = Process::this();
        give(
            to,
            WeftWatcher {
                watcher,
                calls,
                process,
            },
        );
        Ok(())
    })
}

/// Adds to the word, also in a forked process. The handler sees what was written before.
#[unsafe(no_mangle)]
pub extern "C" fn weft_watcher_add(watcher: Option<&WeftWatcher>, value: u64) -> WeftStatus {
    call(|| {
        given(watcher, "watcher")?.watcher.add(value);
        Ok(())
    })
}

/// The word. 0 if `watcher` is NULL.
#[unsafe(no_mangle)]
pub extern "C" fn weft_watcher_load(watcher: Option<&WeftWatcher>) -> u64 {
    watcher.map_or(0, |watcher| watcher.watcher.load())
}

/// A memfd whose first 8 bytes are the word, for a process or a device that increments it. It belongs to the watcher. -1 if
/// `watcher` is NULL.
#[unsafe(no_mangle)]
pub extern "C" fn weft_watcher_fd(watcher: Option<&WeftWatcher>) -> c_int {
    let file = watcher.and_then(|watcher| watcher.watcher.file());
    file.map_or(-1, |file| file.as_raw_fd())
}

/// Ends the watch. When it returns, the handler does not run, and is not called again; the handler itself may call this.
#[unsafe(no_mangle)]
pub extern "C" fn weft_watcher_free(watcher: Option<Box<WeftWatcher>>) {
    if let Some(watcher) = watcher
        // In a forked process no handler runs, and the thread that ran one is not there to tell.
        && watcher.process.check().is_ok()
    {
        watcher.calls.end();
    }
}

//! Words that are watched.

use std::os::fd::AsRawFd;
use std::sync::Mutex;

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::arguments::u64_of;
use crate::lock::lock;

/// A word of 64 bits that is watched: what `Engine.alloc_watcher` gives.
///
/// It is watched until `close()`, or until nobody has this object. It is a context manager that closes at the end.
///
/// >>> import threading, weft
/// >>> told = threading.Event()
/// >>> with weft.Engine() as engine:
/// ...     with engine.alloc_watcher(lambda old, new: told.set()) as watcher:
/// ...         watcher.add(5)
/// ...         print(told.wait(60), watcher.value)
/// True 5
#[pyclass(frozen, weakref, module = "weft")]
pub(crate) struct Watcher(Mutex<Option<weft_transfer_engine::Watcher>>);

impl Watcher {
    pub(crate) fn new(watcher: weft_transfer_engine::Watcher) -> Self {
        Self(Mutex::new(Some(watcher)))
    }

    fn with<R>(&self, act: impl FnOnce(&weft_transfer_engine::Watcher) -> R) -> PyResult<R> {
        let watcher = lock(&self.0);
        let watcher = watcher.as_ref().map(act);
        watcher.ok_or_else(|| PyRuntimeError::new_err("the watcher is closed"))
    }
}

#[pymethods]
impl Watcher {
    /// Adds to the word, modulo 2 to the 64th. The handler sees what was written before. A forked process may call this too.
    fn add(&self, value: &Bound<'_, PyAny>) -> PyResult<()> {
        let value = u64_of("value", value)?;
        self.with(|watcher| watcher.add(value))
    }

    /// The word.
    #[getter]
    fn value(&self) -> PyResult<u64> {
        self.with(weft_transfer_engine::Watcher::load)
    }

    /// The file descriptor of a memfd whose first 8 bytes are the word, for a process or a device that increments it. It
    /// belongs to the watcher: duplicate it to keep it.
    fn fileno(&self) -> PyResult<i32> {
        let file = self.with(|watcher| watcher.file().map(|file| file.as_raw_fd()))?;
        file.ok_or_else(|| PyRuntimeError::new_err("the watcher has no file"))
    }

    /// Ends the watch. The handler is not called after the call that is under way.
    fn close(&self) {
        let watcher = lock(&self.0).take();
        drop(watcher);
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_error))]
    fn __exit__(&self, _error: &Bound<'_, PyTuple>) {
        self.close();
    }
}

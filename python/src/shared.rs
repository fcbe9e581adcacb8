//! What the objects of Python share of an engine.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use weft_transfer_engine::TransferEngine;

use crate::lock::lock;

/// Refuses a process that was forked from `process`: the engine's threads are in that one, and nothing ends here.
pub(crate) fn check_process(process: u32) -> PyResult<()> {
    match process == std::process::id() {
        true => Ok(()),
        false => Err(PyRuntimeError::new_err(format!(
            "this process was forked from {process}, which has the engine's threads: start an engine after the fork"
        ))),
    }
}

/// All engines of the process, for its end.
static ENGINES: Mutex<Vec<Weak<Shared>>> = Mutex::new(Vec::new());

/// An engine and what it keeps.
pub(crate) struct Shared {
    /// None once it is closed.
    engine: Mutex<Option<Arc<TransferEngine>>>,
    /// Those that are registered, by key: nobody need keep the objects of Python. None once it is closed.
    regions: Mutex<Option<HashMap<u64, weft_transfer_engine::MemoryRegion>>>,
    process: u32,
    pub(crate) address: String,
    pub(crate) name: String,
}

impl Shared {
    /// It is closed at the end of the interpreter.
    pub(crate) fn new(engine: TransferEngine) -> Arc<Self> {
        let shared = Arc::new(Self {
            address: engine.main_address().to_string(),
            name: engine.main_address().name(),
            engine: Mutex::new(Some(Arc::new(engine))),
            regions: Mutex::new(Some(HashMap::new())),
            process: std::process::id(),
        });
        let mut engines = lock(&ENGINES);
        engines.retain(|engine| engine.strong_count() > 0);
        engines.push(Arc::downgrade(&shared));
        shared
    }

    /// Does something with the engine. What may wait detaches from the interpreter.
    pub(crate) fn with<R>(
        &self,
        py: Python<'_>,
        act: impl FnOnce(&TransferEngine) -> R,
    ) -> PyResult<R> {
        // First: the thread that has a lock of the engine may be in another process.
        check_process(self.process)?;
        let engine = lock(&self.engine).clone();
        let engine = engine.ok_or_else(closed)?;
        let result = act(&engine);
        end(py, engine);
        Ok(result)
    }

    /// Ends the engine. What was registered is let go of.
    pub(crate) fn close(&self, py: Python<'_>) {
        if self.process != std::process::id() {
            return;
        }
        let engine = lock(&self.engine).take();
        if let Some(engine) = engine {
            // Other threads may be in a call of it. It joins the callback thread, which attaches.
            py.detach(|| engine.close());
            end(py, engine);
        }
        // Not under the lock: this may end the objects that they belong to.
        let regions = lock(&self.regions).take().unwrap_or_default();
        // It waits for the workers.
        py.detach(|| regions.values().for_each(|region| region.deregister()));
        drop(regions);
    }

    /// Keeps a region until it is forgotten or the engine is closed.
    pub(crate) fn keep(
        &self,
        py: Python<'_>,
        region: &weft_transfer_engine::MemoryRegion,
    ) -> PyResult<()> {
        let key = region.descriptor().key.0;
        if let Some(regions) = &mut *lock(&self.regions) {
            regions.insert(key, region.clone());
            return Ok(());
        }
        py.detach(|| region.deregister());
        Err(closed())
    }

    pub(crate) fn forget(&self, region: &weft_transfer_engine::MemoryRegion) {
        if self.process == std::process::id() {
            let key = region.descriptor().key.0;
            let region = lock(&self.regions).as_mut().and_then(|it| it.remove(&key));
            drop(region);
        }
    }
}

fn closed() -> PyErr {
    PyRuntimeError::new_err("the engine is closed")
}

/// Ends the engine with the last call that uses it. It joins the callback thread, which attaches.
fn end(py: Python<'_>, engine: Arc<TransferEngine>) {
    if let Some(engine) = Arc::into_inner(engine) {
        py.detach(|| drop(engine));
    }
}

/// Closes all engines: for the end of the interpreter.
#[pyfunction(name = "_close_all")]
pub(crate) fn close_all(py: Python<'_>) {
    let engines = std::mem::take(&mut *lock(&ENGINES));
    for engine in engines.iter().filter_map(Weak::upgrade) {
        engine.close(py);
    }
}

//! Operations, and the calls from the callback thread.

use std::time::{Duration, Instant};

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use weft_transfer_engine::{Completion, Options, Outcome};

use crate::arguments::{callable, seconds};
use crate::failure::{exception_of, outcome_of};
use crate::shared::check_process;

/// How long a wait leaves a signal, such as Ctrl-C, without an answer.
const SLICE: Duration = Duration::from_millis(50);

/// Calls code of Python from a thread of the engine. What it raises goes to `sys.unraisablehook`.
pub(crate) fn call(
    handler: &Py<PyAny>,
    call: impl for<'py> FnOnce(&Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>>,
) {
    // None at the end of the interpreter, when nobody is there to be told.
    let _ = Python::try_attach(|py| {
        let handler = handler.bind(py);
        if let Err(error) = call(handler) {
            error.write_unraisable(py, Some(handler));
        }
    });
}

/// The options of an operation. `on_done` gets `None`, or the exception that tells why not.
pub(crate) fn options(
    deadline: Option<&Bound<'_, PyAny>>,
    on_done: Option<&Bound<'_, PyAny>>,
) -> PyResult<Options> {
    let mut options = Options::default();
    if let Some(deadline) = deadline {
        options.deadline = seconds("deadline", deadline)?;
    }
    if let Some(on_done) = on_done {
        let handler = callable("on_done", on_done)?;
        options.completion = Completion::Callback(Box::new(move |outcome| {
            call(&handler, |handler| {
                handler.call1((exception_of(handler.py(), &outcome)?,))
            });
        }));
    }
    Ok(options)
}

/// An operation that was submitted. It goes on when this object is dropped.
///
/// >>> import weft
/// >>> with weft.Engine() as engine:
/// ...     operation = engine.expect_imm_count(7, 1, deadline=0.01)
/// ...     try:
/// ...         operation.wait()
/// ...     except weft.Reusable as stopped:
/// ...         print(stopped.stage, stopped.cause, operation.outcome())
/// Count DeadlinePassed Outcome.REUSABLE
///
/// A coroutine awaits it: `await operation`. Many can be awaited at once: `await asyncio.gather(*operations)`. When the task
/// that awaits is cancelled, the operation goes on: `cancel()` stops it.
#[pyclass(frozen, weakref, module = "weft")]
pub(crate) struct Operation {
    pub(crate) operation: weft_transfer_engine::Operation,
    pub(crate) process: u32,
}

impl Operation {
    pub(crate) fn new(operation: weft_transfer_engine::Operation) -> Self {
        Self {
            operation,
            process: std::process::id(),
        }
    }

    /// The outcome, if it has ended.
    fn ended(&self) -> PyResult<Option<Outcome>> {
        check_process(self.process)?;
        Ok(self.operation.outcome())
    }

    /// Waits for the end until a time, if there is one. Answers whether it is done, and raises what it ended in.
    fn wait_until(&self, py: Python<'_>, until: Option<Instant>) -> PyResult<bool> {
        let mut ended = self.ended()?;
        let outcome = loop {
            let rest = until.map(|until| until.saturating_duration_since(Instant::now()));
            match ended {
                Some(outcome) => break outcome,
                None if rest == Some(Duration::ZERO) => return Ok(false),
                None => {
                    let slice = rest.map_or(SLICE, |rest| rest.min(SLICE));
                    ended = py.detach(|| self.operation.wait_for(slice));
                }
            }
            py.check_signals()?;
        };
        match exception_of(py, &outcome)? {
            None => Ok(true),
            Some(exception) => Err(PyErr::from_value(exception)),
        }
    }
}

#[pymethods]
impl Operation {
    /// Waits for the end, which comes by the deadline and the engine's `cancel_timeout`. Other threads run meanwhile, and
    /// Ctrl-C is answered: it leaves the operation going.
    ///
    /// Raises `TransferFailed` if the operation has failed, its subclass `Reusable` if it was stopped and no byte of it
    /// lands any more, its subclass `Unconfirmed` if it was stopped and bytes may still land.
    fn wait(&self, py: Python<'_>) -> PyResult<()> {
        self.wait_until(py, None).map(drop)
    }

    /// Waits as `wait` does, but at most so many seconds. Returns True if the operation is done, and False while it goes on.
    ///
    /// >>> import weft
    /// >>> with weft.Engine() as engine:
    /// ...     operation = engine.expect_imm_count(7, 1)
    /// ...     print(operation.wait_for(0.01))
    /// False
    fn wait_for(&self, py: Python<'_>, seconds: &Bound<'_, PyAny>) -> PyResult<bool> {
        let at_most = crate::arguments::seconds("seconds", seconds)?;
        // One that is too far to be told is never.
        self.wait_until(py, Instant::now().checked_add(at_most))
    }

    /// Whether it has ended.
    fn done(&self) -> PyResult<bool> {
        Ok(self.ended()?.is_some())
    }

    /// How it has ended, a `weft.Outcome`; `None` while it goes on.
    fn outcome<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let ended = self.ended()?;
        ended.map(|outcome| outcome_of(py, &outcome)).transpose()
    }

    /// What `wait` would raise; `None` if the operation is done, and while it goes on.
    fn exception<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        match self.ended()? {
            Some(outcome) => exception_of(py, &outcome),
            None => Ok(None),
        }
    }

    /// Stops the operation, and does not wait. It ends within the engine's `cancel_timeout`: as `Outcome.REUSABLE` when no
    /// byte of it lands any more, as `Outcome.UNCONFIRMED` when the peer does not confirm that in time, or as it would have
    /// ended anyway. A send that is under way cannot be stopped.
    fn cancel(&self, py: Python<'_>) -> PyResult<()> {
        check_process(self.process)?;
        // It asks the worker.
        py.detach(|| self.operation.cancel());
        Ok(())
    }

    fn __await__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        static ENDED: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let ended = ENDED.import(slf.py(), "weft._asyncio", "ended")?;
        ended.call1((slf,))?.call_method0("__await__")
    }

    /// Has the callback thread call `tell()` at the end. Answers False if the operation has ended: then nobody calls.
    fn _on_end(&self, tell: Py<PyAny>) -> PyResult<bool> {
        check_process(self.process)?;
        let tell = Box::new(move |_| call(&tell, |tell| tell.call0()));
        Ok(self.operation.on_end(tell).is_none())
    }

    fn __repr__(&self) -> String {
        // A thread of the other process may have had its lock.
        if check_process(self.process).is_err() {
            return "<weft.Operation of another process>".to_owned();
        }
        let state = match self.operation.outcome() {
            None => "goes on",
            Some(Outcome::Done) => "is done",
            Some(Outcome::Reusable(_)) => "is stopped, memory reusable",
            Some(Outcome::Unconfirmed(_)) => "is stopped, unconfirmed",
            Some(Outcome::Failed(_)) => "has failed",
        };
        format!("<weft.Operation {state}>")
    }
}

/// Peers for `Engine.submit_barrier`, as `Engine.add_peer_group` makes them.
#[pyclass(frozen, module = "weft")]
pub(crate) struct PeerGroup(pub(crate) weft_transfer_engine::PeerGroup);

//! Errors and outcomes as exceptions of Python.

use std::fmt::Display;

use pyo3::exceptions::{PyOSError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;
use weft_transfer_engine::{Access, Failure, Outcome, TransferError};

/// An argument that cannot be used, with its name.
pub(crate) fn wrong_value(name: &str, problem: impl Display) -> PyErr {
    PyValueError::new_err(format!("{name} {problem}"))
}

/// Why a call was refused. The message names the argument.
pub(crate) fn refused(error: TransferError) -> PyErr {
    let message = error.to_string();
    match error {
        TransferError::AccessDenied { field, has, needs } => PyValueError::new_err(format!(
            "{field} is registered with {} and needs {}: register it with this access",
            access_name(has),
            access_name(needs)
        )),
        TransferError::Invalid { .. }
        | TransferError::Nics(_)
        | TransferError::UnevenWorkers { .. }
        | TransferError::OutOfBounds { .. }
        | TransferError::NotRegistered { .. } => PyValueError::new_err(message),
        TransferError::Link(error) => match error.reason() {
            "SettingOutOfRange" | "BadPorts" | "MtuTooBig" => PyValueError::new_err(message),
            _ => PyOSError::new_err(message),
        },
        TransferError::System { source, .. } | TransferError::Listen { source, .. } => {
            match source.raw_os_error() {
                Some(code) => PyOSError::new_err((code, message)),
                None => PyOSError::new_err(message),
            }
        }
        TransferError::Memfd(_) => PyOSError::new_err(message),
        _ => PyRuntimeError::new_err(message),
    }
}

/// As Python writes it.
pub(crate) fn access_name(access: Access) -> String {
    let names = [
        (Access::WRITE, "Access.WRITE"),
        (Access::READ, "Access.READ"),
        (Access::ATOMIC, "Access.ATOMIC"),
    ];
    let has = names.iter().filter(|(bit, _)| access.allows(*bit));
    let has: Vec<_> = has.map(|(_, name)| *name).collect();
    match has.as_slice() {
        [] => "Access.NONE".to_owned(),
        has => has.join(" | "),
    }
}

/// The member of `weft.Outcome`.
pub(crate) fn outcome_of<'py>(py: Python<'py>, outcome: &Outcome) -> PyResult<Bound<'py, PyAny>> {
    static OUTCOME: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    let class = OUTCOME.import(py, "weft._types", "Outcome")?;
    class.call1((outcome.code(),))
}

/// The exception that tells of an outcome; none of one that is done.
pub(crate) fn exception_of<'py>(
    py: Python<'py>,
    outcome: &Outcome,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    static FAILED: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    static REUSABLE: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    static UNCONFIRMED: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    let (class, failure) = match outcome {
        Outcome::Done => return Ok(None),
        Outcome::Failed(failure) => (FAILED.import(py, "weft._types", "TransferFailed")?, failure),
        Outcome::Reusable(failure) => (REUSABLE.import(py, "weft._types", "Reusable")?, failure),
        Outcome::Unconfirmed(failure) => (
            UNCONFIRMED.import(py, "weft._types", "Unconfirmed")?,
            failure,
        ),
    };
    let Failure {
        peer,
        path,
        stage,
        cause,
    } = failure;
    let stage = format!("{stage:?}");
    let fields = (failure.to_string(), peer, path, stage, cause.reason());
    class.call1(fields).map(Some)
}

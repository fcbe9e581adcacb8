//! What an engine that ends saves for the next one: a record, and descriptors in its order.

use std::io;
use std::os::fd::OwnedFd;
use std::vec::IntoIter;

use weft_engine::{EngineError, MemfdError};

use crate::devices::OpenError;

/// Why a device does not go on. The next engine has it without the programs that had it open.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HandOverError {
    /// What was saved does not fit together.
    #[error("what was saved of it is damaged: {0}")]
    Damaged(&'static str),
    /// The engine.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The memory that is shared with the program.
    #[error(transparent)]
    Memory(#[from] MemfdError),
    /// Its thread.
    #[error(transparent)]
    Open(OpenError),
    /// The kernel refused a call.
    #[error(transparent)]
    System(#[from] io::Error),
}

/// The descriptors of a record, each of which is taken once.
pub(crate) struct Descriptors(IntoIter<OwnedFd>);

impl Descriptors {
    pub(crate) fn new(descriptors: Vec<OwnedFd>) -> Self {
        Self(descriptors.into_iter())
    }

    pub(crate) fn next(&mut self) -> Result<OwnedFd, HandOverError> {
        let next = self.0.next();
        next.ok_or(HandOverError::Damaged("there are too few descriptors"))
    }

    /// The next ones, as a record of their own has so many.
    pub(crate) fn split_off(&mut self, count: usize) -> Self {
        Self::new(self.0.by_ref().take(count).collect())
    }
}

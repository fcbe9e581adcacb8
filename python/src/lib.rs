//! The TransferEngine for Python: the module `weft._weft`, which the package `weft` shows its users.
//!
//! Names and meaning are those of `weft-transfer-engine`. What differs is Python's way: descriptors and addresses are
//! strings, times are seconds, arguments have names, an error is an exception. What is easier said in Python is in `weft/`:
//! plain types (`_types.py`), buffers (`_buffers.py`), asyncio (`_asyncio.py`).
//!
//! Three rules keep the interpreter safe:
//! - **Nobody waits for a thread of the engine while attached to the interpreter.** The callback thread attaches for each
//!   call; who waits for it attached waits for ever.
//! - **A thread of the engine that moves data never attaches.** It drops Python objects only through PyO3, which releases
//!   them when a thread attaches next.
//! - **All engines end before the interpreter does** (`atexit`), so no callback finds it gone.

mod arguments;
#[expect(
    unsafe_code,
    reason = "structures that other libraries make, as DLPack lays them out"
)]
mod dlpack;
mod engine;
mod failure;
mod lock;
#[expect(
    unsafe_code,
    reason = "memory of an object of Python, which keeps the object"
)]
mod memory;
mod operation;
mod shared;
mod watcher;

use pyo3::prelude::*;

/// The TransferEngine of Weft: use the package `weft`.
#[pymodule]
mod _weft {
    #[pymodule_export]
    use crate::engine::Engine;
    #[pymodule_export]
    use crate::memory::MemoryRegion;
    #[pymodule_export]
    use crate::operation::{Operation, PeerGroup};
    #[pymodule_export]
    use crate::shared::close_all;
    #[pymodule_export]
    use crate::watcher::Watcher;
    use pyo3::prelude::*;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        let atexit = module.py().import("atexit")?;
        atexit.call_method1("register", (module.getattr("_close_all")?,))?;
        Ok(())
    }
}

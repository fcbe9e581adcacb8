//! Registered memory, and the memory of Python's objects.

use std::os::fd::AsRawFd;
use std::ptr::NonNull;
use std::sync::{Arc, Weak};

use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyCapsule, PyMemoryView};
use weft_cuda::{CudaError, Gpu};
use weft_transfer_engine::{Region, TransferError};

use crate::dlpack;
use crate::failure::{refused, wrong_value};
use crate::shared::Shared;

/// The bytes of an object of Python: no copy.
pub(crate) struct Buffer {
    pub(crate) region: Arc<Region>,
    /// A memoryview; none of memory of a GPU.
    pub(crate) memory: Option<Py<PyAny>>,
}

/// The memory of an object with the buffer protocol or with DLPack.
pub(crate) fn buffer_of(object: &Bound<'_, PyAny>) -> PyResult<Buffer> {
    static ARRAY_OF: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    static ARRAY_AT: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let py = object.py();
    let array_of = ARRAY_OF.import(py, "weft._buffers", "array_of")?;
    // A ctypes array over the object's own memory, or a capsule.
    let given = array_of.call1((object,))?;
    let (array, address, length) = match given.cast::<PyCapsule>() {
        Ok(capsule) => {
            let bytes = dlpack::bytes_of("buffer", capsule)?;
            if let Some(gpu) = bytes.gpu {
                return on_gpu(py, gpu, &bytes, capsule);
            }
            let array_at = ARRAY_AT.import(py, "weft._buffers", "array_at")?;
            let array = array_at.call1((bytes.address, bytes.length, capsule))?;
            (array, bytes.address, bytes.length)
        }
        Err(_) => given.extract::<(Bound<'_, PyAny>, usize, usize)>()?,
    };
    let start = NonNull::new(address as *mut u8);
    let start = start.ok_or_else(|| wrong_value("buffer", "has no memory"))?;
    let memory = PyMemoryView::from(&array)?.call_method1("cast", ("B",))?;
    let owner = Box::new(array.unbind());
    // SAFETY: the array exports the object's buffer, or has the capsule: as long as it is there the object keeps these
    // bytes, which are writable (`array_of` and `dlpack` have checked that). An object with the buffer protocol neither moves
    // nor resizes them; of tensors `reg_mr` says that their program must not. Python's accesses meanwhile make no reference of
    // Rust.
    let region = unsafe { Region::borrow(start, length, owner) };
    Ok(Buffer {
        region,
        memory: Some(memory.unbind()),
    })
}

/// The memory of a tensor on a GPU.
fn on_gpu(
    py: Python<'_>,
    gpu: usize,
    bytes: &dlpack::Bytes,
    capsule: &Bound<'_, PyCapsule>,
) -> PyResult<Buffer> {
    let owner = Box::new(capsule.clone().unbind());
    // It loads the driver, and waits for it.
    let region = py.detach(|| {
        let gpu = Gpu::open(gpu)?;
        // SAFETY: the capsule keeps the tensor. `reg_mr` says that its program must not give the memory away otherwise.
        unsafe { gpu.region(bytes.address as u64, bytes.length as u64, owner) }
    });
    let region = region.map_err(|error| {
        let message = format!("buffer is in the memory of a GPU: {error}");
        match error {
            CudaError::NotAllocated { .. } => PyValueError::new_err(message),
            _ => PyOSError::new_err(message),
        }
    })?;
    Ok(Buffer {
        region,
        memory: None,
    })
}

/// New memory, zeros, which other processes may map.
pub(crate) fn alloc(py: Python<'_>, bytes: u64) -> PyResult<Buffer> {
    let region = Region::memfd("weft-memory", bytes);
    let region = region.map_err(|error| refused(TransferError::from(error)))?;
    let memory = map(py, &region)?;
    Ok(Buffer {
        region: Arc::new(region),
        memory: Some(memory),
    })
}

/// A memoryview of a memfd, with a mapping of its own.
pub(crate) fn map(py: Python<'_>, region: &Region) -> PyResult<Py<PyAny>> {
    static MMAP: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let file = region.file().map(|file| file.as_raw_fd());
    let mmap = MMAP.import(py, "mmap", "mmap")?;
    let map = mmap.call1((file, region.len()))?;
    Ok(PyMemoryView::from(&map)?.into_any().unbind())
}

/// Registered memory: what `Engine.reg_mr` and `Engine.alloc` give.
///
/// The engine keeps it, and the object that it belongs to, until `deregister()` or until the engine is closed. It is a
/// context manager that deregisters at the end:
///
/// >>> import weft
/// >>> with weft.Engine() as engine:
/// ...     with engine.alloc(4096) as region:
/// ...         region.memory[0:5] = b"hello"
/// ...         print(len(region), bytes(region.memory[0:5]), region.descriptor[:13])
/// 4096 b'hello' weft-region1:
#[pyclass(frozen, weakref, module = "weft")]
pub(crate) struct MemoryRegion {
    pub(crate) region: weft_transfer_engine::MemoryRegion,
    pub(crate) engine: Weak<Shared>,
    pub(crate) memory: Option<Py<PyAny>>,
}

#[pymethods]
impl MemoryRegion {
    /// The name of the region for peers, a str. Send it to them by any channel. It is a secret: who has it may connect to
    /// the engine and use the region as its access allows.
    #[getter]
    fn descriptor(&self) -> String {
        self.region.descriptor().to_string()
    }

    /// Its bytes, as a memoryview: no copy. Use it as `numpy.frombuffer(region.memory, dtype)` or
    /// `torch.frombuffer(region.memory, dtype=...)`. Peers may change the bytes meanwhile. Memory of a GPU has none: use the
    /// tensor.
    #[getter]
    fn memory<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyMemoryView>> {
        // Who releases it has released this one only.
        match &self.memory {
            Some(memory) => PyMemoryView::from(memory.bind(py)),
            None => Err(PyValueError::new_err(
                "the region is memory of a GPU: use the tensor that was registered",
            )),
        }
    }

    fn __len__(&self) -> usize {
        self.region.bytes() as usize
    }

    /// Closes the region to peers and to later operations. No byte of a peer lands after this call, and the peers'
    /// operations on it fail. Own operations that are under way keep the bytes until they end. The object that was
    /// registered is kept until this region object is gone, too.
    fn deregister(&self, py: Python<'_>) {
        // It waits for the workers.
        py.detach(|| self.region.deregister());
        if let Some(engine) = self.engine.upgrade() {
            engine.forget(&self.region);
        }
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_error))]
    fn __exit__(&self, py: Python<'_>, _error: &Bound<'_, pyo3::types::PyTuple>) {
        self.deregister(py);
    }

    fn __repr__(&self) -> String {
        format!("<weft.MemoryRegion of {} bytes>", self.region.bytes())
    }
}

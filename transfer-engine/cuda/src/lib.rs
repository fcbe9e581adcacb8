//! Memory of NVIDIA GPUs as regions of the TransferEngine. Peers write to it and read from it as to any other memory.
//!
//! The driver, `libcuda.so.1`, is loaded when the first GPU is opened: programs build and run without it. Bytes are staged
//! in host memory: a worker copies each packet between its buffer and the GPU, and waits for the copy. The copies have a stream
//! of their own, which waits for no other: synchronise the stream that computes a source before the write is submitted, and use
//! what has arrived after its count.
//!
//! ```no_run
//! use weft_cuda::Gpu;
//! use weft_transfer_engine::{Access, TransferEngine, TransferEngineConfig};
//!
//! # fn tensor() -> (u64, u64) { (0, 0) }
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let engine = TransferEngine::start(TransferEngineConfig::default())?;
//! // What cuMemAlloc, cudaMalloc or torch's `data_ptr()` give.
//! let (address, bytes) = tensor();
//! // SAFETY: the tensor is freed after the engine.
//! let region = unsafe { Gpu::open(0)?.region(address, bytes, Box::new(()))? };
//! let (memory, descriptor) = engine.reg_mr(region, Access::WRITE)?;
//! # Ok(())
//! # }
//! ```

#![expect(
    unsafe_code,
    reason = "calls of NVIDIA's driver, and memory that the program must not free"
)]

use std::any::Any;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use cudarc::driver::{CudaContext, CudaStream, DriverError, result, sys};
use weft_transfer_engine::{DeviceMemory, DropReason, Region};

/// Why memory of a GPU cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CudaError {
    /// There is no driver.
    #[error("libcuda.so.1 cannot be loaded: install NVIDIA's driver, or run where a GPU is")]
    NoDriver,
    /// The driver refuses a call.
    #[error("{call} failed: {source:?}")]
    Driver {
        /// The call.
        call: &'static str,
        /// What the driver says.
        source: DriverError,
    },
    /// The driver knows no allocation there, or a shorter one.
    #[error(
        "address {address:#x} and the {bytes} bytes from there on are not in one allocation of a GPU"
    )]
    NotAllocated {
        /// The address that was given.
        address: u64,
        /// The length that was given.
        bytes: u64,
    },
}

fn failed(call: &'static str) -> impl FnOnce(DriverError) -> CudaError {
    move |source| CudaError::Driver { call, source }
}

/// Makes the thread's current context the one that it was before.
struct Restore(Option<sys::CUcontext>);

impl Restore {
    fn later() -> Self {
        Self(result::ctx::get_current().ok().flatten())
    }
}

impl Drop for Restore {
    fn drop(&mut self) {
        let context = self.0.unwrap_or(std::ptr::null_mut());
        // SAFETY: it was current, and its owner is not this library.
        let _ = unsafe { result::ctx::set_current(context) };
    }
}

/// A GPU, by its primary context: the one that programs with the CUDA runtime and torch use.
pub struct Gpu {
    context: Arc<CudaContext>,
    /// Copies wait for those of this stream only.
    stream: Arc<CudaStream>,
}

impl fmt::Debug for Gpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gpu({})", self.context.ordinal())
    }
}

impl Gpu {
    /// Opens a GPU by the driver's number, 0 for the first. One that is open already is the same.
    pub fn open(ordinal: usize) -> Result<Arc<Self>, CudaError> {
        static OPEN: Mutex<BTreeMap<usize, Weak<Gpu>>> = Mutex::new(BTreeMap::new());
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(gpu) = open.get(&ordinal).and_then(Weak::upgrade) {
            return Ok(gpu);
        }
        // SAFETY: the initialisers of NVIDIA's driver may run in any program.
        if !unsafe { sys::is_culib_present() } {
            return Err(CudaError::NoDriver);
        }
        let _restore = Restore::later();
        let context = CudaContext::new(ordinal).map_err(failed("cuDevicePrimaryCtxRetain"))?;
        let stream = context.new_stream().map_err(failed("cuStreamCreate"))?;
        let gpu = Arc::new(Self { context, stream });
        open.insert(ordinal, Arc::downgrade(&gpu));
        Ok(gpu)
    }

    /// `bytes` bytes of the GPU's memory from `address` on, as a region. They have to lie in one allocation of the driver.
    /// `owner` keeps them, and is dropped with the region.
    ///
    /// # Safety
    /// The memory stays allocated until `owner` is dropped.
    pub unsafe fn region(
        self: &Arc<Self>,
        address: u64,
        bytes: u64,
        owner: Box<dyn Any + Send + Sync>,
    ) -> Result<Arc<Region>, CudaError> {
        let not_allocated = CudaError::NotAllocated { address, bytes };
        let _restore = Restore::later();
        self.context
            .bind_to_thread()
            .map_err(failed("cuCtxSetCurrent"))?;
        let (mut base, mut size) = (0, 0);
        // SAFETY: both are places of this function.
        let found = unsafe { sys::cuMemGetAddressRange_v2(&raw mut base, &raw mut size, address) };
        let end = address.checked_add(bytes);
        let is_inside = end.is_some_and(|end| end <= base.saturating_add(size as u64));
        if found.result().is_err() || !is_inside {
            return Err(not_allocated);
        }
        let memory = Memory {
            gpu: Arc::clone(self),
            _owner: owner,
        };
        Region::of_device(Arc::new(memory), address, bytes).map_err(|_| not_allocated)
    }

    /// Waits until a copy has been made, so that a peer may be told of it.
    fn finish(&self, copied: Result<(), DriverError>) -> Result<(), DropReason> {
        copied
            .and_then(|()| self.stream.synchronize())
            .map_err(|_| DropReason::Bounds)
    }

    fn bind(&self) -> Result<(), DropReason> {
        self.context
            .bind_to_thread()
            .map_err(|_| DropReason::Bounds)
    }
}

/// What regions have: who has it may copy to any address, so nobody else does.
struct Memory {
    gpu: Arc<Gpu>,
    _owner: Box<dyn Any + Send + Sync>,
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "memory of {:?}", self.gpu)
    }
}

impl DeviceMemory for Memory {
    fn write(&self, address: u64, bytes: &[u8]) -> Result<(), DropReason> {
        let _restore = Restore::later();
        self.gpu.bind()?;
        // SAFETY: the address is in a region, whose memory is allocated (`Gpu::region`), and `bytes` outlive the copy, which
        // `finish` waits for.
        let copied =
            unsafe { result::memcpy_htod_async(address, bytes, self.gpu.stream.cu_stream()) };
        self.gpu.finish(copied)
    }

    fn read(&self, address: u64, out: &mut [u8]) -> Result<(), DropReason> {
        let _restore = Restore::later();
        self.gpu.bind()?;
        // SAFETY: as in `write`.
        let copied =
            unsafe { result::memcpy_dtoh_async(out, address, self.gpu.stream.cu_stream()) };
        self.gpu.finish(copied)
    }
}

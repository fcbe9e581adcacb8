//! Registered memory.

use std::any::Any;
use std::ffi::{CString, c_char, c_void};
use std::fmt::Display;
use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use weft_cuda::Gpu;
use weft_transfer_engine::{Access, MemoryRegion, MrDescriptor, Progress, Region, TransferEngine};

use crate::argument::{give, given, memory};
use crate::callback::check_not_in_callback;
use crate::engine::{Process, WeftEngine, running};
use crate::status::{Refusal, WeftStatus, call};
use crate::text::text;

/// Peers may do nothing: the memory is the source of writes here.
pub const WEFT_ACCESS_NONE: u32 = 0;
/// Peers may write to it. It is also needed where this end reads to.
pub const WEFT_ACCESS_WRITE: u32 = 1;
/// Peers may read it.
pub const WEFT_ACCESS_READ: u32 = 2;
/// Peers may change words of it.
pub const WEFT_ACCESS_ATOMIC: u32 = 4;
/// All of it.
pub const WEFT_ACCESS_ALL: u32 = 7;

/// Time without end, for calls that wait.
pub const WEFT_NO_TIMEOUT: u64 = u64::MAX;

/// Registered memory.
pub struct WeftMr {
    /// `None` once it is deregistered.
    region: Option<MemoryRegion>,
    start: *mut c_void,
    bytes: u64,
    descriptor: CString,
    process: Process,
    /// Of its engine.
    program_polls: bool,
    /// Of memory that the program owns.
    borrowed: Option<Arc<Borrowed>>,
}

/// Whether the engine still refers to memory that the program owns.
#[derive(Default)]
struct Borrowed {
    is_over: Mutex<bool>,
    over: Condvar,
}

/// The region drops this at its end.
struct Owner(Arc<Borrowed>);

impl Drop for Owner {
    fn drop(&mut self) {
        *self
            .0
            .is_over
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = true;
        self.0.over.notify_all();
    }
}

impl Borrowed {
    /// Waits until the engine does not refer to the memory. Answers whether it came to that in this time.
    fn wait(&self, time: Duration) -> bool {
        let is_over = self.is_over.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self
            .over
            .wait_timeout_while(is_over, time, |is_over| !*is_over);
        let (is_over, _) = waited.unwrap_or_else(PoisonError::into_inner);
        *is_over
    }
}

impl WeftMr {
    fn new(
        engine: &TransferEngine,
        (region, descriptor): (MemoryRegion, MrDescriptor),
        borrowed: Option<Arc<Borrowed>>,
    ) -> Self {
        let start = region
            .as_ptr()
            .map_or(std::ptr::null_mut(), NonNull::as_ptr);
        Self {
            bytes: region.bytes(),
            region: Some(region),
            start: start.cast(),
            descriptor: text(descriptor.to_string()),
            process: Process::this(),
            program_polls: engine.progress() == Progress::Inline,
            borrowed,
        }
    }

    /// Registers memory that the program owns: `region` is given what is dropped when the engine lets go of it.
    fn borrowed(
        engine: &TransferEngine,
        access: Access,
        region: impl FnOnce(Box<dyn Any + Send + Sync>) -> Result<Arc<Region>, Refusal>,
    ) -> Result<Self, Refusal> {
        let borrowed = Arc::new(Borrowed::default());
        let region = region(Box::new(Owner(Arc::clone(&borrowed))))?;
        let registered = engine.reg_mr(region, access)?;
        Ok(Self::new(engine, registered, Some(borrowed)))
    }

    /// For an operation.
    pub(crate) fn region(&self, name: impl Display) -> Result<MemoryRegion, Refusal> {
        let region = self.region.clone();
        region.ok_or_else(|| Refusal {
            status: WeftStatus::WEFT_NOT_REGISTERED,
            text: format!("{name} was deregistered: register the memory again"),
        })
    }
}

fn access(bits: u32) -> Result<Access, Refusal> {
    if bits & !WEFT_ACCESS_ALL != 0 {
        return Err(Refusal::invalid(format!(
            "access is {bits:#x}: combine WEFT_ACCESS_WRITE, WEFT_ACCESS_READ and WEFT_ACCESS_ATOMIC"
        )));
    }
    let each = [
        (WEFT_ACCESS_WRITE, Access::WRITE),
        (WEFT_ACCESS_READ, Access::READ),
        (WEFT_ACCESS_ATOMIC, Access::ATOMIC),
    ];
    let wanted = each.into_iter().filter(|(bit, _)| bits & bit != 0);
    Ok(wanted.fold(Access::NONE, |all, (_, access)| all.with(access)))
}

/// Registers `bytes` bytes of memory of the program, at least 1. Nothing is copied or pinned. Peers that have the descriptor
/// may use the memory as `access` says, a sum of WEFT_ACCESS_ values. Without WEFT_ACCESS_WRITE and WEFT_ACCESS_ATOMIC
/// it is never written to.
///
/// **The memory must stay until weft_dereg_mr() has returned WEFT_OK**, also when the engine is closed before.
#[unsafe(no_mangle)]
pub extern "C" fn weft_reg_mr(
    engine: Option<&WeftEngine>,
    memory: *mut c_void,
    bytes: u64,
    access: u32,
    mr: Option<&mut MaybeUninit<*mut WeftMr>>,
) -> WeftStatus {
    call(|| {
        let engine = running(engine)?;
        let to = given(mr, "mr")?;
        let (start, length) = self::memory(memory, bytes)?;
        let access = self::access(access)?;
        // SAFETY: memory that stays until `weft_dereg_mr` has succeeded, which waits for the owner's drop (invariant 2).
        let region = |owner| Ok(unsafe { Region::borrow(start, length, owner) });
        give(to, WeftMr::borrowed(engine, access, region)?);
        Ok(())
    })
}

/// Registers memory of an NVIDIA GPU: `bytes` bytes from `address` on, all in one allocation, as cuMemAlloc() and cudaMalloc()
/// make it. `gpu` is the driver's number of the GPU, 0 for the first. The driver, libcuda.so.1, is loaded by the first call.
/// Bytes go through host memory. The copies wait for no stream of the program: synchronise the one that computes a source before
/// the write is submitted.
///
/// **The memory must stay until weft_dereg_mr() has returned WEFT_OK**, also when the engine is closed before.
#[unsafe(no_mangle)]
pub extern "C" fn weft_reg_cuda_mr(
    engine: Option<&WeftEngine>,
    gpu: u32,
    address: u64,
    bytes: u64,
    access: u32,
    mr: Option<&mut MaybeUninit<*mut WeftMr>>,
) -> WeftStatus {
    call(|| {
        let engine = running(engine)?;
        let to = given(mr, "mr")?;
        if bytes == 0 {
            return Err(Refusal::invalid("bytes is 0: it must be at least 1"));
        }
        let access = self::access(access)?;
        let gpu = Gpu::open(gpu as usize)?;
        // SAFETY: as in `weft_reg_mr`.
        let region = |owner| Ok(unsafe { gpu.region(address, bytes, owner)? });
        give(to, WeftMr::borrowed(engine, access, region)?);
        Ok(())
    })
}

/// Allocates `bytes` bytes, at least 1, all 0, and registers them for all access. weft_mr_address() says where they lie. The
/// memory is a memfd, which other processes can map; weft_dereg_mr() frees it.
#[unsafe(no_mangle)]
pub extern "C" fn weft_alloc(
    engine: Option<&WeftEngine>,
    bytes: u64,
    mr: Option<&mut MaybeUninit<*mut WeftMr>>,
) -> WeftStatus {
    call(|| {
        let engine = running(engine)?;
        let to = given(mr, "mr")?;
        give(to, WeftMr::new(engine, engine.alloc(bytes)?, None));
        Ok(())
    })
}

/// Where the memory lies. NULL if `mr` is, or for memory of a GPU.
#[unsafe(no_mangle)]
pub extern "C" fn weft_mr_address(mr: Option<&WeftMr>) -> *mut c_void {
    mr.map_or(std::ptr::null_mut(), |mr| mr.start)
}

/// Bytes of the memory. 0 if `mr` is NULL.
#[unsafe(no_mangle)]
pub extern "C" fn weft_mr_bytes(mr: Option<&WeftMr>) -> u64 {
    mr.map_or(0, |mr| mr.bytes)
}

/// The name of the memory for peers, a string to send to them. **A secret**, as the engine's address. NULL if `mr` is.
#[unsafe(no_mangle)]
pub extern "C" fn weft_mr_descriptor(mr: Option<&WeftMr>) -> *const c_char {
    mr.map_or(std::ptr::null(), |mr| mr.descriptor.as_ptr())
}

/// Closes the memory to peers and to later operations, then waits until nothing of the engine refers to it, and frees
/// `mr`. After WEFT_OK the program may free or reuse the memory; that of weft_alloc() is gone. No other call may use `mr`
/// meanwhile.
///
/// After WEFT_TIMED_OUT operations under way still refer to the memory: no byte of a peer lands any more, but `mr` is still
/// there, and the memory must stay. Call again; or cancel the operations, remove the peer or close the engine, and call
/// again. `timeout_us` may be 0, or WEFT_NO_TIMEOUT; it must be 0 for an engine with `program_polls`, where nothing ends before
/// weft_poll(). A callback may call this with 0 only.
#[unsafe(no_mangle)]
pub extern "C" fn weft_dereg_mr(mr: *mut WeftMr, timeout_us: u64) -> WeftStatus {
    call(|| {
        if timeout_us > 0 {
            check_not_in_callback("weft_dereg_mr")?;
        }
        // SAFETY: a handle of this library that no other call uses (invariant 1).
        let Some(handle) = (unsafe { mr.as_mut() }) else {
            return Ok(());
        };
        if timeout_us > 0 && handle.program_polls && handle.borrowed.is_some() {
            return Err(Refusal::invalid(
                "timeout_us must be 0 for an engine with program_polls: call weft_poll and weft_dereg_mr again"
                    .to_owned(),
            ));
        }
        if let Some(region) = handle.region.take() {
            region.deregister();
        }
        if let Some(borrowed) = &handle.borrowed
            // A forked process has no thread that could use the memory.
            && handle.process.check().is_ok()
            && !borrowed.wait(Duration::from_micros(timeout_us))
        {
            return Err(Refusal::timed_out(
                "operations under way refer to the memory of mr: keep the memory, wait for them or cancel them, and \
                 call weft_dereg_mr again",
            ));
        }
        // SAFETY: as before; it came from a box, and the program does not use it after this call.
        drop(unsafe { Box::from_raw(mr) });
        Ok(())
    })
}

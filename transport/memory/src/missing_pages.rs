//! Accesses to memory whose pages may be missing, and what has a missing page made by nobody.

use std::ffi::{c_int, c_void};
use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering, compiler_fence};
use std::sync::{Mutex, OnceLock, PoisonError};

use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
use rustix::ioctl::{Updater, ioctl, opcode};
use rustix::mm::{MapFlags, ProtFlags, UserfaultfdFlags, mmap_anonymous, userfaultfd};
use rustix::param::page_size;

/// A userfaultfd(2): an access to a page of its ranges that the file has not is a SIGBUS, and makes none.
#[derive(Debug)]
pub(crate) struct MissingPages(OwnedFd);

/// `struct uffdio_api`.
#[repr(C)]
struct UffdioApi {
    api: u64,
    features: u64,
    ioctls: u64,
}

/// `struct uffdio_register`.
#[repr(C)]
struct UffdioRegister {
    start: u64,
    length: u64,
    mode: u64,
    ioctls: u64,
}

/// What a process needs no right for.
const UFFD_USER_MODE_ONLY: u32 = 1;
const UFFD_API: u64 = 0xaa;
const UFFD_FEATURE_MISSING_SHMEM: u64 = 1 << 5;
const UFFD_FEATURE_SIGBUS: u64 = 1 << 7;
const UFFDIO_REGISTER_MODE_MISSING: u64 = 1;

type UffdioApiCall<'a> = Updater<'a, { opcode::read_write::<UffdioApi>(0xaa, 0x3f) }, UffdioApi>;
type UffdioRegisterCall<'a> =
    Updater<'a, { opcode::read_write::<UffdioRegister>(0xaa, 0x00) }, UffdioRegister>;

impl MissingPages {
    /// Of no range yet. The handler for SIGBUS is set with the first one.
    pub(crate) fn new() -> io::Result<MissingPages> {
        handle_missing_pages()?;
        let user_mode_only = UserfaultfdFlags::from_bits_retain(UFFD_USER_MODE_ONLY);
        let flags = UserfaultfdFlags::CLOEXEC | user_mode_only;
        // SAFETY: it has no range yet, so it changes nothing.
        let fd = unsafe { userfaultfd(flags) }?;
        let mut api = UffdioApi {
            api: UFFD_API,
            features: UFFD_FEATURE_SIGBUS | UFFD_FEATURE_MISSING_SHMEM,
            ioctls: 0,
        };
        // SAFETY: this is what UFFDIO_API takes and writes.
        unsafe { ioctl(&fd, UffdioApiCall::new(&mut api)) }?;
        Ok(MissingPages(fd))
    }

    /// Pages of a mapping, which nobody makes from here on.
    pub(crate) fn register(&self, start: *mut u8, bytes: usize) -> io::Result<()> {
        let mut range = UffdioRegister {
            start: start.addr() as u64,
            length: bytes as u64,
            mode: UFFDIO_REGISTER_MODE_MISSING,
            ioctls: 0,
        };
        // SAFETY: this is what UFFDIO_REGISTER takes and writes; the range is a mapping of ours, and an access to a page
        // that is missing is guarded.
        unsafe { ioctl(&self.0, UffdioRegisterCall::new(&mut range)) }?;
        Ok(())
    }
}

/// What this thread accesses that may be missing. Atomics, for the handler interrupts what sets them.
struct Guard {
    start: AtomicUsize,
    end: AtomicUsize,
    /// A page was.
    is_missing: AtomicBool,
}

thread_local! {
    static GUARD: Guard = const {
        Guard {
            start: AtomicUsize::new(0),
            end: AtomicUsize::new(0),
            is_missing: AtomicBool::new(false),
        }
    };
}

/// Does something with bytes whose pages may be missing; answers whether one was.
pub(crate) fn guarded<R>(bytes: Range<*const AtomicU8>, act: impl FnOnce() -> R) -> (R, bool) {
    GUARD.with(|guard| {
        guard.start.store(bytes.start.addr(), Ordering::Relaxed);
        guard.end.store(bytes.end.addr(), Ordering::Relaxed);
        // The handler runs on this thread.
        compiler_fence(Ordering::SeqCst);
        let done = act();
        compiler_fence(Ordering::SeqCst);
        guard.end.store(0, Ordering::Relaxed);
        (done, guard.is_missing.swap(false, Ordering::Relaxed))
    })
}

/// What SIGBUS did before.
static BEFORE: OnceLock<SigAction> = OnceLock::new();

/// Sets the handler, once for the process.
fn handle_missing_pages() -> io::Result<()> {
    if BEFORE.get().is_some() {
        return Ok(());
    }
    static SETTING: Mutex<()> = Mutex::new(());
    let _setting = SETTING.lock().unwrap_or_else(PoisonError::into_inner);
    if BEFORE.get().is_some() {
        return Ok(());
    }
    let handler = SigHandler::SigAction(on_bus_error);
    let action = SigAction::new(handler, SaFlags::SA_ONSTACK, SigSet::empty());
    // SAFETY: the handler does nothing that a signal handler may not: it reads this thread's guard, which has no
    // destructor and needs no set-up, and makes system calls.
    let before = unsafe { sigaction(Signal::SIGBUS, &action) }?;
    let _ = BEFORE.set(before);
    Ok(())
}

extern "C" fn on_bus_error(_signal: c_int, info: *mut nix::libc::siginfo_t, _context: *mut c_void) {
    // SAFETY: the kernel gives a handler with SA_SIGINFO what has happened; SIGBUS has an address.
    let address = unsafe { (*info).si_addr() }.addr();
    let is_replaced = GUARD.with(|guard| {
        let range = guard.start.load(Ordering::Relaxed)..guard.end.load(Ordering::Relaxed);
        if !range.contains(&address) {
            return false;
        }
        guard.is_missing.store(true, Ordering::Relaxed);
        let page_bytes = page_size();
        let page = address / page_bytes * page_bytes;
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE;
        // SAFETY: the page is of the mapping that is being accessed, whose lock this thread holds. It is mapped anew from
        // the file when the access is over.
        let mapped = unsafe {
            mmap_anonymous(
                std::ptr::with_exposed_provenance_mut(page),
                page_bytes,
                prot,
                flags,
            )
        };
        mapped.is_ok()
    });
    if is_replaced {
        return;
    }
    // Somebody else's fault: it happens again, and is served as it was before.
    let default = SigAction::new(SigHandler::SigDfl, SaFlags::empty(), SigSet::empty());
    let before = BEFORE.get().unwrap_or(&default);
    // SAFETY: this was the process's handler, or is the system's.
    let _ = unsafe { sigaction(Signal::SIGBUS, before) };
}

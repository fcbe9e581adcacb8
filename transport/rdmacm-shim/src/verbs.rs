//! The functions of `libibverbs.so.1` that this library calls: those of the library that the program has.

use std::ffi::{CStr, c_int, c_void};
use std::mem::offset_of;
use std::sync::OnceLock;

use weft_verbs_abi::{
    CompletionChannel, CompletionQueue, Context, Device, DeviceAttr, PortAttr, ProtectionDomain,
    QpAttr, QpInitAttr, QpInitAttrEx, QueuePair, SharedReceives, SrqInitAttr, VerbsContext,
};

macro_rules! functions {
    ($($name:ident: $kind:ty;)*) => {
        /// The functions, without `ibv_`.
        pub(crate) struct Verbs {
            $(pub(crate) $name: $kind,)*
        }

        fn load() -> Option<Verbs> {
            // SAFETY: a library is loaded, or found if it is loaded already; this one is never unloaded.
            let library = unsafe { libc::dlopen(c"libibverbs.so.1".as_ptr(), libc::RTLD_NOW) };
            if library.is_null() {
                return None;
            }
            Some(Verbs {
                $($name: {
                    let name = concat!("ibv_", stringify!($name), "\0").as_bytes();
                    let name = CStr::from_bytes_with_nul(name).ok()?;
                    // SAFETY: the library is loaded.
                    let found = unsafe { libc::dlsym(library, name.as_ptr()) };
                    if found.is_null() {
                        return None;
                    }
                    // SAFETY: it has this type (invariant 4).
                    unsafe { std::mem::transmute::<*mut c_void, $kind>(found) }
                },)*
            })
        }
    };
}

functions! {
    get_device_list: unsafe extern "C" fn(*mut c_int) -> *mut *mut Device;
    free_device_list: unsafe extern "C" fn(*mut *mut Device);
    open_device: unsafe extern "C" fn(*mut Device) -> *mut Context;
    close_device: unsafe extern "C" fn(*mut Context) -> c_int;
    query_device: unsafe extern "C" fn(*mut Context, *mut DeviceAttr) -> c_int;
    query_port: unsafe extern "C" fn(*mut Context, u8, *mut PortAttr) -> c_int;
    query_gid: unsafe extern "C" fn(*mut Context, u8, c_int, *mut [u8; 16]) -> c_int;
    alloc_pd: unsafe extern "C" fn(*mut Context) -> *mut ProtectionDomain;
    create_comp_channel: unsafe extern "C" fn(*mut Context) -> *mut CompletionChannel;
    destroy_comp_channel: unsafe extern "C" fn(*mut CompletionChannel) -> c_int;
    create_cq: unsafe extern "C" fn(
        *mut Context,
        c_int,
        *mut c_void,
        *mut CompletionChannel,
        c_int,
    ) -> *mut CompletionQueue;
    destroy_cq: unsafe extern "C" fn(*mut CompletionQueue) -> c_int;
    create_qp: unsafe extern "C" fn(*mut ProtectionDomain, *mut QpInitAttr) -> *mut QueuePair;
    modify_qp: unsafe extern "C" fn(*mut QueuePair, *mut QpAttr, c_int) -> c_int;
    destroy_qp: unsafe extern "C" fn(*mut QueuePair) -> c_int;
    create_srq:
        unsafe extern "C" fn(*mut ProtectionDomain, *mut SrqInitAttr) -> *mut SharedReceives;
    destroy_srq: unsafe extern "C" fn(*mut SharedReceives) -> c_int;
}

/// The functions, or none where there is no libibverbs.
pub(crate) fn verbs() -> Option<&'static Verbs> {
    static VERBS: OnceLock<Option<Verbs>> = OnceLock::new();
    VERBS.get_or_init(load).as_ref()
}

/// The end of `struct verbs_context`, which lies before a `struct ibv_context`.
#[repr(C)]
struct Extension {
    create_qp_ex: Option<unsafe extern "C" fn(*mut Context, *mut QpInitAttrEx) -> *mut QueuePair>,
    between: [usize; 5],
    /// Of the whole `struct verbs_context`.
    size: usize,
}

/// Of `struct ibv_context`: all ones where a `struct verbs_context` lies before it.
const ABI_COMPAT: usize = offset_of!(Context, abi_compat);
/// Bytes of `struct verbs_context` from `create_qp_ex` to its end.
const NEEDED: usize = size_of::<VerbsContext>() - offset_of!(VerbsContext, create_qp_ex);
const _: () = assert!(
    offset_of!(Extension, size)
        == offset_of!(VerbsContext, size) - offset_of!(VerbsContext, create_qp_ex)
);
const _: () = assert!(size_of::<Extension>() + size_of::<Context>() == NEEDED);

/// `ibv_create_qp_ex`, which is inline in `verbs.h`.
///
/// # Safety
/// The context is open, and the attributes are those of `verbs.h`.
pub(crate) unsafe fn create_qp_ex(
    context: *mut Context,
    attr: *mut QpInitAttrEx,
) -> Option<*mut QueuePair> {
    // SAFETY: as verbs.h does it: the word says that the extension is there, and its size that the function is.
    unsafe {
        if *context.byte_add(ABI_COMPAT).cast::<usize>() != usize::MAX {
            return None;
        }
        let extension = context.byte_sub(size_of::<Extension>()).cast::<Extension>();
        if (*extension).size < NEEDED {
            return None;
        }
        (*extension)
            .create_qp_ex
            .map(|create| create(context, attr))
    }
}

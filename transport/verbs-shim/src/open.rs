//! How a device is opened: the tables of functions that programs call without the library.

use std::io::Write as _;
use std::os::fd::AsRawFd;
use std::ptr;
use std::sync::{Arc, Mutex};

use weft_device_socket::Client;

use crate::contexts::{OwnContext, query_device_ex, query_port, set_errno};
use crate::devices::own;
use crate::events::Events;
use crate::outstanding::PolledEnds;
use crate::{completion_queues, data, queue_pairs, shared_receives};
use weft_verbs_abi::{Context, ContextOps, Device, VerbsContext};

/// `ibv_open_device`.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_open_device(device: *mut Device) -> *mut Context {
    // SAFETY: a device of the list (invariant 1).
    let path = &unsafe { own(device) }.path;
    let mut client = match Client::open(path) {
        Ok(client) => client,
        Err(error) => {
            // A library has no other way to say more than a number.
            let _ = writeln!(std::io::stderr(), "libibverbs of weft: {error}");
            set_errno(libc::ENODEV);
            return ptr::null_mut();
        }
    };
    let (Some(doorbells), Some(events)) = (client.doorbells(), client.take_events()) else {
        set_errno(libc::EMFILE);
        return ptr::null_mut();
    };
    let events = Arc::new(Events::new(events));
    let context = Context {
        device,
        ops: ContextOps {
            poll_cq: Some(data::poll_cq),
            req_notify_cq: Some(data::req_notify_cq),
            post_send: Some(data::post_send),
            post_recv: Some(data::post_recv),
            post_srq_recv: Some(shared_receives::post_srq_recv),
            ..ContextOps::default()
        },
        cmd_fd: client.socket().as_raw_fd(),
        async_fd: events.socket().as_raw_fd(),
        num_comp_vectors: 1,
        mutex: [0; 5],
        abi_compat: usize::MAX,
    };
    let verbs = VerbsContext {
        query_port: Some(query_port),
        unsupported: [None; 24],
        create_cq_ex: Some(completion_queues::create_cq_ex),
        private: ptr::null_mut(),
        query_device_ex: Some(query_device_ex),
        flows: [None; 4],
        open_qp: None,
        create_qp_ex: Some(queue_pairs::create_qp_ex),
        rest: [None; 4],
        reserved: 0,
        size: size_of::<VerbsContext>(),
        context,
    };
    let own = Box::into_raw(Box::new(OwnContext {
        verbs,
        process: std::process::id(),
        client,
        calling: Mutex::default(),
        doorbells,
        polled: Arc::new(PolledEnds::new()),
        events,
    }));
    // SAFETY: it was just made.
    unsafe { &raw mut (*own).verbs.context }
}

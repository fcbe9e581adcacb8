//! Queue pairs: made, changed, asked and destroyed.

use std::ffi::{c_int, c_uint};
use std::ptr;
use std::sync::Mutex;

use weft_device::control::{
    Answer, ErrorNumber, QueuePair as Wanted, QueuePairAttributes, QueueSizes, Request,
};
use weft_device::ring::Producer;
use weft_device::state::{Attributes, QueuePairType, State};

use crate::address_handles::{address, words};
use crate::completion_queue::own_queue;
use crate::contexts::{done, lock, not_made, own_context, set_errno};
use crate::outstanding::Outstanding;
use crate::pair::{Builder, OwnPair, Receives, Sends, UD, own_pair};
use crate::unacknowledged::Unacknowledged;
use crate::work_requests;
use weft_verbs_abi::{
    AhAttr, Context, ProtectionDomain, QpAttr, QpCap, QpEx, QpExOps, QpInitAttr, QpInitAttrEx,
    QueuePair,
};

/// Bytes of a send that lie in a ring's shortest entry. Programs count on a few without asking, as `rdma_xclient` does.
const INLINE_BYTES_MIN: u32 = 32;

/// `enum ibv_qp_type`.
const RC: c_int = 2;
const UC: c_int = 3;

unsafe fn create(
    context: *mut Context,
    pd: *mut ProtectionDomain,
    attr: &mut QpInitAttr,
    ops: QpExOps,
) -> *mut QueuePair {
    let kind = match attr.qp_type {
        RC => QueuePairType::ReliableConnected,
        UC => QueuePairType::UnreliableConnected,
        UD => QueuePairType::UnreliableDatagram,
        _ => return not_made(ErrorNumber::NotSupported),
    };
    if pd.is_null() || attr.send_cq.is_null() || attr.recv_cq.is_null() {
        return not_made(ErrorNumber::InvalidArgument);
    }
    // SAFETY: all of them are ours (invariant 1).
    let (own, wanted) = unsafe {
        let own = own_context(context);
        let inline_bytes = INLINE_BYTES_MIN.min(own.limits().inline_bytes);
        let wanted = Wanted {
            domain: (*pd).handle,
            kind,
            send_completions: (*attr.send_cq).handle,
            receive_completions: (*attr.recv_cq).handle,
            shared_receive_queue: attr.srq.as_ref().map(|shared| shared.handle),
            sizes: QueueSizes {
                sends: attr.cap.max_send_wr,
                receives: attr.cap.max_recv_wr,
                send_sges: attr.cap.max_send_sge,
                receive_sges: attr.cap.max_recv_sge,
                inline_bytes: attr.cap.max_inline_data.max(inline_bytes),
            },
        };
        (own, wanted)
    };
    let (number, sizes, send_place, receive_place) =
        match own.ask(&Request::CreateQueuePair(wanted)) {
            Ok(Answer::CreatedQueuePair {
                queue_pair,
                sizes,
                send_ring,
                receive_ring,
            }) => (queue_pair, sizes, send_ring, receive_ring),
            Ok(_) => return not_made(ErrorNumber::EngineGone),
            Err(error) => return not_made(error),
        };
    let receives = receive_place.map(|place| own.ring_at(place)).transpose();
    let (sends, receives) = match (own.ring_at(send_place), receives) {
        (Ok(sends), Ok(receives)) => (sends, receives),
        (Err(error), _) | (_, Err(error)) => return not_made(error),
    };
    attr.cap = cap(&sizes);
    own.polled.begin(number);
    let made = OwnPair {
        pair: QpEx {
            base: QueuePair {
                context,
                qp_context: attr.qp_context,
                pd,
                send_cq: attr.send_cq,
                recv_cq: attr.recv_cq,
                srq: attr.srq,
                handle: number,
                qp_num: number,
                state: State::Reset as c_int,
                qp_type: attr.qp_type,
                mutex: [0; 5],
                cond: [0; 6],
                events_completed: 0,
            },
            comp_mask: 0,
            wr_id: 0,
            wr_flags: 0,
            ops,
        },
        comp_mask: 0,
        xrcd: 0,
        sends: Mutex::new(Sends {
            outstanding: Outstanding::new(sizes.sends, sends.slots()),
            ring: Producer::new(sends, 0),
            builder: Builder::default(),
        }),
        receives: receives.map(|ring| {
            Mutex::new(Receives {
                outstanding: Some(Outstanding::new(sizes.receives, ring.slots())),
                ring: Producer::new(ring, 0),
            })
        }),
        is_all_signaled: attr.sq_sig_all != 0,
        sizes,
        events: Unacknowledged::default(),
    };
    let made = Box::into_raw(Box::new(made));
    lock(&own.events.queue_pairs).insert(number, made.expose_provenance());
    made.cast()
}

fn cap(sizes: &QueueSizes) -> QpCap {
    QpCap {
        max_send_wr: sizes.sends,
        max_recv_wr: sizes.receives,
        max_send_sge: sizes.send_sges,
        max_recv_sge: sizes.receive_sges,
        max_inline_data: sizes.inline_bytes,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_qp(
    pd: *mut ProtectionDomain,
    attr: *mut QpInitAttr,
) -> *mut QueuePair {
    // SAFETY: as the program says (invariant 1).
    unsafe { create((*pd).context, pd, &mut *attr, QpExOps::default()) }
}

/// `ibv_create_qp_ex`: it refuses what it has no function for, because programs do not look whether there is one.
pub(crate) unsafe extern "C" fn create_qp_ex(
    context: *mut Context,
    attr: *mut QpInitAttrEx,
) -> *mut QueuePair {
    const PD: u32 = 1;
    const CREATE_FLAGS: u32 = 1 << 2;
    const SEND_OPS: u32 = 1 << 6;
    // SAFETY: as the program says (invariant 1).
    let attr = unsafe { &mut *attr };
    let has = |bit| attr.attr.comp_mask & bit != 0;
    let has_flags = has(CREATE_FLAGS) && attr.create_flags != 0;
    if attr.attr.comp_mask & !(PD | CREATE_FLAGS | SEND_OPS) != 0 || !has(PD) || has_flags {
        return not_made(ErrorNumber::NotSupported);
    }
    let operations = match attr.attr.qp_type {
        UD => work_requests::OPERATIONS_OF_DATAGRAMS,
        _ => work_requests::OPERATIONS,
    };
    let ops = match has(SEND_OPS) {
        true if attr.send_ops_flags & !operations != 0 => {
            return not_made(ErrorNumber::NotSupported);
        }
        true => work_requests::functions(),
        false => QpExOps::default(),
    };
    // SAFETY: as the program says (invariant 1).
    unsafe { create(context, attr.pd, &mut attr.attr, ops) }
}

/// Only a queue pair that was made with `send_ops_flags` has the functions.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_qp_to_qp_ex(pair: *mut QueuePair) -> *mut QpEx {
    // SAFETY: it is one of ours (invariant 1).
    match unsafe { own_pair(pair) }.pair.ops.start {
        Some(_) => pair.cast(),
        None => ptr::null_mut(),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_destroy_qp(pair: *mut QueuePair) -> c_int {
    // SAFETY: it is one of ours, and used no more once it is gone (invariants 1 and 2).
    unsafe {
        let (context, number) = ((*pair).context, (*pair).qp_num);
        let error = done(context, &Request::DestroyQueuePair(number));
        if error == 0 {
            lock(&own_context(context).events.queue_pairs).remove(&number);
            own_pair(pair).events.wait();
            drop(Box::from_raw(pair.cast::<OwnPair>()));
        }
        error
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_modify_qp(pair: *mut QueuePair, attr: *mut QpAttr, mask: c_int) -> c_int {
    // SAFETY: as the program says (invariant 1).
    let (context, number, attr) = unsafe { ((*pair).context, (*pair).qp_num, &*attr) };
    let attributes = QueuePairAttributes {
        state: attr.qp_state as u32,
        current_state: attr.cur_qp_state as u32,
        path_mtu: attr.path_mtu as u32,
        q_key: attr.qkey,
        receive_psn: attr.rq_psn,
        send_psn: attr.sq_psn,
        peer_queue_pair: attr.dest_qp_num,
        access: attr.qp_access_flags,
        address: address(&attr.ah_attr),
        partition_index: attr.pkey_index,
        port: attr.port_num,
        requests_from_here: attr.max_rd_atomic,
        requests_from_peer: attr.max_dest_rd_atomic,
        receiver_not_ready_timer: attr.min_rnr_timer,
        timeout: attr.timeout,
        retries: attr.retry_cnt,
        receiver_not_ready_retries: attr.rnr_retry,
        notifies_drained: attr.en_sqd_async_notify != 0,
    };
    let given = mask as u32;
    let request = Request::ModifyQueuePair {
        queue_pair: number,
        given,
        attributes,
    };
    // SAFETY: the context is open while its queue pair is there.
    let error = unsafe { done(context, &request) };
    if error == 0 && Attributes(given).contains(Attributes::STATE) {
        // SAFETY: it is one of ours. Programs read the state without a lock, as of any library.
        unsafe { (&raw mut (*pair).state).write_volatile(attr.qp_state) };
        if attr.qp_state == State::Reset as c_int {
            // SAFETY: it is one of ours (invariant 1).
            unsafe { own_pair(pair) }.forget_posted();
            // SAFETY: it is one of ours, and its completion queues are not destroyed before it.
            for queue in unsafe { [(*pair).send_cq, (*pair).recv_cq].map(|queue| own_queue(queue)) }
            {
                lock(&queue.taken).forget(number);
            }
        }
    }
    error
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_qp(
    pair: *mut QueuePair,
    out: *mut QpAttr,
    _: c_int,
    init: *mut QpInitAttr,
) -> c_int {
    // SAFETY: it is one of ours (invariant 1).
    let (own, base) = unsafe { (own_pair(pair), &*pair) };
    // SAFETY: the context is open while its queue pair is there.
    let context = unsafe { own_context(base.context) };
    let found = match context.ask(&Request::QueryQueuePair(base.qp_num)) {
        Ok(Answer::Attributes(found)) => found,
        Ok(_) => return set_errno(libc::EIO),
        Err(error) => return set_errno(error.number()),
    };
    let attr = QpAttr {
        qp_state: found.state as c_int,
        cur_qp_state: found.state as c_int,
        path_mtu: found.path_mtu as c_int,
        qkey: found.q_key,
        rq_psn: found.receive_psn,
        sq_psn: found.send_psn,
        dest_qp_num: found.peer_queue_pair,
        qp_access_flags: found.access as c_uint,
        cap: cap(&own.sizes),
        ah_attr: AhAttr {
            dgid: words(&found.address.gid),
            sgid_index: found.address.gid_index,
            hop_limit: found.address.hop_limit,
            traffic_class: found.address.traffic_class,
            sl: found.address.service_level,
            is_global: found.address.is_global.into(),
            port_num: found.address.port,
            ..AhAttr::default()
        },
        pkey_index: found.partition_index,
        max_rd_atomic: found.requests_from_here,
        max_dest_rd_atomic: found.requests_from_peer,
        min_rnr_timer: found.receiver_not_ready_timer,
        port_num: found.port,
        timeout: found.timeout,
        retry_cnt: found.retries,
        rnr_retry: found.receiver_not_ready_retries,
        en_sqd_async_notify: found.notifies_drained.into(),
        ..QpAttr::default()
    };
    // SAFETY: the program passes room for both (invariant 1).
    unsafe {
        out.write(attr);
        if !init.is_null() {
            init.write(QpInitAttr {
                qp_context: base.qp_context,
                send_cq: base.send_cq,
                recv_cq: base.recv_cq,
                srq: base.srq,
                cap: cap(&own.sizes),
                qp_type: base.qp_type,
                sq_sig_all: own.is_all_signaled.into(),
                comp_mask: 0,
            });
        }
        (&raw mut (*pair).state).write_volatile(found.state as c_int);
    }
    0
}

/// Bytes of a message come in any order but its last packet.
#[unsafe(no_mangle)]
extern "C" fn ibv_query_qp_data_in_order(_: *mut QueuePair, _: c_int, _: u32) -> c_int {
    0
}

//! The queue pair of an id: made, and moved through its states.

use std::ffi::c_int;
use std::io;
use std::ptr;

use weft_verbs_abi::{
    AhAttr, CompletionChannel, CompletionQueue, ProtectionDomain, QpAttr, QpInitAttr, QpInitAttrEx,
    SrqInitAttr, SrqInitAttrEx,
};

use crate::abi::CmId;
use crate::endpoint::Stage;
use crate::errno::{fail, fail_with};
use crate::ids::{UD, own_id};
use crate::message::Message;
use crate::verbs::{create_qp_ex, verbs};

/// `enum ibv_qp_state`.
pub(crate) const INIT: c_int = 1;
pub(crate) const READY_TO_RECEIVE: c_int = 2;
pub(crate) const READY_TO_SEND: c_int = 3;
pub(crate) const ERROR: c_int = 6;

/// `enum ibv_qp_attr_mask`.
pub(crate) const STATE: c_int = 1;
pub(crate) const ACCESS_FLAGS: c_int = 1 << 3;
pub(crate) const PKEY_INDEX: c_int = 1 << 4;
pub(crate) const PORT: c_int = 1 << 5;
pub(crate) const QKEY: c_int = 1 << 6;
pub(crate) const AV: c_int = 1 << 7;
pub(crate) const PATH_MTU: c_int = 1 << 8;
pub(crate) const TIMEOUT: c_int = 1 << 9;
pub(crate) const RETRY_CNT: c_int = 1 << 10;
pub(crate) const RNR_RETRY: c_int = 1 << 11;
pub(crate) const RQ_PSN: c_int = 1 << 12;
pub(crate) const MAX_QP_RD_ATOMIC: c_int = 1 << 13;
pub(crate) const MIN_RNR_TIMER: c_int = 1 << 15;
pub(crate) const SQ_PSN: c_int = 1 << 16;
pub(crate) const MAX_DEST_RD_ATOMIC: c_int = 1 << 17;
pub(crate) const DEST_QPN: c_int = 1 << 20;

/// `IBV_QP_INIT_ATTR_PD`.
pub(crate) const PD: u32 = 1;

/// `RDMA_UDP_QKEY`.
pub(crate) const DATAGRAM_KEY: u32 = 0x0123_4567;

/// The address of a peer's device.
pub(crate) fn address_of(gid: [u8; 16], traffic_class: u8) -> AhAttr {
    let half = |at: usize| {
        let bytes = gid[at..at + 8].try_into();
        u64::from_ne_bytes(bytes.unwrap_or_default())
    };
    AhAttr {
        dgid: [half(0), half(8)],
        hop_limit: 64,
        traffic_class,
        is_global: 1,
        port_num: 1,
        ..AhAttr::default()
    }
}

/// The attributes for the next state of the queue pair, and which of them count.
///
/// # Safety
/// It is one of ours (invariant 1).
unsafe fn attributes(id: *mut CmId, state: c_int) -> Result<(QpAttr, c_int), c_int> {
    // SAFETY: as the caller says.
    let own = unsafe { own_id(id) };
    let device = own.device.get().ok_or(libc::EINVAL)?;
    let attr = QpAttr {
        qp_state: state,
        port_num: 1,
        ..QpAttr::default()
    };
    let found = own.channel().with(own.token, |endpoint| {
        let peer = endpoint.peer.as_ref();
        match state {
            INIT if own.has_datagrams() => {
                let qkey = DATAGRAM_KEY;
                Ok((QpAttr { qkey, ..attr }, STATE | PKEY_INDEX | PORT | QKEY))
            }
            INIT => {
                // Reads, writes and atomics of the peer, where its keys allow them.
                let qp_access_flags = 0b1110;
                let attr = QpAttr {
                    qp_access_flags,
                    ..attr
                };
                Ok((attr, STATE | ACCESS_FLAGS | PKEY_INDEX | PORT))
            }
            READY_TO_RECEIVE if endpoint.stage != Stage::Closed => {
                let peer = peer.ok_or(libc::EINVAL)?;
                let resources = endpoint.own.responder_resources;
                let attr = QpAttr {
                    path_mtu: device.path_mtu.min(peer.path_mtu).into(),
                    rq_psn: peer.packet_number,
                    dest_qp_num: peer.queue_pair,
                    ah_attr: address_of(peer.gid, endpoint.traffic_class),
                    max_dest_rd_atomic: resources.min(device.responder_resources),
                    ..attr
                };
                let mask = STATE | AV | PATH_MTU | DEST_QPN | RQ_PSN;
                Ok((attr, mask | MAX_DEST_RD_ATOMIC | MIN_RNR_TIMER))
            }
            READY_TO_SEND if endpoint.stage != Stage::Closed => {
                let peer = peer.ok_or(libc::EINVAL)?;
                // How often both send again, the end says that asks to connect.
                let retries = match endpoint.destination {
                    Some(_) => endpoint.own.retries,
                    None => peer.retries,
                };
                let attr = QpAttr {
                    sq_psn: endpoint.own.packet_number,
                    max_rd_atomic: endpoint.own.initiator_depth.min(device.initiator_depth),
                    timeout: endpoint.timeout,
                    retry_cnt: retries,
                    rnr_retry: peer.receiver_not_ready_retries,
                    ..attr
                };
                let mask = STATE | SQ_PSN | TIMEOUT | RETRY_CNT | RNR_RETRY;
                Ok((attr, mask | MAX_QP_RD_ATOMIC))
            }
            _ => Err(libc::EINVAL),
        }
    });
    found.unwrap_or(Err(libc::EINVAL))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_init_qp_attr(id: *mut CmId, out: *mut QpAttr, mask: *mut c_int) -> c_int {
    // SAFETY: as the program says (invariant 1).
    unsafe {
        match attributes(id, (*out).qp_state) {
            Ok((attr, which)) => {
                out.write(attr);
                *mask = which;
                0
            }
            Err(number) => fail(number),
        }
    }
}

/// Moves the queue pair of an id to a state.
///
/// # Safety
/// It is one of ours, and so is its queue pair (invariant 1).
unsafe fn move_to(id: *mut CmId, state: c_int) -> Result<(), c_int> {
    // SAFETY: as the caller says (invariant 4).
    unsafe {
        let (mut attr, mask) = attributes(id, state)?;
        modify(id, &mut attr, mask)
    }
}

unsafe fn modify(id: *mut CmId, attr: &mut QpAttr, mask: c_int) -> Result<(), c_int> {
    let verbs = verbs().ok_or(libc::ENODEV)?;
    // SAFETY: the id has a queue pair (invariants 1 and 4).
    match unsafe { (verbs.modify_qp)((*id).qp, attr, mask) } {
        0 => Ok(()),
        number => Err(number),
    }
}

/// Connects the queue pair of an id, if it has one.
///
/// # Safety
/// It is one of ours (invariant 1).
pub(crate) unsafe fn connect(id: *mut CmId) -> Result<(), c_int> {
    // SAFETY: as the caller says.
    unsafe {
        if (*id).qp.is_null() {
            return Ok(());
        }
        move_to(id, READY_TO_RECEIVE)?;
        move_to(id, READY_TO_SEND)
    }
}

/// Fails the queue pair of an id, if it has one: what is posted is flushed.
///
/// # Safety
/// It is one of ours (invariant 1).
pub(crate) unsafe fn to_error(id: *mut CmId) {
    // SAFETY: as the caller says.
    unsafe {
        if !(*id).qp.is_null() {
            let mut attr = QpAttr {
                qp_state: ERROR,
                ..QpAttr::default()
            };
            // One that has failed already may refuse.
            let _ = modify(id, &mut attr, STATE);
        }
    }
}

/// The peer has accepted: connects the queue pair, and tells the peer that it may send.
///
/// # Safety
/// It is one of ours (invariant 1).
pub(crate) unsafe fn establish(id: *mut CmId) -> Result<(), c_int> {
    // SAFETY: as the caller says.
    let own = unsafe { own_id(id) };
    // SAFETY: as before.
    let connected = unsafe { connect(id) };
    let told = connected.and_then(|()| {
        let told = own.channel().with(own.token, |endpoint| {
            if endpoint.stage != Stage::Replied {
                return Err(io::ErrorKind::NotConnected.into());
            }
            endpoint.send(&Message::Ready)?;
            endpoint.stage = Stage::Connected;
            Ok(())
        });
        let told = told.unwrap_or_else(|| Err(io::Error::from(io::ErrorKind::NotConnected)));
        told.map_err(|error| error.raw_os_error().unwrap_or(libc::ENOTCONN))
    });
    if told.is_err() {
        // SAFETY: as before.
        unsafe { to_error(id) };
    }
    told
}

/// Makes the completion queues that the program has not given, each with a channel.
unsafe fn create_queues(id: &mut CmId, sends: u32, receives: u32) -> Option<()> {
    let verbs = verbs()?;
    let create = |entries: u32| {
        // SAFETY: the context is open (invariant 4).
        unsafe {
            let channel = (verbs.create_comp_channel)(id.verbs);
            if channel.is_null() {
                return (ptr::null_mut(), ptr::null_mut());
            }
            let entries = c_int::try_from(entries).unwrap_or(c_int::MAX);
            let context = ptr::from_ref(id).cast_mut().cast();
            let queue = (verbs.create_cq)(id.verbs, entries, context, channel, 0);
            (channel, queue)
        }
    };
    let receive = (receives > 0).then(|| create(receives));
    let send = (sends > 0).then(|| create(sends));
    if let Some((channel, queue)) = receive {
        (id.recv_cq_channel, id.recv_cq) = (channel, queue);
    }
    if let Some((channel, queue)) = send {
        (id.send_cq_channel, id.send_cq) = (channel, queue);
    }
    let is_made = |made: Option<(*mut CompletionChannel, *mut CompletionQueue)>| {
        made.is_none_or(|it| !it.1.is_null())
    };
    (is_made(receive) && is_made(send)).then_some(())
}

/// Destroys the completion queues that [`create_queues`] made.
unsafe fn destroy_queues(id: &mut CmId) {
    let Some(verbs) = verbs() else {
        return;
    };
    for queue in [&mut id.recv_cq, &mut id.send_cq] {
        let queue = std::mem::replace(queue, ptr::null_mut());
        if !queue.is_null() {
            // SAFETY: it was made by create_queues (invariant 4).
            unsafe { (verbs.destroy_cq)(queue) };
        }
    }
    for channel in [&mut id.recv_cq_channel, &mut id.send_cq_channel] {
        let channel = std::mem::replace(channel, ptr::null_mut());
        if !channel.is_null() {
            // SAFETY: as before.
            unsafe { (verbs.destroy_comp_channel)(channel) };
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_create_qp_ex(id: *mut CmId, attr: *mut QpInitAttrEx) -> c_int {
    // SAFETY: as the program says (invariants 1 and 4).
    unsafe {
        let (head, attr) = (&mut *id, &mut *attr);
        let Some(verbs) = verbs() else {
            return fail(libc::ENODEV);
        };
        if head.verbs.is_null() || !head.qp.is_null() {
            return fail(libc::EINVAL);
        }
        if attr.attr.comp_mask & PD == 0 || attr.pd.is_null() {
            attr.attr.comp_mask |= PD;
            attr.pd = head.pd;
        }
        let differs = |own: *mut CompletionQueue, given: *mut CompletionQueue| {
            !own.is_null() && !given.is_null() && own != given
        };
        let (send, receive) = (attr.attr.send_cq, attr.attr.recv_cq);
        if attr.pd.is_null()
            || (*attr.pd).context != head.verbs
            || differs(head.recv_cq, receive)
            || differs(head.send_cq, send)
        {
            return fail(libc::EINVAL);
        }
        let wanted = |given: *mut CompletionQueue, own: *mut CompletionQueue, size: u32| match given
            .is_null()
            && own.is_null()
        {
            true => size,
            false => 0,
        };
        let sends = wanted(send, head.send_cq, attr.attr.cap.max_send_wr);
        let receives = wanted(receive, head.recv_cq, attr.attr.cap.max_recv_wr);
        if create_queues(head, sends, receives).is_none() {
            return given_up(head);
        }
        if send.is_null() {
            attr.attr.send_cq = head.send_cq;
        }
        if receive.is_null() {
            attr.attr.recv_cq = head.recv_cq;
        }
        if attr.attr.srq.is_null() {
            attr.attr.srq = head.srq;
        }
        let made = match attr.attr.comp_mask {
            PD => Some((verbs.create_qp)(attr.pd, &raw mut attr.attr)),
            _ => create_qp_ex(head.verbs, attr),
        };
        let Some(pair) = made else {
            fail(libc::EOPNOTSUPP);
            return given_up(head);
        };
        if pair.is_null() {
            return given_up(head);
        }
        head.qp = pair;
        let prepared = prepare(id);
        let head = &mut *id;
        if let Err(number) = prepared {
            (verbs.destroy_qp)(pair);
            head.qp = ptr::null_mut();
            fail(number);
            return given_up(head);
        }
        head.pd = (*pair).pd;
        0
    }
}

/// Takes back what was made for a queue pair that was not; `errno` says why.
unsafe fn given_up(id: &mut CmId) -> c_int {
    let why = std::io::Error::last_os_error();
    // SAFETY: what is not there is passed over.
    unsafe { destroy_queues(id) };
    fail_with(&why)
}

/// Moves a new queue pair to where receives may be posted; one of datagrams, to where it may send.
unsafe fn prepare(id: *mut CmId) -> Result<(), c_int> {
    // SAFETY: the id has a queue pair (invariant 1).
    unsafe {
        move_to(id, INIT)?;
        if (*id).qp_type != UD {
            return Ok(());
        }
        for (qp_state, mask) in [(READY_TO_RECEIVE, STATE), (READY_TO_SEND, STATE | SQ_PSN)] {
            let mut attr = QpAttr {
                qp_state,
                ..QpAttr::default()
            };
            modify(id, &mut attr, mask)?;
        }
        Ok(())
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_create_qp(
    id: *mut CmId,
    domain: *mut ProtectionDomain,
    attr: *mut QpInitAttr,
) -> c_int {
    // SAFETY: as the program says (invariant 1). The structure of old programs has no mask, only room for it.
    unsafe {
        let mut extended = QpInitAttrEx {
            attr: *attr,
            pd: domain,
            xrcd: ptr::null_mut(),
            create_flags: 0,
            max_tso_header: 0,
            rwq_ind_tbl: ptr::null_mut(),
            rx_hash_conf: [0; 3],
            source_qpn: 0,
            send_ops_flags: 0,
        };
        extended.attr.comp_mask = PD;
        let made = rdma_create_qp_ex(id, &raw mut extended);
        extended.attr.comp_mask = 0;
        attr.write(extended.attr);
        made
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_destroy_qp(id: *mut CmId) {
    // SAFETY: as the program says (invariant 1).
    unsafe {
        let pair = (&raw mut (*id).qp).replace(ptr::null_mut());
        if let Some(verbs) = verbs()
            && !pair.is_null()
        {
            (verbs.destroy_qp)(pair);
        }
        destroy_queues(&mut *id);
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_create_srq(
    id: *mut CmId,
    domain: *mut ProtectionDomain,
    attr: *mut SrqInitAttr,
) -> c_int {
    let Some(verbs) = verbs() else {
        return fail(libc::ENODEV);
    };
    // SAFETY: as the program says (invariants 1 and 4).
    unsafe {
        let domain = if domain.is_null() { (*id).pd } else { domain };
        if domain.is_null() {
            return fail(libc::EINVAL);
        }
        let made = (verbs.create_srq)(domain, attr);
        if made.is_null() {
            return -1;
        }
        (*id).srq = made;
        (*id).pd = domain;
    }
    0
}

/// Of the basic kind only.
#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_create_srq_ex(id: *mut CmId, attr: *mut SrqInitAttrEx) -> c_int {
    const TYPE: u32 = 1;
    const PD: u32 = 2;
    const BASIC: c_int = 0;
    // SAFETY: as the program says (invariant 1).
    unsafe {
        let mask = (*attr).attr.comp_mask;
        if mask & TYPE == 0 {
            return fail(libc::EINVAL);
        }
        if mask & !(TYPE | PD) != 0 || (*attr).srq_type != BASIC {
            return fail(libc::EOPNOTSUPP);
        }
        let domain = if mask & PD == 0 {
            ptr::null_mut()
        } else {
            (*attr).pd
        };
        rdma_create_srq(id, domain, &raw mut (*attr).attr)
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_destroy_srq(id: *mut CmId) {
    // SAFETY: as the program says (invariant 1).
    unsafe {
        let queue = (&raw mut (*id).srq).replace(ptr::null_mut());
        if let Some(verbs) = verbs()
            && !queue.is_null()
        {
            (verbs.destroy_srq)(queue);
        }
    }
}

//! Connections: asked for, waited for, accepted, rejected and ended.

use std::ffi::c_int;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::AsRawFd as _;

use socket2::Socket;

use crate::abi::{CmId, ConnParam};
use crate::devices::OpenDevice;
use crate::endpoint::{BY_PROGRAM, Endpoint, Event, Stage, kind, socket_for};
use crate::errno::{fail, fail_with};
use crate::events::complete;
use crate::ids::{acknowledge_last, own_id};
use crate::message::{End, Message};
use crate::queue_pairs::{self, DATAGRAM_KEY};
use crate::{addresses, channel::Channel};

/// The most private data that InfiniBand's messages have room for, of connections and of datagrams.
const REQUEST_BYTES: [usize; 2] = [56, 180];
const REPLY_BYTES: [usize; 2] = [196, 136];
const REJECT_BYTES: [usize; 2] = [148, 136];
/// TCP connections that wait for a listener. What programs give is of requests, and strangers must not fill it up.
const BACKLOG: c_int = 1024;
/// `RDMA_MAX_RESP_RES` and `RDMA_MAX_INIT_DEPTH`: as many as possible.
const AS_MANY_AS_POSSIBLE: u8 = 0xff;
/// Of `retry_count` and `rnr_retry_count`, which have three bits.
const RETRIES_MAX: u8 = 7;

fn invalid() -> io::Error {
    io::Error::from_raw_os_error(libc::EINVAL)
}

/// Private data of a program, if it is not too long.
///
/// # Safety
/// There are so many bytes (invariant 1).
unsafe fn private_data(data: *const u8, length: u8, most: usize) -> Option<Vec<u8>> {
    if data.is_null() || length == 0 {
        return Some(Vec::new());
    }
    let length = usize::from(length);
    // SAFETY: as the caller says.
    (length <= most).then(|| unsafe { std::slice::from_raw_parts(data, length) }.to_vec())
}

/// What this end says of itself, as a program wants it. `most`: of private data.
///
/// # Safety
/// As the program says (invariant 1).
unsafe fn describe(
    id: *mut CmId,
    param: *const ConnParam,
    most: [usize; 2],
) -> Result<(OpenDevice, ConnParam, End), c_int> {
    // SAFETY: as the program says. A queue pair of the id is one of verbs.
    unsafe {
        let own = own_id(id);
        let device = *own.device.get().ok_or(libc::EINVAL)?;
        let pair = (*id).qp;
        if param.is_null() && pair.is_null() {
            return Err(libc::EINVAL);
        }
        let default = ConnParam {
            private_data: std::ptr::null(),
            private_data_len: 0,
            responder_resources: AS_MANY_AS_POSSIBLE,
            initiator_depth: AS_MANY_AS_POSSIBLE,
            flow_control: 0,
            retry_count: RETRIES_MAX,
            rnr_retry_count: RETRIES_MAX,
            srq: 0,
            qp_num: 0,
        };
        let param = param.as_ref().copied().unwrap_or(default);
        let is_too_much = |wanted: u8, most: u8| wanted != AS_MANY_AS_POSSIBLE && wanted > most;
        if !own.has_datagrams()
            && (is_too_much(param.responder_resources, device.responder_resources)
                || is_too_much(param.initiator_depth, device.initiator_depth))
        {
            return Err(libc::EINVAL);
        }
        let (queue_pair, has_srq) = match pair.as_ref() {
            Some(pair) => (pair.qp_num, !pair.srq.is_null()),
            None => (param.qp_num, param.srq != 0),
        };
        let most = most[usize::from(own.has_datagrams())];
        let data = private_data(param.private_data, param.private_data_len, most);
        let end = End {
            gid: device.gid,
            queue_pair: queue_pair & 0xff_ffff,
            q_key: if own.has_datagrams() { DATAGRAM_KEY } else { 0 },
            path_mtu: device.path_mtu,
            flow_control: param.flow_control,
            retries: param.retry_count.min(RETRIES_MAX),
            receiver_not_ready_retries: param.rnr_retry_count.min(RETRIES_MAX),
            has_shared_receive_queue: has_srq,
            private_data: data.ok_or(libc::EINVAL)?,
            ..End::default()
        };
        Ok((device, param, end))
    }
}

/// What is to be said of an endpoint: its packet number stays.
fn said(endpoint: &mut Endpoint, end: End, responder_resources: u8, initiator_depth: u8) {
    endpoint.own = End {
        packet_number: endpoint.own.packet_number,
        responder_resources,
        initiator_depth,
        ..end
    };
}

fn chosen(wanted: u8, possible: u8) -> u8 {
    match wanted {
        AS_MANY_AS_POSSIBLE => possible,
        wanted => wanted,
    }
}

/// Begins to connect. An event: it has failed already.
fn begin(channel: &Channel, token: u64, endpoint: &mut Endpoint) -> io::Result<Option<Event>> {
    let destination = endpoint.destination.ok_or_else(invalid)?;
    let socket = match endpoint.socket.take() {
        Some(socket) => socket,
        None => socket_for(destination, None)?,
    };
    let connected = socket.connect(&destination.into());
    endpoint.socket = Some(socket);
    endpoint.stage = Stage::Connecting;
    match connected {
        Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => {
            Ok(Some(endpoint.not_connected(&error)))
        }
        _ => {
            channel.watch(token, endpoint)?;
            Ok(None)
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_connect(id: *mut CmId, param: *const ConnParam) -> c_int {
    // SAFETY: as the program says (invariant 1).
    let (own, described) = unsafe { (own_id(id), describe(id, param, REQUEST_BYTES)) };
    let (device, param, end) = match described {
        Ok(described) => described,
        Err(number) => return fail(number),
    };
    let channel = own.channel();
    let begun = channel.with(own.token, |endpoint| {
        if endpoint.stage != Stage::Idle {
            return Err(invalid());
        }
        let resources = chosen(param.responder_resources, device.responder_resources);
        let depth = chosen(param.initiator_depth, device.initiator_depth);
        said(endpoint, end, resources, depth);
        let event = begin(&channel, own.token, endpoint)?;
        let socket = endpoint.socket.as_ref();
        let local = socket.and_then(|socket| socket.local_addr().ok()?.as_socket());
        Ok((event, local))
    });
    match begun.unwrap_or_else(|| Err(invalid())) {
        Ok((event, local)) => {
            // SAFETY: as before; there is room for any address.
            unsafe {
                if let Some(local) = local {
                    addresses::put(local, &raw mut (*id).route.source);
                }
                if let Some(event) = event {
                    channel.push(own.token, event);
                }
                complete(id)
            }
        }
        Err(error) => fail_with(&error),
    }
}

/// The kernel wakes a listener only by connections that something has come by.
fn defer_accept(socket: &Socket) {
    let seconds: c_int = 10;
    // SAFETY: the option is a number. Where the kernel does not know it, connections are told early.
    unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_DEFER_ACCEPT,
            (&raw const seconds).cast(),
            size_of::<c_int>() as libc::socklen_t,
        );
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_listen(id: *mut CmId, _: c_int) -> c_int {
    // SAFETY: as the program says (invariant 1).
    let own = unsafe { own_id(id) };
    let channel = own.channel();
    let listens = channel.with(own.token, |endpoint| {
        let bound = match endpoint.socket {
            Some(_) => None,
            None => Some(endpoint.bind(SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)))?),
        };
        if endpoint.stage != Stage::Idle {
            return Err(invalid());
        }
        let socket = endpoint.socket.as_ref().ok_or_else(invalid)?;
        defer_accept(socket);
        socket.listen(BACKLOG)?;
        endpoint.stage = Stage::Listening;
        channel.watch(own.token, endpoint)?;
        Ok(bound)
    });
    match listens.unwrap_or_else(|| Err(invalid())) {
        Ok(bound) => {
            if let Some(bound) = bound {
                // SAFETY: as before; there is room for any address.
                unsafe { addresses::put(bound, &raw mut (*id).route.source) };
            }
            0
        }
        Err(error) => fail_with(&error),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_accept(id: *mut CmId, param: *const ConnParam) -> c_int {
    // SAFETY: as the program says (invariant 1).
    let (own, described) = unsafe { (own_id(id), describe(id, param, REPLY_BYTES)) };
    let (device, param, end) = match described {
        Ok(described) => described,
        Err(number) => return fail(number),
    };
    let channel = own.channel();
    let is_requested = channel.with(own.token, |endpoint| {
        // What the peer wants is there already.
        let resources = endpoint.own.responder_resources;
        let depth = endpoint.own.initiator_depth;
        let resources = chosen(
            param.responder_resources,
            resources.min(device.responder_resources),
        );
        let depth = chosen(param.initiator_depth, depth.min(device.initiator_depth));
        said(endpoint, end, resources, depth);
        endpoint.stage == Stage::Requested
    });
    if is_requested != Some(true) {
        return fail(libc::EINVAL);
    }
    if !own.has_datagrams() {
        // SAFETY: as before.
        if let Err(number) = unsafe { queue_pairs::connect(id) } {
            return fail(number);
        }
    }
    let accepted = channel.with(own.token, |endpoint| {
        let reply = Message::Reply(endpoint.own.clone());
        if endpoint.has_datagrams() {
            return endpoint.send_last(&reply);
        }
        endpoint.send(&reply)?;
        endpoint.stage = Stage::Accepted;
        channel.watch(own.token, endpoint)
    });
    match accepted.unwrap_or_else(|| Err(invalid())) {
        Ok(()) if own.has_datagrams() => {
            if own.is_sync() {
                // No event follows, and that of the request belongs to the listener.
                // SAFETY: as before.
                unsafe { acknowledge_last(id) };
            }
            0
        }
        // SAFETY: as before.
        Ok(()) => unsafe { complete(id) },
        Err(error) => {
            // SAFETY: as before.
            unsafe { queue_pairs::to_error(id) };
            fail_with(&error)
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_reject(id: *mut CmId, data: *const u8, length: u8) -> c_int {
    // SAFETY: as the program says (invariant 1).
    let own = unsafe { own_id(id) };
    let most = REJECT_BYTES[usize::from(own.has_datagrams())];
    // SAFETY: as before.
    let Some(private_data) = (unsafe { private_data(data, length, most) }) else {
        return fail(libc::EINVAL);
    };
    let message = Message::Reject {
        status: BY_PROGRAM,
        private_data,
    };
    let rejected = own
        .channel()
        .with(own.token, |endpoint| match endpoint.stage {
            Stage::Requested | Stage::Replied => endpoint.send_last(&message),
            _ => Err(invalid()),
        });
    match rejected.unwrap_or_else(|| Err(invalid())) {
        Ok(()) => 0,
        Err(error) => fail_with(&error),
    }
}

/// No vendor options were agreed on, so there is no other reason to say.
#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_reject_ece(id: *mut CmId, data: *const u8, length: u8) -> c_int {
    // SAFETY: as the program says (invariant 1).
    unsafe { rdma_reject(id, data, length) }
}

/// For a program that has moved its queue pair itself.
#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_establish(id: *mut CmId) -> c_int {
    // SAFETY: as the program says (invariant 1).
    unsafe {
        if !(*id).qp.is_null() {
            return fail(libc::EINVAL);
        }
        queue_pairs::establish(id).map_or_else(fail, |()| 0)
    }
}

/// The queue pair has heard from the peer's: that is as good as if the peer said that it is ready.
#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_notify(id: *mut CmId, event: c_int) -> c_int {
    const COMMUNICATION_ESTABLISHED: c_int = 4;
    // SAFETY: as the program says (invariant 1).
    let own = unsafe { own_id(id) };
    let channel = own.channel();
    let stage = channel.with(own.token, |endpoint| {
        let before = endpoint.stage;
        if event == COMMUNICATION_ESTABLISHED && before == Stage::Accepted {
            endpoint.stage = Stage::Connected;
        }
        before
    });
    match (event, stage) {
        (COMMUNICATION_ESTABLISHED, Some(Stage::Accepted)) => {
            channel.push(own.token, Event::new(kind::ESTABLISHED, 0));
            0
        }
        (COMMUNICATION_ESTABLISHED, Some(Stage::Connected)) => 0,
        _ => fail(libc::EINVAL),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_disconnect(id: *mut CmId) -> c_int {
    // SAFETY: as the program says (invariant 1).
    let own = unsafe { own_id(id) };
    let channel = own.channel();
    let ended = channel.with(own.token, |endpoint| match endpoint.stage {
        Stage::Idle | Stage::Listening => None,
        Stage::Accepted | Stage::Replied | Stage::Connected => {
            // A peer that does not hear it sees that the connection ends.
            let _ = endpoint.send_last(&Message::Disconnect);
            Some(true)
        }
        _ => Some(false),
    });
    let Some(has_ended_it) = ended.flatten() else {
        return fail(libc::EINVAL);
    };
    // SAFETY: as before.
    unsafe { queue_pairs::to_error(id) };
    if has_ended_it {
        channel.push(own.token, Event::new(kind::DISCONNECTED, 0));
    }
    match channel.has_event(own.token) {
        // SAFETY: as before.
        true => unsafe { complete(id) },
        // The peer has ended it, and the program knows.
        false => 0,
    }
}

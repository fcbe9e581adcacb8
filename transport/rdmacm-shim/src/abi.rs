//! The structures of `rdma_cma.h`, as they lie in memory: only what this library reads or writes has a name of its own.
//! `headers` compares them with the system's header.

use std::ffi::{c_char, c_int, c_void};

use weft_verbs_abi::{
    AhAttr, CompletionChannel, CompletionQueue, Context, ProtectionDomain, QueuePair,
    SharedReceives,
};

#[repr(C)]
pub(crate) struct EventChannel {
    pub(crate) fd: c_int,
}

#[repr(C)]
pub(crate) struct Route {
    pub(crate) source: libc::sockaddr_storage,
    pub(crate) destination: libc::sockaddr_storage,
    pub(crate) source_gid: [u8; 16],
    pub(crate) destination_gid: [u8; 16],
    /// `pkey`, in network byte order, and C's padding.
    pub(crate) partition: [u16; 4],
    pub(crate) path_rec: *mut c_void,
    pub(crate) num_paths: c_int,
}

#[repr(C)]
pub(crate) struct CmId {
    pub(crate) verbs: *mut Context,
    pub(crate) channel: *mut EventChannel,
    pub(crate) context: *mut c_void,
    pub(crate) qp: *mut QueuePair,
    pub(crate) route: Route,
    pub(crate) ps: c_int,
    pub(crate) port_num: u8,
    pub(crate) event: *mut CmEvent,
    pub(crate) send_cq_channel: *mut CompletionChannel,
    pub(crate) send_cq: *mut CompletionQueue,
    pub(crate) recv_cq_channel: *mut CompletionChannel,
    pub(crate) recv_cq: *mut CompletionQueue,
    pub(crate) srq: *mut SharedReceives,
    pub(crate) pd: *mut ProtectionDomain,
    pub(crate) qp_type: c_int,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ConnParam {
    pub(crate) private_data: *const u8,
    pub(crate) private_data_len: u8,
    pub(crate) responder_resources: u8,
    pub(crate) initiator_depth: u8,
    pub(crate) flow_control: u8,
    pub(crate) retry_count: u8,
    pub(crate) rnr_retry_count: u8,
    pub(crate) srq: u8,
    pub(crate) qp_num: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct UdParam {
    pub(crate) private_data: *const u8,
    pub(crate) private_data_len: u8,
    pub(crate) ah_attr: AhAttr,
    pub(crate) qp_num: u32,
    pub(crate) qkey: u32,
}

#[repr(C)]
pub(crate) union Param {
    pub(crate) conn: ConnParam,
    pub(crate) ud: UdParam,
}

#[repr(C)]
pub(crate) struct CmEvent {
    pub(crate) id: *mut CmId,
    pub(crate) listen_id: *mut CmId,
    pub(crate) event: c_int,
    pub(crate) status: c_int,
    pub(crate) param: Param,
}

#[repr(C)]
pub(crate) struct AddrInfo {
    pub(crate) flags: c_int,
    pub(crate) family: c_int,
    pub(crate) qp_type: c_int,
    pub(crate) port_space: c_int,
    pub(crate) source_len: libc::socklen_t,
    pub(crate) destination_len: libc::socklen_t,
    pub(crate) source: *mut libc::sockaddr,
    pub(crate) destination: *mut libc::sockaddr,
    pub(crate) source_name: *mut c_char,
    pub(crate) destination_name: *mut c_char,
    pub(crate) route_len: usize,
    pub(crate) route: *mut c_void,
    pub(crate) connect_len: usize,
    pub(crate) connect: *mut c_void,
    pub(crate) next: *mut AddrInfo,
}

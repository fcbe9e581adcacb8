//! The structures of `rdma_cma.h` and `verbs.h`, as they lie in memory: only what this library reads or writes has a name of
//! its own.

use std::ffi::{c_char, c_int, c_uint, c_void};

pub(crate) type Context = c_void;
pub(crate) type Device = c_void;
pub(crate) type CompletionQueue = c_void;
pub(crate) type CompletionChannel = c_void;
pub(crate) type SharedReceiveQueue = c_void;

#[repr(C)]
pub(crate) struct ProtectionDomain {
    pub(crate) context: *mut Context,
}

#[repr(C)]
pub(crate) struct QueuePair {
    pub(crate) context: *mut Context,
    pub(crate) qp_context: *mut c_void,
    pub(crate) pd: *mut ProtectionDomain,
    pub(crate) send_cq: *mut CompletionQueue,
    pub(crate) recv_cq: *mut CompletionQueue,
    pub(crate) srq: *mut SharedReceiveQueue,
    pub(crate) handle: u32,
    pub(crate) qp_num: u32,
}

#[repr(C)]
pub(crate) struct DeviceAttr {
    before: [u64; 18],
    pub(crate) max_qp_rd_atom: c_int,
    between: [c_int; 2],
    pub(crate) max_qp_init_rd_atom: c_int,
    after: [u64; 9],
}

#[repr(C)]
pub(crate) struct PortAttr {
    before: [c_int; 2],
    pub(crate) active_mtu: c_int,
    after: [u32; 10],
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct AhAttr {
    pub(crate) dgid: [u64; 2],
    pub(crate) flow_label: u32,
    pub(crate) sgid_index: u8,
    pub(crate) hop_limit: u8,
    pub(crate) traffic_class: u8,
    pub(crate) dlid: u16,
    pub(crate) sl: u8,
    pub(crate) src_path_bits: u8,
    pub(crate) static_rate: u8,
    pub(crate) is_global: u8,
    pub(crate) port_num: u8,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct QpCap {
    pub(crate) max_send_wr: u32,
    pub(crate) max_recv_wr: u32,
    pub(crate) max_send_sge: u32,
    pub(crate) max_recv_sge: u32,
    pub(crate) max_inline_data: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct QpInitAttr {
    pub(crate) qp_context: *mut c_void,
    pub(crate) send_cq: *mut CompletionQueue,
    pub(crate) recv_cq: *mut CompletionQueue,
    pub(crate) srq: *mut SharedReceiveQueue,
    pub(crate) cap: QpCap,
    pub(crate) qp_type: c_int,
    pub(crate) sq_sig_all: c_int,
    /// Of `struct ibv_qp_init_attr_ex` only; here C leaves room.
    pub(crate) comp_mask: u32,
}

#[repr(C)]
pub(crate) struct QpInitAttrEx {
    pub(crate) attr: QpInitAttr,
    pub(crate) pd: *mut ProtectionDomain,
    pub(crate) rest: [u64; 8],
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct QpAttr {
    pub(crate) qp_state: c_int,
    pub(crate) cur_qp_state: c_int,
    pub(crate) path_mtu: c_int,
    pub(crate) path_mig_state: c_int,
    pub(crate) qkey: u32,
    pub(crate) rq_psn: u32,
    pub(crate) sq_psn: u32,
    pub(crate) dest_qp_num: u32,
    pub(crate) qp_access_flags: c_uint,
    pub(crate) cap: QpCap,
    pub(crate) ah_attr: AhAttr,
    pub(crate) alt_ah_attr: AhAttr,
    pub(crate) pkey_index: u16,
    pub(crate) alt_pkey_index: u16,
    pub(crate) en_sqd_async_notify: u8,
    pub(crate) sq_draining: u8,
    pub(crate) max_rd_atomic: u8,
    pub(crate) max_dest_rd_atomic: u8,
    pub(crate) min_rnr_timer: u8,
    pub(crate) port_num: u8,
    pub(crate) timeout: u8,
    pub(crate) retry_cnt: u8,
    pub(crate) rnr_retry: u8,
    pub(crate) alt_port_num: u8,
    pub(crate) alt_timeout: u8,
    pub(crate) rate_limit: u32,
}

#[repr(C)]
pub(crate) struct SrqInitAttr {
    pub(crate) srq_context: *mut c_void,
    pub(crate) attr: [u32; 3],
    /// Of `struct ibv_srq_init_attr_ex` only; here C leaves room.
    pub(crate) comp_mask: u32,
}

#[repr(C)]
pub(crate) struct SrqInitAttrEx {
    pub(crate) attr: SrqInitAttr,
    pub(crate) srq_type: c_int,
    pub(crate) pd: *mut ProtectionDomain,
    pub(crate) rest: [u64; 3],
}

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
    pub(crate) srq: *mut SharedReceiveQueue,
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

// As a C compiler says it of rdma-core 44's headers on x86-64; public structures only grow at their ends.
const _: () = {
    use std::mem::{offset_of, size_of};
    assert!(size_of::<DeviceAttr>() == 232 && offset_of!(DeviceAttr, max_qp_rd_atom) == 144);
    assert!(offset_of!(DeviceAttr, max_qp_init_rd_atom) == 156);
    assert!(size_of::<PortAttr>() == 52 && offset_of!(PortAttr, active_mtu) == 8);
    assert!(offset_of!(QueuePair, srq) == 40 && offset_of!(QueuePair, qp_num) == 52);
    assert!(size_of::<AhAttr>() == 32 && offset_of!(AhAttr, port_num) == 30);
    assert!(size_of::<QpAttr>() == 144 && offset_of!(QpAttr, ah_attr) == 56);
    assert!(offset_of!(QpAttr, pkey_index) == 120 && offset_of!(QpAttr, rate_limit) == 136);
    assert!(size_of::<QpInitAttr>() == 64 && size_of::<QpInitAttrEx>() == 136);
    assert!(offset_of!(QpInitAttr, comp_mask) == 60 && offset_of!(QpInitAttrEx, pd) == 64);
    assert!(size_of::<SrqInitAttr>() == 24 && size_of::<SrqInitAttrEx>() == 64);
    assert!(offset_of!(SrqInitAttr, comp_mask) == 20 && offset_of!(SrqInitAttrEx, pd) == 32);
    assert!(size_of::<Route>() == 312 && offset_of!(Route, partition) == 288);
    assert!(offset_of!(Route, path_rec) == 296 && offset_of!(Route, num_paths) == 304);
    assert!(size_of::<CmId>() == 416 && offset_of!(CmId, route) == 32);
    assert!(offset_of!(CmId, ps) == 344 && offset_of!(CmId, event) == 352);
    assert!(offset_of!(CmId, srq) == 392 && offset_of!(CmId, qp_type) == 408);
    assert!(size_of::<ConnParam>() == 24 && offset_of!(ConnParam, srq) == 14);
    assert!(size_of::<UdParam>() == 56 && offset_of!(UdParam, qkey) == 52);
    assert!(offset_of!(UdParam, ah_attr) == 16);
    assert!(size_of::<CmEvent>() == 80 && offset_of!(CmEvent, param) == 24);
    assert!(size_of::<AddrInfo>() == 96 && offset_of!(AddrInfo, route_len) == 56);
    assert!(offset_of!(AddrInfo, next) == 88);
};

//! The structures of `verbs.h`, as they lie in memory: only what this library reads or writes has a name of its own.

use std::ffi::{c_char, c_int, c_uint, c_void};

/// `pthread_mutex_t` and `pthread_cond_t`: all 0 is a new one.
pub(crate) type Mutex = [u64; 5];
pub(crate) type Condition = [u64; 6];

pub(crate) type Function = Option<unsafe extern "C" fn()>;

#[repr(C)]
pub(crate) struct Device {
    pub(crate) ops: [Function; 2],
    pub(crate) node_type: c_int,
    pub(crate) transport_type: c_int,
    pub(crate) name: [c_char; 64],
    pub(crate) dev_name: [c_char; 64],
    pub(crate) dev_path: [c_char; 256],
    pub(crate) ibdev_path: [c_char; 256],
}

#[repr(C)]
#[derive(Default)]
pub(crate) struct ContextOps {
    pub(crate) before: [Function; 7],
    pub(crate) alloc_mw: Function,
    pub(crate) bind_mw: Function,
    pub(crate) dealloc_mw: Function,
    pub(crate) create_cq: Function,
    pub(crate) poll_cq: Option<unsafe extern "C" fn(*mut CompletionQueue, c_int, *mut Wc) -> c_int>,
    pub(crate) req_notify_cq: Option<unsafe extern "C" fn(*mut CompletionQueue, c_int) -> c_int>,
    pub(crate) between: [Function; 7],
    pub(crate) post_srq_recv:
        Option<unsafe extern "C" fn(*mut SharedReceives, *mut RecvWr, *mut *mut RecvWr) -> c_int>,
    pub(crate) of_queue_pairs: [Function; 4],
    pub(crate) post_send:
        Option<unsafe extern "C" fn(*mut QueuePair, *mut SendWr, *mut *mut SendWr) -> c_int>,
    pub(crate) post_recv:
        Option<unsafe extern "C" fn(*mut QueuePair, *mut RecvWr, *mut *mut RecvWr) -> c_int>,
    pub(crate) after: [Function; 5],
}

#[repr(C)]
pub(crate) struct Context {
    pub(crate) device: *mut Device,
    pub(crate) ops: ContextOps,
    pub(crate) cmd_fd: c_int,
    pub(crate) async_fd: c_int,
    pub(crate) num_comp_vectors: c_int,
    pub(crate) mutex: Mutex,
    /// All ones: a `verbs_context` lies before it.
    pub(crate) abi_compat: usize,
}

/// `struct verbs_context`: what is absent is not supported.
#[repr(C)]
pub(crate) struct VerbsContext {
    pub(crate) query_port:
        Option<unsafe extern "C" fn(*mut Context, u8, *mut PortAttr, usize) -> c_int>,
    pub(crate) unsupported: [Function; 25],
    pub(crate) private: *mut c_void,
    pub(crate) query_device_ex: Option<
        unsafe extern "C" fn(*mut Context, *const c_void, *mut DeviceAttrEx, usize) -> c_int,
    >,
    pub(crate) flows: [Function; 4],
    pub(crate) open_qp: Function,
    pub(crate) create_qp_ex:
        Option<unsafe extern "C" fn(*mut Context, *mut QpInitAttrEx) -> *mut QueuePair>,
    pub(crate) rest: [Function; 4],
    pub(crate) reserved: u64,
    pub(crate) size: usize,
    pub(crate) context: Context,
}

/// `struct ibv_device_attr_ex`: what the device has none of is 0.
#[repr(C)]
pub(crate) struct DeviceAttrEx {
    pub(crate) attr: DeviceAttr,
    pub(crate) absent: [u32; 41],
    pub(crate) phys_port_cnt_ex: u32,
}

#[repr(C)]
pub(crate) struct DeviceAttr {
    pub(crate) fw_ver: [c_char; 64],
    pub(crate) node_guid: u64,
    pub(crate) sys_image_guid: u64,
    pub(crate) max_mr_size: u64,
    pub(crate) page_size_cap: u64,
    pub(crate) vendor_id: u32,
    pub(crate) vendor_part_id: u32,
    pub(crate) hw_ver: u32,
    pub(crate) max_qp: c_int,
    pub(crate) max_qp_wr: c_int,
    pub(crate) device_cap_flags: c_uint,
    pub(crate) max_sge: c_int,
    pub(crate) max_sge_rd: c_int,
    pub(crate) max_cq: c_int,
    pub(crate) max_cqe: c_int,
    pub(crate) max_mr: c_int,
    pub(crate) max_pd: c_int,
    pub(crate) max_qp_rd_atom: c_int,
    pub(crate) max_ee_rd_atom: c_int,
    pub(crate) max_res_rd_atom: c_int,
    pub(crate) max_qp_init_rd_atom: c_int,
    pub(crate) max_ee_init_rd_atom: c_int,
    pub(crate) atomic_cap: c_int,
    pub(crate) unsupported: [c_int; 8],
    pub(crate) max_ah: c_int,
    pub(crate) fast: [c_int; 2],
    pub(crate) max_srq: c_int,
    pub(crate) max_srq_wr: c_int,
    pub(crate) max_srq_sge: c_int,
    pub(crate) max_pkeys: u16,
    pub(crate) local_ca_ack_delay: u8,
    pub(crate) phys_port_cnt: u8,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct PortAttr {
    pub(crate) state: c_int,
    pub(crate) max_mtu: c_int,
    pub(crate) active_mtu: c_int,
    pub(crate) gid_tbl_len: c_int,
    pub(crate) port_cap_flags: u32,
    pub(crate) max_msg_sz: u32,
    pub(crate) bad_pkey_cntr: u32,
    pub(crate) qkey_viol_cntr: u32,
    pub(crate) pkey_tbl_len: u16,
    pub(crate) lid: u16,
    pub(crate) sm_lid: u16,
    pub(crate) lmc: u8,
    pub(crate) max_vl_num: u8,
    pub(crate) sm_sl: u8,
    pub(crate) subnet_timeout: u8,
    pub(crate) init_type_reply: u8,
    pub(crate) active_width: u8,
    pub(crate) active_speed: u8,
    pub(crate) phys_state: u8,
    pub(crate) link_layer: u8,
    pub(crate) flags: u8,
    pub(crate) port_cap_flags2: u16,
}

#[repr(C)]
pub(crate) struct GidEntry {
    pub(crate) gid: [u8; 16],
    pub(crate) gid_index: u32,
    pub(crate) port_num: u32,
    pub(crate) gid_type: u32,
    pub(crate) ndev_ifindex: u32,
}

#[repr(C)]
pub(crate) struct ProtectionDomain {
    pub(crate) context: *mut Context,
    pub(crate) handle: u32,
}

#[repr(C)]
pub(crate) struct MemoryRegion {
    pub(crate) context: *mut Context,
    pub(crate) pd: *mut ProtectionDomain,
    pub(crate) addr: *mut c_void,
    pub(crate) length: usize,
    pub(crate) handle: u32,
    pub(crate) lkey: u32,
    pub(crate) rkey: u32,
}

#[repr(C)]
pub(crate) struct CompletionChannel {
    pub(crate) context: *mut Context,
    pub(crate) fd: c_int,
    pub(crate) refcnt: c_int,
}

#[repr(C)]
pub(crate) struct CompletionQueue {
    pub(crate) context: *mut Context,
    pub(crate) channel: *mut CompletionChannel,
    pub(crate) cq_context: *mut c_void,
    pub(crate) handle: u32,
    pub(crate) cqe: c_int,
    pub(crate) mutex: Mutex,
    pub(crate) cond: Condition,
    pub(crate) comp_events_completed: u32,
    pub(crate) async_events_completed: u32,
}

#[repr(C)]
#[derive(Default)]
pub(crate) struct Wc {
    pub(crate) wr_id: u64,
    pub(crate) status: c_int,
    pub(crate) opcode: c_int,
    pub(crate) vendor_err: u32,
    pub(crate) byte_len: u32,
    pub(crate) imm_data: u32,
    pub(crate) qp_num: u32,
    pub(crate) src_qp: u32,
    pub(crate) wc_flags: c_uint,
    pub(crate) pkey_index: u16,
    pub(crate) slid: u16,
    pub(crate) sl: u8,
    pub(crate) dlid_path_bits: u8,
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

/// `struct ibv_grh`.
pub(crate) type RoutingHeader = [u8; 40];

#[repr(C)]
pub(crate) struct AddressHandle {
    pub(crate) context: *mut Context,
    pub(crate) pd: *mut ProtectionDomain,
    pub(crate) handle: u32,
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
    pub(crate) srq: *mut SharedReceives,
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
    pub(crate) xrcd: *mut c_void,
    pub(crate) create_flags: u32,
    pub(crate) max_tso_header: u16,
    pub(crate) rwq_ind_tbl: *mut c_void,
    pub(crate) rx_hash_conf: [u64; 3],
    pub(crate) source_qpn: u32,
    pub(crate) send_ops_flags: u64,
}

#[repr(C)]
#[derive(Default)]
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
pub(crate) struct QueuePair {
    pub(crate) context: *mut Context,
    pub(crate) qp_context: *mut c_void,
    pub(crate) pd: *mut ProtectionDomain,
    pub(crate) send_cq: *mut CompletionQueue,
    pub(crate) recv_cq: *mut CompletionQueue,
    pub(crate) srq: *mut SharedReceives,
    pub(crate) handle: u32,
    pub(crate) qp_num: u32,
    pub(crate) state: c_int,
    pub(crate) qp_type: c_int,
    pub(crate) mutex: Mutex,
    pub(crate) cond: Condition,
    pub(crate) events_completed: u32,
}

/// `struct ibv_srq`.
#[repr(C)]
pub(crate) struct SharedReceives {
    pub(crate) context: *mut Context,
    pub(crate) srq_context: *mut c_void,
    pub(crate) pd: *mut ProtectionDomain,
    pub(crate) handle: u32,
    pub(crate) mutex: Mutex,
    pub(crate) cond: Condition,
    pub(crate) events_completed: u32,
}

/// `struct ibv_srq_attr`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct SrqAttr {
    pub(crate) max_wr: u32,
    pub(crate) max_sge: u32,
    pub(crate) srq_limit: u32,
}

/// `struct ibv_srq_init_attr`.
#[repr(C)]
pub(crate) struct SrqInitAttr {
    pub(crate) srq_context: *mut c_void,
    pub(crate) attr: SrqAttr,
}

/// `struct ibv_qp_ex`. What is absent is what `create_qp_ex` refuses to make.
#[repr(C)]
pub(crate) struct QpEx {
    pub(crate) base: QueuePair,
    pub(crate) comp_mask: u64,
    pub(crate) wr_id: u64,
    pub(crate) wr_flags: c_uint,
    pub(crate) ops: QpExOps,
}

type OfAddress = Option<unsafe extern "C" fn(*mut QpEx, u32, u64)>;

#[repr(C)]
#[derive(Default)]
pub(crate) struct QpExOps {
    pub(crate) atomic_cmp_swp: Option<unsafe extern "C" fn(*mut QpEx, u32, u64, u64, u64)>,
    pub(crate) atomic_fetch_add: Option<unsafe extern "C" fn(*mut QpEx, u32, u64, u64)>,
    pub(crate) bind_mw: Function,
    pub(crate) local_inv: Function,
    pub(crate) rdma_read: OfAddress,
    pub(crate) rdma_write: OfAddress,
    pub(crate) rdma_write_imm: Option<unsafe extern "C" fn(*mut QpEx, u32, u64, u32)>,
    pub(crate) send: Option<unsafe extern "C" fn(*mut QpEx)>,
    pub(crate) send_imm: Option<unsafe extern "C" fn(*mut QpEx, u32)>,
    pub(crate) send_inv: Function,
    pub(crate) send_tso: Function,
    pub(crate) set_ud_addr: Option<unsafe extern "C" fn(*mut QpEx, *mut AddressHandle, u32, u32)>,
    pub(crate) set_xrc_srqn: Function,
    pub(crate) set_inline_data: Option<unsafe extern "C" fn(*mut QpEx, *const c_void, usize)>,
    pub(crate) set_inline_data_list: Option<unsafe extern "C" fn(*mut QpEx, usize, *const DataBuf)>,
    pub(crate) set_sge: Option<unsafe extern "C" fn(*mut QpEx, u32, u64, u32)>,
    pub(crate) set_sge_list: Option<unsafe extern "C" fn(*mut QpEx, usize, *const Sge)>,
    pub(crate) start: Option<unsafe extern "C" fn(*mut QpEx)>,
    pub(crate) complete: Option<unsafe extern "C" fn(*mut QpEx) -> c_int>,
    pub(crate) abort: Option<unsafe extern "C" fn(*mut QpEx)>,
    pub(crate) atomic_write: Function,
}

#[repr(C)]
pub(crate) struct DataBuf {
    pub(crate) addr: *const c_void,
    pub(crate) length: usize,
}

/// `struct ibv_sge`, which a ring entry has as well.
pub(crate) type Sge = weft_device::work_request::Sge;

#[repr(C)]
pub(crate) struct SendWr {
    pub(crate) wr_id: u64,
    pub(crate) next: *mut SendWr,
    pub(crate) sg_list: *const Sge,
    pub(crate) num_sge: c_int,
    pub(crate) opcode: c_int,
    pub(crate) send_flags: c_uint,
    pub(crate) imm_data: u32,
    /// Of a write or read: remote address, remote key. Of an atomic: remote address, compare or add, swap, remote key.
    /// Of a datagram: address handle, and the peer's queue pair and Q_Key in one word.
    pub(crate) wr: [u64; 4],
    pub(crate) xrc: u32,
    pub(crate) last: [u64; 6],
}

#[repr(C)]
pub(crate) struct RecvWr {
    pub(crate) wr_id: u64,
    pub(crate) next: *mut RecvWr,
    pub(crate) sg_list: *const Sge,
    pub(crate) num_sge: c_int,
}

#[repr(C)]
pub(crate) struct AsyncEvent {
    pub(crate) element: *mut c_void,
    pub(crate) event_type: c_int,
}

// As a C compiler says it of rdma-core 44's header on x86-64; public structures only grow at their ends.
const _: () = {
    use std::mem::{offset_of, size_of};
    assert!(size_of::<Device>() == 664 && size_of::<GidEntry>() == 32);
    assert!(size_of::<Context>() == 328 && offset_of!(Context, abi_compat) == 320);
    assert!(offset_of!(Context, ops) + offset_of!(ContextOps, poll_cq) == 96);
    assert!(offset_of!(Context, ops) + offset_of!(ContextOps, post_srq_recv) == 168);
    assert!(offset_of!(Context, ops) + offset_of!(ContextOps, post_send) == 208);
    assert!(offset_of!(Context, cmd_fd) == 264);
    assert!(size_of::<VerbsContext>() == 648 && offset_of!(VerbsContext, context) == 320);
    assert!(offset_of!(VerbsContext, private) == 208);
    assert!(offset_of!(VerbsContext, create_qp_ex) == 264);
    assert!(offset_of!(VerbsContext, size) == 312);
    assert!(size_of::<PortAttr>() == 52 && offset_of!(PortAttr, link_layer) == 46);
    assert!(size_of::<DeviceAttr>() == 232 && offset_of!(DeviceAttr, max_qp) == 108);
    assert!(offset_of!(DeviceAttr, atomic_cap) == 164 && offset_of!(DeviceAttr, max_ah) == 200);
    assert!(offset_of!(DeviceAttr, max_srq) == 212 && offset_of!(DeviceAttr, phys_port_cnt) == 227);
    assert!(size_of::<CompletionQueue>() == 128);
    assert!(size_of::<QueuePair>() == 160 && offset_of!(QueuePair, qp_num) == 52);
    assert!(size_of::<QpEx>() == 352 && offset_of!(QpEx, wr_flags) == 176);
    assert!(offset_of!(QpEx, ops) + offset_of!(QpExOps, rdma_write) == 224);
    assert!(offset_of!(QpEx, ops) + offset_of!(QpExOps, set_ud_addr) == 272);
    assert!(offset_of!(QpEx, ops) + offset_of!(QpExOps, set_sge) == 304);
    assert!(offset_of!(QpEx, ops) + offset_of!(QpExOps, complete) == 328);
    assert!(size_of::<MemoryRegion>() == 48 && size_of::<AsyncEvent>() == 16);
    assert!(size_of::<Wc>() == 48 && offset_of!(Wc, wc_flags) == 36);
    assert!(size_of::<SendWr>() == 128 && offset_of!(SendWr, imm_data) == 36);
    assert!(size_of::<DeviceAttrEx>() == 400 && offset_of!(DeviceAttrEx, phys_port_cnt_ex) == 396);
    assert!(size_of::<RecvWr>() == 32 && size_of::<SharedReceives>() == 128);
    assert!(size_of::<SrqInitAttr>() == 24 && size_of::<AddressHandle>() == 24);
    assert!(size_of::<AhAttr>() == 32 && offset_of!(AhAttr, port_num) == 30);
    assert!(size_of::<QpAttr>() == 144 && offset_of!(QpAttr, ah_attr) == 56);
    assert!(offset_of!(QpAttr, pkey_index) == 120 && offset_of!(QpAttr, rate_limit) == 136);
    assert!(size_of::<QpInitAttr>() == 64 && size_of::<QpInitAttrEx>() == 136);
    assert!(offset_of!(QpInitAttr, comp_mask) == 60);
    assert!(offset_of!(QpInitAttrEx, send_ops_flags) == 128);
};

//! The structures of `verbs.h`, as they lie in memory, for the libraries that stand in for rdma-core's: only what these
//! read or write has a name of its own. `tests/headers` compares them with the system's header.

#![expect(
    missing_docs,
    reason = "verbs.h has the same names, and ibv_* manual pages say what they are"
)]

use std::ffi::{c_char, c_int, c_uint, c_void};

/// `pthread_mutex_t` and `pthread_cond_t`: all 0 is a new one.
pub type Mutex = [u64; 5];
pub type Condition = [u64; 6];

pub type Function = Option<unsafe extern "C" fn()>;

#[repr(C)]
pub struct Device {
    pub ops: [Function; 2],
    pub node_type: c_int,
    pub transport_type: c_int,
    pub name: [c_char; 64],
    pub dev_name: [c_char; 64],
    pub dev_path: [c_char; 256],
    pub ibdev_path: [c_char; 256],
}

#[repr(C)]
#[derive(Default)]
pub struct ContextOps {
    pub before: [Function; 7],
    pub alloc_mw: Function,
    pub bind_mw: Function,
    pub dealloc_mw: Function,
    pub create_cq: Function,
    pub poll_cq: Option<unsafe extern "C" fn(*mut CompletionQueue, c_int, *mut Wc) -> c_int>,
    pub req_notify_cq: Option<unsafe extern "C" fn(*mut CompletionQueue, c_int) -> c_int>,
    pub between: [Function; 7],
    pub post_srq_recv:
        Option<unsafe extern "C" fn(*mut SharedReceives, *mut RecvWr, *mut *mut RecvWr) -> c_int>,
    pub of_queue_pairs: [Function; 4],
    pub post_send:
        Option<unsafe extern "C" fn(*mut QueuePair, *mut SendWr, *mut *mut SendWr) -> c_int>,
    pub post_recv:
        Option<unsafe extern "C" fn(*mut QueuePair, *mut RecvWr, *mut *mut RecvWr) -> c_int>,
    pub after: [Function; 5],
}

#[repr(C)]
pub struct Context {
    pub device: *mut Device,
    pub ops: ContextOps,
    pub cmd_fd: c_int,
    pub async_fd: c_int,
    pub num_comp_vectors: c_int,
    pub mutex: Mutex,
    /// All ones: a `verbs_context` lies before it.
    pub abi_compat: usize,
}

/// `struct verbs_context`: what is absent is not supported.
#[repr(C)]
pub struct VerbsContext {
    pub query_port: Option<unsafe extern "C" fn(*mut Context, u8, *mut PortAttr, usize) -> c_int>,
    pub unsupported: [Function; 24],
    pub create_cq_ex:
        Option<unsafe extern "C" fn(*mut Context, *mut CqInitAttrEx) -> *mut CompletionQueueEx>,
    pub private: *mut c_void,
    pub query_device_ex: Option<
        unsafe extern "C" fn(*mut Context, *const c_void, *mut DeviceAttrEx, usize) -> c_int,
    >,
    pub flows: [Function; 4],
    pub open_qp: Function,
    pub create_qp_ex:
        Option<unsafe extern "C" fn(*mut Context, *mut QpInitAttrEx) -> *mut QueuePair>,
    pub rest: [Function; 4],
    pub reserved: u64,
    pub size: usize,
    pub context: Context,
}

/// `struct ibv_device_attr_ex`: what the device has none of is 0.
#[repr(C)]
pub struct DeviceAttrEx {
    pub attr: DeviceAttr,
    pub absent: [u32; 41],
    pub phys_port_cnt_ex: u32,
}

#[repr(C)]
pub struct DeviceAttr {
    pub fw_ver: [c_char; 64],
    pub node_guid: u64,
    pub sys_image_guid: u64,
    pub max_mr_size: u64,
    pub page_size_cap: u64,
    pub vendor_id: u32,
    pub vendor_part_id: u32,
    pub hw_ver: u32,
    pub max_qp: c_int,
    pub max_qp_wr: c_int,
    pub device_cap_flags: c_uint,
    pub max_sge: c_int,
    pub max_sge_rd: c_int,
    pub max_cq: c_int,
    pub max_cqe: c_int,
    pub max_mr: c_int,
    pub max_pd: c_int,
    pub max_qp_rd_atom: c_int,
    pub max_ee_rd_atom: c_int,
    pub max_res_rd_atom: c_int,
    pub max_qp_init_rd_atom: c_int,
    pub max_ee_init_rd_atom: c_int,
    pub atomic_cap: c_int,
    pub unsupported: [c_int; 8],
    pub max_ah: c_int,
    pub fast: [c_int; 2],
    pub max_srq: c_int,
    pub max_srq_wr: c_int,
    pub max_srq_sge: c_int,
    pub max_pkeys: u16,
    pub local_ca_ack_delay: u8,
    pub phys_port_cnt: u8,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct PortAttr {
    pub state: c_int,
    pub max_mtu: c_int,
    pub active_mtu: c_int,
    pub gid_tbl_len: c_int,
    pub port_cap_flags: u32,
    pub max_msg_sz: u32,
    pub bad_pkey_cntr: u32,
    pub qkey_viol_cntr: u32,
    pub pkey_tbl_len: u16,
    pub lid: u16,
    pub sm_lid: u16,
    pub lmc: u8,
    pub max_vl_num: u8,
    pub sm_sl: u8,
    pub subnet_timeout: u8,
    pub init_type_reply: u8,
    pub active_width: u8,
    pub active_speed: u8,
    pub phys_state: u8,
    pub link_layer: u8,
    pub flags: u8,
    pub port_cap_flags2: u16,
}

#[repr(C)]
pub struct GidEntry {
    pub gid: [u8; 16],
    pub gid_index: u32,
    pub port_num: u32,
    pub gid_type: u32,
    pub ndev_ifindex: u32,
}

#[repr(C)]
pub struct ProtectionDomain {
    pub context: *mut Context,
    pub handle: u32,
}

#[repr(C)]
pub struct MemoryRegion {
    pub context: *mut Context,
    pub pd: *mut ProtectionDomain,
    pub addr: *mut c_void,
    pub length: usize,
    pub handle: u32,
    pub lkey: u32,
    pub rkey: u32,
}

#[repr(C)]
pub struct CompletionChannel {
    pub context: *mut Context,
    pub fd: c_int,
    pub refcnt: c_int,
}

#[repr(C)]
pub struct CompletionQueue {
    pub context: *mut Context,
    pub channel: *mut CompletionChannel,
    pub cq_context: *mut c_void,
    pub handle: u32,
    pub cqe: c_int,
    pub mutex: Mutex,
    pub cond: Condition,
    pub comp_events_completed: u32,
    pub async_events_completed: u32,
}

/// `struct ibv_cq_init_attr_ex`.
#[repr(C)]
pub struct CqInitAttrEx {
    pub cqe: u32,
    pub cq_context: *mut c_void,
    pub channel: *mut CompletionChannel,
    pub comp_vector: u32,
    pub wc_flags: u64,
    pub comp_mask: u32,
    pub flags: u32,
    pub parent_domain: *mut ProtectionDomain,
}

/// `struct ibv_poll_cq_attr`.
#[repr(C)]
pub struct PollCqAttr {
    pub comp_mask: u32,
}

/// `struct ibv_cq_ex`. What is absent is what `create_cq_ex` refuses to make.
#[repr(C)]
pub struct CompletionQueueEx {
    pub base: CompletionQueue,
    pub comp_mask: u32,
    pub status: c_int,
    pub wr_id: u64,
    pub ops: CompletionQueueExOps,
}

type Reads<T> = Option<unsafe extern "C" fn(*mut CompletionQueueEx) -> T>;

#[repr(C)]
#[derive(Default)]
pub struct CompletionQueueExOps {
    pub start_poll:
        Option<unsafe extern "C" fn(*mut CompletionQueueEx, *const PollCqAttr) -> c_int>,
    pub next_poll: Reads<c_int>,
    pub end_poll: Reads<()>,
    pub read_opcode: Reads<c_int>,
    pub read_vendor_err: Reads<u32>,
    pub read_byte_len: Reads<u32>,
    pub read_imm_data: Reads<u32>,
    pub read_qp_num: Reads<u32>,
    pub read_src_qp: Reads<u32>,
    pub read_wc_flags: Reads<c_uint>,
    pub read_slid: Reads<u32>,
    pub read_sl: Reads<u8>,
    pub read_dlid_path_bits: Reads<u8>,
    pub absent: [Function; 5],
}

#[repr(C)]
#[derive(Default)]
pub struct Wc {
    pub wr_id: u64,
    pub status: c_int,
    pub opcode: c_int,
    pub vendor_err: u32,
    pub byte_len: u32,
    pub imm_data: u32,
    pub qp_num: u32,
    pub src_qp: u32,
    pub wc_flags: c_uint,
    pub pkey_index: u16,
    pub slid: u16,
    pub sl: u8,
    pub dlid_path_bits: u8,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct AhAttr {
    pub dgid: [u64; 2],
    pub flow_label: u32,
    pub sgid_index: u8,
    pub hop_limit: u8,
    pub traffic_class: u8,
    pub dlid: u16,
    pub sl: u8,
    pub src_path_bits: u8,
    pub static_rate: u8,
    pub is_global: u8,
    pub port_num: u8,
}

/// `struct ibv_grh`.
pub type RoutingHeader = [u8; 40];

#[repr(C)]
pub struct AddressHandle {
    pub context: *mut Context,
    pub pd: *mut ProtectionDomain,
    pub handle: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct QpCap {
    pub max_send_wr: u32,
    pub max_recv_wr: u32,
    pub max_send_sge: u32,
    pub max_recv_sge: u32,
    pub max_inline_data: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct QpInitAttr {
    pub qp_context: *mut c_void,
    pub send_cq: *mut CompletionQueue,
    pub recv_cq: *mut CompletionQueue,
    pub srq: *mut SharedReceives,
    pub cap: QpCap,
    pub qp_type: c_int,
    pub sq_sig_all: c_int,
    /// Of `struct ibv_qp_init_attr_ex` only; here C leaves room.
    pub comp_mask: u32,
}

#[repr(C)]
pub struct QpInitAttrEx {
    pub attr: QpInitAttr,
    pub pd: *mut ProtectionDomain,
    pub xrcd: *mut c_void,
    pub create_flags: u32,
    pub max_tso_header: u16,
    pub rwq_ind_tbl: *mut c_void,
    pub rx_hash_conf: [u64; 3],
    pub source_qpn: u32,
    pub send_ops_flags: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct QpAttr {
    pub qp_state: c_int,
    pub cur_qp_state: c_int,
    pub path_mtu: c_int,
    pub path_mig_state: c_int,
    pub qkey: u32,
    pub rq_psn: u32,
    pub sq_psn: u32,
    pub dest_qp_num: u32,
    pub qp_access_flags: c_uint,
    pub cap: QpCap,
    pub ah_attr: AhAttr,
    pub alt_ah_attr: AhAttr,
    pub pkey_index: u16,
    pub alt_pkey_index: u16,
    pub en_sqd_async_notify: u8,
    pub sq_draining: u8,
    pub max_rd_atomic: u8,
    pub max_dest_rd_atomic: u8,
    pub min_rnr_timer: u8,
    pub port_num: u8,
    pub timeout: u8,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
    pub alt_port_num: u8,
    pub alt_timeout: u8,
    pub rate_limit: u32,
}

#[repr(C)]
pub struct QueuePair {
    pub context: *mut Context,
    pub qp_context: *mut c_void,
    pub pd: *mut ProtectionDomain,
    pub send_cq: *mut CompletionQueue,
    pub recv_cq: *mut CompletionQueue,
    pub srq: *mut SharedReceives,
    pub handle: u32,
    pub qp_num: u32,
    pub state: c_int,
    pub qp_type: c_int,
    pub mutex: Mutex,
    pub cond: Condition,
    pub events_completed: u32,
}

/// `struct ibv_srq`.
#[repr(C)]
pub struct SharedReceives {
    pub context: *mut Context,
    pub srq_context: *mut c_void,
    pub pd: *mut ProtectionDomain,
    pub handle: u32,
    pub mutex: Mutex,
    pub cond: Condition,
    pub events_completed: u32,
}

/// `struct ibv_srq_attr`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct SrqAttr {
    pub max_wr: u32,
    pub max_sge: u32,
    pub srq_limit: u32,
}

/// `struct ibv_srq_init_attr`.
#[repr(C)]
pub struct SrqInitAttr {
    pub srq_context: *mut c_void,
    pub attr: SrqAttr,
    /// Of `struct ibv_srq_init_attr_ex` only; here C leaves room.
    pub comp_mask: u32,
}

/// `struct ibv_srq_init_attr_ex`.
#[repr(C)]
pub struct SrqInitAttrEx {
    pub attr: SrqInitAttr,
    pub srq_type: c_int,
    pub pd: *mut ProtectionDomain,
    pub rest: [u64; 3],
}

/// `struct ibv_qp_ex`. What is absent is what `create_qp_ex` refuses to make.
#[repr(C)]
pub struct QpEx {
    pub base: QueuePair,
    pub comp_mask: u64,
    pub wr_id: u64,
    pub wr_flags: c_uint,
    pub ops: QpExOps,
}

type OfAddress = Option<unsafe extern "C" fn(*mut QpEx, u32, u64)>;

#[repr(C)]
#[derive(Default)]
pub struct QpExOps {
    pub atomic_cmp_swp: Option<unsafe extern "C" fn(*mut QpEx, u32, u64, u64, u64)>,
    pub atomic_fetch_add: Option<unsafe extern "C" fn(*mut QpEx, u32, u64, u64)>,
    pub bind_mw: Function,
    pub local_inv: Function,
    pub rdma_read: OfAddress,
    pub rdma_write: OfAddress,
    pub rdma_write_imm: Option<unsafe extern "C" fn(*mut QpEx, u32, u64, u32)>,
    pub send: Option<unsafe extern "C" fn(*mut QpEx)>,
    pub send_imm: Option<unsafe extern "C" fn(*mut QpEx, u32)>,
    pub send_inv: Function,
    pub send_tso: Function,
    pub set_ud_addr: Option<unsafe extern "C" fn(*mut QpEx, *mut AddressHandle, u32, u32)>,
    pub set_xrc_srqn: Function,
    pub set_inline_data: Option<unsafe extern "C" fn(*mut QpEx, *const c_void, usize)>,
    pub set_inline_data_list: Option<unsafe extern "C" fn(*mut QpEx, usize, *const DataBuf)>,
    pub set_sge: Option<unsafe extern "C" fn(*mut QpEx, u32, u64, u32)>,
    pub set_sge_list: Option<unsafe extern "C" fn(*mut QpEx, usize, *const Sge)>,
    pub start: Option<unsafe extern "C" fn(*mut QpEx)>,
    pub complete: Option<unsafe extern "C" fn(*mut QpEx) -> c_int>,
    pub abort: Option<unsafe extern "C" fn(*mut QpEx)>,
    pub atomic_write: Function,
}

#[repr(C)]
pub struct DataBuf {
    pub addr: *const c_void,
    pub length: usize,
}

/// `struct ibv_sge`, which a ring entry has as well.
pub type Sge = weft_device::work_request::Sge;

#[repr(C)]
pub struct SendWr {
    pub wr_id: u64,
    pub next: *mut SendWr,
    pub sg_list: *const Sge,
    pub num_sge: c_int,
    pub opcode: c_int,
    pub send_flags: c_uint,
    pub imm_data: u32,
    /// Of a write or read: remote address, remote key. Of an atomic: remote address, compare or add, swap, remote key.
    /// Of a datagram: address handle, and the peer's queue pair and Q_Key in one word.
    pub wr: [u64; 4],
    pub xrc: u32,
    pub last: [u64; 6],
}

#[repr(C)]
pub struct RecvWr {
    pub wr_id: u64,
    pub next: *mut RecvWr,
    pub sg_list: *const Sge,
    pub num_sge: c_int,
}

#[repr(C)]
pub struct AsyncEvent {
    pub element: *mut c_void,
    pub event_type: c_int,
}

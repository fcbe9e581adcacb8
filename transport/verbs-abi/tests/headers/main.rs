//! The structures and numbers of the system's `verbs.h`, which programs are built with, are those that we have.

#[macro_use]
mod comparison;

use std::mem::offset_of;

use comparison::{Field, Number, Structure, assert_same};
use weft_device::completion::{Opcode, Status};
use weft_device::event::EventType;
use weft_device::state::{Attributes, State};
use weft_verbs_abi::*;

const HEADER: &str = "infiniband/verbs.h";

fn all_structures() -> Vec<Structure> {
    structures! {
        Device = "struct ibv_device" {
            ops is "_ops", node_type, transport_type, name, dev_name, dev_path, ibdev_path,
        }
        ContextOps = "struct ibv_context_ops" {
            before from "_compat_query_device", alloc_mw, bind_mw, dealloc_mw,
            create_cq is "_compat_create_cq", poll_cq, req_notify_cq, between from "_compat_cq_event",
            post_srq_recv, of_queue_pairs from "_compat_create_qp", post_send, post_recv,
            after from "_compat_create_ah",
        }
        Context = "struct ibv_context" {
            device, ops, cmd_fd, async_fd, num_comp_vectors, mutex, abi_compat,
        }
        VerbsContext = "struct verbs_context" {
            query_port, unsupported from "advise_mr", create_cq_ex, private is "priv", query_device_ex,
            flows from "ibv_destroy_flow", open_qp, create_qp_ex, rest from "get_srq_num",
            reserved is "_ABI_placeholder3", size is "sz", context,
        }
        DeviceAttrEx = "struct ibv_device_attr_ex" {
            attr is "orig_attr", absent from "comp_mask", phys_port_cnt_ex,
        }
        DeviceAttr = "struct ibv_device_attr" {
            fw_ver, node_guid, sys_image_guid, max_mr_size, page_size_cap, vendor_id, vendor_part_id, hw_ver,
            max_qp, max_qp_wr, device_cap_flags, max_sge, max_sge_rd, max_cq, max_cqe, max_mr, max_pd,
            max_qp_rd_atom, max_ee_rd_atom, max_res_rd_atom, max_qp_init_rd_atom, max_ee_init_rd_atom,
            atomic_cap, unsupported from "max_ee", max_ah, fast from "max_fmr", max_srq, max_srq_wr,
            max_srq_sge, max_pkeys, local_ca_ack_delay, phys_port_cnt,
        }
        PortAttr = "struct ibv_port_attr" {
            state, max_mtu, active_mtu, gid_tbl_len, port_cap_flags, max_msg_sz, bad_pkey_cntr,
            qkey_viol_cntr, pkey_tbl_len, lid, sm_lid, lmc, max_vl_num, sm_sl, subnet_timeout,
            init_type_reply, active_width, active_speed, phys_state, link_layer, flags, port_cap_flags2,
        }
        GidEntry = "struct ibv_gid_entry" { gid, gid_index, port_num, gid_type, ndev_ifindex }
        ProtectionDomain = "struct ibv_pd" { context, handle }
        MemoryRegion = "struct ibv_mr" { context, pd, addr, length, handle, lkey, rkey }
        CompletionChannel = "struct ibv_comp_channel" { context, fd, refcnt }
        CompletionQueue = "struct ibv_cq" {
            context, channel, cq_context, handle, cqe, mutex, cond, comp_events_completed,
            async_events_completed,
        }
        CqInitAttrEx = "struct ibv_cq_init_attr_ex" {
            cqe, cq_context, channel, comp_vector, wc_flags, comp_mask, flags, parent_domain,
        }
        PollCqAttr = "struct ibv_poll_cq_attr" { comp_mask }
        CompletionQueueEx = "struct ibv_cq_ex" {
            base from "context", comp_mask, status, wr_id, ops from "start_poll",
        }
        CompletionQueueExOps = "struct ibv_cq_ex" after "start_poll" {
            start_poll, next_poll, end_poll, read_opcode, read_vendor_err, read_byte_len, read_imm_data,
            read_qp_num, read_src_qp, read_wc_flags, read_slid, read_sl, read_dlid_path_bits,
            absent from "read_completion_ts",
        }
        Wc = "struct ibv_wc" {
            wr_id, status, opcode, vendor_err, byte_len, imm_data, qp_num, src_qp, wc_flags, pkey_index,
            slid, sl, dlid_path_bits,
        }
        AhAttr = "struct ibv_ah_attr" {
            dgid is "grh.dgid", flow_label is "grh.flow_label", sgid_index is "grh.sgid_index",
            hop_limit is "grh.hop_limit", traffic_class is "grh.traffic_class", dlid, sl, src_path_bits,
            static_rate, is_global, port_num,
        }
        AddressHandle = "struct ibv_ah" { context, pd, handle }
        QpCap = "struct ibv_qp_cap" {
            max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data,
        }
        QpInitAttr = "struct ibv_qp_init_attr" {
            qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all, comp_mask alone,
        }
        QpInitAttrEx = "struct ibv_qp_init_attr_ex" {
            attr from "qp_context", pd, xrcd, create_flags, max_tso_header, rwq_ind_tbl, rx_hash_conf,
            source_qpn, send_ops_flags,
        }
        QpAttr = "struct ibv_qp_attr" {
            qp_state, cur_qp_state, path_mtu, path_mig_state, qkey, rq_psn, sq_psn, dest_qp_num,
            qp_access_flags, cap, ah_attr, alt_ah_attr, pkey_index, alt_pkey_index, en_sqd_async_notify,
            sq_draining, max_rd_atomic, max_dest_rd_atomic, min_rnr_timer, port_num, timeout, retry_cnt,
            rnr_retry, alt_port_num, alt_timeout, rate_limit,
        }
        QueuePair = "struct ibv_qp" {
            context, qp_context, pd, send_cq, recv_cq, srq, handle, qp_num, state, qp_type, mutex, cond,
            events_completed,
        }
        SharedReceives = "struct ibv_srq" {
            context, srq_context, pd, handle, mutex, cond, events_completed,
        }
        SrqAttr = "struct ibv_srq_attr" { max_wr, max_sge, srq_limit }
        SrqInitAttr = "struct ibv_srq_init_attr" { srq_context, attr, comp_mask alone }
        SrqInitAttrEx = "struct ibv_srq_init_attr_ex" {
            attr from "srq_context", srq_type, pd, rest from "xrcd",
        }
        QpEx = "struct ibv_qp_ex" {
            base is "qp_base", comp_mask, wr_id, wr_flags, ops from "wr_atomic_cmp_swp",
        }
        QpExOps = "struct ibv_qp_ex" after "wr_atomic_cmp_swp" {
            atomic_cmp_swp is "wr_atomic_cmp_swp", atomic_fetch_add is "wr_atomic_fetch_add",
            bind_mw is "wr_bind_mw", local_inv is "wr_local_inv", rdma_read is "wr_rdma_read",
            rdma_write is "wr_rdma_write", rdma_write_imm is "wr_rdma_write_imm", send is "wr_send",
            send_imm is "wr_send_imm", send_inv is "wr_send_inv", send_tso is "wr_send_tso",
            set_ud_addr is "wr_set_ud_addr", set_xrc_srqn is "wr_set_xrc_srqn",
            set_inline_data is "wr_set_inline_data", set_inline_data_list is "wr_set_inline_data_list",
            set_sge is "wr_set_sge", set_sge_list is "wr_set_sge_list", start is "wr_start",
            complete is "wr_complete", abort is "wr_abort", atomic_write is "wr_atomic_write",
        }
        DataBuf = "struct ibv_data_buf" { addr, length }
        Sge = "struct ibv_sge" { address is "addr", bytes is "length", local_key is "lkey" }
        SendWr = "struct ibv_send_wr" {
            wr_id, next, sg_list, num_sge, opcode, send_flags, imm_data, wr, xrc is "qp_type",
            last is "bind_mw",
        }
        RecvWr = "struct ibv_recv_wr" { wr_id, next, sg_list, num_sge }
        AsyncEvent = "struct ibv_async_event" { element, event_type }
    }
}

/// What no field of ours stands for alone.
fn further_places() -> Vec<Number> {
    let operands = offset_of!(SendWr, wr);
    let places = [
        ("sizeof(struct ibv_grh)", size_of::<RoutingHeader>()),
        (
            "offsetof(struct ibv_qp_init_attr_ex, comp_mask)",
            offset_of!(QpInitAttrEx, attr.comp_mask),
        ),
        (
            "offsetof(struct ibv_srq_init_attr_ex, comp_mask)",
            offset_of!(SrqInitAttrEx, attr.comp_mask),
        ),
        (
            "offsetof(struct ibv_send_wr, wr.rdma.remote_addr)",
            operands,
        ),
        ("offsetof(struct ibv_send_wr, wr.rdma.rkey)", operands + 8),
        (
            "offsetof(struct ibv_send_wr, wr.atomic.remote_addr)",
            operands,
        ),
        (
            "offsetof(struct ibv_send_wr, wr.atomic.compare_add)",
            operands + 8,
        ),
        (
            "offsetof(struct ibv_send_wr, wr.atomic.swap)",
            operands + 16,
        ),
        (
            "offsetof(struct ibv_send_wr, wr.atomic.rkey)",
            operands + 24,
        ),
        ("offsetof(struct ibv_send_wr, wr.ud.ah)", operands),
        (
            "offsetof(struct ibv_send_wr, wr.ud.remote_qpn)",
            operands + 8,
        ),
        (
            "offsetof(struct ibv_send_wr, wr.ud.remote_qkey)",
            operands + 12,
        ),
    ];
    let numbers = places.map(|(expression, at)| Number::of_bytes(expression.to_owned(), at));
    numbers.into()
}

#[test]
fn structures_lie_in_memory_as_in_the_system_s_header() {
    let structures = all_structures();
    let mut numbers: Vec<Number> = structures.iter().flat_map(Structure::numbers).collect();
    numbers.extend(further_places());
    assert_same(HEADER, &numbers);
}

#[test]
fn numbers_are_those_of_the_system_s_header() {
    let mut numbers = numbers! {
        IBV_WC_SUCCESS = Status::Success as u8,
        IBV_WC_LOC_LEN_ERR = Status::LocalLength as u8,
        IBV_WC_LOC_QP_OP_ERR = Status::LocalQueuePairOperation as u8,
        IBV_WC_LOC_PROT_ERR = Status::LocalProtection as u8,
        IBV_WC_WR_FLUSH_ERR = Status::Flushed as u8,
        IBV_WC_BAD_RESP_ERR = Status::BadResponse as u8,
        IBV_WC_LOC_ACCESS_ERR = Status::LocalAccess as u8,
        IBV_WC_REM_INV_REQ_ERR = Status::RemoteInvalidRequest as u8,
        IBV_WC_REM_ACCESS_ERR = Status::RemoteAccess as u8,
        IBV_WC_REM_OP_ERR = Status::RemoteOperation as u8,
        IBV_WC_RETRY_EXC_ERR = Status::RetryExceeded as u8,
        IBV_WC_RNR_RETRY_EXC_ERR = Status::ReceiverNotReadyRetryExceeded as u8,
        IBV_WC_FATAL_ERR = Status::Fatal as u8,
        IBV_WC_GENERAL_ERR = Status::General as u8,

        IBV_WC_SEND = Opcode::Send as u8,
        IBV_WC_RDMA_WRITE = Opcode::Write as u8,
        IBV_WC_RDMA_READ = Opcode::Read as u8,
        IBV_WC_COMP_SWAP = Opcode::CompareSwap as u8,
        IBV_WC_FETCH_ADD = Opcode::FetchAdd as u8,
        IBV_WC_RECV = Opcode::Receive as u8,
        IBV_WC_RECV_RDMA_WITH_IMM = Opcode::ReceiveWithImmediate as u8,

        IBV_EVENT_CQ_ERR = EventType::CompletionQueueError as u32,
        IBV_EVENT_QP_FATAL = EventType::QueuePairFatal as u32,
        IBV_EVENT_COMM_EST = EventType::CommunicationEstablished as u32,
        IBV_EVENT_SQ_DRAINED = EventType::SendQueueDrained as u32,
        IBV_EVENT_DEVICE_FATAL = EventType::DeviceFatal as u32,
        IBV_EVENT_SRQ_ERR = EventType::SharedReceiveQueueError as u32,
        IBV_EVENT_SRQ_LIMIT_REACHED = EventType::SharedReceiveQueueLimitReached as u32,
        IBV_EVENT_QP_LAST_WQE_REACHED = EventType::LastWorkRequestReached as u32,

        IBV_QPS_RESET = State::Reset as u8,
        IBV_QPS_INIT = State::Init as u8,
        IBV_QPS_RTR = State::ReadyToReceive as u8,
        IBV_QPS_RTS = State::ReadyToSend as u8,
        IBV_QPS_SQD = State::SendQueueDrained as u8,
        IBV_QPS_SQE = State::SendQueueError as u8,
        IBV_QPS_ERR = State::Error as u8,
    };
    // These have the names of verbs.h.
    for bit in 0..u32::BITS {
        let mask = 1 << bit;
        numbers.extend(Attributes(mask).names().into_iter().map(|name| Number {
            expression: name.to_owned(),
            ours: i128::from(mask),
        }));
    }
    assert_same(HEADER, &numbers);
}

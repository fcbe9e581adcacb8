//! The structures and numbers of the system's `rdma_cma.h`, which programs are built with, are those that we have.

#[macro_use]
#[path = "../../verbs-abi/tests/headers/comparison.rs"]
mod comparison;

use comparison::{Field, Number, Structure, assert_same};

use crate::abi::{AddrInfo, CmEvent, CmId, ConnParam, EventChannel, Route, UdParam};
use crate::endpoint::{DATAGRAMS, kind};
use crate::{addrinfo, ids, queue_pairs};

const HEADER: &str = "rdma/rdma_cma.h";

#[test]
fn structures_lie_in_memory_as_in_the_system_s_header() {
    let structures: Vec<Structure> = structures! {
        EventChannel = "struct rdma_event_channel" { fd }
        Route = "struct rdma_route" {
            source is "addr.src_storage", destination is "addr.dst_storage",
            source_gid is "addr.addr.ibaddr.sgid", destination_gid is "addr.addr.ibaddr.dgid",
            partition from "addr.addr.ibaddr.pkey", path_rec, num_paths,
        }
        CmId = "struct rdma_cm_id" {
            verbs, channel, context, qp, route, ps, port_num, event, send_cq_channel, send_cq,
            recv_cq_channel, recv_cq, srq, pd, qp_type,
        }
        ConnParam = "struct rdma_conn_param" {
            private_data, private_data_len, responder_resources, initiator_depth, flow_control,
            retry_count, rnr_retry_count, srq, qp_num,
        }
        UdParam = "struct rdma_ud_param" { private_data, private_data_len, ah_attr, qp_num, qkey }
        CmEvent = "struct rdma_cm_event" { id, listen_id, event, status, param }
        AddrInfo = "struct rdma_addrinfo" {
            flags is "ai_flags", family is "ai_family", qp_type is "ai_qp_type",
            port_space is "ai_port_space", source_len is "ai_src_len", destination_len is "ai_dst_len",
            source is "ai_src_addr", destination is "ai_dst_addr", source_name is "ai_src_canonname",
            destination_name is "ai_dst_canonname", route_len is "ai_route_len", route is "ai_route",
            connect_len is "ai_connect_len", connect is "ai_connect", next is "ai_next",
        }
    };
    let numbers: Vec<Number> = structures.iter().flat_map(Structure::numbers).collect();
    assert_same(HEADER, &numbers);
}

#[test]
fn numbers_are_those_of_the_system_s_header() {
    let numbers: Vec<Number> = numbers! {
        RDMA_CM_EVENT_ADDR_RESOLVED = kind::ADDRESS_RESOLVED,
        RDMA_CM_EVENT_ADDR_ERROR = kind::ADDRESS_ERROR,
        RDMA_CM_EVENT_ROUTE_RESOLVED = kind::ROUTE_RESOLVED,
        RDMA_CM_EVENT_CONNECT_REQUEST = kind::CONNECT_REQUEST,
        RDMA_CM_EVENT_CONNECT_RESPONSE = kind::CONNECT_RESPONSE,
        RDMA_CM_EVENT_CONNECT_ERROR = kind::CONNECT_ERROR,
        RDMA_CM_EVENT_UNREACHABLE = kind::UNREACHABLE,
        RDMA_CM_EVENT_REJECTED = kind::REJECTED,
        RDMA_CM_EVENT_ESTABLISHED = kind::ESTABLISHED,
        RDMA_CM_EVENT_DISCONNECTED = kind::DISCONNECTED,

        RDMA_PS_IPOIB = ids::IPOIB,
        RDMA_PS_TCP = ids::TCP,
        RDMA_PS_TCP = addrinfo::STREAMS,
        RDMA_PS_UDP = DATAGRAMS,
        RDMA_PS_IB = ids::IB,
        RDMA_UDP_QKEY = queue_pairs::DATAGRAM_KEY,
        RAI_PASSIVE = addrinfo::PASSIVE,
        RAI_NUMERICHOST = addrinfo::NUMERIC_HOST,

        IBV_QPT_RC = ids::RC,
        IBV_QPT_UD = ids::UD,
        IBV_QPS_INIT = queue_pairs::INIT,
        IBV_QPS_RTR = queue_pairs::READY_TO_RECEIVE,
        IBV_QPS_RTS = queue_pairs::READY_TO_SEND,
        IBV_QPS_ERR = queue_pairs::ERROR,
        IBV_QP_STATE = queue_pairs::STATE,
        IBV_QP_ACCESS_FLAGS = queue_pairs::ACCESS_FLAGS,
        IBV_QP_PKEY_INDEX = queue_pairs::PKEY_INDEX,
        IBV_QP_PORT = queue_pairs::PORT,
        IBV_QP_QKEY = queue_pairs::QKEY,
        IBV_QP_AV = queue_pairs::AV,
        IBV_QP_PATH_MTU = queue_pairs::PATH_MTU,
        IBV_QP_TIMEOUT = queue_pairs::TIMEOUT,
        IBV_QP_RETRY_CNT = queue_pairs::RETRY_CNT,
        IBV_QP_RNR_RETRY = queue_pairs::RNR_RETRY,
        IBV_QP_RQ_PSN = queue_pairs::RQ_PSN,
        IBV_QP_MAX_QP_RD_ATOMIC = queue_pairs::MAX_QP_RD_ATOMIC,
        IBV_QP_MIN_RNR_TIMER = queue_pairs::MIN_RNR_TIMER,
        IBV_QP_SQ_PSN = queue_pairs::SQ_PSN,
        IBV_QP_MAX_DEST_RD_ATOMIC = queue_pairs::MAX_DEST_RD_ATOMIC,
        IBV_QP_DEST_QPN = queue_pairs::DEST_QPN,
        IBV_QP_INIT_ATTR_PD = queue_pairs::PD,
    };
    assert_same(HEADER, &numbers);
}

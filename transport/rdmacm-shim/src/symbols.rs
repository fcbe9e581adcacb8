//! The versions of the names: programs ask for a name with its version.

use std::arch::global_asm;

/// Puts names into a version node, as the default of their names.
macro_rules! versions {
    ($($version:literal: $($name:ident)*;)*) => {
        $($(global_asm!(concat!(
            ".symver ", stringify!($name), ", ", stringify!($name), "@@RDMACM_", $version
        ));)*)*
    };
}

versions! {
    "1.0": raccept rbind rclose rconnect rdma_accept rdma_ack_cm_event rdma_bind_addr rdma_connect rdma_create_ep
        rdma_create_event_channel rdma_create_id rdma_create_qp rdma_create_qp_ex rdma_create_srq
        rdma_create_srq_ex rdma_destroy_ep rdma_destroy_event_channel rdma_destroy_id rdma_destroy_qp
        rdma_destroy_srq rdma_disconnect rdma_event_str rdma_free_devices rdma_freeaddrinfo rdma_get_cm_event
        rdma_get_devices rdma_get_dst_port rdma_get_request rdma_get_src_port rdma_getaddrinfo
        rdma_join_multicast rdma_leave_multicast rdma_listen rdma_migrate_id rdma_notify rdma_reject
        rdma_resolve_addr rdma_resolve_route rdma_set_option rfcntl rgetpeername rgetsockname rgetsockopt riomap
        riounmap riowrite rlisten rpoll rread rreadv rrecv rrecvfrom rrecvmsg rselect rsend rsendmsg rsendto
        rsetsockopt rshutdown rsocket rwrite rwritev;
    "1.1": rdma_join_multicast_ex;
    "1.2": rdma_establish rdma_init_qp_attr;
    "1.3": rdma_get_remote_ece rdma_reject_ece rdma_set_local_ece;
}

//! Calls that this device does not do, and private names of rdma-core.
//!
//! `docs/verbs.md` is made from these lists and from those of `symbols.rs`.
//!
//! Programs that are linked with libmlx5 or libefa do not start where one of rdma-core's private names is missing. None of
//! them has to work: no driver of theirs has a device here.

use std::ffi::{c_int, c_void};
use std::ptr;

use crate::contexts::set_errno;

/// Answers EOPNOTSUPP, as a number and in `errno`.
macro_rules! not_supported {
    ($($name:ident),* $(,)?) => {
        $(#[unsafe(no_mangle)]
        extern "C" fn $name() -> c_int {
            set_errno(libc::EOPNOTSUPP)
        })*
    };
}

/// Makes nothing, and says EOPNOTSUPP in `errno`.
macro_rules! not_made {
    ($($name:ident),* $(,)?) => {
        $(#[unsafe(no_mangle)]
        extern "C" fn $name() -> *mut c_void {
            set_errno(libc::EOPNOTSUPP);
            ptr::null_mut()
        })*
    };
}

/// Does nothing, and has nothing to say.
macro_rules! nothing {
    ($($name:ident),* $(,)?) => {
        $(#[unsafe(no_mangle)]
        extern "C" fn $name() {})*
    };
}

// Of GPU memory: NCCL takes any other number than EOPNOTSUPP for "it can be registered".
not_made! {
    ibv_reg_dmabuf_mr,
}

not_made! {
    ibv_import_device,
    ibv_import_mr, ibv_import_pd, ibv_import_dm,
}

not_supported! {
    ibv_attach_mcast, ibv_detach_mcast,
    ibv_query_ece, ibv_set_ece, ibv_resolve_eth_l2_from_gid,
}

nothing! {
    ibv_unimport_mr, ibv_unimport_pd, ibv_unimport_dm, ibv_copy_ah_attr_from_kern,
    ibv_copy_path_rec_from_kern, ibv_copy_path_rec_to_kern, ibv_copy_qp_attr_from_kern,
}

// Private names. Drivers register in constructors, before a program begins, and one of the names is data.
not_supported! {
    __ioctl_final_num_attrs, __verbs_log, _verbs_init_and_alloc_context, execute_ioctl, ibv_cmd_advise_mr,
    ibv_cmd_alloc_dm, ibv_cmd_alloc_mw, ibv_cmd_alloc_pd, ibv_cmd_attach_mcast, ibv_cmd_close_xrcd,
    ibv_cmd_create_ah, ibv_cmd_create_counters, ibv_cmd_create_cq, ibv_cmd_create_cq_ex,
    ibv_cmd_create_cq_ex2, ibv_cmd_create_flow, ibv_cmd_create_flow_action_esp, ibv_cmd_create_qp,
    ibv_cmd_create_qp_ex, ibv_cmd_create_qp_ex2, ibv_cmd_create_rwq_ind_table, ibv_cmd_create_srq,
    ibv_cmd_create_srq_ex, ibv_cmd_create_wq, ibv_cmd_dealloc_mw, ibv_cmd_dealloc_pd, ibv_cmd_dereg_mr,
    ibv_cmd_destroy_ah, ibv_cmd_destroy_counters, ibv_cmd_destroy_cq, ibv_cmd_destroy_flow,
    ibv_cmd_destroy_flow_action, ibv_cmd_destroy_qp, ibv_cmd_destroy_rwq_ind_table, ibv_cmd_destroy_srq,
    ibv_cmd_destroy_wq, ibv_cmd_detach_mcast, ibv_cmd_free_dm, ibv_cmd_get_context, ibv_cmd_modify_cq,
    ibv_cmd_modify_flow_action_esp, ibv_cmd_modify_qp, ibv_cmd_modify_qp_ex, ibv_cmd_modify_srq,
    ibv_cmd_modify_wq, ibv_cmd_open_qp, ibv_cmd_open_xrcd, ibv_cmd_poll_cq, ibv_cmd_post_recv,
    ibv_cmd_post_send, ibv_cmd_post_srq_recv, ibv_cmd_query_context, ibv_cmd_query_device_any,
    ibv_cmd_query_mr, ibv_cmd_query_port, ibv_cmd_query_qp, ibv_cmd_query_srq, ibv_cmd_read_counters,
    ibv_cmd_reg_dm_mr, ibv_cmd_reg_dmabuf_mr, ibv_cmd_reg_mr, ibv_cmd_req_notify_cq, ibv_cmd_rereg_mr,
    ibv_cmd_resize_cq, ibv_read_ibdev_sysfs_file, verbs_init_cq, verbs_open_device, verbs_set_ops,
    verbs_uninit_context, ibv_register_driver,
}

nothing! {
    verbs_register_driver_22, verbs_register_driver_25, verbs_register_driver_33, verbs_register_driver_34,
    verbs_register_driver_57, verbs_register_driver_59, verbs_register_driver_64, verbs_register_driver_65,
}

/// A driver of rdma-core sets it.
#[unsafe(no_mangle)]
static mut verbs_allow_disassociate_destroy: bool = false;

//! The versions of the public names.
//!
//! Programs and NCCL ask for a name with its version (`dlvsym`). Private names have none, which satisfies any.

use std::arch::global_asm;

/// Puts names into a version node, as the default of their names.
macro_rules! versions {
    ($($version:literal: $($name:ident)*;)*) => {
        $($(global_asm!(concat!(
            ".symver ", stringify!($name), ", ", stringify!($name), "@@IBVERBS_", $version
        ));)*)*
    };
}

versions! {
    "1.0": ibv_create_comp_channel ibv_destroy_comp_channel ibv_get_sysfs_path ibv_read_sysfs_file
        ibv_rate_to_mult mult_to_ibv_rate ibv_copy_path_rec_from_kern ibv_copy_path_rec_to_kern
        ibv_copy_qp_attr_from_kern;
    "1.1": ibv_ack_async_event ibv_ack_cq_events ibv_alloc_pd ibv_attach_mcast ibv_close_device
        ibv_copy_ah_attr_from_kern ibv_create_ah ibv_create_ah_from_wc ibv_create_cq ibv_create_qp
        ibv_create_srq ibv_dealloc_pd ibv_dereg_mr ibv_destroy_ah ibv_destroy_cq ibv_destroy_qp
        ibv_destroy_srq ibv_detach_mcast ibv_dofork_range ibv_dontfork_range ibv_event_type_str ibv_fork_init
        ibv_free_device_list ibv_get_async_event ibv_get_cq_event ibv_get_device_guid ibv_get_device_list
        ibv_get_device_name ibv_init_ah_from_wc ibv_modify_qp ibv_modify_srq ibv_node_type_str ibv_open_device
        ibv_port_state_str ibv_query_device ibv_query_gid ibv_query_pkey ibv_query_port ibv_query_qp
        ibv_query_srq ibv_rate_to_mbps ibv_reg_mr ibv_rereg_mr ibv_resize_cq ibv_resolve_eth_l2_from_gid
        ibv_wc_status_str mbps_to_ibv_rate ibv_register_driver;
    "1.5": ibv_get_pkey_index;
    "1.6": ibv_qp_to_qp_ex;
    "1.7": ibv_reg_mr_iova;
    "1.8": ibv_reg_mr_iova2;
    "1.9": ibv_get_device_index;
    "1.10": ibv_query_ece ibv_set_ece ibv_import_device ibv_import_mr ibv_import_pd ibv_unimport_mr
        ibv_unimport_pd;
    "1.11": _ibv_query_gid_ex _ibv_query_gid_table;
    "1.12": ibv_reg_dmabuf_mr;
    "1.13": ibv_import_dm ibv_unimport_dm ibv_is_fork_initialized;
    "1.14": ibv_query_qp_data_in_order;
}

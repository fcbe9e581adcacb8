//! What goes wrong on a cluster while bytes move, and requests that must be refused.
//!
//! All faults share one cluster, in the order of the table. `WEFT_E2E_SEED=7` draws other moments.

mod copies;
mod disk;
mod identity;
mod objects;
mod programs;
mod refusals;
mod release;
mod store;
mod turns;

use std::any::type_name_of_val;
use std::sync::Arc;

use libtest_mimic::Trial;
use weft_sim::draw::Draw;

use crate::harness::Harness;
use crate::test_cluster::{Shared, share};

const SEED_VARIABLE: &str = "WEFT_E2E_SEED";

/// One test for each fault. The order matters: the last ones uninstall the chart.
pub(crate) fn trials(shared: &Shared) -> Vec<Trial> {
    let seed = std::env::var(SEED_VARIABLE).map_or(1, |text| {
        text.parse()
            .unwrap_or_else(|_| panic!("{SEED_VARIABLE}={text} is not a number"))
    });
    let mut trials = Vec::new();
    let mut add = |play: fn(&mut Harness), path: &str| {
        let (_, name) = path.rsplit_once("::").unwrap_or_default();
        let (shared, number) = (Arc::clone(shared), trials.len() as u64);
        trials.push(Trial::test(name, move || {
            share(&shared, Harness::new, |harness| {
                harness.clear();
                harness.draw = Draw::new(seed, number);
                play(harness);
            });
            Ok(())
        }));
    };
    add(
        programs::a_job_completes_when_the_leading_operator_is_killed,
        type_name_of_val(&programs::a_job_completes_when_the_leading_operator_is_killed),
    );
    add(
        programs::a_job_completes_when_the_agent_of_its_source_is_deleted,
        type_name_of_val(&programs::a_job_completes_when_the_agent_of_its_source_is_deleted),
    );
    add(
        programs::a_job_completes_when_the_agent_of_its_relay_is_deleted,
        type_name_of_val(&programs::a_job_completes_when_the_agent_of_its_relay_is_deleted),
    );
    add(
        programs::a_job_completes_when_the_agent_of_a_destination_is_deleted,
        type_name_of_val(&programs::a_job_completes_when_the_agent_of_a_destination_is_deleted),
    );
    add(
        programs::a_job_completes_when_a_kubelet_is_killed,
        type_name_of_val(&programs::a_job_completes_when_a_kubelet_is_killed),
    );
    add(
        programs::a_job_completes_when_the_api_server_is_away_for_20_s,
        type_name_of_val(&programs::a_job_completes_when_the_api_server_is_away_for_20_s),
    );
    add(
        programs::a_job_completes_when_etcd_is_restarted,
        type_name_of_val(&programs::a_job_completes_when_etcd_is_restarted),
    );
    add(
        objects::a_job_deleted_while_bytes_move_leaves_no_file,
        type_name_of_val(&objects::a_job_deleted_while_bytes_move_leaves_no_file),
    );
    add(
        refusals::an_edit_of_an_immutable_field_is_refused_and_the_job_completes,
        type_name_of_val(&refusals::an_edit_of_an_immutable_field_is_refused_and_the_job_completes),
    );
    add(
        objects::a_namespace_deleted_while_bytes_move_leaves_no_file,
        type_name_of_val(&objects::a_namespace_deleted_while_bytes_move_leaves_no_file),
    );
    add(
        objects::a_job_whose_selector_matches_no_node_waits_for_one,
        type_name_of_val(&objects::a_job_whose_selector_matches_no_node_waits_for_one),
    );
    add(
        objects::a_node_that_joins_while_bytes_move_gets_its_copy,
        type_name_of_val(&objects::a_node_that_joins_while_bytes_move_gets_its_copy),
    );
    add(
        objects::a_job_to_a_node_outside_the_fabric_waits_until_the_node_joins,
        type_name_of_val(&objects::a_job_to_a_node_outside_the_fabric_waits_until_the_node_joins),
    );
    add(
        copies::files_are_deleted_with_the_last_job_that_holds_the_copy,
        type_name_of_val(&copies::files_are_deleted_with_the_last_job_that_holds_the_copy),
    );
    add(
        copies::the_node_of_the_source_can_be_a_destination,
        type_name_of_val(&copies::the_node_of_the_source_can_be_a_destination),
    );
    add(
        objects::of_two_jobs_with_one_destination_the_second_waits_and_then_replaces_the_copy,
        type_name_of_val(
            &objects::of_two_jobs_with_one_destination_the_second_waits_and_then_replaces_the_copy,
        ),
    );
    add(
        turns::under_a_cap_the_job_of_one_namespace_does_not_wait_for_all_jobs_of_another,
        type_name_of_val(
            &turns::under_a_cap_the_job_of_one_namespace_does_not_wait_for_all_jobs_of_another,
        ),
    );
    add(
        disk::a_tenant_who_would_fill_a_node_is_stopped_at_its_quota_and_hinders_nobody,
        type_name_of_val(
            &disk::a_tenant_who_would_fill_a_node_is_stopped_at_its_quota_and_hinders_nobody,
        ),
    );
    add(
        objects::a_second_fabric_with_the_same_nodes_is_conflicting,
        type_name_of_val(&objects::a_second_fabric_with_the_same_nodes_is_conflicting),
    );
    add(
        refusals::a_shared_root_needs_a_permission,
        type_name_of_val(&refusals::a_shared_root_needs_a_permission),
    );
    add(
        store::a_job_waits_until_the_operator_may_read_its_secret,
        type_name_of_val(&store::a_job_waits_until_the_operator_may_read_its_secret),
    );
    add(
        refusals::a_path_that_leaves_its_root_is_refused,
        type_name_of_val(&refusals::a_path_that_leaves_its_root_is_refused),
    );
    add(
        refusals::a_job_cannot_read_the_files_of_another_namespace,
        type_name_of_val(&refusals::a_job_cannot_read_the_files_of_another_namespace),
    );
    add(
        identity::a_stolen_node_certificate_commands_no_agent_and_is_reported,
        type_name_of_val(&identity::a_stolen_node_certificate_commands_no_agent_and_is_reported),
    );
    add(
        identity::a_node_whose_clock_is_ten_minutes_off_still_takes_part,
        type_name_of_val(&identity::a_node_whose_clock_is_ten_minutes_off_still_takes_part),
    );
    add(
        identity::a_leader_cut_off_from_the_cluster_can_no_longer_command_agents,
        type_name_of_val(&identity::a_leader_cut_off_from_the_cluster_can_no_longer_command_agents),
    );
    add(
        identity::the_certificate_authority_is_rotated_while_bytes_move,
        type_name_of_val(&identity::the_certificate_authority_is_rotated_while_bytes_move),
    );
    add(
        objects::a_deleted_authority_secret_is_restored_or_replaced,
        type_name_of_val(&objects::a_deleted_authority_secret_is_restored_or_replaced),
    );
    add(
        release::a_job_completes_during_helm_upgrade,
        type_name_of_val(&release::a_job_completes_during_helm_upgrade),
    );
    add(
        release::a_job_completes_while_the_definitions_are_upgraded,
        type_name_of_val(&release::a_job_completes_while_the_definitions_are_upgraded),
    );
    add(
        release::a_job_goes_on_after_helm_uninstall_and_install,
        type_name_of_val(&release::a_job_goes_on_after_helm_uninstall_and_install),
    );
    trials
}

//! Weft on a real cluster, from `helm install` on. `make e2e` runs it; it needs root and the programs
//! of `hack/cluster-binaries.sh`.
//!
//! Each test has a cluster of its own and takes it through many steps, each a function: a cluster
//! takes longer to bring up than most of them.

// The steps are beside the `#[test]` functions, so clippy does not see that they are tests.
#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr)]

mod account;
mod caller;
#[path = "../../../node-agent/tests/agents/eventually.rs"]
mod eventually;
mod faults;
mod install;
mod journey;
mod lent;
mod plugin;
mod stage;
mod tree;

use weft_tests::cluster::Settings;

use crate::lent::Lent;

#[test]
fn from_helm_install_to_a_verified_copy_and_to_helm_uninstall() {
    let lent = Lent::up(&Settings::default());
    let files = tree::model();
    install::helm_install(&lent);
    install::a_fabric_becomes_ready(&lent, &install::fabric());
    account::nodes_are_changed_in_weft_dev_only(&lent);
    account::daemonsets_run_the_charts_agents_only(&lent);
    install::roots_are_where_the_chart_allows_them(&lent);
    install::agents_need_the_namespaces_label(&lent);
    install::helm_test_finds_it_well(&lent);
    plugin::a_doctor_finds_every_pair_reached_by_large_packets_and_small(&lent);
    journey::a_pod_waits_for_the_model(&lent);
    journey::a_directory_of_files_reaches_all_nodes(&lent, &files);
    journey::the_pod_runs_where_the_model_is(&lent, &files);
    journey::the_columns_say_how_it_went(&lent);
    journey::the_events_are_its_transitions(&lent);
    journey::describe_shows_plan_destinations_and_digest(&lent, &files);
    plugin::a_plan_says_who_would_send_or_what_is_in_the_way_and_makes_nothing(&lent, &files);
    plugin::a_status_is_shown_to_who_may_see_the_job_and_to_nobody_else(&lent);
    journey::a_node_that_loses_a_file_loses_the_label(&lent, &files);
    journey::a_deleted_job_is_gone_and_its_files_stay(&lent, &files);
    install::another_configuration_of_the_fabric_replaces_the_pods(&lent);
    install::helm_uninstall_leaves_nothing_that_does_not_end(&lent);
}

#[test]
fn what_goes_wrong_while_bytes_move() {
    faults::play_all();
}

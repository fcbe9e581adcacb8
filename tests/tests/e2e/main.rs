//! Weft on a real cluster, from `helm install` on. `make e2e` runs it; it needs root and the programs
//! of `hack/cluster-binaries.sh`.
//!
//! The journey has a cluster of its own. The trials of devices share another one, and so do all faults, one after the
//! other, because a cluster takes longer to bring up than most of them last.

// The steps are beside the `#[test]` functions, so clippy does not see that they are tests.
#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr)]

mod account;
mod caller;
mod devices;
#[path = "../../../node-agent/tests/agents/eventually.rs"]
mod eventually;
mod faults;
mod harness;
mod install;
mod journey;
mod plugin;
mod test_cluster;
mod tree;
mod volumes;

use libtest_mimic::{Arguments, Trial};
use weft_cluster::Settings;

use crate::test_cluster::{Shared, TestCluster};

fn main() {
    let mut arguments = Arguments::from_args();
    // Trials share a cluster, and a cluster is work enough for two cores.
    arguments.test_threads = Some(1);
    let journey = "from_helm_install_to_a_verified_copy_and_to_helm_uninstall";
    let mut trials = vec![Trial::test(journey, || {
        from_helm_install_to_a_verified_copy_and_to_helm_uninstall();
        Ok(())
    })];
    let shared = Shared::default();
    trials.extend(devices::trials(&shared));
    trials.extend(faults::trials(&shared));
    let conclusion = libtest_mimic::run(&arguments, trials);
    drop(shared);
    conclusion.exit();
}

fn from_helm_install_to_a_verified_copy_and_to_helm_uninstall() {
    let cluster = TestCluster::up(&Settings::default());
    let files = tree::model();
    install::helm_install(&cluster);
    install::a_fabric_becomes_ready(&cluster, &install::fabric());
    account::nodes_are_changed_in_weft_dev_only(&cluster);
    account::of_a_fabric_the_finalizers_are_changed_only(&cluster);
    account::daemonsets_run_the_charts_agents_only(&cluster);
    install::roots_are_where_the_chart_allows_them(&cluster);
    install::two_managers_have_roots_of_their_own(&cluster);
    install::agents_need_the_namespaces_label(&cluster);
    install::helm_test_finds_it_well(&cluster);
    plugin::a_doctor_finds_every_pair_reached(&cluster, &["udp", "tcp"]);
    journey::a_pod_waits_for_the_model(&cluster);
    journey::a_directory_of_files_reaches_all_nodes(&cluster, &files);
    journey::the_pod_runs_where_the_model_is(&cluster, &files);
    journey::the_columns_say_how_it_went(&cluster);
    journey::the_events_are_its_transitions(&cluster);
    journey::describe_shows_plan_destinations_and_digest(&cluster, &files);
    plugin::a_plan_says_who_would_send_or_what_is_in_the_way_and_makes_nothing(&cluster, &files);
    plugin::a_status_is_shown_to_who_may_see_the_job_and_to_nobody_else(&cluster);
    plugin::top_shows_every_node_and_a_bundle_has_all_there_is_to_read(&cluster);
    journey::a_node_that_loses_a_file_loses_the_label(&cluster, &files);
    journey::a_deleted_job_is_gone_and_its_files_stay(&cluster, &files);
    install::another_configuration_of_the_fabric_replaces_the_pods(&cluster);
    plugin::a_doctor_finds_every_pair_reached(&cluster, &["tcp"]);
    journey::a_job_moves_over_tcp(&cluster, &files);
    install::helm_uninstall_leaves_nothing_that_does_not_end(&cluster);
    journey::the_labels_are_back_after_a_new_installation(&cluster, &files);
}

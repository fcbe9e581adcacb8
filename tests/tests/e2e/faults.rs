//! What goes wrong on a cluster while bytes move, and what is asked for that cannot be.
//!
//! `WEFT_E2E_SEED=7` draws other moments; `WEFT_E2E_ONLY=etcd` plays only the faults with that in
//! their name.

mod copies;
mod identity;
mod objects;
mod programs;
mod refusals;
mod release;
mod store;
mod turns;

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::stage::Stage;

const SEED_VARIABLE: &str = "WEFT_E2E_SEED";
const ONLY_VARIABLE: &str = "WEFT_E2E_ONLY";

type Fault = (&'static str, fn(&mut Stage));

/// In an order in which none is in the next one's way; the last ones uninstall the chart.
const FAULTS: &[Fault] = &[
    ("operator killed", programs::operator_killed),
    (
        "agent of the source deleted",
        programs::agent_of_the_source_deleted,
    ),
    (
        "agent of the relay deleted",
        programs::agent_of_the_relay_deleted,
    ),
    (
        "agent of a destination deleted",
        programs::agent_of_a_destination_deleted,
    ),
    ("kubelet killed", programs::kubelet_killed),
    ("API server away for 20 s", programs::api_server_away),
    ("etcd restarted", programs::etcd_restarted),
    ("job deleted", objects::job_deleted),
    ("spec edited", refusals::spec_edited),
    ("namespace deleted", objects::namespace_deleted),
    (
        "selector that matches nothing",
        objects::selector_that_matches_nothing,
    ),
    ("late joiner", objects::late_joiner),
    ("node outside the fabric", objects::node_outside_the_fabric),
    ("copies go with their job", copies::copies_go_with_their_job),
    (
        "copy on the source's node",
        copies::the_sources_node_makes_its_own_copy,
    ),
    (
        "two jobs, one destination",
        objects::two_jobs_one_destination,
    ),
    (
        "jobs take turns under a cap",
        turns::jobs_take_turns_under_a_cap,
    ),
    ("node in two fabrics", objects::node_in_two_fabrics),
    (
        "Shared root without permission",
        refusals::shared_root_without_permission,
    ),
    (
        "Secret without permission",
        store::secret_without_permission,
    ),
    ("path traversal", refusals::path_traversal),
    ("another tenant's files", refusals::another_tenants_files),
    ("stolen certificate", identity::stolen_certificate),
    ("clock of a node", identity::clock_of_a_node_is_off),
    ("replicas partitioned", identity::replicas_partitioned),
    ("authority rotated", identity::authority_rotated),
    ("CA Secret deleted", objects::ca_secret_deleted),
    ("helm upgrade", release::helm_upgrade),
    ("definitions upgraded", release::definitions_upgraded),
    ("helm uninstall", release::helm_uninstall),
];

pub(crate) fn play_all() {
    let number = |text: String| {
        text.parse()
            .unwrap_or_else(|_| panic!("{SEED_VARIABLE}={text}"))
    };
    let seed = std::env::var(SEED_VARIABLE).map_or(1, number);
    let only = std::env::var(ONLY_VARIABLE).unwrap_or_default();
    println!("seed {seed}");
    let mut stage = Stage::set(seed);
    let mut failed = Vec::new();
    let chosen = || FAULTS.iter().filter(|(name, _)| name.contains(&only));
    assert!(
        chosen().next().is_some(),
        "{ONLY_VARIABLE}={only} names no fault"
    );
    for (name, play) in chosen() {
        println!("{name}");
        if catch_unwind(AssertUnwindSafe(|| play(&mut stage))).is_err() {
            failed.push(*name);
        }
    }
    assert!(
        failed.is_empty(),
        "{failed:?}; again: {SEED_VARIABLE}={seed}"
    );
}

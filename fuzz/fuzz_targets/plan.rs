//! What a user writes for `weft plan`: a request and a topology as JSON.
//!
//! Any text gives a plan or an error, never a panic; a plan reaches every destination exactly once,
//! and no node sends before it receives.
#![no_main]

use std::collections::BTreeSet;

use libfuzzer_sys::{Corpus, fuzz_target};
use serde::Deserialize;
use weft_planner::{Manifest, Request, Topology, plan};

#[derive(Deserialize)]
struct Input {
    #[serde(default)]
    manifest: Manifest,
    request: Request,
    topology: Topology,
}

fuzz_target!(|bytes: &[u8]| -> Corpus {
    let Ok(input) = serde_json::from_slice::<Input>(bytes) else {
        return Corpus::Reject;
    };
    if let Err(error) = input.manifest.validate() {
        assert!(!error.reason().is_empty());
    }
    let plan = match plan(&input.request, &input.topology) {
        Ok(plan) => plan,
        Err(error) => {
            assert!(!error.reason().is_empty());
            return Corpus::Keep;
        }
    };

    let mut reached = BTreeSet::new();
    for part in &plan.assignments {
        match &part.receives_from {
            None => assert_eq!(part.node, input.request.source),
            Some(sender) => assert!(reached.contains(sender), "{sender} sends before it has it"),
        }
        assert!(reached.insert(part.node.clone()), "{} is reached twice", part.node);
    }
    let wanted = input.request.destinations.iter().chain([&input.request.source]);
    assert_eq!(reached, wanted.cloned().collect());
    assert!(plan.estimate_seconds.is_finite() && plan.estimate_seconds >= 0.0);
    Corpus::Keep
});

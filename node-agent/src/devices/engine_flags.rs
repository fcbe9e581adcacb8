//! Whether the engine runs with the flags that the agent has written for it. An engine reads its file when it starts only, and the
//! agent neither stops nor starts it.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::MissedTickBehavior;
use tonic::transport::Channel;
use weft_proto::engine::v1::GetFlagsRequest;
use weft_proto::engine::v1::engine_client::EngineClient;

use crate::fail_fast;

/// How often the engine is asked.
const ASK_INTERVAL: Duration = Duration::from_secs(2);
/// With another value of these, or fewer open devices, an engine does not go on with connections of the one before it.
const OF_CONNECTIONS: [&str; 7] = [
    "--address",
    "--first-port",
    "--ports",
    "--open-devices",
    "--mtu",
    "--paths",
    "--encryption",
];

/// The flags, by name, of which the engine has another value than its file. None where the engine does not say.
#[derive(Debug, Clone, Default)]
pub(crate) struct EngineFlags(Arc<Mutex<BTreeSet<String>>>);

impl EngineFlags {
    /// What is wrong, and what to do.
    pub(crate) fn problem(&self) -> Option<String> {
        let outdated = fail_fast::lock(&self.0);
        (!outdated.is_empty()).then(|| message(&outdated))
    }

    /// Compares them for ever. An engine that is away, or of an earlier release, says nothing.
    pub(crate) async fn follow(self, mut engine: EngineClient<Channel>, file: PathBuf) {
        let mut ticks = tokio::time::interval(ASK_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let found = match engine.get_flags(GetFlagsRequest {}).await {
                Ok(running) => {
                    let running = running.into_inner().flags;
                    let written = tokio::fs::read_to_string(&file).await;
                    written.map_or_else(|_| BTreeSet::new(), |text| outdated(&running, &text))
                }
                Err(status) => {
                    tracing::debug!("the engine's flags are not known: {status}");
                    BTreeSet::new()
                }
            };
            *fail_fast::lock(&self.0) = found;
        }
    }
}

fn outdated(running: &[String], written: &str) -> BTreeSet<String> {
    let running: BTreeSet<&str> = running.iter().map(String::as_str).collect();
    let written: BTreeSet<&str> = written.lines().collect();
    let differing = running.symmetric_difference(&written);
    let names = differing.filter_map(|flag| flag.split('=').next());
    names.map(str::to_owned).collect()
}

fn message(outdated: &BTreeSet<String>) -> String {
    let names: Vec<&str> = outdated.iter().map(String::as_str).collect();
    let effect = match names.iter().any(|name| OF_CONNECTIONS.contains(name)) {
        true => "connections of its programs may end",
        false => "its programs go on after a pause",
    };
    format!(
        "the node's weft-engine was started before these flags changed, and runs with the earlier ones: {}; delete the node's \
         weft-engine pod: {effect}",
        names.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(running: &[&str], written: &str) -> Option<String> {
        let running: Vec<String> = running.iter().map(|flag| (*flag).to_owned()).collect();
        let flags = EngineFlags::default();
        *fail_fast::lock(&flags.0) = outdated(&running, written);
        flags.problem()
    }

    #[test]
    fn flags_that_differ_are_named_with_what_another_engine_does_to_programs() {
        let running = ["--mtu=1500", "--encryption=off", "--dscp=0"];
        let same = "--mtu=1500\n--encryption=off\n--dscp=0\n";
        assert_eq!(problem(&running, same), None);
        let encrypted = "--mtu=1500\n--encryption=required\n--dscp=46\n";
        let told = problem(&running, encrypted).unwrap();
        assert!(told.contains(": --dscp, --encryption; delete"), "{told}");
        assert!(told.ends_with("connections of its programs may end"));
        // One that the fabric has no more, and one that it has now.
        let gone = "--mtu=1500\n--encryption=off\n--link-bps=2000000\n";
        let told = problem(&running, gone).unwrap();
        assert!(told.contains(": --dscp, --link-bps; delete"), "{told}");
        assert!(told.ends_with("its programs go on after a pause"));
    }
}

//! A plan for people.

use std::fmt;

use weft_fabric::quantity;
use weft_planner::{Plan, Seconds};

use crate::columns::columns;

/// The table lists this many links, so that it fits a screen; `--json` has all.
const LINKS_SHOWN: usize = 24;

/// The plan for people.
pub struct Table<'a>(pub &'a Plan);

impl fmt::Display for Table<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plan = self.0;
        let destinations = plan.assignments.len() - 1;
        let nodes = if destinations == 1 { "node" } else { "nodes" };
        let estimate = Seconds(plan.estimate_seconds);
        let bottleneck = &plan.bottleneck;
        writeln!(f, "strategy    {}", plan.strategy)?;
        writeln!(f, "why         {}", plan.why)?;
        writeln!(
            f,
            "data        {} to {destinations} {nodes}, in blocks of {}",
            quantity::bytes(plan.bytes),
            quantity::bytes(plan.block_bytes),
        )?;
        write!(f, "estimate    {estimate}")?;
        if plan.bytes > 0 {
            let per_second = plan.bytes as f64 / plan.estimate_seconds;
            write!(f, ", {}/s to each", quantity::bytes(per_second as u64))?;
        }
        writeln!(f)?;
        writeln!(
            f,
            "bottleneck  {}: {} at {} take {}",
            bottleneck.name,
            quantity::bytes(bottleneck.bytes),
            quantity::rate(bottleneck.rate_bps),
            Seconds(bottleneck.seconds),
        )?;

        let or_dash = |text: String| {
            if text.is_empty() {
                "-".to_owned()
            } else {
                text
            }
        };
        let parts = plan.assignments.iter().map(|part| {
            vec![
                part.node.clone(),
                or_dash(part.receives_from.clone().unwrap_or_default()),
                part.depth.to_string(),
                or_dash(part.sends_to.join(", ")),
            ]
        });
        writeln!(f)?;
        let parts: Vec<_> = parts.collect();
        columns(f, &["node", "receives from", "hops", "sends to"], &parts)?;

        let links = plan.links.iter().take(LINKS_SHOWN).map(|link| {
            vec![
                link.name.clone(),
                quantity::bytes(link.bytes),
                quantity::rate(link.rate_bps),
                Seconds(link.seconds).to_string(),
            ]
        });
        writeln!(f)?;
        columns(
            f,
            &["link", "payload", "line rate", "time"],
            &links.collect::<Vec<_>>(),
        )?;
        match plan.links.len().saturating_sub(LINKS_SHOWN) {
            0 => Ok(()),
            more => writeln!(f, "and {more} links that take no longer; --json has all"),
        }
    }
}

//! The document: head, landmarks, and what surrounds the part that changes.

use maud::{DOCTYPE, PreEscaped, html};
use time::{OffsetDateTime, format_description::well_known::Rfc3339, macros::format_description};

use crate::{
    Fabric, Phase, View, drawing,
    fabric::Node,
    tables,
    units::{count, percent},
};

const STYLE: &str = include_str!("style.css");
const SCRIPT: &str = include_str!("script.js");

/// The headers of the document. The hashes are of the style and the script in it: a test says when they must change.
pub const HEADERS: [(&str, &str); 5] = [
    ("content-type", "text/html; charset=utf-8"),
    (
        "content-security-policy",
        "default-src 'none'; style-src 'sha256-tmSV+/XIJZAP9+tRq0AFC/25Ui2kkpkOXSgohyHI3Ts='; \
         script-src 'sha256-JhCe5fNpDgrHdyDpJLl94uPMdoMux21BdmfUwL+KV2g='; connect-src 'self'; \
         img-src data:; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    ),
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
    ("cache-control", "no-store"),
];

/// Seconds after which a browser without scripts loads the page again.
const RELOAD_SECONDS: u32 = 10;

/// The whole document. Events are looked for at `events` beside it, with the same query.
pub fn render(fabric: &Fabric, view: &View) -> String {
    let query = view.query();
    let document = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { "Fabric " (fabric.name) " – Weft" }
                // An icon would be one more request.
                link rel="icon" href="data:,";
                style { (PreEscaped(STYLE)) }
                noscript { meta http-equiv="refresh" content=(RELOAD_SECONDS); }
            }
            body {
                a .skip href="#jobs" { "Skip to the jobs" }
                header {
                    h1 { "Fabric " bdi { (fabric.name) } }
                    p #live role="status" { "As of the time below" }
                    button #pause type="button" hidden { "Pause updates" }
                    a href=(if query.is_empty() { "?" } else { &query }) { "Reload" }
                    (filter(fabric, view))
                }
                p #said role="status" aria-live="polite" { (news(fabric)) }
                main #fabric data-events=(format!("events{query}")) { (PreEscaped(fragments(fabric, view))) }
                footer { p { "Weft. This page only shows; it changes nothing." } }
                script { (PreEscaped(SCRIPT)) }
            }
        }
    };
    document.into_string()
}

/// What changes: the content of `main`.
pub fn fragments(fabric: &Fabric, view: &View) -> String {
    let fragments = html! {
        (overview(fabric))
        (drawing::drawing(fabric))
        (tables::findings(fabric))
        (tables::jobs(fabric, view))
        (tables::nodes(fabric))
        (tables::links(fabric))
        (tables::pairs(fabric))
    };
    fragments.into_string()
}

fn filter(fabric: &Fabric, view: &View) -> maud::Markup {
    let namespaces: std::collections::BTreeSet<&str> = fabric
        .jobs
        .iter()
        .map(|job| &*job.namespace)
        .chain(view.namespace.as_deref())
        .filter(|namespace| !namespace.is_empty())
        .collect();
    html! {
        @if !namespaces.is_empty() {
            form method="get" role="search" aria-label="Jobs" {
                label for="namespace" { "Jobs of namespace" }
                select #namespace name="namespace" {
                    option value="" selected[view.namespace.is_none()] { "all" }
                    @for namespace in namespaces {
                        option value=(namespace) selected[view.namespace.as_deref() == Some(namespace)] { (namespace) }
                    }
                }
                @if view.all_jobs { input type="hidden" name="jobs" value="all"; }
                button type="submit" { "Show" }
            }
        }
    }
}

fn overview(fabric: &Fabric) -> maud::Markup {
    // Of the nodes of which it is known. A node may report anything: a sum has an end.
    let sum = |of: fn(&Node) -> Option<u64>| {
        let known = fabric.nodes().filter_map(|(_, node)| of(node));
        known.reduce(u64::saturating_add)
    };
    let of_devices = |of: fn(crate::Devices) -> u32| -> u64 {
        let devices = fabric.nodes().filter_map(|(_, node)| node.devices);
        devices.map(|devices| u64::from(of(devices))).sum()
    };
    let (ready, all) = ready(fabric);
    let total = of_devices(|devices| devices.total);
    let at = OffsetDateTime::from(fabric.at);
    // Both fail for years of more than four digits only.
    let exact = at.format(&Rfc3339).unwrap_or_default();
    let clock = format_description!("[hour]:[minute]:[second] UTC");
    let shown = at.format(clock).unwrap_or_default();
    html! {
        section aria-labelledby="overview-title" {
            h2 #overview-title { "Overview" }
            // What the status line above says, when it has changed.
            p #news hidden { (news(fabric)) }
            dl .figures {
                div { dt { "Figures of" } dd { time #at datetime=(exact) { (shown) } } }
                div { dt { "Nodes ready" } dd { (ready) " of " (all) } }
                div { dt { "Jobs under way" } dd { (under_way(fabric).count()) " of " (fabric.jobs.len()) (hidden(fabric)) } }
                div { dt { "Received" } dd { @match sum(|node| node.receives) { Some(rate) => { (crate::units::Bytes(rate)) "/s" }, None => { "–" } } } }
                div { dt { "Paths down" } dd { @match sum(|node| node.paths_down.map(u64::from)) { Some(paths) => { (paths) }, None => { "–" } } } }
                @if total > 0 {
                    div {
                        dt { "Devices in use" }
                        dd {
                            (of_devices(|devices| devices.in_use)) " of " (total)
                            @let unhealthy = of_devices(|devices| devices.unhealthy);
                            @if unhealthy > 0 { ", " (unhealthy) " unhealthy" }
                        }
                    }
                }
                div { dt { "Findings" } dd { (count_findings(fabric)) } }
            }
            @for note in &fabric.notes { p { bdi { (note) } } }
        }
    }
}

/// What is said behind a number of jobs.
fn hidden(fabric: &Fabric) -> String {
    match fabric.hidden_jobs {
        0 => String::new(),
        jobs => format!(", {} not shown", count(jobs, "job")),
    }
}

fn ready(fabric: &Fabric) -> (usize, usize) {
    let is_ready = |(_, node): &(_, &Node)| node.state == crate::NodeState::Ready;
    (
        fabric.nodes().filter(is_ready).count(),
        fabric.nodes().count(),
    )
}

fn under_way(fabric: &Fabric) -> impl Iterator<Item = &crate::Job> {
    fabric.jobs.iter().filter(|job| job.phase.is_under_way())
}

fn count_findings(fabric: &Fabric) -> usize {
    let of_nodes = fabric.nodes().map(|(_, node)| node.findings.len());
    fabric.findings.len() + of_nodes.sum::<usize>()
}

/// The state in one sentence. Screen readers say it again whenever it changes, so progress is in tens.
fn news(fabric: &Fabric) -> String {
    let (ready, all) = ready(fabric);
    let is = |phase| fabric.jobs.iter().filter(move |job| job.phase == phase);
    let (complete, failed) = (is(Phase::Complete).count(), is(Phase::Failed).count());
    let mut text = format!(
        "{ready} of {all} nodes ready. {} under way",
        count(under_way(fabric).count(), "job")
    );
    let (done, total) = under_way(fabric)
        .filter_map(|job| Some((job.done, job.total?)))
        .fold((0, 0), |(done, total): (u64, u64), (more, of)| {
            (done.saturating_add(more), total.saturating_add(of))
        });
    if total > 0 {
        let tens = percent(done as f64 / total as f64) / 10 * 10;
        text += &format!(" ({tens} % verified)");
    }
    text + &format!(
        ", {complete} complete, {failed} failed{}. {}.",
        hidden(fabric),
        count(count_findings(fabric), "finding")
    )
}

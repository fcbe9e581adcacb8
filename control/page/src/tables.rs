//! The tables. They say all that the drawing shows, in words.

use maud::{Markup, html};

use crate::{
    Destination, Fabric, Finding, HeatScale, JOBS_SHOWN, Job, NodeState, Pair, View,
    drawing::{Uplinks, heat_class},
    units::{Bytes, Rtt, count, percent},
};

/// Destinations of a job that are named.
const DESTINATIONS_SHOWN: usize = 4;
/// Pairs of nodes in the table.
const PAIRS_SHOWN: usize = 20;
/// Nodes in the table: 1,000 have some 400 KB.
const NODES_SHOWN: usize = 1_000;
/// Findings in the table.
const FINDINGS_SHOWN: usize = 50;

/// A section with one table, which scrolls by itself where it is wider than the page.
fn section(id: &str, title: &str, table: &Markup) -> Markup {
    html! {
        section aria-labelledby=(format!("{id}-title")) {
            h2 id=(format!("{id}-title")) { (title) }
            div .scroll id=(id) tabindex="0" role="region" aria-labelledby=(format!("{id}-title")) { (table) }
        }
    }
}

pub(crate) fn findings(fabric: &Fabric) -> Markup {
    let own = fabric
        .findings
        .iter()
        .map(|finding| (&*fabric.name, finding));
    let of_nodes = fabric.nodes().flat_map(|(_, node)| {
        node.findings
            .iter()
            .map(move |finding| (&*node.name, finding))
    });
    let all: Vec<(&str, &Finding)> = own.chain(of_nodes).collect();
    if all.is_empty() {
        return html! {
            section aria-labelledby="findings-title" { h2 #findings-title { "Findings" } p { "Nothing is wrong." } }
        };
    }
    section(
        "findings",
        "Findings",
        &html! {
            table {
                caption { (count(all.len(), "finding")) ": what is wrong, and what to do" }
                thead { tr { th scope="col" { "About" } th scope="col" { "Problem" } th scope="col" { "What to do" } } }
                tbody {
                    @for (about, finding) in all.iter().take(FINDINGS_SHOWN) {
                        tr {
                            th scope="row" { span .sign aria-hidden="true" { "⚠" } " " bdi { (about) } }
                            td { bdi { (finding.problem) } }
                            td { @if finding.fix.is_empty() { "–" } @else { bdi { (finding.fix) } } }
                        }
                    }
                }
            }
            @if all.len() > FINDINGS_SHOWN { p { (all.len() - FINDINGS_SHOWN) " more." } }
        },
    )
}

pub(crate) fn jobs(fabric: &Fabric, view: &View) -> Markup {
    let is_asked_for = |job: &&Job| {
        view.namespace
            .as_ref()
            .is_none_or(|namespace| job.namespace == *namespace)
    };
    let mut jobs: Vec<&Job> = fabric.jobs.iter().filter(is_asked_for).collect();
    jobs.sort_by_key(|job| (job.phase, &*job.namespace, &*job.name));
    let all = jobs.len();
    if !view.all_jobs {
        jobs.truncate(JOBS_SHOWN);
    }
    let others = all - jobs.len();
    let every = View {
        all_jobs: true,
        ..view.clone()
    };
    let table = html! {
        table {
            caption {
                (jobs.len()) " of " (all) " jobs"
                @if let Some(namespace) = &view.namespace { " of namespace " bdi { (namespace) } }
                ", those under way first"
            }
            thead {
                tr {
                    th scope="col" { "Job" } th scope="col" { "Phase" } th scope="col" { "Progress" }
                    th scope="col" { "Verified" } th scope="col" { "Rate" } th scope="col" { "From → to" }
                    th scope="col" { "Reason" }
                }
            }
            tbody { @for job in jobs { (row(job)) } }
        }
        @if others > 0 {
            p { (others) " more jobs. " a #all-jobs href=(every.query()) { "Show all jobs" } }
        }
    };
    section("jobs", "Jobs", &table)
}

fn row(job: &Job) -> Markup {
    let named = job.to.len().min(DESTINATIONS_SHOWN);
    let unnamed = job.destinations.max(job.to.len()) - named;
    let name = match &*job.namespace {
        "" => job.name.clone(),
        namespace => format!("{namespace}/{}", job.name),
    };
    html! {
        tr {
            th scope="row" { bdi { (name) } }
            td class=(if job.phase == crate::Phase::Failed { "bad" } else { "" }) { (job.phase.name()) }
            td .progress {
                @match job.part_done() {
                    Some(part) => {
                        progress max="100" value=(percent(part)) aria-label=(format!("Verified of {name}")) {}
                        " " (percent(part)) " %"
                    },
                    None => { "–" },
                }
            }
            td .number {
                (Bytes(job.done))
                @if let Some(total) = job.total { " of " (Bytes(total)) }
            }
            td .number { @if job.rate > 0 { (Bytes(job.rate)) "/s" } @else { "–" } }
            td {
                bdi { (job.from) } " → "
                @for (i, destination) in job.to.iter().take(named).enumerate() {
                    @if i > 0 { ", " }
                    (to(destination))
                }
                @if unnamed > 0 { @if named > 0 { " and " } (unnamed) @if named > 0 { " more" } @else { " nodes" } }
            }
            td { @if job.reason.is_empty() { "–" } @else { bdi { (job.reason) } } }
        }
    }
}

fn to(destination: &Destination) -> Markup {
    html! {
        bdi { (destination.node) }
        @match (destination.done, &*destination.state) {
            (_, state @ ("Verified" | "Failed")) => { " (" (state) ")" },
            (Some(done), _) => { " (" (percent(done)) " %)" },
            (None, _) => {},
        }
    }
}

pub(crate) fn nodes(fabric: &Fabric) -> Markup {
    let rate = |rate: Option<u64>| match rate {
        Some(rate) => format!("{}/s", Bytes(rate)),
        None => "–".to_owned(),
    };
    let mut nodes: Vec<_> = fabric.nodes().collect();
    let others = nodes.len().saturating_sub(NODES_SHOWN);
    if others > 0 {
        nodes.sort_by_key(|(_, node)| node.is_well());
        nodes.truncate(NODES_SHOWN);
    }
    let table = html! {
        table {
            caption {
                (count(nodes.len() + others, "node")) ", "
                @if others > 0 { "those with something wrong first" } @else { "by leaf" }
            }
            thead {
                tr {
                    th scope="col" { "Node" } th scope="col" { "Leaf" } th scope="col" { "State" }
                    th scope="col" { "Sends" } th scope="col" { "Receives" } th scope="col" { "Paths down" }
                    th scope="col" { "Largest round trip" } th scope="col" { "Devices in use" }
                    th scope="col" { "Findings" }
                }
            }
            tbody {
                @for (leaf, node) in nodes {
                    @let (sign, word) = node.state.sign_and_word();
                    tr {
                        th scope="row" { bdi { (node.name) } }
                        td { bdi { (leaf.name) } }
                        td class=(if node.state == NodeState::Ready { "" } else { "bad" }) {
                            span .sign .good[node.state == NodeState::Ready] aria-hidden="true" { (sign) } " " (word)
                        }
                        td .number { (rate(node.sends)) }
                        td .number { (rate(node.receives)) }
                        td .number .bad[node.paths_down > Some(0)] { @match node.paths_down { Some(paths) => { (paths) }, None => { "–" } } }
                        td .number { @match node.largest_rtt { Some(rtt) => { (Rtt(rtt)) }, None => { "–" } } }
                        td .number {
                            @match node.devices {
                                Some(devices) => {
                                    (devices.in_use) " of " (devices.total)
                                    @if devices.unhealthy > 0 { ", " (devices.unhealthy) " unhealthy" }
                                },
                                None => { "–" },
                            }
                        }
                        td .number .bad[!node.findings.is_empty()] { (node.findings.len()) }
                    }
                }
            }
        }
        @if others > 0 { p { (others) " more nodes. See: kubectl get fabricnodes" } }
    };
    section("nodes", "Nodes", &table)
}

/// Heat of every link between a leaf and a spine, or of the leaves where there are too many.
pub(crate) fn links(fabric: &Fabric) -> Markup {
    let uplinks = Uplinks::of(fabric);
    if fabric.links.is_empty() {
        return html! {};
    }
    let scale = match fabric.heat_scale {
        HeatScale::LinkRate => "100 % is the link's rate",
        HeatScale::Busiest => "100 % is the busiest link",
    };
    let cell = |leaf: usize, spine: Option<usize>| {
        let link = uplinks.between(leaf, spine);
        let heat = link.and_then(|link| link.heat);
        html! {
            td class=(format!("number {}", heat_class(heat))) {
                @match (link, heat) {
                    (Some(link), Some(heat)) => { (percent(heat)) " %, " (Bytes(link.bytes_per_second)) "/s" },
                    _ => { "–" },
                }
            }
        }
    };
    let table = html! {
        table {
            caption { "Traffic between leaves and spines; " (scale) }
            thead {
                tr {
                    th scope="col" { "Leaf" }
                    @match uplinks.spines {
                        Some(spines) => { @for spine in 0..spines { th scope="col" { "spine" (spine) } } },
                        None => { th scope="col" { "All spines: the busiest link, and all traffic" } },
                    }
                }
            }
            tbody {
                @for (i, leaf) in fabric.leaves.iter().enumerate() {
                    tr {
                        th scope="row" { bdi { (leaf.name) } }
                        @match uplinks.spines {
                            Some(spines) => { @for spine in 0..spines { (cell(i, Some(spine))) } },
                            None => { (cell(i, None)) },
                        }
                    }
                }
            }
        }
    };
    section("links", "Leaves and spines", &table)
}

pub(crate) fn pairs(fabric: &Fabric) -> Markup {
    if fabric.pairs.is_empty() {
        return html! {};
    }
    let mut pairs: Vec<&Pair> = fabric.pairs.iter().collect();
    pairs.sort_by(|a, b| {
        let of = |pair: &Pair| (pair.paths_down, pair.bytes_per_second, pair.largest_rtt);
        of(b)
            .cmp(&of(a))
            .then_with(|| (&a.from, &a.to).cmp(&(&b.from, &b.to)))
    });
    let all = pairs.len();
    pairs.truncate(PAIRS_SHOWN);
    let table = html! {
        table {
            caption { (pairs.len()) " of " (all) " pairs of nodes: those with paths down first, then the busiest" }
            thead {
                tr {
                    th scope="col" { "From" } th scope="col" { "To" } th scope="col" { "Rate" }
                    th scope="col" { "Paths down" } th scope="col" { "Largest round trip" }
                }
            }
            tbody {
                @for pair in pairs {
                    tr {
                        th scope="row" { bdi { (pair.from) } }
                        td { bdi { (pair.to) } }
                        td .number { (Bytes(pair.bytes_per_second)) "/s" }
                        td .number .bad[pair.paths_down > 0] { (pair.paths_down) }
                        td .number { @match pair.largest_rtt { Some(rtt) => { (Rtt(rtt)) }, None => { "–" } } }
                    }
                }
            }
        }
    };
    section("pairs", "Pairs of nodes", &table)
}

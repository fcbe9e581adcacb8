//! The drawing: spines above, leaves below them, the nodes of each leaf below it.
//!
//! Few nodes are boxes with their names, many are squares. Attributes only, no `style`: the page's policy allows none.

use std::collections::BTreeMap;

use maud::{Markup, html};

use crate::{
    Fabric, HeatScale, Job, Leaf, Node, NodeState,
    units::{Bytes, Rtt, count, percent},
};

/// With more nodes, or more leaves, each node is a square.
const BOXES_MAX: usize = 40;
const BOX_LEAVES_MAX: usize = 8;
/// With more spines, or more links, all spines are one.
const SPINES_MAX: usize = 12;
const LINKS_MAX: usize = 160;
/// Findings of a node in its title.
const FINDINGS_NAMED: usize = 3;
/// Arrows from sources to destinations.
const FLOWS_MAX: usize = 60;

/// Of the drawing, unless the leaves need more.
const WIDTH: usize = 1120;
const SPINE_Y: usize = 8;
const SPINE_HEIGHT: usize = 30;
const LEAF_Y: usize = 168;
const LEAF_HEIGHT: usize = 30;
const NODES_Y: usize = LEAF_Y + LEAF_HEIGHT + 14;
const LEAF_GAP: usize = 16;
/// Room for the arrows below the nodes.
const FLOWS_HEIGHT: usize = 64;

/// How nodes are drawn.
#[derive(Clone, Copy)]
struct Shape {
    width: usize,
    height: usize,
    gap: usize,
    is_box: bool,
}

const BOX: Shape = Shape {
    width: 116,
    height: 58,
    gap: 8,
    is_box: true,
};
const SQUARE: Shape = Shape {
    width: 14,
    height: 14,
    gap: 3,
    is_box: false,
};

/// A link as it is drawn.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Uplink {
    /// None where the traffic is not known.
    pub(crate) heat: Option<f64>,
    pub(crate) bytes_per_second: u64,
}

/// The links as they are drawn: each by itself, or those of a leaf as one.
pub(crate) struct Uplinks {
    /// How many spines are told apart; none where all are one.
    pub(crate) spines: Option<usize>,
    links: BTreeMap<(usize, Option<usize>), Uplink>,
}

impl Uplinks {
    pub(crate) fn of(fabric: &Fabric) -> Self {
        let are_few =
            |spines: &usize| *spines <= SPINES_MAX && spines * fabric.leaves.len() <= LINKS_MAX;
        let are_known = |spines: &usize| {
            let mut links = fabric.links.iter();
            links.all(|link| link.spine.is_some_and(|spine| spine < *spines))
        };
        let spines = fabric.spines.filter(are_few).filter(are_known);
        let mut links: BTreeMap<_, Uplink> = BTreeMap::new();
        for link in &fabric.links {
            let one = links
                .entry((link.leaf, link.spine.filter(|_| spines.is_some())))
                .or_default();
            one.heat = Some(one.heat.unwrap_or(0.0).max(link.heat));
            one.bytes_per_second = one.bytes_per_second.saturating_add(link.bytes_per_second);
        }
        Self { spines, links }
    }

    pub(crate) fn between(&self, leaf: usize, spine: Option<usize>) -> Option<Uplink> {
        self.links.get(&(leaf, spine)).copied()
    }
}

/// The class of a heat: five steps, so that the style has them all.
pub(crate) fn heat_class(heat: Option<f64>) -> &'static str {
    match heat {
        None => "unknown",
        Some(heat) => match percent(heat) {
            0 => "heat0",
            1..30 => "heat1",
            30..60 => "heat2",
            60..85 => "heat3",
            _ => "heat4",
        },
    }
}

/// A leaf with its place.
struct Placed<'a> {
    leaf: &'a Leaf,
    x: usize,
    width: usize,
    columns: usize,
}

impl Placed<'_> {
    fn middle(&self) -> usize {
        self.x + self.width / 2
    }

    /// The left upper corner of its `i`-th node.
    fn node(&self, i: usize, shape: Shape) -> (usize, usize) {
        let used = self.columns * (shape.width + shape.gap) - shape.gap;
        let left = self.x + self.width.saturating_sub(used) / 2;
        (
            left + i % self.columns * (shape.width + shape.gap),
            NODES_Y + i / self.columns * (shape.height + shape.gap),
        )
    }
}

fn place(fabric: &Fabric, shape: Shape) -> (Vec<Placed<'_>>, usize) {
    let leaves = fabric.leaves.len().max(1);
    let room = (WIDTH / leaves).saturating_sub(LEAF_GAP);
    let step = shape.width + shape.gap;
    let columns = |leaf: &Leaf| {
        let most = ((room + shape.gap) / step).max(1);
        let nodes = leaf.nodes.len().max(1);
        if shape.is_box {
            return most.min(nodes);
        }
        // About a square.
        let side = (1..=nodes).find(|side| side * side >= nodes).unwrap_or(1);
        side.min(most)
    };
    let mut x = 0;
    let placed = fabric
        .leaves
        .iter()
        .map(|leaf| {
            let columns = columns(leaf);
            let width = room.max(columns * step - shape.gap);
            let placed = Placed {
                leaf,
                x: x + LEAF_GAP / 2,
                width,
                columns,
            };
            x += width + LEAF_GAP;
            placed
        })
        .collect();
    (placed, x.max(WIDTH))
}

pub(crate) fn drawing(fabric: &Fabric) -> Markup {
    let nodes = fabric.nodes().count();
    if nodes == 0 {
        return html! {
            section aria-labelledby="drawing-title" { h2 #drawing-title { "Topology" } p { "No node is known yet." } }
        };
    }
    let is_small = nodes <= BOXES_MAX && fabric.leaves.len() <= BOX_LEAVES_MAX;
    let shape = if is_small { BOX } else { SQUARE };
    let (placed, width) = place(fabric, shape);
    let rows = placed
        .iter()
        .map(|one| one.leaf.nodes.len().div_ceil(one.columns))
        .max()
        .unwrap_or(0);
    let flows = if is_small {
        flows(fabric, &placed)
    } else {
        Vec::new()
    };
    let below = if flows.is_empty() { 8 } else { FLOWS_HEIGHT };
    let height = NODES_Y + rows * (shape.height + shape.gap) + below;
    let uplinks = Uplinks::of(fabric);
    let parts = parts_done(&fabric.jobs);
    let title = format!(
        "Topology of fabric {}: {nodes} nodes at {} leaves, and {} spines. The tables below say the same.",
        fabric.name,
        fabric.leaves.len(),
        fabric
            .spines
            .map_or("an unknown number of".to_owned(), |spines| spines
                .to_string()),
    );
    html! {
        section aria-labelledby="drawing-title" {
            h2 #drawing-title { "Topology" }
            div .scroll #drawing tabindex="0" role="region" aria-labelledby="drawing-title" {
                svg viewBox=(format!("0 0 {width} {height}")) class=(if shape.is_box { "boxes" } else { "squares" }) width=(width) height=(height)
                    role="img" aria-labelledby="svg-title" {
                    title #svg-title { (title) }
                    (links(&placed, &uplinks, width))
                    (spines(fabric, &uplinks, width))
                    @for one in &placed { (leaf(one, shape, &parts)) }
                    @for (path, title) in &flows { path .flow d=(path) { title { (title) } } }
                }
            }
            (legend(fabric, shape))
        }
    }
}

/// Where a spine's middle is.
fn spine_x(spine: usize, spines: usize, width: usize) -> usize {
    width * (2 * spine + 1) / (2 * spines.max(1))
}

fn spines(fabric: &Fabric, uplinks: &Uplinks, width: usize) -> Markup {
    let (count, wide) = match uplinks.spines {
        Some(spines) => (
            spines,
            (width / spines.max(1)).saturating_sub(12).clamp(20, 96),
        ),
        None => (1, 220),
    };
    let text = |i: usize| match (uplinks.spines, fabric.spines) {
        (Some(_), _) => format!("spine{i}"),
        (None, Some(spines)) => format!("{spines} spines"),
        (None, None) => "spines".to_owned(),
    };
    html! {
        @for i in 0..count {
            @let x = spine_x(i, count, width);
            rect .switch x=(x - wide / 2) y=(SPINE_Y) width=(wide) height=(SPINE_HEIGHT) rx="4" {}
            text .name x=(x) y=(SPINE_Y + 20) text-anchor="middle" { (text(i)) }
        }
    }
}

fn links(placed: &[Placed<'_>], uplinks: &Uplinks, width: usize) -> Markup {
    let spines = uplinks.spines.unwrap_or(1);
    html! {
        @for (i, one) in placed.iter().enumerate() {
            @for k in 0..spines {
                @let spine = uplinks.spines.map(|_| k);
                @let link = uplinks.between(i, spine);
                @let heat = link.and_then(|link| link.heat);
                line class=(format!("link {}", heat_class(heat)))
                    x1=(spine_x(k, spines, width)) y1=(SPINE_Y + SPINE_HEIGHT) x2=(one.middle()) y2=(LEAF_Y) {
                    title {
                        (one.leaf.name) " – " @match spine { Some(k) => { "spine" (k) }, None => { "spines" } } ": "
                        @match (link, heat) {
                            (Some(link), Some(heat)) => { (percent(heat)) " %, " (Bytes(link.bytes_per_second)) "/s" },
                            _ => { "traffic unknown" },
                        }
                    }
                }
            }
        }
    }
}

fn leaf(one: &Placed<'_>, shape: Shape, parts: &BTreeMap<&str, f64>) -> Markup {
    // About 7 units a letter.
    let letters = one.width / 7;
    html! {
        rect .switch x=(one.x) y=(LEAF_Y) width=(one.width) height=(LEAF_HEIGHT) rx="4" {
            title { (one.leaf.name) ", " (count(one.leaf.nodes.len(), "node")) }
        }
        @if letters >= 3 {
            text .name x=(one.middle()) y=(LEAF_Y + 20) text-anchor="middle" { (shortened(&one.leaf.name, letters)) }
        }
        @for (i, node) in one.leaf.nodes.iter().enumerate() {
            @let (x, y) = one.node(i, shape);
            @let part = parts.get(&*node.name).copied();
            @if shape.is_box { (node_box(node, x, y, part)) } @else { (node_square(node, x, y, part)) }
        }
    }
}

fn node_class(node: &Node) -> &'static str {
    match node.state {
        NodeState::Ready if node.is_well() => "node",
        NodeState::Ready => "node warned",
        NodeState::NotReady | NodeState::Unknown => "node down",
    }
}

fn node_title(node: &Node, part: Option<f64>) -> Markup {
    html! {
        title {
            (node.name) ": " (node.state.sign_and_word().1)
            @if let Some(rate) = node.sends { ", sends " (Bytes(rate)) "/s" }
            @if let Some(rate) = node.receives { ", receives " (Bytes(rate)) "/s" }
            @if let Some(part) = part { ", has " (percent(part)) " % of its copies under way" }
            @if let Some(paths @ 1..) = node.paths_down { ", " (paths) " paths down" }
            @if let Some(rtt) = node.largest_rtt { ", largest round trip " (Rtt(rtt)) }
            @if let Some(devices) = node.devices { ", " (devices.in_use) " of " (devices.total) " devices in use" }
            @for finding in node.findings.iter().take(FINDINGS_NAMED) { "; " (finding.problem) }
        }
    }
}

fn node_box(node: &Node, x: usize, y: usize, part: Option<f64>) -> Markup {
    let rate =
        |rate: Option<u64>| rate.map_or("–".to_owned(), |rate| format!("{}/s", Bytes(rate)));
    let sign = match node_class(node) {
        "node" => "",
        "node warned" => "⚠ ",
        _ if node.state == NodeState::Unknown => "? ",
        _ => "✕ ",
    };
    let inner = BOX.width - 12;
    html! {
        g class=(node_class(node)) {
            (node_title(node, part))
            rect .body x=(x) y=(y) width=(BOX.width) height=(BOX.height) rx="4" {}
            text .name x=(x + 6) y=(y + 17) { (sign) (shortened(&node.name, if sign.is_empty() { 15 } else { 12 })) }
            @if node.state == NodeState::Ready {
                text .small x=(x + 6) y=(y + 32) { "↑ " (rate(node.sends)) }
                text .small x=(x + 6) y=(y + 45) { "↓ " (rate(node.receives)) }
            } @else {
                text .small x=(x + 6) y=(y + 32) { (node.state.sign_and_word().1) }
            }
            @if let Some(part) = part {
                rect .track x=(x + 6) y=(y + 50) width=(inner) height="4" rx="2" {}
                rect .done x=(x + 6) y=(y + 50) width=((inner as f64 * part) as usize) height="4" rx="2" {}
            }
        }
    }
}

fn node_square(node: &Node, x: usize, y: usize, part: Option<f64>) -> Markup {
    let (side, class) = (SQUARE.width, node_class(node));
    html! {
        g class=(class) {
            (node_title(node, part))
            rect .body x=(x) y=(y) width=(side) height=(side) rx="2" {}
            // The copy fills the square from below.
            @if let Some(part) = part {
                @let full = (side as f64 * part) as usize;
                rect .done x=(x) y=(y + side - full) width=(side) height=(full) rx="2" {}
            }
            @match class {
                "node" => {},
                "node warned" => { circle .mark cx=(x + side / 2) cy=(y + side / 2) r="3" {} },
                _ => { path .mark d=(format!("M{x} {y}l{side} {side}m0 -{side}l-{side} {side}")) {} },
            }
        }
    }
}

/// A host's name without its domain; where that is too long its end, by which most names differ.
fn shortened(name: &str, letters: usize) -> String {
    let is_address = name.parse::<std::net::IpAddr>().is_ok();
    let name = match name.split_once('.') {
        Some((host, _)) if !is_address && name.chars().count() > letters => host,
        _ => name,
    };
    let count = name.chars().count();
    if count <= letters {
        return name.to_owned();
    }
    let tail: String = name.chars().skip(count + 1 - letters).collect();
    format!("…{tail}")
}

/// What each node has of its copies under way; the least of them.
fn parts_done(jobs: &[Job]) -> BTreeMap<&str, f64> {
    let mut parts = BTreeMap::new();
    for job in jobs.iter().filter(|job| job.phase.is_under_way()) {
        for destination in &job.to {
            let Some(done) = destination.done else {
                continue;
            };
            let part = parts.entry(&*destination.node).or_insert(1.0_f64);
            *part = part.min(done.clamp(0.0, 1.0));
        }
    }
    parts
}

/// An arrow below the nodes for each destination of a job under way.
fn flows(fabric: &Fabric, placed: &[Placed<'_>]) -> Vec<(String, String)> {
    let mut ends = BTreeMap::new();
    for one in placed {
        for (i, node) in one.leaf.nodes.iter().enumerate() {
            let (x, y) = one.node(i, BOX);
            ends.insert(&*node.name, (x + BOX.width / 2, y + BOX.height));
        }
    }
    let mut flows = Vec::new();
    for job in fabric.jobs.iter().filter(|job| job.phase.is_under_way()) {
        let Some((x, y)) = ends.get(&*job.from) else {
            continue;
        };
        for destination in &job.to {
            let Some((to_x, to_y)) = ends.get(&*destination.node) else {
                continue;
            };
            let low = y.max(to_y) + FLOWS_HEIGHT;
            let path = format!("M{x} {y}C{x} {low} {to_x} {low} {to_x} {to_y}l-4 8m4 -8l4 8");
            let part = destination
                .done
                .map(|done| format!(": {} %", percent(done)));
            let title = format!(
                "{}, from {} to {}{}",
                job.name,
                job.from,
                destination.node,
                part.unwrap_or_default()
            );
            flows.push((path, title));
        }
    }
    if flows.len() > FLOWS_MAX {
        Vec::new()
    } else {
        flows
    }
}

fn legend(fabric: &Fabric, shape: Shape) -> Markup {
    html! {
        p .legend {
            "Wider lines carry more: "
            @match fabric.heat_scale {
                HeatScale::LinkRate => { "the widest are at the link's rate" },
                HeatScale::Busiest => { "the widest is the busiest link" },
            }
            "; dotted: traffic unknown. "
            @if shape.is_box {
                "↑: sends. ↓: receives. ⚠: paths down or findings. ✕: not ready. ?: unknown. A bar: what is verified of a copy. Arrows: from a \
                 job's source to its destinations."
            } @else {
                "A square is a node, filled from below by what is verified of its copy. A dot: paths down or findings. A \
                 cross: not ready, or unknown. Point at one for its name."
            }
        }
    }
}

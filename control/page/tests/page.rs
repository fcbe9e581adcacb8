//! What a browser and a screen reader get.

use std::{
    collections::BTreeSet,
    time::{Duration, SystemTime},
};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use weft_page::{
    Destination, Devices, Fabric, Finding, HEADERS, Job, Leaf, Link, Node, NodeState, Pair, Phase,
    View, event, fragments, render,
};

/// What a document of 200 nodes and 1,000 jobs may take: the page is there after one round trip of a slow link.
const BYTES_MAX: usize = 256 << 10;

/// Every kind of value, in names as a tenant may choose them.
const MARKUP: &str = "<script>alert('1')</script>\"'&amp;</title><b onload=\"x\">";

fn node(name: impl Into<String>) -> Node {
    Node {
        name: name.into(),
        state: NodeState::Ready,
        sends: Some(1_250_000_000),
        receives: Some(2_000),
        largest_rtt: Some(Duration::from_micros(850)),
        ..Node::default()
    }
}

fn job(i: usize) -> Job {
    let phases = [
        Phase::Complete,
        Phase::Transferring,
        Phase::Failed,
        Phase::Waiting,
    ];
    Job {
        namespace: format!("team-{}", i % 7),
        name: format!("job-{i}"),
        phase: phases[i % 4],
        done: 40,
        total: Some(100),
        rate: 1_000_000,
        from: "node-000".to_owned(),
        to: vec![Destination {
            node: "node-001".to_owned(),
            done: Some(0.4),
            state: "Transferring".to_owned(),
        }],
        destinations: 199,
        reason: String::new(),
    }
}

fn fabric(nodes: usize, leaves: usize, jobs: usize) -> Fabric {
    let mut fabric = Fabric::new("fabric", SystemTime::UNIX_EPOCH);
    let name = |i| Leaf {
        name: format!("leaf{i}"),
        nodes: Vec::new(),
    };
    fabric.leaves = (0..leaves).map(name).collect();
    for i in 0..nodes {
        fabric.leaves[i % leaves]
            .nodes
            .push(node(format!("node-{i:03}")));
    }
    fabric.spines = Some(8);
    let link = |i| Link {
        leaf: i / 8,
        spine: Some(i % 8),
        heat: (i % 8) as f64 / 7.0,
        bytes_per_second: 5_000,
    };
    fabric.links = (0..leaves * 8).map(link).collect();
    fabric.jobs = (0..jobs).map(job).collect();
    fabric
}

/// Tags in order: `+name` with its attributes, or `-name`. Fails where they do not nest.
fn tags(html: &str) -> Vec<String> {
    const VOID: [&str; 4] = ["meta", "link", "input", "!DOCTYPE"];
    let (mut tags, mut open, mut rest) = (Vec::new(), Vec::new(), html);
    while let Some(start) = rest.find('<') {
        let end = start + rest[start..].find('>').expect("a tag ends");
        let tag = &rest[start + 1..end];
        rest = &rest[end + 1..];
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop(), Some(name.to_owned()), "before {rest:.80}");
            tags.push(format!("-{name}"));
            continue;
        }
        let name = tag.split_whitespace().next().expect("a name").to_owned();
        tags.push(format!("+{tag}"));
        if name == "script" || name == "style" {
            let close = format!("</{name}>");
            rest = &rest[rest.find(&close).expect("it ends")..];
        }
        if !VOID.contains(&&*name) {
            open.push(name);
        }
    }
    assert_eq!(open, Vec::<String>::new());
    tags
}

fn starts<'a>(tags: &'a [String], name: &'a str) -> impl Iterator<Item = (usize, &'a str)> {
    let is = move |tag: &str| {
        tag.strip_prefix('+')
            .is_some_and(|tag| tag.split(' ').next() == Some(name))
    };
    tags.iter()
        .enumerate()
        .map(|(i, tag)| (i, &**tag))
        .filter(move |(_, tag)| is(tag))
}

/// Content of the first element that begins like this.
fn content<'a>(html: &'a str, begin: &str, end: &str) -> &'a str {
    let from = html.find(begin).expect("it is there") + begin.len();
    &html[from..from + html[from..].find(end).expect("it ends")]
}

#[test]
fn no_name_becomes_markup() {
    let finding = || Finding {
        problem: MARKUP.to_owned(),
        fix: MARKUP.to_owned(),
    };
    for (nodes, leaves) in [(1, 1), (60, 2)] {
        let mut fabric = fabric(nodes, leaves, 2);
        fabric.name = MARKUP.to_owned();
        fabric.findings = vec![finding()];
        let named = Node {
            name: MARKUP.to_owned(),
            findings: vec![finding()],
            ..node("")
        };
        fabric.leaves[0] = Leaf {
            name: MARKUP.to_owned(),
            nodes: vec![named],
        };
        let to = Destination {
            node: MARKUP.to_owned(),
            done: Some(0.5),
            state: MARKUP.to_owned(),
        };
        fabric.jobs[1] = Job {
            namespace: MARKUP.to_owned(),
            name: MARKUP.to_owned(),
            from: MARKUP.to_owned(),
            to: vec![to],
            reason: MARKUP.to_owned(),
            ..job(1)
        };
        fabric.pairs = vec![Pair {
            from: MARKUP.to_owned(),
            to: MARKUP.to_owned(),
            ..Pair::default()
        }];
        let view = View {
            namespace: Some(MARKUP.to_owned()),
            all_jobs: true,
        };
        let html = render(&fabric, &view);
        assert_eq!(html.matches("<script").count(), 1);
        assert!(!html.contains("<b "), "{html}");
        assert!(!html.contains("\"x\""));
        assert!(html.contains("&lt;script&gt;alert('1')&lt;/script&gt;&quot;'&amp;amp;"));
        tags(&html);
    }
}

#[test]
fn a_fabric_of_which_nothing_is_known_has_a_page() {
    let html = render(
        &Fabric::new("new", SystemTime::UNIX_EPOCH),
        &View::default(),
    );
    tags(&html);
    for text in [
        "No node is known yet",
        "0 of 0 nodes ready",
        "0 of 0 jobs",
        "Nothing is wrong",
    ] {
        assert!(html.contains(text), "{text}");
    }
}

#[test]
fn the_page_of_200_nodes_and_1000_jobs_is_small_and_names_each_node_twice() {
    let fabric = fabric(200, 13, 1_000);
    let html = render(&fabric, &View::default());
    tags(&html);
    assert!(html.len() <= BYTES_MAX, "{} bytes", html.len());
    let svg = content(&html, "<svg ", "</svg>");
    let table = content(&html, "id=\"nodes\"", "</table>");
    for (_, node) in fabric.nodes() {
        assert!(
            svg.contains(&format!("<title>{}: Ready", node.name)),
            "{}",
            node.name
        );
        assert!(
            table.contains(&format!("<th scope=\"row\"><bdi>{}<", node.name)),
            "{}",
            node.name
        );
    }
    let links = content(&html, "id=\"links\"", "</table>");
    for leaf in &fabric.leaves {
        assert!(links.contains(&format!("<bdi>{}<", leaf.name)));
    }
    assert!(svg.contains("leaf3 – spine7: 100 %, 5.00 kB/s"));
    assert!(links.contains("100 %, 5.00 kB/s"));
}

#[test]
fn of_5000_nodes_all_are_drawn_and_the_table_has_those_with_something_wrong() {
    let mut fabric = fabric(5_000, 100, 1_000);
    fabric.leaves[99].nodes[49].state = NodeState::NotReady;
    let html = fragments(&fabric, &View::default());
    assert!(html.len() <= 2 << 20, "{} bytes", html.len());
    let svg = content(&html, "<svg ", "</svg>");
    assert_eq!(svg.matches("<rect class=\"body\"").count(), 5_000);
    let table = content(&html, "id=\"nodes\"", "</section>");
    assert_eq!(table.matches("<th scope=\"row\">").count(), 1_000);
    assert!(table.contains("<bdi>node-4999</bdi>") && table.contains("4000 more nodes"));
}

#[test]
fn what_is_hidden_or_unknown_is_said_and_nonsense_adds_up_to_something() {
    let mut fabric = fabric(2, 1, 0);
    fabric.hidden_jobs = 7;
    fabric.notes = vec!["Switches are not <asked>".to_owned()];
    let html = render(&fabric, &View::default());
    assert!(html.contains("0 of 0, 7 jobs not shown"));
    assert!(html.contains("0 failed, 7 jobs not shown."));
    assert!(html.contains("<bdi>Switches are not &lt;asked&gt;</bdi>"));
    for node in &mut fabric.leaves[0].nodes {
        (node.sends, node.receives, node.paths_down) = (None, Some(u64::MAX), Some(u32::MAX));
    }
    let html = render(&fabric, &View::default());
    assert!(html.contains("<dt>Received</dt><dd>18447 PB/s</dd>"));
    assert!(html.contains("↑ –<") && html.contains("↓ 18447 PB/s"));
}

#[test]
fn each_size_of_a_fabric_is_drawn_within_its_picture() {
    for (nodes, leaves) in [
        (1, 1),
        (4, 2),
        (40, 8),
        (40, 1),
        (41, 2),
        (200, 64),
        (1_000, 100),
        (3, 3),
    ] {
        let html = fragments(&fabric(nodes, leaves, 5), &View::default());
        let svg = content(&html, "<svg viewBox=\"0 0 ", "</svg>");
        let (size, rest) = svg.split_once('"').unwrap();
        let (width, height) = size.split_once(' ').unwrap();
        let (width, height): (usize, usize) = (width.parse().unwrap(), height.parse().unwrap());
        let mut bodies = BTreeSet::new();
        for rect in rest.split("<rect class=\"body\" ").skip(1) {
            let number = |name: &str| {
                content(rect, &format!("{name}=\""), "\"")
                    .parse::<usize>()
                    .unwrap()
            };
            let (x, y) = (number("x"), number("y"));
            assert!(x + number("width") <= width, "{nodes} {leaves}");
            assert!(y + number("height") <= height, "{nodes} {leaves}");
            assert!(bodies.insert((x, y)), "two at one place: {nodes} {leaves}");
        }
        assert_eq!(bodies.len(), nodes);
    }
}

#[test]
fn jobs_under_way_come_first_and_the_rest_are_counted() {
    let fabric = fabric(2, 1, 1_000);
    let rows = |view: &View| {
        let html = fragments(&fabric, view);
        content(&html, "id=\"jobs\"", "</section>").to_owned()
    };
    let first = rows(&View::default());
    assert_eq!(first.matches("<th scope=\"row\">").count(), 100);
    assert_eq!(
        first.matches("<td class=\"\">Transferring</td>").count(),
        100
    );
    assert!(first.contains("900 more jobs"));
    assert!(first.contains("href=\"?jobs=all\""));
    let all = rows(&View::of_query("jobs=all"));
    assert_eq!(all.matches("<th scope=\"row\">").count(), 1_000);
    let some = rows(&View::of_query("namespace=team-3&jobs=all"));
    assert_eq!(some.matches("<th scope=\"row\">").count(), 143);
    assert!(!some.contains("team-4/"));
}

#[test]
fn a_screen_reader_finds_landmarks_captions_titles_and_labels() {
    let mut fabric = fabric(6, 2, 5);
    fabric.pairs = vec![Pair::default()];
    fabric.findings = vec![Finding::default()];
    fabric.leaves[0].nodes[0].devices = Some(Devices {
        in_use: 1,
        total: 2,
        unhealthy: 1,
    });
    let html = render(&fabric, &View::default());
    let tags = tags(&html);
    for landmark in ["header", "main", "footer", "form", "h1"] {
        assert_eq!(starts(&tags, landmark).count(), 1, "{landmark}");
    }
    assert!(tags[1].contains("lang=\"en\""));
    assert_eq!(starts(&tags, "table").count(), 5);
    for (i, _) in starts(&tags, "table") {
        assert_eq!(tags[i + 1], "+caption");
    }
    assert!(starts(&tags, "th").all(|(_, tag)| tag.contains("scope=")));
    let svgs: Vec<_> = starts(&tags, "svg").collect();
    assert!(svgs.len() == 1 && svgs[0].1.contains("role=\"img\""));
    assert!(tags[svgs[0].0 + 1].starts_with("+title"));
    for (_, progress) in starts(&tags, "progress") {
        assert!(
            progress.contains("aria-label=\"Verified of team-"),
            "{progress}"
        );
    }
    assert!(html.contains("<p id=\"said\" role=\"status\" aria-live=\"polite\">"));
    // What is named by another element finds it; no id is there twice.
    let of = |attribute: &str| {
        let begin = format!(" {attribute}=\"");
        let values = html.split(&begin).skip(1);
        values
            .map(|rest| rest.split('"').next().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    let ids = of("id");
    assert_eq!(
        ids.len(),
        ids.iter().collect::<BTreeSet<_>>().len(),
        "{ids:?}"
    );
    for label in [of("aria-labelledby"), of("for")].concat() {
        assert!(ids.contains(&label), "{label}");
    }
    assert!(
        ids.contains(&"jobs".to_owned()),
        "the first link skips to them"
    );
}

#[test]
fn the_policy_allows_this_style_and_this_script_only() {
    let html = render(&fabric(4, 2, 1), &View::default());
    let policy = HEADERS
        .iter()
        .find(|(name, _)| *name == "content-security-policy")
        .unwrap()
        .1;
    for name in ["style", "script"] {
        let text = content(&html, &format!("<{name}>"), &format!("</{name}>"));
        let digest = ring::digest::digest(&ring::digest::SHA256, text.as_bytes());
        let hash = format!("{name}-src 'sha256-{}'", BASE64_STANDARD.encode(digest));
        assert!(
            policy.contains(&hash),
            "write this into HEADERS of document.rs: {hash}"
        );
    }
    assert!(policy.starts_with("default-src 'none'; "));
    let tags = tags(&html);
    for tag in tags
        .iter()
        .filter(|tag| !tag.starts_with("+link rel=\"icon\""))
    {
        let is_inline =
            tag.contains(" style=") || tag.contains(" src=") || tag.contains(" onclick=");
        assert!(!is_inline && !tag.contains("://"), "{tag}");
    }
}

#[test]
fn without_scripts_or_events_the_page_loads_itself_again() {
    let html = render(&fabric(4, 2, 1), &View::of_query("namespace=a%22b"));
    assert!(html.contains("<noscript><meta http-equiv=\"refresh\" content=\"10\"></noscript>"));
    assert!(html.contains("data-events=\"events?namespace=a%22b\""));
    assert!(html.contains("<a href=\"?namespace=a%22b\">Reload</a>"));
    assert!(html.contains("if (!window.EventSource)"));
}

#[test]
fn an_event_has_what_the_document_has() {
    let fabric = fabric(4, 2, 3);
    let html = render(&fabric, &View::default());
    let event = event(&fabric, &View::default());
    let data = event.strip_prefix("data: ").unwrap().trim_end();
    assert_eq!(content(&html, "data-events=\"events\">", "</main>"), data);
}

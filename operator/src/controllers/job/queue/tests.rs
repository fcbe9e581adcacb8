use k8s_openapi::jiff::SignedDuration;
use proptest::prelude::*;

use super::*;
use crate::controllers::{
    job::resolve::resolve,
    membership::Membership,
    tests::scenario::{self, start},
};

/// A job of `NAMESPACE/NAME` from n1 to these nodes, made so many seconds after the start. It has a path of its
/// own.
fn entry(name: &str, second: i64, nodes: &[&str]) -> QueueEntry {
    let (namespace, name) = name.split_once('/').unwrap();
    let at = start().as_second() + second;
    let at = k8s_openapi::jiff::Timestamp::from_second(at).unwrap();
    QueueEntry {
        key: Key {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        },
        created_at: Some(Time(at)),
        is_running: false,
        fabric: "default".into(),
        root: "models".into(),
        path: vec![namespace.to_owned(), name.to_owned()],
        slots: Some(slots(nodes)),
    }
}

fn slots(nodes: &[&str]) -> SlotRequest {
    SlotRequest {
        source: nodes[0].to_owned(),
        receivers: nodes[1..].iter().map(|node| (*node).to_owned()).collect(),
    }
}

/// A job of team-a without a slots, which writes to this path.
fn to_path(name: &str, second: i64, path: &str) -> QueueEntry {
    let mut job = scenario::job(name);
    let made = scenario::start() + SignedDuration::from_secs(second);
    job.metadata.creation_timestamp = Some(Time(made));
    job.spec.destinations.path = path.into();
    QueueEntry::new(&job, "default", false, None)
}

fn running(entry: QueueEntry) -> QueueEntry {
    QueueEntry {
        is_running: true,
        ..entry
    }
}

/// Their UIDs are their names.
fn queue(entries: impl IntoIterator<Item = QueueEntry>) -> AdmissionQueue {
    let mut queue = AdmissionQueue::new(usize::MAX);
    for entry in entries {
        queue.update_entry(&uid(&entry), Some(entry));
    }
    queue.recompute_admissions();
    queue
}

fn uid(entry: &QueueEntry) -> String {
    format!("{}/{}", entry.key.namespace, entry.key.name)
}

/// Who may begin.
fn begin(queue: &AdmissionQueue) -> Vec<&str> {
    let begin = queue
        .admissions
        .iter()
        .filter(|(_, admission)| **admission == Admission::Begins);
    begin.map(|(uid, _)| uid.as_str()).collect()
}

#[test]
fn two_jobs_of_a_node_are_at_work_and_the_others_wait_for_it_in_order() {
    let names = ["a/4", "a/3", "a/2", "a/1"];
    let jobs = (1..)
        .zip(names)
        .map(|(i, name)| entry(name, i, &["n1", "n2"]));
    let queue = queue(jobs);
    assert_eq!(begin(&queue), ["a/3", "a/4"]);
    let waits = |ahead| Admission::Queued {
        node: "n1".into(),
        ahead,
    };
    assert_eq!(queue.admissions["a/2"], waits(0));
    assert_eq!(queue.admissions["a/1"], waits(1));
    assert_eq!(queue.ahead("a/1"), Some(1));
    assert_eq!(queue.ahead("a/4"), None);
}

#[test]
fn a_namespaces_first_job_does_not_wait_for_fifty_of_another() {
    let many = (0..50).map(|i| entry(&format!("a/{i:02}"), i, &["n1", "n2"]));
    let mut queue = queue(many.chain([entry("b/1", 99, &["n1", "n3"])]));
    // It is equal to the oldest of the other, and younger than that.
    assert_eq!(begin(&queue), ["a/00", "b/1"]);
    for i in [0, 1] {
        let entry = entry(&format!("a/{i:02}"), i, &["n1", "n2"]);
        queue.update_entry(&uid(&entry), Some(running(entry)));
    }
    queue.recompute_admissions();
    assert_eq!(begin(&queue), Vec::<&str>::new());
    queue.update_entry("a/00", None);
    queue.recompute_admissions();
    assert_eq!(begin(&queue), ["b/1"]);
}

#[test]
fn jobs_of_other_nodes_and_other_fabrics_go_on() {
    let busy = ["a/1", "a/2"].map(|name| running(entry(name, 1, &["n1", "n2"])));
    let mut elsewhere = entry("a/4", 4, &["n1", "n2"]);
    elsewhere.fabric = "other".into();
    let others = [
        entry("a/3", 3, &["n1", "n5"]),
        elsewhere,
        entry("a/5", 5, &["n3", "n4"]),
    ];
    let queue = queue(busy.into_iter().chain(others));
    assert_eq!(begin(&queue), ["a/4", "a/5"]);
}

#[test]
fn who_is_next_keeps_a_place_at_each_of_its_nodes_and_who_is_not_keeps_none() {
    let mut queue = queue([
        running(entry("a/1", 1, &["n1", "n2"])),
        running(entry("a/2", 2, &["n1", "n2"])),
        // Next at n1: one slot of n3 is its.
        entry("a/3", 3, &["n1", "n3"]),
        entry("a/4", 4, &["n1", "n3", "n4"]),
        entry("a/5", 5, &["n3", "n4"]),
        entry("a/6", 6, &["n3", "n5"]),
        entry("a/7", 7, &["n4", "n6"]),
    ]);
    assert_eq!(begin(&queue), ["a/5", "a/7"]);
    for (name, nodes) in [("a/5", ["n3", "n4"]), ("a/7", ["n4", "n6"])] {
        queue.update_entry(name, Some(running(entry(name, 9, &nodes))));
    }
    queue.update_entry("a/1", None);
    queue.recompute_admissions();
    assert_eq!(begin(&queue), ["a/3"]);
}

#[test]
fn who_was_overtaken_by_its_own_namespace_is_not_put_back_for_it() {
    // a/9 is running at other nodes; it is younger than a/1, so a/1 comes before b/2.
    let queue = queue([
        running(entry("a/9", 9, &["n8", "n9"])),
        running(entry("c/1", 1, &["n1", "n2"])),
        entry("a/1", 1, &["n1", "n3"]),
        entry("b/2", 2, &["n1", "n4"]),
    ]);
    assert_eq!(begin(&queue), ["a/1"]);
}

#[test]
fn what_is_written_of_a_job_that_waits_changes_only_with_the_node_that_it_waits_for() {
    let busy = |name: &str, nodes: &[&str]| running(entry(name, 1, nodes));
    let mut queue = queue([
        busy("a/1", &["n2", "n3"]),
        busy("a/2", &["n2", "n3"]),
        entry("a/5", 5, &["n1", "n2"]),
    ]);
    for name in ["b/1", "b/2"] {
        queue.update_entry(name, Some(busy(name, &["n1", "n4"])));
    }
    // The source is full by now, too.
    assert_eq!(queue.recompute_admissions(), Vec::<Key>::new());
    let waiting = entry("a/5", 5, &["n1", "n2"]);
    let message =
        |queue: &AdmissionQueue| queue.admissions["a/5"].obstacle(&waiting).unwrap().message;
    assert_eq!(
        message(&queue),
        "node n2 takes part in 2 jobs at a time, since fabric default has spec.transport.capMbps, and \
         others come first: namespaces take turns, each with its oldest job; it begins by itself; see \
         how far the others are: kubectl weft status -A"
    );
    queue.update_entry("a/1", None);
    let key = entry("a/5", 5, &["n1"]).key;
    assert_eq!(queue.recompute_admissions(), std::slice::from_ref(&key));
    assert!(message(&queue).starts_with("node n1 "));
    queue.update_entry("b/1", None);
    assert_eq!(queue.recompute_admissions(), [key]);
    assert_eq!(begin(&queue), ["a/5"]);
    assert_eq!(queue.recompute_admissions(), Vec::<Key>::new());
}

#[test]
fn a_turn_is_for_the_nodes_that_it_was_given_for() {
    let mine = entry("a/1", 1, &["n1", "n2"]);
    let queue = queue([mine.clone()]);
    assert_eq!(queue.admission("a/1", &mine), Some(&Admission::Begins));
    let more = entry("a/1", 1, &["n1", "n2", "n3"]);
    assert_eq!(queue.admission("a/1", &more), None);
    assert_eq!(queue.admission("a/2", &mine), None);
}

#[test]
fn a_job_that_is_not_there_yet_is_told_whether_it_would_wait() {
    let mut queue = queue([running(entry("a/1", 1, &["n1", "n2"]))]);
    let asked = entry("b/1", 9, &["n1", "n3"]);
    assert_eq!(queue.preview(&asked), Admission::Begins);
    queue.update_entry("a/2", Some(running(entry("a/2", 1, &["n1", "n2"]))));
    let waits = Admission::Queued {
        node: "n1".into(),
        ahead: 0,
    };
    assert_eq!(queue.preview(&asked), waits);
    assert_eq!(queue.admissions.len(), 0);
}

#[test]
fn only_nodes_that_bytes_go_between_count_and_only_with_a_cap() {
    let mut cache = scenario::cache(4);
    let mut job = scenario::job("minilm");
    let slots = |job: &TransferJob, cache: &Cache| {
        let transfer = resolve(job, cache, &Membership::of(cache), 1).unwrap();
        SlotRequest::of(&transfer, cache)
    };
    assert_eq!(slots(&job, &cache), None);
    let mut fabric = scenario::fabric("default", 1);
    fabric.spec.transport.cap_mbps = Some(1000);
    fabric.metadata.resource_version = Some("2".into());
    cache.fabrics.update(fabric);
    let receivers = |nodes: &[&str]| {
        Some(SlotRequest {
            source: "n1".into(),
            receivers: nodes.iter().map(|node| (*node).to_owned()).collect(),
        })
    };
    assert_eq!(slots(&job, &cache), receivers(&["n2", "n3", "n4"]));
    cache.fabric_nodes.update(scenario::asleep("n3", "default"));
    assert_eq!(slots(&job, &cache), receivers(&["n2", "n4"]));
    // It copies for itself: over no link.
    job.spec.destinations.node_selector = None;
    job.spec.destinations.nodes = Some(vec!["n1".into()]);
    job.spec.destinations.path = "copy/".into();
    assert_eq!(slots(&job, &cache), None);
}

/// Whose path keeps a job from beginning.
fn holder(queue: &AdmissionQueue, entry: &QueueEntry) -> Option<String> {
    match queue.preview(entry) {
        Admission::PathInUse { holder, .. } => Some(holder.name),
        _ => None,
    }
}

#[test]
fn equal_paths_and_those_above_and_below_conflict_and_no_others() {
    let queue = queue([running(to_path("first", 1, "models/a"))]);
    let blocked = |path: &str| holder(&queue, &to_path("second", 2, path)).is_some();
    for path in [
        "models/a",
        "models/a/",
        "models",
        "models/a/sub",
        "models/a/sub/x",
        "",
    ] {
        assert!(blocked(path), "{path}");
    }
    for path in ["models/b", "models/ab", "models/a.bin", "other"] {
        assert!(!blocked(path), "{path}");
    }
    let second = to_path("second", 2, "models/a");
    let elsewhere = [
        QueueEntry {
            root: "scratch".into(),
            ..second.clone()
        },
        QueueEntry {
            fabric: "other".into(),
            ..second
        },
    ];
    for entry in elsewhere {
        assert_eq!(queue.preview(&entry), Admission::Begins, "{entry:?}");
    }
}

#[test]
fn at_a_path_who_is_at_work_comes_first_and_then_the_oldest() {
    let entries = [("a", 3), ("b", 1), ("c", 2)];
    let mut queue = queue(entries.map(|(name, second)| to_path(name, second, "x")));
    let of =
        |queue: &AdmissionQueue, name: &str, second| holder(queue, &to_path(name, second, "x"));
    assert_eq!(of(&queue, "b", 1), None);
    assert_eq!(of(&queue, "c", 2).as_deref(), Some("b"));
    assert_eq!(of(&queue, "a", 3).as_deref(), Some("b"));
    assert_eq!(begin(&queue), ["team-a/b"]);
    queue.update_entry("team-a/a", Some(running(to_path("a", 3, "x"))));
    assert_eq!(of(&queue, "b", 1).as_deref(), Some("a"));
    queue.recompute_admissions();
    assert_eq!(begin(&queue), Vec::<&str>::new());
}

#[test]
fn of_many_jobs_above_and_below_a_path_the_first_is_named() {
    let mut entries = vec![
        to_path("d", 4, "x/y/z"),
        to_path("c", 3, "x/y"),
        to_path("b", 2, "x/y/a"),
        to_path("a", 1, "w"),
    ];
    let queue = queue(entries.clone());
    assert_eq!(
        holder(&queue, &to_path("e", 5, "x/y")).as_deref(),
        Some("b")
    );
    assert_eq!(
        holder(&queue, &to_path("e", 5, "x/y/z/1")).as_deref(),
        Some("c")
    );
    assert_eq!(holder(&queue, &to_path("e", 5, "")).as_deref(), Some("a"));
    entries.push(running(to_path("e", 5, "x/y/z")));
    let queue = self::queue(entries);
    assert_eq!(begin(&queue), ["team-a/a", "team-a/b"]);
}

#[test]
fn those_that_waited_are_decided_again_when_the_way_is_free() {
    let mut queue = queue([running(to_path("first", 1, "x"))]);
    queue.update_entry("2", Some(to_path("second", 2, "x/y")));
    queue.update_entry("3", Some(to_path("third", 3, "z")));
    // They were only now heard of.
    assert_eq!(queue.recompute_admissions().len(), 2);
    queue.update_entry("2", Some(to_path("second", 2, "x/y")));
    assert!(queue.recompute_admissions().is_empty());
    queue.retain(&["2".to_owned(), "3".to_owned()].into());
    let again: Vec<String> = queue
        .recompute_admissions()
        .into_iter()
        .map(|key| key.name)
        .collect();
    assert_eq!(again, ["second"]);
    assert_eq!(begin(&queue), ["2", "3"]);
}

/// A namespace, when it was made, which nodes, and how many steps it takes.
type Drawn = (u8, i64, BTreeSet<u8>, u8);

fn drawn() -> impl Strategy<Value = Vec<Drawn>> {
    let nodes = proptest::collection::btree_set(0..6u8, 2..4);
    proptest::collection::vec((0..3u8, 0..40i64, nodes, 1..6u8), 1..60)
}

proptest! {
    /// Jobs come one a second and work for some steps: no node is ever in more than it may be, and
    /// everybody has had its turn once the work of those before it is done.
    #[test]
    fn no_node_is_in_more_than_two_and_nobody_waits_for_ever(jobs in drawn()) {
        let names: Vec<String> = (0..6).map(|i| format!("n{i}")).collect();
        let made = |i: usize, (namespace, second, nodes, _): &Drawn| {
            let nodes: Vec<&str> = nodes.iter().map(|node| &*names[usize::from(*node)]).collect();
            entry(&format!("t{namespace}/{i:02}"), *second, &nodes)
        };
        let mut queue = AdmissionQueue::new(usize::MAX);
        let mut remaining: BTreeMap<String, u8> = BTreeMap::new();
        let mut over = 0;
        let steps: u32 = jobs.iter().map(|job| u32::from(job.3)).sum();
        for now in 0..i64::from(steps) + 42 {
            for (i, job) in jobs.iter().enumerate().filter(|(_, job)| job.1 == now) {
                let entry = made(i, job);
                queue.update_entry(&uid(&entry), Some(entry));
            }
            queue.recompute_admissions();
            for uid in begin(&queue).into_iter().map(str::to_owned).collect::<Vec<_>>() {
                let entry = queue.entries[&uid].clone();
                let steps = jobs[uid[3..].parse::<usize>().unwrap()].3;
                remaining.insert(uid.clone(), steps);
                queue.update_entry(&uid, Some(running(entry)));
            }
            let mut used_slots: BTreeMap<&str, usize> = BTreeMap::new();
            for entry in queue.entries.values().filter(|entry| entry.is_running) {
                for node in entry.nodes() {
                    *used_slots.entry(node).or_default() += 1;
                }
            }
            prop_assert!(used_slots.values().all(|count| *count <= JOBS_PER_NODE_MAX), "{used_slots:?}");
            for (uid, steps) in &mut remaining {
                *steps -= 1;
                if *steps == 0 {
                    over += 1;
                    queue.update_entry(uid, None);
                }
            }
            remaining.retain(|_, steps| *steps > 0);
        }
        prop_assert_eq!(over, jobs.len());
    }

    /// What one that waits is overtaken by, once all that are older have been begun, is nothing that
    /// needs one of its nodes.
    #[test]
    fn the_oldest_job_of_the_namespace_with_least_at_work_waits_for_work_alone(jobs in drawn()) {
        let names: Vec<String> = (0..6).map(|i| format!("n{i}")).collect();
        let made = jobs.iter().enumerate().map(|(i, (namespace, second, nodes, _))| {
            let nodes: Vec<&str> = nodes.iter().map(|node| &*names[usize::from(*node)]).collect();
            entry(&format!("t{namespace}/{i:02}"), *second, &nodes)
        });
        let made: Vec<QueueEntry> = made.collect();
        let queue = queue(made.clone());
        // The oldest of each namespace.
        let mut first: BTreeMap<&str, &QueueEntry> = BTreeMap::new();
        for entry in &made {
            let known = first.entry(&entry.key.namespace).or_insert(entry);
            if age(entry) < age(known) {
                *known = entry;
            }
        }
        let mut first: Vec<&QueueEntry> = first.into_values().collect();
        first.sort_by_key(|one| age(one));
        // With at most three namespaces of two slots a node, the first two begin wherever they are.
        for entry in first.iter().take(JOBS_PER_NODE_MAX) {
            prop_assert_eq!(queue.admission(&uid(entry), entry), Some(&Admission::Begins));
        }
    }
}

/// Prints how long it takes; what the page of the decision says is from here.
#[test]
fn a_thousand_jobs_of_two_hundred_nodes_are_put_in_order() {
    let nodes: Vec<String> = (0..201).map(|i| format!("node-{i:03}")).collect();
    let nodes: Vec<&str> = nodes.iter().map(String::as_str).collect();
    let jobs = (0..1000).map(|i| entry(&format!("t{}/{i:04}", i % 7), i, &nodes));
    let begun = std::time::Instant::now();
    let queue = queue(jobs);
    eprintln!("1,000 jobs x 201 nodes: {:?}", begun.elapsed());
    assert_eq!(begin(&queue), ["t0/0000", "t1/0001"]);
    let ahead: BTreeSet<usize> =
        (queue.admissions.keys().filter_map(|uid| queue.ahead(uid))).collect();
    assert_eq!(ahead, (0..998).collect());
}

#[test]
fn a_namespace_has_as_many_jobs_running_as_it_may_and_its_oldest_come_first() {
    let entry = |text: &str, second| {
        let (namespace, name) = text.split_once('/').unwrap();
        let key = Key {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        };
        QueueEntry {
            key,
            ..to_path(name, second, text)
        }
    };
    let mut queue = AdmissionQueue::new(2);
    let entries = [
        running(entry("a/3", 3)),
        entry("a/1", 1),
        entry("a/2", 2),
        entry("b/1", 4),
    ];
    for entry in &entries {
        queue.update_entry(&uid(entry), Some(entry.clone()));
    }
    queue.recompute_admissions();
    assert_eq!(begin(&queue), ["a/1", "b/1"]);
    let obstacle = queue.admissions["a/2"].obstacle(&entries[2]).unwrap();
    assert_eq!(obstacle.reason, "NamespaceFull");
    assert!(
        crate::controllers::job::obstacle::QUEUE_REASONS.contains(&&*obstacle.reason)
            && obstacle.message.contains("namespace a")
    );
    // A job that is over makes room; one that runs goes on though a leader with another limit admitted it.
    queue.update_entry("a/3", None);
    assert_eq!(queue.recompute_admissions(), [entries[2].key.clone()]);
    assert_eq!(begin(&queue), ["a/1", "a/2", "b/1"]);
    let mut queue = AdmissionQueue::new(1);
    for name in ["a/1", "a/2"] {
        queue.update_entry(name, Some(running(entry(name, 1))));
    }
    assert_eq!(queue.recompute_admissions(), Vec::<Key>::new());
}

use weft_proto::operator::v1::ModelState;
use weft_transfer::Course;

use super::*;
use crate::controllers::{
    job::snapshot::Holder,
    scenario::{self, MODEL, note},
};

/// n2 holds minilm.
fn cache() -> Cache {
    let mut cache = scenario::cache(3);
    scenario::noted(&mut cache, "n2", MODEL, &note("f1"));
    cache
}

fn read(cache: &Cache) -> Notes {
    let mut notes = Notes::default();
    notes.read(cache);
    notes
}

/// What is taken from nodes when the agent of n2 says this.
fn taken(cache: &Cache, states: Vec<ModelState>) -> Vec<(String, String)> {
    let mut sighting = scenario::sighting("n2", "default", 0);
    sighting.report.models = states;
    let sightings = BTreeMap::from([("n2".to_owned(), sighting)]);
    lost(cache, &Membership::of(cache), &sightings, &read(cache))
        .into_iter()
        .map(|request| {
            assert!(request.version.is_some(), "{request:?}");
            let Change::MergeMetadata(removed) = &request.change else {
                panic!("{request:?}");
            };
            let mut keys = removed["labels"].as_object().unwrap().iter();
            let (key, value) = keys.next().unwrap();
            assert!(value.is_null(), "{request:?}");
            (request.key.name.clone(), key.clone())
        })
        .collect()
}

fn state(fingerprint: &str, intact: bool) -> ModelState {
    ModelState {
        name: MODEL.into(),
        fingerprint: fingerprint.into(),
        intact,
    }
}

#[test]
fn a_label_has_twelve_digits_of_the_digest_and_the_agent_is_told_what_to_look_after() {
    let cache = cache();
    let node = cache.nodes.named("n2").unwrap();
    assert_eq!(node.labels()[MODEL], "0123456789ab");
    let notes = read(&cache);
    let models = notes.to_look_after("n2");
    assert_eq!(models.len(), 1);
    assert_eq!(
        (&*models[0].name, &*models[0].path, &*models[0].fingerprint),
        (MODEL, "team-a/minilm", "f1")
    );
    assert!(notes.to_look_after("n1").is_empty() && notes.to_look_after("n9").is_empty());
}

#[test]
fn a_nodes_notes_are_read_once_for_each_version_of_it() {
    let mut cache = cache();
    let mut notes = read(&cache);
    let first = notes.to_look_after("n2");
    notes.read(&cache);
    assert!(Arc::ptr_eq(&first, &notes.to_look_after("n2")));
    scenario::noted(&mut cache, "n2", MODEL, &note("f2"));
    notes.read(&cache);
    assert_eq!(notes.to_look_after("n2")[0].fingerprint, "f2");
    cache
        .nodes
        .forget(&crate::controllers::cache::Key::cluster("n2"));
    notes.read(&cache);
    assert!(notes.to_look_after("n2").is_empty());
}

#[test]
fn what_nobody_can_read_is_taken_away() {
    let mut cache = cache();
    let mut node = cache.nodes.named("n2").unwrap().clone();
    let annotations = node.metadata.annotations.get_or_insert_default();
    annotations.insert(MODEL.into(), "nonsense".into());
    node.metadata.resource_version = Some("9".into());
    cache.nodes.learn(node);
    assert_eq!(taken(&cache, vec![]), [("n2".to_owned(), MODEL.to_owned())]);
}

#[test]
fn a_label_goes_when_the_agent_no_longer_finds_the_files_and_not_before() {
    let cache = cache();
    assert_eq!(taken(&cache, vec![]), []);
    assert_eq!(taken(&cache, vec![state("f1", true)]), []);
    // That was said of files that have been replaced since.
    assert_eq!(taken(&cache, vec![state("f0", false)]), []);
    let gone = [("n2".to_owned(), MODEL.to_owned())];
    assert_eq!(taken(&cache, vec![state("f1", false)]), gone);
}

#[test]
fn a_label_goes_where_nobody_looks_after_it() {
    let mut cache = cache();
    let mut node = cache.nodes.named("n2").unwrap().clone();
    node.metadata.labels.as_mut().unwrap().remove("gpu");
    node.metadata.resource_version = Some("9".into());
    cache.nodes.learn(node);
    let gone = [("n2".to_owned(), MODEL.to_owned())];
    assert_eq!(taken(&cache, vec![]), gone);
    // Somebody wrote a label by hand.
    let mut node = scenario::node("n3", &["gpu", "weft.dev/model.x.y"]);
    node.metadata.resource_version = Some("9".into());
    cache.nodes.learn(node);
    assert!(taken(&cache, vec![]).contains(&("n3".into(), "weft.dev/model.x.y".into())));
}

#[test]
fn a_key_is_of_the_namespace_and_fits() {
    let mut job = scenario::job("minilm");
    assert_eq!(key(&job), MODEL);
    job.metadata.name = Some("x".repeat(60));
    let long = key(&job);
    let name = long.strip_prefix("weft.dev/").unwrap();
    assert!(
        name.len() <= 63 && name.starts_with("model.team-a.xxx"),
        "{long}"
    );
    job.metadata.name = Some(format!("{}y", "x".repeat(59)));
    assert_ne!(key(&job), long);
}

/// The work of a job whose copies are there, on these nodes and of this content.
fn work(holders: &[(&str, &str)]) -> Snapshot {
    let holder = |&(node, fingerprint): &(&str, &str)| Holder {
        node: node.into(),
        note: note(fingerprint),
    };
    Snapshot {
        fabric: "default".into(),
        course: Course::Asking,
        reader: None,
        started: true,
        attempt: 1,
        claims: None,
        outcome: None,
        manifest: None,
        plan: None,
        link: None,
        destinations: Vec::new(),
        holders: holders.iter().map(holder).collect(),
        parting: None,
        has_parted: false,
        untold: Vec::new(),
        bytes: 0,
        bytes_total: 0,
        bytes_per_second: 0,
    }
}

#[test]
fn a_node_that_cannot_be_written_to_holds_up_no_other_and_nobody_for_ever() {
    let cache = scenario::cache(3);
    let job = scenario::job("minilm");
    let work = work(&[("n1", "f1"), ("n2", "f1")]);
    let over = Some(Duration::from_secs(1000));
    let next = |refused: &[&str], failed: &[&str], waited| {
        let held = scenario::held(refused, failed);
        let request = next(&job, &cache, &work, (&held, waited))?;
        Some(request.key.name)
    };
    assert_eq!(next(&[], &[], None).as_deref(), Some("n1"));
    assert_eq!(next(&[], &["n1"], None).as_deref(), Some("n2"));
    // It is not over yet.
    assert_eq!(next(&[], &["n2", "n1"], None).as_deref(), Some("n2"));
    assert_eq!(next(&["n2"], &["n1"], None).as_deref(), Some("n1"));
    assert_eq!(next(&[], &["n1"], over).as_deref(), Some("n2"));
    assert_eq!(next(&["n2"], &["n1"], over), None);
}

#[test]
fn a_node_takes_no_more_models_than_its_annotations_and_its_agent_can_hold() {
    let job = scenario::job("minilm");
    let first = work(&[("n2", "f1")]);
    let write = |cache: &mut Cache, name: &str, note: Note| {
        scenario::noted(cache, "n2", &format!("{PREFIX}team-b.{name}"), &note);
    };
    let none = (&HeldNodes::default(), None);
    // Too many, and too large.
    for (count, fingerprint) in [(MODELS_MAX, "f1".to_owned()), (90, "f".repeat(1500))] {
        let mut cache = scenario::cache(3);
        for number in 0..count {
            assert!(next(&job, &cache, &first, none).is_some() || number > 70);
            write(&mut cache, &number.to_string(), note(&fingerprint));
        }
        assert_eq!(next(&job, &cache, &first, none), None);
        // One more that somebody wrote by hand.
        write(&mut cache, "more", note(&fingerprint));
        assert!(read(&cache).to_look_after("n2").len() <= MODELS_MAX);
    }
    // What it has already is replaced.
    let mut cache = cache();
    for number in 1..MODELS_MAX {
        write(&mut cache, &number.to_string(), note("f1"));
    }
    let second = work(&[("n2", "f2")]);
    assert!(next(&job, &cache, &second, none).is_some());
}

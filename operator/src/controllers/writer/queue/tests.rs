use k8s_openapi::api::core::v1::Node;
use serde_json::json;
use weft_crds::TransferJob;

use super::*;
use crate::controllers::request::Change;

const SECOND: Duration = Duration::from_secs(1);

fn job(name: &str) -> Requester {
    Requester {
        controller: "jobs",
        key: Key::cluster_scoped(name),
    }
}

fn fabrics() -> Requester {
    Requester {
        controller: "fabrics",
        key: Key::default(),
    }
}

/// A status of a job, with this text in it.
fn status(name: &str, text: &str) -> Request {
    let change = Change::ApplyStatus(json!({ "message": text }));
    Request {
        priority: Priority::High,
        ..Request::new::<TransferJob>(Key::cluster_scoped(name), change)
    }
}

fn progress(name: &str, text: &str) -> Request {
    Request {
        priority: Priority::Low,
        ..status(name, text)
    }
}

fn label(node: &str, text: &str) -> Request {
    let change = Change::MergeMetadata(json!({ "labels": { text: "true" } }));
    Request::new::<Node>(Key::cluster_scoped(node), change)
}

fn event(text: &str) -> (ObjectReference, Event) {
    let event = Event {
        warning: false,
        reason: "Test".to_owned(),
        note: text.to_owned(),
    };
    let object = ObjectReference {
        name: Some(text.to_owned()),
        ..ObjectReference::default()
    };
    (object, event)
}

/// What is sent at that time, by the text in it.
fn sent(queue: &mut WriteQueue, now: Duration) -> Vec<String> {
    let mut sent = Vec::new();
    while let Some(next) = queue.next_write(now) {
        sent.push(match queue.take(next).unwrap() {
            Write::Event(_, event) => event.note,
            Write::Request(_, request) => match request.change {
                Change::ApplyStatus(status) => status["message"].as_str().unwrap().to_owned(),
                Change::MergeMetadata(metadata) => {
                    let labels = metadata["labels"].as_object().unwrap();
                    labels.keys().next().unwrap().clone()
                }
                other => panic!("{other:?}"),
            },
        });
    }
    sent
}

fn answered(queue: &mut WriteQueue, name: &str, outcome: WriteOutcome, now: Duration) {
    queue.record_outcome(&status(name, "").object(), outcome, now);
}

#[test]
fn a_newer_request_for_an_object_takes_the_place_of_the_one_that_waits() {
    let mut queue = WriteQueue::default();
    for name in ["a", "b"] {
        queue.submit(&job(name), vec![status(name, &format!("{name} old"))]);
    }
    queue.submit(&job("a"), vec![status("a", "a new")]);
    assert_eq!(sent(&mut queue, SECOND), ["a new", "b old"]);
}

#[test]
fn what_an_owner_does_not_want_any_more_is_not_sent() {
    let mut queue = WriteQueue::default();
    queue.submit(&job("a"), vec![status("a", "a")]);
    queue.submit(&job("b"), vec![status("b", "b")]);
    queue.submit(&job("a"), Vec::new());
    assert_eq!(sent(&mut queue, SECOND), ["b"]);
}

#[test]
fn a_namespace_with_many_requests_delays_another_by_one() {
    let mut queue = WriteQueue::default();
    let submit = |queue: &mut WriteQueue, namespace: &str, name: &str| {
        let key = Key {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        };
        let requester = Requester {
            controller: "jobs",
            key: key.clone(),
        };
        let request = Request {
            key,
            ..status(name, &format!("{namespace}/{name}"))
        };
        queue.submit(&requester, vec![request]);
    };
    for number in 0..4 {
        submit(&mut queue, "a", &number.to_string());
    }
    let mut sent = Vec::new();
    for pass in 0..6 {
        if pass == 2 {
            submit(&mut queue, "b", "0");
            submit(&mut queue, "b", "1");
        }
        let next = queue.next_write(SECOND).unwrap();
        let Some(Write::Request(requester, request)) = queue.take(next) else {
            panic!("no request");
        };
        queue.record_outcome(&request.object(), WriteOutcome::Written, SECOND);
        sent.push(format!(
            "{}/{}",
            requester.key.namespace, requester.key.name
        ));
    }
    assert_eq!(sent, ["a/0", "a/1", "b/0", "a/2", "b/1", "a/3"]);
}

#[test]
fn jobs_go_before_nodes_and_these_before_progress_and_events() {
    let mut queue = WriteQueue::default();
    let (object, news) = event("event");
    assert!(queue.publish(object, news, SECOND));
    queue.submit(&job("a"), vec![progress("a", "progress")]);
    queue.submit(&fabrics(), vec![label("n1", "label")]);
    queue.submit(&job("b"), vec![status("b", "transition")]);
    assert_eq!(
        sent(&mut queue, SECOND),
        ["transition", "label", "progress", "event"]
    );
}

#[test]
fn a_report_that_a_newer_one_replaced_is_counted() {
    let mut queue = WriteQueue::default();
    assert_eq!(queue.submit(&job("a"), vec![progress("a", "1 %")]), 0);
    assert_eq!(queue.submit(&job("a"), vec![progress("a", "1 %")]), 0);
    assert_eq!(queue.submit(&job("a"), vec![progress("a", "2 %")]), 1);
    assert_eq!(queue.submit(&job("a"), vec![status("a", "done")]), 1);
}

#[test]
fn one_request_for_an_object_is_under_way_at_a_time() {
    let mut queue = WriteQueue::default();
    queue.submit(&job("a"), vec![label("n1", "of a")]);
    assert_eq!(sent(&mut queue, SECOND), ["of a"]);
    // Of the same requester the answer decides; another's waits for it.
    queue.submit(&job("a"), vec![label("n1", "of a again")]);
    queue.submit(&job("b"), vec![label("n1", "of b")]);
    assert_eq!(sent(&mut queue, SECOND), [""; 0]);
    queue.record_outcome(&label("n1", "").object(), WriteOutcome::Written, SECOND);
    assert_eq!(sent(&mut queue, SECOND), ["of b"]);
}

#[test]
fn an_object_whose_request_failed_is_left_alone_and_the_others_are_not() {
    let mut queue = WriteQueue::default();
    for name in ["a", "b"] {
        queue.submit(&job(name), vec![status(name, name)]);
    }
    assert_eq!(sent(&mut queue, SECOND), ["a", "b"]);
    answered(&mut queue, "a", WriteOutcome::Failed, SECOND);
    answered(&mut queue, "b", WriteOutcome::Conflict, SECOND);
    for name in ["a", "b"] {
        queue.submit(&job(name), vec![status(name, name)]);
    }
    assert_eq!(sent(&mut queue, SECOND), [""; 0]);
    // A conflict is over as soon as the newer version has been heard of.
    let after_conflict = SECOND + SECOND / 10;
    assert_eq!(queue.wakeup(SECOND), Some(after_conflict));
    assert_eq!(sent(&mut queue, after_conflict), ["b"]);
    assert_eq!(queue.wakeup(after_conflict), Some(2 * SECOND));
    assert!(queue.is_backing_off(&status("a", "").object(), after_conflict));
    assert_eq!(sent(&mut queue, 2 * SECOND), ["a"]);
    assert_eq!(queue.wakeup(2 * SECOND), None);
}

#[test]
fn a_kind_whose_requests_hang_leaves_room_for_the_others() {
    let mut queue = WriteQueue::default();
    for number in 0..20 {
        let name = format!("j{number:02}");
        queue.submit(&job(&name), vec![status(&name, &name)]);
    }
    queue.submit(
        &fabrics(),
        (0..20)
            .map(|number| label(&format!("n{number}"), "label"))
            .collect(),
    );
    let (object, news) = event("event");
    assert!(queue.publish(object, news, SECOND));
    let first: Vec<String> = (0..6).map(|number| format!("j{number:02}")).collect();
    assert_eq!(
        sent(&mut queue, SECOND),
        [first, vec!["label".to_owned(); 2], vec!["event".to_owned()]].concat()
    );
    answered(&mut queue, "j03", WriteOutcome::Failed, 11 * SECOND);
    assert_eq!(sent(&mut queue, 11 * SECOND), ["j06"]);
}

#[test]
fn thousands_of_nodes_that_wait_or_fail_hold_up_no_job_and_no_progress() {
    let mut queue = WriteQueue::default();
    let nodes = || {
        (0..5000)
            .map(|number| label(&format!("n{number}"), "label"))
            .collect()
    };
    queue.submit(&fabrics(), nodes());
    queue.submit(&job("a"), vec![status("a", "transition")]);
    let next = queue.next_write(SECOND).unwrap();
    assert!(matches!(&next, NextWrite::Request((requester, _)) if *requester == job("a")));
    drop(queue.take(next));
    // All of them fail, and are tried again.
    for number in 0..5000 {
        let node = label(&format!("n{number}"), "").object();
        queue.record_outcome(&node, WriteOutcome::Failed, SECOND);
    }
    queue.submit(&job("b"), vec![progress("b", "progress")]);
    queue.submit(&fabrics(), nodes());
    for name in ["c", "d"] {
        queue.submit(&job(name), vec![progress(name, "progress")]);
    }
    let first = &sent(&mut queue, 3 * SECOND)[..2];
    assert_eq!(first, ["label", "label"], "they were asked for first");
    let mut fresh = WriteQueue::default();
    fresh.submit(&fabrics(), vec![label("n1", "label")]);
    assert_eq!(sent(&mut fresh, SECOND), ["label"]);
    fresh.record_outcome(&label("n1", "").object(), WriteOutcome::Failed, SECOND);
    fresh.submit(&job("b"), vec![progress("b", "progress")]);
    fresh.submit(&fabrics(), vec![label("n1", "label")]);
    assert_eq!(sent(&mut fresh, 3 * SECOND), ["progress", "label"]);
}

#[test]
fn events_that_nobody_takes_are_bounded() {
    let mut queue = WriteQueue::default();
    for number in 0..=EVENTS_WAITING_MAX {
        let (object, news) = event(&number.to_string());
        assert_eq!(
            queue.publish(object, news, SECOND),
            number < EVENTS_WAITING_MAX
        );
    }
    assert_eq!(sent(&mut queue, SECOND), ["0"]);
    queue.finish_event();
    assert_eq!(sent(&mut queue, SECOND), ["1"]);
}

#[test]
fn events_are_published_one_after_the_other() {
    let mut queue = WriteQueue::default();
    for (name, text) in [("a", "first of a"), ("a", "second of a")] {
        assert!(queue.publish(event(name).0, event(text).1, SECOND));
    }
    assert_eq!(sent(&mut queue, SECOND), ["first of a"]);
    assert_eq!(sent(&mut queue, SECOND), [""; 0]);
    queue.finish_event();
    assert_eq!(sent(&mut queue, SECOND), ["second of a"]);
}

#[test]
fn events_of_one_reason_about_an_object_are_bounded_in_five_minutes_and_others_are_published() {
    let mut queue = WriteQueue::default();
    let mut publish = |name: &str, reason: &str, now: Duration| {
        let (object, news) = event(name);
        let reason = reason.to_owned();
        queue.publish(object, Event { reason, ..news }, now)
    };
    for number in 0..EVENTS_OF_A_REASON_MAX + 10 {
        let has_room = number < EVENTS_OF_A_REASON_MAX;
        assert_eq!(publish("n1", "DeviceStalled", SECOND), has_room);
    }
    assert!(publish("n1", "LinkDown", 2 * SECOND));
    assert!(publish("n2", "DeviceStalled", 2 * SECOND));
    assert!(!publish("n1", "DeviceStalled", EVENTS_INTERVAL));
    let later = EVENTS_INTERVAL + SECOND;
    assert!(publish("n1", "DeviceStalled", later));
}

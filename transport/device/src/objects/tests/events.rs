use super::*;

#[test]
fn a_queue_pair_that_comes_into_error_takes_no_more_from_its_shared_receive_queue_and_says_so_once()
{
    let mut device = Fixture::new();
    let (_, sharing) = device.sharing();
    let (.., own) = device.queue_pair();
    for pair in [sharing, own] {
        assert_eq!(device.modify(pair, INIT, init()), Ok(Answer::Done));
        device.go(pair, State::Error);
        device.go(pair, State::Error);
        device.objects.fail_queue_pair(pair, true);
    }
    let last = (EventType::LastWorkRequestReached, sharing);
    assert_eq!(device.events(), [last]);
    // Once more when it comes there once more; what no completion says is told too.
    device.go(sharing, State::Reset);
    device.objects.fail_queue_pair(sharing, false);
    assert_eq!(
        device.events(),
        [(EventType::QueuePairFatal, sharing), last]
    );
}

#[test]
fn a_message_for_a_queue_pair_that_cannot_send_yet_establishes_the_communication_once() {
    let mut device = Fixture::new();
    let (.., pair) = device.queue_pair();
    for _ in 0..2 {
        device.objects.message_received(pair);
        device.set_ready(pair);
        assert_eq!(device.events(), []);
        device.objects.message_received(pair);
        device.objects.message_received(pair);
        let established = (EventType::CommunicationEstablished, pair);
        assert_eq!(device.events(), [established]);
        device.go(pair, State::Reset);
    }
}

#[test]
fn a_program_that_asks_for_it_is_told_once_that_the_send_queue_is_drained() {
    const SEND: Attributes = Attributes::STATE
        .union(Attributes::SQ_PSN)
        .union(Attributes::TIMEOUT)
        .union(Attributes::RETRY_CNT)
        .union(Attributes::RNR_RETRY)
        .union(Attributes::MAX_QP_RD_ATOMIC);
    let mut device = Fixture::new();
    let (.., pair) = device.queue_pair();
    device.set_ready(pair);
    let sending = QueuePairAttributes {
        state: State::ReadyToSend as u32,
        ..QueuePairAttributes::default()
    };
    assert_eq!(device.modify(pair, SEND, sending), Ok(Answer::Done));
    let drained = QueuePairAttributes {
        state: State::SendQueueDrained as u32,
        notifies_drained: true,
        ..QueuePairAttributes::default()
    };
    let notify = Attributes::STATE.union(Attributes::EN_SQD_ASYNC_NOTIFY);
    for (given, expected) in [
        (Attributes::STATE, &[][..]),
        (notify, &[(EventType::SendQueueDrained, pair)]),
        (Attributes::STATE, &[]),
    ] {
        device.objects.sends_complete(pair);
        assert_eq!(device.modify(pair, given, drained), Ok(Answer::Done));
        assert_eq!(device.attributes(pair).notifies_drained, given == notify);
        assert_eq!(device.events(), []);
        device.objects.sends_complete(pair);
        device.objects.sends_complete(pair);
        assert_eq!(device.events(), expected);
        device.go(pair, State::ReadyToSend);
    }
}

#[test]
fn a_limit_of_a_shared_receive_queue_is_reached_once() {
    let mut device = Fixture::new();
    let (queue, _) = device.sharing();
    let limit = |limit| Request::ModifySharedReceiveQueue { queue, limit };
    let refused = Err(ErrorNumber::InvalidArgument);
    assert_eq!(device.ask(limit(9)), refused);
    assert_eq!(device.ask(limit(8)), Ok(Answer::Done));
    assert_eq!(device.ask(limit(3)), Ok(Answer::Done));
    let query = Request::QuerySharedReceiveQueue(queue);
    assert_eq!(device.ask(query), Ok(Answer::ReceiveLimit(3)));
    device.objects.set_receives_left(queue, 3);
    assert_eq!(device.events(), []);
    device.objects.set_receives_left(queue, 2);
    device.objects.set_receives_left(queue, 1);
    let reached = (EventType::SharedReceiveQueueLimitReached, queue);
    assert_eq!(device.events(), [reached]);
    assert_eq!(device.ask(query), Ok(Answer::ReceiveLimit(0)));
    let (queue, limit) = (99, 0);
    let unknown = Request::ModifySharedReceiveQueue { queue, limit };
    assert_eq!(device.ask(unknown), refused);
    assert_eq!(device.ask(Request::QuerySharedReceiveQueue(99)), refused);
}

#[test]
fn events_wait_for_room_and_are_gone_with_their_objects() {
    let mut device = Fixture::new();
    let (queue, pair) = device.sharing();
    device.objects.fail_queue_pair(pair, true);
    device.objects.fail_shared_receive_queue(queue);
    device.objects.fail_completion_queue(1);
    // The same numbers are those of other objects: only the queue pair's event goes.
    assert_eq!((queue, pair), (1, 2));
    device.ask(Request::DestroyQueuePair(pair)).unwrap();
    let mut room = 2;
    device.objects.send_events(|event| {
        room -= 1;
        assert!(event.object < 2);
        room > 0
    });
    assert_eq!(
        device.events(),
        [
            (EventType::DeviceFatal, 0),
            (EventType::SharedReceiveQueueError, queue)
        ]
    );
    device.objects.fail_shared_receive_queue(queue);
    device.objects.fail_completion_queue(1);
    let destroy = Request::DestroySharedReceiveQueue(queue);
    assert_eq!(device.ask(destroy), Ok(Answer::Done));
    let destroy = Request::DestroyCompletionQueue(1);
    assert_eq!(device.ask(destroy), Ok(Answer::Done));
    assert_eq!(device.events(), [(EventType::DeviceFatal, 0)]);
}

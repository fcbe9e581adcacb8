//! What the program is told of its objects.

use super::Objects;
use crate::event::{Event, EventType, ObjectType};
use crate::state::State;

impl Objects {
    /// A message of the peer has taken a receive of the queue pair.
    pub fn message_received(&mut self, number: u32) {
        if let Some(found) = self.queue_pairs.objects.get_mut(&number)
            && found.state == State::ReadyToReceive
            && !std::mem::replace(&mut found.is_established, true)
        {
            self.add_event(EventType::CommunicationEstablished, number);
        }
    }

    /// All that the queue pair has begun to send is complete.
    pub fn sends_complete(&mut self, number: u32) {
        if let Some(found) = self.queue_pairs.objects.get_mut(&number)
            && found.state == State::SendQueueDrained
            && std::mem::take(&mut found.attributes.notifies_drained)
        {
            self.add_event(EventType::SendQueueDrained, number);
        }
    }

    /// A shared receive queue has so many receives that no message has taken.
    pub fn set_receives_left(&mut self, queue: u32, left: u32) {
        if let Some(found) = self.shared_receive_queues.objects.get_mut(&queue)
            && left < found.limit
        {
            found.limit = 0;
            self.add_event(EventType::SharedReceiveQueueLimitReached, queue);
        }
    }

    /// A receive was bad: the shared receive queue gives no further one.
    pub fn fail_shared_receive_queue(&mut self, queue: u32) {
        self.add_event(EventType::SharedReceiveQueueError, queue);
    }

    /// A completion could not be put into this queue, and the device works no more.
    pub fn fail_completion_queue(&mut self, queue: u32) {
        self.add_event(EventType::CompletionQueueError, queue);
        self.events.insert(Event::DEVICE_FATAL);
    }

    pub(super) fn add_event(&mut self, kind: EventType, object: u32) {
        self.events.insert(Event { kind, object });
    }

    /// Hands over the events that the program was not told yet, until `send` answers that there is no room.
    pub fn send_events(&mut self, mut send: impl FnMut(Event) -> bool) {
        while let Some(event) = self.events.first()
            && send(*event)
        {
            self.events.pop_first();
        }
    }

    /// An object is gone: nothing happens to it any more.
    pub(super) fn drop_events(&mut self, of: ObjectType, object: u32) {
        self.events
            .retain(|event| event.object != object || event.kind.object_type() != of);
    }
}

//! Cancels messages under way.

use weft_core::connection::{CancelError, Connection};

use super::Simulation;
use crate::end::EndState;
use crate::machine::Process;
use crate::observation::{Message, Observation, Operation};

/// A host whose process is being replaced is asked again after this.
const AGAIN_NANOS: u64 = 1_000_000;

impl Simulation {
    /// Draws whether and when a message that was just posted is cancelled.
    pub(crate) fn draw_cancel(&mut self, message: Message) {
        let (share, within) = self.scenario.workload.cancels;
        if self.cancels.chance(share) {
            let after = match self.cancels.chance(100_000) {
                true => 0,
                false => self.cancels.magnitude(1, within.get()),
            };
            self.agenda.cancel(self.now + after, message);
        }
    }

    /// Cancels a message, if its end is open.
    pub(crate) fn cancel(&mut self, message: &Message) {
        let end = &self.ends[message.writer.0];
        let (host, id) = (end.host, end.id);
        if !end.alive() {
            return;
        }
        let running = match &mut self.machines[host].process {
            Process::Running(running) => running,
            Process::Replaced(_) => {
                return self.agenda.cancel(self.now + AGAIN_NANOS, *message);
            }
            Process::Dead => return,
        };
        let connection = running.endpoint.connection(id);
        let untold = connection.is_some_and(Connection::has_event);
        let result = running.endpoint.cancel(id, message.id);
        let may = match message.operation {
            Operation::Write | Operation::Pages(_) | Operation::Read { .. } => true,
            Operation::Send | Operation::Add => false,
        };
        let in_order = self.scenario.in_order;
        let is_sound = match result {
            Ok(()) => may && !in_order,
            Err(CancelError::InOrder) => in_order,
            Err(CancelError::NotCancellable) => !may,
            // Whether it has ended, the checker knows.
            Err(CancelError::NotUnderWay | CancelError::Closed) => true,
        };
        if !is_sound {
            let text = format!("{message:?} is to be cancelled: {result:?}");
            self.checkers.violated("confirmed cancel", self.now, text);
        }
        if result.is_ok() {
            self.cancelling.insert(message.id);
            let EndState {
                requests,
                cancelled_reads,
                ..
            } = &mut self.ends[message.writer.0];
            let number = (0u64..).zip(&*requests).find(|(_, of)| **of == message.id);
            cancelled_reads.extend(number.map(|(number, _)| number));
        }
        let asked = Observation::CancelAsked {
            message,
            result,
            untold,
        };
        self.checkers.observe(self.now, &asked);
        self.wake(host);
    }
}

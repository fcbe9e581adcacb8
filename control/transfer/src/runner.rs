//! Drives a transfer: its commands go out as calls, and the answers come back.
//!
//! Every call is a task of its own; the transfer's owner calls [`Runner::run_once`]. HTTP/2 pings find an agent that
//! does not answer any more, long before a call's own deadline.

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::mpsc::{UnboundedReceiver, unbounded_channel},
    task::JoinSet,
    time::Instant,
};

use crate::{
    calls::CallContext,
    command::{Cleanup, Command, Input},
    endpoint::AgentEndpoint,
    pool::ConnectionPool,
    spec::{DestinationsUpdate, Spec},
    transfer::Transfer,
};

/// A transfer that is carried out. Dropping it ends all its calls, and tells the agents nothing.
pub struct Runner {
    transfer: Transfer,
    context: CallContext,
    inputs: UnboundedReceiver<Box<Input>>,
    tasks: JoinSet<()>,
    began: Instant,
    /// Attempts up to this number are recorded.
    recorded: u32,
}

impl Runner {
    /// Begins a transfer. A call to a node without an endpoint is refused with a reason.
    pub fn begin(spec: Spec, pool: ConnectionPool, endpoints: &[AgentEndpoint]) -> Self {
        Self::with(Transfer::begin(spec), pool, endpoints)
    }

    /// Cancels a transfer that an earlier operator began.
    pub fn cancelled(
        spec: Spec,
        cleanup: Cleanup,
        pool: ConnectionPool,
        endpoints: &[AgentEndpoint],
    ) -> Self {
        Self::with(Transfer::cancelled(spec, cleanup), pool, endpoints)
    }

    /// From now on an attempt begins only once [`Runner::attempt_recorded`] has named its number.
    #[must_use]
    pub fn requiring_recorded_attempts(mut self) -> Self {
        self.recorded = 0;
        self
    }

    /// Attempts up to this number are recorded, and may begin.
    pub fn attempt_recorded(&mut self, attempt: u32) {
        self.recorded = attempt;
        let waiting = self
            .transfer
            .unrecorded_attempt()
            .filter(|number| *number <= attempt);
        if let Some(attempt) = waiting {
            self.handle_input(Input::AttemptRecorded { attempt });
        }
    }

    fn with(
        (transfer, commands): (Transfer, Vec<Command>),
        pool: ConnectionPool,
        endpoints: &[AgentEndpoint],
    ) -> Self {
        let (sender, inputs) = unbounded_channel();
        let context = CallContext {
            agents: Arc::new(pool.agents(endpoints)),
            pool,
            inputs: sender,
            spec: transfer.shared_spec(),
            listing: None,
        };
        let mut runner = Self {
            transfer,
            context,
            inputs,
            tasks: JoinSet::new(),
            began: Instant::now(),
            // Without another operator there is nothing to record.
            recorded: u32::MAX,
        };
        runner.issue(commands);
        runner
    }

    /// The transfer as it is now.
    pub fn transfer(&self) -> &Transfer {
        &self.transfer
    }

    /// Time since it began: the transfer's clock.
    pub fn now(&self) -> Duration {
        self.began.elapsed()
    }

    /// Handles the next input, or wakes the transfer. Safe to be dropped while it waits.
    ///
    /// # Panics
    /// With a call's own panic.
    pub async fn run_once(&mut self) {
        let due = self.transfer.wake_at().map(|at| self.began + at);
        let input = tokio::select! {
            input = self.inputs.recv() => input.map_or(Input::Woken, |input| *input),
            Some(ended) = self.tasks.join_next() => {
                if let Err(error) = ended && error.is_panic() {
                    std::panic::resume_unwind(error.into_panic());
                }
                return;
            }
            () = at(due) => Input::Woken,
        };
        self.handle_input(input);
    }

    /// Cancels the transfer; it is over once the agents know.
    pub fn cancel(&mut self, cleanup: Cleanup) {
        self.handle_input(Input::Cancel(cleanup));
    }

    /// Replaces the destinations, of which verified ones stay, and takes the present endpoints of all agents. A node
    /// without an endpoint keeps the one that it had: a former destination is still told of the end.
    pub fn update_destinations(&mut self, update: DestinationsUpdate, endpoints: &[AgentEndpoint]) {
        let mut agents = self.context.pool.agents(endpoints);
        for (node, agent) in &*self.context.agents {
            agents.entry(node.clone()).or_insert_with(|| agent.clone());
        }
        // Calls that are under way end with the endpoints that they began with.
        self.context.agents = Arc::new(agents);
        self.handle_input(Input::Destinations(Box::new(update)));
    }

    fn handle_input(&mut self, input: Input) {
        let commands = self.transfer.advance(self.began.elapsed(), input);
        self.issue(commands);
    }

    fn issue(&mut self, commands: Vec<Command>) {
        for command in commands {
            tracing::debug!(?command);
            if matches!(command, Command::RecordAttempt { .. }) {
                self.attempt_recorded(self.recorded);
                continue;
            }
            let context = CallContext {
                spec: self.transfer.shared_spec(),
                listing: self.transfer.listing().cloned(),
                ..self.context.clone()
            };
            self.tasks.spawn(async move { context.run(command).await });
        }
    }
}

async fn at(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests;

//! Steps a job: its commands go out as calls, and the answers come back.
//!
//! Every call is a task of its own; the job is stepped by whoever calls [`Runner::turn`]. An agent
//! that has vanished is found out by HTTP/2 pings, long before a call's own deadline.

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::{
        mpsc::{UnboundedReceiver, unbounded_channel},
        watch,
    },
    task::JoinSet,
    time::Instant,
};

use super::{Answer, Channels, Cleanup, Command, Job, Roster, Spec, calls::Calls};

/// An agent's control API.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Contact {
    /// The node.
    pub node: String,
    /// `HOST:PORT`.
    pub address: String,
}

/// A job on its way. Dropping it ends all its calls; agents are told nothing.
pub struct Runner {
    job: Job,
    calls: Arc<Calls>,
    answers: UnboundedReceiver<Box<Answer>>,
    tasks: JoinSet<()>,
    began: Instant,
    /// Attempts up to this number may begin.
    permits: watch::Receiver<u32>,
}

impl Runner {
    /// Begins a job at agents that were made known to it, in the fabric that the channels are seen
    /// from. One that cannot be called is a refusal of its node, when it is called.
    pub fn begin(spec: Spec, channels: Channels, contacts: &[Contact]) -> Self {
        Self::with(Job::begin(spec), channels, contacts)
    }

    /// Tells the agents of a job that an earlier operator began that nobody wants it any more.
    pub fn withdraw(
        spec: Spec,
        cleanup: Cleanup,
        channels: Channels,
        contacts: &[Contact],
    ) -> Self {
        let begun = Job::withdraw(spec, cleanup);
        Self::with(begun, channels, contacts)
    }

    /// From now on an attempt begins only once this says that its number may.
    #[must_use]
    pub fn heeding(mut self, permits: watch::Receiver<u32>) -> Self {
        self.permits = permits;
        self
    }

    fn with(
        (job, commands): (Job, Vec<Command>),
        channels: Channels,
        contacts: &[Contact],
    ) -> Self {
        let (sender, answers) = unbounded_channel();
        let calls = Calls::new(job.spec().clone(), channels, contacts, sender);
        let mut runner = Self {
            job,
            calls: Arc::new(calls),
            answers,
            tasks: JoinSet::new(),
            began: Instant::now(),
            // Without a successor there is nothing to write down.
            permits: watch::channel(u32::MAX).1,
        };
        runner.issue(commands);
        runner
    }

    /// How it stands.
    pub fn job(&self) -> &Job {
        &self.job
    }

    /// Time since it began: the job's clock.
    pub fn now(&self) -> Duration {
        self.began.elapsed()
    }

    /// Takes the next answer, or wakes the job. Safe to be dropped while it waits.
    ///
    /// # Panics
    /// With a call's own panic.
    pub async fn turn(&mut self) {
        let due = self.job.wake_at().map(|at| self.began + at);
        let answer = tokio::select! {
            answer = self.answers.recv() => answer.map_or(Answer::Woken, |answer| *answer),
            Some(ended) = self.tasks.join_next() => {
                if let Err(error) = ended && error.is_panic() {
                    std::panic::resume_unwind(error.into_panic());
                }
                return;
            }
            () = at(due) => Answer::Woken,
        };
        self.take(answer);
    }

    /// Nobody wants it any more; it is over once the agents know.
    pub fn stop(&mut self, cleanup: Cleanup) {
        self.take(Answer::Stop(cleanup));
    }

    /// Takes up who has come to be a destination, and where the agents are now. One that is not
    /// named has left the fabric.
    pub fn meet(&mut self, roster: Roster, contacts: &[Contact]) {
        let commands = self
            .job
            .advance(self.began.elapsed(), Answer::Roster(Box::new(roster)));
        // Calls that are under way end with what they began with.
        self.calls = Arc::new(self.calls.with(self.job.spec().clone(), contacts));
        self.issue(commands);
    }

    fn take(&mut self, answer: Answer) {
        let commands = self.job.advance(self.began.elapsed(), answer);
        if let Some(calls) = self.calls.moved(self.job.spec()) {
            self.calls = Arc::new(calls);
        }
        self.issue(commands);
    }

    fn issue(&mut self, commands: Vec<Command>) {
        for command in commands {
            tracing::debug!(?command);
            let calls = Arc::clone(&self.calls);
            // Of these there are most, and they last longest: each is a task that holds nothing else.
            if let Command::Follow { node, attempt } = command {
                self.tasks
                    .spawn(async move { calls.follow(node, attempt).await });
                continue;
            }
            let listing = self.job.listing().cloned();
            let permits = self.permits.clone();
            self.tasks
                .spawn(async move { calls.carry_out(command, listing, permits).await });
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

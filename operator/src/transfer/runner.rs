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

use super::{Answer, Command, Job, Removal, Roster, Spec, agent::agents, calls::Calls};
use crate::authority::{Authority, AuthorityError};

/// An agent's control API.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Contact {
    /// The node.
    pub node: String,
    /// `HOST:PORT`.
    pub address: String,
}

/// Why agents cannot even be called.
#[derive(Debug, thiserror::Error)]
pub enum RunnerError {
    /// No certificate for the operator.
    #[error(transparent)]
    Authority(#[from] AuthorityError),
    /// An address is none, or the certificates cannot be used.
    #[error("node {node} at {address} cannot be called: {source}; check address and certificates")]
    Contact {
        /// The node.
        node: String,
        /// Its address.
        address: String,
        /// What the library said.
        source: tonic::transport::Error,
    },
}

impl RunnerError {
    /// A short stable name.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Authority(error) => error.reason(),
            Self::Contact { .. } => "ContactUnusable",
        }
    }
}

/// A job on its way. Dropping it ends all its calls; agents are told nothing.
pub struct Runner {
    job: Job,
    calls: Arc<Calls>,
    answers: UnboundedReceiver<Answer>,
    tasks: JoinSet<()>,
    began: Instant,
    /// Attempts up to this number may begin.
    permits: watch::Receiver<u32>,
}

impl Runner {
    /// Begins a job at agents that were made known to it.
    pub fn begin(
        spec: Spec,
        authority: Arc<Authority>,
        contacts: &[Contact],
    ) -> Result<Self, RunnerError> {
        Self::with(Job::begin(spec), authority, contacts)
    }

    /// Tells the agents of a job that an earlier operator began that nobody wants it any more.
    pub fn withdraw(
        spec: Spec,
        (discard, remove): (bool, Vec<Removal>),
        authority: Arc<Authority>,
        contacts: &[Contact],
    ) -> Result<Self, RunnerError> {
        let begun = Job::withdraw(spec, discard, remove);
        Self::with(begun, authority, contacts)
    }

    /// From now on an attempt begins only once this says that its number may.
    #[must_use]
    pub fn heeding(mut self, permits: watch::Receiver<u32>) -> Self {
        self.permits = permits;
        self
    }

    fn with(
        (job, commands): (Job, Vec<Command>),
        authority: Arc<Authority>,
        contacts: &[Contact],
    ) -> Result<Self, RunnerError> {
        let agents = agents(&authority, contacts)?;
        let (sender, answers) = unbounded_channel();
        let calls = Calls {
            spec: job.spec().clone(),
            authority,
            agents,
            answers: sender,
        };
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
        Ok(runner)
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
            answer = self.answers.recv() => answer.unwrap_or(Answer::Woken),
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
    pub fn stop(&mut self, discard: bool, remove: Vec<Removal>) {
        self.take(Answer::Stop { discard, remove });
    }

    /// Takes up who has come to be a destination, and agents that have another address now.
    pub fn meet(&mut self, roster: Roster, contacts: &[Contact]) -> Result<(), RunnerError> {
        let is_new = |contact: &&Contact| {
            let known = self.calls.agents.get(&contact.node);
            known.is_none_or(|known| known.address != contact.address)
        };
        let new: Vec<Contact> = contacts.iter().filter(is_new).cloned().collect();
        let mut agents = self.calls.agents.clone();
        if !new.is_empty() {
            agents.extend(self::agents(&self.calls.authority, &new)?);
        }
        let commands = self
            .job
            .advance(self.began.elapsed(), Answer::Roster(Box::new(roster)));
        // Calls that are under way end with what they began with.
        self.calls = Arc::new(Calls {
            spec: self.job.spec().clone(),
            authority: Arc::clone(&self.calls.authority),
            agents,
            answers: self.calls.answers.clone(),
        });
        self.issue(commands);
        Ok(())
    }

    fn take(&mut self, answer: Answer) {
        let commands = self.job.advance(self.began.elapsed(), answer);
        self.issue(commands);
    }

    fn issue(&mut self, commands: Vec<Command>) {
        for command in commands {
            tracing::debug!(?command);
            let calls = Arc::clone(&self.calls);
            let manifest = self.job.manifest().cloned();
            let permits = self.permits.clone();
            self.tasks
                .spawn(async move { calls.carry_out(command, manifest, permits).await });
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

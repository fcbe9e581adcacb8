//! Calls of the API server: each has a time limit, and those that cannot be done without are tried again. An
//! API server that is being started or upgraded is no reason to end.

use std::{fmt::Display, time::Duration};

use tokio::time::{sleep, timeout};
use weft_identity::cause::innermost;

/// Before the second try; it doubles …
const FIRST: Duration = Duration::from_secs(1);
/// … up to this: whoever is back after an hour is found within half a minute.
const LONGEST: Duration = Duration::from_secs(30);
/// Whoever answers at all answers within.
pub(crate) const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// Why a call came to nothing.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// The API server refused it, or could not be reached.
    #[error("{}", innermost(.0))]
    Refused(#[from] kube::Error),
    /// It did not answer.
    #[error("no answer within {} s", ANSWER_WITHIN.as_secs())]
    Late,
}

impl CallError {
    /// The same may succeed without anybody changing anything: there was no answer, or one by which the API
    /// server says that it cannot now.
    pub(crate) fn passes(&self) -> bool {
        match self {
            Self::Refused(kube::Error::Api(status)) => status.code == 429 || status.code >= 500,
            Self::Refused(error) => matches!(
                error,
                kube::Error::HyperError(_) | kube::Error::Service(_) | kube::Error::ReadEvents(_)
            ),
            Self::Late => true,
        }
    }

    /// The object is gone or has another version.
    pub(crate) fn is_conflict(&self) -> bool {
        self.has_code(404) || self.has_code(409)
    }

    /// The API server has answered with this code.
    pub(crate) fn has_code(&self, code: u16) -> bool {
        matches!(self, Self::Refused(kube::Error::Api(status)) if status.code == code)
    }
}

/// A call with its time limit.
pub(crate) async fn call<T>(call: impl Future<Output = kube::Result<T>>) -> Result<T, CallError> {
    match timeout(ANSWER_WITHIN, call).await {
        Ok(result) => Ok(result?),
        Err(_) => Err(CallError::Late),
    }
}

/// What has been tried in vain, and how long to wait before it is tried again.
#[derive(Debug)]
struct Retry {
    what: &'static str,
    wait: Duration,
    said: String,
}

impl Retry {
    /// Nothing has been tried; `what` is what the log says that cannot be done.
    fn new(what: &'static str) -> Self {
        Self {
            what,
            wait: FIRST,
            said: String::new(),
        }
    }

    /// It came to nothing, for this reason: how long to wait now, and whether the log is to be told,
    /// which hears of each cause once in a row.
    fn failed(&mut self, cause: &str) -> (Duration, bool) {
        let wait = self.wait;
        self.wait = (wait * 2).min(LONGEST);
        let is_new = self.said != cause;
        cause.clone_into(&mut self.said);
        (wait, is_new)
    }

    /// The same, and then waits.
    async fn wait(&mut self, cause: &str) {
        let (wait, is_new) = self.failed(cause);
        if is_new {
            tracing::warn!("{}: {cause}; trying on", self.what);
        }
        sleep(wait).await;
    }
}

/// Tries until it succeeds, or fails in a way that time does not mend.
///
/// # Errors
/// One that `passes` does not hold for.
pub(crate) async fn retry_until_answered<T, E: Display, F: Future<Output = Result<T, E>>>(
    what: &'static str,
    passes: impl Fn(&E) -> bool,
    mut attempt: impl FnMut() -> F,
) -> Result<T, E> {
    let mut retry = Retry::new(what);
    loop {
        match attempt().await {
            Err(error) if passes(&error) => retry.wait(&error.to_string()).await,
            ended => return ended,
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    #[test]
    fn the_wait_doubles_to_half_a_minute_and_each_cause_is_said_once_in_a_row() {
        let mut retry = Retry::new("nothing can be done");
        let said = ["a", "a", "b", "b", "a", "a", "a"].map(|cause| {
            let (wait, is_new) = retry.failed(cause);
            (wait.as_secs(), is_new)
        });
        let expected = [
            (1, true),
            (2, false),
            (4, true),
            (8, false),
            (16, true),
            (30, false),
            (30, false),
        ];
        assert_eq!(said, expected);
    }

    #[tokio::test(start_paused = true)]
    async fn what_passes_is_tried_again_and_what_does_not_is_told_at_once() {
        let began = Instant::now();
        let mut answers = vec![Ok(7), Err("busy"), Err("busy")];
        let tried = retry_until_answered(
            "the test cannot go on",
            |error| *error == "busy",
            || std::future::ready(answers.pop().unwrap_or(Err("asked too often"))),
        );
        assert_eq!(tried.await, Ok(7));
        assert_eq!(began.elapsed(), Duration::from_secs(3));
        let refused = retry_until_answered(
            "the test cannot go on",
            |_| false,
            || std::future::ready(Err::<(), _>("no")),
        );
        assert_eq!(refused.await, Err("no"));
        assert_eq!(began.elapsed(), Duration::from_secs(3));
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_never_answers_is_asked_again() {
        let mut asked = 0;
        let answered = retry_until_answered("the test cannot go on", CallError::passes, || {
            asked += 1;
            let is_first = asked == 1;
            call(async move {
                if is_first {
                    std::future::pending::<()>().await;
                }
                Ok(())
            })
        });
        assert!(answered.await.is_ok());
        assert_eq!(asked, 2);
    }
}

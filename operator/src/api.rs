//! Calls of the API server: each has a time limit, and those that cannot be done without are tried again. An
//! API server that is being started or upgraded is no reason to end.

use std::{fmt::Display, time::Duration};

use backon::{ExponentialBuilder, Retryable as _};
use tokio::time::timeout;
use weft_identity::cause::innermost;

/// Before the second try; it doubles …
const FIRST: Duration = Duration::from_secs(1);
/// … up to this: an API server that is back after an hour is found within half a minute.
const LONGEST: Duration = Duration::from_secs(30);
/// The API server answers within this time, or the call has failed.
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
    pub(crate) fn is_transient(&self) -> bool {
        match self {
            Self::Refused(kube::Error::Api(status)) => status.code == 429 || status.code >= 500,
            Self::Refused(error) => matches!(
                error,
                kube::Error::HyperError(_) | kube::Error::Service(_) | kube::Error::ReadEvents(_)
            ),
            Self::Late => true,
        }
    }

    /// The API server knows no object of this name. Another 404 says that it does not know the path, or comes
    /// from somebody in between.
    pub(crate) fn is_not_found(&self) -> bool {
        matches!(self, Self::Refused(kube::Error::Api(status)) if status.code == 404
            && status.reason == "NotFound"
            && status.details.as_ref().is_some_and(|details| !details.name.is_empty()))
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

/// Tries until it succeeds, or fails in a way that time does not mend. The log hears of each cause once in a
/// row; `what` is what it says that cannot be done.
///
/// # Errors
/// One that `passes` does not hold for.
pub(crate) async fn retry_until_answered<T, E: Display, F: Future<Output = Result<T, E>>>(
    what: &'static str,
    passes: impl FnMut(&E) -> bool,
    attempt: impl FnMut() -> F,
) -> Result<T, E> {
    let delays = ExponentialBuilder::new()
        .with_min_delay(FIRST)
        .with_max_delay(LONGEST)
        .without_max_times();
    let mut said = String::new();
    let tries = attempt.retry(delays).when(passes).notify(|error, _| {
        let cause = error.to_string();
        if said != cause {
            tracing::warn!("{what}: {cause}; trying on");
            said = cause;
        }
    });
    tries.await
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use tokio::time::Instant;

    use super::*;

    fn refusal(status: Value) -> CallError {
        let status = serde_json::from_value(status).unwrap();
        CallError::Refused(kube::Error::Api(Box::new(status)))
    }

    #[test]
    fn only_the_answer_that_names_the_object_says_that_it_is_gone() {
        let gone = json!({"code": 404, "reason": "NotFound", "message": "no such pod",
            "details": {"name": "a", "kind": "pods"}});
        // As the API server answers for a path that it does not serve, and a proxy for anything.
        let no_path =
            json!({"code": 404, "reason": "NotFound", "message": "no such path", "details": {}});
        let proxy = json!({"code": 404, "reason": "Failed to parse error data", "message": "404"});
        let conflict = json!({"code": 409, "reason": "Conflict", "message": "changed", "details": {"name": "a"}});
        assert!(refusal(gone).is_not_found());
        for other in [no_path, proxy, conflict] {
            assert!(!refusal(other.clone()).is_not_found(), "{other}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_wait_doubles_to_half_a_minute() {
        let began = Instant::now();
        let mut tried = Vec::new();
        let answered = retry_until_answered(
            "the test cannot go on",
            |_| true,
            || {
                tried.push(began.elapsed().as_secs());
                let result = if tried.len() < 8 { Err("busy") } else { Ok(()) };
                std::future::ready(result)
            },
        );
        assert_eq!(answered.await, Ok(()));
        assert_eq!(tried, [0, 1, 3, 7, 15, 31, 61, 91]);
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
        let answered =
            retry_until_answered("the test cannot go on", CallError::is_transient, || {
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

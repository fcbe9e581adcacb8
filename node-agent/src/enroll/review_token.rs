//! Asks the operator whether the user of a token may read metrics: an agent has no account at the API server.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tonic::transport::Channel;
use weft_identity::metrics_access::{Review, Reviewer, Verdict};
use weft_proto::operator::v1::operator_client::OperatorClient;
use weft_proto::operator::v1::{ReviewMetricsTokenRequest, ReviewMetricsTokenResponse};

use crate::enroll::operator;
use crate::enroll::settings::Settings;

/// New tokens that the operator is asked about in a second: fewer than it lets one node ask, so that there is room for those
/// that were allowed before.
pub(crate) const NEW_TOKENS_PER_SECOND: NonZeroU32 = NonZeroU32::MIN;

/// The connection of the reports; none while there is none.
pub(crate) type ReportConnection = Option<OperatorClient<Channel>>;

/// Asks over the connection of the reports: a connection of its own for each agent would cost the operator more.
#[derive(Debug)]
pub(crate) struct OperatorReviewer {
    pub(crate) settings: Arc<Settings>,
    pub(crate) connection: watch::Receiver<ReportConnection>,
}

#[tonic::async_trait]
impl Reviewer for OperatorReviewer {
    async fn review(&self, token: &str) -> Result<Review, String> {
        let connection = self.connection.borrow().clone();
        let mut operator = connection.ok_or_else(|| {
            "the agent has no connection to its operator, which reviews tokens: look at the agent's log".to_owned()
        })?;
        let request = ReviewMetricsTokenRequest {
            token: token.to_owned(),
        };
        let asked = operator::with_timeout(&self.settings, operator.review_metrics_token(request));
        let answer = asked.await.map_err(|error| error.to_string())?;
        Ok(review(answer))
    }
}

fn review(answer: ReviewMetricsTokenResponse) -> Review {
    let ReviewMetricsTokenResponse {
        user,
        allowed,
        problem,
        valid_for_ms,
    } = answer;
    let verdict = match (user.as_str(), allowed) {
        ("", _) => Verdict::Unknown { problem },
        (_, true) => Verdict::Allowed { user },
        (_, false) => Verdict::Forbidden { user },
    };
    let own = verdict.review();
    Review {
        // The operator has it from a cache, too: both together count for no longer than one.
        valid_for: own
            .valid_for
            .min(Duration::from_millis(valid_for_ms.into())),
        ..own
    }
}

#[cfg(test)]
mod tests {
    use weft_identity::metrics_access::{ALLOWED_FOR, REFUSED_FOR};

    use super::*;

    #[test]
    fn an_answer_counts_as_long_as_the_operator_says_and_never_longer_than_a_minute() {
        let answer = |user: &str, allowed, valid_for_ms| {
            review(ReviewMetricsTokenResponse {
                user: user.to_owned(),
                allowed,
                problem: "expired".to_owned(),
                valid_for_ms,
            })
        };
        let reader = answer("reader", true, 250);
        assert_eq!(reader.valid_for, Duration::from_millis(250));
        let user = "reader".to_owned();
        assert_eq!(reader.verdict, Verdict::Allowed { user });
        assert_eq!(answer("reader", true, u32::MAX).valid_for, ALLOWED_FOR);
        let guest = answer("guest", false, u32::MAX);
        let user = "guest".to_owned();
        assert_eq!(guest.verdict, Verdict::Forbidden { user });
        assert_eq!(guest.valid_for, REFUSED_FOR);
        // A token of nobody allows nothing.
        let problem = "expired".to_owned();
        assert_eq!(answer("", true, 1).verdict, Verdict::Unknown { problem });
    }
}

//! Whose token it is: asked of the API server, a few at a time, and only about what may be one.
//!
//! Whoever reaches the operator's port may call Enroll, without a certificate: that shall not become a
//! flood of requests to the API server. The same holds for metrics: a caller that reaches a node's port may send any token.

use std::num::NonZeroU32;

use k8s_openapi::api::{
    authentication::v1::{TokenReview, TokenReviewSpec, TokenReviewStatus},
    authorization::v1::{NonResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec},
};
use kube::{Api, Client, api::PostParams};
use tokio::sync::Semaphore;
use weft_identity::metrics_access::{Review, Reviewer, Verdict};

use crate::{
    api::{CallError, call},
    fault::Fault,
};

/// What a token must be made for.
pub(crate) const AUDIENCE: &str = "weft.dev/operator";

/// What a reader of metrics must be allowed to get, of every page of metrics.
const METRICS: &str = "/metrics";

/// Questions to the API server at a time: five thousand nodes that enroll at once, some 5 ms each, are
/// through in 3 s. Others wait for their turn.
const AT_A_TIME: usize = 8;
/// New tokens of readers of metrics that the API server is asked about in a second. An agent asks about one a second.
pub(crate) const NEW_READERS_PER_SECOND: NonZeroU32 = NonZeroU32::new(20).unwrap();
/// A service account's token is a JSON Web Token (RFC 7519) of some 1.5 kB.
const BYTES_MAX: usize = 8 << 10;

/// Asks the API server, a few questions at a time.
pub(crate) struct Reviews {
    client: Client,
    turns: Semaphore,
}

impl Reviews {
    /// By this client.
    pub(crate) fn new(client: Client) -> Self {
        Self {
            client,
            turns: Semaphore::new(AT_A_TIME),
        }
    }

    /// What the API server says of a token that must be good for [`AUDIENCE`].
    pub(crate) async fn of(&self, token: String) -> Result<TokenReviewStatus, Fault> {
        if !is_signed_token(&token) {
            return Err(Fault::TokenRefused {
                problem: "it is no service account's token".to_owned(),
            });
        }
        let review = TokenReview {
            spec: TokenReviewSpec {
                audiences: Some(vec![AUDIENCE.to_owned()]),
                token: Some(token),
            },
            ..TokenReview::default()
        };
        // The turn is waited for within the same time.
        let answer = call(async {
            // It is never closed.
            let _turn = self.turns.acquire().await;
            let api: Api<TokenReview> = Api::all(self.client.clone());
            api.create(&PostParams::default(), &review).await
        });
        let answer = answer.await.map_err(Fault::ReviewFailed)?;
        Ok(answer.status.unwrap_or_default())
    }
}

/// Asks the API server whose a token is and whether they may read metrics.
pub(crate) struct MetricsReviewer(Client);

impl std::fmt::Debug for MetricsReviewer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("MetricsReviewer").finish_non_exhaustive()
    }
}

impl MetricsReviewer {
    /// By this client.
    pub(crate) fn new(client: Client) -> Self {
        Self(client)
    }

    /// A token for the API server's own audience, as Prometheus and `kubectl create token` have them.
    async fn verdict(&self, token: &str) -> Result<Verdict, CallError> {
        let unknown = |problem: &str| Verdict::Unknown {
            problem: problem.to_owned(),
        };
        if !is_signed_token(token) {
            return Ok(unknown("it is no signed token"));
        }
        let review = TokenReview {
            spec: TokenReviewSpec {
                token: Some(token.to_owned()),
                ..TokenReviewSpec::default()
            },
            ..TokenReview::default()
        };
        let api: Api<TokenReview> = Api::all(self.0.clone());
        let reviewed = call(api.create(&PostParams::default(), &review)).await?;
        let status = reviewed.status.unwrap_or_default();
        let user = status.user.unwrap_or_default();
        let (Some(true), Some(name)) = (status.authenticated, user.username) else {
            let problem = status.error.unwrap_or_default();
            return Ok(unknown(match problem.as_str() {
                "" => "the API server knows nobody by it",
                problem => problem,
            }));
        };
        let review = SubjectAccessReview {
            spec: SubjectAccessReviewSpec {
                user: Some(name.clone()),
                uid: user.uid,
                groups: user.groups,
                extra: user.extra,
                non_resource_attributes: Some(NonResourceAttributes {
                    path: Some(METRICS.to_owned()),
                    verb: Some("get".to_owned()),
                }),
                ..SubjectAccessReviewSpec::default()
            },
            ..SubjectAccessReview::default()
        };
        let api: Api<SubjectAccessReview> = Api::all(self.0.clone());
        let reviewed = call(api.create(&PostParams::default(), &review)).await?;
        Ok(match reviewed.status.is_some_and(|status| status.allowed) {
            true => Verdict::Allowed { user: name },
            false => Verdict::Forbidden { user: name },
        })
    }
}

#[tonic::async_trait]
impl Reviewer for MetricsReviewer {
    async fn review(&self, token: &str) -> Result<Review, String> {
        let verdict = self.verdict(token).await;
        verdict.map(Verdict::review).map_err(|error| {
            format!(
                "{error}: the operator needs the API server, and the right to create TokenReviews and \
                 SubjectAccessReviews, which the chart gives with metrics.auth"
            )
        })
    }
}

/// Three parts of base64url, as RFC 7515 section 7.1 writes a signed token.
fn is_signed_token(token: &str) -> bool {
    let is_part = |part: &str| {
        let letter = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        !part.is_empty() && part.bytes().all(letter)
    };
    token.len() <= BYTES_MAX && token.split('.').count() == 3 && token.split('.').all(is_part)
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    };

    use axum::{Router, body::Bytes, http::StatusCode, routing::post};
    use serde_json::{Value, json};
    use tokio::sync::Notify;

    use super::*;

    #[test]
    fn what_cannot_be_a_token_is_known_without_asking() {
        assert!(is_signed_token(
            "eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJrIn0.c2ln-_"
        ));
        let long = format!("a.{}.c", "b".repeat(BYTES_MAX));
        for token in [
            "", "abc", "a.b", "a..c", "a.b.c.d", "a.b\n.c", "a.b=.c", &long,
        ] {
            assert!(!is_signed_token(token), "{token}");
        }
    }

    /// What the API server says of the token `e30.TEXT.c2ln`: that it is of the user TEXT, who may read metrics if they are
    /// called `reader`.
    fn roles() -> Client {
        let tokens = async |body: Bytes| {
            let mut review: Value = serde_json::from_slice(&body).unwrap();
            assert_eq!(review["spec"]["audiences"], Value::Null);
            let token = review["spec"]["token"].as_str().unwrap();
            let user = token.split('.').nth(1).unwrap().to_owned();
            review["status"] = match user.as_str() {
                "expired" => json!({"error": "token has expired"}),
                "nobody" => json!({"authenticated": false}),
                user => json!({"authenticated": true, "user": {
                    "username": user, "uid": "u1", "groups": ["readers"], "extra": {"scopes": ["all"]},
                }}),
            };
            review.to_string()
        };
        let access = async |body: Bytes| {
            let mut review: Value = serde_json::from_slice(&body).unwrap();
            let spec = &review["spec"];
            let allowed = spec["user"] == "reader";
            // Asked for the user of the token with all that they are.
            assert_eq!(spec["uid"], "u1");
            assert_eq!(spec["groups"], json!(["readers"]));
            assert_eq!(spec["extra"], json!({"scopes": ["all"]}));
            assert_eq!(
                spec["nonResourceAttributes"],
                json!({"path": "/metrics", "verb": "get"})
            );
            assert_eq!(spec["resourceAttributes"], Value::Null);
            review["status"] = json!({"allowed": allowed});
            review.to_string()
        };
        let router = Router::new()
            .route("/apis/authentication.k8s.io/v1/tokenreviews", post(tokens))
            .route(
                "/apis/authorization.k8s.io/v1/subjectaccessreviews",
                post(access),
            );
        Client::new(router, "default")
    }

    #[tokio::test]
    async fn who_reads_metrics_is_the_tokens_user_and_may_get_the_path() {
        let reviewer = MetricsReviewer::new(roles());
        let review = async |user: &str| {
            let token = format!("e30.{user}.c2ln");
            reviewer.review(&token).await.unwrap().verdict
        };
        let user = |name: &str| name.to_owned();
        let unknown = |problem: &str| Verdict::Unknown {
            problem: problem.to_owned(),
        };
        let reader = user("reader");
        assert_eq!(review("reader").await, Verdict::Allowed { user: reader });
        let guest = user("guest");
        assert_eq!(review("guest").await, Verdict::Forbidden { user: guest });
        assert_eq!(review("expired").await, unknown("token has expired"));
        let nobody = unknown("the API server knows nobody by it");
        assert_eq!(review("nobody").await, nobody);
        let nonsense = reviewer.review("no token").await.unwrap().verdict;
        assert_eq!(nonsense, unknown("it is no signed token"));
    }

    #[tokio::test]
    async fn an_api_server_that_refuses_a_review_is_no_verdict() {
        let refuses = Router::new().fallback(async || {
            let status = kube::core::Status::failure("cannot create tokenreviews", "Forbidden");
            let status = status.with_code(403);
            (
                StatusCode::FORBIDDEN,
                serde_json::to_string(&status).unwrap(),
            )
        });
        let reviewer = MetricsReviewer::new(Client::new(refuses, "default"));
        let error = reviewer.review("a.b.c").await.unwrap_err();
        assert!(error.contains("cannot create tokenreviews"), "{error}");
        assert!(error.contains("metrics.auth"), "{error}");
    }

    /// An API server that takes its time, and counts.
    fn slow(asked: &Arc<AtomicUsize>, answer: &Arc<Notify>) -> Client {
        let (asked, answer) = (Arc::clone(asked), Arc::clone(answer));
        let review = async move || {
            asked.fetch_add(1, Ordering::Relaxed);
            answer.notified().await;
            serde_json::to_string(&TokenReview::default()).unwrap()
        };
        Client::new(Router::new().fallback(review), "default")
    }

    #[tokio::test(start_paused = true)]
    async fn the_api_server_is_asked_a_few_questions_at_a_time_and_none_for_ever() {
        let (asked, answer) = (Arc::default(), Arc::default());
        let reviews = Arc::new(Reviews::new(slow(&asked, &answer)));
        let ask = || {
            let reviews = Arc::clone(&reviews);
            tokio::spawn(async move { reviews.of("a.b.c".to_owned()).await })
        };
        let all: Vec<_> = (0..20).map(|_| ask()).collect();
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        assert_eq!(asked.load(Ordering::Relaxed), AT_A_TIME);
        answer.notify_one();
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        assert_eq!(asked.load(Ordering::Relaxed), AT_A_TIME + 1);
        let mut answered = 0;
        for one in all {
            answered += usize::from(one.await.unwrap().is_ok());
        }
        assert_eq!(answered, 1);
        assert_eq!(reviews.turns.available_permits(), AT_A_TIME);
    }
}

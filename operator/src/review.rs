//! Whose token it is: asked of the API server, a few at a time, and only about what may be one.
//!
//! Whoever reaches the operator's port may call Enroll, without a certificate: that shall not become a
//! flood of requests to the API server.

use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, TokenReviewStatus};
use kube::{Api, Client, api::PostParams};
use tokio::sync::Semaphore;

use crate::{api::call, fault::Fault};

/// What a token must be made for.
pub(crate) const AUDIENCE: &str = "weft.dev/operator";

/// Questions to the API server at a time: five thousand nodes that enroll at once, some 5 ms each, are
/// through in 3 s. Others wait for their turn.
const AT_A_TIME: usize = 8;
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

    use axum::Router;
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

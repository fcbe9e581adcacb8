//! What a caller of the live API is answered instead of what they asked for.

use axum::{
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde::Serialize;
use serde_json::json;
use weft_transfer::{Failure, PAGE_UNDER_WAY};

/// The reason of the answer of a replica that does not lead; `kubectl weft` tries again then.
pub(super) const NOT_LEADING: &str = "NotLeading";

/// An error: a `Status`, which Kubernetes clients understand.
#[derive(Debug, PartialEq)]
pub(super) struct Refused {
    code: StatusCode,
    reason: &'static str,
    message: String,
}

impl Refused {
    pub(super) fn new(code: StatusCode, reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            code,
            reason,
            message: message.into(),
        }
    }

    /// There is no page of metrics, or not now.
    pub(super) fn page(failure: Failure) -> Self {
        let (code, reason) = match failure.reason == PAGE_UNDER_WAY {
            true => (StatusCode::TOO_MANY_REQUESTS, PAGE_UNDER_WAY),
            false => (StatusCode::BAD_GATEWAY, "AgentRefused"),
        };
        Self::new(code, reason, failure.message)
    }

    pub(super) fn late(who: &str) -> Self {
        let message = format!("{who} has not answered in time; try again");
        Self::new(StatusCode::GATEWAY_TIMEOUT, "Timeout", message)
    }

    /// Another replica leads, or none does.
    pub(super) fn not_leading() -> Self {
        let text = "this replica of weft-operator does not lead, and only the leader answers; try again: \
                    the next call may reach the leader; see: kubectl get lease -A --field-selector \
                    metadata.name=weft-operator";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, NOT_LEADING, text)
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let status = json!({
            "apiVersion": "v1", "kind": "Status", "metadata": {}, "status": "Failure",
            "reason": self.reason, "message": self.message, "code": self.code.as_u16(),
        });
        let mut response = answer(self.code, &status);
        if self.reason == NOT_LEADING {
            let headers = response.headers_mut();
            // At once: the API server chooses a replica for each call.
            headers.insert(header::RETRY_AFTER, HeaderValue::from_static("0"));
            // The API server keeps connections: the next call would reach this replica again.
            headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }
}

/// An object as the API server passes it on.
pub(super) fn answer(code: StatusCode, body: &impl Serialize) -> Response {
    match serde_json::to_vec(body) {
        Ok(body) => (code, [(header::CONTENT_TYPE, "application/json")], body).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

//! Texts of errors that have causes: libraries often say what happened only in the innermost one.

use std::error::Error;

/// The text of the innermost cause.
#[must_use]
pub fn innermost(error: &dyn Error) -> String {
    let mut error = error;
    while let Some(cause) = error.source() {
        error = cause;
    }
    let text = error.to_string();
    // rustls's own words are for programmers, and end with a link to its manual.
    match text.starts_with("peer closed connection without sending TLS close_notify") {
        true => "the connection was cut off".to_owned(),
        false => text,
    }
}

/// The texts of an error and its causes, outermost first; a cause that is already in the text is left
/// out. tonic alone says only "transport error".
#[must_use]
pub fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let said = error.to_string();
        if !text.contains(&said) {
            text = format!("{text}: {said}");
        }
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{text}")]
    struct Told {
        text: &'static str,
        source: Option<Box<Told>>,
    }

    #[test]
    fn an_error_is_told_with_its_causes_once_or_by_its_innermost_one_alone() {
        let told = |text, source: Option<Told>| Told {
            text,
            source: source.map(Box::new),
        };
        let refused = told("connection refused", None);
        let dialled = told("tcp connect: connection refused", Some(refused));
        let transport = told("transport error", Some(dialled));
        assert_eq!(innermost(&transport), "connection refused");
        let killed = told(
            "peer closed connection without sending TLS close_notify: https://docs.rs/rustls/",
            None,
        );
        let reset = told("transport error", Some(killed));
        assert_eq!(innermost(&reset), "the connection was cut off");
        assert_eq!(
            chain(&transport),
            "transport error: tcp connect: connection refused"
        );
    }
}

//! Server-sent events.

use crate::{Fabric, View, fragments};

/// The content type of a stream of events.
pub const EVENTS_CONTENT_TYPE: &str = "text/event-stream";

/// The fragments as one server-sent event: what a stream sends once a second.
pub fn event(fabric: &Fabric, view: &View) -> String {
    let html = fragments(fabric, view);
    let mut text = String::with_capacity(html.len() + 64);
    // A browser takes a line feed, a carriage return or both as the end of a line; names may have any of them.
    for line in html.replace("\r\n", "\n").split(['\n', '\r']) {
        text.push_str("data: ");
        text.push_str(line);
        text.push('\n');
    }
    text.push('\n');
    text
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;

    #[test]
    fn a_name_with_line_ends_cannot_end_the_event_or_begin_another_field() {
        let name = "a\n\nevent: x\r\rid: 1\r\nretry: 0";
        let fabric = Fabric::new(name, SystemTime::UNIX_EPOCH);
        let text = event(&fabric, &View::default());
        let (body, rest) = text.split_once("\n\n").unwrap();
        assert_eq!(rest, "");
        assert!(!text.contains('\r'));
        assert!(body.lines().all(|line| line.starts_with("data: ")));
    }
}

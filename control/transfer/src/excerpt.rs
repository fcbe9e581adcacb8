//! Messages that are too long to be kept.

/// What stands where a message was cut.
const MARK: &str = "…";

/// At most this many bytes of a message: its beginning and its end. A message begins with what it is about, which may
/// be a path of thousands of bytes, and ends with cause and remedy.
pub fn excerpt(message: &str, bytes_max: usize) -> String {
    if message.len() <= bytes_max {
        return message.to_owned();
    }
    let room = bytes_max.saturating_sub(MARK.len());
    let beginning = &message[..message.floor_char_boundary(room / 2)];
    let end = message.len() - (room - beginning.len());
    format!(
        "{beginning}{MARK}{}",
        &message[message.ceil_char_boundary(end)..]
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_about_a_long_path_keeps_its_cause_and_its_remedy() {
        for letter in ["p", "ä", "€"] {
            let path = letter.repeat(1024);
            let message = format!("models/{path}: the disk is full: free some space");
            let short = excerpt(&message, 200);
            assert!(short.len() <= 200, "{short}");
            assert!(
                short.starts_with("models/") && short.contains(MARK),
                "{short}"
            );
            assert!(
                short.ends_with(": the disk is full: free some space"),
                "{short}"
            );
        }
        assert_eq!(excerpt("short", 5), "short");
    }
}

//! Which messages have come over the connection with the parent, and which may come next.
//!
//! Pure. A message far ahead of the first that is missing would open files that nothing closes
//! soon, so a parent sends none ([`crate::transfer::fanout`]) and a receiver takes none ([`crate::transfer::block_writer`]).

use std::collections::BTreeSet;

/// A message is sent only when the slots of all but this many before it are given back. It bounds the files
/// that a receiver has open at once: at most two are half-done in each message. 64 messages are
/// 64 MiB, a delay of 50 ms at 10 Gbit/s: longer than a lost chunk takes. No connection has more
/// slots, so a parent can always fill all of them.
pub(crate) const WINDOW_MESSAGES: u32 = 64;

/// The messages that have come.
#[derive(Debug, Default)]
pub(crate) struct ReceiveWindow {
    /// All below this have.
    readable_until: u32,
    /// Those beyond it that have, too.
    beyond: BTreeSet<u32>,
}

impl ReceiveWindow {
    /// Number of messages that have arrived without a gap, from the first.
    pub(crate) fn readable_until(&self) -> u32 {
        self.readable_until
    }

    /// Whether this one may come now, or what is wrong with it.
    pub(crate) fn check(&self, number: u32) -> Result<(), String> {
        if number < self.readable_until || self.beyond.contains(&number) {
            return Err(format!("message {number} twice"));
        }
        let missing = self.readable_until;
        if number - missing >= WINDOW_MESSAGES {
            return Err(format!(
                "message {number} before message {missing}, more than {WINDOW_MESSAGES} ahead of it"
            ));
        }
        Ok(())
    }

    /// The message has come, and was checked before.
    pub(crate) fn mark_received(&mut self, number: u32) {
        self.beyond.insert(number);
        while self.beyond.remove(&self.readable_until) {
            self.readable_until += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_in_any_order_once_and_not_too_far_ahead() {
        let mut receive_window = ReceiveWindow::default();
        for number in [1, 2, WINDOW_MESSAGES - 1] {
            assert_eq!(receive_window.check(number), Ok(()));
            receive_window.mark_received(number);
        }
        assert_eq!(receive_window.readable_until(), 0);
        assert_eq!(receive_window.check(2), Err("message 2 twice".to_owned()));
        let number = WINDOW_MESSAGES;
        let ahead = receive_window.check(number).unwrap_err();
        assert!(ahead.contains("before message 0"), "{ahead}");
        receive_window.mark_received(0);
        assert_eq!(receive_window.readable_until(), 3);
        assert_eq!(receive_window.check(0), Err("message 0 twice".to_owned()));
        assert_eq!(receive_window.check(number), Ok(()));
        assert!(receive_window.check(u32::MAX).is_err());
    }
}

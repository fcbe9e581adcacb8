//! Text that others chose, as a terminal may be given it: without the characters that a terminal obeys.
//!
//! Tables escape their entries by themselves. Commands that print what a cluster or a file says call it for
//! everything else.

use std::fmt::{self, Display, Write};

/// `text` on one line: its control characters and those that turn the direction of writing are escaped.
pub fn line(text: impl Display) -> impl Display {
    Printable {
        text,
        keeps_line_breaks: false,
    }
}

/// The same for text of several lines.
pub fn lines(text: impl Display) -> impl Display {
    Printable {
        text,
        keeps_line_breaks: true,
    }
}

/// A text and how it is escaped.
struct Printable<T> {
    text: T,
    keeps_line_breaks: bool,
}

impl<T: Display> Display for Printable<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let keeps_line_breaks = self.keeps_line_breaks;
        let mut escaper = Escaper {
            out: f,
            keeps_line_breaks,
        };
        write!(escaper, "{}", self.text)
    }
}

/// Escapes what is written through it.
struct Escaper<'a, 'b> {
    out: &'a mut fmt::Formatter<'b>,
    keeps_line_breaks: bool,
}

impl Write for Escaper<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for char in text.chars() {
            if char == '\n' && self.keeps_line_breaks || !is_obeyed(char) {
                self.out.write_char(char)?;
            } else {
                write!(self.out, "{}", char.escape_default())?;
            }
        }
        Ok(())
    }
}

/// Whether a terminal does something else with it than show it.
fn is_obeyed(char: char) -> bool {
    // The marks, embeddings, overrides and isolates of Unicode's bidirectional algorithm (UAX #9), and the
    // separators that some terminals take for line breaks.
    let turns = matches!(char, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    char.is_control() || turns || matches!(char, '\u{2028}' | '\u{2029}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_obeys_is_escaped_and_all_else_stays() {
        for (text, expected) in [
            ("a\u{1b}[2Jb\r", "a\\u{1b}[2Jb\\r"),
            (
                "\u{7f}\u{9b}\u{202e}\u{2066}",
                "\\u{7f}\\u{9b}\\u{202e}\\u{2066}",
            ),
            ("models/größe 1\\x \"ü\"", "models/größe 1\\x \"ü\""),
            ("a\nb", "a\\nb"),
        ] {
            assert_eq!(line(text).to_string(), expected);
        }
        assert_eq!(lines("a\n\tb").to_string(), "a\n\\tb");
    }
}

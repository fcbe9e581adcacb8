//! One Rust file as the lints see it: its code with comments and literals blanked out, and which
//! lines of it are tests.
//!
//! This is not a parser. It knows just enough of the language's tokens to never take a word inside
//! a comment or a string for code, and to match braces.

use std::ops::Range;

/// The code of one file. Byte offsets and line numbers are those of the original text.
#[derive(Debug)]
pub(crate) struct Source {
    code: String,
    tests: Vec<Range<usize>>,
}

impl Source {
    /// Reads a whole file. `path` decides whether all of it is test code.
    pub(crate) fn new(path: &str, text: &str) -> Self {
        let code = blank_comments_and_literals(text);
        let tests = if is_test_file(path) {
            std::iter::once(0..code.len()).collect()
        } else {
            test_items(&code)
        };
        Self { code, tests }
    }

    /// The text with comments and literals replaced by spaces.
    pub(crate) fn code(&self) -> &str {
        &self.code
    }

    /// Whether the byte at `offset` belongs to test code.
    pub(crate) fn in_test(&self, offset: usize) -> bool {
        self.tests.iter().any(|range| range.contains(&offset))
    }

    /// Where `word` stands in the code as a whole identifier.
    pub(crate) fn words<'a>(&'a self, word: &'a str) -> impl Iterator<Item = usize> + 'a {
        words(&self.code, word)
    }

    /// The bodies of all functions of this name, from the name to the closing brace.
    pub(crate) fn functions(&self, name: &str) -> Vec<Range<usize>> {
        self.words(name)
            .filter(|&at| self.code[..at].trim_end().ends_with("fn"))
            .map(|at| at..item_end(&self.code, at))
            .collect()
    }

    /// The line, counted from 1, of a byte offset.
    pub(crate) fn line(&self, offset: usize) -> usize {
        line_of(&self.code, offset)
    }
}

/// The line, counted from 1, of a byte offset of `text`.
pub(crate) fn line_of(text: &str, offset: usize) -> usize {
    text[..offset].matches('\n').count() + 1
}

/// Where `word` stands in `text` with no identifier character on either side.
pub(crate) fn words<'a>(text: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    let identifier = |c: char| c.is_alphanumeric() || c == '_';
    text.match_indices(word)
        .map(|(at, _)| at)
        .filter(move |&at| {
            !text[..at].ends_with(identifier) && !text[at + word.len()..].starts_with(identifier)
        })
}

/// Integration tests, the crate of tests, and modules that hold nothing but tests.
fn is_test_file(path: &str) -> bool {
    path.starts_with("tests/")
        || path.contains("/tests/")
        || path.ends_with("/tests.rs")
        || path.ends_with("_tests.rs")
}

/// The items under `#[cfg(test)]`.
fn test_items(code: &str) -> Vec<Range<usize>> {
    code.match_indices("#[cfg(")
        .filter(|(at, _)| {
            let attribute = code[*at..].split(']').next().unwrap_or_default();
            words(attribute, "test").next().is_some() && words(attribute, "not").next().is_none()
        })
        .map(|(at, _)| at..item_end(code, at))
        .collect()
}

/// The end of the item that starts at `from`: its closing brace, or its semicolon when it has none.
fn item_end(code: &str, from: usize) -> usize {
    let mut depth = 0_usize;
    for (at, c) in code[from..].char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth <= 1 => return from + at + 1,
            '}' => depth -= 1,
            ';' if depth == 0 => return from + at + 1,
            _ => {}
        }
    }
    code.len()
}

/// What the scanner is inside of.
enum Inside {
    Code,
    LineComment,
    /// Block comments nest; the number says how deep.
    BlockComment(usize),
    Text,
    /// A raw string, closed by a quote and this many hashes.
    RawText(usize),
}

fn blank_comments_and_literals(text: &str) -> String {
    let mut code = String::with_capacity(text.len());
    let mut inside = Inside::Code;
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let (next, keep, length) = step(&inside, rest, c, code.chars().next_back());
        let (taken, left) = rest.split_at(length);
        if keep {
            code.push_str(taken);
        } else {
            // One space a byte, so that offsets stay those of the original.
            code.extend(
                taken
                    .bytes()
                    .map(|byte| if byte == b'\n' { '\n' } else { ' ' }),
            );
        }
        rest = left;
        if let Some(next) = next {
            inside = next;
        }
    }
    code
}

/// One step of the scanner: the state to change to, whether the bytes are code, and how many.
fn step(
    inside: &Inside,
    rest: &str,
    c: char,
    before: Option<char>,
) -> (Option<Inside>, bool, usize) {
    let one = c.len_utf8();
    match inside {
        Inside::Code if rest.starts_with("//") => (Some(Inside::LineComment), false, 2),
        Inside::Code if rest.starts_with("/*") => (Some(Inside::BlockComment(1)), false, 2),
        Inside::Code if c == '"' => (Some(Inside::Text), false, 1),
        Inside::Code if c == 'r' && !before.is_some_and(is_word_but_byte_prefix) => {
            match raw_text_hashes(rest) {
                Some(hashes) => (Some(Inside::RawText(hashes)), false, hashes + 2),
                None => (None, true, one),
            }
        }
        Inside::Code if c == '\'' => match character_length(rest) {
            Some(length) => (None, false, length),
            None => (None, true, one),
        },
        Inside::Code => (None, true, one),
        Inside::LineComment if c == '\n' => (Some(Inside::Code), false, 1),
        Inside::BlockComment(1) if rest.starts_with("*/") => (Some(Inside::Code), false, 2),
        Inside::BlockComment(depth) if rest.starts_with("*/") => {
            (Some(Inside::BlockComment(depth - 1)), false, 2)
        }
        Inside::BlockComment(depth) if rest.starts_with("/*") => {
            (Some(Inside::BlockComment(depth + 1)), false, 2)
        }
        Inside::Text if c == '\\' => (
            None,
            false,
            1 + rest[1..].chars().next().map_or(0, char::len_utf8),
        ),
        Inside::Text if c == '"' => (Some(Inside::Code), false, 1),
        Inside::RawText(hashes) if c == '"' && closes_raw_text(rest, *hashes) => {
            (Some(Inside::Code), false, 1 + hashes)
        }
        Inside::LineComment | Inside::BlockComment(_) | Inside::Text | Inside::RawText(_) => {
            (None, false, one)
        }
    }
}

/// `br"…"` is raw text, `bar"…"` is not: an `r` starts raw text unless it ends a longer word.
fn is_word_but_byte_prefix(c: char) -> bool {
    (c.is_alphanumeric() || c == '_') && c != 'b' && c != 'c'
}

/// The number of hashes if `rest`, which starts with `r`, opens a raw string.
fn raw_text_hashes(rest: &str) -> Option<usize> {
    let after = rest[1..].trim_start_matches('#');
    after.starts_with('"').then(|| rest.len() - 1 - after.len())
}

fn closes_raw_text(rest: &str, hashes: usize) -> bool {
    rest[1..]
        .bytes()
        .take(hashes)
        .filter(|&byte| byte == b'#')
        .count()
        == hashes
}

/// The length of the character literal that `rest` starts with; `None` for a lifetime.
fn character_length(rest: &str) -> Option<usize> {
    let mut characters = rest.char_indices().skip(1);
    let (_, first) = characters.next()?;
    if first == '\\' {
        characters.next()?;
        let (end, _) = characters.find(|&(_, c)| c == '\'')?;
        return Some(end + 1);
    }
    let (end, second) = characters.next()?;
    (second == '\'').then_some(end + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code_of(text: &str) -> String {
        let source = Source::new("a.rs", text);
        assert_eq!(source.code().len(), text.len(), "offsets must not move");
        source
            .code()
            .split_whitespace()
            .collect::<Vec<_>>()
            .join(" ")
    }

    #[test]
    fn comments_are_not_code() {
        assert_eq!(code_of("a // sleep()\nb /* x /* y */ z */ c"), "a b c");
    }

    #[test]
    fn literals_are_not_code() {
        assert_eq!(
            code_of(r#"f("a \" sleep", 'x', '\'', b"s")"#),
            "f( , , , b )"
        );
        assert_eq!(
            code_of("f(r#\"a \" b\"#, r\"c\", br\"d\") g"),
            "f( , , b ) g"
        );
    }

    #[test]
    fn lifetimes_are_code() {
        assert_eq!(code_of("fn f<'a>(x: &'a str)"), "fn f<'a>(x: &'a str)");
    }

    #[test]
    fn offsets_survive_characters_of_several_bytes() {
        assert_eq!(code_of("let x = \"größer\"; y // ≤"), "let x = ; y");
    }

    #[test]
    fn a_word_is_found_only_whole() {
        let source = Source::new("a.rs", "sleep; asleep; sleep_ms; thread::sleep(x)");
        assert_eq!(source.words("sleep").collect::<Vec<_>>(), [0, 33]);
    }

    #[test]
    fn only_what_is_under_cfg_test_is_a_test() {
        let text = "fn a() {}\n#[cfg(test)]\nmod t { fn b() { {} } }\nfn c() {}\n\
                    #[cfg(not(test))]\nfn d() {}";
        let source = Source::new("src/a.rs", text);
        let tested = |name: &str| {
            source.in_test(source.words(name).next().expect("the name is in the text"))
        };
        assert_eq!(
            ["a", "b", "c", "d"].map(tested),
            [false, true, false, false]
        );
    }

    #[test]
    fn files_of_tests_are_tests_throughout() {
        for path in [
            "tests/src/lib.rs",
            "control/planner/tests/plan.rs",
            "a/src/link/tests.rs",
        ] {
            assert!(Source::new(path, "fn a() {}").in_test(3), "{path}");
        }
    }

    #[test]
    fn a_function_reaches_to_its_closing_brace() {
        let text = "async fn wait() { if a { b } } fn other() {} wait();";
        let source = Source::new("a.rs", text);
        let found = source.functions("wait");
        assert_eq!(
            found
                .iter()
                .map(|body| &text[body.clone()])
                .collect::<Vec<_>>(),
            ["wait() { if a { b } }"]
        );
    }
}

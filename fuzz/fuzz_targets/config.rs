//! An agent's configuration file: any text is a configuration or an error of one line that says what
//! is wrong, never a panic.
#![no_main]

use libfuzzer_sys::{Corpus, fuzz_target};

fuzz_target!(|bytes: &[u8]| -> Corpus {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return Corpus::Reject;
    };
    if let Err(error) = weft_agent::config::parse(text) {
        assert!(!error.to_string().is_empty());
    }
    Corpus::Keep
});

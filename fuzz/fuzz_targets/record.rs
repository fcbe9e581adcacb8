//! The frames of a message between agents: any slot's content is read to an end or refused, and what
//! is read lies within the message.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weft_agent::transfer::frame::{HEADER_BYTES, Frame, Frames};

fuzz_target!(|bytes: &[u8]| {
    let mut read = 0;
    let mut refused = false;
    for frame in Frames::new(bytes) {
        assert!(!refused, "nothing follows a refused frame");
        match frame {
            Ok(Frame::Block { data, .. }) => read += HEADER_BYTES + data.len(),
            Ok(_) => read += HEADER_BYTES,
            Err(_) => refused = true,
        }
    }
    assert!(read <= bytes.len());
});

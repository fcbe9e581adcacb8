//! Acknowledgements of any content, sealed by the peer: what its parser and the scoreboard are told.
//!
//! A peer that lies hurts nobody but itself: no panic, and the window stays conserved.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weft_core::wire::{AckReader, Kind};
use weft_fuzz::Duo;

fuzz_target!(|bytes: &[u8]| {
    let mut duo = Duo::new(20_000);
    duo.exchange(1);
    if let Ok(ack) = AckReader::parse(bytes) {
        let _ = (
            ack.map().count(),
            ack.partials().count(),
            ack.echoes().count(),
        );
    }
    for number in 0..2 {
        let packet = duo.seal(Kind::Ack, 1_000 + number, bytes);
        let _ = duo.answers(&packet);
        duo.check_window();
        duo.exchange(2);
        duo.check_window();
    }
});

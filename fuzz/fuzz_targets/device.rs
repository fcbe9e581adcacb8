//! A foreign protocol on the control socket of a device: packets, each after its length in a byte.
//!
//! No packet makes the engine panic, and a request reads back as it was written.
#![no_main]

use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use weft_device::control::{self, MESSAGE_BYTES_MAX, Request};
use weft_device::objects::Objects;
use weft_fuzz::LIMITS;

fuzz_target!(|bytes: &[u8]| {
    let mut objects = Objects::new(LIMITS, 0..1 << 24);
    let (mut rest, mut draw) = (bytes, 0u32);
    while let Some((length, more)) = rest.split_first() {
        let (packet, after) = more.split_at(usize::from(*length).min(more.len()));
        rest = after;
        let Ok(request) = control::parse::<Request>(packet) else {
            continue;
        };
        let mut buffer = [0; MESSAGE_BYTES_MAX];
        assert_eq!(
            control::parse(control::emit(&request, &mut buffer)),
            Ok(request)
        );
        let now = Duration::from_secs(draw.into());
        let mut random = || {
            draw = draw.wrapping_add(1);
            draw
        };
        let _ = objects.handle(&request, now, &mut random);
    }
});

//! Whatever arrives at a connection under way: datagrams of any length and content.
//!
//! Nothing panics, nothing that is not sealed by the peer is placed or acknowledged, and the transfer
//! ends as if nothing had been said.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weft_fuzz::Duo;

fuzz_target!(|bytes: &[u8]| {
    let Some((&segment, datagrams)) = bytes.split_first() else {
        return;
    };
    let mut duo = Duo::new(20_000);
    duo.exchange(1);
    let placed = duo.placed();
    let _ = weft_core::wire::peek(datagrams);
    // Random bytes have no seal: as one datagram, as a run, and with a prefix that finds its way.
    duo.arrives(datagrams, datagrams.len());
    duo.arrives(datagrams, usize::from(segment));
    let mut addressed = datagrams.to_vec();
    duo.address(&mut addressed);
    duo.arrives(&addressed, addressed.len());
    assert_eq!(duo.placed(), placed, "something unsealed was placed");
    duo.finish();
});

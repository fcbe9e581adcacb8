//! A series of control packets (acknowledgements, probes, refusals, revocations, resets), sealed by the peer or not; and the
//! writer may cancel.
//!
//! No panic; each number counts once; a reset counts only with the token, which no input knows.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weft_core::drops::DropReason;
use weft_core::wire::{Kind, Refusal, Refused, Reset};
use weft_fuzz::Duo;

fuzz_target!(|bytes: &[u8]| {
    let mut duo = Duo::new(20_000);
    duo.exchange(1);
    // Each packet: what, its number, the length of its body, its body.
    let mut rest = bytes;
    while let [what, number, length, tail @ ..] = rest {
        let (body, tail) = tail.split_at(usize::from(*length).min(tail.len()));
        rest = tail;
        let kind = match what % 8 {
            0 => Kind::Ack,
            1 => Kind::Probe,
            2 => Kind::Data,
            5 => Kind::Revoke,
            6 => Kind::Revoked,
            7 => {
                duo.cancel();
                continue;
            }
            // A final one ends the connection, as it should, and with it the series.
            4 if !is_final(body) => Kind::Refusal,
            _ => {
                let _ = Reset::parse(body);
                duo.resets(u64::from(*number));
                continue;
            }
        };
        let packet = duo.seal(kind, u64::from(*number), body);
        let _ = duo.answers(&packet);
        if kind != Kind::Data {
            let again = duo.answers(&packet);
            assert_eq!(again, Err(DropReason::Duplicate), "a number counted twice");
        }
        duo.check_window();
        duo.exchange(1);
    }
});

fn is_final(body: &[u8]) -> bool {
    Refusal::parse(body).is_ok_and(|refusal| refusal.refused != Refused::NotArmed)
}

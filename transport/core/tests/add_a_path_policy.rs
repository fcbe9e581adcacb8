//! The example of `docs/add-a-path-policy.md`, compiled and run as it stands there.

use weft_core::path::{PathPolicy, PathSample, PathSet, PathSetConfig, PathView};
use weft_core::units::{Nanos, PathId, Rng, Time};

/// Of four live paths drawn evenly, the one with the lowest smoothed round-trip time.
#[derive(Debug)]
struct FourChoices;

impl PathPolicy for FourChoices {
    fn choose(&mut self, view: &PathView<'_>, rng: &mut Rng) -> PathId {
        let mut best = view.draw(rng);
        for _ in 1..4 {
            let other = view.draw(rng);
            if view.rtt(other).smoothed() < view.rtt(best).smoothed() {
                best = other;
            }
        }
        best
    }
}

#[test]
fn the_documented_policy_prefers_the_faster_paths() {
    let config = PathSetConfig {
        paths: 8,
        rto_min: Nanos::from_millis(5),
        reliable: false,
        validated: true,
    };
    let mut set = PathSet::new(&config);
    let now = Time::from_nanos(1);
    for path in 0..8u8 {
        let rtt = Nanos::from_micros(if path < 2 { 50 } else { 5_000 });
        let sample = PathSample {
            path: PathId(path),
            rtt: Some(rtt),
            packets: 1,
            ce: 0,
            bytes: 0,
        };
        set.on_answer(now, &sample, 0);
    }
    let mut rng = Rng::new(3);
    let mut draw = || set.choose(&mut FourChoices, now, &[0; 8], &mut rng);
    let fast = (0..1000)
        .filter(|_| draw().is_some_and(|path| path.0 < 2))
        .count();
    // 1 − (6/8)^4 = 68 % of the draws hold one of the two fast paths.
    assert!((640..730).contains(&fast), "{fast} of 1000");
}

#[test]
fn the_document_shows_the_code_that_is_compiled_here() {
    let document = include_str!("../../../docs/add-a-path-policy.md");
    let shown = document
        .split("```rust")
        .nth(1)
        .and_then(|rest| rest.split("```").next());
    let shown = shown
        .expect("a rust block")
        .split("/// Of four")
        .nth(1)
        .expect("the policy");
    let source = include_str!("add_a_path_policy.rs");
    assert!(
        source.contains(shown.trim()),
        "docs/add-a-path-policy.md shows other code"
    );
}

//! The counters over links that lose, double and reorder packets wildly: the core's connections to two peers over virtual
//! time, with the payload copied late, feed the tables of the engine as its events thread does.

use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use weft_core::connection::{Event, Settings, Write};
use weft_core::memory::DomainId;
use weft_core::units::{Key, Nanos, Time};
use weft_core::wire::{self, Integrity};
use weft_sim::host::Datagrams;
use weft_sim::pair::{Pair, PairConfig, Wire, holds, id};

use crate::counters::ImmCounters;
use crate::operations::{Connection, Operations, Part, PartEnd, PartId, Place};
use crate::outcome::{Completion, Outcome, State};

const KEY: Key = Key(0x6b65_7921);
const SENDER: usize = 0;
const RECEIVER: usize = 1;
/// The connection of each link.
const CONNECTION: u32 = 0;
/// A message has its own place in the memory of its peer.
const PLACE_BYTES: u64 = 32 << 10;
const MESSAGES_MAX: usize = 24;
const IMMEDIATES: u32 = 3;

/// Virtual time that no run needs, and before which no connection has stalled.
const LIMIT: Nanos = Nanos::from_secs(4);
/// What still travels when all operations have ended arrives within this time.
const LATE: Nanos = Nanos::from_millis(5);

/// Does to each packet what the next number says. After the last one it only delays.
#[derive(Debug)]
struct WildLink(std::vec::IntoIter<u8>);

impl Wire for WildLink {
    fn carry(
        &mut self,
        now: Time,
        datagrams: Datagrams,
        arrives: &mut impl FnMut(Time, Datagrams),
    ) {
        for packet in datagrams.bytes.chunks(datagrams.segment) {
            let fate = self.0.next().unwrap_or(2);
            let copies = match fate % 8 {
                0 => 0,
                1 => 2,
                _ => 1,
            };
            // Up to 2 ms, which is eight times the shortest resend timeout.
            for copy in 1..=copies {
                let delay = Nanos::from_micros(8 * u64::from(fate) / copy);
                let bytes = packet.to_vec();
                let (segment, datagrams) = (bytes.len(), datagrams.clone());
                arrives(
                    now + delay,
                    Datagrams {
                        segment,
                        bytes,
                        ..datagrams
                    },
                );
            }
        }
    }
}

/// A message to post: over which link, its bytes, and its immediate.
#[derive(Debug, Clone)]
struct Message {
    link: usize,
    bytes: u64,
    immediate: u32,
}

fn message() -> impl Strategy<Value = Message> {
    (0..2usize, 1..PLACE_BYTES, 0..IMMEDIATES).prop_map(|(link, bytes, immediate)| Message {
        link,
        bytes,
        immediate,
    })
}

/// A message that was counted.
struct Counted {
    immediate: u32,
    /// Who waited for the count.
    told: Vec<u64>,
    count: u64,
}

struct Links {
    pairs: [Pair<WildLink>; 2],
    connections: [Arc<Connection>; 2],
    operations: Operations,
    counters: ImmCounters,
}

impl Links {
    fn new(fates: [Vec<u8>; 2]) -> Self {
        let settings = Settings {
            paths: 4,
            packet_payload: 1_000,
            chunk_bytes: 4 * 1_064,
            window_chunks: 64,
            wire_version: wire::VERSION,
            integrity: Integrity::Sealed,
        };
        let mut config = PairConfig::new(settings);
        config.key = KEY;
        config.region_bytes = MESSAGES_MAX * PLACE_BYTES as usize;
        let pair = |fates: Vec<u8>| {
            let mut pair = Pair::new(config.clone(), WildLink(fates.into_iter()));
            pair.connect(CONNECTION, DomainId(1));
            pair.ends[RECEIVER].memory.copies_later = true;
            pair
        };
        let connection = |link| Connection {
            engine: link,
            id: id(SENDER, CONNECTION),
            path: String::new(),
        };
        Self {
            pairs: fates.map(pair),
            connections: [0, 1].map(|link| connection(link).into()),
            operations: Operations::default(),
            counters: ImmCounters::new(),
        }
    }

    /// The time at the link that is behind.
    fn now(&self) -> Time {
        self.pairs[0].now.min(self.pairs[1].now)
    }

    /// Posts a message as `submit` does. Answers its part.
    fn post(&mut self, place: u64, message: &Message) -> PartId {
        let part = Part {
            peer: None,
            place: Place::Waiting,
        };
        let state = State::new(Completion::None);
        let begun = self.operations.begin(state, vec![part], Duration::MAX);
        let (part, _) = begun.expect("nobody closes it");
        let write = Write {
            token: part,
            bytes: message.bytes,
            key: KEY,
            offset: place * PLACE_BYTES,
            immediate: Some(message.immediate),
        };
        let link = message.link;
        assert!(self.operations.post(part, &self.connections[link]));
        self.pairs[link].post(SENDER, CONNECTION, write).unwrap();
        part
    }

    /// Handles what a link reports. Answers the messages that have arrived, and how many operations have ended.
    fn handle_events(&mut self, link: usize) -> (Vec<Counted>, usize) {
        let ends = &mut self.pairs[link].ends;
        let [sent, arrived] = ends.each_mut().map(|end| std::mem::take(&mut end.events));
        let count = |(_, event)| match event {
            Event::Immediate { value, .. } => Counted {
                immediate: value,
                told: self.counters.add(value).expect("they are few"),
                count: self.counters.counter(value).count(),
            },
            event => panic!("{event:?}"),
        };
        let counted = arrived.into_iter().map(count).collect();
        let mut ended = 0;
        for (_, event) in sent {
            let Event::Completed { token } = event else {
                panic!("{event:?}");
            };
            if let Some(operation) = self.operations.end(token, PartEnd::Done) {
                assert_eq!(operation.outcome, Outcome::Done);
                ended += 1;
            }
        }
        (counted, ended)
    }

    /// Ends every second copy that is under way at the receiver.
    fn end_copies(&mut self, link: usize) {
        let pair = &mut self.pairs[link];
        let copies = &mut pair.ends[RECEIVER].memory.copies;
        let mut is_later = true;
        let later = copies.extract_if(.., |_| {
            is_later = !is_later;
            is_later
        });
        let later = later.collect();
        pair.end_copies(RECEIVER, Ok(()));
        pair.ends[RECEIVER].memory.copies = later;
    }

    /// Whether all bytes of a message are in their places.
    fn is_whole(&self, place: u64, message: &Message, part: PartId) -> bool {
        let memory = &self.pairs[message.link].ends[RECEIVER].memory.bytes;
        let offset = (place * PLACE_BYTES) as usize;
        holds(memory, offset, part, message.bytes as usize)
    }
}

/// Runs messages over two links. `spans` says by how much the time of each link goes on in a turn.
fn run(messages: &[Message], fates: [Vec<u8>; 2], spans: [u64; 2]) -> Result<(), TestCaseError> {
    let mut links = Links::new(fates);
    let posted: Vec<(u64, &Message, PartId)> = (0..)
        .zip(messages)
        .map(|(place, message)| (place, message, links.post(place, message)))
        .collect();
    let total = |immediate| {
        let same = messages.iter().filter(|it| it.immediate == immediate);
        same.count() as u64
    };
    let used = (0..IMMEDIATES).filter(|immediate| total(*immediate) > 0);
    for immediate in used.clone() {
        let is_reached = links
            .counters
            .expect(immediate, total(immediate), immediate.into());
        prop_assert!(!is_reached);
    }
    let (mut ended, mut told, mut stops_at) = (0, Vec::new(), None);
    while stops_at.is_none_or(|at| links.now() < at) {
        for (link, span) in spans.into_iter().enumerate() {
            let until = links.pairs[link].now + Nanos::from_micros(span);
            let mut goes_on = true;
            while goes_on {
                goes_on = links.pairs[link].step(until);
                let (counted, ends) = links.handle_events(link);
                ended += ends;
                for counted in counted {
                    let whole = posted.iter().filter(|(place, message, first)| {
                        message.immediate == counted.immediate
                            && links.is_whole(*place, message, *first)
                    });
                    prop_assert!(whole.count() as u64 >= counted.count);
                    let is_last = counted.count == total(counted.immediate);
                    prop_assert_eq!(counted.told.is_empty(), !is_last);
                    told.extend(counted.told);
                }
            }
            links.pairs[link].now = until;
            links.end_copies(link);
        }
        prop_assert!(links.now() < Time::ZERO + LIMIT, "{ended} have ended");
        if ended == messages.len() && stops_at.is_none() {
            stops_at = Some(links.now() + LATE);
        }
    }
    told.sort_unstable();
    prop_assert_eq!(told, used.clone().map(u64::from).collect::<Vec<_>>());
    for immediate in used {
        let count = links.counters.counter(immediate).count();
        prop_assert_eq!(count, total(immediate));
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 64,
        // A test writes nothing into the source tree.
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn no_count_comes_before_its_payload_and_none_twice_whatever_two_links_do(
        messages in prop::collection::vec(message(), 1..MESSAGES_MAX),
        fates in prop::collection::vec(any::<[u8; 2]>(), 0..400),
        spans in [20..200u64, 20..200u64],
    ) {
        run(&messages, [0, 1].map(|link| fates.iter().map(|fates| fates[link]).collect()), spans)?;
    }
}

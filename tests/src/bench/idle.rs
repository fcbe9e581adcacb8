//! `idle-1000`: memory of connections that do nothing.
//!
//! This row is measured first: a process that has freed memory would use it again, and nothing would
//! be seen.

use std::time::Duration;

use super::ends::{Ends, Shape};
use super::host::{End, Happened, Host, Source, Target, Write, connect_many};
use super::rounds::{Must, Rounds};
use super::rss::anonymous_bytes;
use super::{BenchError, Context};
use crate::report::Row;

const CONNECTIONS: usize = 1000;
/// Connections that carry their messages before the next ones do: what a connection needs while it is busy it
/// gives back when it is idle, and the next ones use it.
const BUSY: usize = 125;
/// Longer than the second after which a connection is idle.
const IDLE: Duration = Duration::from_millis(1_500);
/// No message takes a thousandth of it.
const PATIENCE: Duration = Duration::from_secs(10);

/// One row. Every connection has carried one message in each direction, and is idle since.
pub(super) fn measure(context: &Context) -> Result<Vec<Row>, BenchError> {
    let fabric = context.two_nodes()?;
    let ends = Ends::start(&fabric, Shape::default())?;
    // What the two engines need for the first connection, they need once.
    let first = connect_many(&ends.sender, &ends.receiver, 1)?;
    exchange(&ends, &first)?;
    let before = anonymous_bytes("self")?;
    let connections = connect_many(&ends.sender, &ends.receiver, CONNECTIONS)?;
    for busy in connections.chunks(BUSY) {
        exchange(&ends, busy)?;
        // Nothing happens any more: this waits.
        busy[0].0.wait(IDLE)?;
    }
    let bytes = anonymous_bytes("self")?.saturating_sub(before);
    let mut rounds = Rounds::default();
    // Both ends of each are in this process.
    rounds.add(bytes as f64 / 2.0 / f64::from(1 << 20));
    let work = format!(
        "RssAnon of one end of {CONNECTIONS} idle connections, both boards, after one message in \
         each direction, {BUSY} connections at a time"
    );
    Ok(vec![rounds.row(
        "idle-1000",
        work,
        "MiB",
        "",
        Must::AtMost(8.0),
    )])
}

fn exchange(ends: &Ends, connections: &[(End, End)]) -> Result<(), BenchError> {
    for (near, far) in connections {
        signal(&ends.sender, near, far)?;
        signal(&ends.receiver, far, near)?;
    }
    Ok(())
}

/// One immediate from one end to the other.
fn signal(host: &Host, from: &End, to: &End) -> Result<(), BenchError> {
    let write = Write {
        source: &Source::empty(),
        bytes: 0,
        target: Target::NONE,
        offset: 0,
        immediate: Some(1),
        context: 0,
    };
    host.write(from, write)?;
    let (sent, arrived) = (from.wait(PATIENCE)?, to.wait(PATIENCE)?);
    match (sent, arrived) {
        (Some(Happened::Written { .. }), Some(Happened::Signal { .. })) => Ok(()),
        _ => Err(BenchError::Silent {
            what: "an immediate",
            seconds: PATIENCE.as_secs(),
        }),
    }
}

//! The table: every fault, when it strikes, and what must come of it.
//!
//! Proved elsewhere and not repeated here:
//!
//! | fault | where |
//! |---|---|
//! | wrong certificate, forged, expired or misdirected ticket, peer of another wire version, other settings, stale commands | `node-agent/tests/agents/refusals.rs`, with agents over loopback |
//! | every fault of a file by itself: links, devices, sockets, full and read-only disks, inodes, partial files that were damaged | `node-agent/src/files/tests`, one call at a time |
//! | lost, altered, repeated and reordered packets by seed, against a model of what must come of it | `transport/sim` |
//! | a path that dies, as a trace of packets | `transport/core/tests` |
//!
//! Wall clocks cannot be set in a namespace, and no library that fakes them is loaded into the
//! agents: a wall clock that jumps is seen only as a certificate or a ticket that has expired. The
//! data path goes by the monotonic clock, which a time namespace can move: that is a row here.

use weft_planner::Strategy::{Chain, Direct};

use crate::{
    row::{AtDestination, AtSource, End, Fault, Row, Strike},
    stage::SPINES,
    tree::Work,
};

const MIB: usize = 1 << 20;
/// At 25 MB/s a second.
const FILE: Work = Work::File { bytes: 24 * MIB };
/// The source reads eight blocks ahead; there must be more to read.
const LONG_FILE: Work = Work::File { bytes: 32 * MIB };
const MODEL: Work = Work::Model { bytes: 24 * MIB };
/// Where nothing is to move.
const LITTLE: Work = Work::Model { bytes: 2 * MIB };

const fn row(name: &'static str, work: Work, fault: Fault, end: End) -> Row {
    let (to, strategy) = (&[1], Direct);
    Row {
        name,
        work,
        to,
        strategy,
        fault,
        end,
    }
}

/// Down a chain through all nodes.
const fn chain(name: &'static str, work: Work, fault: Fault) -> Row {
    Row {
        to: &[1, 2, 3],
        strategy: Chain,
        ..row(name, work, fault, End::Verified)
    }
}

/// Node 1 fails for this reason, with these words.
const fn failed(reasons: &'static [&'static str], says: &'static [&'static str]) -> End {
    let nodes = &[1];
    End::Failed {
        nodes,
        reasons,
        says,
    }
}

const fn at_source(
    name: &'static str,
    fault: AtSource,
    reasons: &'static [&'static str],
    says: &'static [&'static str],
) -> Row {
    row(name, LITTLE, Fault::Source(fault), failed(reasons, says))
}

const fn at_destination(
    name: &'static str,
    fault: AtDestination,
    reasons: &'static [&'static str],
    says: &'static [&'static str],
) -> Row {
    row(
        name,
        LITTLE,
        Fault::Destination(fault),
        failed(reasons, says),
    )
}

pub(crate) const ROWS: &[Row] = &[
    row(
        "a_file_of_no_bytes",
        Work::Nothing,
        Fault::None,
        End::Verified,
    ),
    row(
        "an_empty_directory",
        Work::EmptyDirectory,
        Fault::None,
        End::Verified,
    ),
    chain(
        "ten_thousand_small_files",
        Work::Small { files: 10_000 },
        Fault::None,
    ),
    // The source.
    Row {
        work: Work::File { bytes: MIB },
        ..at_source(
            "a_source_that_is_missing",
            AtSource::Missing,
            &["SourceMissing"],
            &["a-source-that-is-missing", "check the path"],
        )
    },
    at_source(
        "a_source_that_the_agent_may_not_read",
        AtSource::Unreadable,
        &["SourceUnreadable"],
        &["model.bin", "make it readable"],
    ),
    at_source(
        "a_socket_in_the_source",
        AtSource::Socket,
        &["NotARegularFile"],
        &["socket", "take it out of the source"],
    ),
    at_source(
        "a_device_in_the_source",
        AtSource::Device,
        &["NotARegularFile"],
        &["device", "take it out of the source"],
    ),
    at_source(
        "a_name_that_is_not_utf8",
        AtSource::NameNotUtf8,
        &["NameNotUtf8"],
        &["model-", "rename it"],
    ),
    at_source(
        "a_symlink_out_of_the_root_in_the_source",
        AtSource::Symlink,
        &["SymlinkRefused"],
        &["link", "/etc/passwd", "put the file itself there"],
    ),
    at_source(
        "a_source_above_the_root",
        AtSource::Parent,
        &["BadPath"],
        &["..", "give a path relative to a root"],
    ),
    at_source(
        "a_source_by_an_absolute_path",
        AtSource::Absolute,
        &["BadPath"],
        &["/run/", "give a path relative to a root"],
    ),
    row(
        "a_source_that_changes_while_it_is_read",
        LONG_FILE,
        Fault::Within(0, Strike::ChangeSource),
        failed(
            &["SourceChanged"],
            &["a-source-that-changes", "start the job again"],
        ),
    ),
    row(
        "a_source_that_is_replaced_while_it_is_read",
        LONG_FILE,
        Fault::Within(0, Strike::ReplaceSource),
        failed(
            &["SourceChanged"],
            &["a-source-that-is-replaced", "start the job again"],
        ),
    ),
    row(
        "a_source_that_is_cut_while_it_is_read",
        LONG_FILE,
        Fault::Within(0, Strike::TruncateSource),
        failed(
            &["SourceTruncated", "SourceChanged"],
            &["a-source-that-is-cut", "start the job again"],
        ),
    ),
    row(
        "a_source_that_is_removed_while_it_is_read",
        LONG_FILE,
        Fault::Within(0, Strike::RemoveSource),
        failed(
            &["SourceMissing", "SourceChanged"],
            &["a-source-that-is-removed"],
        ),
    ),
    // The destination.
    at_destination(
        "a_disk_that_is_full",
        AtDestination::Full,
        &["DiskFull"],
        &["bytes are needed", "free space or choose another root"],
    ),
    at_destination(
        "a_disk_that_is_read_only",
        AtDestination::ReadOnly,
        &["DestinationReadOnly"],
        &["a-disk-that-is-read-only", "mount it read-write"],
    ),
    at_destination(
        "a_directory_where_a_file_shall_be",
        AtDestination::DirectoryInTheWay,
        &["DestinationExists"],
        &["model.bin", "directory"],
    ),
    at_destination(
        "a_symlink_out_of_the_root_at_the_destination",
        AtDestination::Symlink,
        &["SymlinkRefused"],
        &["place", "node3", "put the file itself there"],
    ),
    at_destination(
        "a_destination_above_the_root",
        AtDestination::Parent,
        &["BadPath"],
        &["..", "give a path relative to a root"],
    ),
    at_destination(
        "a_destination_by_an_absolute_path",
        AtDestination::Absolute,
        &["BadPath"],
        &["/run/", "give a path relative to a root"],
    ),
    row(
        "a_destination_that_another_job_writes",
        FILE,
        Fault::Within(1, Strike::Rival),
        End::Verified,
    ),
    // Nodes.
    Row {
        to: &[1, 2, 3],
        ..row(
            "a_node_that_cannot_be_reached",
            FILE,
            Fault::Within(2, Strike::Unreachable(2)),
            End::Failed {
                nodes: &[2],
                reasons: &["NodeUnreachable"],
                says: &["10.254.0.3:7400", "check that its agent runs"],
            },
        )
    },
    chain(
        "a_source_that_is_killed",
        FILE,
        Fault::Within(1, Strike::Restart(0)),
    ),
    chain(
        "a_relay_that_is_killed",
        MODEL,
        Fault::Within(1, Strike::Restart(1)),
    ),
    chain(
        "a_destination_that_is_killed",
        FILE,
        Fault::Within(3, Strike::Restart(3)),
    ),
    chain(
        "a_relay_whose_monotonic_clock_jumps",
        FILE,
        Fault::Within(1, Strike::RestartWithOtherClock(1)),
    ),
    // The network.
    row(
        "a_black_hole",
        FILE,
        Fault::Within(1, Strike::BlackHole),
        End::Verified,
    ),
    row(
        "a_spine_that_drops_long_packets",
        FILE,
        Fault::Within(1, Strike::LongPackets(1)),
        End::Verified,
    ),
    row(
        "spines_that_all_drop_long_packets",
        FILE,
        Fault::Within(1, Strike::LongPackets(SPINES)),
        End::Verified,
    ),
    row(
        "an_outage_of_all_spines",
        FILE,
        Fault::Within(1, Strike::Outage),
        End::Verified,
    ),
    row(
        "a_tenth_of_the_packets_lost",
        FILE,
        Fault::Within(1, Strike::Loss(0.1)),
        End::Verified,
    ),
    row(
        "a_hundredth_of_the_packets_altered",
        FILE,
        Fault::Within(1, Strike::Corruption(0.01)),
        End::Verified,
    ),
    row(
        "packets_replayed_forged_and_truncated",
        FILE,
        Fault::Within(1, Strike::Attack),
        End::Verified,
    ),
];

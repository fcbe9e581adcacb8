//! Numbers as texts, and rates.

use std::ffi::{c_char, c_int};

fn text(of: c_int, texts: &'static [&'static std::ffi::CStr]) -> *const c_char {
    let found = usize::try_from(of).ok().and_then(|of| texts.get(of));
    found.copied().unwrap_or(c"unknown").as_ptr()
}

#[unsafe(no_mangle)]
extern "C" fn ibv_wc_status_str(status: c_int) -> *const c_char {
    text(
        status,
        &[
            c"success",
            c"local length error",
            c"local QP operation error",
            c"local EE context operation error",
            c"local protection error",
            c"Work Request Flushed Error",
            c"memory management operation error",
            c"bad response error",
            c"local access error",
            c"remote invalid request error",
            c"remote access error",
            c"remote operation error",
            c"transport retry counter exceeded",
            c"RNR retry counter exceeded",
            c"local RDD violation error",
            c"remote invalid RD request",
            c"remote aborted error",
            c"invalid EE context number",
            c"invalid EE context state",
            c"fatal error",
            c"response timeout error",
            c"general error",
        ],
    )
}

#[unsafe(no_mangle)]
extern "C" fn ibv_node_type_str(kind: c_int) -> *const c_char {
    text(
        kind,
        &[
            c"unknown",
            c"InfiniBand channel adapter",
            c"InfiniBand switch",
            c"InfiniBand router",
            c"iWARP NIC",
            c"usNIC",
            c"usNIC UDP",
            c"unspecified",
        ],
    )
}

#[unsafe(no_mangle)]
extern "C" fn ibv_port_state_str(state: c_int) -> *const c_char {
    text(
        state,
        &[
            c"no state change (NOP)",
            c"down",
            c"init",
            c"armed",
            c"active",
            c"active deferred",
        ],
    )
}

#[unsafe(no_mangle)]
extern "C" fn ibv_event_type_str(kind: c_int) -> *const c_char {
    text(
        kind,
        &[
            c"CQ error",
            c"local work queue catastrophic error",
            c"invalid request local work queue error",
            c"local access violation work queue error",
            c"communication established",
            c"send queue drained",
            c"path migrated",
            c"path migration request error",
            c"local catastrophic error",
            c"port active",
            c"port error",
            c"LID change",
            c"P_Key change",
            c"SM change",
            c"SRQ catastrophic error",
            c"SRQ limit reached",
            c"last WQE reached",
            c"client reregistration",
            c"GID table change",
        ],
    )
}

/// `enum ibv_rate`, with multiples of 2.5 Gbit/s and with Mbit/s.
const RATES: [(c_int, c_int, c_int); 9] = [
    (2, 1, 2_500),
    (5, 2, 5_000),
    (3, 4, 10_000),
    (6, 8, 20_000),
    (4, 12, 30_000),
    (7, 16, 40_000),
    (8, 24, 60_000),
    (9, 32, 80_000),
    (10, 48, 120_000),
];

fn find(of: c_int, from: fn(&(c_int, c_int, c_int)) -> c_int) -> Option<(c_int, c_int, c_int)> {
    RATES.into_iter().find(|rate| from(rate) == of)
}

#[unsafe(no_mangle)]
extern "C" fn ibv_rate_to_mult(rate: c_int) -> c_int {
    find(rate, |it| it.0).map_or(-1, |it| it.1)
}

/// 0: the port's own rate.
#[unsafe(no_mangle)]
extern "C" fn mult_to_ibv_rate(multiple: c_int) -> c_int {
    find(multiple, |it| it.1).map_or(0, |it| it.0)
}

#[unsafe(no_mangle)]
extern "C" fn ibv_rate_to_mbps(rate: c_int) -> c_int {
    find(rate, |it| it.0).map_or(-1, |it| it.2)
}

#[unsafe(no_mangle)]
extern "C" fn mbps_to_ibv_rate(mbps: c_int) -> c_int {
    find(mbps, |it| it.2).map_or(0, |it| it.0)
}

//! What an acknowledgement does: to the paths, the congestion control, the path policy and the chunks in flight.

use super::numbers::NumberState;
use super::{Connection, Failure};
use crate::congestion::{AckSample, CongestionControl};
use crate::drops::DropReason;
use crate::path::{PathPolicy, PathSample, PathSet};
use crate::units::{Nanos, OneWay, Time, WIRE_CLOCK_SHIFT};
use crate::wire::{self, ACK_ECHOES_MAX};

/// A peer may bring something new without an echo so often in a row: after a restore, or where placing takes long.
/// One that acknowledges what it has not received cannot name its packets.
const UNPROVEN_MAX: u16 = 512;

const _: () = assert!(ACK_ECHOES_MAX <= u32::BITS as usize);

/// What was known of an echo's path before its acknowledgement was taken in.
#[derive(Clone, Copy, Default)]
struct OnPath {
    /// Bytes of this connection.
    in_flight: u32,
    rtt: Option<Nanos>,
}

impl OnPath {
    #[inline]
    fn sample(&self, echo: &wire::Echo, bytes: u32) -> PathSample {
        PathSample {
            path: echo.path,
            rtt: self.rtt,
            packets: echo.packets.into(),
            ce: echo.ce,
            bytes,
        }
    }
}

impl Connection {
    /// Refuses echoes of packets that were never sent. Who names a number that was left out has not received what
    /// it acknowledges, and nor has who never names one. Returns which of them answer probes, by their order.
    fn check_echoes(
        &mut self,
        paths: &mut PathSet,
        ack: &wire::AckReader<'_>,
    ) -> Result<u32, DropReason> {
        let (mut proven, mut probes) = (false, 0);
        for (at, number) in ack.echoed_numbers().enumerate() {
            // Data's, or a probe's: the lower halves of both kinds may meet.
            let data = self.transmit.numbers().state_of(number);
            match data {
                NumberState::Sent => proven = true,
                NumberState::Skipped | NumberState::Unsent => {
                    match (data, self.controls.state_of(number)) {
                        (_, NumberState::Sent) => proven = true,
                        (NumberState::Unsent, NumberState::Unsent) => {
                            return Err(DropReason::AckOfUnsent);
                        }
                        _ => return self.fail_unproven(),
                    }
                    probes |= u32::from(data == NumberState::Unsent) << at;
                }
            }
        }
        if proven {
            self.unproven = 0;
            paths.validate();
        } else if self.unproven >= UNPROVEN_MAX {
            return self.fail_unproven();
        }
        Ok(probes)
    }

    #[cold]
    fn fail_unproven(&mut self) -> Result<u32, DropReason> {
        self.fail(Failure::AckOfUnsent);
        Err(DropReason::AckOfUnsent)
    }

    pub(super) fn handle_ack(
        &mut self,
        now: Time,
        paths: &mut PathSet,
        ack: &wire::AckReader<'_>,
    ) -> Result<(), DropReason> {
        self.transmit.check_ack(ack)?;
        let probes = self.check_echoes(paths, ack)?;
        let is_probe = |at: usize| probes >> at & 1 == 1;
        let mut sample = AckSample {
            in_flight: self.transmit.in_flight().total(),
            ..Default::default()
        };
        let since = self.since;
        let mut before = [OnPath::default(); ACK_ECHOES_MAX];
        let mut heard = false;
        for (at, (echo, before)) in ack.echoes().zip(&mut before).enumerate() {
            if !paths.contains(echo.path) {
                continue;
            }
            let age = now.since_wire(echo.sent_at);
            let delay = Nanos::new(u64::from(echo.delay) << WIRE_CLOCK_SHIFT);
            let known = age <= now - since && delay <= age;
            let rtt = known.then(|| paths.bounded(echo.path, Nanos::new(age.get() - delay.get())));
            let in_flight = self.transmit.in_flight().on(echo.path);
            *before = OnPath { in_flight, rtt };
            paths.on_answer(now, &before.sample(&echo, 0), echo.largest);
            heard |= rtt.is_some();
            // A probe's answer tells the path, and its policy, how the path is. It tells nothing of the queues that
            // this connection's window fills: from an idle path it would hide them, from a path that others fill it
            // would shrink the window for what this connection does not add to. It is known by its number: that
            // nothing is in flight on the path does not make it one. Data is answered then, too, when its chunk was
            // acknowledged by an acknowledgement that overtook this one or had no room for this echo, when it was
            // declared lost and was only late, or when it was a tail-loss probe; and its round trip counts, for it
            // was in the queues that this connection has filled.
            if is_probe(at) {
                continue;
            }
            sample.packets += u64::from(echo.packets);
            sample.ce += u64::from(echo.ce);
            if let Some(rtt) = rtt {
                let arrived = ack.sent_at().wrapping_sub(echo.delay);
                let one_way = OneWay::new(echo.sent_at, arrived);
                sample.rtt = Some(sample.rtt.map_or(rtt, |lowest| lowest.min(rtt)));
                sample.one_way = Some(sample.one_way.map_or(one_way, |lowest| lowest.min(one_way)));
            }
        }
        let (timers, stats) = (&mut self.timers, &mut self.stats);
        let out = self
            .transmit
            .handle_ack(now, ack, paths, &mut self.events, stats);
        let new = out.bytes > 0;
        if new && ack.echoed_numbers().next().is_none() {
            self.unproven = self.unproven.saturating_add(1);
        }
        if new || heard {
            self.transmit.end_backoff(paths, timers);
        }
        for (at, (echo, before)) in ack.echoes().zip(&before).enumerate() {
            if !paths.contains(echo.path) {
                continue;
            }
            let in_flight = self.transmit.in_flight();
            let view = paths.view(now, in_flight.by_path());
            let gone = before.in_flight.saturating_sub(in_flight.on(echo.path));
            let on_path = before.sample(&echo, gone);
            if before.in_flight == 0 {
                self.policy.on_probe_answer(&view, &on_path);
            } else {
                self.policy.on_ack(&view, &on_path);
            }
            if !is_probe(at) {
                self.congestion
                    .on_path_sample(now, &on_path, sample.in_flight);
            }
        }
        sample.bytes = out.bytes;
        sample.tx_in_flight = out.tx_in_flight.map(u64::from);
        self.congestion.on_ack(now, &sample);
        if out.spurious {
            self.congestion.on_spurious_timeout(now);
        }
        let policy = &mut self.policy;
        let lost = out.packets_lost
            + self
                .transmit
                .detect_losses(now, paths, policy, timers, stats);
        if lost > 0 {
            self.congestion.on_loss(now, lost);
        }
        self.transmit.reset_timers(now, new, paths, timers);
        if new {
            let timeout = self.config.stall_timeout;
            self.transmit.restart_stall(timeout, timers);
        }
        self.transmit.update_stall(now, paths, timers);
        Ok(())
    }
}

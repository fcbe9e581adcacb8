//! Serves a connection's timers.

use super::timer::Timer;
use super::{Connection, Failure, IDLE_AFTER, KEEP_ALIVE};
use crate::congestion::CongestionControl;
use crate::path::PathSet;
use crate::units::{PathId, Time};

impl Connection {
    /// Serves the timers that are due.
    pub fn handle_timeout(&mut self, now: Time, paths: &mut PathSet) {
        for timer in Timer::ALL {
            if self.timers.take_expired(timer, now) {
                self.serve(timer, now, paths);
            }
        }
        if self.failed.is_none() {
            self.transmit.update_stall(now, paths, &mut self.timers);
        }
    }

    fn serve(&mut self, timer: Timer, now: Time, paths: &mut PathSet) {
        let (timers, stats) = (&mut self.timers, &mut self.stats);
        let policy = &mut self.policy;
        match timer {
            Timer::Stall if self.transmit.is_refused() && !self.config.waits_for_receiver => {
                self.fail(Failure::NotArmed);
            }
            Timer::Stall
                if timers.get(Timer::Credit).is_some()
                    && !self.congestion.was_granted()
                    && stats.acks_received > 0 =>
            {
                self.fail(Failure::NoCredit);
            }
            Timer::Stall => self.fail(Failure::Stalled),
            Timer::Loss => {
                let lost = self
                    .transmit
                    .detect_losses(now, paths, policy, timers, stats);
                if lost > 0 {
                    self.congestion.on_loss(now, lost);
                }
            }
            Timer::Retransmission => {
                let timeout = self
                    .transmit
                    .handle_retransmission(now, paths, policy, timers, stats);
                // First of the silence: what it takes is given back if it was spurious, and with it what the
                // losses would take.
                if timeout.silence {
                    self.congestion.on_timeout(now);
                }
                if timeout.packets_lost > 0 {
                    self.congestion.on_loss(now, timeout.packets_lost);
                }
            }
            Timer::TailProbe => self.transmit.handle_tail_probe(),
            Timer::ReceiverNotReady => self.transmit.ask_receiver(),
            Timer::Credit if !self.transmit.has_messages() => {}
            Timer::Credit => {
                self.congestion.on_credit_timeout();
                timers.set(Timer::Credit, now + self.congestion.credit_wait());
            }
            Timer::Revocation if self.transmit.lacks_answer(now, self.config.stall_timeout) => {
                self.fail(Failure::Stalled);
            }
            // The caller asks for a chunk, and for a control packet, after each call.
            Timer::Pacing | Timer::Revocation => {}
            Timer::Acknowledgement => self.flush_ack(),
            Timer::KeepAlive if !self.transmit.awaits_response() => {}
            Timer::KeepAlive => {
                timers.set(Timer::KeepAlive, now + KEEP_ALIVE);
                self.keep_alive = paths.any_candidate(now);
            }
            Timer::Idle => self.handle_idle(now),
        }
    }

    /// What was under way is lost, on all paths of a reliable link: it is sent again.
    pub(crate) fn lose_all(&mut self, now: Time, paths: &mut PathSet) {
        for path in 0..self.config.settings.paths {
            self.handle_broken_path(now, PathId(path as u8), paths);
        }
    }

    /// The link says that what was under way on `path` is lost: it is sent again.
    pub fn handle_broken_path(&mut self, now: Time, path: PathId, paths: &mut PathSet) {
        if self.failed.is_some() {
            return;
        }
        let (timers, stats, policy) = (&mut self.timers, &mut self.stats, &mut self.policy);
        let lost = self
            .transmit
            .lose_path(now, path, paths, policy, timers, stats);
        if lost > 0 {
            self.congestion.on_loss(now, lost);
        }
        self.transmit.update_stall(now, paths, &mut self.timers);
    }

    fn handle_idle(&mut self, now: Time) {
        let due = self.active + IDLE_AFTER;
        if due > now {
            self.timers.set(Timer::Idle, due);
            return;
        }
        self.transmit.shrink();
        self.receive.shrink();
        self.events.shrink_to_fit();
    }

    /// When [`Connection::handle_timeout`] (or, for a probe or an acknowledgement,
    /// [`Connection::poll_control`]) has something to do next.
    pub fn poll_timeout(&self, paths: &PathSet) -> Option<Time> {
        let timer = self.timers.next();
        if self.failed.is_some() || !self.transmit.is_busy() {
            return timer;
        }
        let probe = paths.poll_timeout();
        timer.into_iter().chain(probe).min()
    }
}

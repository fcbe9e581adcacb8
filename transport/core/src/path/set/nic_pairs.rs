//! Paths between several NICs of two machines. A NIC that is down, a cable or a switch takes all paths between two NICs away at
//! once; paths between NICs of networks that do not meet never carry anything. So what one path shows counts for the others
//! between the same two NICs.

use super::{PathId, PathSet, PathState, Time};

impl PathSet {
    /// Takes note of which two NICs each path is between.
    pub(super) fn set_nic_pairs(&mut self, nic_pairs: Vec<u8>) {
        let first = nic_pairs.first();
        if nic_pairs.iter().any(|pair| Some(pair) != first) {
            self.nic_pairs = nic_pairs;
        }
    }

    /// Whether two different paths are between the same two NICs, of more.
    fn is_other_of_pair(&self, index: usize, other: usize) -> bool {
        let pair = |index: usize| self.nic_pairs.get(index);
        other != index && pair(index).is_some() && pair(index) == pair(other)
    }

    /// What was sent at `sent_at` went unanswered on a path. Where nothing has come back since between its two NICs, the other
    /// paths between them carry no data either until one has answered.
    #[cold]
    pub(super) fn suspect_pair_if_silent(&mut self, now: Time, path: PathId, sent_at: Time) {
        if self.nic_pairs.is_empty() {
            return;
        }
        let index = usize::from(path.0);
        let mut paths = self.paths.iter().enumerate();
        if paths.any(|(it, path)| path.answered > sent_at && self.is_other_of_pair(index, it)) {
            return;
        }
        let mut any = false;
        for other in 0..self.paths.len() {
            if !self.is_other_of_pair(index, other) || self.paths[other].state != PathState::Live {
                continue;
            }
            any = true;
            let path = &mut self.paths[other];
            path.state = PathState::Suspect;
            path.probe_at = now;
            path.probing = false;
        }
        if any {
            self.list();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::*;
    use super::*;
    use crate::path::PathSetConfig;
    use crate::units::Nanos;

    /// Eight paths: the even ones between the first NICs of two machines, the odd ones between the second.
    fn set() -> PathSet {
        let config = PathSetConfig {
            paths: 8,
            rto_min: Nanos::from_millis(5),
            reliable: false,
            validated: true,
        };
        PathSet::between(&config, (0..8).map(|path| path % 2).collect())
    }

    fn live(set: &PathSet) -> Vec<u8> {
        set.live.iter().map(|path| path.0).collect()
    }

    #[test]
    fn paths_between_nics_that_do_not_meet_are_left_with_the_first_loss() {
        let mut set = set();
        assert_eq!(live(&set).len(), 8);
        answer(&mut set, ms(2), 1);
        set.on_loss(ms(20), PathId(4), ms(1));
        assert_eq!(live(&set), [1, 3, 5, 7]);
        for at in 20..200 {
            probes_in(&mut set, ms(at), 1);
            answer(&mut set, ms(at), 3);
        }
        assert_eq!(live(&set), [1, 3, 5, 7]);
        assert_eq!(state(&set, 0), Some(PathState::Suspended));
    }

    #[test]
    fn one_loss_takes_all_paths_between_two_silent_nics_away_until_they_answer() {
        let mut set = set();
        for path in 0..8 {
            answer(&mut set, ms(1), path);
        }
        assert_eq!(live(&set).len(), 8);
        // Its neighbour has answered since: it is this path alone.
        answer(&mut set, ms(4), 2);
        set.on_loss(ms(9), PathId(0), ms(3));
        assert_eq!(live(&set), [1, 2, 3, 4, 5, 6, 7]);
        set.on_loss(ms(20), PathId(6), ms(15));
        assert_eq!(live(&set), [1, 3, 5, 7]);
        let probed = probes_in(&mut set, ms(20), 1);
        let probed: Vec<u8> = probed.iter().map(|(path, _)| path.0).collect();
        assert_eq!(probed, [0, 2, 4, 6]);
        answer(&mut set, ms(21), 2);
        assert_eq!(live(&set), [1, 2, 3, 5, 7]);
    }

    #[test]
    fn paths_between_two_nics_are_used_unasked() {
        let config = PathSetConfig {
            paths: 4,
            rto_min: Nanos::from_millis(5),
            reliable: false,
            validated: true,
        };
        let mut set = PathSet::between(&config, vec![3; 4]);
        set.on_loss(ms(20), PathId(2), ms(15));
        assert_eq!(live(&set), [0, 1, 3]);
    }
}

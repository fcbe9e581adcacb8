//! Figures of several rounds, and the row that is made of them.

use crate::report::{Row, median};

/// What must hold.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Must {
    /// Our median is at most this.
    AtMost(f64),
    /// Our median is at least this.
    AtLeast(f64),
    /// The median ratio (ours ÷ theirs where more is better) is at least this.
    RatioAtLeast(f64),
    /// The median ratio (ours ÷ theirs where less is better) is at most this.
    RatioAtMost(f64),
    /// Our median is at most the peer's and this.
    MoreByAtMost(f64),
    /// Nothing: the figure is reported only.
    Reported,
}

/// Ours alone, or ours and a peer's, round by round.
#[derive(Clone, Debug, Default)]
pub struct Rounds {
    ours: Vec<f64>,
    theirs: Vec<f64>,
}

impl Rounds {
    /// A round in which only we were measured.
    pub fn add(&mut self, ours: f64) {
        self.ours.push(ours);
    }

    /// A round in which both were measured, one after the other.
    pub fn add_pair(&mut self, ours: f64, theirs: f64) {
        self.ours.push(ours);
        self.theirs.push(theirs);
    }

    /// Our median.
    pub fn ours(&self) -> f64 {
        median(&mut self.ours.clone())
    }

    /// The largest of ours; 0 of nothing.
    pub fn largest(&self) -> f64 {
        self.ours.iter().copied().fold(0.0, f64::max)
    }

    /// The smallest of ours; 0 of nothing.
    pub fn smallest(&self) -> f64 {
        self.ours.iter().copied().reduce(f64::min).unwrap_or(0.0)
    }

    /// The peer's median, where there is a peer.
    pub fn theirs(&self) -> Option<f64> {
        (!self.theirs.is_empty()).then(|| median(&mut self.theirs.clone()))
    }

    /// The median of the rounds' ratios, ours ÷ theirs.
    pub fn ratio(&self) -> Option<f64> {
        let mut ratios: Vec<f64> = self
            .ours
            .iter()
            .zip(&self.theirs)
            .map(|(ours, theirs)| ours / theirs)
            .collect();
        (!ratios.is_empty()).then(|| median(&mut ratios))
    }

    /// The row.
    pub fn row(&self, id: &str, work: String, unit: &str, peer: &str, must: Must) -> Row {
        let (ours, ratio) = (self.ours(), self.ratio());
        let (text, holds) = match must {
            Must::AtMost(most) => (format!("≤ {most} {unit}"), ours <= most),
            Must::AtLeast(least) => (format!("≥ {least} {unit}"), ours >= least),
            Must::RatioAtLeast(least) => (
                format!("≥ {least} × {peer}"),
                ratio.is_some_and(|ratio| ratio >= least),
            ),
            Must::RatioAtMost(most) => (
                format!("≤ {most} × {peer}"),
                ratio.is_some_and(|ratio| ratio <= most),
            ),
            Must::MoreByAtMost(most) => (
                format!("≤ {peer} + {most} {unit}"),
                self.theirs().is_some_and(|theirs| ours <= theirs + most),
            ),
            Must::Reported => ("reported".to_owned(), true),
        };
        Row {
            id: id.to_owned(),
            work,
            unit: unit.to_owned(),
            ours,
            peer: peer.to_owned(),
            theirs: self.theirs(),
            ratio,
            must: text,
            holds: holds && !self.ours.is_empty(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ratio_is_the_median_of_the_rounds_ratios_and_not_the_ratio_of_the_medians() {
        let mut rounds = Rounds::default();
        rounds.add_pair(1.0, 2.0);
        rounds.add_pair(9.0, 3.0);
        rounds.add_pair(4.0, 4.0);
        // 0.5, 3, 1; the medians' would be 4 ÷ 3.
        assert!((rounds.ratio().unwrap() - 1.0).abs() < 1e-9);
        assert!((rounds.ours() - 4.0).abs() < 1e-9);
        assert!((rounds.theirs().unwrap() - 3.0).abs() < 1e-9);
    }

    #[test]
    fn a_row_without_a_round_does_not_hold() {
        let row = Rounds::default().row("x", String::new(), "ns", "", Must::AtMost(330.0));
        assert!(!row.holds);
        assert_eq!((row.theirs, row.ratio), (None, None));
    }

    #[test]
    fn a_limit_is_met_by_its_own_value() {
        let mut rounds = Rounds::default();
        rounds.add_pair(3.0, 4.0);
        for (must, holds) in [
            (Must::AtMost(3.0), true),
            (Must::AtMost(2.9), false),
            (Must::AtLeast(3.0), true),
            (Must::AtLeast(3.1), false),
            (Must::RatioAtLeast(0.75), true),
            (Must::RatioAtLeast(0.76), false),
            (Must::MoreByAtMost(0.0), true),
            (Must::MoreByAtMost(-1.1), false),
            (Must::Reported, true),
        ] {
            let row = rounds.row("x", String::new(), "GB/s", "nc", must);
            assert_eq!(row.holds, holds, "{}", row.must);
        }
    }
}

//! Conditions of a status.

use k8s_openapi::{
    apimachinery::pkg::apis::meta::v1::{Condition, Time},
    jiff::Timestamp,
};

/// An Event's note has at most 1024 bytes; a text of a status need not have more.
pub(crate) const TEXT_MAX: usize = 1000;

/// Nodes that a message names at most.
const NAMED_MAX: usize = 5;

/// What a condition shall say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ConditionUpdate {
    /// The condition's type.
    pub(crate) kind: &'static str,
    /// True, False or Unknown.
    pub(crate) status: &'static str,
    /// Stable, UpperCamelCase.
    pub(crate) reason: String,
    /// For people.
    pub(crate) message: String,
}

impl ConditionUpdate {
    /// What a condition of this type says.
    pub(crate) fn new(kind: &'static str, holds: bool, reason: &str, message: &str) -> Self {
        let status = if holds { "True" } else { "False" };
        Self {
            status,
            ..Self::unknown(kind, reason, message)
        }
    }

    /// The same where nobody knows.
    pub(crate) fn unknown(kind: &'static str, reason: &str, message: &str) -> Self {
        Self {
            kind,
            status: "Unknown",
            reason: reason.to_owned(),
            message: message.to_owned(),
        }
    }
}

/// Puts a condition among those of a status; its time is that of the last change of True, False and
/// Unknown.
pub(crate) fn set(
    conditions: &mut Vec<Condition>,
    update: ConditionUpdate,
    generation: i64,
    now: Timestamp,
) {
    let status = update.status;
    let at = conditions.iter().position(|c| c.type_ == update.kind);
    let since = at
        .map(|at| &conditions[at])
        .filter(|condition| condition.status == status)
        .map_or_else(
            || whole_seconds(now),
            |condition| condition.last_transition_time.clone(),
        );
    let condition = Condition {
        type_: update.kind.to_owned(),
        status: status.to_owned(),
        reason: update.reason,
        message: update.message,
        observed_generation: Some(generation),
        last_transition_time: since,
    };
    match at {
        Some(at) => conditions[at] = condition,
        None => conditions.push(condition),
    }
}

/// Whether a condition is there and True.
pub(crate) fn is_true(conditions: &[Condition], kind: &str) -> bool {
    conditions
        .iter()
        .any(|condition| condition.type_ == kind && condition.status == "True")
}

/// At most [`TEXT_MAX`] bytes of a text: its beginning and its end. The definition refuses a status with much longer
/// ones.
pub(crate) fn truncate(text: &str) -> String {
    weft_transfer::excerpt(text, TEXT_MAX)
}

/// The first few of many names.
pub(crate) fn listed(names: &[&str]) -> String {
    let shown = names[..names.len().min(NAMED_MAX)].join(", ");
    match names.len().saturating_sub(NAMED_MAX) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

/// A time as the API keeps it: of whole seconds.
pub(crate) fn whole_seconds(now: Timestamp) -> Time {
    Time(Timestamp::from_second(now.as_second()).unwrap_or(now))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn update(holds: bool, reason: &str) -> ConditionUpdate {
        ConditionUpdate::new("Ready", holds, reason, "")
    }

    #[test]
    fn a_condition_keeps_its_time_until_it_turns() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let mut conditions = Vec::new();
        set(&mut conditions, update(false, "A"), 1, at(10));
        set(&mut conditions, update(false, "B"), 2, at(20));
        assert_eq!(conditions[0].last_transition_time, whole_seconds(at(10)));
        assert_eq!(
            (
                conditions[0].reason.as_str(),
                conditions[0].observed_generation
            ),
            ("B", Some(2))
        );
        set(&mut conditions, update(true, "C"), 2, at(30));
        assert_eq!(conditions.len(), 1);
        assert_eq!(conditions[0].last_transition_time, whole_seconds(at(30)));
        assert!(is_true(&conditions, "Ready"));
    }
}

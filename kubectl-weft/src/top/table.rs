//! Rows: their columns, their order, and how they are printed.

use std::{cmp::Ordering, fmt};

use serde::Serialize;
use weft_cli::columns::columns;
use weft_fabric::quantity;
use weft_planner::Seconds;

use super::TopError;

/// What a column shows of a row, and by what it is sorted.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Cell {
    /// Sorted from A.
    Name(String),
    /// Sorted from the largest; what is not known comes last.
    Number(Option<f64>, String),
}

impl Cell {
    pub(super) fn name(text: impl Into<String>) -> Self {
        Self::Name(text.into())
    }

    fn number(value: Option<f64>, show: impl FnOnce(f64) -> String) -> Self {
        Self::Number(value, value.map_or_else(|| "-".to_owned(), show))
    }

    pub(super) fn count(value: Option<u64>) -> Self {
        Self::number(value.map(|value| value as f64), |value| value.to_string())
    }

    /// Bytes per second.
    pub(super) fn rate(value: Option<f64>) -> Self {
        // A float that is too large, or less than 0, becomes the nearest integer that there is.
        Self::number(value, |value| {
            format!("{}/s", quantity::bytes(value as u64))
        })
    }

    /// Something else per second.
    pub(super) fn per_second(value: Option<f64>) -> Self {
        Self::number(value, |value| format!("{value:.0}"))
    }

    pub(super) fn share(value: Option<f64>) -> Self {
        Self::number(value, |value| format!("{:.2}%", value * 100.0))
    }

    pub(super) fn seconds(value: Option<f64>) -> Self {
        Self::number(value, |value| Seconds(value).to_string())
    }

    fn text(&self) -> &str {
        match self {
            Self::Name(text) | Self::Number(_, text) => text,
        }
    }

    fn order(&self, other: &Self) -> Ordering {
        match (self, other) {
            (Self::Number(one, _), Self::Number(other, _)) => descending(*one, *other),
            (one, other) => {
                // The path 10 comes behind the path 9.
                let key = |cell: &Self| (cell.text().parse::<u64>().ok(), cell.text().to_owned());
                key(one).cmp(&key(other))
            }
        }
    }
}

/// The larger one first; what is not known last.
pub(super) fn descending(one: Option<f64>, other: Option<f64>) -> Ordering {
    let value = |number: Option<f64>| number.unwrap_or(f64::NEG_INFINITY);
    value(other).total_cmp(&value(one))
}

/// By both together the busiest comes first: rates of what is sent and received.
pub(super) fn busiest(one: [Option<f64>; 2], other: [Option<f64>; 2]) -> Ordering {
    let sum = |rates: [Option<f64>; 2]| rates.into_iter().flatten().reduce(|one, more| one + more);
    descending(sum(one), sum(other))
}

/// A column.
pub(super) struct Column<R> {
    pub(super) name: &'static str,
    pub(super) cell: fn(&R) -> Cell,
}

/// What one line is about.
pub(super) trait Row: Serialize + Sized + 'static {
    const COLUMNS: &'static [Column<Self>];
    /// Said where there are none.
    const NONE: &'static str;

    /// Which comes first where no column is asked for.
    fn order(&self, other: &Self) -> Ordering;

    /// Why nothing else is known; empty where something is.
    fn message(&self) -> &str;
}

/// The column of this name.
pub(super) fn column<R: Row>(given: &str) -> Result<&'static Column<R>, TopError> {
    let argument = |column: &Column<R>| column.name.replace(' ', "-");
    let found = R::COLUMNS
        .iter()
        .find(|column| argument(column).eq_ignore_ascii_case(given));
    found.ok_or_else(|| {
        let names: Vec<String> = R::COLUMNS.iter().map(argument).collect();
        TopError::Column {
            given: given.to_owned(),
            columns: names.join(", "),
        }
    })
}

/// By a column, and then as rows are by themselves.
pub(super) fn sort<R: Row>(rows: &mut [R], column: Option<&Column<R>>) {
    rows.sort_by(|one, other| {
        let by_column = column.map_or(Ordering::Equal, |column| {
            (column.cell)(one).order(&(column.cell)(other))
        });
        by_column.then_with(|| one.order(other))
    });
}

/// Rows, a line each. Messages have a column where there are any.
pub(super) struct Table<'a, R> {
    pub(super) rows: &'a [R],
    pub(super) has_head: bool,
}

impl<R: Row> fmt::Display for Table<'_, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let has_messages = self.rows.iter().any(|row| !row.message().is_empty());
        let mut head: Vec<&str> = R::COLUMNS.iter().map(|column| column.name).collect();
        if has_messages {
            head.push("message");
        }
        let row = |row: &R| {
            let cells = R::COLUMNS.iter();
            let cells = cells.map(|column| (column.cell)(row).text().to_owned());
            let message = has_messages.then(|| row.message().to_owned());
            cells.chain(message).collect::<Vec<_>>()
        };
        let rows: Vec<_> = self.rows.iter().map(row).collect();
        if self.has_head {
            return columns(f, &head, &rows);
        }
        let nameless = vec![""; head.len()];
        let shown = fmt::from_fn(|f| columns(f, &nameless, &rows)).to_string();
        let (_, lines) = shown.split_once('\n').unwrap_or_default();
        f.write_str(lines)
    }
}

/// As many lines as a screen has, the last of which says how many more there are.
pub(super) fn fitting(table: &str, screen: usize) -> String {
    let count = table.lines().count();
    // The cursor stands in the line behind the last one.
    let room = screen.saturating_sub(1).max(2);
    if count <= room {
        return table.to_owned();
    }
    let shown = table.lines().take(room - 1);
    let mut text: String = shown.flat_map(|line| [line, "\n"]).collect();
    text += &format!("and {} more\n", count + 1 - room);
    text
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// What a table shows, by lines and columns.
    pub(in crate::top) fn words<R: Row>(rows: &[R]) -> Vec<Vec<String>> {
        let table = Table {
            rows,
            has_head: true,
        };
        let words = |line: &str| {
            let words = line.split("  ").map(str::trim);
            let words = words.filter(|word| !word.is_empty()).map(str::to_owned);
            words.collect::<Vec<_>>()
        };
        table.to_string().lines().map(words).collect()
    }

    #[derive(Serialize)]
    struct Thing(&'static str, Option<f64>, &'static str);

    impl Row for Thing {
        const COLUMNS: &'static [Column<Self>] = &[
            Column {
                name: "name",
                cell: |row| Cell::name(row.0),
            },
            Column {
                name: "lost share",
                cell: |row| Cell::share(row.1),
            },
        ];
        const NONE: &'static str = "nothing";

        fn order(&self, other: &Self) -> Ordering {
            self.0.cmp(other.0)
        }

        fn message(&self) -> &str {
            self.2
        }
    }

    fn things() -> [Thing; 4] {
        [
            Thing("c", Some(0.5), ""),
            Thing("d", None, ""),
            Thing("b", Some(0.25), ""),
            Thing("a", Some(0.5), ""),
        ]
    }

    fn order(rows: &[Thing]) -> String {
        rows.iter().map(|row| row.0).collect()
    }

    #[test]
    fn numbers_are_sorted_from_the_largest_and_what_is_unknown_is_last() {
        let mut rows = things();
        sort(&mut rows, None);
        assert_eq!(order(&rows), "abcd");
        let column = column::<Thing>("Lost-Share").unwrap();
        sort(&mut rows, Some(column));
        assert_eq!(order(&rows), "acbd");
        let Err(error) = super::column::<Thing>("size") else {
            panic!("there is no such column");
        };
        assert_eq!(
            error.to_string(),
            "--sort-by size: there is no such column; write one of name, lost-share"
        );
    }

    #[test]
    fn names_that_are_numbers_are_sorted_as_numbers() {
        let order = |one: &str, other: &str| Cell::name(one).order(&Cell::name(other));
        assert_eq!(order("9", "10"), Ordering::Less);
        assert_eq!(order("n10", "n9"), Ordering::Less);
    }

    #[test]
    fn a_row_without_an_answer_says_why_and_others_need_no_such_column() {
        let mut rows = things();
        assert_eq!(words(&rows)[0], ["name", "lost share"]);
        rows[1].2 = "it does not answer";
        assert_eq!(words(&rows)[2], ["d", "-", "it does not answer"]);
    }

    #[test]
    fn without_a_head_the_first_line_is_a_row() {
        let table = Table {
            rows: &things()[..1],
            has_head: false,
        };
        assert_eq!(table.to_string(), "c  50.00%\n");
    }

    #[test]
    fn a_screen_shows_what_it_has_room_for() {
        assert_eq!(fitting("a\nb\nc\n", 4), "a\nb\nc\n");
        assert_eq!(fitting("a\nb\nc\nd\n", 4), "a\nb\nand 2 more\n");
        assert_eq!(fitting("a\nb\nc\nd\n", 0), "a\nand 3 more\n");
    }
}

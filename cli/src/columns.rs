//! Left-aligned columns.

use std::fmt;

use crate::printable;

/// Writes them, each as wide as its widest entry; the last has no blanks behind it. Control characters of entries
/// are escaped.
pub fn columns<S: AsRef<str>>(
    f: &mut fmt::Formatter<'_>,
    head: &[&str],
    rows: &[Vec<S>],
) -> fmt::Result {
    let escaped = |row: &Vec<S>| {
        row.iter()
            .map(|entry| printable::line(entry.as_ref()).to_string())
            .collect()
    };
    let rows: Vec<Vec<String>> = rows.iter().map(escaped).collect();
    let width = |column: usize| {
        let entries = rows.iter().filter_map(|row| row.get(column));
        let entries = entries.map(|entry| entry.chars().count());
        entries.chain([head[column].chars().count()]).max()
    };
    let widths: Vec<usize> = (0..head.len()).filter_map(width).collect();
    let head: Vec<&str> = head.to_vec();
    let rows = rows
        .iter()
        .map(|row| row.iter().map(String::as_str).collect());
    for row in std::iter::once(head).chain(rows) {
        let line = row.iter().zip(&widths).map(|(entry, width)| {
            let blanks = width - entry.chars().count();
            format!("{entry}{}", " ".repeat(blanks))
        });
        writeln!(f, "{}", line.collect::<Vec<_>>().join("  ").trim_end())?;
    }
    Ok(())
}

//! The order of names: digits count by their value, so that `node2` comes before `node10`.
//!
//! Plans go by this order alone, never by the order of a list in the input.

use std::cmp::Ordering;

/// Compares two names; equal only where the names are.
pub(crate) fn compare(a: &str, b: &str) -> Ordering {
    by_value(a.as_bytes(), b.as_bytes()).then_with(|| a.cmp(b))
}

fn by_value(mut a: &[u8], mut b: &[u8]) -> Ordering {
    loop {
        match (a.first(), b.first()) {
            (Some(x), Some(y)) if x.is_ascii_digit() && y.is_ascii_digit() => {
                let (number_a, number_b) = (take_number(&mut a), take_number(&mut b));
                // Without leading zeros the longer number is the greater one.
                let order = number_a
                    .len()
                    .cmp(&number_b.len())
                    .then_with(|| number_a.cmp(number_b));
                if order.is_ne() {
                    return order;
                }
            }
            (Some(x), Some(y)) if x == y => {
                a = &a[1..];
                b = &b[1..];
            }
            (x, y) => return x.cmp(&y),
        }
    }
}

/// Takes the digits at the front; what comes back has no leading zeros.
fn take_number<'a>(text: &mut &'a [u8]) -> &'a [u8] {
    let digits = text.iter().take_while(|c| c.is_ascii_digit()).count();
    let (number, rest) = text.split_at(digits);
    *text = rest;
    let zeros = number.iter().take_while(|&&c| c == b'0').count();
    &number[zeros..]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_count_by_value() {
        let mut names = ["node10", "node2", "node", "node02", "node1a", "a", "node1"];
        names.sort_by(|a, b| compare(a, b));
        assert_eq!(
            names,
            ["a", "node", "node1", "node1a", "node02", "node2", "node10"]
        );
    }
}

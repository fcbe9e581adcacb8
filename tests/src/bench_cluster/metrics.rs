//! What a Prometheus endpoint says, as far as the benchmark asks.

/// The value of a counter or gauge without labels.
pub(super) fn value(text: &str, name: &str) -> Option<f64> {
    text.lines().find_map(|line| {
        let (found, value) = line.split_once(' ')?;
        (found == name).then(|| value.trim().parse().ok())?
    })
}

/// The upper bound of the bucket that holds a histogram's quantile; infinite beyond the last.
pub(super) fn quantile(text: &str, name: &str, quantile: f64) -> Option<f64> {
    let prefix = format!("{name}_bucket{{le=\"");
    let mut buckets: Vec<(f64, f64)> = text
        .lines()
        .filter_map(|line| line.strip_prefix(&prefix)?.split_once("\"} "))
        .filter_map(|(bound, count)| {
            let bound = match bound {
                "+Inf" => f64::INFINITY,
                bound => bound.parse().ok()?,
            };
            Some((bound, count.trim().parse().ok()?))
        })
        .collect();
    buckets.sort_by(|a, b| a.0.total_cmp(&b.0));
    let &(_, all) = buckets.last()?;
    let holds = |(_, count): &&(f64, f64)| *count >= all * quantile;
    (all > 0.0).then(|| buckets.iter().find(holds).map(|(bound, _)| *bound))?
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# TYPE steps histogram\nsteps_sum 3.5\nsteps_count 100\n\
        steps_bucket{le=\"0.1\"} 90\nsteps_bucket{le=\"1.0\"} 99\nsteps_bucket{le=\"+Inf\"} 100\n\
        writes_total 42\nwrites_total_of{kind=\"a\"} 1\n";

    #[test]
    fn a_quantile_is_its_buckets_upper_bound() {
        assert_eq!(quantile(TEXT, "steps", 0.5), Some(0.1));
        assert_eq!(quantile(TEXT, "steps", 0.99), Some(1.0));
        assert_eq!(quantile(TEXT, "steps", 0.999), Some(f64::INFINITY));
        assert_eq!(quantile(TEXT, "other", 0.5), None);
    }

    #[test]
    fn a_counter_is_found_by_its_whole_name() {
        assert_eq!(value(TEXT, "writes_total"), Some(42.0));
        assert_eq!(value(TEXT, "writes"), None);
    }
}

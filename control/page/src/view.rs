//! What a reader asked for: the query of the page's address.

use form_urlencoded::{Serializer, parse};

/// Jobs in the table unless all are asked for.
pub const JOBS_SHOWN: usize = 100;

/// The part of the fabric that is shown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct View {
    /// Jobs of this namespace only.
    pub namespace: Option<String>,
    /// All jobs, however many there are.
    pub all_jobs: bool,
}

impl View {
    /// From the query of an address, without its question mark: `namespace=team-a&jobs=all`. What is unknown in it
    /// changes nothing.
    pub fn of_query(query: &str) -> Self {
        let mut view = Self::default();
        for (name, value) in parse(query.as_bytes()) {
            match &*name {
                "namespace" => view.namespace = (!value.is_empty()).then(|| value.into_owned()),
                "jobs" => view.all_jobs = value == "all",
                _ => {}
            }
        }
        view
    }

    /// The query that asks for it, with its question mark where there is one.
    pub fn query(&self) -> String {
        let mut query = Serializer::new(String::new());
        if let Some(namespace) = &self.namespace {
            query.append_pair("namespace", namespace);
        }
        if self.all_jobs {
            query.append_pair("jobs", "all");
        }
        let query = query.finish();
        if query.is_empty() {
            query
        } else {
            format!("?{query}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_is_read_and_written_the_same() {
        for (query, written) in [
            ("", ""),
            ("namespace=", ""),
            ("jobs=few&x=y", ""),
            ("jobs=all", "?jobs=all"),
            (
                "jobs=all&namespace=a%26b%22",
                "?namespace=a%26b%22&jobs=all",
            ),
        ] {
            let view = View::of_query(query);
            assert_eq!(view.query(), written, "{query}");
            assert_eq!(View::of_query(view.query().trim_start_matches('?')), view);
        }
    }
}

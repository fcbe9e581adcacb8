//! `CopyWatcher`: checks the verified copies of a node against its files, and lists them for the operator.
//!
//! The watcher scans each root by itself, beside the agent's work. A root that does not answer (a network file
//! system whose server is gone) keeps neither the others nor the agent waiting: its copies stay as they
//! were last listed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::Instant;
use weft_proto::Message as _;
use weft_proto::operator::v1::{Copy, CopyJob};

use crate::control::attempt_registry::AttemptRegistry;
use crate::fail_fast;
use crate::files::copies::{self, CopyHeader};

/// Of the copies in one report, encoded: the operator takes reports of 128 KiB.
const REPORTED_BYTES_MAX: usize = 48 << 10;
/// Of a copy in a report, beside itself: its tag and its length.
const COPY_HEADER_BYTES: usize = 4;
/// The pause after a scan, as a multiple of the time that the scan took: scans take a tenth of the time at most.
const SCAN_PAUSE_FACTOR: u32 = 9;
/// The log names a root whose scan takes longer.
const SLOW: Duration = Duration::from_secs(60);

/// Scans the copies of all roots.
#[derive(Debug, Default)]
pub(crate) struct CopyWatcher {
    /// Pause after a scan of a root while no record changes: half the report interval, so it is over at the next
    /// report.
    min_pause: Duration,
    /// By name.
    roots: BTreeMap<String, WatchedRoot>,
    scans: JoinSet<Scan>,
    /// The path of some root leads to another directory than the one that the agent has open.
    has_replaced_root: bool,
}

#[derive(Debug)]
struct WatchedRoot {
    phase: Phase,
    /// How many records had been added or released when the last scan began.
    copies_changed: u64,
    /// As last listed; nothing before the first scan has ended.
    copies: Option<Vec<CopyHeader>>,
}

#[derive(Debug)]
enum Phase {
    /// Since when, and whether the log has named the root.
    Scanning(Instant, bool),
    Idle {
        /// When the next scan begins.
        until: Instant,
        /// When the next scan begins if a record was added or released.
        soonest: Instant,
    },
}

/// What was found in one root.
#[derive(Debug)]
struct Scan {
    root: String,
    is_replaced: bool,
    /// Nothing where the records could not be listed.
    copies: Option<Vec<CopyHeader>>,
}

/// The copies of a report to the operator.
#[derive(Debug, Default)]
pub(crate) struct CopyReport {
    /// Ordered by root and path.
    pub(crate) copies: Vec<Copy>,
    /// Every root has been scanned.
    pub(crate) is_complete: bool,
    /// There are more copies than these.
    pub(crate) is_full: bool,
    /// The namespaces of the jobs of copies that are left out.
    pub(crate) unlisted_namespaces: BTreeSet<String>,
}

impl CopyWatcher {
    /// `interval`: time between scan opportunities.
    pub(crate) fn new(interval: Duration) -> Self {
        Self {
            min_pause: interval / 2,
            ..Self::default()
        }
    }

    /// Begins the scans that are due. `copies_changed` counts the records that were added or released.
    pub(crate) fn begin(&mut self, registry: &Arc<AttemptRegistry>, copies_changed: u64) {
        let roots = registry.reloadable_config().roots.clone();
        let names: Vec<String> = roots.iter().map(|root| root.name().to_owned()).collect();
        self.begin_with(&names, copies_changed, Instant::now(), move |name| {
            let root = roots.iter().find(|root| root.name() == name)?;
            let copies = copies::reconcile(root);
            Some(Scan {
                root: name.to_owned(),
                copies: copies
                    .inspect_err(|error| {
                        tracing::warn!(
                            root = name,
                            "the copies cannot be listed, and stay as they were: {error}"
                        );
                    })
                    .ok(),
                // Last: a file system may just have been mounted.
                is_replaced: root.is_replaced(),
            })
        });
    }

    fn begin_with(
        &mut self,
        roots: &[String],
        copies_changed: u64,
        now: Instant,
        scan: impl Fn(&str) -> Option<Scan> + Clone + Send + 'static,
    ) {
        self.roots.retain(|name, _| roots.contains(name));
        for name in roots {
            let root = self.roots.entry(name.clone()).or_insert(WatchedRoot {
                phase: Phase::Idle {
                    until: now,
                    soonest: now,
                },
                copies_changed,
                copies: None,
            });
            match &mut root.phase {
                Phase::Scanning(since, said) => {
                    if !*said && now.duration_since(*since) > SLOW {
                        *said = true;
                        tracing::warn!(
                            root = name,
                            "a scan of the root's copies does not end: they stay as they were last \
                             listed; does its file system answer?"
                        );
                    }
                    continue;
                }
                Phase::Idle { until, .. } if now >= *until => {}
                Phase::Idle { soonest, .. }
                    if now >= *soonest && root.copies_changed != copies_changed => {}
                Phase::Idle { .. } => continue,
            }
            root.phase = Phase::Scanning(now, false);
            root.copies_changed = copies_changed;
            let (scan, name) = (scan.clone(), name.clone());
            self.scans
                .spawn(fail_fast::spawn_blocking("copies", move || {
                    scan(&name).unwrap_or(Scan {
                        root: name,
                        is_replaced: false,
                        copies: None,
                    })
                }));
        }
    }

    /// Waits until a scan has ended; for ever while none is under way. Nothing is lost when it is dropped.
    pub(crate) async fn ended(&mut self) {
        match self.scans.join_next().await {
            Some(Ok(scan)) => self.update(scan, Instant::now()),
            // Nobody aborts one, and a panic has ended the process.
            Some(Err(_)) => {}
            None => std::future::pending().await,
        }
    }

    fn update(&mut self, scan: Scan, now: Instant) {
        self.has_replaced_root |= scan.is_replaced;
        let Some(root) = self.roots.get_mut(&scan.root) else {
            return;
        };
        if let Phase::Scanning(since, _) = root.phase {
            let soonest = now + now.duration_since(since) * SCAN_PAUSE_FACTOR;
            let until = soonest.max(now + self.min_pause);
            root.phase = Phase::Idle { until, soonest };
        }
        if scan.copies.is_some() {
            root.copies = scan.copies;
        }
    }

    /// Whether the roots have to be opened again.
    pub(crate) fn has_replaced_root(&self) -> bool {
        self.has_replaced_root
    }

    /// The roots have been opened again: earlier scans were of other directories.
    pub(crate) fn reopened_roots(&mut self) {
        self.has_replaced_root = false;
        self.scans = JoinSet::new();
        self.roots.clear();
    }

    /// The copies that are as they were verified.
    pub(crate) fn report(&self) -> CopyReport {
        let roots = self.roots.iter();
        let all = roots.flat_map(|(name, root)| {
            let copies = root.copies.iter().flatten();
            copies.map(move |copy| to_proto(name, copy))
        });
        let mut report = CopyReport {
            is_complete: self.roots.values().all(|root| root.copies.is_some()),
            ..CopyReport::default()
        };
        let mut bytes = 0;
        for copy in taking_turns(all) {
            bytes += copy.encoded_len() + COPY_HEADER_BYTES;
            report.is_full |= bytes > REPORTED_BYTES_MAX;
            if report.is_full {
                let namespaces = copy.jobs.into_iter().map(|job| job.namespace);
                report.unlisted_namespaces.extend(namespaces);
            } else {
                report.copies.push(copy);
            }
        }
        report
            .copies
            .sort_by(|a, b| (&a.root, &a.path).cmp(&(&b.root, &b.path)));
        report
    }
}

/// The first copy of every namespace, then the second of each, and so on: where a list has an end, a namespace with
/// many copies leaves room for the others.
fn taking_turns(copies: impl Iterator<Item = Copy>) -> Vec<Copy> {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    let mut turns: Vec<(usize, Copy)> = copies
        .map(|copy| {
            let namespace = copy.jobs.first().map(|job| job.namespace.clone());
            let count = counts.entry(namespace.unwrap_or_default()).or_default();
            *count += 1;
            (*count, copy)
        })
        .collect();
    turns.sort_by_key(|(turn, _)| *turn);
    turns.into_iter().map(|(_, copy)| copy).collect()
}

fn to_proto(root: &str, copy: &CopyHeader) -> Copy {
    let jobs = copy.jobs.iter().cloned().map(|job| CopyJob {
        uid: job.uid,
        namespace: job.namespace,
        name: job.name,
        namespace_uid: job.namespace_uid,
    });
    Copy {
        root: root.to_owned(),
        path: copy.path.clone(),
        digest: copy.digest.clone(),
        bytes: copy.bytes,
        files: copy.files,
        jobs: jobs.collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTERVAL: Duration = Duration::from_secs(10);

    fn copy(path: &str) -> CopyHeader {
        let text = format!(
            r#"{{"version":1,"path":"{path}","digest":"d","bytes":1,"files":1,"removable":true,"jobs":[]}}"#
        );
        serde_json::from_str(&text).unwrap()
    }

    fn found(root: &str, copies: Option<Vec<CopyHeader>>) -> Option<Scan> {
        Some(Scan {
            root: root.to_owned(),
            is_replaced: false,
            copies,
        })
    }

    fn names(roots: &[&str]) -> Vec<String> {
        roots.iter().map(|root| (*root).to_owned()).collect()
    }

    fn told(watcher: &CopyWatcher) -> (Vec<String>, bool) {
        let CopyReport {
            copies,
            is_complete,
            ..
        } = watcher.report();
        let paths = copies.into_iter().map(|copy| copy.root + "/" + &copy.path);
        (paths.collect(), is_complete)
    }

    fn running(watcher: &CopyWatcher) -> usize {
        watcher.scans.len()
    }

    #[tokio::test]
    async fn a_root_that_does_not_answer_keeps_nobody_waiting() {
        let (free, held) = crossbeam_channel::bounded::<()>(0);
        let (scans, scanned) = crossbeam_channel::unbounded();
        let scan = move |root: &str| {
            let _ = scans.send(root.to_owned());
            if root == "hung" {
                let _ = held.recv();
            }
            found(root, Some(vec![copy("m")]))
        };
        let roots = names(&["hung", "good"]);
        let mut watcher = CopyWatcher::new(INTERVAL);
        let mut now = Instant::now();
        for turn in 1..=3 {
            watcher.begin_with(&roots, 0, now, scan.clone());
            // Of the two the one that answers.
            watcher.ended().await;
            assert_eq!(told(&watcher), (names(&["good/m"]), false), "turn {turn}");
            now = Instant::now() + INTERVAL * turn;
        }
        let tries = scanned.iter().take(4).filter(|root| root == "hung");
        assert_eq!(tries.count(), 1);
        drop(free);
        watcher.ended().await;
        assert_eq!(told(&watcher), (names(&["good/m", "hung/m"]), true));
    }

    #[tokio::test]
    async fn a_root_that_is_replaced_is_noticed_and_listed_again() {
        let mut watcher = CopyWatcher::new(INTERVAL);
        let mut now = Instant::now();
        let roots = names(&["data"]);
        for is_replaced in [false, true] {
            watcher.begin_with(&roots, 0, now, move |root| {
                let scan = found(root, Some(Vec::new()))?;
                Some(Scan {
                    is_replaced,
                    ..scan
                })
            });
            watcher.ended().await;
            assert_eq!(watcher.has_replaced_root(), is_replaced);
            now = Instant::now() + INTERVAL;
        }
        watcher.reopened_roots();
        assert!(!watcher.has_replaced_root());
        watcher.begin_with(&roots, 0, now, |root| found(root, Some(vec![copy("m")])));
        assert_eq!(told(&watcher), (Vec::new(), false));
        watcher.ended().await;
        assert_eq!(told(&watcher), (names(&["data/m"]), true));
    }

    #[tokio::test]
    async fn a_root_is_scanned_for_a_tenth_of_the_time_at_most_whatever_is_recorded() {
        let mut watcher = CopyWatcher::new(INTERVAL);
        let roots = names(&["data"]);
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let scan = |root: &str| found(root, Some(Vec::new()));
        watcher.begin_with(&roots, 0, start, scan);
        let ended = watcher.scans.join_next().await.unwrap().unwrap();
        // It took a minute.
        watcher.update(ended, at(60));
        for copies_changed in 0..2 {
            watcher.begin_with(&roots, copies_changed, at(60 + 539), scan);
            assert_eq!(running(&watcher), 0);
        }
        watcher.begin_with(&roots, 0, at(60 + 540), scan);
        assert_eq!(running(&watcher), 1);
    }

    #[tokio::test]
    async fn a_root_is_scanned_at_once_when_a_record_was_added_or_released() {
        let mut watcher = CopyWatcher::new(INTERVAL);
        let roots = names(&["data"]);
        let now = Instant::now();
        let scan = |root: &str| found(root, Some(Vec::new()));
        for copies_changed in 0..3 {
            watcher.begin_with(&roots, copies_changed, now, scan);
            assert_eq!(running(&watcher), 1);
            // Recorded meanwhile: that scan may have missed it.
            watcher.begin_with(&roots, copies_changed + 1, now, scan);
            assert_eq!(running(&watcher), 1);
            let ended = watcher.scans.join_next().await.unwrap().unwrap();
            watcher.update(ended, now);
        }
        watcher.begin_with(&roots, 2, now, scan);
        assert_eq!(running(&watcher), 0);
        watcher.begin_with(&roots, 2, now + INTERVAL / 2, scan);
        assert_eq!(running(&watcher), 1);
    }

    #[tokio::test]
    async fn a_root_that_cannot_be_read_keeps_its_list_and_a_root_that_was_removed_is_forgotten() {
        let mut watcher = CopyWatcher::new(INTERVAL);
        let mut now = Instant::now();
        for is_readable in [true, false] {
            watcher.begin_with(&names(&["a", "b"]), 0, now, move |root| {
                found(root, is_readable.then(|| vec![copy("m")]))
            });
            watcher.ended().await;
            watcher.ended().await;
            assert_eq!(told(&watcher), (names(&["a/m", "b/m"]), true));
            now = Instant::now() + INTERVAL;
        }
        watcher.begin_with(&names(&["b"]), 0, now, |root| found(root, None));
        assert_eq!(told(&watcher), (names(&["b/m"]), true));
    }

    #[tokio::test]
    async fn a_namespace_with_many_copies_leaves_room_in_the_report_for_the_others() {
        let of = |namespace: &str, number: usize| {
            let mut copy = copy(&format!("{namespace}/{number:0240}"));
            copy.jobs.push(crate::files::copies::CopyJob {
                uid: "u".into(),
                namespace_uid: String::new(),
                namespace: namespace.into(),
                name: "j".into(),
            });
            copy
        };
        let mut copies: Vec<CopyHeader> = (0..1000).map(|number| of("a", number)).collect();
        copies.extend((0..3).map(|number| of("b", number)));
        let mut watcher = CopyWatcher::new(INTERVAL);
        let scan = move |root: &str| found(root, Some(copies.clone()));
        watcher.begin_with(&names(&["r"]), 0, Instant::now(), scan);
        watcher.ended().await;
        let report = watcher.report();
        assert!(report.is_full);
        assert!(report.unlisted_namespaces.iter().eq(["a"]));
        let of_b = report
            .copies
            .iter()
            .filter(|copy| copy.path.starts_with("b/"));
        assert_eq!(of_b.count(), 3);
        assert!(report.copies.is_sorted_by_key(|copy| &copy.path));
    }

    #[tokio::test]
    async fn a_report_lists_as_many_copies_as_fit() {
        for (count, listed, is_full) in [(100, 100, false), (1000, 184, true)] {
            let mut watcher = CopyWatcher::new(INTERVAL);
            // 263 bytes each, and 4 around them.
            let path = |number| format!("{number:0250}");
            let copies: Vec<CopyHeader> = (0..count).map(|number| copy(&path(number))).collect();
            let scan = move |root: &str| found(root, Some(copies.clone()));
            watcher.begin_with(&names(&["r"]), 0, Instant::now(), scan);
            watcher.ended().await;
            let report = watcher.report();
            assert_eq!((report.copies.len(), report.is_full), (listed, is_full));
            let first = report.copies.iter().zip(0..);
            first.for_each(|(copy, number)| assert_eq!(copy.path, path(number)));
            let bytes: usize = report.copies.iter().map(|copy| copy.encoded_len()).sum();
            assert!(bytes <= REPORTED_BYTES_MAX);
        }
    }
}

//! `Opener`: opens the configuration's roots, and waits for none of them for ever.
//!
//! A directory of a network file system whose server is gone does not open, and says nothing. So each is
//! opened on a thread of its own; one that goes on opening is named, and is not tried a second time before
//! it has ended: such threads cannot be ended, only counted.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use crossbeam_channel::unbounded;

use crate::config::RootEntry;
use crate::fail_fast;
use crate::files::{FileError, Location, Root, errno};

/// For all roots. A server that is there answers in milliseconds, one that is restarted in seconds; and
/// an operator that hears nothing of a node for 30 s calls it not ready, so this is said before.
const ROOTS_WITHIN: Duration = Duration::from_secs(10);

/// Opens roots.
#[derive(Debug, Default)]
pub(crate) struct Opener {
    /// What is being opened.
    opening: Mutex<BTreeSet<PathBuf>>,
    /// Those that were opened.
    known: Mutex<Vec<Weak<Root>>>,
}

impl Opener {
    /// All of these, or what is wrong with one. A directory that somebody still has open as the same root is not
    /// opened a second time: who uses it and its records shares locks. Blocks, at most for [`ROOTS_WITHIN`].
    pub(crate) fn open(self: &Arc<Self>, roots: &[RootEntry]) -> Result<Vec<Arc<Root>>, FileError> {
        let opener = self.clone();
        let open = move |entry: &RootEntry| {
            let root = Root::open(&entry.name, &entry.path, entry.access)?;
            Ok(opener.known(root))
        };
        let opened = self.open_by(roots, Instant::now() + ROOTS_WITHIN, open)?;
        for (root, entry) in opened.iter().zip(roots) {
            root.set_limits(entry.limits());
            root.set_volumes(entry.volumes.clone());
        }
        Ok(opened)
    }

    /// The one that is open already, or this one.
    fn known(&self, root: Root) -> Arc<Root> {
        // Compared without the lock: its own file system may not answer.
        let open: Vec<Arc<Root>> = fail_fast::lock(&self.known)
            .iter()
            .filter_map(Weak::upgrade)
            .collect();
        if let Some(same) = open.into_iter().find(|open| open.is_same(&root)) {
            return same;
        }
        let root = Arc::new(root);
        let mut known = fail_fast::lock(&self.known);
        known.retain(|known| known.strong_count() > 0);
        known.push(Arc::downgrade(&root));
        root
    }

    fn open_by<T: Send + 'static>(
        self: &Arc<Self>,
        roots: &[RootEntry],
        deadline: Instant,
        open: impl Fn(&RootEntry) -> Result<T, FileError> + Clone + Send + 'static,
    ) -> Result<Vec<T>, FileError> {
        let hung = |root: &RootEntry| FileError::RootHung {
            root: root.name.clone(),
            path: root.path.clone(),
            seconds: ROOTS_WITHIN.as_secs(),
        };
        {
            let mut opening = fail_fast::lock(&self.opening);
            if let Some(root) = roots.iter().find(|root| opening.contains(&root.path)) {
                return Err(hung(root));
            }
            opening.extend(roots.iter().map(|root| root.path.clone()));
        }
        let mut answers = Vec::new();
        for (index, root) in roots.iter().enumerate() {
            let (tell, told) = unbounded();
            let (opener, open, entry) = (self.clone(), open.clone(), root.clone());
            let begun = fail_fast::thread("weft-root", move || {
                let opened = open(&entry);
                fail_fast::lock(&opener.opening).remove(&entry.path);
                // The caller may have given up.
                let _ = tell.send(opened);
            });
            if let Err(error) = begun {
                let mut opening = fail_fast::lock(&self.opening);
                for root in &roots[index..] {
                    opening.remove(&root.path);
                }
                return Err(FileError::NoThread {
                    location: Location {
                        root: root.name.clone(),
                        path: String::new(),
                    },
                    cause: errno(&error),
                });
            }
            answers.push(told);
        }
        let answers = roots.iter().zip(answers);
        answers
            .map(|(root, told)| match told.recv_deadline(deadline) {
                Ok(opened) => opened,
                Err(_) => Err(hung(root)),
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::{Access, MinFree};

    fn root(name: &str) -> RootEntry {
        RootEntry {
            name: name.to_owned(),
            path: PathBuf::from(format!("/srv/{name}")),
            access: Access::ReadWrite,
            min_free: MinFree::default(),
            bytes_per_namespace: None,
            volumes: None,
        }
    }

    #[test]
    fn a_root_that_does_not_open_is_named_and_tried_again_only_once_it_has_ended() {
        let opener = Arc::new(Opener::default());
        let (free, held) = crossbeam_channel::bounded::<()>(0);
        let (tries, tried) = unbounded();
        let open = move |root: &RootEntry| {
            let _ = tries.send(root.name.clone());
            if root.name == "hung" {
                let _ = held.recv();
            }
            Ok(root.name.clone())
        };
        let roots = [root("good"), root("hung")];
        let soon = || Instant::now() + Duration::from_secs(1);
        for _ in 0..2 {
            let error = opener.open_by(&roots, soon(), open.clone()).unwrap_err();
            assert_eq!(error.reason(), "RootHung");
            let text = error.to_string();
            assert!(
                text.contains("\"hung\"") && text.contains("/srv/hung"),
                "{text}"
            );
        }
        // The others are opened beside it, however long it takes.
        let later = Instant::now() + Duration::from_secs(60);
        let good = opener.open_by(&roots[..1], later, open.clone()).unwrap();
        assert_eq!(good[0], "good");
        drop(free);
        let tries = |name: &str| tried.try_iter().filter(|tried| tried == name).count();
        assert_eq!(tries("hung"), 1);
        // It has ended by the time that it can be opened again.
        let opened = loop {
            match opener.open_by(&roots, later, open.clone()) {
                Err(error) if error.reason() == "RootHung" && Instant::now() < later => {
                    std::thread::yield_now();
                }
                opened => break opened,
            }
        };
        assert_eq!(opened.unwrap().len(), 2);
    }
}

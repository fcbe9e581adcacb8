//! `Comparisons`: copies that are compared with their records for volumes, which takes a look at each file.
//!
//! A comparison goes on when its caller has hung up, for the kubelet calls again: the next call about the volume waits for the same
//! one, or finds what it has found. One on a file system that hangs holds its place until that answers, so a volume has one
//! comparison at most, and a namespace has few.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{sleep, timeout};
use tonic::Status;

use crate::fail_fast;
use crate::files::volumes::{CopyInUse, PodNamespace, WantedCopy};

/// Comparisons at a time.
const AT_A_TIME: usize = 8;
/// And of one namespace.
const OF_A_NAMESPACE: usize = 2;
/// A call waits for its place so long.
const PLACE_TIMEOUT: Duration = Duration::from_secs(10);
/// And so long for the comparison. The driver waits 90 s for the answer, which begins with one of the operator.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
/// What is found is kept so long for the next call: the kubelet calls again after two minutes at most.
const KEPT: Duration = Duration::from_mins(5);

/// Nothing where no root has the copy.
type Answer = Result<Option<CopyInUse>, Status>;

/// What a call asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Wanted {
    pub(super) volume: String,
    pub(super) pod: PodNamespace,
    pub(super) copy: WantedCopy,
}

#[derive(Debug, Clone)]
pub(super) struct Comparisons {
    /// The directory with a file for each volume that shows a copy.
    in_use: PathBuf,
    /// By the volume: those that run, and those whose copy no call has taken yet.
    known: Arc<Mutex<BTreeMap<String, Comparison>>>,
    /// Of the namespaces that have comparisons.
    shares: Arc<Mutex<BTreeMap<String, Arc<Semaphore>>>>,
    places: Arc<Semaphore>,
}

#[derive(Debug)]
struct Comparison {
    wanted: Wanted,
    answer: watch::Receiver<Option<Answer>>,
}

impl Comparisons {
    pub(super) fn new(in_use: PathBuf) -> Self {
        Self {
            in_use,
            known: Arc::default(),
            shares: Arc::default(),
            places: Arc::new(Semaphore::new(AT_A_TIME)),
        }
    }

    /// The answer of the volume's comparison. Where none is known, `compare` is run on a thread that may block.
    pub(super) async fn run(
        &self,
        wanted: Wanted,
        compare: impl FnOnce() -> Answer + Send + 'static,
    ) -> Answer {
        let joined = join(&mut self.known(), &wanted)?;
        let mut answer = match joined {
            Some(answer) => answer,
            None => {
                let places = self.places(&wanted.pod.name).await?;
                self.begin(&wanted, places, compare)?
            }
        };
        // Where it has ended just then, that is found too.
        let _ = timeout(ANSWER_TIMEOUT, answer.wait_for(Option::is_some)).await;
        let found = answer.borrow().clone();
        let found = found.ok_or_else(still_compared)?;
        self.forget(&wanted.volume, &answer);
        if let Ok(Some(copy)) = &found
            && !self.in_use.join(&wanted.volume).exists()
        {
            let text = format!(
                "{}: the volume was unmounted after the copy was compared",
                copy.path
            );
            return Err(Status::unavailable(text));
        }
        found
    }

    /// Of the namespace, and of the node.
    async fn places(&self, namespace: &str) -> Result<[OwnedSemaphorePermit; 2], Status> {
        let share = {
            let mut shares = fail_fast::lock(&self.shares);
            // A place holds its share.
            shares.retain(|_, share| Arc::strong_count(share) > 1);
            let share = shares.entry(namespace.to_owned());
            let new = || Arc::new(Semaphore::new(OF_A_NAMESPACE));
            Arc::clone(share.or_insert_with(new))
        };
        let places = async {
            let of_namespace = share.acquire_owned().await.ok()?;
            let of_node = Arc::clone(&self.places).acquire_owned().await.ok()?;
            Some([of_namespace, of_node])
        };
        match timeout(PLACE_TIMEOUT, places).await {
            Ok(Some(places)) => Ok(places),
            _ => Err(Status::unavailable(
                "the pod waits for other volumes, whose copies are compared with their records: does a root's file system hang?",
            )),
        }
    }

    fn begin(
        &self,
        wanted: &Wanted,
        places: [OwnedSemaphorePermit; 2],
        compare: impl FnOnce() -> Answer + Send + 'static,
    ) -> Result<watch::Receiver<Option<Answer>>, Status> {
        let mut known = self.known();
        // Another call may have begun it meanwhile.
        if let Some(answer) = join(&mut known, wanted)? {
            return Ok(answer);
        }
        let (answered, answer) = watch::channel(None);
        let comparison = Comparison {
            wanted: wanted.clone(),
            answer: answer.clone(),
        };
        known.insert(wanted.volume.clone(), comparison);
        let (this, volume, own) = (self.clone(), wanted.volume.clone(), answer.clone());
        fail_fast::spawn("comparison", async move {
            let work = move || {
                let _places = places;
                compare()
            };
            let found = fail_fast::spawn_blocking("volumes", work).await;
            let is_copy = matches!(found, Ok(Some(_)));
            answered.send_replace(Some(found));
            if is_copy {
                sleep(KEPT).await;
            }
            this.expire(&volume, &own, is_copy);
        });
        Ok(answer)
    }

    /// A call has taken the answer.
    fn forget(&self, volume: &str, answer: &watch::Receiver<Option<Answer>>) {
        let mut known = self.known();
        if is_known(&known, volume, answer) {
            known.remove(volume);
        }
    }

    /// No call has taken the answer: no pod waits for the volume.
    fn expire(&self, volume: &str, answer: &watch::Receiver<Option<Answer>>, is_copy: bool) {
        let mut known = self.known();
        if is_known(&known, volume, answer) {
            known.remove(volume);
            let file = self.in_use.join(volume);
            if is_copy && let Err(error) = std::fs::remove_file(&file) {
                tracing::info!("{}: {error}", file.display());
            }
        }
    }

    fn known(&self) -> MutexGuard<'_, BTreeMap<String, Comparison>> {
        fail_fast::lock(&self.known)
    }
}

fn join(
    known: &mut BTreeMap<String, Comparison>,
    wanted: &Wanted,
) -> Result<Option<watch::Receiver<Option<Answer>>>, Status> {
    let Some(one) = known.get(&wanted.volume) else {
        return Ok(None);
    };
    if one.wanted == *wanted {
        return Ok(Some(one.answer.clone()));
    }
    // For a job that has been made again, for example.
    if one.answer.borrow().is_none() {
        return Err(still_compared());
    }
    known.remove(&wanted.volume);
    Ok(None)
}

/// Whether the volume's comparison is this one.
fn is_known(
    known: &BTreeMap<String, Comparison>,
    volume: &str,
    answer: &watch::Receiver<Option<Answer>>,
) -> bool {
    let one = known.get(volume);
    one.is_some_and(|one| one.answer.same_channel(answer))
}

fn still_compared() -> Status {
    Status::unavailable(
        "the copy is still being compared with its record: the pod starts after that; where it takes very long, does the root's \
         file system hang?",
    )
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use futures::FutureExt as _;

    use super::*;
    use crate::files::RootPath;

    fn wanted(volume: &str, namespace: &str) -> Wanted {
        Wanted {
            volume: volume.to_owned(),
            pod: PodNamespace {
                name: namespace.to_owned(),
                uid: format!("uid-of-{namespace}"),
            },
            copy: WantedCopy::Path(RootPath::parse("m").unwrap()),
        }
    }

    fn copy(inode: u64) -> Answer {
        Ok(Some(CopyInUse {
            host_path: "/models".into(),
            path: RootPath::parse("m").unwrap(),
            device: 1,
            inode,
        }))
    }

    fn never() -> Answer {
        panic!("a second comparison has begun")
    }

    /// A comparison, and what lets it end.
    fn held(answer: Answer) -> (mpsc::Sender<()>, impl FnOnce() -> Answer + Send + 'static) {
        let (end, ended) = mpsc::channel();
        (end, move || {
            let _ = ended.recv();
            answer
        })
    }

    #[tokio::test]
    async fn a_volumes_later_calls_take_the_answer_of_its_one_comparison() {
        let in_use = tempfile::tempdir().unwrap();
        let comparisons = Comparisons::new(in_use.path().into());
        std::fs::write(in_use.path().join("csi-1"), "").unwrap();
        let (end, slow) = held(copy(7));
        let one = wanted("csi-1", "team-a");
        // The caller hangs up.
        assert!(comparisons.run(one.clone(), slow).now_or_never().is_none());
        assert!(comparisons.run(one.clone(), never).now_or_never().is_none());
        let other = comparisons.run(wanted("csi-1", "team-b"), never).await;
        let still = other.unwrap_err();
        assert!(still.message().contains("still being compared"), "{still}");
        end.send(()).unwrap();
        let found = comparisons.run(one.clone(), never).await.unwrap().unwrap();
        assert_eq!(found.inode, 7);
        // It is compared again for a call after that.
        let again = comparisons.run(one.clone(), || copy(8)).await.unwrap();
        assert_eq!(again.unwrap().inode, 8);
        std::fs::remove_file(in_use.path().join("csi-1")).unwrap();
        let gone = comparisons.run(one, || copy(9)).await.unwrap_err();
        assert!(gone.message().contains("was unmounted"), "{gone}");
    }

    #[tokio::test]
    async fn comparisons_that_hang_hold_two_places_of_their_namespace_and_no_more() {
        let in_use = tempfile::tempdir().unwrap();
        let comparisons = Comparisons::new(in_use.path().into());
        let mut ends = Vec::new();
        for volume in ["csi-1", "csi-2"] {
            let (end, hung) = held(Ok(None));
            ends.push(end);
            let call = comparisons.run(wanted(volume, "team-a"), hung);
            assert!(call.now_or_never().is_none());
        }
        let third = comparisons.run(wanted("csi-3", "team-a"), || Ok(None));
        let mut third = Box::pin(third);
        assert!(third.as_mut().now_or_never().is_none());
        let other = comparisons.run(wanted("csi-4", "team-b"), || Ok(None));
        assert!(other.await.unwrap().is_none());
        assert!(third.as_mut().now_or_never().is_none());
        ends.clear();
        assert!(third.await.unwrap().is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn a_copy_that_no_call_takes_is_not_in_use_any_more() {
        let in_use = tempfile::tempdir().unwrap();
        let comparisons = Comparisons::new(in_use.path().into());
        std::fs::write(in_use.path().join("csi-1"), "").unwrap();
        let one = wanted("csi-1", "team-a");
        let call = comparisons.run(one, || copy(7));
        assert!(call.now_or_never().is_none());
        let mut answer = comparisons.known()["csi-1"].answer.clone();
        answer.wait_for(Option::is_some).await.unwrap();
        // The task that keeps it has ended.
        while answer.changed().await.is_ok() {}
        assert!(!in_use.path().join("csi-1").exists());
        assert!(comparisons.known().is_empty());
    }
}

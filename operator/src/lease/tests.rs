use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, Ordering},
};

use kube::core::Status;

use super::*;

/// A Lease kept as an API server keeps it.
#[derive(Clone, Default)]
struct Memory {
    lease: Arc<Mutex<Option<Lease>>>,
    away: Arc<AtomicBool>,
}

impl Memory {
    fn spec(&self) -> LeaseSpec {
        let lease = self.lease.lock().unwrap();
        lease.as_ref().and_then(|lease| lease.spec.clone()).unwrap()
    }

    fn answers(&self) -> Result<(), kube::Error> {
        match self.away.load(Ordering::Relaxed) {
            true => Err(refusal("nobody is there", 503)),
            false => Ok(()),
        }
    }
}

fn refusal(message: &str, code: u16) -> kube::Error {
    kube::Error::Api(Box::new(Status::failure(message, "Test").with_code(code)))
}

impl LeaseStore for Memory {
    async fn read(&self) -> Result<Option<Lease>, kube::Error> {
        self.answers()?;
        Ok(self.lease.lock().unwrap().clone())
    }

    async fn write(&self, mut lease: Lease) -> Result<Lease, kube::Error> {
        self.answers()?;
        let mut kept = self.lease.lock().unwrap();
        let version = kept
            .as_ref()
            .and_then(|lease| lease.metadata.resource_version.clone());
        if lease.metadata.resource_version != version {
            return Err(refusal("the object has been modified", 409));
        }
        let next = version.map_or(0, |version| version.parse::<u64>().unwrap()) + 1;
        lease.metadata.resource_version = Some(next.to_string());
        *kept = Some(lease.clone());
        Ok(lease)
    }
}

fn candidate(name: &str) -> Candidate {
    Candidate {
        name: name.to_owned(),
        seen: None,
    }
}

fn held(by: &str, transitions: i32, renewed_s: i64) -> LeaseSpec {
    LeaseSpec {
        holder_identity: Some(by.to_owned()),
        lease_transitions: Some(transitions),
        renew_time: Some(MicroTime(Timestamp::from_second(renewed_s).unwrap())),
        ..LeaseSpec::default()
    }
}

#[test]
fn a_lease_is_taken_when_it_is_free_and_every_taking_is_a_transition() {
    let (now, wall) = (Instant::now(), Timestamp::from_second(600).unwrap());
    let table = [
        ("none yet", None, Some(10)),
        ("given back", Some(held("", 7, 0)), Some(8)),
        ("without a holder", Some(LeaseSpec::default()), Some(1)),
        (
            "of the process before this one",
            Some(held("a", 7, 0)),
            Some(8),
        ),
        ("of another", Some(held("b", 7, 0)), None),
    ];
    for (case, lease, transitions) in table {
        let taken = candidate("a").take(lease.as_ref(), now, wall);
        let taken = taken.map(|spec| {
            assert_eq!(spec.holder_identity.as_deref(), Some("a"), "{case}");
            spec.lease_transitions.unwrap()
        });
        assert_eq!(taken, transitions, "{case}");
    }
}

#[test]
fn only_silence_that_was_watched_frees_a_lease_whatever_its_times_say() {
    let wall = Timestamp::from_second(1_000_000).unwrap();
    let (began, mut candidate) = (Instant::now(), candidate("a"));
    // Renewed ages ago by the clock of whoever did, and in the future.
    for renewed in [0, 2_000_000] {
        assert!(
            candidate
                .take(Some(&held("b", 7, renewed)), began, wall)
                .is_none()
        );
    }
    let last = held("b", 7, 2_000_000);
    let at = |seconds| began + Duration::from_secs(seconds);
    assert!(candidate.take(Some(&last), at(29), wall).is_none());
    // A renewal begins the wait anew.
    let last = held("b", 7, 2_000_001);
    assert!(candidate.take(Some(&last), at(30), wall).is_none());
    assert!(candidate.take(Some(&last), at(59), wall).is_none());
    assert_eq!(
        candidate
            .take(Some(&last), at(60), wall)
            .unwrap()
            .lease_transitions,
        Some(8)
    );
}

#[tokio::test(start_paused = true)]
async fn a_leader_whose_api_server_is_away_has_given_up_before_the_next_one_leads() {
    let board = Memory::default();
    let mut first = acquire(board.clone(), "a", || {}).await;
    let epoch = first.epoch();
    let next = tokio::spawn({
        let board = board.clone();
        async move {
            let next = acquire(board, "b", || {}).await;
            (next.epoch(), Instant::now())
        }
    });
    // Renewed as long as there is somebody who answers.
    let kept = timeout(Duration::from_secs(300), first.keep()).await;
    assert!(kept.is_err() && !next.is_finished());
    assert_eq!(board.spec().holder_identity.as_deref(), Some("a"));

    // Nobody hears the leader any more; the candidate still sees the Lease.
    let deaf = Memory {
        away: Arc::new(AtomicBool::new(true)),
        ..board.clone()
    };
    first.board = deaf;
    let lost = first.keep().await;
    let given_up = Instant::now();
    assert!(lost.to_string().contains("not renewed"), "{lost}");
    assert!(!next.is_finished());
    let (next_epoch, led) = next.await.unwrap();
    assert!(led > given_up);
    assert_eq!(next_epoch, epoch + 1);
}

#[tokio::test(start_paused = true)]
async fn an_api_server_that_is_away_for_20_s_costs_nobody_the_lead() {
    let board = Memory::default();
    let mut leader = acquire(board.clone(), "a", || {}).await;
    board.away.store(true, Ordering::Relaxed);
    assert!(
        timeout(Duration::from_secs(20), leader.keep())
            .await
            .is_err()
    );
    board.away.store(false, Ordering::Relaxed);
    assert!(
        timeout(Duration::from_secs(300), leader.keep())
            .await
            .is_err()
    );
}

#[tokio::test(start_paused = true)]
async fn a_leader_learns_that_another_has_taken_the_lease_or_that_it_is_gone() {
    let board = Memory::default();
    let mut leader = acquire(board.clone(), "a", || {}).await;
    let transitions = board.spec().lease_transitions.unwrap();
    // The same name is not enough: a later process of the same pod.
    for taken in [held("b", transitions + 1, 0), held("a", transitions + 1, 0)] {
        board.lease.lock().unwrap().as_mut().unwrap().spec = Some(taken);
        let lost = leader.keep().await.to_string();
        assert!(lost.contains("has taken it"), "{lost}");
    }
    *board.lease.lock().unwrap() = None;
    let lost = leader.keep().await.to_string();
    assert!(lost.contains("gone"), "{lost}");
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_is_given_back_is_taken_at_the_next_look_with_a_higher_epoch() {
    let board = Memory::default();
    let first = acquire(board.clone(), "a", || {}).await;
    let epoch = first.epoch();
    first.release().await;
    let began = Instant::now();
    let next = acquire(board.clone(), "b", || {}).await;
    assert_eq!(began.elapsed(), Duration::ZERO);
    assert_eq!(next.epoch(), epoch + 1);
}

#[tokio::test(start_paused = true)]
async fn of_two_that_find_no_lease_one_leads() {
    let board = Memory::default();
    let lead = |name: &'static str| {
        let board = board.clone();
        async move { timeout(Duration::from_secs(10), acquire(board, name, || {})).await }
    };
    let (a, b) = tokio::join!(lead("a"), lead("b"));
    assert_eq!([a.is_ok(), b.is_ok()].iter().filter(|led| **led).count(), 1);
}

/// Says when it is written to.
struct Told {
    memory: Memory,
    tell: std::sync::mpsc::Sender<()>,
}

impl LeaseStore for Told {
    async fn read(&self) -> Result<Option<Lease>, kube::Error> {
        self.memory.read().await
    }

    async fn write(&self, lease: Lease) -> Result<Lease, kube::Error> {
        let written = self.memory.write(lease).await;
        self.tell.send(()).unwrap();
        written
    }
}

#[tokio::test]
async fn a_process_that_is_busy_renews_all_the_same_and_gives_the_lease_back_at_its_end() {
    let (tell, written) = std::sync::mpsc::channel();
    let memory = Memory::default();
    let board = {
        let memory = memory.clone();
        move || Ok(Told { memory, tell })
    };
    let held = Held::acquire(board, "a".to_owned(), || {}).await.unwrap();
    let taken = *held.renewals.borrow();
    // This blocks the only thread that the runtime has, as a decision over thousands of jobs does.
    for _ in 0..2 {
        written.recv_timeout(Duration::from_secs(60)).unwrap();
    }
    held.renewals
        .clone()
        .wait_for(|renewed| *renewed > taken)
        .await
        .unwrap();
    assert_eq!(memory.spec().holder_identity.as_deref(), Some("a"));
    held.release().await;
    assert_eq!(memory.spec().holder_identity.as_deref(), Some(""));
}

#[tokio::test]
async fn who_lost_the_lead_is_told_and_so_is_one_whose_thread_ended() {
    let memory = Memory::default();
    let board = memory.clone();
    let held = Held::acquire(|| Ok(board), "a".to_owned(), || {}).await;
    let mut held = held.unwrap();
    *memory.lease.lock().unwrap() = None;
    let lost = held.lost().await.to_string();
    assert!(lost.contains("gone"), "{lost}");
    let broken = || -> Result<Memory, kube::Error> { panic!("there is no board") };
    let lost = Held::acquire(broken, "b".to_owned(), || {}).await;
    let lost = lost.err().unwrap().to_string();
    assert!(lost.contains("this process ends"), "{lost}");
}

#[tokio::test(start_paused = true)]
async fn an_uninstall_takes_the_lease_and_nobody_leads_before_it_has_been_over_for_ten_seconds() {
    let board = Memory::default();
    assert!(seize(board.clone()).await.unwrap().is_none());
    let mut leader = acquire(board.clone(), "a", || {}).await;
    let mut uninstall = seize(board.clone()).await.unwrap().unwrap();
    let lost = leader.keep().await.to_string();
    assert!(lost.contains("weft-uninstall has taken it"), "{lost}");
    let next = tokio::spawn({
        let board = board.clone();
        async move { acquire(board, "b", || {}).await.epoch() }
    });
    let kept = timeout(Duration::from_secs(60), uninstall.keep()).await;
    assert!(kept.is_err() && !next.is_finished());
    let (over, epoch) = (Instant::now(), uninstall.epoch());
    drop(uninstall);
    assert_eq!(next.await.unwrap(), epoch + 1);
    let waited = over.elapsed();
    assert!((8..=14).contains(&waited.as_secs()), "{waited:?}");
}

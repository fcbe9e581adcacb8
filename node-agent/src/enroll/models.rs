//! `Caretaker`: looks after the models that the operator has named, and says which of them are not
//! any more as they were verified.
//!
//! Each root is looked at by itself, beside whatever the agent does: one that does not answer (a
//! network file system whose server is gone) keeps neither the others nor the agent waiting. What
//! cannot be looked at stays as it was last seen.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::Instant;
use weft_proto::operator::v1::{Model, ModelState};

use crate::files::{Condition, Fingerprint, Root, RootPath};
use crate::guard;
use crate::jobs::Jobs;

/// Most models that one report says are not intact; the others come when the operator has taken these
/// away. A state has 72 bytes of name and 1500 of fingerprint, and with them a report stays below half of the 64 KiB
/// that the operator takes.
const REPORTED_MAX: usize = 16;
/// How long files may be missing that this process has not seen yet: after a restart of the node a file
/// system may be mounted late, and a label that is taken away does not come back. systemd gives a mount
/// 90 s, and waits for its device as long.
const LATE_MOUNT: Duration = Duration::from_secs(300);
/// A root is looked at for a tenth of the time at most.
const REST: u32 = 9;
/// From when on a look that has not ended is worth a line in the log.
const SLOW: Duration = Duration::from_secs(60);

/// Looks after models. Belongs to the process, not to one of its agents.
#[derive(Debug)]
pub(crate) struct Caretaker {
    /// Half of the time between two occasions to look: a root is looked at once for each at most.
    rest: Duration,
    /// By root.
    turns: BTreeMap<String, Turn>,
    looks: JoinSet<Look>,
    /// By the model's name.
    known: BTreeMap<String, Known>,
    /// A root's path leads to another directory than the one that the agent has open.
    has_moved: bool,
}

/// A root's.
#[derive(Debug)]
enum Turn {
    /// Since when, and whether it was said to be slow.
    Looking(Instant, bool),
    RestsUntil(Instant),
}

/// What was seen in one root.
#[derive(Debug)]
struct Look {
    root: String,
    /// Its path leads to another directory than the one that the agent has open.
    is_elsewhere: bool,
    /// Of those that could be looked at.
    seen: Vec<(Model, Condition)>,
}

#[derive(Debug)]
struct Known {
    fingerprint: String,
    standing: Standing,
}

/// What is so of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    /// This process has not seen it yet.
    Unseen,
    /// It is not there, and was not since this process first looked.
    Awaited(Instant),
    Intact,
    Lost,
}

impl Standing {
    fn after(self, seen: Condition, now: Instant) -> Self {
        match (self, seen) {
            (_, Condition::Intact) => Standing::Intact,
            (_, Condition::Changed) => Standing::Lost,
            (Standing::Unseen, Condition::Missing) => Standing::Awaited(now),
            (Standing::Awaited(since), Condition::Missing)
                if now.duration_since(since) < LATE_MOUNT =>
            {
                self
            }
            (_, Condition::Missing) => Standing::Lost,
        }
    }
}

impl Caretaker {
    /// With occasions to look this far apart.
    pub(crate) fn new(pace: Duration) -> Self {
        Self {
            rest: pace / 2,
            turns: BTreeMap::new(),
            looks: JoinSet::new(),
            known: BTreeMap::new(),
            has_moved: false,
        }
    }

    /// Begins to look wherever it is time to, with an agent's roots: at all of them, for a file system may
    /// be mounted over one that holds no model yet.
    pub(crate) fn begin(&mut self, jobs: &Arc<Jobs>, models: &[Model]) {
        // Not the jobs themselves: a look that hangs would keep their engine, and its ports, for as long.
        let roots = jobs.roots().to_vec();
        let names = roots.iter().map(|root| root.name().to_owned()).collect();
        let same = roots.clone();
        self.begin_with(
            models,
            names,
            Instant::now(),
            move |model| sight(&roots, model),
            move |root| named(&same, root).is_some_and(|root| root.is_elsewhere()),
        );
    }

    fn begin_with(
        &mut self,
        models: &[Model],
        mut roots: BTreeSet<String>,
        now: Instant,
        look: impl Fn(&Model) -> Option<Condition> + Clone + Send + 'static,
        is_elsewhere: impl Fn(&str) -> bool + Clone + Send + 'static,
    ) {
        let named: BTreeMap<&str, &str> = models
            .iter()
            .map(|model| (model.name.as_str(), model.fingerprint.as_str()))
            .collect();
        self.known
            .retain(|name, known| named.get(name.as_str()) == Some(&known.fingerprint.as_str()));
        for model in models {
            self.known
                .entry(model.name.clone())
                .or_insert_with(|| Known {
                    fingerprint: model.fingerprint.clone(),
                    standing: Standing::Unseen,
                });
        }
        roots.extend(models.iter().map(|model| model.root.clone()));
        self.turns
            .retain(|root, turn| roots.contains(root) || matches!(turn, Turn::Looking(..)));
        for root in roots {
            match self.turns.get_mut(&root) {
                Some(Turn::Looking(since, said)) => {
                    if !*said && now.duration_since(*since) > SLOW {
                        *said = true;
                        tracing::warn!(
                            root,
                            "a look at the root's models does not end: they stay as they were last \
                             seen; does its file system answer?"
                        );
                    }
                    continue;
                }
                Some(Turn::RestsUntil(end)) if now < *end => continue,
                _ => {}
            }
            let there = |model: &&Model| model.root == root;
            let models: Vec<Model> = models.iter().filter(there).cloned().collect();
            self.turns.insert(root.clone(), Turn::Looking(now, false));
            let (look, is_elsewhere) = (look.clone(), is_elsewhere.clone());
            self.looks.spawn(guard::blocking("models", move || {
                let seen = models.into_iter().filter_map(|model| {
                    let condition = look(&model)?;
                    Some((model, condition))
                });
                Look {
                    seen: seen.collect(),
                    // After them: what they have not found may have just been mounted.
                    is_elsewhere: is_elsewhere(&root),
                    root,
                }
            }));
        }
    }

    /// Until a look has ended; for ever while none is under way. Nothing is lost when it is dropped.
    pub(crate) async fn ended(&mut self) {
        match self.looks.join_next().await {
            Some(Ok(look)) => self.learn(look, Instant::now()),
            // Nobody aborts one, and a panic has ended the process.
            Some(Err(_)) => {}
            None => std::future::pending().await,
        }
    }

    fn learn(&mut self, look: Look, now: Instant) {
        if let Some(turn) = self.turns.get_mut(&look.root) {
            let took = match turn {
                Turn::Looking(since, _) => now.duration_since(*since),
                Turn::RestsUntil(_) => Duration::ZERO,
            };
            *turn = Turn::RestsUntil(now + self.rest.max(took * REST));
        }
        self.has_moved |= look.is_elsewhere;
        for (model, condition) in look.seen {
            let known = self.known.get_mut(&model.name);
            if let Some(known) = known.filter(|known| known.fingerprint == model.fingerprint) {
                let standing = known.standing.after(condition, now);
                if standing != known.standing && standing != Standing::Intact {
                    let Model {
                        name, root, path, ..
                    } = model;
                    match standing {
                        Standing::Awaited(_) => tracing::warn!(
                            name,
                            root,
                            path,
                            "a model is not there: is its file system mounted? It is given up after {} s",
                            LATE_MOUNT.as_secs()
                        ),
                        _ => tracing::info!(name, root, path, "a model is lost"),
                    }
                }
                known.standing = standing;
            }
        }
    }

    /// Whether the roots are to be opened anew.
    pub(crate) fn has_moved(&self) -> bool {
        self.has_moved
    }

    /// They have been.
    pub(crate) fn opened_anew(&mut self) {
        self.has_moved = false;
    }

    /// Those that are not any more what they were, as far as one report tells.
    pub(crate) fn lost(&self) -> Vec<ModelState> {
        let lost = self
            .known
            .iter()
            .filter(|(_, known)| known.standing == Standing::Lost);
        lost.take(REPORTED_MAX)
            .map(|(name, known)| ModelState {
                name: name.clone(),
                fingerprint: known.fingerprint.clone(),
                intact: false,
            })
            .collect()
    }
}

fn named<'a>(roots: &'a [Arc<Root>], name: &str) -> Option<&'a Arc<Root>> {
    roots.iter().find(|root| root.name() == name)
}

/// What has become of a model; nothing where nobody can tell.
fn sight(roots: &[Arc<Root>], model: &Model) -> Option<Condition> {
    // A root that is none any more holds nothing for anybody.
    let Some(root) = named(roots, &model.root) else {
        return Some(Condition::Changed);
    };
    let path = RootPath::parse(&model.path).ok()?;
    let Some(fingerprint) = Fingerprint::parse(&model.fingerprint) else {
        return Some(Condition::Changed);
    };
    fingerprint
        .examine(root, &path)
        .inspect_err(|error| {
            tracing::warn!(
                model = model.name,
                "a model cannot be looked at, and stays as it was last seen: {error}"
            );
        })
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PACE: Duration = Duration::from_secs(10);

    fn model(name: &str, root: &str) -> Model {
        Model {
            name: name.to_owned(),
            root: root.to_owned(),
            path: name.to_owned(),
            fingerprint: format!("of {name}"),
        }
    }

    /// With roots that are where they were.
    fn begin(
        caretaker: &mut Caretaker,
        models: &[Model],
        now: Instant,
        look: impl Fn(&Model) -> Option<Condition> + Clone + Send + 'static,
    ) {
        caretaker.begin_with(models, BTreeSet::new(), now, look, |_| false);
    }

    fn lost(caretaker: &Caretaker) -> Vec<String> {
        let lost = caretaker.lost().into_iter();
        lost.map(|state| state.name).collect()
    }

    #[tokio::test]
    async fn a_root_that_does_not_answer_keeps_nobody_waiting() {
        let (free, held) = crossbeam_channel::bounded::<()>(0);
        let (looks, looked) = crossbeam_channel::unbounded();
        let look = move |model: &Model| {
            let _ = looks.send(model.root.clone());
            if model.root == "hung" {
                let _ = held.recv();
            }
            Some(Condition::Changed)
        };
        let models = vec![model("a", "hung"), model("b", "good")];
        let mut caretaker = Caretaker::new(PACE);
        let mut now = Instant::now();
        for turn in 1..=3 {
            begin(&mut caretaker, &models, now, look.clone());
            // Of the two the one that answers.
            caretaker.ended().await;
            assert_eq!(lost(&caretaker), ["b"], "turn {turn}");
            now = Instant::now() + PACE * turn;
        }
        assert_eq!(
            looked.iter().take(4).filter(|root| root == "hung").count(),
            1
        );
        drop(free);
        caretaker.ended().await;
        assert_eq!(lost(&caretaker), ["a", "b"]);
    }

    #[tokio::test]
    async fn a_root_that_holds_no_model_is_seen_to_be_elsewhere() {
        let mut caretaker = Caretaker::new(PACE);
        let mut now = Instant::now();
        for is_mounted in [false, true] {
            let roots = BTreeSet::from(["data".to_owned()]);
            let is_elsewhere = move |root: &str| is_mounted && root == "data";
            caretaker.begin_with(&[], roots, now, |_| None, is_elsewhere);
            caretaker.ended().await;
            assert_eq!(caretaker.has_moved(), is_mounted);
            now = Instant::now() + PACE;
        }
        caretaker.opened_anew();
        assert!(!caretaker.has_moved());
    }

    #[tokio::test]
    async fn a_root_is_looked_at_for_a_tenth_of_the_time_at_most() {
        let models = vec![model("a", "data")];
        let mut caretaker = Caretaker::new(PACE);
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let look = |_: &Model| Some(Condition::Intact);
        let under_way = |caretaker: &Caretaker| caretaker.looks.len();
        begin(&mut caretaker, &models, start, look);
        let ended = caretaker.looks.join_next().await.unwrap().unwrap();
        // It took a minute.
        caretaker.learn(ended, at(60));
        begin(&mut caretaker, &models, at(60 + 539), look);
        assert_eq!(under_way(&caretaker), 0);
        begin(&mut caretaker, &models, at(60 + 540), look);
        assert_eq!(under_way(&caretaker), 1);
    }

    #[tokio::test]
    async fn a_report_tells_a_few_of_the_lost_and_those_that_follow_when_they_are_named_no_more() {
        let mut models: Vec<Model> = (0..40).map(|n| model(&format!("{n:02}"), "data")).collect();
        let mut caretaker = Caretaker::new(PACE);
        let mut told = Vec::new();
        let mut now = Instant::now();
        while !models.is_empty() {
            begin(&mut caretaker, &models, now, |_| Some(Condition::Changed));
            caretaker.ended().await;
            let lost = lost(&caretaker);
            assert!((1..=REPORTED_MAX).contains(&lost.len()));
            models.retain(|model| !lost.contains(&model.name));
            told.extend(lost);
            now = Instant::now() + PACE;
        }
        assert_eq!(told.len(), 40);
        begin(&mut caretaker, &models, now, |_| Some(Condition::Changed));
        assert!(lost(&caretaker).is_empty());
    }

    #[test]
    fn what_is_missing_since_the_start_is_given_time_to_be_mounted_and_what_was_seen_is_not() {
        let start = Instant::now();
        let late = start + LATE_MOUNT;
        let awaited = Standing::Unseen.after(Condition::Missing, start);
        assert_eq!(awaited, Standing::Awaited(start));
        let soon = late - Duration::from_secs(1);
        assert_eq!(awaited.after(Condition::Missing, soon), awaited);
        assert_eq!(awaited.after(Condition::Missing, late), Standing::Lost);
        assert_eq!(awaited.after(Condition::Intact, soon), Standing::Intact);
        assert_eq!(awaited.after(Condition::Changed, soon), Standing::Lost);
        let seen = Standing::Unseen.after(Condition::Intact, start);
        assert_eq!(seen.after(Condition::Missing, start), Standing::Lost);
        // As it was: the operator may not have heard of it.
        assert_eq!(
            Standing::Lost.after(Condition::Intact, late),
            Standing::Intact
        );
    }
}

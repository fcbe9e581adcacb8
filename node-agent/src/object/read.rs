//! Patience: what a store does not give at once is asked for again, from the byte that is missing.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::BoxStream;
use tokio::time::Instant;

use super::error::ObjectError;
use super::store::{Answer, Store, Version};
use crate::files::Manifest;

/// How long is waited, and how often tried.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tempo {
    /// A request that brings nothing for so long has failed.
    pub(crate) stall: Duration,
    /// Before the second try; it doubles.
    pub(crate) first: Duration,
    /// The longest wait.
    pub(crate) most: Duration,
    /// Tries in a row that may bring nothing.
    pub(crate) tries: u32,
    /// For all of a list, tries and waits included.
    pub(crate) list: Duration,
}

impl Tempo {
    /// With the usual waits: 25 s in all, and then the job's next attempt.
    pub(crate) fn new(stall: Duration, list: Duration) -> Self {
        Self {
            stall,
            list,
            first: Duration::from_millis(200),
            most: Duration::from_secs(10),
            tries: 8,
        }
    }

    fn wait(&self, failed: u32) -> Duration {
        (self.first * 2u32.saturating_pow(failed.saturating_sub(1))).min(self.most)
    }
}

/// Reads a store.
pub(crate) struct Reader {
    pub(crate) store: Store,
    pub(crate) tempo: Tempo,
}

/// Counts tries that brought nothing, and waits between them.
struct Patience<'a> {
    tempo: &'a Tempo,
    failed: u32,
}

impl Patience<'_> {
    /// After another; `moved` says whether it brought something.
    async fn again(
        &mut self,
        moved: bool,
        problem: String,
        url: impl FnOnce() -> String,
    ) -> Result<(), ObjectError> {
        self.failed = if moved { 1 } else { self.failed + 1 };
        if self.failed >= self.tempo.tries {
            return Err(ObjectError::Unavailable {
                url: url(),
                tries: self.failed,
                problem,
            });
        }
        tracing::debug!(url = url(), problem, "a store is asked again");
        tokio::time::sleep(self.tempo.wait(self.failed)).await;
        Ok(())
    }
}

impl Reader {
    fn patience(&self) -> Patience<'_> {
        Patience {
            tempo: &self.tempo,
            failed: 0,
        }
    }

    /// What there is.
    pub(crate) async fn list(&self) -> Result<Manifest, ObjectError> {
        let deadline = Instant::now() + self.tempo.list;
        let mut last = "it goes on without end, or answers nothing".to_owned();
        let listed = tokio::time::timeout_at(deadline, self.list_patiently(&mut last)).await;
        listed.unwrap_or_else(|_| {
            Err(ObjectError::Late {
                url: self.store.url().to_owned(),
                seconds: self.tempo.list.as_secs(),
                problem: last,
            })
        })
    }

    async fn list_patiently(&self, last: &mut String) -> Result<Manifest, ObjectError> {
        let mut patience = self.patience();
        loop {
            let problem = match self.store.list().await {
                Ok(manifest) => return Ok(manifest),
                Err(Answer::Final(error)) => return Err(error),
                Err(Answer::Again(problem)) => problem,
                Err(Answer::NoRanges) => "it cannot be listed".to_owned(),
            };
            last.clone_from(&problem);
            let url = || self.store.url().to_owned();
            patience.again(false, problem, url).await?;
        }
    }

    /// Fills `buffer` from `offset` on; false where the server gives no parts of an object.
    pub(crate) async fn read(
        &self,
        version: &Version,
        offset: u64,
        buffer: &mut [u8],
    ) -> Result<bool, ObjectError> {
        let mut patience = self.patience();
        let mut filled = 0;
        loop {
            let before = filled;
            match self.read_on(version, offset, buffer, &mut filled).await {
                Ok(()) => return Ok(true),
                Err(Answer::Final(error)) => return Err(error),
                Err(Answer::NoRanges) => return Ok(false),
                Err(Answer::Again(problem)) => {
                    let url = || self.store.url_of_version(version);
                    patience.again(filled > before, problem, url).await?;
                }
            }
        }
    }

    /// One try, from what is filled on.
    async fn read_on(
        &self,
        version: &Version,
        offset: u64,
        buffer: &mut [u8],
        filled: &mut usize,
    ) -> Result<(), Answer> {
        let range = offset + *filled as u64..offset + buffer.len() as u64;
        let mut stream = self.store.get(version, Some(range)).await?;
        while *filled < buffer.len() {
            let Some(piece) = stream.next().await else {
                return Err(Answer::Again(format!(
                    "the answer ended after {filled} of {} bytes",
                    buffer.len()
                )));
            };
            let piece = piece.map_err(Answer::Again)?;
            let taken = piece.len().min(buffer.len() - *filled);
            buffer[*filled..*filled + taken].copy_from_slice(&piece[..taken]);
            *filled += taken;
        }
        Ok(())
    }
}

/// Reads objects from their beginning, one after the other, where a server gives no parts or names no
/// versions: each is asked for once, and again from the beginning only after a failure.
///
/// Where the server names no version, nothing but the bytes can say that they are of another one. So
/// those that were read already are hashed, and a second answer must begin with the same: then all that
/// was read is one answer's.
pub(crate) struct Whole {
    reader: Arc<Reader>,
    open: Option<Open>,
    /// What an answer that broke off had brought of an object without a name for its version.
    brought: Option<Brought>,
}

struct Open {
    version: Version,
    at: u64,
    stream: BoxStream<'static, Result<bytes::Bytes, String>>,
    /// Of the last piece, what is not used yet.
    rest: bytes::Bytes,
    /// Of the bytes before `at`, where the version has no name.
    hasher: Option<blake3::Hasher>,
    /// What those must be when it comes there.
    must: Option<Brought>,
}

/// The first bytes of an object.
#[derive(Debug, Clone, Copy)]
struct Brought {
    bytes: u64,
    hash: blake3::Hash,
}

/// Why an answer was not read further.
enum Broken {
    /// Its end, or the network's.
    Off(String),
    /// It begins with other bytes than the one before.
    Another,
}

impl Whole {
    pub(crate) fn new(reader: Arc<Reader>) -> Self {
        Self {
            reader,
            open: None,
            brought: None,
        }
    }

    /// Fills `buffer` from `offset` on. Cheap where that is not before what was read last.
    pub(crate) async fn read(
        &mut self,
        version: &Version,
        offset: u64,
        buffer: &mut [u8],
    ) -> Result<(), ObjectError> {
        let reader = self.reader.clone();
        let mut patience = reader.patience();
        let mut filled = 0;
        // How far any try came: beyond it is progress.
        let mut furthest = offset;
        loop {
            let answer = self.read_on(version, offset, buffer, &mut filled).await;
            let at = self.open.as_ref().map_or(0, |open| open.at);
            let moved = at > furthest;
            furthest = furthest.max(at);
            match answer {
                Ok(()) => return Ok(()),
                Err(Answer::Final(error)) => return Err(error),
                Err(Answer::Again(problem)) => {
                    self.give_up();
                    let url = || reader.store.url_of_version(version);
                    patience.again(moved, problem, url).await?;
                }
                Err(Answer::NoRanges) => {
                    self.give_up();
                    let problem = "it is given neither in parts nor as a whole".to_owned();
                    let url = || reader.store.url_of_version(version);
                    patience.again(false, problem, url).await?;
                }
            }
        }
    }

    /// The answer that is open has broken off.
    fn give_up(&mut self) {
        if let Some(open) = self.open.take() {
            self.brought = open.brought();
        }
    }

    async fn read_on(
        &mut self,
        version: &Version,
        offset: u64,
        buffer: &mut [u8],
        filled: &mut usize,
    ) -> Result<(), Answer> {
        let next = offset + *filled as u64;
        match &self.open {
            // The next object.
            Some(open) if open.version != *version => (self.open, self.brought) = (None, None),
            Some(open) if open.at > next => self.give_up(),
            _ => {}
        }
        let mut open = match self.open.take() {
            Some(open) => open,
            None => Open {
                version: version.clone(),
                at: 0,
                stream: self.reader.store.get(version, None).await?,
                rest: bytes::Bytes::new(),
                hasher: (!version.is_named()).then(blake3::Hasher::new),
                must: self.brought,
            },
        };
        let result = open.fill(offset, buffer, filled).await;
        self.open = Some(open);
        result.map_err(|broken| match broken {
            Broken::Off(problem) => Answer::Again(problem),
            Broken::Another => Answer::Final(ObjectError::Changed {
                url: self.reader.store.url_of_version(version),
                what: "other bytes, and it names no version by ETag or Last-Modified".to_owned(),
            }),
        })
    }
}

impl Open {
    async fn fill(
        &mut self,
        offset: u64,
        buffer: &mut [u8],
        filled: &mut usize,
    ) -> Result<(), Broken> {
        while *filled < buffer.len() {
            if self.rest.is_empty() {
                match self.stream.next().await {
                    Some(piece) => self.rest = piece.map_err(Broken::Off)?,
                    None => {
                        let problem = format!("the answer ended at byte {}", self.at);
                        return Err(Broken::Off(problem));
                    }
                }
            }
            let wanted = offset + *filled as u64;
            let skipped = wanted.saturating_sub(self.at).min(self.rest.len() as u64);
            // At most the piece's length.
            self.pass(skipped as usize)?;
            let taken = self.rest.len().min(buffer.len() - *filled);
            let piece = self.pass(taken)?;
            buffer[*filled..*filled + taken].copy_from_slice(&piece);
            *filled += taken;
        }
        Ok(())
    }

    /// Takes bytes off what has come, and compares them with what had come before.
    fn pass(&mut self, bytes: usize) -> Result<bytes::Bytes, Broken> {
        let piece = self.rest.split_to(bytes);
        let before = self.at;
        self.at += bytes as u64;
        let Some(hasher) = &mut self.hasher else {
            return Ok(piece);
        };
        match self.must {
            Some(must) if must.bytes <= self.at => {
                // Within the piece, which is in memory.
                let (known, new) = piece.split_at((must.bytes - before) as usize);
                hasher.update(known);
                if hasher.finalize() != must.hash {
                    return Err(Broken::Another);
                }
                self.must = None;
                hasher.update(new);
            }
            _ => {
                hasher.update(&piece);
            }
        }
        Ok(piece)
    }

    /// What must come again when this is asked for again: where it broke off before it had come as far
    /// as another, what that one had brought.
    fn brought(&self) -> Option<Brought> {
        let hasher = self.hasher.as_ref()?;
        self.must.or_else(|| {
            Some(Brought {
                bytes: self.at,
                hash: hasher.finalize(),
            })
        })
    }
}

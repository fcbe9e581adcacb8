//! `DestinationFile`: one file on its way in.
//!
//! Its bytes are in a partial file beside its final name or, as long as every block proved to be
//! there already, in the file under its final name. It never renames anything:
//! [`Destination`](super::Destination) does, once the file is finished.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex, MutexGuard};

use rustix::fs::{self, OFlags};
use rustix::io::Errno;

use super::digest::{BLOCK_BYTES, BlockDigest, BlockLayout, Digest, VerifiedBlock};
use super::error::{FileError, Location, errno};
use super::file_state::{FileState, Fingerprint};
use super::file_target::{FileTarget, InitialContent};
use super::gate::Gate;
use super::hash_tree::HashTree;
use super::holes::{is_hole, next_data};

/// All bits that `chmod(2)` sets, those too that no manifest has.
const MODE_BITS_ALL: u32 = 0o7777;

/// One file of a destination while it is written, forwarded and finished. Every method may be
/// called from any thread; two blocks may be written at the same time.
#[derive(Debug)]
pub struct DestinationFile {
    target: FileTarget,
    index: u32,
    blocks: BlockLayout,
    state: Mutex<State>,
    /// The destination's: every write passes it.
    gate: Arc<Gate>,
}

#[derive(Debug)]
struct State {
    tree: HashTree,
    /// What `rehash` found, sorted by block: blocks that may be here, and that nobody has confirmed.
    unconfirmed: Vec<(u32, BlockDigest)>,
    bytes_at: BytesLocation,
}

/// Where the bytes are.
#[derive(Clone, Debug)]
enum BytesLocation {
    /// In a partial file that held nothing when it was opened.
    Fresh(Arc<File>),
    /// In a partial file that an earlier attempt left.
    Resumed(Arc<File>),
    /// In the file under its final name, of which no block is known to differ.
    Existing(Existing),
    /// In a partial file; unconfirmed blocks are in the file under the final name and are copied.
    Replacing {
        partial: Arc<File>,
        existing: Existing,
    },
}

/// A file under its final name, and its state when it was opened.
#[derive(Clone, Debug)]
struct Existing {
    file: Arc<File>,
    state: FileState,
}

/// What publishing does with a finished file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PublishAction {
    /// It is in its partial file and is to be renamed.
    Rename,
    /// The file under the final name is the one, as long as its state does not change.
    KeepExisting,
}

impl DestinationFile {
    /// Opens the file where its bytes are.
    pub(super) fn open(
        target: FileTarget,
        index: u32,
        blocks: BlockLayout,
        initial_content: InitialContent,
        gate: Arc<Gate>,
    ) -> Result<Self, FileError> {
        let bytes_at = match initial_content {
            InitialContent::Fresh => {
                BytesLocation::Fresh(Arc::new(target.open_partial(OFlags::RDWR)?))
            }
            InitialContent::Resumed => {
                BytesLocation::Resumed(Arc::new(target.open_partial(OFlags::RDWR)?))
            }
            InitialContent::Finished => {
                BytesLocation::Resumed(Arc::new(target.open_partial(OFlags::RDONLY)?))
            }
            InitialContent::Existing => {
                let (file, state) = target.open_final()?;
                BytesLocation::Existing(Existing {
                    file: Arc::new(file),
                    state,
                })
            }
        };
        let state = State {
            tree: HashTree::new(blocks),
            unconfirmed: Vec::new(),
            bytes_at,
        };
        let file = DestinationFile {
            target,
            index,
            blocks,
            state: Mutex::new(state),
            gate,
        };
        let bytes = fs::fstat(&*file.lock().bytes_at.file())
            .map_err(|cause| file.failed("fstat", cause))
            .map(|stat| FileState::of(&stat).size)?;
        if bytes != blocks.file_bytes() {
            return Err(FileError::DestinationChanged {
                location: file.location(),
            });
        }
        Ok(file)
    }

    /// Its index in the manifest.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// How it is cut and hashed.
    pub fn blocks(&self) -> BlockLayout {
        self.blocks
    }

    /// Number of blocks that have neither arrived nor been confirmed.
    pub fn missing(&self) -> u32 {
        self.lock().tree.missing()
    }

    /// Hashes what is here already, from an earlier attempt or under the final name, and gives
    /// the digest of each block that may be whole. Nothing counts as present before it is
    /// [confirmed](Self::confirm). Of a fresh file nothing is read, unless the source has holes.
    /// `buffer` holds at least [`BLOCK_BYTES`].
    ///
    /// # Panics
    ///
    /// When `buffer` is shorter than a block of the file.
    pub fn rehash(&self, buffer: &mut [u8]) -> Result<Vec<(u32, BlockDigest)>, FileError> {
        // A hole in a partial file is what has not arrived, or zeros: these are sent again. Elsewhere it is content,
        // and so it is where the source has holes: their blocks are here before any comes.
        let has_holes = self.target.hole_bytes > 0;
        if matches!(self.lock().bytes_at, BytesLocation::Fresh(_)) && !has_holes {
            return Ok(Vec::new());
        }
        let partial = matches!(self.lock().bytes_at, BytesLocation::Resumed(_));
        self.hash_present(buffer, partial && !has_holes)
    }

    fn hash_present(
        &self,
        buffer: &mut [u8],
        skip_holes: bool,
    ) -> Result<Vec<(u32, BlockDigest)>, FileError> {
        let bytes_at = self.lock().bytes_at.clone();
        let file = match &bytes_at {
            BytesLocation::Fresh(file) | BytesLocation::Resumed(file) => file,
            BytesLocation::Existing(existing) | BytesLocation::Replacing { existing, .. } => {
                &existing.file
            }
        };
        let mut unconfirmed = Vec::new();
        let mut next = 0;
        while next < self.blocks.count() {
            if skip_holes {
                let data = next_data(file, self.blocks.range(next).start);
                match data.map_err(|cause| self.failed("lseek", cause))? {
                    Some(data) => next = next.max((data / BLOCK_BYTES as u64) as u32),
                    None => break,
                }
            }
            let bytes = self.read(file, next, buffer)?;
            unconfirmed.push((next, self.blocks.digest(next, &buffer[..bytes])));
            next += 1;
        }
        self.lock().unconfirmed.clone_from(&unconfirmed);
        Ok(unconfirmed)
    }

    /// Takes a block as present that the source has with this digest and did not send. True when
    /// [`rehash`](Self::rehash) found exactly that; false when the source has to send it.
    pub fn confirm(&self, block: u32, digest: &BlockDigest) -> Result<bool, FileError> {
        let _pass = self.gate.pass(|| self.location())?;
        let mut state = self.lock();
        if let Some(present) = state.tree.get(block) {
            return Ok(present == *digest);
        }
        let found = state
            .unconfirmed
            .binary_search_by_key(&block, |(index, _)| *index);
        if !found.is_ok_and(|at| state.unconfirmed[at].1 == *digest) {
            return Ok(false);
        }
        if let BytesLocation::Replacing { partial, existing } = &state.bytes_at {
            self.copy(existing, partial, block, digest)?;
        }
        state.tree.set(block, *digest);
        Ok(true)
    }

    /// Writes a block that is not here yet. False when it is: nothing is written then.
    ///
    /// # Panics
    ///
    /// When the block was verified for a file of another size or algorithm.
    pub fn write_block(&self, block: &VerifiedBlock<'_>) -> Result<bool, FileError> {
        assert_eq!(
            block.blocks, self.blocks,
            "the block was verified for another file"
        );
        let _pass = self.gate.pass(|| self.location())?;
        let file = {
            let mut state = self.lock();
            if state.tree.get(block.index).is_some() {
                return Ok(false);
            }
            self.begin_replacing(&mut state)?;
            state.bytes_at.file()
        };
        self.write(&file, block.index, block.data)?;
        self.lock().tree.set(block.index, block.digest);
        Ok(true)
    }

    /// Reads a block that is here into the start of `buffer` and gives its digest, for a relay
    /// whose next node lags behind. `None` when it is not here yet.
    ///
    /// # Panics
    ///
    /// When `buffer` is shorter than the block.
    pub fn read_block(
        &self,
        block: u32,
        buffer: &mut [u8],
    ) -> Result<Option<BlockDigest>, FileError> {
        let (digest, file) = {
            let state = self.lock();
            let Some(digest) = state.tree.get(block) else {
                return Ok(None);
            };
            (digest, state.bytes_at.file())
        };
        self.read(&file, block, buffer)?;
        Ok(Some(digest))
    }

    /// Checks that the file is whole and has this digest and that nobody else wrote to it, and sets its
    /// permission bits where its bytes are. Gives its state then.
    pub(super) fn finish(
        &self,
        digest: &Digest,
        mode: u32,
    ) -> Result<(PublishAction, Fingerprint), FileError> {
        let checked = self.check(digest)?;
        let bytes_at = self.lock().bytes_at.clone();
        let action = match &bytes_at {
            BytesLocation::Existing(_) => PublishAction::KeepExisting,
            _ => PublishAction::Rename,
        };
        let file = bytes_at.file();
        let stat = || fs::fstat(&*file).map_err(|cause| self.failed("fstat", cause));
        // Not without need: it would change the state of a file that others look at, too.
        if stat()?.st_mode & MODE_BITS_ALL == mode {
            return Ok((action, checked.fingerprint()));
        }
        fs::fchmod(&*file, fs::Mode::from_raw_mode(mode))
            .map_err(|cause| self.failed("fchmod", cause))?;
        let now = FileState::of(&stat()?);
        let expected = FileState {
            ctime_ns: now.ctime_ns,
            ..checked
        };
        if action == PublishAction::KeepExisting && expected != now {
            return Err(self.target.changed());
        }
        Ok((action, now.fingerprint()))
    }

    /// The state of the file, which is whole, has this digest and was not written to by others.
    fn check(&self, digest: &Digest) -> Result<FileState, FileError> {
        let state = self.lock();
        let Some(found) = state.tree.root() else {
            let missing = u64::from(state.tree.missing());
            return Err(FileError::BlocksMissing {
                location: self.location(),
                missing,
            });
        };
        if found != *digest {
            let (location, expected) = (self.location(), *digest);
            return Err(FileError::DigestMismatch {
                location,
                expected,
                found,
            });
        }
        let stat =
            fs::fstat(&*state.bytes_at.file()).map_err(|cause| self.failed("fstat", cause))?;
        let now = FileState::of(&stat);
        let unchanged = match &state.bytes_at {
            BytesLocation::Existing(existing) => existing.state == now,
            _ => now.size == self.blocks.file_bytes(),
        };
        if unchanged {
            Ok(now)
        } else {
            Err(self.target.changed())
        }
    }

    /// Takes all that is here as present: for a file that is finished and opened again.
    pub(super) fn confirm_all(&self, digest: &Digest) -> Result<(), FileError> {
        let mut buffer = vec![0; self.blocks.len(0)];
        let found = self.hash_present(&mut buffer, false)?;
        {
            let mut state = self.lock();
            for (block, digest) in found {
                state.tree.set(block, digest);
            }
        }
        self.check(digest).map(drop)
    }

    /// Before the first block that differs: a partial file with all that was confirmed so far.
    fn begin_replacing(&self, state: &mut State) -> Result<(), FileError> {
        let BytesLocation::Existing(existing) = &state.bytes_at else {
            return Ok(());
        };
        let existing = existing.clone();
        self.target.may_replace()?;
        self.target
            .reserve(self.blocks.file_bytes(), &self.gate.space)?;
        let partial = Arc::new(self.target.open_partial(OFlags::RDWR)?);
        for block in 0..self.blocks.count() {
            if let Some(digest) = state.tree.get(block) {
                self.copy(&existing, &partial, block, &digest)?;
            }
        }
        state.bytes_at = BytesLocation::Replacing { partial, existing };
        Ok(())
    }

    /// Copies a block from the existing file, if it is still what was hashed.
    fn copy(
        &self,
        existing: &Existing,
        partial: &File,
        block: u32,
        digest: &BlockDigest,
    ) -> Result<(), FileError> {
        let mut buffer = vec![0; self.blocks.len(block)];
        self.read(&existing.file, block, &mut buffer)?;
        if self.blocks.digest(block, &buffer) != *digest {
            return Err(self.target.changed());
        }
        self.write(partial, block, &buffer)
    }

    fn read(&self, file: &File, block: u32, buffer: &mut [u8]) -> Result<usize, FileError> {
        let range = self.blocks.range(block);
        let bytes = self.blocks.len(block);
        file.read_exact_at(&mut buffer[..bytes], range.start)
            .map_err(|error| {
                if error.kind() == std::io::ErrorKind::UnexpectedEof {
                    self.target.changed()
                } else {
                    self.failed("pread", errno(&error))
                }
            })?;
        Ok(bytes)
    }

    fn write(&self, file: &File, block: u32, data: &[u8]) -> Result<(), FileError> {
        let range = self.blocks.range(block);
        // Zeros where a hole is are there already, and the hole stays.
        if data.iter().all(|byte| *byte == 0)
            && is_hole(file, range.clone()).map_err(|cause| self.failed("lseek", cause))?
        {
            return Ok(());
        }
        file.write_all_at(data, range.start).map_err(|error| {
            let bytes = data.len() as u64;
            FileError::writing(self.location(), "pwrite", errno(&error), bytes)
        })
    }

    fn location(&self) -> Location {
        self.target.location()
    }

    fn failed(&self, operation: &'static str, cause: Errno) -> FileError {
        FileError::writing(self.location(), operation, cause, self.blocks.file_bytes())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing is left half-changed by a panic: the tree is set after the write.
        self.state
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl BytesLocation {
    /// The file that holds the present blocks.
    fn file(&self) -> Arc<File> {
        match self {
            BytesLocation::Fresh(file) | BytesLocation::Resumed(file) => file.clone(),
            BytesLocation::Existing(existing) => existing.file.clone(),
            BytesLocation::Replacing { partial, .. } => partial.clone(),
        }
    }
}

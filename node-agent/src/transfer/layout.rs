//! How a manifest is cut into messages: the same at every node, so that a message has a number.
//!
//! Pure. The source reads, relays forward and destinations check messages by this layout; blocks go
//! in manifest order, small files share a message, each file's digest follows its last block, and
//! the last message is the end.

use std::sync::Arc;

use crate::files::{Algorithm, BlockLayout, EntryKind, Manifest};
use crate::transfer::frame::{HEADER_BYTES, SLOT_BYTES, padded};

/// Bytes of a message, at most: a slot less the header of zeros that ends the message.
const CAPACITY_BYTES: usize = SLOT_BYTES - HEADER_BYTES;

/// What one frame of a message holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Item {
    /// A block of an entry.
    Block {
        /// Entry.
        file: u32,
        /// Which block.
        block: u32,
        /// Its bytes.
        bytes: usize,
    },
    /// An entry's digest.
    FileDigest {
        /// Entry.
        file: u32,
    },
    /// The end.
    End,
}

impl Item {
    fn bytes(self) -> usize {
        match self {
            Item::Block { bytes, .. } => HEADER_BYTES + padded(bytes),
            Item::FileDigest { .. } | Item::End => HEADER_BYTES,
        }
    }
}

/// A position between two items. Ordered as the items are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Cursor {
    /// Index into `MessageLayout::files`; their number for the end.
    file_index: u32,
    /// Block, or the number of blocks for the digest.
    item: u32,
}

/// The messages of one transfer.
#[derive(Debug, Clone)]
pub(crate) struct MessageLayout {
    /// What is cut.
    pub manifest: Arc<Manifest>,
    /// How blocks are hashed.
    pub algorithm: Algorithm,
    /// The entries that are files.
    files: Vec<u32>,
    /// Where each message begins.
    starts: Vec<Cursor>,
    /// Blocks of all files.
    pub blocks: u64,
}

impl MessageLayout {
    /// Cuts a manifest.
    pub(crate) fn new(manifest: &Arc<Manifest>, algorithm: Algorithm) -> Self {
        let files = manifest.files();
        let blocks = files.map(|(.., bytes)| u64::from(BlockLayout::new(algorithm, bytes).count()));
        let mut layout = Self {
            algorithm,
            files: manifest.files().map(|(entry, ..)| entry).collect(),
            starts: Vec::new(),
            blocks: blocks.sum(),
            manifest: manifest.clone(),
        };
        let mut cursor = Cursor {
            file_index: 0,
            item: 0,
        };
        let mut used = CAPACITY_BYTES;
        while let Some((item, next)) = layout.step(cursor) {
            if item == Item::End || used + item.bytes() > CAPACITY_BYTES {
                layout.starts.push(cursor);
                used = 0;
            }
            used += item.bytes();
            cursor = next;
        }
        layout
    }

    /// Messages, the end included.
    pub(crate) fn messages(&self) -> u32 {
        // Fewer than files and blocks together, which a manifest holds far below 2³².
        self.starts.len() as u32
    }

    /// How an entry is cut, if it is a file.
    pub(crate) fn file(&self, entry: u32) -> Option<BlockLayout> {
        match self.manifest.entry(entry as usize)?.kind {
            EntryKind::File { bytes } => Some(BlockLayout::new(self.algorithm, bytes)),
            EntryKind::Directory | EntryKind::Link { .. } => None,
        }
    }

    /// What a message consists of, in order; nothing for a number there is not.
    pub(crate) fn items(&self, message: u32) -> impl Iterator<Item = Item> + '_ {
        let message = message as usize;
        let beyond = Cursor {
            file_index: u32::MAX,
            item: 0,
        };
        let start = self.starts.get(message).copied().unwrap_or(beyond);
        let end = self.starts.get(message + 1).copied().unwrap_or(beyond);
        let mut cursor = start;
        std::iter::from_fn(move || {
            if cursor >= end {
                return None;
            }
            let (item, next) = self.step(cursor)?;
            cursor = next;
            Some(item)
        })
    }

    /// The message that an item is in, if it is one of this layout.
    pub(crate) fn message_of(&self, item: Item) -> Option<u32> {
        let cursor = match item {
            Item::End => return Some(self.messages() - 1),
            Item::Block { file, block, .. } => {
                if block >= self.file(file)?.count() {
                    return None;
                }
                Cursor {
                    file_index: self.file_index(file)?,
                    item: block,
                }
            }
            Item::FileDigest { file } => Cursor {
                file_index: self.file_index(file)?,
                item: self.file(file)?.count(),
            },
        };
        let behind = self.starts.partition_point(|start| *start <= cursor);
        Some(behind as u32 - 1)
    }

    fn file_index(&self, entry: u32) -> Option<u32> {
        let index = self.files.binary_search(&entry).ok()?;
        Some(index as u32)
    }

    /// The item at a cursor, and the cursor behind it.
    fn step(&self, at: Cursor) -> Option<(Item, Cursor)> {
        let Some(&file) = self.files.get(at.file_index as usize) else {
            let end = Cursor {
                file_index: self.files.len() as u32,
                item: 0,
            };
            return (at == end).then_some((Item::End, Cursor { item: 1, ..end }));
        };
        let blocks = self.file(file)?;
        if at.item < blocks.count() {
            let bytes = blocks.len(at.item);
            let item = Item::Block {
                file,
                block: at.item,
                bytes,
            };
            return Some((
                item,
                Cursor {
                    item: at.item + 1,
                    ..at
                },
            ));
        }
        let next = Cursor {
            file_index: at.file_index + 1,
            item: 0,
        };
        Some((Item::FileDigest { file }, next))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::{Entry, ManifestBuilder, Shape};

    fn layout(sizes: &[u64]) -> MessageLayout {
        let mut manifest = ManifestBuilder::new(Shape::Directory);
        for (index, bytes) in sizes.iter().enumerate() {
            let entry = Entry {
                path: &format!("f{index:05}"),
                kind: EntryKind::File { bytes: *bytes },
                mode: 0o644,
            };
            manifest.add(entry).unwrap();
        }
        MessageLayout::new(&Arc::new(manifest.finish().unwrap()), Algorithm::Blake3)
    }

    #[test]
    fn every_item_is_in_exactly_the_message_that_says_so() {
        let mib = 1 << 20;
        let many: Vec<u64> = (0..10_000).map(|i| i * 7 % 20_000).collect();
        for sizes in [
            vec![],
            vec![0],
            vec![1],
            vec![mib],
            vec![mib + 1, 0, 3 * mib, 5],
            many,
        ] {
            let layout = layout(&sizes);
            let mut bytes = 0;
            for message in 0..layout.messages() {
                let mut used = 0;
                for item in layout.items(message) {
                    assert_eq!(layout.message_of(item), Some(message), "{item:?}");
                    used += item.bytes();
                    if let Item::Block { bytes: len, .. } = item {
                        bytes += len as u64;
                    }
                }
                assert!(
                    (HEADER_BYTES..=CAPACITY_BYTES).contains(&used),
                    "{message}: {used}"
                );
            }
            assert_eq!(bytes, sizes.iter().sum::<u64>());
            let last: Vec<_> = layout.items(layout.messages() - 1).collect();
            assert_eq!(last, [Item::End]);
            assert_eq!(layout.items(layout.messages()).count(), 0);
        }
    }

    #[test]
    fn small_files_share_messages() {
        assert!(layout(&vec![1000; 10_000]).messages() < 15);
    }
}

//! `HashTree`: the block digests of one file and the digest they make.
//!
//! Takes 32 B and one bit per MiB of file (a 1 TiB file: 32 MiB), touched only as blocks come:
//! a relay needs the digest of every block it forwards, so they are kept rather than merged away.

use blake3::hazmat::{self, Mode};

use super::digest::{self, Algorithm, BlockDigest, BlockLayout, Digest};

/// The digests of a file's blocks, in any order of arrival.
#[derive(Clone, Debug)]
pub struct HashTree {
    blocks: BlockLayout,
    digests: Vec<[u8; 32]>,
    present: Vec<u64>,
    missing: u32,
}

impl HashTree {
    /// A tree that holds no block yet.
    pub fn new(blocks: BlockLayout) -> Self {
        let count = blocks.count();
        HashTree {
            blocks,
            digests: vec![[0; 32]; count as usize],
            present: vec![0; count.div_ceil(u64::BITS) as usize],
            missing: count,
        }
    }

    /// Puts a block's digest in, replacing what was there. An index past the end is ignored.
    pub fn set(&mut self, index: u32, digest: BlockDigest) {
        if let Some(slot) = self.digests.get_mut(index as usize) {
            *slot = digest.0;
            let bit = 1 << (index % u64::BITS);
            let word = &mut self.present[(index / u64::BITS) as usize];
            if *word & bit == 0 {
                *word |= bit;
                self.missing -= 1;
            }
        }
    }

    /// The digest of a block that is there.
    pub fn get(&self, index: u32) -> Option<BlockDigest> {
        let digest = self.digests.get(index as usize)?;
        let word = self.present[(index / u64::BITS) as usize];
        (word & (1 << (index % u64::BITS)) != 0).then_some(BlockDigest(*digest))
    }

    /// Number of blocks that are not there.
    pub fn missing(&self) -> u32 {
        self.missing
    }

    /// The file's digest, once every block is there. Takes one compression (about 100 ns) per
    /// block.
    pub fn root(&self) -> Option<Digest> {
        if self.missing > 0 {
            return None;
        }
        let algorithm = self.blocks.algorithm();
        let bytes = match (algorithm, self.digests.as_slice()) {
            (Algorithm::Blake3, []) => *blake3::hash(&[]).as_bytes(),
            (Algorithm::Blake3, [only]) => *only,
            (Algorithm::Blake3, all) => blake3_root(all),
            (Algorithm::Xxh3, all) => {
                let width = algorithm.digest_bytes();
                let joined: Vec<u8> = all
                    .iter()
                    .flat_map(|digest| &digest[..width])
                    .copied()
                    .collect();
                digest::xxh3(&joined).0
            }
        };
        Some(Digest::new(algorithm, bytes))
    }
}

/// Merges the chaining values of two or more blocks. A stack holds one subtree per set bit of the
/// number of blocks taken so far: subtrees of equal size merge as soon as both are there, except
/// that the last block never merges early (the root is made by another function).
fn blake3_root(values: &[[u8; 32]]) -> [u8; 32] {
    let mut stack: Vec<[u8; 32]> = Vec::with_capacity(u32::BITS as usize);
    let (last, before) = values.split_last().expect("two or more blocks");
    for (taken, value) in before.iter().enumerate() {
        let mut value = *value;
        for _ in 0..(taken + 1).trailing_zeros() {
            let left = stack.pop().expect("one subtree per set bit of `taken`");
            value = hazmat::merge_subtrees_non_root(&left, &value, Mode::Hash);
        }
        stack.push(value);
    }
    let mut right = *last;
    while stack.len() > 1 {
        let left = stack.pop().expect("more than one");
        right = hazmat::merge_subtrees_non_root(&left, &right, Mode::Hash);
    }
    let left = stack.pop().expect("at least one block before the last");
    *hazmat::merge_subtrees_root(&left, &right, Mode::Hash).as_bytes()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::digest::{BLOCK_BYTES, BlockFault, directory_digest};
    use super::*;

    fn bytes(len: usize, seed: u64) -> Vec<u8> {
        let mut out = vec![0; len];
        blake3::Hasher::new()
            .update(&seed.to_le_bytes())
            .finalize_xof()
            .fill(&mut out);
        out
    }

    fn root_in_order(
        algorithm: Algorithm,
        data: &[u8],
        order: impl Iterator<Item = u32>,
    ) -> Digest {
        let blocks = BlockLayout::new(algorithm, data.len() as u64);
        let mut tree = HashTree::new(blocks);
        for index in order {
            assert_eq!(tree.root(), None);
            let range = blocks.range(index);
            let block = &data[range.start as usize..range.end as usize];
            tree.set(index, blocks.digest(index, block));
        }
        tree.root().expect("all blocks were set")
    }

    #[test]
    fn the_tree_root_is_what_b3sum_prints_around_every_block_boundary() {
        for blocks in [0usize, 1, 2, 3, 4, 5, 7, 8, 9] {
            for off in [-1025i64, -1024, -1, 0, 1, 63, 1024, 1025] {
                let Ok(len) = usize::try_from((blocks * BLOCK_BYTES) as i64 + off) else {
                    continue;
                };
                let data = bytes(len, 7);
                let count = BlockLayout::new(Algorithm::Blake3, len as u64).count();
                let root = root_in_order(Algorithm::Blake3, &data, 0..count);
                assert_eq!(
                    root.to_string(),
                    blake3::hash(&data).to_hex().to_string(),
                    "{len} bytes"
                );
            }
        }
    }

    #[test]
    fn an_empty_file_has_no_blocks_and_the_digest_of_nothing() {
        let blocks = BlockLayout::new(Algorithm::Blake3, 0);
        assert_eq!((blocks.count(), blocks.len(0)), (0, 0));
        let root = HashTree::new(blocks).root().unwrap();
        assert_eq!(root.as_bytes(), blake3::hash(b"").as_bytes());
        let root = HashTree::new(BlockLayout::new(Algorithm::Xxh3, 0))
            .root()
            .unwrap();
        // What `xxh128sum /dev/null` prints.
        assert_eq!(root.to_string(), "99aa06d3014798d86001c324468d497f");
    }

    #[test]
    fn an_xxh3_file_digest_is_that_of_its_block_digests() {
        let data = bytes(2 * BLOCK_BYTES + 5, 3);
        let mut joined = Vec::new();
        for block in data.chunks(BLOCK_BYTES) {
            joined.extend(twox_hash::XxHash3_128::oneshot(block).to_be_bytes());
        }
        let expected = format!("{:032x}", twox_hash::XxHash3_128::oneshot(&joined));
        assert_eq!(
            root_in_order(Algorithm::Xxh3, &data, 0..3).to_string(),
            expected
        );
    }

    #[test]
    fn a_block_with_a_flipped_bit_another_place_or_another_length_is_refused() {
        let data = bytes(3 * BLOCK_BYTES, 4);
        for algorithm in [Algorithm::Blake3, Algorithm::Xxh3] {
            let blocks = BlockLayout::new(algorithm, data.len() as u64);
            let block = &data[BLOCK_BYTES..2 * BLOCK_BYTES];
            let digest = blocks.digest(1, block);
            assert_eq!(blocks.verify(1, block, &digest).unwrap().data, block);
            let mut flipped = block.to_vec();
            flipped[77] ^= 4;
            let fault = blocks.verify(1, &flipped, &digest).unwrap_err();
            assert_eq!(fault, BlockFault::Corrupt { index: 1 });
            let fault = blocks.verify(1, &block[1..], &digest).unwrap_err();
            assert!(matches!(fault, BlockFault::Length { .. }));
            let fault = blocks.verify(3, block, &digest).unwrap_err();
            assert!(matches!(fault, BlockFault::Length { expected: 0, .. }));
            let fault = blocks.verify(3, &[], &digest).unwrap_err();
            assert!(matches!(fault, BlockFault::Length { .. }));
        }
        // BLAKE3's chaining values are bound to their offset in the file.
        let blocks = BlockLayout::new(Algorithm::Blake3, data.len() as u64);
        let digest = blocks.digest(1, &data[BLOCK_BYTES..2 * BLOCK_BYTES]);
        let moved = blocks.verify(2, &data[BLOCK_BYTES..2 * BLOCK_BYTES], &digest);
        assert_eq!(moved.unwrap_err(), BlockFault::Corrupt { index: 2 });
    }

    #[test]
    fn a_directory_digest_is_that_of_the_lines_b3sum_prints() {
        let digest: Digest = blake3::hash(b"x").to_hex().parse().unwrap();
        let files = [("a.txt", digest), ("a/b", digest), ("new\nline\\", digest)];
        let lines = format!("{digest}  a.txt\n{digest}  a/b\n\\{digest}  new\\nline\\\\\n");
        let got = directory_digest(Algorithm::Blake3, files.into_iter());
        assert_eq!(got.as_bytes(), blake3::hash(lines.as_bytes()).as_bytes());
    }

    #[test]
    fn a_digest_reads_back_from_its_text_and_nothing_else_does() {
        for algorithm in [Algorithm::Blake3, Algorithm::Xxh3] {
            let digest = root_in_order(algorithm, b"abc", 0..1);
            assert_eq!(digest.to_string().parse::<Digest>().unwrap(), digest);
            assert_eq!(
                Digest::from_bytes(algorithm, digest.as_bytes()),
                Some(digest)
            );
            assert_eq!(Digest::from_bytes(algorithm, &digest.as_bytes()[1..]), None);
        }
        for text in ["", "abc", &"g".repeat(64), &"é".repeat(32), &"a".repeat(63)] {
            assert!(text.parse::<Digest>().is_err(), "{text}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        #[test]
        fn the_tree_root_is_blake3_of_the_bytes_for_any_size_and_order(
            blocks in 0usize..6, near in -2048i64..2048, seed: u64, rotate: u32,
        ) {
            let len = ((blocks * BLOCK_BYTES) as i64 + near).max(0) as usize;
            let data = bytes(len, seed);
            let count = BlockLayout::new(Algorithm::Blake3, len as u64).count();
            let order = (0..count).map(|i| (u64::from(i) + u64::from(rotate)) % u64::from(count));
            let root = root_in_order(Algorithm::Blake3, &data, order.map(|i| i as u32));
            let expected = blake3::hash(&data);
            prop_assert_eq!(root.as_bytes(), expected.as_bytes());
        }

        #[test]
        fn merging_any_number_of_blocks_equals_the_definition(count in 2usize..300, seed: u64) {
            // The recursive definition: the left subtree is the largest power of two that leaves
            // something on the right.
            fn value(values: &[[u8; 32]]) -> [u8; 32] {
                if let [only] = values { return *only }
                let (left, right) = values.split_at(values.len().next_power_of_two() / 2);
                hazmat::merge_subtrees_non_root(&value(left), &value(right), Mode::Hash)
            }
            let flat = bytes(count * 32, seed);
            let values: Vec<[u8; 32]> = flat.chunks(32).map(|v| v.try_into().unwrap()).collect();
            let (left, right) = values.split_at(count.next_power_of_two() / 2);
            let expected = hazmat::merge_subtrees_root(&value(left), &value(right), Mode::Hash);
            prop_assert_eq!(&blake3_root(&values), expected.as_bytes());
        }
    }
}

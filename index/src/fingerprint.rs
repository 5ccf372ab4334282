//! The content fingerprint that producers and gateways compute alike: XXH3-64, parent-chained over full blocks of
//! token ids (contract, "Content-fingerprint routing key"). It must never change: hashes in the field are made of it.

use xxhash_rust::xxh3::xxh3_64_with_seed;

/// The seed of every hash of the construction.
pub const SEED: u64 = 1337;

/// The content hash of one block: over its token ids as little-endian 32-bit words.
pub fn content_hash(block: &[u32]) -> u64 {
    const STACK_TOKENS: usize = 64;
    if block.len() <= STACK_TOKENS {
        let mut bytes = [0u8; STACK_TOKENS * 4];
        for (word, token) in bytes.chunks_exact_mut(4).zip(block) {
            word.copy_from_slice(&token.to_le_bytes());
        }
        return xxh3_64_with_seed(bytes.get(..block.len() * 4).unwrap_or(&[]), SEED);
    }
    let bytes: Vec<u8> = block.iter().flat_map(|token| token.to_le_bytes()).collect();
    xxh3_64_with_seed(&bytes, SEED)
}

/// The prefix hash of a block from its parent's prefix hash and its own content hash.
pub fn chained(parent: u64, content: u64) -> u64 {
    let mut pair = [0u8; 16];
    let (head, tail) = pair.split_at_mut(8);
    head.copy_from_slice(&parent.to_le_bytes());
    tail.copy_from_slice(&content.to_le_bytes());
    xxh3_64_with_seed(&pair, SEED)
}

/// The prefix hash of each full block of `tokens`; what is left over after the last full block is dropped. A block
/// size of 0 has no blocks.
pub fn chain(tokens: &[u32], block_size: usize) -> impl Iterator<Item = u64> + '_ {
    chain_from(None, tokens, block_size)
}

/// Like [`chain`], but the first block continues the prefix whose hash is `parent`, if there is one.
pub fn chain_from(parent: Option<u64>, tokens: &[u32], block_size: usize) -> impl Iterator<Item = u64> + '_ {
    let tokens = if block_size == 0 { &[] } else { tokens };
    tokens.chunks_exact(block_size.max(1)).scan(parent, |last, block| {
        let content = content_hash(block);
        let hash = last.map_or(content, |parent| chained(parent, content));
        *last = Some(hash);
        Some(hash)
    })
}

/// The bytes of a prefix hash on the wire.
pub fn to_bytes(hash: u64) -> [u8; 8] {
    hash.to_be_bytes()
}

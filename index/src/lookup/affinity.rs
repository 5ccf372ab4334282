//! The stable pick for prompts that nothing matches: a consistent function of the prompt and of the replicas that
//! serve its scope, which anyone can compute (contract, "Affinity routing").

use sha2::{Digest, Sha256};

/// Collects the seed of a pick: a chain's hashes, each after its length as four bytes big-endian, or one bare hash.
pub(crate) struct Seed(Sha256);

impl Seed {
    /// The seed of a chain; `None` when there is no block.
    pub(crate) fn of_chain<'a>(hashes: impl Iterator<Item = &'a [u8]>) -> Option<Self> {
        let mut hashes = hashes.peekable();
        hashes.peek()?;
        let mut sha = Sha256::new();
        for hash in hashes {
            // No hash of a request is near 4 GiB: a message is bounded far below.
            sha.update(u32::try_from(hash.len()).unwrap_or(u32::MAX).to_be_bytes());
            sha.update(hash);
        }
        Some(Self(sha))
    }

    /// The seed of a single hash; `None` when it is empty.
    pub(crate) fn of_hash(hash: &[u8]) -> Option<Self> {
        (!hash.is_empty()).then(|| Self(Sha256::new_with_prefix(hash)))
    }

    /// Which of `count` replicas, sorted by id, is picked; `None` when there is none.
    pub(crate) fn pick(self, count: usize) -> Option<usize> {
        let digest = self.0.finalize();
        let head: [u8; 8] = digest.get(..8)?.try_into().ok()?;
        let picked = u64::from_be_bytes(head).checked_rem(u64::try_from(count).ok()?)?;
        usize::try_from(picked).ok()
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    fn reference(seed: &[u8], count: u64) -> u64 {
        let digest = Sha256::digest(seed);
        let mut head = 0u64;
        for byte in &digest[..8] {
            head = (head << 8) | u64::from(*byte);
        }
        head % count
    }

    #[test]
    fn a_chain_is_length_prefixed() {
        let chain: [&[u8]; 3] = [b"ab", b"", b"c"];
        let seed = b"\0\0\0\x02ab\0\0\0\0\0\0\0\x01c";
        for count in 1..40 {
            let picked = Seed::of_chain(chain.into_iter()).unwrap().pick(count).unwrap();
            assert_eq!(picked as u64, reference(seed, count as u64));
        }
    }

    #[test]
    fn a_hash_is_bare() {
        for count in 1..40 {
            assert_eq!(
                Seed::of_hash(b"lonely").unwrap().pick(count).unwrap() as u64,
                reference(b"lonely", count as u64)
            );
        }
        // The SHA-256 of "abc" is public: ba7816bf 8f01cfea ...
        assert_eq!(Seed::of_hash(b"abc").unwrap().pick(1000).unwrap() as u64, 0xba78_16bf_8f01_cfea % 1000);
    }

    #[test]
    fn nothing_has_no_pick() {
        assert!(Seed::of_chain(std::iter::empty()).is_none());
        assert!(Seed::of_hash(b"").is_none());
        assert_eq!(Seed::of_hash(b"x").unwrap().pick(0), None);
    }
}

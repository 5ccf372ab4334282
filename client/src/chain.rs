//! A prompt's blocks as the contract wants them: parallel hashes and token counts. Made from tokens by the content
//! fingerprint that producers and gateways must agree on, or from hashes that somebody else computed.

use prefixd_index::fingerprint;
use prefixd_proto::inferencecache as pb;
use std::num::NonZeroUsize;

/// A chain of block hashes, each standing for its block and all before it.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Chain {
    hashes: Vec<Vec<u8>>,
    token_counts: Vec<i32>,
}

impl Chain {
    /// The fingerprints of the full blocks of `tokens`; a partial block at the end is left out, as engines do.
    pub fn from_tokens(tokens: &[u32], block_tokens: NonZeroUsize) -> Self {
        let hashes: Vec<Vec<u8>> =
            fingerprint::chain(tokens, block_tokens.get()).map(|hash| fingerprint::to_bytes(hash).to_vec()).collect();
        Self::from_hashes(hashes, i32::try_from(block_tokens.get()).unwrap_or(i32::MAX))
    }

    /// Hashes from elsewhere, in order, with the same number of tokens in each block.
    pub fn from_hashes(hashes: Vec<Vec<u8>>, block_tokens: i32) -> Self {
        let token_counts = vec![block_tokens; hashes.len()];
        Self { hashes, token_counts }
    }

    /// How many blocks there are.
    pub fn len(&self) -> usize {
        self.hashes.len()
    }

    /// Whether there is no block at all: such a prompt can't be looked up.
    pub fn is_empty(&self) -> bool {
        self.hashes.is_empty()
    }

    /// The tokens in all blocks; saturates.
    pub fn token_count(&self) -> i32 {
        self.token_counts.iter().fold(0, |sum, count| sum.saturating_add(*count))
    }

    /// Makes this the input of a lookup.
    pub fn ask(self, request: &mut pb::LookupRouteRequest) {
        request.block_hashes = self.hashes.into_iter().map(Into::into).collect();
        request.block_token_counts = self.token_counts;
    }

    /// This chain as an entry of a report.
    pub fn into_entry(self) -> pb::PrefixEntry {
        pb::PrefixEntry {
            block_hashes: self.hashes.into_iter().map(Into::into).collect(),
            block_token_counts: self.token_counts,
            ..Default::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Chain;
    use prefixd_proto::inferencecache as pb;
    use std::num::NonZeroUsize;

    const FOUR: NonZeroUsize = NonZeroUsize::MIN.saturating_add(3);

    #[test]
    fn only_full_blocks_count() {
        assert!(Chain::from_tokens(&[1, 2, 3], FOUR).is_empty());
        let chain = Chain::from_tokens(&[1, 2, 3, 4, 5, 6, 7, 8, 9], FOUR);
        assert_eq!((chain.len(), chain.token_count()), (2, 8));
    }

    #[test]
    fn a_hash_covers_all_that_precedes_it() {
        let ask = |tokens: &[u32]| {
            let mut request = pb::LookupRouteRequest::default();
            Chain::from_tokens(tokens, FOUR).ask(&mut request);
            request
        };
        let (a, b) = (ask(&[1, 2, 3, 4, 5, 6, 7, 8]), ask(&[9, 9, 9, 9, 5, 6, 7, 8]));
        assert!(a.block_hashes.iter().all(|hash| hash.len() == 8));
        assert_eq!(a.block_token_counts, [4, 4]);
        assert_ne!(a.block_hashes[1], b.block_hashes[1]);
        assert_eq!(a.block_hashes[0], ask(&[1, 2, 3, 4]).block_hashes[0]);
    }

    #[test]
    fn a_report_and_a_lookup_carry_the_same_blocks() {
        let chain = Chain::from_hashes(vec![vec![1], vec![2, 3]], 512);
        let mut request = pb::LookupRouteRequest::default();
        chain.clone().ask(&mut request);
        let entry = chain.into_entry();
        assert_eq!(entry.block_hashes, request.block_hashes);
        assert_eq!(entry.block_token_counts, [512, 512]);
    }
}

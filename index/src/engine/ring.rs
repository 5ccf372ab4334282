//! The digests after the latest log entries, for audits and for operators who compare nodes. Local to a node, in no
//! snapshot.

use crate::limits::DIGEST_RING;
use std::collections::VecDeque;

/// (log index, digest), ascending.
#[derive(Default)]
pub(crate) struct DigestRing(VecDeque<(u64, u128)>);

impl DigestRing {
    pub(crate) fn push(&mut self, index: u64, digest: u128) {
        // An index that doesn't rise is a caller's mistake; the later digest counts.
        while self.0.back().is_some_and(|&(last, _)| last >= index) {
            self.0.pop_back();
        }
        if self.0.len() == DIGEST_RING {
            self.0.pop_front();
        }
        self.0.push_back((index, digest));
    }

    pub(crate) fn get(&self, index: u64) -> Option<u128> {
        let at = self.0.binary_search_by_key(&index, |&(index, _)| index).ok()?;
        self.0.get(at).map(|&(_, digest)| digest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_keeps_the_latest() {
        let mut ring = DigestRing::default();
        for index in 0..DIGEST_RING as u64 + 10 {
            ring.push(index * 2, u128::from(index));
        }
        assert_eq!(ring.get(18), None);
        assert_eq!(ring.get(20), Some(10));
        assert_eq!(ring.get(21), None);
        ring.push(20, 99);
        assert_eq!((ring.get(20), ring.get(22)), (Some(99), None));
    }
}

//! An owned opaque hash of up to 128 bytes: short ones inline, long ones shared, so that the index and its orders can
//! each keep it for a few words. Compares and hashes as its bytes.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

const INLINE_BYTES: usize = 22;

/// The bytes of one hash.
#[derive(Clone)]
pub(crate) struct BlockHash(Form);

#[derive(Clone)]
enum Form {
    Inline { len: u8, bytes: [u8; INLINE_BYTES] },
    Shared(Arc<[u8]>),
}

impl BlockHash {
    /// Copies the bytes.
    pub(crate) fn new(hash: &[u8]) -> Self {
        match (hash.len() <= INLINE_BYTES, u8::try_from(hash.len())) {
            (true, Ok(len)) => {
                let mut bytes = [0; INLINE_BYTES];
                if let Some(head) = bytes.get_mut(..hash.len()) {
                    head.copy_from_slice(hash);
                }
                Self(Form::Inline { len, bytes })
            }
            _ => Self(Form::Shared(hash.into())),
        }
    }

    /// The bytes.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        match &self.0 {
            Form::Inline { len, bytes } => bytes.get(..usize::from(*len)).unwrap_or(bytes),
            Form::Shared(bytes) => bytes,
        }
    }
}

impl AsRef<[u8]> for BlockHash {
    fn as_ref(&self) -> &[u8] {
        self.as_bytes()
    }
}

impl PartialEq for BlockHash {
    fn eq(&self, other: &Self) -> bool {
        self.as_bytes() == other.as_bytes()
    }
}

impl Eq for BlockHash {}

impl PartialOrd for BlockHash {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for BlockHash {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.as_bytes().cmp(other.as_bytes())
    }
}

impl Hash for BlockHash {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write(self.as_bytes());
    }
}

impl std::fmt::Debug for BlockHash {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.as_bytes().iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_keeps_its_bytes() {
        let source: Vec<u8> = (0..=255).collect();
        for len in 0..=200 {
            let hash = BlockHash::new(&source[..len]);
            assert_eq!(hash.as_bytes(), &source[..len]);
            assert_eq!(hash, hash.clone());
        }
        assert!(BlockHash::new(b"ab") < BlockHash::new(b"b"));
        assert!(size_of::<BlockHash>() <= 24);
    }
}

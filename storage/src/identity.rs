//! Who this node is, and the one promise it may make while a cluster is born.
//!
//! Both are small files, replaced atomically. Randomness is an argument: this module draws none. A node
//! id is never 0, and a promise, once made, is never exchanged for another.

use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::codec::{self, CodecError, Magic};
use crate::durable::{read_settled, remove_durably, write_atomically};

const IDENTITY_MAGIC: Magic = *b"PFID";
const PROMISE_MAGIC: Magic = *b"PFPR";
const VERSION: u16 = 1;
const FILE_LIMIT_BYTES: usize = 1 << 20;

/// Who this node is, on this disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// The cluster that this disk belongs to; None until it was born or joined.
    pub cluster_id: Option<u128>,
    /// Random, drawn once per disk, never 0 and never the ordinal of a pod.
    pub node_id: u64,
    /// How many times this disk was opened: rises by one, synced, at each open.
    pub incarnation: u64,
    /// Ties log and mark to each other and to this identity.
    pub store_uuid: u128,
    /// The name under which the node is known to its peers.
    pub node_name: String,
}

/// The promise of a node to found exactly one cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Promise {
    /// The id that the cluster will have.
    pub cluster_id: u128,
    /// All founders: (name, node id), sorted by name.
    pub members: Vec<(String, u64)>,
}

/// Why an identity or a promise could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// The file could not be read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The file is not what was written.
    #[error("{}: {source}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: CodecError,
    },
    /// A node id of 0, or names that are not sorted and unique.
    #[error("{}: invalid: {reason}", path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: &'static str,
    },
    /// Another promise was made before.
    #[error(
        "{}: this node already promised to found cluster {:032x} with {}; it cannot promise cluster {:032x} with {}",
        path.display(), held.cluster_id, names(held), asked.cluster_id, names(asked)
    )]
    PromisedOtherwise {
        /// The file.
        path: PathBuf,
        /// The promise that stands.
        held: Box<Promise>,
        /// The promise that was asked for.
        asked: Box<Promise>,
    },
}

fn names(promise: &Promise) -> String {
    let members: Vec<_> = promise.members.iter().map(|(name, id)| format!("{name}={id:016x}")).collect();
    members.join(",")
}

impl Identity {
    /// Reads the identity at `path`; None if there is none.
    pub fn read(path: &Path) -> Result<Option<Identity>, IdentityError> {
        let identity: Option<Identity> = read(path, IDENTITY_MAGIC)?;
        if let Some(identity) = &identity {
            identity.check(path)?;
        }
        Ok(identity)
    }

    /// Writes the identity to `path`, durable on return.
    pub fn write(&self, path: &Path) -> Result<(), IdentityError> {
        self.check(path)?;
        write(path, IDENTITY_MAGIC, self)
    }

    fn check(&self, path: &Path) -> Result<(), IdentityError> {
        if self.node_id == 0 {
            return Err(IdentityError::Invalid { path: path.into(), reason: "node id 0" });
        }
        Ok(())
    }
}

impl Promise {
    /// Reads the promise at `path`; None if none was made.
    pub fn read(path: &Path) -> Result<Option<Promise>, IdentityError> {
        read(path, PROMISE_MAGIC)
    }

    /// Makes the promise, durable on return. The same one again is fine, another one is refused.
    pub fn make(&self, path: &Path) -> Result<(), IdentityError> {
        let sorted = self.members.windows(2).all(|pair| pair[0].0 < pair[1].0);
        if !sorted || self.members.is_empty() || self.members.iter().any(|(_, id)| *id == 0) {
            let reason = "members must be sorted by name, unique, at least one, and none with node id 0";
            return Err(IdentityError::Invalid { path: path.into(), reason });
        }
        match Promise::read(path)? {
            Some(held) if held == *self => Ok(()),
            Some(held) => Err(IdentityError::PromisedOtherwise {
                path: path.into(),
                held: Box::new(held),
                asked: Box::new(self.clone()),
            }),
            None => write(path, PROMISE_MAGIC, self),
        }
    }

    /// Takes the promise back, durable on return. Only sound before anyone may rely on it, or after the
    /// cluster that it founded was adopted.
    pub fn clear(path: &Path) -> Result<(), IdentityError> {
        remove_durably(path).map_err(|source| IdentityError::Io { path: path.into(), source })
    }
}

fn read<T: serde::de::DeserializeOwned>(path: &Path, magic: Magic) -> Result<Option<T>, IdentityError> {
    let bytes =
        read_settled(path, FILE_LIMIT_BYTES).map_err(|source| IdentityError::Io { path: path.into(), source })?;
    let unreadable = |source| IdentityError::Unreadable { path: path.into(), source };
    bytes.map(|bytes| codec::decode(magic, VERSION..=VERSION, &bytes)).transpose().map_err(unreadable)
}

fn write<T: Serialize>(path: &Path, magic: Magic, value: &T) -> Result<(), IdentityError> {
    let bytes = codec::encode_within(magic, VERSION, value, FILE_LIMIT_BYTES - codec::OVERHEAD_BYTES)
        .map_err(|source| IdentityError::Unreadable { path: path.into(), source })?;
    write_atomically(path, &bytes).map_err(|source| IdentityError::Io { path: path.into(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity() -> Identity {
        Identity { cluster_id: None, node_id: 77, incarnation: 1, store_uuid: 1 << 100, node_name: "node-0".into() }
    }

    fn promise(cluster_id: u128) -> Promise {
        Promise { cluster_id, members: vec![("a".into(), 1), ("b".into(), 2)] }
    }

    #[test]
    fn identity_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("identity");
        assert_eq!(Identity::read(&path).unwrap(), None);
        identity().write(&path).unwrap();
        assert_eq!(Identity::read(&path).unwrap(), Some(identity()));
        let nobody = Identity { node_id: 0, ..identity() };
        assert!(matches!(nobody.write(&path), Err(IdentityError::Invalid { .. })));
    }

    #[test]
    fn a_damaged_identity_is_refused_by_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("identity");
        identity().write(&path).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0x10;
            std::fs::write(&path, &damaged).unwrap();
            let error = Identity::read(&path).unwrap_err();
            assert!(error.to_string().contains("identity"), "{error}");
        }
    }

    #[test]
    fn one_promise_only() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("promise");
        promise(5).make(&path).unwrap();
        promise(5).make(&path).unwrap();
        let error = promise(6).make(&path).unwrap_err();
        assert!(matches!(error, IdentityError::PromisedOtherwise { .. }), "{error}");
        assert_eq!(Promise::read(&path).unwrap(), Some(promise(5)));
        Promise::clear(&path).unwrap();
        promise(6).make(&path).unwrap();
        let unsorted = Promise { cluster_id: 1, members: vec![("b".into(), 2), ("a".into(), 1)] };
        assert!(matches!(unsorted.make(&path), Err(IdentityError::Invalid { .. })));
    }
}

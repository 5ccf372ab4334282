//! The tables that readers and the writer share. Readers take a guard and never a lock; only the writer inserts and
//! removes. Ids given to names are never given again, so that a reader that resolved a name just before it vanished
//! can't land in another's entries.

use super::names::{Count, Node};
use super::{Published, Settings};
use crate::store::Shared;
use arc_swap::ArcSwap;
use papaya::{Equivalent, HashMap};
use std::hash::{BuildHasher, Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Everything that a reader may see.
pub(crate) struct Tables {
    /// Tenants, models, scopes, partitions and replicas by name.
    pub(crate) names: HashMap<NameKey, Node, TableHash>,
    /// All entries.
    pub(crate) store: Arc<Shared>,
    /// Visible entries, the reserved tenant's left out.
    pub(crate) entries: Count,
    /// Policies and the parameters that lookups need.
    pub(crate) settings: ArcSwap<Settings>,
    /// What the writer says after each apply.
    pub(crate) published: ArcSwap<Published>,
    /// Rises when a name that leads to entries comes or goes.
    names_version: Count,
    /// Tells these tables from all others of the process.
    pub(crate) id: u64,
}

static TABLES: AtomicU64 = AtomicU64::new(1);

impl Tables {
    pub(crate) fn new(hash_seed: u64) -> Self {
        Self {
            names: HashMap::with_hasher(TableHash(hash_seed)),
            store: Arc::new(Shared::new(hash_seed.rotate_left(32) ^ 0x9e37_79b9_7f4a_7c15)),
            entries: Count::default(),
            settings: ArcSwap::default(),
            published: ArcSwap::default(),
            names_version: Count::default(),
            id: TABLES.fetch_add(1, Ordering::Relaxed),
        }
    }

    /// Notes that a name came or went. For the single writer alone.
    pub(crate) fn note_name(&self, kind: Kind) {
        if kind != Kind::Member {
            self.names_version.add(1);
        }
    }

    /// While this stays what it is, so does what names lead to.
    pub(crate) fn names_version(&self) -> u64 {
        self.names_version.get()
    }
}

/// What kind of thing a name names.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    Tenant,
    Model,
    Domain,
    Scope,
    Partition,
    Member,
}

/// A name under its parent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NameKey {
    pub(crate) kind: Kind,
    pub(crate) parent: u64,
    pub(crate) name: Arc<str>,
}

/// A borrowed [`NameKey`].
pub(crate) struct NameRef<'a> {
    pub(crate) kind: Kind,
    pub(crate) parent: u64,
    pub(crate) name: &'a str,
}

impl Hash for NameKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        NameRef { kind: self.kind, parent: self.parent, name: &self.name }.hash(state);
    }
}

impl Hash for NameRef<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.parent.wrapping_mul(8).wrapping_add(self.kind as u64));
        state.write(self.name.as_bytes());
    }
}

impl Equivalent<NameKey> for NameRef<'_> {
    fn equivalent(&self, key: &NameKey) -> bool {
        self.kind == key.kind && self.parent == key.parent && *self.name == *key.name
    }
}

/// A seeded hash for internal tables: clients choose block hashes, so the seed must not be known to them.
#[derive(Copy, Clone, Debug)]
pub(crate) struct TableHash(pub(crate) u64);

impl BuildHasher for TableHash {
    type Hasher = TableHasher;

    fn build_hasher(&self) -> TableHasher {
        TableHasher(self.0)
    }
}

/// The state of [`TableHash`].
pub(crate) struct TableHasher(u64);

impl Hasher for TableHasher {
    fn write(&mut self, bytes: &[u8]) {
        self.0 = xxh3_64_with_seed(bytes, self.0);
    }

    fn write_u64(&mut self, value: u64) {
        let mixed = (self.0 ^ value).wrapping_mul(0xd6e8_feb8_6659_fd93);
        self.0 = mixed ^ (mixed >> 32);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

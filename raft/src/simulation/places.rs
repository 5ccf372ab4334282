//! Who is where: a place has a name and holds a disk, which an operator may put in, take out, or lose and replace by an
//! empty one. Owns that alone; who is a member is for Raft to say.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;

/// Places that there are, with a disk or without.
const PLACES: u64 = 6;

/// The places of a run.
pub(super) struct Places(Mutex<Held>);

struct Held {
    founders: BTreeSet<u64>,
    disks: BTreeMap<u64, u64>,
    /// The place of every disk that there ever was.
    of: BTreeMap<u64, u64>,
    /// Disks whose names the peer lists lack: an operator lets them in.
    by_order: BTreeSet<u64>,
    /// Disks that were told that they are in, and wrote that down.
    adopted: BTreeSet<u64>,
    /// The operator changes nothing any more.
    is_settled: bool,
}

/// The name of a place.
pub(super) fn name(place: u64) -> String {
    format!("n{place}")
}

impl Places {
    /// The founders, each in the place of its number.
    pub(super) fn founding(ids: impl Iterator<Item = u64> + Clone) -> Self {
        let disks: BTreeMap<u64, u64> = ids.clone().map(|id| (id, id)).collect();
        let held = Held {
            founders: ids.collect(),
            of: disks.clone(),
            disks,
            by_order: BTreeSet::new(),
            adopted: BTreeSet::new(),
            is_settled: false,
        };
        Self(Mutex::new(held))
    }

    fn held(&self) -> std::sync::MutexGuard<'_, Held> {
        self.0.lock().unwrap()
    }

    /// The disks that are in a place.
    pub(super) fn ids(&self) -> Vec<u64> {
        self.held().disks.values().copied().collect()
    }

    /// The place of a disk, also of one that is gone.
    pub(super) fn of(&self, id: u64) -> u64 {
        self.held().of[&id]
    }

    /// True while a disk is in a place.
    pub(super) fn has(&self, id: u64) -> bool {
        self.held().disks.values().any(|known| *known == id)
    }

    /// The founders, if this disk is one of them.
    pub(super) fn founders_with(&self, id: u64) -> Option<BTreeSet<u64>> {
        let held = self.held();
        held.founders.contains(&id).then(|| held.founders.clone())
    }

    /// The names that all peer lists hold.
    pub(super) fn listed(&self) -> Vec<String> {
        let held = self.held();
        let is_listed = |place: &u64| held.disks.get(place).is_none_or(|id| !held.by_order.contains(id));
        (1..=PLACES).filter(is_listed).map(name).collect()
    }

    /// A disk was told that it is in.
    pub(super) fn adopt(&self, id: u64) {
        self.held().adopted.insert(id);
    }

    /// True for a founder, and for a disk that was told that it is in.
    pub(super) fn is_in(&self, id: u64) -> bool {
        let held = self.held();
        held.founders.contains(&id) || held.adopted.contains(&id)
    }

    /// The first place without a disk, if the peer lists have one.
    pub(super) fn free(&self) -> Option<u64> {
        let held = self.held();
        (1..=PLACES).find(|place| !held.disks.contains_key(place))
    }

    /// A disk is put into a place.
    pub(super) fn take(&self, place: u64, id: u64, by_order: bool) {
        let mut held = self.held();
        held.disks.insert(place, id);
        held.of.insert(id, place);
        if by_order {
            held.by_order.insert(id);
        }
    }

    /// A disk is taken out for good.
    pub(super) fn leave(&self, id: u64) {
        self.held().disks.retain(|_, known| *known != id);
    }

    pub(super) fn settle(&self) {
        self.held().is_settled = true;
    }

    pub(super) fn is_settled(&self) -> bool {
        self.held().is_settled
    }
}

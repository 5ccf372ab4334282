//! The entries of one hash as readers see them. A block is replaced whole when its holders change; only a holder's
//! last-seen is stored in place, so that a refresh of what is unchanged costs one word. An entry is thus always seen
//! whole: tokens and tier come from one block, and last-seen is one that they had together.

use super::names::Member;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// All entries of one hash in one (tenant, model), grouped by partition.
#[derive(Clone)]
pub(crate) struct Block {
    first: Group,
    rest: Box<[Group]>,
}

/// The entries of one key: the holders of a prefix.
pub(crate) struct Group {
    /// The partition's id.
    pub(crate) partition: u64,
    /// The writer's slot of the partition.
    pub(crate) partition_at: u32,
    /// For the writer: the slot of the freshest entry, which stands for the prefix in its tenant's order.
    lead: AtomicU32,
    holders: Holders,
}

#[derive(Clone)]
enum Holders {
    One(Holder),
    Many(Arc<[Holder]>),
}

/// One entry.
pub(crate) struct Holder {
    /// The replica in its (tenant, model).
    pub(crate) member: Arc<Member>,
    last_seen_us: AtomicU64,
    /// The stored token count.
    pub(crate) tokens: i32,
    /// The tier as stored.
    pub(crate) tier: i32,
    /// The writer's slot of the entry.
    pub(crate) slot: u32,
    /// `member.at`, by which holders are sorted.
    pub(crate) order: u32,
}

impl Holder {
    pub(crate) fn new(member: Arc<Member>, slot: u32, last_seen_us: u64, tokens: i32, tier: i32) -> Self {
        Self { order: member.at, member, last_seen_us: AtomicU64::new(last_seen_us), tokens, tier, slot }
    }

    pub(crate) fn last_seen_us(&self) -> u64 {
        self.last_seen_us.load(Ordering::Relaxed)
    }

    /// For the single writer alone.
    pub(crate) fn touch(&self, last_seen_us: u64) {
        self.last_seen_us.store(last_seen_us, Ordering::Relaxed);
    }
}

impl Clone for Holder {
    fn clone(&self) -> Self {
        Self::new(Arc::clone(&self.member), self.slot, self.last_seen_us(), self.tokens, self.tier)
    }
}

impl Clone for Group {
    fn clone(&self) -> Self {
        Self {
            partition: self.partition,
            partition_at: self.partition_at,
            lead: AtomicU32::new(self.lead()),
            holders: self.holders.clone(),
        }
    }
}

impl Group {
    /// A group of one.
    pub(crate) fn of(partition: u64, partition_at: u32, holder: Holder) -> Self {
        let lead = AtomicU32::new(holder.slot);
        Self { partition, partition_at, lead, holders: Holders::One(holder) }
    }

    /// The holders, sorted by `order`.
    pub(crate) fn holders(&self) -> &[Holder] {
        match &self.holders {
            Holders::One(holder) => std::slice::from_ref(holder),
            Holders::Many(holders) => holders,
        }
    }

    /// The holder that is this member.
    pub(crate) fn holder(&self, member_at: u32) -> Option<&Holder> {
        let holders = self.holders();
        holders.get(holders.binary_search_by_key(&member_at, |holder| holder.order).ok()?)
    }

    /// The slot of the freshest entry.
    pub(crate) fn lead(&self) -> u32 {
        self.lead.load(Ordering::Relaxed)
    }

    /// For the single writer alone.
    pub(crate) fn set_lead(&self, slot: u32) {
        self.lead.store(slot, Ordering::Relaxed);
    }

    /// The slot of the entry that ought to lead: the highest last-seen, of those the largest token count.
    pub(crate) fn freshest(&self) -> Option<u32> {
        self.holders().iter().max_by_key(|holder| (holder.last_seen_us(), holder.tokens)).map(|holder| holder.slot)
    }

    /// This group with a holder put in, in place of one of the same member if there is one.
    pub(crate) fn with(&self, holder: Holder) -> Self {
        let holders = self.holders();
        let (before, after) = match holders.binary_search_by_key(&holder.order, |held| held.order) {
            Ok(found) => (found, found + 1),
            Err(place) => (place, place),
        };
        let (head, tail) = (holders.get(..before).unwrap_or(&[]), holders.get(after..).unwrap_or(&[]));
        let joined = head.iter().cloned().chain(std::iter::once(holder)).chain(tail.iter().cloned());
        self.rebuilt(joined.collect())
    }

    /// This group without a member; `None` when nobody is left.
    pub(crate) fn without(&self, member_at: u32) -> Option<Self> {
        let left: Arc<[Holder]> = self.holders().iter().filter(|holder| holder.order != member_at).cloned().collect();
        (!left.is_empty()).then(|| self.rebuilt(left))
    }

    fn rebuilt(&self, holders: Arc<[Holder]>) -> Self {
        let holders = match &*holders {
            [one] => Holders::One(one.clone()),
            _ => Holders::Many(holders),
        };
        Self { partition: self.partition, partition_at: self.partition_at, lead: AtomicU32::new(self.lead()), holders }
    }
}

impl Block {
    /// A block of one group.
    pub(crate) fn of(group: Group) -> Self {
        Self { first: group, rest: Box::default() }
    }

    /// All groups; the first is in no order with the rest.
    pub(crate) fn groups(&self) -> impl Iterator<Item = &Group> {
        std::iter::once(&self.first).chain(self.rest.iter())
    }

    /// The group of a partition.
    pub(crate) fn group(&self, partition: u64) -> Option<&Group> {
        if self.first.partition == partition {
            return Some(&self.first);
        }
        self.rest.get(self.rest.binary_search_by_key(&partition, |group| group.partition).ok()?)
    }

    /// True when the only entry is this member's in this partition.
    pub(crate) fn is_just(&self, partition: u64, member_at: u32) -> bool {
        let is_alone = matches!(&self.first.holders, Holders::One(holder) if holder.order == member_at);
        is_alone && self.rest.is_empty() && self.first.partition == partition
    }

    /// This block with a group put in, in place of one of the same partition if there is one.
    pub(crate) fn with(&self, group: Group) -> Self {
        if self.first.partition == group.partition {
            return Self { first: group, rest: self.rest.clone() };
        }
        let mut rest: Vec<Group> = self.rest.iter().filter(|held| held.partition != group.partition).cloned().collect();
        let place = rest.partition_point(|held| held.partition < group.partition);
        rest.insert(place, group);
        Self { first: self.first.clone(), rest: rest.into() }
    }

    /// This block without a partition; `None` when no group is left.
    pub(crate) fn without(&self, partition: u64) -> Option<Self> {
        let mut left = self.groups().filter(|group| group.partition != partition).cloned();
        let first = left.next()?;
        let mut rest: Vec<Group> = left.collect();
        rest.sort_unstable_by_key(|group| group.partition);
        Some(Self { first, rest: rest.into() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_stays_small() {
        assert!(size_of::<Holder>() <= 32);
        assert!(size_of::<Block>() <= 80);
    }
}

//! The writer's record of each entry, by slot. Slots know their places in their member's heaps; what readers see of
//! an entry is in its block. Every change passes here, so that a snapshot in the making keeps what it still needs.

use super::names::PartitionState;
use super::slab::Slab;
use crate::block_hash::BlockHash;
use crate::snapshot::walk::Walk;
use std::cmp::Ordering;
use std::ops::Index;

/// One entry, dead or alive.
#[derive(Clone, Debug)]
pub(crate) struct Slot {
    pub(crate) hash: BlockHash,
    pub(crate) last_seen_us: u64,
    pub(crate) tokens: i32,
    pub(crate) tier: i32,
    pub(crate) accesses: u32,
    /// The member, or [`VACANT`].
    pub(crate) member: u32,
    pub(crate) partition: u32,
    /// Its place in an age heap of its member.
    pub(crate) age_at: u32,
    /// Its place in the use heap of its member, if it has been used.
    pub(crate) use_at: u32,
    /// True when it stands for its prefix: the freshest of its holders.
    pub(crate) leads: bool,
}

/// The member of a slot that is nobody's.
pub(crate) const VACANT: u32 = u32::MAX;

impl Slot {
    /// Which of its member's age heaps it is in.
    pub(crate) fn class(&self) -> usize {
        usize::from(self.accesses > 0) * 2 + usize::from(self.leads)
    }
}

/// All entries.
#[derive(Default)]
pub(crate) struct Entries {
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// The partitions that slots refer to.
    pub(crate) partitions: Slab<PartitionState>,
    /// The snapshot in the making.
    pub(crate) walk: Option<Walk>,
}

impl Entries {
    /// How many slots there are, vacant ones included.
    pub(crate) fn slots(&self) -> u32 {
        // `add` never lets there be more.
        u32::try_from(self.slots.len()).unwrap_or(u32::MAX)
    }

    /// The slot, if it isn't vacant.
    pub(crate) fn get(&self, at: u32) -> Option<&Slot> {
        self.slots.get(at as usize).filter(|slot| slot.member != VACANT)
    }

    /// Puts an entry into a vacant slot; `None` when 32 bits are used up.
    pub(crate) fn add(&mut self, slot: Slot) -> Option<u32> {
        if let Some(at) = self.free.pop() {
            if let Some(walk) = &mut self.walk {
                walk.keep(at, || None);
            }
            self.slots[at as usize] = slot;
            return Some(at);
        }
        let at = u32::try_from(self.slots.len()).ok().filter(|&at| at < u32::MAX)?;
        self.slots.push(slot);
        Some(at)
    }

    /// Vacates a slot.
    pub(crate) fn release(&mut self, at: u32) {
        self.keep(at);
        let slot = &mut self.slots[at as usize];
        (slot.member, slot.hash) = (VACANT, BlockHash::new(&[]));
        self.free.push(at);
    }

    /// Changes what an entry says: its times, counts and tier.
    pub(crate) fn change(&mut self, at: u32, change: impl FnOnce(&mut Slot)) {
        self.keep(at);
        change(&mut self.slots[at as usize]);
    }

    /// Where an entry stands in its member's orders, which no snapshot needs.
    pub(crate) fn standing(&mut self, at: u32) -> &mut Slot {
        &mut self.slots[at as usize]
    }

    fn keep(&mut self, at: u32) {
        if let Some(walk) = &mut self.walk {
            let slot = &self.slots[at as usize];
            walk.keep(at, || Some(slot.clone()));
        }
    }

    /// The order in which entries of one member age out: oldest first, then larger token counts, then keys.
    pub(crate) fn by_age(&self, a: u32, b: u32) -> Ordering {
        let (left, right) = (&self[a], &self[b]);
        let order = left.last_seen_us.cmp(&right.last_seen_us).then(right.tokens.cmp(&left.tokens));
        order.then_with(|| {
            let partition = match left.partition == right.partition {
                true => Ordering::Equal,
                false => {
                    let (one, other) = (&self.partitions[left.partition], &self.partitions[right.partition]);
                    (&one.shared.scheme, &one.shared.adapter).cmp(&(&other.shared.scheme, &other.shared.adapter))
                }
            };
            partition.then_with(|| left.hash.cmp(&right.hash))
        })
    }

    /// The order in which entries of one member of an LFU tenant are taken: least used first, then by age.
    pub(crate) fn by_use(&self, a: u32, b: u32) -> Ordering {
        self[a].accesses.cmp(&self[b].accesses).then_with(|| self.by_age(a, b))
    }
}

impl Index<u32> for Entries {
    type Output = Slot;

    fn index(&self, at: u32) -> &Slot {
        &self.slots[at as usize]
    }
}

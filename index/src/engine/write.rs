//! Entries into and out of the tables that readers see. A block is published whole; in place, only a last-seen is
//! stored. Nothing here decides what comes or goes.

use super::Index;
use super::entries::Slot;
use super::names::Pins;
use crate::block_hash::BlockHash;
use crate::view::block::{Block, Group, Holder};
use crate::view::names::{Member, Partition};
use crate::view::tables::{BlockKey, BlockRef};
use std::sync::Arc;

/// Whose entries are written, and where.
#[derive(Clone)]
pub(crate) struct Spot {
    pub(crate) member: Arc<Member>,
    pub(crate) partition: Arc<Partition>,
}

/// What an entry says beside its key and holder.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Said {
    pub(crate) last_seen_us: u64,
    pub(crate) tokens: i32,
    pub(crate) tier: i32,
}

impl Said {
    /// How fresh an entry is among the holders of its prefix.
    fn rank(&self) -> (u64, i32) {
        (self.last_seen_us, self.tokens)
    }
}

fn rank(slot: &Slot) -> (u64, i32) {
    (slot.last_seen_us, slot.tokens)
}

impl Index {
    /// Writes an entry or refreshes it; true when it is new. A refresh keeps the access count.
    pub(crate) fn upsert(&mut self, pins: &Pins<'_>, spot: &Spot, hash: &[u8], said: Said) -> bool {
        let key = BlockRef { domain: spot.member.domain.id, hash };
        let block = pins.tables.blocks.get(&key, &pins.blocks);
        let group = block.and_then(|block| block.group(spot.partition.id));
        match (block, group, group.and_then(|group| group.holder(spot.member.at))) {
            (Some(block), Some(group), Some(holder)) => {
                self.refresh(pins, spot, (block, group, holder), said);
                false
            }
            _ => self.add(pins, spot, (block, group), hash, said, 0).is_some(),
        }
    }

    /// Writes an entry that isn't there; `None` when 32 bits of slots are used up.
    pub(crate) fn add(
        &mut self,
        pins: &Pins<'_>,
        spot: &Spot,
        (block, group): (Option<&Block>, Option<&Group>),
        hash: &[u8],
        said: Said,
        accesses: u32,
    ) -> Option<u32> {
        let (member, hash) = (spot.member.at, BlockHash::new(hash));
        let Said { last_seen_us, tokens, tier } = said;
        let slot = self.entries.add(Slot {
            hash: hash.clone(),
            last_seen_us,
            tokens,
            tier,
            accesses,
            member,
            partition: spot.partition.at,
            age_at: 0,
            use_at: 0,
            leads: false,
        })?;
        self.count_entry(slot);
        self.members[member].push(&mut self.entries, slot);
        self.soil(member);
        let holder = Holder::new(Arc::clone(&spot.member), slot, last_seen_us, tokens, tier);
        let group = match group {
            Some(group) => {
                let group = group.with(holder);
                if said.rank() > rank(&self.entries[group.lead()]) {
                    self.lead(&group, slot);
                }
                group
            }
            None => {
                self.count_prefix(&spot.member.domain);
                self.set_leads(slot, true);
                Group::of(spot.partition.id, spot.partition.at, holder)
            }
        };
        let block = match block {
            Some(block) => block.with(group),
            None => Block::of(group),
        };
        pins.publish(BlockKey { domain: spot.member.domain.id, hash }, Some(block));
        Some(slot)
    }

    fn refresh(&mut self, pins: &Pins<'_>, spot: &Spot, (block, group, holder): (&Block, &Group, &Holder), said: Said) {
        let slot = holder.slot;
        let old = &self.entries[slot];
        let was = rank(old);
        let is_same = (holder.tokens, holder.tier) == (said.tokens, said.tier);
        if is_same && old.last_seen_us == said.last_seen_us {
            return;
        }
        let old_digest = self.entry_digest(old);
        self.entries.change(slot, |slot| {
            (slot.last_seen_us, slot.tokens, slot.tier) = (said.last_seen_us, said.tokens, said.tier);
        });
        self.swap_digest(spot.member.at, old_digest, self.entry_digest(&self.entries[slot]));
        self.members[spot.member.at].fix(&mut self.entries, slot);
        self.soil(spot.member.at);
        if is_same {
            holder.touch(said.last_seen_us);
            self.relead(group, slot, was, said);
            return;
        }
        let holder = Holder::new(Arc::clone(&spot.member), slot, said.last_seen_us, said.tokens, said.tier);
        let group = group.with(holder);
        self.relead(&group, slot, was, said);
        let key = BlockKey { domain: spot.member.domain.id, hash: self.entries[slot].hash.clone() };
        pins.publish(key, Some(block.with(group)));
    }

    /// Settles who leads a group after one of its entries went from `was` to `said`.
    fn relead(&mut self, group: &Group, slot: u32, was: (u64, i32), said: Said) {
        let lead = group.lead();
        if lead != slot {
            if said.rank() > rank(&self.entries[lead]) {
                self.lead(group, slot);
            }
        } else if said.rank() < was
            && let Some(freshest) = group.freshest()
        {
            self.lead(group, freshest);
        }
    }

    /// Makes `slot` lead its group instead of the one that does.
    fn lead(&mut self, group: &Group, slot: u32) {
        let old = group.lead();
        if old != slot {
            self.set_leads(old, false);
            self.set_leads(slot, true);
            group.set_lead(slot);
        }
    }

    fn set_leads(&mut self, slot: u32, leads: bool) {
        let member = self.entries[slot].member;
        self.members[member].set_leads(&mut self.entries, slot, leads);
        self.soil(member);
    }

    /// Removes one entry, dead or alive.
    pub(crate) fn remove_entry(&mut self, pins: &Pins<'_>, slot: u32) {
        let entry = self.entries[slot].clone();
        let domain = Arc::clone(&self.members[entry.member].shared.domain);
        let partition = self.entries.partitions[entry.partition].shared.id;
        let key = BlockKey { domain: domain.id, hash: entry.hash };
        let is_alone = |_: &BlockKey, block: &Block| block.is_just(partition, entry.member);
        match pins.tables.blocks.remove_if(&key, is_alone, &pins.blocks) {
            Ok(Some(_)) => self.uncount_prefix(&domain),
            Ok(None) => {}
            Err((_, block)) => self.withdraw(pins, key, block, partition, slot),
        }
        self.release(pins, slot);
    }

    /// Takes one entry out of a block that holds others too.
    fn withdraw(&mut self, pins: &Pins<'_>, key: BlockKey, block: &Block, partition: u64, slot: u32) {
        let (Some(group), member) = (block.group(partition), &self.members[self.entries[slot].member].shared) else {
            return;
        };
        let domain = Arc::clone(&member.domain);
        match group.without(member.at) {
            Some(left) => {
                if left.lead() == slot
                    && let Some(freshest) = left.freshest()
                {
                    self.set_leads(freshest, true);
                    left.set_lead(freshest);
                }
                pins.publish(key, Some(block.with(left)));
            }
            None => {
                self.uncount_prefix(&domain);
                pins.publish(key, block.without(partition));
            }
        }
    }

    /// Removes the prefix that an entry belongs to with all its holders; returns how many entries that were.
    pub(crate) fn remove_prefix(&mut self, pins: &Pins<'_>, slot: u32) -> u64 {
        let entry = self.entries[slot].clone();
        let domain = Arc::clone(&self.members[entry.member].shared.domain);
        let partition = self.entries.partitions[entry.partition].shared.id;
        let key = BlockKey { domain: domain.id, hash: entry.hash };
        let Some(block) = pins.tables.blocks.get(&key, &pins.blocks) else { return 0 };
        let Some(group) = block.group(partition) else { return 0 };
        self.uncount_prefix(&domain);
        pins.publish(key, block.without(partition));
        for holder in group.holders() {
            self.release(pins, holder.slot);
        }
        group.holders().len() as u64
    }

    /// Gives up the slot of an entry that readers no longer find.
    fn release(&mut self, pins: &Pins<'_>, at: u32) {
        let slot = self.entries[at].clone();
        self.members[slot.member].remove(&mut self.entries, at);
        self.soil(slot.member);
        self.uncount_entry(pins, &slot);
        self.entries.release(at);
        self.drop_if_empty(pins, slot.member);
    }

    /// Forgets a member that has neither entries nor stats.
    pub(crate) fn drop_if_empty(&mut self, pins: &Pins<'_>, at: u32) {
        let member = &self.members[at];
        let shared = Arc::clone(&member.shared);
        if member.entries > 0 || shared.stats.load().is_some() {
            return;
        }
        match member.retirement {
            Some(number) => {
                self.retired.remove(&number);
                self.tenants[shared.domain.tenant.at].retired.remove(&number);
            }
            None => {
                self.unlink_heads(at);
                self.unname_member(pins, &shared);
            }
        }
        self.drop_member(pins, at);
    }
}

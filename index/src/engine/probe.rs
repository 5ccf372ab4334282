//! The self-test's own block under the reserved tenant: the only way in for it. It takes the path of any entry, and
//! expires like one should its removal be lost.

use super::Index;
use super::names::Pins;
use super::write::{Said, Spot};
use crate::applied::Applied;
use crate::command::Probe;
use crate::limits::{MAX_HASH_BYTES, MAX_ID_BYTES, RESERVED_TENANT};
use crate::view::tables::BlockRef;
use std::sync::Arc;

/// The token count of the synthetic block.
const PROBE_TOKENS: i32 = 1;
const PROBE_TIER: i32 = 1;

impl Index {
    pub(crate) fn apply_probe(&mut self, probe: &Probe, applied: &mut Applied) {
        let Probe { replica, model, scheme, hash, present } = probe;
        let are_ids = [replica, model, scheme].into_iter().all(|id| (1..=MAX_ID_BYTES).contains(&id.len()));
        if !are_ids || !(1..=MAX_HASH_BYTES).contains(&hash.len()) {
            applied.refused += 1;
            return;
        }
        let tables = Arc::clone(&self.tables);
        let pins = Pins::new(&tables);
        if !present {
            let slot = self.probe_slot(&pins, probe);
            if let Some(slot) = slot {
                self.remove_entry(&pins, slot);
            }
            return;
        }
        let Some(member) = self.ensure_member(&pins, RESERVED_TENANT, model, replica) else { return };
        let Some(partition) = self.ensure_partition(&pins, &member.domain, scheme, "") else { return };
        let said = Said { last_seen_us: self.time_us, tokens: PROBE_TOKENS, tier: PROBE_TIER };
        self.upsert(&pins, &Spot { member, partition }, hash, said);
    }

    fn probe_slot(&self, pins: &Pins<'_>, probe: &Probe) -> Option<u32> {
        let member = self.find_member(pins, RESERVED_TENANT, &probe.model, &probe.replica)?;
        let scope = pins.tables.scope(member.domain.id, &probe.scheme, &pins.names)?;
        let partition = pins.tables.partition(scope.id, "", &pins.names)?;
        let key = BlockRef { domain: member.domain.id, hash: &probe.hash };
        let group = pins.tables.blocks.get(&key, &pins.blocks)?.group(partition.id)?;
        Some(group.holder(member.at)?.slot)
    }
}

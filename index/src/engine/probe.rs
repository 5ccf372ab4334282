//! The self-test's own block under the reserved tenant: the only way in for it. It takes the path of any entry, and
//! expires like one should its removal be lost.

use super::Index;
use super::names::Pins;
use super::write::Spot;
use crate::applied::Applied;
use crate::command::Probe;
use crate::limits::{MAX_HASH_BYTES, MAX_ID_BYTES, RESERVED_TENANT};
use crate::store::Said;
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
            if let Some((member, slab, position)) = self.probe_entry(&pins, probe) {
                self.remove(&pins, member, slab, (position, position + 1));
            }
            return;
        }
        let Some(member) = self.ensure_member(&pins, RESERVED_TENANT, model, replica) else { return };
        let Some(partition) = self.ensure_partition(&pins, &member.domain, scheme, "") else { return };
        let said = Said { seen_us: self.time_us, tier: PROBE_TIER, accesses: 0 };
        self.put(&Spot { member, partition }, &[(hash, PROBE_TOKENS)], said, None);
    }

    fn probe_entry(&self, pins: &Pins<'_>, probe: &Probe) -> Option<(u32, u32, u32)> {
        let member = self.find_member(pins, RESERVED_TENANT, &probe.model, &probe.replica)?;
        let scope = pins.tables.scope(member.domain.id, &probe.scheme, &pins.names)?;
        let partition = pins.tables.partition(scope.id, "", &pins.names)?;
        let (slab, position) = self.store.find(member.domain.id, partition.id, &probe.hash)?;
        self.store.span(slab, member.seat, position)?;
        Some((member.at, slab, position))
    }
}

//! Victims of the cap that are taken late. At the cap each update costs as many entries as it brings. Taken update by
//! update, each time a few of every chain that came in at one instant long ago go, and all those chains are looked at and changed; taken
//! once for all updates of a log entry, each chain is changed once. The state after the log entry is the same: victims are
//! owed only where taking them at once would have made no difference to what follows, and whatever it could make a
//! difference to (an entry that is there already and could be one of them, an event, an older timestamp, a quota) has them
//! taken first.

use super::Index;
use super::names::Pins;
use crate::applied::Applied;

/// What is owed to the cap.
#[derive(Default)]
pub(crate) struct Owed {
    /// So many entries.
    entries: u64,
    /// A stamp, and at most how many entries were seen last then.
    fresh: (u64, u64),
}

impl Index {
    /// True when victims are owed.
    pub(crate) fn owes(&self) -> bool {
        self.owed.entries > 0
    }

    /// Takes what is owed.
    pub(crate) fn settle_owed(&mut self, pins: &Pins<'_>, applied: &mut Applied) {
        match self.forget_owed() {
            0 => {}
            owed => drop(self.enforce_cap(pins, owed, applied)),
        }
    }

    /// How much is owed, for a caller that takes it.
    pub(crate) fn forget_owed(&mut self) -> u64 {
        std::mem::take(&mut self.owed.entries)
    }

    /// True when what is owed to the cap may stay so while an update is applied; entries that it refreshes are looked
    /// out for when it comes to them.
    pub(crate) fn may_stay_owed(&self, tenant: &str, at_us: u64) -> bool {
        // The oldest go first, and by the order of its log entry none of this update's is among those.
        at_us == self.time_us && !self.has_lfu && !self.has_retired() && !self.policies.quotas.contains_key(tenant)
    }

    /// Owes what an update that added entries has brought the index over the cap by, if that is possible.
    pub(crate) fn owe(&mut self, added: u64, tenant: &str, at_us: u64) -> bool {
        let (entries, over) = (self.capped_entries(), self.excess_entries());
        // What was too much before is worked off at its own pace.
        let is_own = over <= self.owed.entries + added;
        let old = entries.saturating_sub(self.fresh());
        let may = self.excess_bytes() == 0 && is_own && over <= old && self.may_stay_owed(tenant, at_us);
        if may {
            self.owed.entries = over;
        }
        may
    }

    /// At most how many entries were seen last at the state's time, which is later than all others were.
    fn fresh(&self) -> u64 {
        let (stamp_us, entries) = self.owed.fresh;
        if stamp_us == self.time_us { entries } else { 0 }
    }

    /// Notes that so many entries were written or refreshed as of `seen_us`.
    pub(crate) fn note_fresh(&mut self, entries: u64, seen_us: u64) {
        if seen_us == self.time_us {
            self.owed.fresh = (seen_us, self.fresh().saturating_add(entries));
        }
    }
}

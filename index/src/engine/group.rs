//! Entries that were last seen at the same instant, of all members, removed together. Which of them goes first shows
//! only where not all of them go; where they do, whole spans are removed at a time instead of entries in turn.

use super::Index;
use super::names::Pins;

impl Index {
    /// Removes all entries of the members that were last seen at `seen_us`, which none of theirs was before, if they are at
    /// most `limit`; returns how many of whom there were, or nothing if they are more.
    pub(crate) fn take_group(
        &mut self,
        pins: &Pins<'_>,
        members: &[u32],
        seen_us: u64,
        limit: u64,
    ) -> Option<Vec<(u32, u64)>> {
        let mut places = Vec::new();
        let mut total = 0;
        for &member in members {
            let state = self.members.get_mut(member)?;
            let seat = (state.shared.domain.id, state.shared.seat);
            let slabs = state.ages.take_at(seen_us, limit);
            let are_few = slabs.len() as u64 <= limit;
            for slab in slabs {
                let stretches = self.store.stretches_at(slab, seat, seen_us);
                total += stretches.iter().map(|(start, end)| u64::from(end - start)).sum::<u64>();
                places.push((member, slab, seat));
                // What else there is in the slab still has to be found, and all of it if nothing is removed.
                self.members[member].ages.note(0, seen_us, slab);
            }
            if !are_few || total > limit {
                return None;
            }
        }
        let mut taken = Vec::new();
        for (member, slab, seat) in places {
            // Asked anew for each: the slab may have been moved together.
            while let Some(&range) = self.store.stretches_at(slab, seat, seen_us).last() {
                match self.remove(pins, member, slab, range) {
                    0 => return Some(taken),
                    removed => taken.push((member, removed)),
                }
            }
        }
        Some(taken)
    }
}

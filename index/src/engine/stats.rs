//! Stats rows: one a member, from its first payload until it expires or the replica is cleared. Payloads replace each
//! other whole; a sign of life only ever moves a row's liveness forward.

use super::Index;
use super::names::Pins;
use super::orders::StatsKey;
use crate::delta::Stats;
use crate::digest;
use crate::view::names::{Member, Report, Roster};
use std::sync::Arc;

impl Index {
    /// Replaces a member's payload, as of `at_us`.
    pub(crate) fn set_stats(&mut self, member: &Arc<Member>, stats: &Stats, at_us: u64) {
        let liveness_us = member.stats.load().as_ref().map_or(at_us, |old| old.liveness_us.max(at_us));
        self.put_report(member, Some(Report { stats: finite(stats), payload_us: at_us, liveness_us }));
    }

    /// Notes a sign of life of a member that has stats.
    pub(crate) fn touch_stats(&mut self, member: &Arc<Member>, at_us: u64) {
        let Some(old) = member.stats.load_full() else { return };
        if at_us > old.liveness_us {
            self.put_report(member, Some(Report { liveness_us: at_us, ..*old }));
        }
    }

    /// Puts a report in the place of the last one, or takes it away.
    pub(crate) fn put_report(&mut self, member: &Arc<Member>, new: Option<Report>) {
        let base = self.members[member.at].base;
        let old = member.stats.load_full();
        let ttl = self.tenants[member.domain.tenant.at].ttl;
        if let Some(old) = &old {
            self.digest = self.digest.wrapping_sub(digest::stats(&base, old));
            self.orders.stats.remove(ttl, &key(member, old));
            self.totals.stats_rows -= 1;
        }
        if let Some(new) = &new {
            self.digest = self.digest.wrapping_add(digest::stats(&base, new));
            self.orders.stats.insert(ttl, key(member, new));
            self.totals.stats_rows += 1;
        }
        if old.is_some() != new.is_some() {
            list(&self.domains[member.domain.at].roster, member, new.is_some());
        }
        // The report first: whoever finds the pressure changing looks at that.
        member.stats.store(new.map(Arc::new));
        member.pressure.set(new.map(|new| (new.stats.pressure, new.payload_us)));
    }

    /// Removes a member's stats, and the member if it has nothing else.
    pub(crate) fn expire_stats(&mut self, pins: &Pins<'_>, at: u32) {
        let member = Arc::clone(&self.members[at].shared);
        self.put_report(&member, None);
        self.drop_if_empty(pins, at);
    }
}

pub(crate) fn key(member: &Member, report: &Report) -> StatsKey {
    StatsKey {
        liveness_us: report.liveness_us,
        tenant: Arc::clone(&member.domain.tenant.name),
        model: Arc::clone(&member.domain.model),
        replica: Arc::clone(&member.replica),
        member: member.at,
    }
}

/// Adds a member to its domain's list of those with stats, or takes it away.
fn list(roster: &Roster, member: &Arc<Member>, is_in: bool) {
    let mut members = (**roster.reporting.load()).clone();
    if is_in {
        let place = members.partition_point(|held| held.replica < member.replica);
        members.insert(place, Arc::clone(member));
    } else {
        members.retain(|held| !Arc::ptr_eq(held, member));
    }
    roster.reporters.set(members.len() as u64);
    roster.reporting.store(Arc::new(members));
}

/// A payload without NaN and infinities, whatever the edge let through.
fn finite(stats: &Stats) -> Stats {
    let finite = |value: f32| if value.is_finite() { value } else { 0.0 };
    Stats { hit_rate: finite(stats.hit_rate), pressure: finite(stats.pressure), ..*stats }
}

//! One slice of background removal. In this order, and of entries never more than a slice in all: dead ones, expired
//! ones, prefixes over quota, victims of the cap; beside them expired stats and sessions, a slice of each.

use super::Index;
use super::names::Pins;
use crate::applied::Applied;
use crate::store::Rank;
use std::cmp::Reverse;
use std::sync::Arc;

impl Index {
    pub(crate) fn sweep(&mut self, applied: &mut Applied) {
        let tables = Arc::clone(&self.tables);
        let pins = Pins::new(&tables);
        let slice = self.slice_entries();
        let purged = self.purge(&pins, slice);
        applied.purged += purged;
        let mut left = slice - purged;
        left -= self.expire_entries(&pins, left, applied);
        let tenants: Vec<String> = match left {
            0 => Vec::new(),
            _ => self.policies.quotas.keys().cloned().collect(),
        };
        for tenant in tenants {
            // The last prefix removed may have more holders than were left.
            left = left.saturating_sub(self.enforce_quota(&pins, &tenant, left, applied));
        }
        left -= self.enforce_cap(&pins, left, applied);
        let stats = self.expire_all_stats(&pins, slice);
        applied.expired_stats += stats;
        let sessions = self.sessions.expire(self.time_us, self.meta.session_ttl_us, slice);
        self.sweep_was_full = left == 0 || stats == slice || sessions == slice;
    }

    fn expire_entries(&mut self, pins: &Pins<'_>, limit: u64, applied: &mut Applied) -> u64 {
        let mut expired = 0;
        // What is too many once is too many for what is left of the limit, too.
        let mut too_many_us = None;
        while expired < limit {
            let Some(chosen) = self.first_expired() else { break };
            let seen_us = chosen.top.first.seen_us;
            let members = self.orders.ages.expired_at(seen_us, self.time_us, self.meta.default_ttl_us);
            let rules: Vec<bool> = members.iter().map(|&member| self.is_lfu(member)).collect();
            let fits = too_many_us != Some(seen_us);
            if fits && let Some(taken) = self.take_group(pins, &members, seen_us, limit - expired) {
                for (member, removed) in taken {
                    let is_lfu = members.iter().zip(&rules).any(|(held, is_lfu)| *held == member && *is_lfu);
                    match is_lfu {
                        true => applied.evictions.lfu_ttl += removed,
                        false => applied.evictions.lru_ttl += removed,
                    }
                    expired += removed;
                }
                continue;
            }
            too_many_us = Some(seen_us);
            let is_lfu = self.is_lfu(chosen.member);
            let next = self.orders.ages.second_expired(self.time_us, self.meta.default_ttl_us);
            let next = next.map(|next| (0, next.last_seen_us, next.tokens));
            let bound = next.into_iter().chain([self.first_unexpired(chosen.member)]).min();
            let taken = self.take(pins, chosen, false, limit - expired, bound);
            match is_lfu {
                true => applied.evictions.lfu_ttl += taken,
                false => applied.evictions.lru_ttl += taken,
            }
            expired += taken;
            if taken == 0 {
                break;
            }
        }
        expired
    }

    /// What ranks before all entries of a member that have not expired, and after all that have.
    fn first_unexpired(&self, member: u32) -> Rank {
        let ttl = self.tenants[self.members[member].shared.domain.tenant.at].ttl;
        let ttl_us = ttl.ttl_us(self.meta.default_ttl_us);
        (0, self.time_us.saturating_sub(ttl_us).saturating_add(1), Reverse(i32::MAX))
    }

    fn expire_all_stats(&mut self, pins: &Pins<'_>, limit: u64) -> u64 {
        let mut expired = 0;
        while expired < limit {
            let first = self.orders.stats.first_expired(self.time_us, self.meta.default_ttl_us);
            let Some(member) = first.map(|key| key.member) else { break };
            self.expire_stats(pins, member);
            expired += 1;
        }
        expired
    }
}

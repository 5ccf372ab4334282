//! The walk over blocks: which replicas hold a hash, or how much of a chain from its start. It reads entries and
//! nothing else; scores are made of its matches in [`super::search`].

use super::block::Holder;
use super::tables::{BlockRef, Tables};
use crate::lookup::rank;
use papaya::Guard;
use std::sync::Arc;

/// Where and when a lookup looks.
#[derive(Copy, Clone)]
pub(crate) struct Place {
    pub(crate) domain: u64,
    pub(crate) partition: u64,
    pub(crate) now_us: u64,
    pub(crate) ttl_us: u64,
}

/// One replica's match.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Match {
    /// The position of its holder among those of the first block.
    pub(crate) at: u32,
    /// The holder's order.
    order: u32,
    /// The coldest tier of the run.
    pub(crate) coldness: u32,
    /// Tokens of the run.
    pub(crate) tokens: i32,
    /// Blocks of the run.
    pub(crate) depth: u32,
    /// The oldest last-seen of the run.
    pub(crate) seen_us: u64,
}

impl Place {
    fn holders<'g>(&self, tables: &Tables, hash: &[u8], guard: &'g impl Guard) -> &'g [Holder] {
        let block = tables.blocks.get(&BlockRef { domain: self.domain, hash }, guard);
        block.and_then(|block| block.group(self.partition)).map_or(&[], |group| group.holders())
    }

    /// The last-seen of a holder that matches: alive and not stale.
    fn seen(&self, holder: &Holder) -> Option<u64> {
        let seen_us = holder.last_seen_us();
        (rank::is_fresh(self.now_us, seen_us, self.ttl_us) && !holder.member.is_retired()).then_some(seen_us)
    }

    /// All replicas that hold `hash`, with the stored token counts. Returns the holders that the matches point into.
    pub(crate) fn exact<'g>(
        &self,
        tables: &Tables,
        hash: &[u8],
        matches: &mut Vec<Match>,
        guard: &'g impl Guard,
    ) -> &'g [Holder] {
        matches.clear();
        let holders = self.holders(tables, hash, guard);
        matches.extend((0u32..).zip(holders).filter_map(|(at, holder)| {
            let seen_us = self.seen(holder)?;
            let (order, coldness) = (holder.order, rank::coldness(holder.tier));
            Some(Match { at, order, coldness, tokens: holder.tokens, depth: 1, seen_us })
        }));
        holders
    }

    /// Each replica's longest leading run of the chain, with the chain's own token counts. `running` is a buffer;
    /// `matches` gets the runs, in no order. Returns the first block's holders, which the matches point into.
    pub(crate) fn chain<'g, 'h>(
        &self,
        tables: &Tables,
        mut blocks: impl Iterator<Item = (&'h [u8], i32)>,
        (running, matches): (&mut Vec<Match>, &mut Vec<Match>),
        guard: &'g impl Guard,
    ) -> &'g [Holder] {
        matches.clear();
        running.clear();
        let Some((hash, mut sum)) = blocks.next().filter(|(hash, _)| !hash.is_empty()) else { return &[] };
        let first = self.exact(tables, hash, running, guard);
        running.iter_mut().for_each(|run| run.tokens = sum);
        for (hash, tokens) in blocks {
            if running.is_empty() || hash.is_empty() {
                break;
            }
            sum = sum.saturating_add(tokens);
            self.advance(self.holders(tables, hash, guard), first, sum, running, matches);
        }
        matches.append(running);
        first
    }

    /// Extends by one block the runs whose replica holds it and moves the others to `ended`.
    fn advance(
        &self,
        holders: &[Holder],
        first: &[Holder],
        sum: i32,
        running: &mut Vec<Match>,
        ended: &mut Vec<Match>,
    ) {
        let mut rest = holders;
        running.retain_mut(|run| {
            rest = seek(rest, run.order);
            let held = rest.first().filter(|holder| holder.order == run.order).filter(|holder| {
                // A member's slot may be given anew between two reads; the member itself may not.
                first.get(run.at as usize).is_some_and(|begun| Arc::ptr_eq(&begun.member, &holder.member))
            });
            match held.and_then(|holder| Some((holder, self.seen(holder)?))) {
                Some((holder, seen_us)) => {
                    run.tokens = sum;
                    run.depth += 1;
                    run.seen_us = run.seen_us.min(seen_us);
                    run.coldness = run.coldness.max(rank::coldness(holder.tier));
                    true
                }
                None => {
                    ended.push(*run);
                    false
                }
            }
        });
    }
}

/// What follows of `holders` from the first whose order is `order` or more, in time logarithmic in what is skipped.
fn seek(holders: &[Holder], order: u32) -> &[Holder] {
    let mut reach = 1;
    while holders.get(reach - 1).is_some_and(|holder| holder.order < order) {
        reach *= 2;
    }
    let skipped = reach / 2;
    let window = holders.get(skipped..reach.min(holders.len())).unwrap_or(&[]);
    let skip = skipped + window.partition_point(|holder| holder.order < order);
    holders.get(skip..).unwrap_or(&[])
}

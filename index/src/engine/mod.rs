//! The writer's side of the index: it applies the log, and each entry of it has one outcome on every node. Time is
//! the log's, order is by value, and no table's seed, slot or id influences a result. What readers see is in the
//! `view` module; see `ingest` for deltas, `trim` and `sweep` for what goes, `write` for how entries are published.

mod account;
mod evict;
mod group;
mod heap;
mod ingest;
mod member;
pub(crate) mod names;
mod orders;
mod owed;
mod prefixes;
mod probe;
mod retire;
mod ring;
mod rules;
mod sessions;
mod slab;
mod stats;
mod sweep;
mod trim;
pub(crate) mod write;

use crate::applied::{Applied, AuditResult, BatchOutcome, Totals};
use crate::command::{Batch, ClusterMeta, Command, Stamped};
use crate::policy::{PolicySet, PolicySource};
use crate::snapshot::walk::Walk;
use crate::store::{Edit, Store};
use crate::view::names::{Member, Partition};
use crate::view::tables::Tables;
use crate::view::{Published, View};
use evict::Evicting;
use ingest::Row;
use member::MemberState;
use names::{DomainState, PartitionState, Pins, ScopeState, TenantState};
use orders::Orders;
use owed::Owed;
use ring::DigestRing;
use sessions::Sessions;
use slab::Slab;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// So many deltas ahead, what a delta will need is asked for.
const LOOK_AHEAD: usize = 6;

/// The single writer: owned by one thread, it applies the log in order.
pub struct Index {
    hash_seed: u64,
    pub(crate) tables: Arc<Tables>,
    pub(crate) store: Store,
    pub(crate) members: Slab<MemberState>,
    pub(crate) partitions: Slab<PartitionState>,
    scopes: Slab<ScopeState>,
    domains: Slab<DomainState>,
    tenants: Slab<TenantState>,
    orders: Orders,
    /// Seats that members have left, and when: (stamp, domain's position and id, seat).
    left_seats: VecDeque<(u64, u32, u64, u32)>,
    /// Buffers.
    edits: Vec<Edit>,
    places: Vec<(u32, u32)>,
    /// What events of the batch have evicted and is still there.
    evicting: Option<Evicting>,
    owed: Owed,
    /// The member that was named last, while its name leads to it.
    last_member: Option<Arc<Member>>,
    /// The same of partitions.
    last_partition: Option<Arc<Partition>>,
    /// The records of a snapshot in the making that aren't entries, and the names that entries refer to.
    pub(crate) walk: Option<Walk>,
    /// Members with dead entries, by the number of their retirement.
    retired: BTreeMap<u64, u32>,
    pub(crate) next_retirement: u64,
    next_id: u64,
    pub(crate) sessions: Sessions,
    meta: ClusterMeta,
    policies: PolicySet,
    policy_source: PolicySource,
    /// True when a tenant's policy asks for LFU.
    has_lfu: bool,
    pub(crate) time_us: u64,
    pub(crate) applied_index: u64,
    digest: u128,
    totals: Totals,
    ring: DigestRing,
    pub(crate) sweep_was_full: bool,
}

impl Index {
    /// An empty index. `hash_seed` seeds internal tables against chosen hashes and influences no result.
    pub fn new(hash_seed: u64) -> Self {
        let tables = Arc::new(Tables::new(hash_seed));
        let index = Self {
            hash_seed,
            store: Store::new(Arc::clone(&tables.store)),
            tables,
            members: Slab::default(),
            partitions: Slab::default(),
            scopes: Slab::default(),
            domains: Slab::default(),
            tenants: Slab::default(),
            orders: Orders::default(),
            left_seats: VecDeque::new(),
            edits: Vec::new(),
            places: Vec::new(),
            evicting: None,
            owed: Owed::default(),
            last_member: None,
            last_partition: None,
            walk: None,
            retired: BTreeMap::new(),
            next_retirement: 0,
            next_id: 0,
            sessions: Sessions::default(),
            meta: ClusterMeta::default(),
            policies: PolicySet::default(),
            policy_source: PolicySource::default(),
            has_lfu: false,
            time_us: 0,
            applied_index: 0,
            digest: 0,
            totals: Totals::default(),
            ring: DigestRing::default(),
            sweep_was_full: false,
        };
        index.publish_settings();
        index
    }

    /// Applies the log entry at `index`. Never panics, whatever the command holds.
    pub fn apply(&mut self, index: u64, stamped: &Stamped) -> Applied {
        self.time_us = self.time_us.max(stamped.stamp_us);
        let mut applied = Applied::default();
        match &stamped.command {
            Command::Deltas(batches) => {
                applied.batches.reserve(batches.len());
                for batch in batches {
                    let outcome = self.apply_batch(batch, &mut applied);
                    applied.batches.push(outcome);
                }
                self.settle_owed(&Pins::new(&Arc::clone(&self.tables)), &mut applied);
            }
            Command::Sweep => self.sweep(&mut applied),
            Command::SetPolicy(policies) => self.set_policies(policies, PolicySource::Pushed),
            Command::OfferPolicy(policies) => self.offer_policies(policies),
            Command::AccessCredits(credits) => credits.iter().for_each(|credit| self.apply_credit(credit)),
            Command::ClusterMeta(meta) => self.set_meta(meta),
            Command::Audit(audit) => {
                let ours = self.ring.get(audit.index);
                applied.audit = Some(AuditResult { index: audit.index, expected: audit.digest, ours });
            }
            Command::Probe(probe) => self.apply_probe(probe, &mut applied),
        }
        self.sync_heads();
        self.settle_at(index);
        applied
    }

    fn apply_batch(&mut self, batch: &Batch, applied: &mut Applied) -> BatchOutcome {
        if !self.sessions.admit(batch.session, batch.sequence, self.time_us) {
            return BatchOutcome::Duplicate;
        }
        let tables = Arc::clone(&self.tables);
        let pins = Pins::new(&tables);
        let mut row = Row::default();
        for (at, delta) in batch.deltas.iter().enumerate() {
            // What is beside something is near already.
            if self.evicting.is_none()
                && let Some(ahead) = batch.deltas.get(at + LOOK_AHEAD)
            {
                self.prefetch(ahead);
            }
            self.apply_delta(&pins, delta, self.time_us, &mut row, applied);
        }
        self.finish_row(&pins, &mut row, applied);
        self.finish_evicting(&pins);
        BatchOutcome::Applied
    }

    /// Records that the state is the one after the log entry at `index`, and tells readers.
    pub(crate) fn settle_at(&mut self, index: u64) {
        self.applied_index = index;
        self.store.reclaim();
        self.ring.push(index, self.digest);
        self.tables.published.store(Arc::new(Published {
            applied_index: index,
            time_us: self.time_us,
            digest: self.digest,
            totals: self.totals(),
        }));
    }

    /// The readers' side.
    pub fn view(&self) -> View {
        View::new(Arc::clone(&self.tables), self.hash_seed)
    }

    /// The state's time in microseconds: the highest stamp applied.
    pub fn time_us(&self) -> u64 {
        self.time_us
    }

    /// The log index applied last.
    pub fn applied_index(&self) -> u64 {
        self.applied_index
    }

    /// The parameters of apply.
    pub fn meta(&self) -> &ClusterMeta {
        &self.meta
    }

    /// The policy set.
    pub fn policies(&self) -> &PolicySet {
        &self.policies
    }

    /// Where the policy set comes from.
    pub fn policy_source(&self) -> PolicySource {
        self.policy_source
    }

    /// The digest of the state.
    pub fn digest(&self) -> u128 {
        self.digest
    }

    /// The digest after the log entry at `index`, if that was recently and here.
    pub fn digest_at(&self, index: u64) -> Option<u128> {
        self.ring.get(index)
    }

    /// Sizes of the state.
    pub fn totals(&self) -> Totals {
        Totals { sessions: self.sessions.len(), ..self.totals }
    }

    /// True when another Sweep should follow at once: dead entries wait, the last slice was full, or the cap is
    /// exceeded and there is something that it can take.
    pub fn wants_sweep(&self) -> bool {
        let can_trim = self.is_over_cap() && self.capped_entries() > 0;
        !self.retired.is_empty() || self.sweep_was_full || can_trim
    }
}

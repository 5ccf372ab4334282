//! Records back into a state: the one that behaves as the one they were taken of did. Records come from disks and
//! peers, so every value is possible here and none may panic.

use super::LoadError;
use super::record::{
    EntryPage, EntryRun, HolderName, PageEntry, SNAPSHOT_VERSION, SnapshotHeader, SnapshotRecord, StatsRow,
};
use crate::engine::Index;
use crate::engine::names::Pins;
use crate::engine::write::{Spot, continues};
use crate::limits::{MAX_HASH_BYTES, MAX_ID_BYTES};
use crate::policy::{PolicySet, PolicySource};
use crate::store::Said;
use crate::view::names::{Member, Report};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Builds a state from records.
pub struct Loader {
    index: Index,
    header: Option<SnapshotHeader>,
    policies: PolicySet,
    policy_source: PolicySource,
    /// Retired members by their number.
    retired: BTreeMap<u64, Arc<Member>>,
}

/// The entries of one run, with the names that led to their spot.
#[derive(Default)]
struct Gathered<'p> {
    spot: Option<(&'p HolderName, &'p super::record::PartitionName, Spot)>,
    run: Option<&'p EntryRun>,
    blocks: Vec<(&'p [u8], i32)>,
}

impl Loader {
    /// An empty loader; `hash_seed` as in [`Index::new`].
    pub fn new(hash_seed: u64) -> Self {
        Self {
            index: Index::new(hash_seed),
            header: None,
            policies: PolicySet::default(),
            policy_source: PolicySource::default(),
            retired: BTreeMap::new(),
        }
    }

    /// Takes the next record in.
    pub fn push(&mut self, record: SnapshotRecord) -> Result<(), LoadError> {
        if self.header.is_some() == matches!(record, SnapshotRecord::Header(_)) {
            return Err(LoadError::Header);
        }
        match record {
            SnapshotRecord::Header(header) => self.header(header),
            SnapshotRecord::Policies(policies) => {
                self.policies.policies.extend(policies);
                Ok(())
            }
            SnapshotRecord::Quotas(quotas) => {
                self.policies.quotas.extend(quotas);
                Ok(())
            }
            SnapshotRecord::PolicySource(source) => {
                self.policy_source = source;
                Ok(())
            }
            SnapshotRecord::Sessions(rows) => {
                rows.into_iter().for_each(|row| self.index.sessions.put(row));
                Ok(())
            }
            SnapshotRecord::Stats(rows) => rows.iter().try_for_each(|row| self.stats(row)).map_err(LoadError::Record),
            SnapshotRecord::Entries(page) => self.page(&page).map_err(LoadError::Record),
        }
    }

    /// The state at `log_index`, if its digest is the expected one.
    pub fn finish(mut self, log_index: u64, expected_digest: u128) -> Result<Index, LoadError> {
        let header = self.header.ok_or(LoadError::Header)?;
        self.index.set_policies(&self.policies, self.policy_source);
        self.index.sync_heads();
        let found = self.index.digest();
        if found != expected_digest {
            return Err(LoadError::Digest { found, expected: expected_digest });
        }
        let totals = self.index.totals();
        if totals != header.totals {
            return Err(LoadError::Totals(format!("{totals:?}, not {:?}", header.totals)));
        }
        self.index.settle_at(log_index);
        Ok(self.index)
    }

    fn header(&mut self, header: SnapshotHeader) -> Result<(), LoadError> {
        if header.version != SNAPSHOT_VERSION {
            return Err(LoadError::Version { found: header.version, known: SNAPSHOT_VERSION });
        }
        self.index.time_us = header.time_us;
        self.index.next_retirement = header.next_retirement;
        self.index.sweep_was_full = header.sweep_was_full;
        self.index.set_meta(&header.meta);
        self.header = Some(header);
        Ok(())
    }

    fn stats(&mut self, row: &StatsRow) -> Result<(), &'static str> {
        check_ids(&row.tenant, &row.model, &row.replica)?;
        let tables = Arc::clone(&self.index.tables);
        let pins = Pins::new(&tables);
        let member = self.index.ensure_member(&pins, &row.tenant, &row.model, &row.replica).ok_or(TOO_MANY)?;
        if member.stats.load().is_some() {
            return Err("a replica has two stats rows");
        }
        let report = Report { stats: row.stats, payload_us: row.payload_us, liveness_us: row.liveness_us };
        self.index.put_report(&member, Some(report));
        Ok(())
    }

    fn page(&mut self, page: &EntryPage) -> Result<(), &'static str> {
        let tables = Arc::clone(&self.index.tables);
        let pins = Pins::new(&tables);
        let mut gathered: Gathered<'_> = Gathered::default();
        page.each(|entry| {
            if !(1..=MAX_HASH_BYTES).contains(&entry.hash.len()) || entry.tokens < 0 {
                return Err("an entry is out of bounds");
            }
            if gathered.run.is_none_or(|run| !std::ptr::eq(run, entry.run)) {
                self.put(&mut gathered)?;
                let spot = match gathered.spot.take() {
                    Some((holder, partition, spot)) if (holder, partition) == (entry.holder, entry.partition) => spot,
                    _ => self.spot(&pins, &entry)?,
                };
                gathered.spot = Some((entry.holder, entry.partition, spot));
                gathered.run = Some(entry.run);
            }
            gathered.blocks.push((entry.hash, entry.tokens));
            Ok(())
        })?;
        self.put(&mut gathered)?;
        self.index.store.reclaim();
        Ok(())
    }

    /// Puts the entries of a run in that were gathered.
    fn put(&mut self, gathered: &mut Gathered<'_>) -> Result<(), &'static str> {
        let (Some((.., spot)), Some(run)) = (&gathered.spot, gathered.run) else { return Ok(()) };
        let said = Said { seen_us: run.last_seen_us, tier: run.tier, accesses: run.accesses };
        // What continues the run before it lay beside it.
        let last = self.index.members[spot.member.at].last;
        let first = gathered.blocks.first().map(|(_, tokens)| *tokens);
        let last = last.filter(|last| first.is_some_and(|first| continues(last, spot.partition.at, first)));
        let added = self.index.put(spot, &gathered.blocks, said, last);
        if added != gathered.blocks.len() as u64 {
            return Err("an entry is there twice");
        }
        gathered.blocks.clear();
        Ok(())
    }

    fn spot(&mut self, pins: &Pins<'_>, entry: &PageEntry<'_>) -> Result<Spot, &'static str> {
        let HolderName { tenant, model, replica, retired } = entry.holder;
        check_ids(tenant, model, replica)?;
        let (scheme, adapter) = (&entry.partition.scheme, &entry.partition.adapter);
        if !(1..=MAX_ID_BYTES).contains(&scheme.len()) || adapter.len() > MAX_ID_BYTES {
            return Err("a partition's name is out of bounds");
        }
        let member = match retired {
            None => self.index.ensure_member(pins, tenant, model, replica).ok_or(TOO_MANY)?,
            Some(number) => self.retired(pins, entry.holder, *number)?,
        };
        let partition = self.index.ensure_partition(pins, &member.domain, scheme, adapter).ok_or(TOO_MANY)?;
        Ok(Spot { member, partition })
    }

    fn retired(&mut self, pins: &Pins<'_>, name: &HolderName, number: u64) -> Result<Arc<Member>, &'static str> {
        if number >= self.index.next_retirement {
            return Err("a retirement is numbered ahead of the header");
        }
        if let Some(member) = self.retired.get(&number) {
            let domain = &member.domain;
            let is_same =
                *domain.tenant.name == *name.tenant && *domain.model == *name.model && *member.replica == *name.replica;
            return if is_same { Ok(Arc::clone(member)) } else { Err("a retirement has two replicas") };
        }
        let member = self.index.new_member(pins, &name.tenant, &name.model, &name.replica).ok_or(TOO_MANY)?;
        member.retired.store(true, Ordering::Relaxed);
        self.index.number_retired(&member, number);
        self.retired.insert(number, Arc::clone(&member));
        Ok(member)
    }
}

const TOO_MANY: &str = "more than 32 bits can number";

fn check_ids(tenant: &str, model: &str, replica: &str) -> Result<(), &'static str> {
    let are_ids = [tenant, model, replica].into_iter().all(|id| (1..=MAX_ID_BYTES).contains(&id.len()));
    if are_ids { Ok(()) } else { Err("an id is out of bounds") }
}

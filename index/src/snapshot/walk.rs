//! The walk of a snapshot over the entries while commands go on being applied: an entry that changes before the walk
//! gets there is kept as it was at the beginning, up to a limit. All that exists once is copied at the beginning.

use super::page::PageBuilder;
use super::record::{MAX_RECORD_BYTES, SNAPSHOT_VERSION, SessionRow, SnapshotHeader, SnapshotRecord, StatsRow};
use super::{SnapshotInfo, SnapshotOverflow, SnapshotSlice};
use crate::engine::Index;
use crate::engine::entries::Slot;
use crate::policy::PolicySource;
use crate::view::names::{Member, Partition};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// Records of things that exist once, given out with one slice.
const RECORDS_A_SLICE: usize = 4;
/// Bytes that such a record aims at; half the limit leaves room for any one item.
const RECORD_BYTES: usize = MAX_RECORD_BYTES / 2;

/// A snapshot in the making.
pub(crate) struct Walk {
    /// The next slot to walk, and the end of those there were at the beginning.
    next: u32,
    end: u32,
    limit: usize,
    /// What changed slots ahead of the walk were at the beginning; `None` for vacant.
    kept: BTreeMap<u32, Option<Slot>>,
    overflowed: bool,
    pending: VecDeque<SnapshotRecord>,
    names: Names,
}

/// What slots referred to at the beginning.
pub(crate) struct Names {
    /// Members with the number they were retired under.
    pub(crate) members: Vec<Option<(Arc<Member>, Option<u64>)>>,
    pub(crate) partitions: Vec<Option<Arc<Partition>>>,
}

impl Walk {
    /// Keeps what a slot is, before it changes, if the walk still needs it.
    pub(crate) fn keep(&mut self, at: u32, was: impl FnOnce() -> Option<Slot>) {
        if at < self.next || at >= self.end || self.overflowed || self.kept.contains_key(&at) {
            return;
        }
        if self.kept.len() >= self.limit {
            self.overflowed = true;
            self.kept.clear();
            return;
        }
        self.kept.insert(at, was());
    }
}

impl Index {
    /// Begins a snapshot of the state as it is now; one that was in the making is given up. At most `preimage_limit`
    /// entries may change ahead of the walk.
    pub fn begin_snapshot(&mut self, preimage_limit: usize) -> SnapshotInfo {
        let info = SnapshotInfo { digest: self.digest(), totals: self.totals(), time_us: self.time_us };
        let names = Names {
            members: self
                .members
                .places()
                .map(|member| member.map(|member| (Arc::clone(&member.shared), member.retirement)))
                .collect(),
            partitions: self
                .entries
                .partitions
                .places()
                .map(|partition| partition.map(|partition| Arc::clone(&partition.shared)))
                .collect(),
        };
        self.entries.walk = Some(Walk {
            next: 0,
            end: self.entries.slots(),
            limit: preimage_limit,
            kept: BTreeMap::new(),
            overflowed: false,
            pending: self.single_records(&info),
            names,
        });
        info
    }

    /// The next records, walking at most `max_entries` entries. Commands may be applied between slices.
    pub fn snapshot_slice(&mut self, max_entries: usize) -> Result<SnapshotSlice, SnapshotOverflow> {
        let mut walk = self.entries.walk.take().ok_or(SnapshotOverflow::NotBegun)?;
        if walk.overflowed {
            return Err(SnapshotOverflow::TooManyChanges { limit: walk.limit });
        }
        let singles = walk.pending.len().min(RECORDS_A_SLICE);
        let mut records: Vec<SnapshotRecord> = walk.pending.drain(..singles).collect();
        let steps = u32::try_from(max_entries.max(1)).unwrap_or(u32::MAX);
        let until = walk.next.saturating_add(steps).min(walk.end);
        let mut pages = PageBuilder::new(&walk.names);
        for at in walk.next..until {
            match walk.kept.remove(&at) {
                Some(was) => was.iter().for_each(|slot| pages.push(slot, &mut records)),
                None => self.entries.get(at).iter().for_each(|slot| pages.push(slot, &mut records)),
            }
        }
        pages.finish(&mut records);
        walk.next = until;
        let done = walk.next == walk.end && walk.pending.is_empty();
        if !done {
            self.entries.walk = Some(walk);
        }
        Ok(SnapshotSlice { records, done })
    }

    /// Gives a snapshot in the making up.
    pub fn abort_snapshot(&mut self) {
        self.entries.walk = None;
    }

    /// All records but those of entries.
    fn single_records(&self, info: &SnapshotInfo) -> VecDeque<SnapshotRecord> {
        let mut records = VecDeque::from([SnapshotRecord::Header(SnapshotHeader {
            version: SNAPSHOT_VERSION,
            time_us: info.time_us,
            meta: self.meta().clone(),
            next_retirement: self.next_retirement,
            sweep_was_full: self.sweep_was_full,
            digest: info.digest,
            totals: info.totals,
        })]);
        if self.policy_source() == PolicySource::Pushed {
            records.push_back(SnapshotRecord::PolicySource(PolicySource::Pushed));
        }
        let policies = self.policies().policies.iter().map(|(tenant, policy)| (tenant.clone(), policy.clone()));
        chunk(policies, |(tenant, _)| tenant.len() + 80, SnapshotRecord::Policies, &mut records);
        let quotas = self.policies().quotas.iter().map(|(tenant, &quota)| (tenant.clone(), quota));
        chunk(quotas, |(tenant, _)| tenant.len() + 16, SnapshotRecord::Quotas, &mut records);
        chunk(self.sessions.rows(), |_| size_of::<SessionRow>(), SnapshotRecord::Sessions, &mut records);
        let size = |row: &StatsRow| row.tenant.len() + row.model.len() + row.replica.len() + 80;
        chunk(self.stats_rows(), size, SnapshotRecord::Stats, &mut records);
        records
    }

    fn stats_rows(&self) -> impl Iterator<Item = StatsRow> + '_ {
        self.members.iter().filter_map(|(_, member)| {
            let report = member.shared.stats.load_full()?;
            Some(StatsRow {
                tenant: member.shared.domain.tenant.name.to_string(),
                model: member.shared.domain.model.to_string(),
                replica: member.shared.replica.to_string(),
                stats: report.stats,
                payload_us: report.payload_us,
                liveness_us: report.liveness_us,
            })
        })
    }
}

/// Cuts items into records of about [`RECORD_BYTES`].
fn chunk<T>(
    items: impl Iterator<Item = T>,
    bytes: impl Fn(&T) -> usize,
    record: impl Fn(Vec<T>) -> SnapshotRecord,
    records: &mut VecDeque<SnapshotRecord>,
) {
    let (mut held, mut size) = (Vec::new(), 0);
    for item in items {
        size += bytes(&item);
        held.push(item);
        if size >= RECORD_BYTES {
            records.push_back(record(std::mem::take(&mut held)));
            size = 0;
        }
    }
    if !held.is_empty() {
        records.push_back(record(held));
    }
}

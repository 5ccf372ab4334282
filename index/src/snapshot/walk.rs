//! The walk of a snapshot over the entries while commands go on being applied: an entry that changes before the walk
//! gets there is kept as it was at the beginning, up to a limit. All that exists once is copied at the beginning.

use super::page::PageBuilder;
use super::record::{MAX_RECORD_BYTES, SNAPSHOT_VERSION, SessionRow, SnapshotHeader, SnapshotRecord, StatsRow};
use super::{SnapshotInfo, SnapshotOverflow, SnapshotSlice};
use crate::engine::Index;
use crate::policy::PolicySource;
use crate::store::{SlabImage, Store, Watch};
use crate::view::names::{Member, Partition};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// Records of things that exist once, given out with one slice.
const RECORDS_A_SLICE: usize = 4;
/// Bytes that such a record aims at; half the limit leaves room for any one item.
const RECORD_BYTES: usize = MAX_RECORD_BYTES / 2;

/// A snapshot in the making.
pub(crate) struct Walk {
    /// A slab that is being walked, the next of its spans and the next position in that.
    current: Option<(SlabImage, usize, u32)>,
    pending: VecDeque<SnapshotRecord>,
    names: Names,
}

/// What slabs and spans referred to at the beginning.
pub(crate) struct Names {
    /// Members with the number they were retired under.
    pub(crate) members: Vec<Option<(Arc<Member>, Option<u64>)>>,
    pub(crate) partitions: Vec<Option<Arc<Partition>>>,
    /// The member in each seat of a domain.
    pub(crate) seats: BTreeMap<u64, Vec<u32>>,
}

impl Walk {
    /// Walks at most `steps` entries; true when there are no more.
    fn step(&mut self, store: &mut Store, mut steps: usize, records: &mut Vec<SnapshotRecord>) -> bool {
        let mut pages = PageBuilder::new(&self.names);
        let is_done = loop {
            let Some((slab, at, position)) = &mut self.current else {
                match next_slab(store) {
                    // A number of nobody's is a step too, so that a slice is bounded.
                    Some(slab) if steps > 0 => {
                        steps -= usize::from(slab.is_none());
                        self.current = slab.map(|slab| (slab, 0, 0));
                        continue;
                    }
                    Some(slab) => {
                        self.current = slab.map(|slab| (slab, 0, 0));
                        break false;
                    }
                    None => break true,
                }
            };
            let Some(span) = slab.spans.get(*at).copied() else {
                self.current = None;
                continue;
            };
            if steps == 0 {
                break false;
            }
            *position = (*position).max(span.start);
            let end = span.end.min(position.saturating_add(u32::try_from(steps).unwrap_or(u32::MAX)));
            steps -= (end - *position) as usize;
            let partition = slab.partition;
            let names = self.names.partitions.get(partition as usize).and_then(Option::as_ref);
            let seats = names.and_then(|partition| self.names.seats.get(&partition.domain.id));
            if let Some(&member) = seats.and_then(|seats| seats.get(span.seat as usize)) {
                for position in *position..end {
                    pages.push((member, partition), (&span, position), slab.hash(position), records);
                }
            }
            *position = end;
            if end == span.end {
                (*at, *position) = (*at + 1, 0);
            }
        };
        pages.finish(records);
        is_done
    }
}

/// The next number's slab as it was at the beginning: `Some(None)` when the number was nobody's, `None` when there are no
/// more numbers.
fn next_slab(store: &mut Store) -> Option<Option<SlabImage>> {
    let watch = store.watch.as_mut().filter(|watch| watch.next < watch.end)?;
    let number = watch.next;
    watch.next += 1;
    match watch.kept.remove(&number) {
        Some((was, _)) => Some(was),
        None => Some(store.image(number)),
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
                .partitions
                .places()
                .map(|partition| partition.map(|partition| Arc::clone(&partition.shared)))
                .collect(),
            seats: self.seats(),
        };
        self.store.watch = Some(Watch::new(self.store.slabs(), preimage_limit));
        self.walk = Some(Walk { current: None, pending: self.single_records(&info), names });
        info
    }

    /// The next records, walking at most `max_entries` entries. Commands may be applied between slices.
    pub fn snapshot_slice(&mut self, max_entries: usize) -> Result<SnapshotSlice, SnapshotOverflow> {
        let mut walk = self.walk.take().ok_or(SnapshotOverflow::NotBegun)?;
        if let Some(watch) = self.store.watch.take_if(|watch| watch.overflowed) {
            return Err(SnapshotOverflow::TooManyChanges { limit: watch.limit });
        }
        let singles = walk.pending.len().min(RECORDS_A_SLICE);
        let mut records: Vec<SnapshotRecord> = walk.pending.drain(..singles).collect();
        let is_walked = walk.step(&mut self.store, max_entries.max(1), &mut records);
        let done = is_walked && walk.pending.is_empty();
        match done {
            true => self.store.watch = None,
            false => self.walk = Some(walk),
        }
        Ok(SnapshotSlice { records, done })
    }

    /// Gives a snapshot in the making up.
    pub fn abort_snapshot(&mut self) {
        (self.walk, self.store.watch) = (None, None);
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

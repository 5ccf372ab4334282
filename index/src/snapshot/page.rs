//! Entries into pages: neighbours that differ in nothing but hash and a steady step of their token counts become one
//! run. Chains get neighbouring slots as they are written, so most runs are long.

use super::record::{EntryPage, EntryRun, HolderName, MAX_RECORD_BYTES, PartitionName, SnapshotRecord};
use super::walk::Names;
use crate::block_hash::BlockHash;
use crate::delta::PackedHashes;
use crate::store::Span;
use std::collections::BTreeMap;

/// Bytes that a page aims at; half the limit leaves room for any one entry.
const PAGE_BYTES: usize = MAX_RECORD_BYTES / 2;

/// Builds the pages of one slice.
pub(crate) struct PageBuilder<'n> {
    names: &'n Names,
    holders: Vec<HolderName>,
    partitions: Vec<PartitionName>,
    /// Positions in `holders` and `partitions` by the writer's own.
    known_holders: BTreeMap<u32, u32>,
    known_partitions: BTreeMap<u32, u32>,
    runs: Vec<EntryRun>,
    hashes: Vec<BlockHash>,
    bytes: usize,
}

impl<'n> PageBuilder<'n> {
    pub(crate) fn new(names: &'n Names) -> Self {
        Self {
            names,
            holders: Vec::new(),
            partitions: Vec::new(),
            known_holders: BTreeMap::new(),
            known_partitions: BTreeMap::new(),
            runs: Vec::new(),
            hashes: Vec::new(),
            bytes: 0,
        }
    }

    /// Adds an entry, and a page to `records` when it is full.
    pub(crate) fn push(
        &mut self,
        (member, partition): (u32, u32),
        (span, position): (&Span, u32),
        hash: &[u8],
        records: &mut Vec<SnapshotRecord>,
    ) {
        let (Some(holder), Some(partition)) = (self.holder(member), self.partition(partition)) else {
            return;
        };
        let run = EntryRun {
            holder,
            partition,
            last_seen_us: span.seen_us,
            tier: span.tier,
            accesses: span.accesses,
            tokens: span.tokens(position),
            step: 0,
            blocks: 1,
        };
        if !self.runs.last_mut().is_some_and(|last| extend(last, &run)) {
            self.runs.push(run);
            self.bytes += size_of::<EntryRun>();
        }
        self.bytes += hash.len() + 1;
        self.hashes.push(BlockHash::new(hash));
        if self.bytes >= PAGE_BYTES {
            self.finish(records);
        }
    }

    /// Adds what is left as a page.
    pub(crate) fn finish(&mut self, records: &mut Vec<SnapshotRecord>) {
        let hashes = std::mem::take(&mut self.hashes);
        // Stored hashes are far below the 255 bytes that can be packed.
        if let Some(hashes) = PackedHashes::pack(&hashes).filter(|hashes| !hashes.is_empty()) {
            records.push(SnapshotRecord::Entries(EntryPage {
                holders: std::mem::take(&mut self.holders),
                partitions: std::mem::take(&mut self.partitions),
                runs: std::mem::take(&mut self.runs),
                hashes,
            }));
        }
        *self = Self::new(self.names);
    }

    fn holder(&mut self, at: u32) -> Option<u32> {
        if let Some(&known) = self.known_holders.get(&at) {
            return Some(known);
        }
        let (member, retired) = self.names.members.get(at as usize)?.as_ref()?;
        let name = HolderName {
            tenant: member.domain.tenant.name.to_string(),
            model: member.domain.model.to_string(),
            replica: member.replica.to_string(),
            retired: *retired,
        };
        self.bytes += name.tenant.len() + name.model.len() + name.replica.len() + 40;
        let position = u32::try_from(self.holders.len()).ok()?;
        self.holders.push(name);
        self.known_holders.insert(at, position);
        Some(position)
    }

    fn partition(&mut self, at: u32) -> Option<u32> {
        if let Some(&known) = self.known_partitions.get(&at) {
            return Some(known);
        }
        let partition = self.names.partitions.get(at as usize)?.as_ref()?;
        let name = PartitionName { scheme: partition.scheme.to_string(), adapter: partition.adapter.to_string() };
        self.bytes += name.scheme.len() + name.adapter.len() + 24;
        let position = u32::try_from(self.partitions.len()).ok()?;
        self.partitions.push(name);
        self.known_partitions.insert(at, position);
        Some(position)
    }
}

/// Extends a run by one of a single entry, if that fits it.
fn extend(run: &mut EntryRun, next: &EntryRun) -> bool {
    let fields = |run: &EntryRun| (run.holder, run.partition, run.last_seen_us, run.tier, run.accesses);
    if fields(run) != fields(next) || run.blocks == u32::MAX {
        return false;
    }
    if run.blocks == 1 {
        let Some(step) = next.tokens.checked_sub(run.tokens) else { return false };
        run.step = step;
    } else if run.tokens_at(run.blocks) != Some(next.tokens) {
        return false;
    }
    run.blocks += 1;
    true
}

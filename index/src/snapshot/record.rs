//! The logical form of a snapshot: what the state is, never how an engine keeps it. docs/FORMATS.md describes the
//! records; encoding them is the caller's. Each is built to stay under [`MAX_RECORD_BYTES`] in any sane encoding.

use crate::applied::Totals;
use crate::command::ClusterMeta;
use crate::delta::{PackedHashes, Stats};
use crate::policy::{PolicySource, TenantPolicy};
use serde::{Deserialize, Serialize};

/// The version of the records written here.
pub const SNAPSHOT_VERSION: u16 = 1;
/// No record takes more than this, encoded with fixed-width integers and 8-byte lengths.
pub const MAX_RECORD_BYTES: usize = 1 << 20;

/// One piece of a snapshot. The header comes first; the order of all else is free.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum SnapshotRecord {
    /// Everything of which there is one.
    Header(SnapshotHeader),
    /// Some of the policies.
    Policies(Vec<(String, TenantPolicy)>),
    /// Some of the quotas, in prefixes.
    Quotas(Vec<(String, u64)>),
    /// Some of the ingest sessions.
    Sessions(Vec<SessionRow>),
    /// Some of the stats rows.
    Stats(Vec<StatsRow>),
    /// Some of the entries.
    Entries(EntryPage),
    /// Where the policy set comes from; [`PolicySource::File`] when there is no such record.
    PolicySource(PolicySource),
}

/// The parts of the state that exist once.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SnapshotHeader {
    /// [`SNAPSHOT_VERSION`] of the writer.
    pub version: u16,
    /// The state's time in microseconds.
    pub time_us: u64,
    /// Parameters of apply.
    pub meta: ClusterMeta,
    /// The number that the next ALL_CLEARED retires its replica under.
    pub next_retirement: u64,
    /// True when the last sweep found more than it could remove.
    pub sweep_was_full: bool,
    /// The digest of the state.
    pub digest: u128,
    /// Its sizes.
    pub totals: Totals,
}

/// One remembered ingest session.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionRow {
    /// The session.
    pub session: u128,
    /// The last sequence applied.
    pub sequence: u64,
    /// When it was last heard of, in cluster time.
    pub stamp_us: u64,
}

/// One replica's stats in one (tenant, model).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StatsRow {
    /// The tenant.
    pub tenant: String,
    /// The model.
    pub model: String,
    /// The replica.
    pub replica: String,
    /// The payload.
    pub stats: Stats,
    /// The time of the payload.
    pub payload_us: u64,
    /// The time of the last sign of life.
    pub liveness_us: u64,
}

/// A page of entries: runs of hashes that differ in nothing but hash and token count, with the names used.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EntryPage {
    /// The holders that the page's runs name by position.
    pub holders: Vec<HolderName>,
    /// The partitions that the page's runs name by position.
    pub partitions: Vec<PartitionName>,
    /// The runs, in the order of `hashes`.
    pub runs: Vec<EntryRun>,
    /// The hashes of all runs, side by side.
    pub hashes: PackedHashes,
}

/// A replica in a (tenant, model), alive or retired.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct HolderName {
    /// The tenant.
    pub tenant: String,
    /// The model.
    pub model: String,
    /// The replica.
    pub replica: String,
    /// The number it was retired under when its entries are dead; `None` for visible entries.
    pub retired: Option<u64>,
}

/// A partition within a (tenant, model).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PartitionName {
    /// The hash scheme.
    pub scheme: String,
    /// The adapter.
    pub adapter: String,
}

/// `blocks` entries whose token counts are `tokens`, `tokens + step`, `tokens + 2 step`, ...
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EntryRun {
    /// Position in [`EntryPage::holders`].
    pub holder: u32,
    /// Position in [`EntryPage::partitions`].
    pub partition: u32,
    /// When the entries were last reported, in cluster time.
    pub last_seen_us: u64,
    /// Their tier.
    pub tier: i32,
    /// Their access count.
    pub accesses: u32,
    /// Token count of the first.
    pub tokens: i32,
    /// Added from one to the next.
    pub step: i32,
    /// How many there are.
    pub blocks: u32,
}

impl EntryRun {
    /// The token count of the entry at `position`; `None` when no 32-bit count says it.
    pub(crate) fn tokens_at(&self, position: u32) -> Option<i32> {
        let tokens = i64::from(self.tokens) + i64::from(self.step) * i64::from(position);
        i32::try_from(tokens).ok()
    }
}

/// One entry of a page.
pub(crate) struct PageEntry<'p> {
    pub(crate) holder: &'p HolderName,
    pub(crate) partition: &'p PartitionName,
    pub(crate) run: &'p EntryRun,
    pub(crate) hash: &'p [u8],
    pub(crate) tokens: i32,
}

impl EntryPage {
    /// Hands each entry of the page on, or says what is wrong with the page.
    pub(crate) fn each<'p>(
        &'p self,
        mut take: impl FnMut(PageEntry<'p>) -> Result<(), &'static str>,
    ) -> Result<(), &'static str> {
        let mut hashes = self.hashes.iter();
        for run in &self.runs {
            let holder = self.holders.get(run.holder as usize).ok_or("a run names a holder that isn't there")?;
            let partition = self.partitions.get(run.partition as usize);
            let partition = partition.ok_or("a run names a partition that isn't there")?;
            for position in 0..run.blocks {
                let hash = hashes.next().ok_or("a run is longer than the hashes")?;
                let tokens = run.tokens_at(position).ok_or("a token count is out of range")?;
                take(PageEntry { holder, partition, run, hash, tokens })?;
            }
        }
        match hashes.next() {
            None => Ok(()),
            Some(_) => Err("there are more hashes than runs"),
        }
    }
}

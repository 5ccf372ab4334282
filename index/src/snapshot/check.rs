//! The digest that records stand for, without building the state: what a writer compares before a snapshot counts.

use super::LoadError;
use super::record::{SNAPSHOT_VERSION, SnapshotRecord};
use crate::digest::{self, EntryFields, NameHash};
use crate::policy::PolicySet;
use crate::view::names::Report;

/// Sums up the digest of records in any order after their header.
#[derive(Default)]
pub struct RecordDigest {
    has_header: bool,
    digest: u128,
}

impl RecordDigest {
    /// Takes the next record in.
    pub fn push(&mut self, record: &SnapshotRecord) -> Result<(), LoadError> {
        if self.has_header == matches!(record, SnapshotRecord::Header(_)) {
            return Err(LoadError::Header);
        }
        match record {
            SnapshotRecord::Header(header) if header.version != SNAPSHOT_VERSION => {
                return Err(LoadError::Version { found: header.version, known: SNAPSHOT_VERSION });
            }
            SnapshotRecord::Header(_) => self.has_header = true,
            SnapshotRecord::Policies(rows) => {
                rows.iter().for_each(|(tenant, policy)| self.add(digest::policy(tenant, policy)));
            }
            SnapshotRecord::Quotas(rows) => {
                rows.iter().for_each(|(tenant, quota)| self.add(digest::quota(tenant, *quota)));
            }
            SnapshotRecord::PolicySource(source) => self.add(digest::policies(&PolicySet::default(), *source)),
            SnapshotRecord::Sessions(_) => {}
            SnapshotRecord::Stats(rows) => {
                for row in rows {
                    let base = digest::member(&row.tenant, &row.model, &row.replica);
                    let report = Report { stats: row.stats, payload_us: row.payload_us, liveness_us: row.liveness_us };
                    self.add(digest::stats(&base, &report));
                }
            }
            SnapshotRecord::Entries(page) => {
                let holders: Vec<NameHash> = page
                    .holders
                    .iter()
                    .map(|holder| digest::member(&holder.tenant, &holder.model, &holder.replica))
                    .collect();
                let partitions: Vec<NameHash> = page
                    .partitions
                    .iter()
                    .map(|partition| digest::partition(&partition.scheme, &partition.adapter))
                    .collect();
                page.each(|entry| {
                    let run = entry.run;
                    let names = holders.get(run.holder as usize).zip(partitions.get(run.partition as usize));
                    let fields = EntryFields {
                        hash: entry.hash,
                        last_seen_us: run.last_seen_us,
                        tokens: entry.tokens,
                        tier: run.tier,
                        accesses: run.accesses,
                    };
                    if let Some((member, partition)) = names.filter(|_| entry.holder.retired.is_none()) {
                        self.add(digest::entry(member, partition, &fields));
                    }
                    Ok(())
                })
                .map_err(LoadError::Record)?;
            }
        }
        Ok(())
    }

    /// The digest of all records.
    pub fn finish(self) -> u128 {
        self.digest
    }

    fn add(&mut self, digest: u128) {
        self.digest = self.digest.wrapping_add(digest);
    }
}

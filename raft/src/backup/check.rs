//! Reading a backup where no node is: what is in it, and whether its records make the digest and the sizes that it says.

use super::BackupFault;
use crate::generation::decode_record;
use crate::record;
use prefixd_index::{RecordDigest, SnapshotRecord};
use prefixd_storage::{BackupEnd, BackupHeader, BackupReader};
use std::collections::BTreeMap;
use std::path::Path;

/// Tenants that are told apart; the entries of the others are counted together under the name "".
const MAX_TENANTS: usize = 10_000;

/// What a backup holds, all of it read and compared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contents {
    /// What the file says of itself.
    pub header: BackupHeader,
    /// Its sizes.
    pub end: BackupEnd,
    /// (name, node id, is a voter) of each member of the cluster that it was taken of.
    pub members: Vec<(String, u64, bool)>,
    /// Tenants with a policy.
    pub policies: u64,
    /// Tenants with a quota.
    pub quotas: u64,
    /// What it holds of each tenant.
    pub tenants: BTreeMap<String, TenantContents>,
}

/// What a backup holds of one tenant.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct TenantContents {
    /// Visible entries.
    pub entries: u64,
    /// Stats rows.
    pub stats_rows: u64,
}

/// Reads all of a backup, chunk by chunk: checksums, records, counts and digest. Blocking.
///
/// # Errors
/// Whatever is not as it was written, by the name of the file.
pub fn verify(path: &Path) -> Result<Contents, BackupFault> {
    let mut reader = BackupReader::open(path)?;
    let header = reader.header().clone();
    let mut tally = Tally::default();
    while let Some(bytes) = reader.next_record()? {
        let number = tally.records;
        let record = decode_record(bytes).map_err(|e| BackupFault::content(path, format!("record {number}: {e}")))?;
        tally.push(&record).map_err(|what| BackupFault::content(path, format!("record {number}: {what}")))?;
    }
    tally.compare(&header).map_err(|what| BackupFault::content(path, what))?;
    let (_, membership) =
        record::decode_members(&header.membership).map_err(|e| BackupFault::content(path, format!("members: {e}")))?;
    let members = crate::types::wire_members(&membership);
    Ok(Contents {
        members: members.into_iter().map(|member| (member.name, member.node_id, member.voter)).collect(),
        // The reader has handed out its last record, so it knows the end.
        end: reader.end().ok_or_else(|| BackupFault::content(path, "no end"))?,
        header,
        policies: tally.policies,
        quotas: tally.quotas,
        tenants: tally.tenants,
    })
}

/// Counts records.
#[derive(Default)]
struct Tally {
    records: u64,
    digest: RecordDigest,
    entries: u64,
    dead_entries: u64,
    stats_rows: u64,
    sessions: u64,
    policies: u64,
    quotas: u64,
    tenants: BTreeMap<String, TenantContents>,
}

impl Tally {
    /// Takes the next record in, or says what is wrong with it.
    fn push(&mut self, record: &SnapshotRecord) -> Result<(), String> {
        self.digest.push(record).map_err(|error| error.to_string())?;
        self.records += 1;
        match record {
            SnapshotRecord::Header(_) | SnapshotRecord::PolicySource(_) => {}
            SnapshotRecord::Policies(rows) => self.policies += rows.len() as u64,
            SnapshotRecord::Quotas(rows) => self.quotas += rows.len() as u64,
            SnapshotRecord::Sessions(rows) => self.sessions += rows.len() as u64,
            SnapshotRecord::Stats(rows) => {
                self.stats_rows += rows.len() as u64;
                rows.iter().for_each(|row| self.tenant(&row.tenant).stats_rows += 1);
            }
            SnapshotRecord::Entries(page) => {
                for run in &page.runs {
                    // A run without its holder was refused by the digest.
                    let Some(holder) = page.holders.get(run.holder as usize) else { continue };
                    let blocks = u64::from(run.blocks);
                    if holder.retired.is_some() {
                        self.dead_entries += blocks;
                    } else {
                        self.entries += blocks;
                        self.tenant(&holder.tenant).entries += blocks;
                    }
                }
            }
        }
        Ok(())
    }

    fn tenant(&mut self, name: &str) -> &mut TenantContents {
        let is_known = self.tenants.contains_key(name);
        let name = if is_known || self.tenants.len() < MAX_TENANTS { name } else { "" };
        self.tenants.entry(name.to_owned()).or_default()
    }

    /// Compares what was counted with what the header says.
    fn compare(&mut self, header: &BackupHeader) -> Result<(), String> {
        let digest = std::mem::take(&mut self.digest).finish();
        if digest != header.digest {
            return Err(format!("its records make digest {digest:032x}, its header says {:032x}", header.digest));
        }
        let found = [self.entries, self.dead_entries, self.stats_rows, self.sessions];
        let told = [header.entries, header.dead_entries, header.stats_rows, header.sessions];
        if found == told {
            return Ok(());
        }
        let shown = |[entries, dead, stats, sessions]: [u64; 4]| {
            format!("{entries} entries, {dead} dead ones, {stats} stats rows, {sessions} sessions")
        };
        Err(format!("it holds {}; its header says {}", shown(found), shown(told)))
    }
}

//! A fresh cluster of one node from a backup: an identity under a new cluster id, a log that is purged up to the
//! backup's position, and a snapshot at it. Nothing is believed before the state was built once and has the digest of
//! the file; nothing is served before all of it is on disk.

use super::BackupFault;
use crate::generation::{self, decode_record};
use crate::record;
use crate::types::{MemberNode, Membership};
use prefixd_index::Loader;
use prefixd_storage::{
    BackupHeader, BackupReader, DataDir, Identity, LogOptions, LogStore, RedbLog, SnapshotManifest, SnapshotStore, Vote,
};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// What is drawn at random for a new cluster.
#[derive(Copy, Clone, Debug)]
pub struct Ids {
    /// The id of the cluster; never the one of the backup.
    pub cluster_id: u128,
    /// The id of the disk; never 0.
    pub node_id: u64,
    /// Ties the files of the log to each other.
    pub store_uuid: u128,
    /// Seeds the tables of the state that is built to be compared.
    pub hash_seed: u64,
}

impl Ids {
    /// Fresh ones.
    pub fn random() -> Self {
        Self {
            cluster_id: rand::random_range(1..=u128::MAX),
            node_id: rand::random_range(1..=u64::MAX),
            store_uuid: rand::random(),
            hash_seed: rand::random(),
        }
    }
}

/// What was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Restored {
    /// What the backup was of.
    pub header: BackupHeader,
    /// The new cluster.
    pub cluster_id: u128,
    /// Its one member.
    pub node_id: u64,
    /// Its name.
    pub node_name: String,
    /// The digest of the state as it was built from the records.
    pub digest: u128,
}

/// Makes `data_dir`, empty or absent, the disk of a cluster of one that holds what the backup holds. Blocking; takes the
/// memory of the state.
///
/// # Errors
/// A backup that is no good, by name; a directory that is not empty or can't be written. Then the directory is left
/// empty; when the process dies halfway, it is refused by `serve` and taken by the next restore.
pub fn restore(backup: &Path, data_dir: &Path, node_name: &str, ids: Ids) -> Result<Restored, BackupFault> {
    // A file that is no backup at all is named before anything is made.
    let reader = BackupReader::open(backup)?;
    let header = reader.header();
    BackupFault::check_level(backup, header.feature_level, &header.release)?;
    let mut dir = DataDir::open_for_restore(data_dir).map_err(BackupFault::disk)?;
    match fill(reader, backup, &mut dir, node_name, ids) {
        Ok(restored) => {
            dir.restored().map_err(BackupFault::disk)?;
            Ok(restored)
        }
        Err(fault) => {
            if let Err(error) = dir.give_up_restore() {
                tracing::warn!(%error, "what the restore made could not be removed; the next restore will");
            }
            Err(fault)
        }
    }
}

type FileReader = BackupReader<std::io::BufReader<std::fs::File>>;

fn fill(
    reader: FileReader,
    backup: &Path,
    dir: &mut DataDir,
    node_name: &str,
    ids: Ids,
) -> Result<Restored, BackupFault> {
    let header = reader.header().clone();
    make_log(dir, &header, node_name, ids)?;
    let digest = make_snapshot(reader, backup, dir, node_name, ids)?;
    let (cluster_id, node_id, node_name) = (ids.cluster_id, ids.node_id, node_name.to_owned());
    Ok(Restored { header, cluster_id, node_id, node_name, digest })
}

/// The identity, and a log in which everything up to the backup's position is purged. Its vote is of the position's
/// term, so that the next term is a later one.
fn make_log(dir: &mut DataDir, header: &BackupHeader, node_name: &str, ids: Ids) -> Result<(), BackupFault> {
    let identity = Identity {
        cluster_id: Some(ids.cluster_id),
        node_id: ids.node_id,
        incarnation: 0,
        store_uuid: ids.store_uuid,
        node_name: node_name.to_owned(),
    };
    dir.create(&identity, &LogOptions::new(ids.store_uuid)).map_err(BackupFault::disk)?;
    let log = RedbLog::open(dir.path(), LogOptions::new(ids.store_uuid)).map_err(BackupFault::disk)?;
    let vote = Vote { term: header.last.term, voted_for: Some(ids.node_id), committed: false };
    log.save_vote(vote).map_err(BackupFault::disk)?;
    log.save_committed(Some(header.last));
    log.purge(header.last).map_err(BackupFault::disk)?;
    log.close().map_err(BackupFault::disk)
}

/// The one generation, and the digest of the state that its records make.
fn make_snapshot(
    mut reader: FileReader,
    backup: &Path,
    dir: &DataDir,
    node_name: &str,
    ids: Ids,
) -> Result<u128, BackupFault> {
    let header = reader.header().clone();
    let (store, _) = SnapshotStore::open(&dir.snapshots_path()).map_err(BackupFault::disk)?;
    let mut writer = store.begin().map_err(BackupFault::disk)?;
    let mut loader = Loader::new(ids.hash_seed);
    while let Some(bytes) = reader.next_record()? {
        let number = writer.records();
        let faulty = |what: String| BackupFault::content(backup, format!("record {number}: {what}"));
        let record = decode_record(bytes).map_err(|error| faulty(error.to_string()))?;
        loader.push(record).map_err(|error| faulty(error.to_string()))?;
        writer.put(bytes).map_err(BackupFault::disk)?;
    }
    let state = loader.finish(header.last.index, header.digest).map_err(|e| BackupFault::content(backup, e))?;
    let digest = state.digest();
    drop(state);
    let node = MemberNode { name: node_name.to_owned(), addr: String::new() };
    let voters = vec![BTreeSet::from([ids.node_id])];
    let membership = Membership::new(voters, BTreeMap::from([(ids.node_id, node)])).map_err(BackupFault::disk)?;
    let manifest = SnapshotManifest {
        cluster_id: ids.cluster_id,
        last: Some(header.last),
        membership: record::encode_members(Some(header.last), &membership).map_err(BackupFault::disk)?,
        header: Vec::new(),
        records: writer.records(),
        digest: header.digest,
        taken_at_us: header.time_us,
    };
    generation::publish(writer, manifest).map_err(BackupFault::disk)?;
    Ok(digest)
}

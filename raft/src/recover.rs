//! Offline: makes a cluster of one, with a new id, of a disk whose cluster has lost its quorum for good.
//!
//! It keeps all that the disk's log holds, committed or not: the lost disks may have acknowledged any of it. It must hold
//! the lock of the directory, and be safe to kill anywhere: the identity changes last but one, so that a disk is the old
//! cluster's until the new one's snapshot is whole, and the next run, or the next start, does what is left. Whether it
//! ought to be done is [`crate::membership::recovery`]'s to say.

use crate::calls::Calls;
use crate::core::{Cut, Start};
use crate::dial::Dialer;
use crate::face::Peer;
use crate::generation;
use crate::generation::{set_aside, tell_set_aside};
use crate::membership::{Member, Outlook, Sign, outlook};
use crate::record::{self, FEATURE_MAX};
use crate::start::{StartError, disk, load_snapshot};
use crate::tls::ClientTls;
use crate::types::{MemberNode, Membership, Payload, wire_members};
use prefixd_storage::{DataDir, Identity, LogOptions, LogPos, LogStore, Promise, RedbLog, SnapshotStore, Vote};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;

/// Bytes of log records that are read at a time.
const READ_BYTES: usize = 8 << 20;
/// Entries of the index that go into the snapshot at a time.
const SLICE_ENTRIES: usize = 65_536;
/// How long a member may take to say who it is.
const ANSWER_WAIT: Duration = Duration::from_secs(2);

/// What a disk holds.
#[derive(Clone, Debug)]
pub struct Holdings {
    /// The name of the node.
    pub node_name: String,
    /// The disk.
    pub node_id: u64,
    /// The cluster that it belongs to.
    pub cluster_id: Option<u128>,
    /// The members that it knows.
    pub members: Vec<Member>,
    /// Term and index of the last log entry.
    pub last: Option<(u64, u64)>,
    /// Index that it knows to be committed; an entry beyond it may have been acknowledged all the same.
    pub committed: u64,
    /// Entries of the index, with the whole log applied.
    pub entries: u64,
    /// The digest of that.
    pub digest: u128,
}

/// A disk that is taken for this process, with its whole log applied in memory. Nothing was changed on it but the count
/// of its openings.
pub struct Survey {
    identity: Identity,
    dir: DataDir,
    log: RedbLog,
    snapshots: SnapshotStore,
    state: Start,
    members: Vec<Member>,
}

/// What came of a recovery.
#[derive(Clone, Debug)]
pub struct Recovered {
    /// The new cluster.
    pub cluster_id: u128,
    /// Entries of the index.
    pub entries: u64,
    /// The digest of the state.
    pub digest: u128,
    /// The log position of the recovery.
    pub index: u64,
}

impl Survey {
    /// Takes the disk and reads all of it. Blocking.
    ///
    /// # Errors
    /// Another process has the directory, no node lives in it, or the log or the snapshots are no good.
    pub fn open(data_dir: &Path) -> Result<Survey, StartError> {
        let shown = data_dir.display();
        if !data_dir.join("identity").is_file() {
            return Err(disk(format!("{shown}: no node's disk: it holds no identity; see to --data-dir")));
        }
        let dir = DataDir::open(data_dir).map_err(|error| match error {
            prefixd_storage::DataDirError::InUse { .. } => {
                disk(format!("{error}: stop the node that runs on it first"))
            }
            error => disk(error),
        })?;
        let (identity, log) = dir.load(LogOptions::new).map_err(disk)?;
        let (snapshots, bad) = SnapshotStore::open(&dir.snapshots_path()).map_err(disk)?;
        tell_set_aside(&bad);
        // What peers may still hold is not for one that declares them lost.
        let mut state = load_snapshot((data_dir, false), &identity, Some(&log), &snapshots, rand::random())?.start;
        replay(&log, &mut state)?;
        let members = wire_members(&state.membership).into_iter().map(crate::calls::member_from_wire).collect();
        Ok(Survey { identity, dir, log, snapshots, state, members })
    }

    /// What is on the disk.
    pub fn holdings(&self) -> Holdings {
        let log = self.log.state();
        Holdings {
            node_name: self.identity.node_name.clone(),
            node_id: self.identity.node_id,
            cluster_id: self.identity.cluster_id,
            members: self.members.clone(),
            last: self.last().map(|pos| (pos.term, pos.index)),
            committed: log.committed.map_or(0, |pos| pos.index),
            entries: self.state.index.totals().entries,
            digest: self.state.index.digest(),
        }
    }

    /// Asks the other voters who they are: at their address in `peers`, else at the one that they announced; with `tls`
    /// as a node would, else in clear text.
    pub async fn ask(&self, peers: &[Peer], tls: Option<ClientTls>) -> BTreeMap<u64, Sign> {
        let dialer = Arc::new(Dialer::new(peers, tls));
        let calls =
            Calls { dialer: dialer.clone(), node_name: self.identity.node_name.clone(), feature_max: FEATURE_MAX };
        let mut signs = BTreeMap::new();
        for member in self.members.iter().filter(|m| m.voter && m.node_id != self.identity.node_id) {
            let addr = dialer.addr(&member.name, &member.addr);
            let sign = match tokio::time::timeout(ANSWER_WAIT, calls.raw_status(&addr)).await {
                Ok(Ok(status)) => {
                    let theirs = crate::calls::cluster_id(&status.cluster_id).ok();
                    match theirs {
                        Some(other) if Some(other) != self.identity.cluster_id => Sign::Elsewhere(other),
                        Some(_) if status.node_id == member.node_id => Sign::Alive,
                        _ => Sign::Gone,
                    }
                }
                _ if takes_connections(&addr).await => Sign::Unheard,
                _ => Sign::Silent,
            };
            signs.insert(member.node_id, sign);
        }
        signs
    }

    /// Whether the disk ought to be recovered.
    pub fn outlook(&self, signs: &BTreeMap<u64, Sign>) -> Outlook {
        outlook(self.identity.cluster_id, self.identity.node_id, &self.members, signs)
    }

    /// Makes the disk the only member of `cluster_id`, with all that it holds. Durable on return. Blocking.
    ///
    /// # Errors
    /// The disk could not be written, or what was written does not read back as what it was.
    pub fn recover(mut self, cluster_id: u128) -> Result<Recovered, StartError> {
        let at = self.write_snapshot(cluster_id)?;
        self.change_identity(cluster_id)?;
        self.shed(at)?;
        let (entries, digest) = (self.state.index.totals().entries, self.state.index.digest());
        Ok(Recovered { cluster_id, entries, digest, index: at.index })
    }

    fn last(&self) -> Option<LogPos> {
        self.log.state().last.max(self.state.applied)
    }

    /// The state as the new cluster's first snapshot, one position beyond all that the old cluster's log has here.
    fn write_snapshot(&mut self, cluster_id: u128) -> Result<LogPos, StartError> {
        let last = self.last().ok_or_else(|| disk("the log of this disk is empty"))?;
        let at = LogPos { term: last.term, index: last.index + 1 };
        let (id, name) = (self.identity.node_id, self.identity.node_name.clone());
        let addr = self.members.iter().find(|member| member.node_id == id).map(|member| member.addr.clone());
        let node = MemberNode { name, addr: addr.unwrap_or_default() };
        let membership = Membership::new(vec![BTreeSet::from([id])], BTreeMap::from([(id, node)])).map_err(disk)?;
        let cut = Cut::at_rest(&mut self.state.index, at, membership);
        let mut writer = self.snapshots.begin().map_err(disk)?;
        loop {
            let slice = self.state.index.snapshot_slice(SLICE_ENTRIES).map_err(disk)?;
            for record in &slice.records {
                writer.put(&generation::encode_record(record).map_err(disk)?).map_err(disk)?;
            }
            if slice.done {
                break;
            }
        }
        self.state.index.abort_snapshot();
        let manifest = generation::manifest(cluster_id, &cut, writer.records()).map_err(disk)?;
        generation::publish(writer, manifest).map_err(disk)?;
        Ok(at)
    }

    /// From here on the disk is the new cluster's.
    fn change_identity(&self, cluster_id: u128) -> Result<(), StartError> {
        Promise::clear(&self.dir.promise_path()).map_err(disk)?;
        let identity = Identity { cluster_id: Some(cluster_id), ..self.identity.clone() };
        identity.write(&self.dir.identity_path()).map_err(disk)
    }

    /// Lets go of the old cluster's log, vote and snapshots. What is cut short here the next start does, or ignores.
    fn shed(&self, at: LogPos) -> Result<(), StartError> {
        let term = self.log.state().vote.map_or(0, |vote| vote.term).max(at.term) + 1;
        let vote = Vote { term, voted_for: Some(self.identity.node_id), committed: false };
        self.log.save_vote(vote).map_err(disk)?;
        self.log.purge(at).map_err(disk)?;
        self.log.save_committed(Some(at));
        self.log.close().map_err(disk)?;
        for old in self.snapshots.generations().into_iter().skip(1) {
            set_aside(&self.snapshots, &old, "it belongs to the cluster before the recovery").map_err(disk)?;
        }
        Ok(())
    }
}

/// Applies all that the log holds beyond the snapshot.
fn replay(log: &RedbLog, state: &mut Start) -> Result<(), StartError> {
    let Some(last) = log.state().last else { return Ok(()) };
    let mut next = state.applied.map_or(0, |pos| pos.index + 1);
    while next <= last.index {
        let records = log.read(next..last.index + 1, READ_BYTES).map_err(disk)?;
        if records.is_empty() {
            return Err(disk(format!("the log ends before its last index {}", last.index)));
        }
        for stored in records {
            let pos = stored.pos;
            match record::from_record(stored).map_err(disk)?.payload {
                Payload::Blank => {}
                Payload::Normal(proposal) => {
                    let stamped = record::decode_command(&proposal.0).map_err(|error| {
                        disk(format!(
                            "log entry {} can't be read by this release ({}): {error}; recover with a release that can",
                            pos.index,
                            env!("CARGO_PKG_VERSION")
                        ))
                    })?;
                    state.index.apply(pos.index, &stamped);
                }
                Payload::Membership(membership) => {
                    state.membership = membership;
                    state.membership_at = Some(pos);
                }
            }
            state.applied = Some(pos);
            next = pos.index + 1;
        }
    }
    Ok(())
}

/// True when somebody listens there, whatever it speaks.
async fn takes_connections(addr: &str) -> bool {
    matches!(tokio::time::timeout(ANSWER_WAIT, TcpStream::connect(addr)).await, Ok(Ok(_)))
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test that cannot go on says so by panicking")]
mod tests;

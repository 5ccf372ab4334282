//! openraft's state machine over the index thread and the snapshot store.

use crate::core::{Committed, Core, Cut, CutError, Start, What};
use crate::generation::{self, SnapshotFile, blocking};
use crate::types::{Entry, Payload, Reply, StoredMembership, TypeConfig, log_id, log_pos};
use futures::{Stream, TryStreamExt};
use openraft::storage::{ApplyResponder, EntryResponder, RaftStateMachine};
use openraft::type_config::alias::{SnapshotMetaOf, SnapshotOf};
use openraft::{OptionalSend, RaftSnapshotBuilder, RaftTypeConfig};
use prefixd_storage::SnapshotStore;
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// Entries that go to the index thread in one job.
const APPLY_ENTRIES: usize = 64;
/// Entries of the index that one slice of a snapshot walks.
pub(crate) const SLICE_ENTRIES: usize = 4_096;
/// Pause before a snapshot that was overtaken by changes is begun anew.
pub(crate) const OVERTAKEN_PAUSE: Duration = Duration::from_millis(200);
/// Pause before a snapshot that could not be written is tried again.
const RETRY_PAUSE: Duration = Duration::from_secs(5);

/// The state machine; clones share everything.
#[derive(Clone)]
pub(crate) struct Machine {
    pub(crate) core: Core,
    pub(crate) snapshots: Arc<SnapshotStore>,
    pub(crate) cluster_id: u128,
    pub(crate) preimage_entries: usize,
    pub(crate) hash_seed: u64,
}

/// Applies what Raft has committed, a job of some entries at a time, and answers who waits for it.
pub(crate) async fn apply<C, Strm>(core: &Core, mut entries: Strm) -> io::Result<()>
where
    C: RaftTypeConfig<R = Reply, Entry = Entry>,
    Strm: Stream<Item = Result<EntryResponder<C>, io::Error>> + Unpin + OptionalSend,
{
    let mut batch = Vec::new();
    let mut waiting = Vec::new();
    while let Some((entry, responder)) = entries.try_next().await? {
        let what = match entry.payload {
            Payload::Blank => What::Blank,
            Payload::Normal(proposal) => What::Command(proposal),
            Payload::Membership(membership) => What::Members(membership),
        };
        batch.push(Committed { pos: log_pos(&entry.log_id), what });
        waiting.push(responder);
        if batch.len() == APPLY_ENTRIES {
            flush(core, &mut batch, &mut waiting).await?;
        }
    }
    if !batch.is_empty() {
        flush(core, &mut batch, &mut waiting).await?;
    }
    Ok(())
}

async fn flush<C: RaftTypeConfig<R = Reply>>(
    core: &Core,
    entries: &mut Vec<Committed>,
    waiting: &mut Vec<Option<ApplyResponder<C>>>,
) -> io::Result<()> {
    let replies = core.apply(std::mem::take(entries)).await?;
    for (responder, reply) in waiting.drain(..).zip(replies) {
        if let Some(responder) = responder {
            responder.send(reply);
        }
    }
    Ok(())
}

impl RaftStateMachine<TypeConfig> for Machine {
    type SnapshotData = SnapshotFile;
    type SnapshotBuilder = Builder;

    async fn applied_state(&mut self) -> Result<(Option<crate::types::LogId>, StoredMembership), io::Error> {
        let summary = self.core.published.summary();
        let membership = StoredMembership::new(summary.membership_at.map(log_id), summary.membership);
        Ok((summary.applied.map(log_id), membership))
    }

    async fn apply<Strm>(&mut self, entries: Strm) -> Result<(), io::Error>
    where
        Strm: Stream<Item = Result<EntryResponder<TypeConfig>, io::Error>> + Unpin + OptionalSend,
    {
        apply(&self.core, entries).await
    }

    async fn get_snapshot_builder(&mut self) -> Builder {
        // Cut here, in line with apply, so that a snapshot never runs ahead of what openraft knows to be applied.
        let cut = self.core.begin_cut(self.preimage_entries).await;
        Builder { machine: self.clone(), cut: Some(cut) }
    }

    async fn install_snapshot(
        &mut self,
        meta: &SnapshotMetaOf<TypeConfig>,
        snapshot: SnapshotFile,
    ) -> Result<(), io::Error> {
        let (seed, store) = (self.hash_seed, self.snapshots.clone());
        let index = blocking(move || {
            let index = snapshot.load(seed)?;
            // It must be in this node's own store before the log before it may go.
            if !store.latest().is_some_and(|latest| Arc::ptr_eq(&latest, &snapshot.0)) {
                snapshot.copy_to(&store)?;
            }
            Ok(index)
        })
        .await?;
        self.core
            .install(Start {
                index,
                applied: meta.last_log_id.as_ref().map(log_pos),
                membership_at: meta.last_membership.log_id().as_ref().map(log_pos),
                membership: meta.last_membership.membership().clone(),
            })
            .await
    }

    async fn get_current_snapshot(&mut self) -> Result<Option<SnapshotOf<TypeConfig, SnapshotFile>>, io::Error> {
        let Some(generation) = self.snapshots.latest() else { return Ok(None) };
        let snapshot = SnapshotFile(generation);
        Ok(Some(openraft::Snapshot { meta: snapshot.meta()?, snapshot }))
    }
}

fn ended() -> io::Error {
    io::Error::other("this Raft has ended")
}

/// Writes one snapshot beside apply.
pub(crate) struct Builder {
    machine: Machine,
    cut: Option<io::Result<Cut>>,
}

impl Builder {
    /// Writes the records of one cut; `None` when too much changed under it.
    fn write(machine: &Machine, cut: &Cut) -> io::Result<Option<SnapshotFile>> {
        let mut writer = machine.snapshots.begin().map_err(io::Error::other)?;
        loop {
            if machine.core.life.is_cancelled() {
                return Err(ended());
            }
            let slice = match machine.core.slice(cut, SLICE_ENTRIES) {
                Ok(slice) => slice,
                Err(CutError::Overflow) => return Ok(None),
                Err(CutError::Ended) => return Err(io::Error::other("the snapshot in the making was ended")),
                Err(CutError::Gone) => return Err(io::Error::other("the index thread has ended")),
            };
            for record in &slice.records {
                writer.put(&generation::encode_record(record)?).map_err(io::Error::other)?;
            }
            if slice.done {
                tracing::info!(longest_stop_us = slice.longest_stop_us, "the index was walked for a snapshot");
                break;
            }
        }
        let manifest = generation::manifest(machine.cluster_id, cut, writer.records())?;
        generation::publish(writer, manifest).map(Some)
    }
}

impl Builder {
    /// Waits, unless Raft ends meanwhile.
    async fn pause(&self, pause: Duration) -> io::Result<()> {
        let life = &self.machine.core.life;
        life.run_until_cancelled(tokio::time::sleep(pause)).await.ok_or_else(ended)
    }
}

impl RaftSnapshotBuilder<TypeConfig> for Builder {
    type SnapshotData = SnapshotFile;

    async fn build_snapshot(&mut self) -> Result<SnapshotOf<TypeConfig, SnapshotFile>, io::Error> {
        let mut cut = self.cut.take();
        let mut preimage_entries = self.machine.preimage_entries;
        loop {
            let begun = match cut.take() {
                Some(begun) => begun?,
                None => self.machine.core.begin_cut(preimage_entries).await?,
            };
            let (machine, at) = (self.machine.clone(), begun.clone());
            let written = blocking(move || Self::write(&machine, &at)).await;
            self.machine.core.end_cut(&begun).await;
            if self.machine.core.life.is_cancelled() {
                return Err(ended());
            }
            match written {
                Ok(Some(snapshot)) => {
                    tracing::info!(index = begun.at.map(|pos| pos.index), bytes = snapshot.bytes(), "wrote a snapshot");
                    return Ok(openraft::Snapshot { meta: snapshot.meta()?, snapshot });
                }
                Ok(None) => {
                    preimage_entries = preimage_entries.saturating_mul(2);
                    tracing::warn!(preimage_entries, "too much changed while a snapshot was written; trying again");
                    self.pause(OVERTAKEN_PAUSE).await?;
                }
                // The log is intact, so this node goes on; it only can't purge until a snapshot succeeds.
                Err(error) => {
                    tracing::error!(%error, "a snapshot could not be written; trying again");
                    self.pause(RETRY_PAUSE).await?;
                }
            }
        }
    }
}

//! A snapshot from a peer, for a node whose own are all no good and whose log no longer begins at the beginning. It
//! happens before Raft starts: the node keeps its vote, and every log entry that the snapshot doesn't cover; it takes no
//! part in anything until the snapshot is verified, on its disk and in the index. And the other side: handing one out.

use crate::core::Start;
use crate::dial::Purpose;
use crate::generation::{self, SnapshotFile, blocking};
use crate::membership::pace::{Backoff, Pace};
use crate::network::{self, PeerIdentity};
use crate::node::{Inner, Raft};
use crate::types::log_pos;
use futures::StreamExt;
use futures::stream::BoxStream;
use prefixd_proto::node as wire;
use prefixd_storage::{LogPos, LogStore};
use std::io;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tonic::Status;

/// What a served snapshot is to gRPC.
pub(crate) type Chunks = BoxStream<'static, Result<wire::SnapshotChunk, Status>>;

/// Between rounds of asking all peers.
const PACE: Pace = Pace {
    call_timeout: Duration::from_secs(2),
    first_pause: Duration::from_millis(200),
    longest_pause: Duration::from_secs(5),
};
/// Longest silence of a peer that sends a snapshot.
const CHUNK_TIMEOUT: Duration = Duration::from_secs(20);

impl Inner {
    /// Asks the peers for a snapshot that reaches the purged part of the log, again and again until there is one, and
    /// installs it.
    pub(crate) async fn rebuild(&self, me: &PeerIdentity, purged: LogPos) -> Result<(), String> {
        let mut backoff = Backoff::new(&PACE);
        loop {
            let mut said = Vec::new();
            for peer in self.config.peers.iter().filter(|peer| peer.name != self.config.node_name) {
                match self.fetch(me, &peer.addr, purged).await {
                    Ok(file) => {
                        tracing::info!(peer = peer.name, bytes = file.bytes(), "fetched a snapshot from a peer");
                        self.mended.fetched.fetch_add(1, Ordering::Relaxed);
                        return self.build_on(file, purged).await.map_err(|e| e.to_string());
                    }
                    Err(why) => said.push(format!("{}: {why}", peer.name)),
                }
            }
            let reason = format!(
                "no snapshot on this disk is whole and its log begins behind index {}; asking the peers for one: {}",
                purged.index,
                said.join("; ")
            );
            if *self.waiting.borrow() != reason {
                tracing::warn!("{reason}");
            }
            self.waiting.send_replace(reason);
            let pause = backoff.pause(&mut rand::rng());
            tokio::time::sleep(pause).await;
        }
    }

    /// Takes one in from one peer: on this disk when it returns, with the digest that its manifest names.
    async fn fetch(&self, me: &PeerIdentity, addr: &str, purged: LogPos) -> Result<SnapshotFile, String> {
        let asked = tokio::time::timeout(PACE.call_timeout, self.calls.raw_status(addr)).await;
        let status = asked.map_err(|_| "no answer in time".to_owned())??;
        if status.cluster_id != me.cluster_id.to_be_bytes()[..] {
            return Err("it is no member of this cluster".into());
        }
        let _one_at_a_time = self.receiving.lock().await;
        let request = wire::FetchSnapshotRequest { header: Some(me.header(status.node_id)), at_least: purged.index };
        let mut client = network::client(self.dialer.channel(addr, Purpose::Bulk)?);
        let said = |status: Status| crate::calls::told(&status);
        let opened = tokio::time::timeout(CHUNK_TIMEOUT, client.fetch_snapshot(request)).await;
        let mut chunks = opened.map_err(|_| "no answer in time".to_owned())?.map_err(said)?.into_inner();
        let head = tokio::time::timeout(CHUNK_TIMEOUT, chunks.message()).await;
        let head = head.map_err(|_| "nothing came in time".to_owned())?.map_err(said)?;
        let head = head.and_then(|chunk| chunk.head).ok_or("the snapshot has no head")?;
        let chunks = tokio_stream::StreamExt::timeout(chunks, CHUNK_TIMEOUT)
            .map(|chunk| chunk.unwrap_or_else(|_| Err(Status::deadline_exceeded("it stopped sending"))));
        let received =
            generation::receive(self.snapshots.clone(), me.cluster_id, &head.manifest, Box::pin(chunks)).await;
        let file = received.map_err(|e| e.to_string())?;
        match file.0.manifest().last {
            Some(last) if last.index >= purged.index => Ok(file),
            last => Err(format!("its snapshot ends at {last:?}, too early")),
        }
    }

    /// Makes the index of a snapshot that lies on this disk, and the log agree with it.
    async fn build_on(&self, file: SnapshotFile, purged: LogPos) -> io::Result<()> {
        let (seed, store) = (self.hash_seed, self.log.store());
        let meta = file.meta()?;
        let index = blocking(move || {
            let index = file.load(seed)?;
            let last = file.0.manifest().last.unwrap_or(purged);
            settle(&*store, last).map_err(io::Error::other)?;
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

    /// Hands the newest snapshot out, if it reaches `at_least`; else has one taken.
    pub(crate) async fn serve_snapshot(&self, raft: &Raft, caller: u64, at_least: u64) -> Result<Chunks, Status> {
        let (me, newest) = (self.identity.get(), self.snapshots.latest());
        let Some((me, generation)) =
            me.zip(newest.filter(|newest| newest.manifest().last.is_some_and(|last| last.index >= at_least)))
        else {
            if let Err(error) = raft.trigger().snapshot().await {
                tracing::warn!(%error, "could not ask for a snapshot");
            }
            let at = self.snapshot_index();
            return Err(Status::unavailable(format!(
                "its newest snapshot is at {at}, and {at_least} is asked for; it takes one now"
            )));
        };
        let file = SnapshotFile(generation);
        let manifest = file.wire_manifest().map_err(|e| Status::internal(e.to_string()))?.into();
        tracing::info!(caller = format!("{caller:016x}"), bytes = file.bytes(), "a peer fetches the newest snapshot");
        let head = wire::SnapshotHead { header: Some(me.header(caller)), vote: None, manifest };
        Ok(file.chunks(head, Some(self.snapshots.clone())).map(Ok).boxed())
    }
}

/// Brings a log in line with a snapshot of what the cluster committed up to `last`. A record there of another term, and
/// all behind it, were never committed and go; all else that the snapshot doesn't cover stays. Blocking.
fn settle(log: &dyn LogStore, last: LogPos) -> Result<(), String> {
    let state = log.state();
    let failed = |error: prefixd_storage::LogError| error.to_string();
    if state.purged.is_some_and(|purged| purged.index == last.index && purged.term != last.term) {
        return Err(format!("the snapshot ends at {last:?}, but this log was purged up to {:?}", state.purged));
    }
    let there = log.read(last.index..last.index.saturating_add(1), 0).map_err(failed)?;
    if there.first().is_some_and(|record| record.pos != last) {
        tracing::warn!(?last, "this log ends in entries that were never committed: they go");
        log.truncate_after(None).map_err(failed)?;
    }
    if log.state().last.is_none_or(|end| end.index < last.index) {
        log.purge(last).map_err(failed)?;
    }
    Ok(())
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test that cannot go on says so by panicking")]
mod tests {
    use super::*;
    use prefixd_storage::{LogOptions, LogRecord, RedbLog, Vote};

    fn pos(term: u64, index: u64) -> LogPos {
        LogPos { term, index }
    }

    /// A log purged up to 10 that goes on to 20 in term 1, with a vote.
    fn log(dir: &std::path::Path) -> RedbLog {
        let options = LogOptions::new(7);
        RedbLog::create(dir, &options).unwrap();
        let log = RedbLog::open(dir, options).unwrap();
        let (send, receive) = std::sync::mpsc::channel();
        let records = (1..=20).map(|index| LogRecord { pos: pos(1, index), body: vec![1; 9].into() });
        log.append(records.collect(), Box::new(move |result| send.send(result).unwrap())).unwrap();
        receive.recv().unwrap().unwrap();
        log.save_vote(Vote { term: 4, voted_for: Some(9), committed: false }).unwrap();
        log.purge(pos(1, 10)).unwrap();
        log
    }

    #[test]
    fn only_what_was_never_committed_leaves_the_log() {
        // (the snapshot's end, purged after, last after)
        let cases = [
            (pos(1, 10), pos(1, 10), pos(1, 20)),
            (pos(1, 15), pos(1, 10), pos(1, 20)),
            (pos(1, 20), pos(1, 10), pos(1, 20)),
            // beyond the end: the log is covered
            (pos(3, 40), pos(3, 40), pos(3, 40)),
            // another branch was committed
            (pos(3, 15), pos(3, 15), pos(3, 15)),
        ];
        for (end, purged, last) in cases {
            let dir = tempfile::tempdir().unwrap();
            let log = log(dir.path());
            settle(&log, end).unwrap();
            let state = log.state();
            assert_eq!((state.purged, state.last), (Some(purged), Some(last)), "{end:?}");
            assert_eq!(state.vote.map(|vote| vote.term), Some(4), "{end:?}");
        }
        let dir = tempfile::tempdir().unwrap();
        assert!(settle(&log(dir.path()), pos(2, 10)).is_err(), "two histories of what was committed");
    }
}

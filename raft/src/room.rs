//! How much room the disk has, and what this node still takes on because of it. Below the reserve it proposes nothing
//! and takes no log entries in; lookups never ask here. Owns the decision, its hysteresis and who was told; it must
//! never write to the disk that it judges. What is done about it: [`crate::step_aside`] gives leadership away,
//! [`crate::reopen`] is for the disk that was full all the same.

use crate::face::{DiskCondition, SubmitError};
use crate::node::Inner;
use crate::proposer::{Outcome, Refusal};
use openraft::async_runtime::watch::WatchReceiver;
use prefixd_index::command::Command;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;
use tonic::metadata::MetadataValue;
use tonic::{Code, Status};

/// What counts as one segment of the log, which has none: the largest record that it takes. One is being written when
/// the room is found short, and one may have been let in before that was noticed.
const LOG_SEGMENT_BYTES: u64 = 64 << 20;
/// The mark of a refusal for want of room.
const NO_ROOM: &str = "prefixd-no-room";
/// A peer that refused entries this long ago and not since is no longer counted as short of room.
const REFUSAL_LASTS: Duration = Duration::from_secs(3);

/// The reserve when nobody names one: a snapshot as large as the newest one or, while the index outgrew it, as the
/// index by its formula; and two segments of the log.
fn default_reserve(snapshot_bytes: u64, index_bytes: u64) -> u64 {
    snapshot_bytes.max(index_bytes).saturating_add(2 * LOG_SEGMENT_BYTES)
}

/// Free bytes at which a disk that was short has room again: an eighth more, so that it doesn't flap.
fn enough(reserve_bytes: u64) -> u64 {
    reserve_bytes.saturating_add(reserve_bytes / 8)
}

/// Whether the room is short now. Pure.
fn is_short(was_short: bool, free_bytes: u64, reserve_bytes: u64) -> bool {
    match was_short {
        true => free_bytes < enough(reserve_bytes),
        false => free_bytes < reserve_bytes,
    }
}

/// The room of one node's disk as it was last seen, and the disk-full failures of its log.
#[derive(Debug)]
pub(crate) struct Room {
    free_bytes: AtomicU64,
    reserve_bytes: AtomicU64,
    short: AtomicBool,
    since: Mutex<Option<Instant>>,
    /// No other member that could lead has room either, as far as this leader could find out.
    nobody_else: AtomicBool,
    /// How often the log ended on a full disk, and what it said last.
    full: watch::Sender<(u64, String)>,
    /// How many of those are dealt with.
    reopened: AtomicU64,
}

impl Room {
    pub(crate) fn new() -> Self {
        Self {
            free_bytes: AtomicU64::new(u64::MAX),
            reserve_bytes: AtomicU64::new(0),
            short: AtomicBool::new(false),
            since: Mutex::new(None),
            nobody_else: AtomicBool::new(false),
            full: watch::Sender::new((0, String::new())),
            reopened: AtomicU64::new(0),
        }
    }

    /// Takes in what was seen. True when that changed the verdict.
    fn see(&self, free_bytes: u64, reserve_bytes: u64) -> bool {
        self.free_bytes.store(free_bytes, Relaxed);
        self.reserve_bytes.store(reserve_bytes, Relaxed);
        let was = self.short.load(Relaxed);
        let now = is_short(was, free_bytes, reserve_bytes);
        if was == now {
            return false;
        }
        *self.since.lock().unwrap_or_else(PoisonError::into_inner) = now.then(Instant::now);
        self.nobody_else.store(false, Relaxed);
        self.short.store(now, Relaxed);
        true
    }

    /// Below the reserve.
    pub(crate) fn is_short(&self) -> bool {
        self.short.load(Relaxed)
    }

    fn short_for(&self) -> Option<Duration> {
        self.since.lock().unwrap_or_else(PoisonError::into_inner).map(|since| since.elapsed())
    }

    /// What a leader that is short found out about the others.
    pub(crate) fn set_nobody_else(&self, nobody: bool) {
        self.nobody_else.store(nobody, Relaxed);
    }

    /// The log has ended on a full disk. Called by the log's own thread, before anybody else is told.
    pub(crate) fn ended_full(&self, why: String) {
        self.full.send_modify(|(times, said)| {
            *times += 1;
            *said = why;
        });
    }

    /// Returns when the log has ended on a full disk and is to be opened anew.
    pub(crate) async fn wait_until_full(&self) {
        let mut full = self.full.subscribe();
        // The sender is this, so it can't be gone.
        let _lasts = full.wait_for(|(times, _)| *times != self.reopened.load(SeqCst)).await.is_ok();
    }

    /// How often the log ended on a full disk, and what it said the last time.
    pub(crate) fn last_full(&self) -> (u64, String) {
        self.full.borrow().clone()
    }

    /// The log was opened anew after this many ends.
    pub(crate) fn opened_again(&self, times: u64) {
        self.reopened.store(times, SeqCst);
    }

    /// From the end of the log on a full disk until it is open again.
    pub(crate) fn is_reopening(&self) -> bool {
        self.full.borrow().0 != self.reopened.load(SeqCst)
    }

    /// How often the log was opened anew.
    pub(crate) fn reopenings(&self) -> u64 {
        self.reopened.load(SeqCst)
    }

    pub(crate) fn free_bytes(&self) -> u64 {
        self.free_bytes.load(Relaxed)
    }

    pub(crate) fn reserve_bytes(&self) -> u64 {
        self.reserve_bytes.load(Relaxed)
    }

    pub(crate) fn condition(&self) -> DiskCondition {
        match (self.is_reopening(), self.is_short()) {
            (true, _) => DiskCondition::Reopening,
            (false, true) => DiskCondition::Short,
            (false, false) => DiskCondition::Roomy,
        }
    }

    /// What is the matter, for people; `None` when nothing is.
    pub(crate) fn trouble(&self) -> Option<String> {
        match self.condition() {
            DiskCondition::Roomy => None,
            DiskCondition::Short => Some(format!(
                "the disk is short of room: {} bytes free, {} kept in reserve (--disk-reserve-bytes); it goes on by \
                 itself at {} bytes free",
                self.free_bytes(),
                self.reserve_bytes(),
                enough(self.reserve_bytes())
            )),
            DiskCondition::Reopening => {
                Some(format!("the disk was full and the log is being opened anew: {}", self.full.borrow().1))
            }
        }
    }
}

/// What a node whose disk is short answers to a peer that would have it write. The transport has refusals of its own
/// under the same code, so this one is marked.
pub(crate) fn refusal(why: &str) -> Status {
    let mut status = Status::resource_exhausted(why);
    status.metadata_mut().insert(NO_ROOM, MetadataValue::from_static("1"));
    status
}

/// Whether a peer answered that.
pub(crate) fn is_refusal(status: &Status) -> bool {
    status.code() == Code::ResourceExhausted && status.metadata().contains_key(NO_ROOM)
}

/// Which peers refused log entries for want of room, and when they last did.
#[derive(Debug, Default)]
pub(crate) struct Refusals(Mutex<BTreeMap<u64, Instant>>);

impl Refusals {
    /// The peer refused. True when it took the ones before.
    pub(crate) fn refused(&self, peer: u64, now: Instant) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(peer, now).is_none()
    }

    /// The peer took entries. True when it had refused the ones before.
    pub(crate) fn took(&self, peer: u64) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&peer).is_some()
    }

    /// How many of these peers refused just now.
    fn count(&self, peers: impl Iterator<Item = u64>, now: Instant) -> usize {
        let refused = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_recent = |at: &Instant| now.saturating_duration_since(*at) < REFUSAL_LASTS;
        peers.filter(|peer| refused.get(peer).is_some_and(is_recent)).count()
    }

    fn is_empty(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }
}

impl Inner {
    /// Looks at the disk, and says by log when the verdict changed.
    pub(crate) fn look_at_room(&self) {
        // A file system that doesn't say how full it is keeps its last verdict.
        let Ok(free_bytes) = prefixd_storage::disk_free_bytes(&self.config.data_dir) else { return };
        let newest = self.snapshots.latest().map_or(0, |generation| generation.bytes());
        let reserve_bytes = self
            .config
            .limits
            .disk_reserve_bytes
            .unwrap_or_else(|| default_reserve(newest, self.core.published.summary().totals.bytes));
        if !self.room.see(free_bytes, reserve_bytes) {
            return;
        }
        match self.room.is_short() {
            true => tracing::warn!(
                free_bytes,
                reserve_bytes,
                data_dir = %self.config.data_dir.display(),
                "the disk is short of room: this node answers lookups and takes nothing else until there is more"
            ),
            false => tracing::info!(free_bytes, reserve_bytes, "the disk has room again"),
        }
    }

    /// Why this node does not take ingest in, if so: its disk.
    pub(crate) fn no_room(&self) -> Option<SubmitError> {
        self.room.trouble().map(SubmitError::NoRoom)
    }

    /// Has a command committed by this node as the leader, if there is room for it.
    pub(crate) async fn propose_here(&self, command: Command, bytes: usize) -> Outcome {
        match self.refuses_proposals() {
            Some(refusal) => Err(refusal),
            None => self.proposer.propose(command, bytes).await,
        }
    }

    fn refuses_proposals(&self) -> Option<Refusal> {
        if let Some(trouble) = self.room.trouble() {
            // While it looks for a member with room to lead, the next try may find that one.
            let is_final = self.room.nobody_else.load(Relaxed);
            let refusal = SubmitError::NoRoom(format!("on the leader, {trouble}, and no other member has room"));
            return Some(if is_final { Refusal::Submit(refusal) } else { Refusal::NotLeader(None) });
        }
        if self.refusals.is_empty() {
            return None;
        }
        let (_, raft) = self.member()?;
        let metrics = raft.metrics();
        let metrics = metrics.borrow_watched();
        let membership = metrics.membership_config.membership();
        let (voters, short) =
            (membership.voter_ids().count(), self.refusals.count(membership.voter_ids(), Instant::now()));
        let refusal = || format!("{short} of {voters} members are short of room on their disks");
        ((voters - short) * 2 <= voters).then(|| Refusal::Submit(SubmitError::NoRoom(refusal())))
    }

    /// Why this node isn't ready for want of room: it knows that others go on without it. A cluster that is short as a
    /// whole stays ready, so that its lookups are found.
    pub(crate) fn left_behind(&self) -> Option<String> {
        let grace = self.config.timing.election_max * 2;
        let trouble = self.room.trouble()?;
        let is_old_news = self.room.is_reopening() || self.room.short_for().is_some_and(|since| since >= grace);
        let commit = self.heard().commit?;
        let applied = self.core.published.applied_index();
        let behind = commit.saturating_sub(applied);
        (is_old_news && behind > 0).then(|| format!("{behind} log entries behind, and {trouble}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_short_below_the_reserve_and_until_there_is_clearly_more() {
        let cases = [
            // was short, free, reserve, short
            (false, 1_000, 1_000, false),
            (false, 999, 1_000, true),
            (true, 1_000, 1_000, true),
            (true, 1_124, 1_000, true),
            (true, 1_125, 1_000, false),
            // no reserve: never
            (false, 0, 0, false),
            (true, 0, 0, false),
            (true, u64::MAX, u64::MAX, false),
        ];
        for (was, free, reserve, short) in cases {
            assert_eq!(is_short(was, free, reserve), short, "{was} {free} {reserve}");
        }
    }

    #[test]
    fn the_reserve_holds_a_snapshot_and_two_segments() {
        assert_eq!(default_reserve(0, 0), 128 << 20);
        assert_eq!(default_reserve(5 << 20, 1 << 20), 133 << 20);
        assert_eq!(default_reserve(5 << 20, 9 << 20), 137 << 20);
        assert_eq!(default_reserve(u64::MAX, 0), u64::MAX);
    }

    #[test]
    fn what_is_the_matter_is_said_until_it_is_over() {
        let room = Room::new();
        assert_eq!((room.condition(), room.trouble()), (DiskCondition::Roomy, None));
        assert!(room.see(10, 100) && !room.see(20, 100));
        assert!(room.trouble().is_some_and(|said| said.contains("20 bytes free, 100 kept")));
        assert!(room.short_for().is_some());
        room.ended_full("ENOSPC".into());
        assert_eq!(room.condition(), DiskCondition::Reopening);
        room.ended_full("ENOSPC again".into());
        room.opened_again(1);
        assert!(room.is_reopening(), "it ended again meanwhile");
        room.opened_again(2);
        assert!(room.see(200, 100) && room.short_for().is_none());
        assert_eq!((room.condition(), room.reopenings()), (DiskCondition::Roomy, 2));
    }

    #[test]
    fn a_refusal_for_want_of_room_can_be_told_from_others() {
        assert!(is_refusal(&refusal("no room")));
        assert!(!is_refusal(&Status::resource_exhausted("calm down")) && !is_refusal(&Status::unavailable("gone")));
    }

    #[test]
    fn a_refusal_is_forgotten_when_it_is_not_repeated() {
        let (refusals, now) = (Refusals::default(), Instant::now());
        assert!(refusals.refused(1, now) && !refusals.refused(1, now) && refusals.refused(2, now));
        assert_eq!(refusals.count([1, 2, 3].into_iter(), now), 2);
        assert!(refusals.took(2) && !refusals.took(2));
        assert_eq!(refusals.count([1, 2, 3].into_iter(), now), 1);
        assert_eq!(refusals.count([1, 2, 3].into_iter(), now + REFUSAL_LASTS), 0);
    }
}

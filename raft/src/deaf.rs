//! A leader that hears nobody while all hear it would keep the others waiting for as long as its connections live: they
//! go on getting heartbeats, and nothing is committed. Such a leader falls silent, so that the others elect one of
//! them; it leads on once a quorum answers it again, or follows whom they have elected.
//!
//! Being slow is not being deaf. Acknowledgements alone would not tell: on a busy machine none may come within a
//! heartbeat's limit for minutes, while entries are committed all the same. So it asks the others, who have the time of an
//! election to answer, and time in which this process itself did not run on time doesn't count.

use crate::drivers::{ticked, ticker};
use crate::node::{Inner, Raft};
use openraft::Instant as _;
use openraft::ServerState;
use openraft::async_runtime::watch::WatchReceiver;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::Instant;

/// Between looks.
const TICK: Duration = Duration::from_millis(100);
/// A look that is later than this says that this process did not run on time.
const STALL: Duration = Duration::from_millis(300);

/// An acknowledgement is told by its age, which is read a moment later: what differs by less is the same one.
const JITTER: Duration = Duration::from_millis(1);

/// What a leader knows of the others' acknowledgements.
#[derive(Copy, Clone, Debug)]
struct Lead {
    term: u64,
    /// When the newest message was sent that a quorum has acknowledged.
    acked: Option<Instant>,
}

/// What came of asking the others.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Asked {
    Nothing,
    Quorum,
    NoQuorum,
}

/// What to do next.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Act {
    Lead,
    Ask,
    BeSilent,
}

/// Judges whether this leader hears a quorum. Pure.
#[derive(Debug)]
struct Hearing {
    /// Without an acknowledgement for this long, the others are asked; for twice as long, the answer counts.
    patience: Duration,
    looked: Instant,
    term: u64,
    quiet_since: Instant,
    is_deaf: bool,
}

impl Hearing {
    fn new(patience: Duration, now: Instant) -> Self {
        Self { patience, looked: now, term: 0, quiet_since: now, is_deaf: false }
    }

    fn look(&mut self, now: Instant, lead: Option<Lead>, asked: Asked) -> Act {
        let has_stalled = now.saturating_duration_since(self.looked) > STALL;
        self.looked = now;
        let Some(lead) = lead else {
            self.term = 0;
            self.is_deaf = false;
            return Act::Lead;
        };
        let is_new = self.term != lead.term;
        self.term = lead.term;
        let newly_acked = lead.acked.filter(|acked| *acked > self.quiet_since + JITTER);
        if is_new || asked == Asked::Quorum || newly_acked.is_some() {
            self.is_deaf = false;
            let heard_now = is_new || asked == Asked::Quorum;
            self.quiet_since = newly_acked.filter(|_| !heard_now).unwrap_or(now);
        } else if has_stalled && !self.is_deaf {
            self.quiet_since = now;
        }
        let quiet = now.saturating_duration_since(self.quiet_since);
        if asked == Asked::NoQuorum && quiet >= self.patience * 2 {
            self.is_deaf = true;
        }
        match (self.is_deaf, quiet >= self.patience) {
            (true, _) => Act::BeSilent,
            (false, true) => Act::Ask,
            (false, false) => Act::Lead,
        }
    }
}

/// Watches what this node hears while it leads, until it stops.
pub(crate) async fn run(inner: Arc<Inner>) {
    let mut ticker = ticker(TICK);
    let mut hearing = Hearing::new(inner.config.timing.election_max, Instant::now());
    let mut asking: Option<JoinHandle<bool>> = None;
    while ticked(&inner, &mut ticker).await {
        let Some((me, raft)) = inner.member() else { continue };
        let asked = match asking.take_if(|asking| asking.is_finished()) {
            None => Asked::Nothing,
            Some(answer) => match answer.await {
                Ok(true) => Asked::Quorum,
                Ok(false) => Asked::NoQuorum,
                // It panicked, or the process is about to end: nobody was asked.
                Err(_) => Asked::Nothing,
            },
        };
        let act = hearing.look(Instant::now(), lead(&raft), asked);
        let is_deaf = act == Act::BeSilent;
        if me.is_deaf.swap(is_deaf, Ordering::Relaxed) != is_deaf {
            match is_deaf {
                true => tracing::warn!(
                    patience = ?inner.config.timing.election_max * 2,
                    "this leader hears no quorum: it falls silent, so that the others can elect another"
                ),
                false => tracing::info!("this node is no longer a leader that hears no quorum"),
            }
        }
        if act != Act::Lead && asking.is_none() {
            let inner = inner.clone();
            asking = Some(tokio::spawn(async move { inner.hears_quorum().await }));
        }
    }
}

fn lead(raft: &Raft) -> Option<Lead> {
    let watched = raft.metrics();
    let metrics = watched.borrow_watched();
    let voters = metrics.membership_config.membership().voter_ids().count();
    let acked = metrics.last_quorum_acked.and_then(|acked| Instant::now().checked_sub(acked.elapsed()));
    (metrics.state == ServerState::Leader && voters > 1).then_some(Lead { term: metrics.current_term, acked })
}

impl Inner {
    /// Whether so many voters tell who they are that they are a quorum with this node.
    async fn hears_quorum(&self) -> bool {
        let Some((_, others)) = self.voters_and_addrs() else { return false };
        let needed = others.len().div_ceil(2);
        let limit = self.config.timing.election_max;
        let mut asked = JoinSet::new();
        for addr in others {
            let calls = self.calls.clone();
            asked.spawn(async move { tokio::time::timeout(limit, calls.raw_status(&addr)).await });
        }
        let mut heard = 0;
        while heard < needed
            && let Some(answer) = asked.join_next().await
        {
            heard += usize::from(matches!(answer, Ok(Ok(Ok(_)))));
        }
        heard >= needed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(2);

    /// Looks every tick for so long, and gives what each look said.
    fn looks(
        hearing: &mut Hearing,
        from: Instant,
        seconds: f64,
        mut what: impl FnMut(Instant) -> (Option<Lead>, Asked),
    ) -> Vec<Act> {
        let ticks = (seconds * 10.0) as u32;
        (1..=ticks)
            .map(|tick| {
                let now = from + TICK * tick;
                let (lead, asked) = what(now);
                hearing.look(now, lead, asked)
            })
            .collect()
    }

    #[test]
    fn a_leader_that_nobody_answers_falls_silent_after_twice_its_patience() {
        let start = Instant::now();
        let mut hearing = Hearing::new(PATIENCE, start);
        let lead = Some(Lead { term: 3, acked: Some(start) });
        let acts = looks(&mut hearing, start, 6.0, |_| (lead, Asked::NoQuorum));
        let first = |act| acts.iter().position(|found| *found == act).map(|at| (at + 1) * 100);
        assert_eq!((first(Act::Ask), first(Act::BeSilent)), (Some(2_100), Some(4_100)));
        assert!(acts[41..].iter().all(|act| *act == Act::BeSilent));
    }

    #[test]
    fn it_leads_on_when_a_quorum_answers_or_acknowledges_or_another_term_begins() {
        let start = Instant::now();
        let later = start + Duration::from_secs(6);
        let quiet = Lead { term: 3, acked: Some(start) };
        for (lead, asked) in [
            (Some(quiet), Asked::Quorum),
            (Some(Lead { acked: Some(later - TICK), ..quiet }), Asked::NoQuorum),
            (Some(Lead { term: 4, ..quiet }), Asked::Nothing),
            (None, Asked::Nothing),
        ] {
            let mut hearing = Hearing::new(PATIENCE, start);
            let acts = looks(&mut hearing, start, 5.9, |_| (Some(quiet), Asked::NoQuorum));
            assert_eq!(acts.last(), Some(&Act::BeSilent));
            assert_eq!(hearing.look(later, lead, asked), Act::Lead, "{lead:?} {asked:?}");
        }
    }

    #[test]
    fn slow_acknowledgements_are_no_deafness_while_the_others_answer() {
        let start = Instant::now();
        let mut hearing = Hearing::new(PATIENCE, start);
        let lead = Some(Lead { term: 3, acked: None });
        let acts = looks(&mut hearing, start, 120.0, |_| (lead, Asked::Nothing));
        assert!(!acts.contains(&Act::BeSilent), "without an answer nothing is concluded");
        let acts = looks(&mut hearing, start + Duration::from_secs(120), 120.0, |_| (lead, Asked::Quorum));
        assert!(acts.iter().all(|act| *act == Act::Lead));
    }

    #[test]
    fn time_in_which_this_process_did_not_run_does_not_count() {
        let start = Instant::now();
        let mut hearing = Hearing::new(PATIENCE, start);
        let lead = Some(Lead { term: 3, acked: Some(start) });
        for look in 1..100 {
            let act = hearing.look(start + Duration::from_millis(900) * look, lead, Asked::NoQuorum);
            assert_ne!(act, Act::BeSilent);
        }
    }
}

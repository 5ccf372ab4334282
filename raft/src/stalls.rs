//! Says when this node stood still, and what for: its disk, behind which votes and entries wait, or the process, which was
//! stopped or got no time. Peers see the same of both, a node that doesn't answer. Owns the verdict alone; nothing is done
//! about it here, since Raft goes on with whoever answers.

use crate::drivers::{ticked, ticker};
use crate::node::Inner;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::time::Instant;

/// Between looks.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// What a look found that is news.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Found {
    /// The log has been writing the same thing for this long.
    DiskStands(Duration),
    /// It has ended that; the longest write took at least this long.
    DiskGoesOn(Duration),
    /// Nothing of this node ran for this long.
    ProcessStood(Duration),
}

/// What was seen so far. Pure.
struct Stalls {
    /// Longer than this is a stall: others have held an election meanwhile.
    patience: Duration,
    looked: Instant,
    disk_stands: Option<Duration>,
}

impl Stalls {
    fn new(patience: Duration, now: Instant) -> Self {
        Self { patience, looked: now, disk_stands: None }
    }

    fn look(&mut self, now: Instant, writing_for: Option<Duration>) -> Option<Found> {
        let stood = now.saturating_duration_since(self.looked).saturating_sub(LOOK_INTERVAL);
        self.looked = now;
        if stood > self.patience {
            // The log's thread stood with the rest, so its time says nothing of the disk.
            return Some(Found::ProcessStood(stood));
        }
        let stands = standing(writing_for, self.patience);
        let stood = self.disk_stands;
        self.disk_stands = stands.max(stood.filter(|_| stands.is_some()));
        match (stood, stands) {
            (None, Some(stands)) => Some(Found::DiskStands(stands)),
            (Some(longest), None) => Some(Found::DiskGoesOn(longest)),
            (Some(_), Some(_)) | (None, None) => None,
        }
    }
}

/// For how long one write has been under way, if that is too long.
fn standing(writing_for: Option<Duration>, patience: Duration) -> Option<Duration> {
    writing_for.filter(|writing_for| *writing_for > patience)
}

/// What is the matter with the disk now, for people; `None` when nothing is.
pub(crate) fn trouble(writing_for: Option<Duration>, patience: Duration) -> Option<String> {
    let stands = standing(writing_for, patience)?;
    Some(format!("the disk stands still: one write of the log has taken {:.1} s so far", stands.as_secs_f64()))
}

/// Looks until the node stops.
pub(crate) async fn run(inner: Arc<Inner>) {
    let mut ticker = ticker(LOOK_INTERVAL);
    let mut stalls = Stalls::new(inner.config.timing.election_min, Instant::now());
    while ticked(&inner, &mut ticker).await {
        match stalls.look(Instant::now(), inner.log.store().stats().writing_for) {
            None => {}
            Some(Found::DiskStands(so_far)) => tracing::warn!(
                ?so_far,
                "the disk stands still: this node can give no vote and take no entry until its log is written; lookups \
                 go on"
            ),
            Some(Found::DiskGoesOn(longest)) => tracing::info!(?longest, "the disk goes on"),
            Some(Found::ProcessStood(stood)) => {
                inner.process_stalls.fetch_add(1, Ordering::Relaxed);
                tracing::warn!(?stood, "this process stood still: it was stopped, or the machine had no time for it");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(1);

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn a_disk_that_stands_is_told_once_and_so_is_its_end() {
        let start = Instant::now();
        let mut stalls = Stalls::new(PATIENCE, start);
        let writing = [
            (None, None),
            (Some(ms(900)), None),
            (Some(ms(1001)), Some(Found::DiskStands(ms(1001)))),
            (Some(ms(1100)), None),
            (Some(ms(9000)), None),
            (Some(ms(3)), Some(Found::DiskGoesOn(ms(9000)))),
            (Some(ms(1002)), Some(Found::DiskStands(ms(1002)))),
            (Some(ms(2002)), None),
            // The next write is slow as well: it is the same trouble.
            (Some(ms(1500)), None),
            (None, Some(Found::DiskGoesOn(ms(2002)))),
            (None, None),
        ];
        for (n, (writing_for, found)) in (1u32..).zip(writing) {
            assert_eq!(stalls.look(start + LOOK_INTERVAL * n, writing_for), found, "look {n}");
        }
    }

    #[test]
    fn only_a_write_that_takes_too_long_is_trouble() {
        assert_eq!(trouble(None, PATIENCE), None);
        assert_eq!(trouble(Some(PATIENCE), PATIENCE), None);
        let said = trouble(Some(ms(2_340)), PATIENCE);
        assert_eq!(said.as_deref(), Some("the disk stands still: one write of the log has taken 2.3 s so far"));
    }

    #[test]
    fn a_late_look_is_the_process_and_not_the_disk() {
        let start = Instant::now();
        let mut stalls = Stalls::new(PATIENCE, start);
        let late = start + LOOK_INTERVAL + PATIENCE;
        assert_eq!(stalls.look(late, None), None, "as long as the patience is no stall");
        let later = late + LOOK_INTERVAL + ms(1200);
        assert_eq!(stalls.look(later, Some(ms(1200))), Some(Found::ProcessStood(ms(1200))));
        // If the same write is still not done, it is the disk after all.
        let next = later + LOOK_INTERVAL;
        assert_eq!(stalls.look(next, Some(ms(1300))), Some(Found::DiskStands(ms(1300))));
    }
}

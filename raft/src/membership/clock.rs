//! Cluster time: the only clock by which entries expire.
//!
//! A leader stamps commands by its [`Stamper`]; every node answers lookups by its [`ClusterClock`]. Both move with
//! the monotonic clock between stamps, so that no wall clock, wrong or jumping, expires anything. Pure: both clocks of
//! the machine are arguments, in microseconds; the monotonic one from any fixed origin of the process.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

/// Cluster time moves by at most 1 part in this many of the monotonic time passed towards the wall clock.
const SLEW_PARTS: u64 = 100;

/// Cluster time as a leader gives it out.
///
/// A follower lets it follow the applied stamps; from election on it runs by itself and is slewed to the wall clock.
#[derive(Clone, Debug, Default)]
pub struct Stamper {
    /// Cluster time at `mono_us`.
    time_us: u64,
    mono_us: u64,
    /// Monotonic microseconds passed since the last slew, and what it left over: what the next one may use.
    unslewed_us: u64,
    leads: bool,
    /// Elected, and not yet moved up to the median wall clock.
    may_step: bool,
}

impl Stamper {
    /// At the stamp of the state that was loaded (0 for an empty one).
    pub fn new(stamp_us: u64, mono_us: u64) -> Stamper {
        Stamper { time_us: stamp_us, mono_us, ..Stamper::default() }
    }

    /// A command with this stamp was applied. While this node leads that only ever moves time forward: its own stamps
    /// come back later than they were given out.
    pub fn applied(&mut self, stamp_us: u64, mono_us: u64) {
        if self.leads {
            self.time_us = self.advance(mono_us).max(stamp_us);
        } else {
            self.time_us = stamp_us;
            self.mono_us = self.mono_us.max(mono_us);
        }
    }

    /// This node leads from now on. `median_us` is [`median_wall_us`] of a reachable quorum if it is known already;
    /// time moves up to it, never down.
    pub fn elected(&mut self, median_us: Option<u64>, mono_us: u64) {
        self.leads = true;
        self.may_step = true;
        self.time_us = self.advance(mono_us);
        self.unslewed_us = 0;
        if let Some(median_us) = median_us {
            self.median(median_us, mono_us);
        }
    }

    /// The median became known after the election. Only the first one of a leadership counts.
    pub fn median(&mut self, median_us: u64, mono_us: u64) {
        self.time_us = self.advance(mono_us);
        if self.leads && self.may_step {
            self.may_step = false;
            self.time_us = self.time_us.max(median_us);
        }
    }

    /// True between an election and the median that belongs to it.
    pub fn wants_median(&self) -> bool {
        self.leads && self.may_step
    }

    /// This node does not lead any more.
    pub fn deposed(&mut self) {
        self.leads = false;
        self.may_step = false;
    }

    /// The stamp for a command proposed now. Never below an earlier one of this leadership.
    pub fn stamp(&mut self, wall_us: u64, mono_us: u64) -> u64 {
        let free = self.advance(mono_us);
        let most = self.unslewed_us / SLEW_PARTS;
        self.unslewed_us %= SLEW_PARTS;
        let slewed = wall_us.clamp(free.saturating_sub(most), free.saturating_add(most));
        self.time_us = self.time_us.max(slewed);
        self.time_us
    }

    /// Wall clock minus cluster time in microseconds.
    pub fn skew_us(&self, wall_us: u64, mono_us: u64) -> i64 {
        let now = self.time_us.saturating_add(mono_us.saturating_sub(self.mono_us));
        i64::try_from(i128::from(wall_us) - i128::from(now)).unwrap_or(if wall_us > now { i64::MAX } else { i64::MIN })
    }

    /// Moves `mono_us` up and returns the cluster time there, unslewed.
    fn advance(&mut self, mono_us: u64) -> u64 {
        let passed = mono_us.saturating_sub(self.mono_us);
        self.mono_us += passed;
        self.unslewed_us = self.unslewed_us.saturating_add(passed);
        self.time_us.saturating_add(passed)
    }
}

/// The median of the wall clocks of the voters that could be read, this node's included, if they are a quorum of
/// `voters`; of an even number the lower one, since time too late is the smaller harm.
pub fn median_wall_us(walls_us: &[u64], voters: usize) -> Option<u64> {
    if walls_us.is_empty() || walls_us.len() < super::member::quorum(voters) {
        return None;
    }
    let mut sorted = walls_us.to_vec();
    sorted.sort_unstable();
    sorted.get((sorted.len() - 1) / 2).copied()
}

/// Cluster time as lookups read it: the last applied stamp plus the monotonic time since. No lock; one writer (apply),
/// any number of readers; over all calls together it never runs backwards.
#[derive(Debug, Default)]
pub struct ClusterClock {
    /// Last applied stamp minus the monotonic clock when it was applied.
    offset_us: AtomicI64,
    /// The highest time given out.
    highest_us: AtomicU64,
}

impl ClusterClock {
    /// At the stamp of the state that was loaded (0 for an empty one).
    pub fn new(stamp_us: u64, mono_us: u64) -> ClusterClock {
        let clock = ClusterClock::default();
        clock.applied(stamp_us, mono_us);
        clock
    }

    /// A command with this stamp was applied.
    pub fn applied(&self, stamp_us: u64, mono_us: u64) {
        self.offset_us.store(stamp_us.wrapping_sub(mono_us).cast_signed(), Ordering::Relaxed);
        self.highest_us.fetch_max(stamp_us, Ordering::Relaxed);
    }

    /// Cluster time now.
    pub fn now_us(&self, mono_us: u64) -> u64 {
        let candidate = mono_us.wrapping_add_signed(self.offset_us.load(Ordering::Relaxed));
        let highest = self.highest_us.load(Ordering::Relaxed);
        if candidate <= highest {
            return highest;
        }
        self.highest_us.fetch_max(candidate, Ordering::Relaxed).max(candidate)
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test that cannot go on says so by panicking")]
mod tests;

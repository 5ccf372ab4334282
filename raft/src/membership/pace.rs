//! How often a waiting node asks again: bounded exponential backoff with jitter.

use rand::{Rng, RngExt};
use std::time::Duration;

/// Timing of the loops that wait for peers.
#[derive(Clone, Debug)]
pub struct Pace {
    /// How long one call to a peer may take.
    pub call_timeout: Duration,
    /// The first pause after a round that brought nothing new.
    pub first_pause: Duration,
    /// The longest pause.
    pub longest_pause: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            call_timeout: Duration::from_secs(1),
            first_pause: Duration::from_millis(50),
            longest_pause: Duration::from_secs(2),
        }
    }
}

/// The pauses of one loop.
#[derive(Debug)]
pub(crate) struct Backoff {
    first: Duration,
    longest: Duration,
    next: Duration,
}

impl Backoff {
    pub(crate) fn new(pace: &Pace) -> Self {
        Self { first: pace.first_pause, longest: pace.longest_pause, next: pace.first_pause }
    }

    /// Something changed: pauses start small again.
    pub(crate) fn reset(&mut self) {
        self.next = self.first;
    }

    /// The pause to make now: between half and all of the current step, which then doubles up to the longest.
    pub(crate) fn pause(&mut self, rng: &mut impl Rng) -> Duration {
        let step = self.next;
        self.next = (step * 2).min(self.longest);
        let half_us = u64::try_from(step.as_micros() / 2).unwrap_or(u64::MAX / 4);
        Duration::from_micros(half_us + rng.random_range(0..=half_us))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;
    use rand::rngs::StdRng;

    #[test]
    fn pauses_grow_to_the_longest_and_start_again() {
        let pace = Pace::default();
        let mut rng = StdRng::seed_from_u64(1);
        let mut backoff = Backoff::new(&pace);
        let mut step = pace.first_pause;
        for _ in 0..20 {
            let pause = backoff.pause(&mut rng);
            assert!(pause >= step / 2 - Duration::from_micros(1) && pause <= step, "{pause:?} of {step:?}");
            step = (step * 2).min(pace.longest_pause);
        }
        backoff.reset();
        assert!(backoff.pause(&mut rng) <= pace.first_pause);
    }
}

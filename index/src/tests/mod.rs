//! Tests of the whole core: against a naive model, of snapshots and of concurrent readers, and the contract's rules
//! as cases. Small rules are tested beside their code.

mod cases;
mod commands;
mod damage;
mod model;
mod model_lookup;
mod owed;
mod readers;
mod recorded;
mod script;
mod snapshots;
mod vectors;
mod walk;

/// A small generator of pseudo-random numbers (splitmix64), so that a printed seed says it all.
#[derive(Clone)]
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Below `n`.
    pub(crate) fn roll(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    /// True once in `n`.
    pub(crate) fn one_in(&mut self, n: u64) -> bool {
        self.roll(n) == 0
    }

    pub(crate) fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.roll(from.len() as u64) as usize]
    }
}

/// A number from the environment, for longer runs than the default.
pub(crate) fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(default)
}

//! A replica's pressure, as lookups ask for it of every match: two words beside its names instead of a report somewhere
//! else that has to be held while it is read. One writer; a reader never waits for it, but may have to look at the report
//! after all.

use crate::store::word::Word;
use std::sync::atomic::{AtomicU64, Ordering};

/// Set while there is a report.
const IS_THERE: u64 = 1 << 32;
/// Set while the writer changes the words.
const IS_CHANGING: u64 = 1 << 33;
/// What a change adds to the version, which is above the bits.
const VERSION: u64 = 1 << 34;

/// What a report says of pressure, or that there is none. `Default` has none.
pub(crate) struct Pressure<W = AtomicU64> {
    /// Version, bits, and the pressure in the low half.
    state: W,
    payload_us: W,
}

/// What a reader sees.
#[derive(Copy, Clone, Debug, PartialEq)]
pub(crate) enum Seen {
    /// There is no report.
    Nothing,
    /// The pressure of a payload, and when that was.
    Reported(f32, u64),
    /// The writer is at it: the report knows.
    Changing,
}

impl<W: Word> Default for Pressure<W> {
    fn default() -> Self {
        Self { state: W::new(0), payload_us: W::new(0) }
    }
}

impl<W: Word> Pressure<W> {
    /// What it is now.
    #[inline]
    pub(crate) fn read(&self) -> Seen {
        let state = self.state.load(Ordering::Acquire);
        if state & IS_THERE == 0 {
            return if state & IS_CHANGING == 0 { Seen::Nothing } else { Seen::Changing };
        }
        // A later payload was stored after the state had begun to change, and loading it with acquire shows that here.
        let payload_us = self.payload_us.load(Ordering::Acquire);
        if state & IS_CHANGING != 0 || self.state.load(Ordering::Relaxed) != state {
            return Seen::Changing;
        }
        Seen::Reported(f32::from_bits(state as u32), payload_us)
    }

    /// Makes it the pressure and time of a payload, or none. For the single writer alone.
    pub(crate) fn set(&self, report: Option<(f32, u64)>) {
        let version = self.state.load(Ordering::Relaxed).wrapping_add(VERSION) & !(VERSION - 1);
        let state = match report {
            Some((pressure, payload_us)) => {
                self.state.store(version | IS_CHANGING, Ordering::Relaxed);
                self.payload_us.store(payload_us, Ordering::Release);
                version | IS_THERE | u64::from(pressure.to_bits())
            }
            None => version,
        };
        self.state.store(state, Ordering::Release);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn it_is_what_was_set() {
        let pressure = <Pressure>::default();
        assert_eq!(pressure.read(), Seen::Nothing);
        for (value, payload_us) in [(0.5, 7), (-0.0, u64::MAX), (f32::INFINITY, 0)] {
            pressure.set(Some((value, payload_us)));
            assert_eq!(pressure.read(), Seen::Reported(value, payload_us));
        }
        pressure.set(None);
        assert_eq!(pressure.read(), Seen::Nothing);
    }
}

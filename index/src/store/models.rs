//! Models of what the writer and readers do without a lock, for loom to run in every order that the memory model allows.
//! They use the very code of `span`, `readers` and the view's `pressure`, on loom's words.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p prefixd-index --lib --release models`

use super::readers::Readers;
use super::span::{self, Span};
use super::word::Word;
use crate::view::pressure::{Pressure, Seen};
use loom::sync::Arc;
use loom::sync::atomic::AtomicU64;
use loom::thread;
use std::sync::atomic::Ordering;

impl Word for AtomicU64 {
    fn new(value: u64) -> Self {
        AtomicU64::new(value)
    }

    fn load(&self, order: Ordering) -> u64 {
        AtomicU64::load(self, order)
    }

    fn store(&self, value: u64, order: Ordering) {
        AtomicU64::store(self, value, order);
    }

    fn swap_if(&self, old: u64, new: u64) -> bool {
        self.compare_exchange(old, new, Ordering::SeqCst, Ordering::Relaxed).is_ok()
    }
}

const SPAN: Span = Span { seat: 1, start: 0, end: 8, seen_us: 5, tier: 1, accesses: 0, base: 16, step: 16 };

fn span_words() -> Arc<[AtomicU64; 4]> {
    let words = std::array::from_fn(|_| AtomicU64::new(0));
    span::write(&words, &SPAN);
    Arc::new(words)
}

/// A later time is never seen with a stretch that had lost its end before.
#[test]
fn a_refresh_after_a_loss_is_not_mixed_with_what_was() {
    loom::model(|| {
        let words = span_words();
        let writer = {
            let words = Arc::clone(&words);
            thread::spawn(move || {
                assert!(span::change(&*words, &SPAN.cut(0, 4)));
                assert!(span::change(&*words, &Span { seen_us: 9, ..SPAN.cut(0, 4) }));
            })
        };
        let seen = span::read(&*words);
        let states = [SPAN, SPAN.cut(0, 4), Span { seen_us: 9, ..SPAN.cut(0, 4) }];
        assert!(states.contains(&seen), "{seen:?}");
        assert!(writer.join().is_ok());
    });
}

/// Nor an earlier time with a stretch that was extended at the later one, or what comes after that.
#[test]
fn an_extension_after_a_refresh_is_not_mixed_with_what_was() {
    loom::model(|| {
        let words = span_words();
        let writer = {
            let words = Arc::clone(&words);
            thread::spawn(move || {
                let mut span = Span { seen_us: 9, ..SPAN };
                assert!(span::change(&*words, &span));
                span = span.cut(0, 9);
                assert!(span::change(&*words, &span));
                assert!(span::change(&*words, &span.cut(2, 9)));
            })
        };
        let seen = span::read(&*words);
        let refreshed = Span { seen_us: 9, ..SPAN };
        let states = [SPAN, refreshed, refreshed.cut(0, 9), refreshed.cut(2, 9)];
        assert!(states.contains(&seen), "{seen:?}");
        assert!(writer.join().is_ok());
    });
}

/// What a pinned reader finds is not given to something else while it looks.
#[test]
fn memory_is_not_reused_under_a_reader() {
    struct World {
        readers: Readers<AtomicU64>,
        /// Which of the two pieces is to be found.
        found: AtomicU64,
        pieces: [[AtomicU64; 2]; 2],
    }
    loom::model(|| {
        let piece = |value| [AtomicU64::new(value), AtomicU64::new(value)];
        let world = World { readers: Readers::with_slots(1), found: AtomicU64::new(0), pieces: [piece(1), piece(0)] };
        let world = Arc::new(world);
        let fill = |piece: &[AtomicU64; 2], value| piece.iter().for_each(|word| word.store(value, Ordering::Relaxed));
        let writer = {
            let world = Arc::clone(&world);
            thread::spawn(move || {
                fill(&world.pieces[1], 2);
                world.found.store(1, Ordering::Release);
                let stamp = world.readers.stamp();
                if stamp < world.readers.look() {
                    fill(&world.pieces[0], 3);
                    world.found.store(0, Ordering::Release);
                }
            })
        };
        let pin = world.readers.pin(0);
        let found = &world.pieces[world.found.load(Ordering::Acquire) as usize];
        let (first, second) = (found[0].load(Ordering::Relaxed), found[1].load(Ordering::Relaxed));
        assert_eq!(first, second, "reused while it was read");
        drop(pin);
        assert!(writer.join().is_ok());
    });
}

/// A pressure is never seen with the time of another report.
#[test]
fn a_pressure_is_seen_with_its_own_time() {
    loom::model(|| {
        let pressure = Arc::new(Pressure::<AtomicU64>::default());
        pressure.set(Some((0.25, 1)));
        let writer = {
            let pressure = Arc::clone(&pressure);
            thread::spawn(move || {
                pressure.set(Some((0.5, 2)));
                pressure.set(None);
                pressure.set(Some((0.75, 3)));
            })
        };
        let seen = pressure.read();
        let states = [Seen::Reported(0.25, 1), Seen::Reported(0.5, 2), Seen::Nothing, Seen::Reported(0.75, 3)];
        assert!(states.contains(&seen) || seen == Seen::Changing, "{seen:?}");
        assert!(writer.join().is_ok());
    });
}

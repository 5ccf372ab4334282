//! Clocks, memory and the printing of results: one line each, "name | figure | unit".

use std::io::{Read, Seek};
use std::time::{Duration, Instant};

/// CPU time that this thread has taken, where the system says so.
fn cpu_time() -> Option<Duration> {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    Some(Duration::from_nanos(stat.split(' ').next()?.parse().ok()?))
}

/// Runs `work` and returns the seconds of CPU that it took on this thread, and its result.
pub fn cpu_seconds<T>(work: impl FnOnce() -> T) -> (f64, T) {
    let (cpu, wall) = (cpu_time(), Instant::now());
    let made = work();
    let spent = match (cpu, cpu_time()) {
        (Some(before), Some(after)) => after.saturating_sub(before),
        _ => wall.elapsed(),
    };
    (spent.as_secs_f64().max(1e-9), made)
}

/// Tells how long work took without what this thread waited for a CPU meanwhile, so that a busy machine doesn't show.
#[expect(clippy::disallowed_types, reason = "it asks the system, and is no part of the core")]
pub struct Stopwatch {
    stat: Option<std::fs::File>,
    text: String,
}

impl Stopwatch {
    pub fn new() -> Self {
        #[expect(clippy::disallowed_types, reason = "as above")]
        Self { stat: std::fs::File::open("/proc/thread-self/schedstat").ok(), text: String::new() }
    }

    fn waited(&mut self) -> Option<Duration> {
        let stat = self.stat.as_mut()?;
        self.text.clear();
        stat.rewind().ok()?;
        stat.read_to_string(&mut self.text).ok()?;
        Some(Duration::from_nanos(self.text.split(' ').nth(1)?.parse().ok()?))
    }

    pub fn time<T>(&mut self, work: impl FnOnce() -> T) -> (Duration, T) {
        let before = self.waited();
        let begun = Instant::now();
        let made = work();
        let took = begun.elapsed();
        let waited = self.waited().zip(before).map_or(Duration::ZERO, |(after, before)| after.saturating_sub(before));
        (took.saturating_sub(waited), made)
    }
}

/// Bytes of memory that this process occupies.
pub fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    statm.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).map_or(0, |pages| pages * 4_096)
}

/// Prints one result.
pub fn say(name: &str, figure: f64, unit: &str) {
    let figure = match figure {
        small if small < 1_000.0 => format!("{small:.2}"),
        large => format!("{large:.0}"),
    };
    println!("{name:<44} | {figure:>12} | {unit}");
}

/// Prints p50, p99, p99.9 and the maximum of durations.
pub fn say_spread(name: &str, mut samples: Vec<Duration>) {
    samples.sort_unstable();
    for (label, part) in [("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999), ("max", 1.0)] {
        let at = ((samples.len() as f64 * part) as usize).min(samples.len().saturating_sub(1));
        let micros = samples.get(at).copied().unwrap_or_default().as_secs_f64() * 1e6;
        say(&format!("{name}, {label}"), micros, "us");
    }
}

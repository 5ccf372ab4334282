//! The engine by itself, in figures that can be compared between engines: it uses the public face alone, so that the
//! same file builds at other commits, and rates are per CPU-second of the thread that works. The sets are in `sets`,
//! clocks and memory in `meter`, what is measured of reading in `reads`, of writing in `writes`.
//!
//! `cargo bench -p prefixd-index --bench engine [-- NAME...]` runs what has one of the names in its name, or all but the
//! parts called `large`, which want a name. Each part has a process of its own: what one leaves behind in the allocator would be
//! room that the next one seems not to take.

#![expect(clippy::disallowed_methods, reason = "a bench reads the clock and starts threads; the core doesn't")]

mod meter;
mod reads;
mod sets;
mod writes;

use std::process::Command;

/// Names the one part that a process runs.
const PART: &str = "PREFIXD_ENGINE_PART";

fn main() {
    let wanted: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with('-')).collect();
    let parts: [(&str, fn()); 16] = [
        ("lookup A", || reads::lookups(sets::A, 1)),
        ("lookup B", || reads::lookups(sets::B, 1)),
        ("lookup C", || reads::lookups(sets::C, 1)),
        ("lookup A two readers", || reads::lookups(sets::A, 2)),
        ("lookup A 32-byte", || reads::lookups(sets::A_WIDE, 1)),
        ("lookup A under pressure", reads::under_pressure),
        ("lookup 4096 replicas", reads::many_replicas),
        ("mixed", reads::mixed),
        ("store", writes::stores),
        ("one a call", writes::one_a_call),
        ("sweep", writes::sweep),
        ("clear", writes::clear),
        ("turnover", writes::turnover),
        ("turnover of sizes", writes::turnover_of_sizes),
        ("tails", writes::tails),
        ("large", || reads::lookups(sets::LARGE, 1)),
    ];
    let own = std::env::var(PART).ok();
    let myself = std::env::current_exe().expect("a process has a file");
    for (name, run) in parts {
        let is_wanted = wanted.iter().any(|word| name.contains(word.as_str()));
        if own.is_some() {
            if own.as_deref() == Some(name) {
                run();
            }
        } else if is_wanted || (wanted.is_empty() && name != "large") {
            let status = Command::new(&myself).env(PART, name).status();
            let is_done = status.expect("a bench can start itself").success();
            assert!(is_done, "{name} did not end well");
        }
    }
}

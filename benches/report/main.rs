//! All figures of docs/BENCHMARKS.md that one machine makes in one run: the engine by itself, three nodes under lookups
//! and reports, backups. Each part runs PREFIXD_BENCH_ROUNDS times (3 by default), parts in turn, so that what else the
//! machine does falls on all of them; medians and the spread go between two marks of the page. PREFIXD_BENCH_PARTS
//! (engine, nodes, backup) runs some of them, and PREFIXD_BENCH_PAGE writes another page.
//!
//! `scripts/bench` runs it.

mod cluster;
mod figures;
#[path = "../metrics.rs"]
mod metrics;
mod nodes;
mod page;

use figures::{Fault, Figures};
use std::path::PathBuf;
use std::process::Command;

fn asked(name: &str, default: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| default.to_owned())
}

fn main() -> Result<(), Fault> {
    let rounds: u32 = asked("PREFIXD_BENCH_ROUNDS", "3").parse()?;
    let parts = asked("PREFIXD_BENCH_PARTS", "engine,nodes,backup");
    let page = PathBuf::from(asked("PREFIXD_BENCH_PAGE", "docs/BENCHMARKS.md"));
    let mut figures = Figures::default();
    for round in 1..=rounds {
        for part in parts.split(',') {
            eprintln!("round {round} of {rounds}: {part}");
            match part {
                "engine" => bench(&mut figures, part, &["-p", "prefixd-index", "--bench", "engine"])?,
                "nodes" => nodes::measure(&mut figures)?,
                "backup" => bench(&mut figures, part, &["-p", "prefixd", "--bench", "backup"])?,
                other => return Err(format!("PREFIXD_BENCH_PARTS: no part is called {other:?}").into()),
            }
        }
    }
    page::write(&page, &figures, rounds)
}

/// Runs another bench and takes its lines of "name | figure | unit".
fn bench(figures: &mut Figures, part: &str, arguments: &[&str]) -> Result<(), Fault> {
    let output = Command::new(env!("CARGO")).arg("bench").args(arguments).output()?;
    if !output.status.success() {
        return Err(format!("cargo bench {arguments:?}: {}", String::from_utf8_lossy(&output.stderr)).into());
    }
    for line in String::from_utf8(output.stdout)?.lines() {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        if let [name, figure, unit] = cells[..] {
            figures.add(part, name, figure.parse()?, unit);
        }
    }
    Ok(())
}

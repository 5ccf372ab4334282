//! The page: what is between the marks is replaced, the prose around them stays.

use super::figures::{Fault, Figures};
use std::fmt::Write;
use std::path::Path;
use std::process::Command;

const BEGIN: &str = "<!-- figures: written by scripts/bench -->";
const END: &str = "<!-- figures: end -->";

/// Puts the figures into the page.
pub fn write(page: &Path, figures: &Figures, rounds: u32) -> Result<(), Fault> {
    let text = std::fs::read_to_string(page)?;
    let (before, rest) = text.split_once(BEGIN).ok_or_else(|| format!("{}: no {BEGIN}", page.display()))?;
    let (_, after) = rest.split_once(END).ok_or_else(|| format!("{}: no {END}", page.display()))?;
    let mut made = format!("{before}{BEGIN}\n\n{}", machine(rounds)?);
    for part in figures.parts() {
        let title = match part {
            "engine" => "The engine, rates per CPU-second of the thread that works",
            "nodes" => "Three nodes and their clients on this machine",
            "backup" => "Backup and restore of 1,000,000 entries",
            other => other,
        };
        write!(made, "\n### {title}\n\n| what | median | lowest | highest | unit |\n|---|---|---|---|---|\n")?;
        for figure in figures.of(part) {
            let [low, median, high] = figure.spread();
            writeln!(made, "| {} | {median} | {low} | {high} | {} |", figure.name, figure.unit)?;
        }
    }
    write!(made, "\n{END}{after}")?;
    std::fs::write(page, made)?;
    println!("written to {}", page.display());
    Ok(())
}

/// When, where and of what.
fn machine(rounds: u32) -> Result<String, Fault> {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let (processor, memory, load) = (read("/proc/cpuinfo"), read("/proc/meminfo"), read("/proc/loadavg"));
    let value = |text: &str, name: &str| {
        let line = text.lines().find(|line| line.starts_with(name)).and_then(|line| line.split_once(':'));
        line.map_or_else(|| "unknown".to_owned(), |(_, value)| value.trim().to_owned())
    };
    let said = |program: &str, arguments: &[&str]| -> Result<String, Fault> {
        let output = Command::new(program).args(arguments).output()?;
        Ok(String::from_utf8(output.stdout)?.trim().to_owned())
    };
    let changed =
        if said("git", &["status", "--porcelain", "-uno"])?.is_empty() { "" } else { ", with changes on top" };
    Ok(format!(
        "{}, commit {}{changed}; {} cores of {}, {} of memory, {}, {}; load at the end {}. {rounds} rounds.\n",
        said("date", &["-u", "+%F"])?,
        said("git", &["rev-parse", "--short", "HEAD"])?,
        std::thread::available_parallelism()?,
        value(&processor, "model name"),
        value(&memory, "MemTotal"),
        said("uname", &["-sr"])?,
        said("rustc", &["--version"])?,
        load.split(' ').next().unwrap_or("unknown"),
    ))
}

//! Writing to standard output. A reader that went away (`prefixd lookup | head -1`) is no reason to panic, which is what
//! `println!` does.

use std::io::Write;

/// Writes text as it is. Errors are dropped: there is nobody left to tell.
pub fn text(text: &str) {
    let mut stdout = std::io::stdout().lock();
    let _ = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush());
}

/// Writes a line.
pub fn line(line: &str) {
    text(&format!("{line}\n"));
}

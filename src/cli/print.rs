//! Writing to standard output. A reader that went away (`prefixd lookup | head -1`) is no reason to panic, which is what
//! `println!` does; and ids come from producers, so that a terminal must not obey them.

use std::borrow::Cow;
use std::io::Write;

/// Writes text, control characters but the line's end as escapes. Errors are dropped: there is nobody left to tell.
pub fn text(text: &str) {
    let mut stdout = std::io::stdout().lock();
    let _ = stdout.write_all(harmless(text).as_bytes()).and_then(|()| stdout.flush());
}

fn harmless(text: &str) -> Cow<'_, str> {
    let obeyed = |c: char| c.is_control() && c != '\n';
    if !text.contains(obeyed) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if obeyed(c) { shown.extend(c.escape_unicode()) } else { shown.push(c) }
    }
    Cow::Owned(shown)
}

/// Writes a line.
pub fn line(line: &str) {
    text(&format!("{line}\n"));
}

#[cfg(test)]
mod tests {
    use super::harmless;

    #[test]
    fn a_terminal_gets_nothing_to_obey() {
        assert_eq!(harmless("a\u{1b}[2Jb\u{9b}\r\tc\n"), "a\\u{1b}[2Jb\\u{9b}\\u{d}\\u{9}c\n");
        assert_eq!(harmless("ü ▲\n"), "ü ▲\n");
    }
}

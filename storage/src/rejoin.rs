//! The words that get a node back whose disk can't be used again. Every refusal that is final for a disk ends with them,
//! so that the operator has one thing to do, whatever was found.

use std::borrow::Cow;
use std::fmt;
use std::path::Path;

/// What is added to the name of a directory that was refused.
const ASIDE: &str = ".refused";

/// Prints what to do with a data directory that was refused: the command to run and the flag to start with.
#[derive(Copy, Clone, Debug)]
pub struct Rejoin<'a>(pub &'a Path);

impl fmt::Display for Rejoin<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = std::path::absolute(self.0).unwrap_or_else(|_| self.0.to_owned());
        let dir = path.display().to_string();
        let dir = dir.trim_end_matches('/');
        write!(
            f,
            "What this node acknowledged can no longer be vouched for: stop this node, run `mv {} {}` (or empty the \
             volume that is mounted there), and start it as before with --bootstrap=never: it rejoins as a fresh \
             learner",
            quoted(dir),
            quoted(&format!("{dir}{ASIDE}"))
        )
    }
}

/// As one word of a shell.
fn quoted(word: &str) -> Cow<'_, str> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+=:,@".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return Cow::Borrowed(word);
    }
    Cow::Owned(format!("'{}'", word.replace('\'', r"'\''")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// Runs what stands between the backticks, as the operator would.
    fn run(message: &str) {
        let words = message.split('`').nth(1).unwrap();
        assert!(Command::new("sh").args(["-c", words]).status().unwrap().success(), "{words}");
    }

    #[test]
    fn the_command_moves_the_directory_away() {
        let root = tempfile::tempdir().unwrap();
        for name in ["data", "it's a disk", "a\"b$c"] {
            let dir = root.path().join(name);
            std::fs::create_dir(&dir).unwrap();
            run(&Rejoin(&dir).to_string());
            assert!(!dir.exists() && root.path().join(format!("{name}.refused")).exists(), "{name}");
        }
    }
}

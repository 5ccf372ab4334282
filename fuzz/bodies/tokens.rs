//! Any bytes as a token file, a tenant token file and an Authorization header: taken or refused, never a panic, and no
//! reason quotes a token.

use prefixd::auth::tokens::TokenSet;
use prefixd::auth::{MAX_TOKEN_BYTES, bearer, tenants};

/// Shorter words may well be part of a reason by chance.
const TELLING_BYTES: usize = 24;

/// Tries one file.
pub fn run(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let lines = || text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    match TokenSet::parse(data) {
        Ok(set) => {
            assert!(lines().take(64).all(|token| set.holds(token)));
            assert!(!set.holds(""));
        }
        Err(reason) => silent(&reason, lines()),
    }
    if let Err(reason) = tenants::Table::parse(data) {
        silent(&reason, lines().flat_map(str::split_whitespace));
    }
    if let Some(token) = bearer(data) {
        assert!(!token.is_empty() && token.len() <= MAX_TOKEN_BYTES && token.trim() == token);
    }
}

fn silent<'a>(reason: &str, mut words: impl Iterator<Item = &'a str>) {
    assert!(!reason.is_empty());
    let quoted = words.find(|word| word.len() >= TELLING_BYTES && reason.contains(word));
    assert_eq!(quoted, None, "{reason}");
}

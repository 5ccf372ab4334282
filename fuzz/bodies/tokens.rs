//! Any bytes as a token file, a tenant token file and an Authorization header: taken or refused, never a panic, and no
//! reason quotes a token.

use prefixd::auth::tokens::TokenSet;
use prefixd::auth::{MAX_TOKEN_BYTES, bearer, tenants};

/// Tries one file.
pub fn run(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let lines = || text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let other = respelled(data);
    match TokenSet::parse(data) {
        Ok(set) => {
            assert!(lines().take(64).all(|token| set.holds(token)));
            assert!(!set.holds(""));
        }
        Err(reason) => assert_eq!(Some(reason), TokenSet::parse(&other).err(), "the reason tells of the words"),
    }
    let reason = tenants::Table::parse(data).err();
    assert_eq!(reason, tenants::Table::parse(&other).err(), "the reason tells of the words");
    assert_ne!(reason.as_deref(), Some(""));
    if let Some(token) = bearer(data) {
        assert!(!token.is_empty() && token.len() <= MAX_TOKEN_BYTES && token.trim() == token);
    }
}

/// The same file with each letter and digit exchanged for its next: what is wrong with it is the same, so a reason that
/// quotes nothing is as well.
fn respelled(data: &[u8]) -> Vec<u8> {
    let next = |byte: &u8| match byte {
        b'z' => b'a',
        b'Z' => b'A',
        b'9' => b'0',
        byte if byte.is_ascii_alphanumeric() => byte + 1,
        byte => *byte,
    };
    data.iter().map(next).collect()
}

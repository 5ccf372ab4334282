//! A file of bearer tokens: one a line, so that an old and a new one can overlap; empty lines and lines that begin
//! with # say nothing. Tokens are kept as hashes and compared in constant time.

use super::{TokenHash, hash, lines, sendable};
use subtle::{Choice, ConstantTimeEq};

/// Most tokens in one file.
const MAX_TOKENS: usize = 1_000;

/// The tokens of one file.
#[derive(Debug, Default)]
pub struct TokenSet(Vec<TokenHash>);

impl TokenSet {
    /// Reads a file's content.
    ///
    /// # Errors
    /// No token, too many, or a line that is none. The error never quotes one.
    pub fn parse(content: &[u8]) -> Result<Self, String> {
        let mut hashes = Vec::new();
        for (number, token) in lines(content)? {
            sendable(number, token)?;
            if hashes.len() == MAX_TOKENS {
                return Err(format!("holds more than {MAX_TOKENS} tokens"));
            }
            hashes.push(hash(token));
        }
        if hashes.is_empty() { Err("holds no token".into()) } else { Ok(Self(hashes)) }
    }

    /// True if the token is one of these. Takes as long whichever it is, or if it is none.
    pub fn holds(&self, token: &str) -> bool {
        let asked = hash(token);
        let found = self.0.iter().fold(Choice::from(0), |found, known| found | known.ct_eq(&asked));
        found.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_holds_one_token_a_line() {
        let set = TokenSet::parse(b"# rotated on Monday\n one \r\n\ntwo").unwrap();
        for (token, held) in [("one", true), ("two", true), ("on", false), ("", false), ("# rotated on Monday", false)]
        {
            assert_eq!(set.holds(token), held, "{token}");
        }
    }

    #[test]
    fn what_is_no_token_file_is_refused_without_a_quote() {
        for (content, part) in [
            (&b""[..], "no token"),
            (b"# only this\n", "no token"),
            (b"good\nsec ret", "line 2"),
            (b"s\xc3\xa9cret", "line 1"),
            (b"\xff", "UTF-8"),
        ] {
            let error = TokenSet::parse(content).unwrap_err();
            assert!(error.contains(part) && !error.contains("ret"), "{error}");
        }
        assert!(TokenSet::parse("t\n".repeat(MAX_TOKENS + 1).as_bytes()).is_err());
    }
}

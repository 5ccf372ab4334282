//! What people type: hashes in hex, tokens in decimal, and the fallback to standard input. Owns parsing and its
//! messages; what is made of it is up to `lookup` and `report`.

use std::io::{IsTerminal, Read};

/// The most that is read from standard input.
const STDIN_BYTES_MAX: u64 = 64 << 20;

/// Opaque bytes, written in hex; a leading 0x is allowed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hash(pub Vec<u8>);

impl std::str::FromStr for Hash {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let digits = text.trim();
        let digits = digits.strip_prefix("0x").unwrap_or(digits);
        if digits.is_empty() {
            return Err("an empty hash".into());
        }
        let nibbles = digits
            .chars()
            .map(|c| c.to_digit(16).map(|nibble| nibble as u8).ok_or_else(|| format!("{c:?} is not a hex digit")))
            .collect::<Result<Vec<_>, _>>()?;
        if !nibbles.len().is_multiple_of(2) {
            return Err(format!("{digits:?} has an odd number of hex digits"));
        }
        Ok(Self(nibbles.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect()))
    }
}

impl std::fmt::Display for Hash {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Token ids, in decimal, separated by commas or white space.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tokens(pub Vec<u32>);

impl std::str::FromStr for Tokens {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let words = text.split(|c: char| c == ',' || c.is_whitespace()).filter(|word| !word.is_empty());
        let tokens: Vec<u32> = words
            .map(|word| word.parse().map_err(|_| format!("{word:?} is not a token id (a number below 2^32)")))
            .collect::<Result<_, _>>()?;
        if tokens.is_empty() { Err("no token ids".into()) } else { Ok(Self(tokens)) }
    }
}

/// What came by standard input.
#[derive(Debug, PartialEq, Eq)]
pub enum Piped {
    /// JSON: it begins with a brace or a bracket.
    Json(String),
    /// Anything else is taken for tokens.
    Tokens(Tokens),
}

/// Reads standard input.
///
/// # Errors
/// On a terminal, where waiting for input would look like hanging; and when the text is neither JSON nor tokens.
pub fn piped() -> Result<Piped, String> {
    let stdin = std::io::stdin();
    if stdin.is_terminal() {
        return Err(
            "nothing to send: give --blocks, --prefix-hash or --tokens, or pipe in tokens or JSON (see --help)".into(),
        );
    }
    let mut bytes = Vec::new();
    stdin
        .lock()
        .take(STDIN_BYTES_MAX + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| format!("can't read standard input: {error}"))?;
    if bytes.len() as u64 > STDIN_BYTES_MAX {
        return Err(format!("more than {STDIN_BYTES_MAX} bytes on standard input"));
    }
    sort(String::from_utf8(bytes).map_err(|_| "standard input is not UTF-8 text".to_owned())?)
}

fn sort(text: String) -> Result<Piped, String> {
    if text.trim_start().starts_with(['{', '[']) {
        return Ok(Piped::Json(text));
    }
    text.parse().map(Piped::Tokens).map_err(|error| format!("standard input: {error}"))
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_hex() {
        assert_eq!("0xDeadBEEF".parse::<Hash>().unwrap(), Hash(vec![0xde, 0xad, 0xbe, 0xef]));
        assert_eq!(Hash(vec![0, 255]).to_string(), "00ff");
        for (text, word) in [("", "empty"), ("0x", "empty"), ("abc", "odd"), ("zz", "'z'"), ("aé", "'é'")] {
            assert!(text.parse::<Hash>().unwrap_err().contains(word), "{text}");
        }
    }

    #[test]
    fn tokens_are_decimal() {
        assert_eq!("1,2 ,\n3".parse::<Tokens>().unwrap(), Tokens(vec![1, 2, 3]));
        for (text, word) in [("", "no token"), ("1,x", "\"x\""), ("4294967296", "2^32"), ("-1", "\"-1\"")] {
            assert!(text.parse::<Tokens>().unwrap_err().contains(word), "{text}");
        }
    }

    #[test]
    fn standard_input_is_json_or_tokens() {
        assert!(matches!(sort(" {\"a\":1}".into()), Ok(Piped::Json(_))));
        assert!(matches!(sort("[{}]".into()), Ok(Piped::Json(_))));
        assert_eq!(sort("1 2".into()), Ok(Piped::Tokens(Tokens(vec![1, 2]))));
        assert!(sort("hello".into()).unwrap_err().contains("standard input"));
    }
}

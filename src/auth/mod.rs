//! Who may call: bearer tokens from files and from a Kubernetes reviewer for the controller's port, and tenants'
//! tokens for the gRPC port. It says yes or no and why; it never logs, stores or quotes a token. What is served to whom
//! is decided at the edges, docs/SECURITY.md has the whole picture.

pub mod gate;
pub mod review;
pub mod tenants;
pub mod tokens;

pub use gate::{Audience, Denial, Gate};
pub use tenants::{Grant, TenantTokens};

use sha2::{Digest, Sha256};

/// Longest token that is looked at.
pub const MAX_TOKEN_BYTES: usize = 16 << 10;

/// What tokens are compared by.
type TokenHash = [u8; 32];

fn hash(token: &str) -> TokenHash {
    Sha256::digest(token.as_bytes()).into()
}

/// The token of an Authorization header.
pub fn bearer(header: &[u8]) -> Option<&str> {
    let (scheme, token) = std::str::from_utf8(header).ok()?.trim().split_once(' ')?;
    let token = token.trim();
    let fits = !token.is_empty() && token.len() <= MAX_TOKEN_BYTES;
    (scheme.eq_ignore_ascii_case("bearer") && fits).then_some(token)
}

/// The lines of a token file that say something, with their numbers from 1.
fn lines(content: &[u8]) -> Result<impl Iterator<Item = (usize, &str)>, String> {
    let text = std::str::from_utf8(content).map_err(|_| "is not UTF-8".to_owned())?;
    let numbered = text.lines().map(str::trim).enumerate().map(|(i, line)| (i + 1, line));
    Ok(numbered.filter(|(_, line)| !line.is_empty() && !line.starts_with('#')))
}

/// Checks that a word can be sent as a token.
fn sendable(number: usize, token: &str) -> Result<(), String> {
    if token.len() > MAX_TOKEN_BYTES {
        return Err(format!("line {number} is longer than {MAX_TOKEN_BYTES} bytes"));
    }
    match token.bytes().all(|b| b.is_ascii_graphic()) {
        true => Ok(()),
        false => Err(format!("line {number} is no token: it holds a space or what is not visible ASCII")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bearer_headers_are_read_strictly() {
        for (header, token) in [
            ("Bearer abc", Some("abc")),
            ("bearer  abc ", Some("abc")),
            ("Bearer ", None),
            ("Bearer", None),
            ("abc", None),
            ("Basic abc", None),
            ("", None),
        ] {
            assert_eq!(bearer(header.as_bytes()), token, "{header:?}");
        }
        assert_eq!(bearer(b"Bearer \xff"), None);
        assert_eq!(bearer(format!("Bearer {}", "x".repeat(MAX_TOKEN_BYTES + 1)).as_bytes()), None);
    }
}

//! The one envelope around everything of ours that is stored as a unit: magic, version, length, body,
//! checksum. It owns the choice of encoding (bincode 1.3.3 inside), so that it can be swapped in one
//! place; it must never trust a length or a version that it read. Fixed-width formats (the log's rows,
//! the mark) live beside what they describe, in [`crate::log`].
//!
//! Layout, little-endian: magic (4 bytes), version (u16), body length (u32), body, xxh3_64 (u64) over
//! everything before it.

use std::fmt;
use std::ops::RangeInclusive;

use bincode::Options;
use serde::Serialize;
use serde::de::DeserializeOwned;
use xxhash_rust::xxh3::xxh3_64;

/// Four bytes at the start of a stored unit that say what it is.
pub type Magic = [u8; 4];

/// Bytes of an envelope before its body.
pub const HEADER_BYTES: usize = 10;
/// Bytes of an envelope around its body: header and checksum.
pub const OVERHEAD_BYTES: usize = HEADER_BYTES + 8;
/// The limit for small units (identity, promise, manifest) on the size of a body.
pub const SMALL_BODY_LIMIT_BYTES: usize = 16 << 20;

/// Why bytes were not taken for what they should be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CodecError {
    /// Another kind of file or unit, or not one of ours at all.
    #[error("foreign magic: found {}, expected {}", MagicText(*found), MagicText(*expected))]
    ForeignMagic {
        /// The four bytes that were there.
        found: Magic,
        /// The four bytes that should be there.
        expected: Magic,
    },
    /// Written by a release that this one does not understand.
    #[error("format version {found} is not readable by this release, which reads {oldest} to {newest}")]
    UnsupportedVersion {
        /// The version that was found.
        found: u16,
        /// The oldest version that can be read.
        oldest: u16,
        /// The newest version that can be read.
        newest: u16,
    },
    /// The unit's length is not what its header says.
    #[error("torn: {found} bytes, expected {expected}")]
    Torn {
        /// The bytes that were there.
        found: usize,
        /// The bytes that the header promises, or that a header needs.
        expected: usize,
    },
    /// The bytes are not those that were written.
    #[error("checksum mismatch: computed {computed:016x}, stored {stored:016x}")]
    Checksum {
        /// The checksum of what was read.
        computed: u64,
        /// The checksum that was stored.
        stored: u64,
    },
    /// The body is larger than the caller allows.
    #[error("body of {bytes} bytes exceeds the limit of {limit}")]
    TooLarge {
        /// The size of the body.
        bytes: usize,
        /// The limit that applied.
        limit: usize,
    },
    /// Checksum and version are right, but the body is not of the expected shape.
    #[error("malformed body: {0}")]
    Malformed(String),
}

struct MagicText(Magic);

impl fmt::Display for MagicText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.0.escape_ascii())
    }
}

/// Encodes `value` and puts it into an envelope; its body may take at most `limit` bytes.
pub fn encode_within<T: Serialize + ?Sized>(
    magic: Magic,
    version: u16,
    value: &T,
    limit: usize,
) -> Result<Vec<u8>, CodecError> {
    let limit = limit.min(u32::MAX as usize);
    let too_large = |bytes| CodecError::TooLarge { bytes, limit };
    let bytes = options(limit).serialized_size(value).map_err(|error| match *error {
        bincode::ErrorKind::SizeLimit => too_large(limit.saturating_add(1)),
        other => CodecError::Malformed(other.to_string()),
    })?;
    let body_bytes = u32::try_from(bytes).map_err(|_| too_large(usize::MAX))?;
    let mut out = Vec::with_capacity(OVERHEAD_BYTES + body_bytes as usize);
    out.extend_from_slice(&magic);
    out.extend_from_slice(&version.to_le_bytes());
    out.extend_from_slice(&body_bytes.to_le_bytes());
    options(limit).serialize_into(&mut out, value).map_err(|error| CodecError::Malformed(error.to_string()))?;
    let checksum = xxh3_64(&out);
    out.extend_from_slice(&checksum.to_le_bytes());
    Ok(out)
}

/// [`encode_within`] the limit for small units.
pub fn encode<T: Serialize + ?Sized>(magic: Magic, version: u16, value: &T) -> Result<Vec<u8>, CodecError> {
    encode_within(magic, version, value, SMALL_BODY_LIMIT_BYTES)
}

/// Checks an envelope and returns its version and body. Use this, then [`decode_body`], where several
/// versions with different shapes are readable.
pub fn open_envelope(magic: Magic, versions: RangeInclusive<u16>, bytes: &[u8]) -> Result<(u16, &[u8]), CodecError> {
    let torn = |expected| CodecError::Torn { found: bytes.len(), expected };
    let found = *bytes.first_chunk::<4>().ok_or_else(|| torn(OVERHEAD_BYTES))?;
    if found != magic {
        return Err(CodecError::ForeignMagic { found, expected: magic });
    }
    let header = bytes.first_chunk::<HEADER_BYTES>().ok_or_else(|| torn(OVERHEAD_BYTES))?;
    let version = u16::from_le_bytes([header[4], header[5]]);
    let body_bytes = u32::from_le_bytes([header[6], header[7], header[8], header[9]]) as usize;
    // The version is judged before the checksum: a later format may be laid out otherwise.
    if !versions.contains(&version) {
        let (oldest, newest) = versions.into_inner();
        return Err(CodecError::UnsupportedVersion { found: version, oldest, newest });
    }
    let expected = body_bytes.saturating_add(OVERHEAD_BYTES);
    if bytes.len() != expected {
        return Err(torn(expected));
    }
    let (content, checksum) = bytes.split_last_chunk::<8>().ok_or_else(|| torn(expected))?;
    let stored = u64::from_le_bytes(*checksum);
    let computed = xxh3_64(content);
    if computed != stored {
        return Err(CodecError::Checksum { computed, stored });
    }
    Ok((version, &content[HEADER_BYTES..]))
}

/// Decodes the body of an envelope; more than `limit` bytes, and trailing bytes, are refused.
pub fn decode_body<T: DeserializeOwned>(body: &[u8], limit: usize) -> Result<T, CodecError> {
    if body.len() > limit {
        return Err(CodecError::TooLarge { bytes: body.len(), limit });
    }
    options(limit).deserialize(body).map_err(|error| CodecError::Malformed(error.to_string()))
}

/// [`open_envelope`] and [`decode_body`] in one, for a format whose readable versions share one shape.
pub fn decode_within<T: DeserializeOwned>(
    magic: Magic,
    versions: RangeInclusive<u16>,
    bytes: &[u8],
    limit: usize,
) -> Result<T, CodecError> {
    let (_, body) = open_envelope(magic, versions, bytes)?;
    decode_body(body, limit)
}

/// [`decode_within`] the limit for small units.
pub fn decode<T: DeserializeOwned>(magic: Magic, versions: RangeInclusive<u16>, bytes: &[u8]) -> Result<T, CodecError> {
    decode_within(magic, versions, bytes, SMALL_BODY_LIMIT_BYTES)
}

fn options(limit: usize) -> impl Options {
    bincode::DefaultOptions::new().with_limit(limit as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;

    const MAGIC: Magic = *b"TEST";

    #[derive(Serialize, Deserialize, PartialEq, Debug, Clone)]
    struct Sample {
        number: u64,
        text: String,
        list: Vec<u8>,
    }

    fn sample() -> Sample {
        Sample { number: 1 << 40, text: "prefix".into(), list: vec![0, 255, 7] }
    }

    #[test]
    fn comes_back_as_it_went_in() {
        let bytes = encode(MAGIC, 3, &sample()).unwrap();
        assert_eq!(decode::<Sample>(MAGIC, 1..=3, &bytes).unwrap(), sample());
        assert_eq!(open_envelope(MAGIC, 3..=9, &bytes).unwrap().0, 3);
    }

    #[test]
    fn layout_is_the_documented_one() {
        let bytes = encode(MAGIC, 0x0102, &7u64).unwrap();
        assert_eq!(bytes[..10], [b'T', b'E', b'S', b'T', 0x02, 0x01, 1, 0, 0, 0]);
        assert_eq!(bytes[10], 7);
        assert_eq!(bytes[11..], xxh3_64(&bytes[..11]).to_le_bytes());
    }

    #[test]
    fn every_flip_and_every_cut_is_noticed() {
        let bytes = encode(MAGIC, 1, &sample()).unwrap();
        for at in 0..bytes.len() {
            for bit in 0..8 {
                let mut damaged = bytes.clone();
                damaged[at] ^= 1 << bit;
                assert!(decode::<Sample>(MAGIC, 1..=1, &damaged).is_err(), "byte {at} bit {bit}");
            }
            assert!(decode::<Sample>(MAGIC, 1..=1, &bytes[..at]).is_err(), "cut to {at}");
        }
        let mut longer = bytes;
        longer.push(0);
        assert!(matches!(decode::<Sample>(MAGIC, 1..=1, &longer), Err(CodecError::Torn { .. })));
    }

    #[test]
    fn says_what_it_found_and_what_it_expected() {
        let bytes = encode(MAGIC, 9, &1u8).unwrap();
        let future = decode::<u8>(MAGIC, 1..=2, &bytes).unwrap_err().to_string();
        assert_eq!(future, "format version 9 is not readable by this release, which reads 1 to 2");
        let foreign = decode::<u8>(*b"PFID", 1..=2, &bytes).unwrap_err().to_string();
        assert_eq!(foreign, "foreign magic: found \"TEST\", expected \"PFID\"");
    }

    #[test]
    fn limits_hold_both_ways() {
        let big = vec![1u8; 1000];
        assert!(matches!(encode_within(MAGIC, 1, &big, 100), Err(CodecError::TooLarge { .. })));
        let bytes = encode(MAGIC, 1, &big).unwrap();
        assert!(matches!(decode_within::<Vec<u8>>(MAGIC, 1..=1, &bytes, 100), Err(CodecError::TooLarge { .. })));
        // a list that claims more than the body holds ends in an error, not in an allocation
        let mut body = vec![253u8];
        body.extend_from_slice(&(u64::MAX / 2).to_le_bytes());
        assert!(matches!(decode_body::<Vec<u8>>(&body, 1 << 20), Err(CodecError::Malformed(_))));
    }

    #[test]
    fn trailing_bytes_in_the_body_are_refused() {
        let bytes = encode(MAGIC, 1, &(1u8, 2u8)).unwrap();
        assert!(matches!(decode::<u8>(MAGIC, 1..=1, &bytes), Err(CodecError::Malformed(_))));
    }
}

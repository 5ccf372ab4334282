//! Any bytes as commands of the log. As they are, they are refused by name or read; in an envelope with the right
//! checksum, as after a defect of a writer, they are refused or applied, with the same outcome on two nodes. What was
//! read is the same again when it is written and read once more.

use prefixd_index::Index;
use prefixd_raft::{decode_command, encode_command};
use xxhash_rust::xxh3::xxh3_64;

/// As many commands of one input as are looked at.
const MAX_COMMANDS: u64 = 16;

/// A command's envelope around a body, with nothing wrong but perhaps the body.
fn envelope(body: &[u8]) -> Vec<u8> {
    let mut bytes = b"PXCM".to_vec();
    bytes.extend_from_slice(&1u16.to_le_bytes());
    bytes.extend_from_slice(&(body.len() as u32).to_le_bytes());
    bytes.extend_from_slice(body);
    let checksum = xxh3_64(&bytes);
    bytes.extend_from_slice(&checksum.to_le_bytes());
    bytes
}

/// Tries the bytes themselves, and as bodies of commands, each after its length.
pub fn run(mut data: &[u8]) {
    if let Err(error) = decode_command(data) {
        assert!(!error.to_string().is_empty());
    }
    let (mut one, mut other) = (Index::new(1), Index::new(2));
    for at in 1..=MAX_COMMANDS {
        let Some((length, rest)) = data.split_first_chunk::<2>() else { break };
        let (body, rest) = rest.split_at(usize::from(u16::from_be_bytes(*length)).min(rest.len()));
        data = rest;
        let Ok(command) = decode_command(&envelope(body)) else { continue };
        // By bytes, not by value: a command may hold a NaN.
        let written = encode_command(&command).expect("what was read can be written");
        let again = decode_command(&written).expect("what was written can be read");
        assert_eq!(encode_command(&again).expect("and written again"), written);
        assert_eq!(format!("{:?}", one.apply(at, &command)), format!("{:?}", other.apply(at, &command)));
        assert_eq!((one.digest(), one.totals()), (other.digest(), other.totals()));
    }
}

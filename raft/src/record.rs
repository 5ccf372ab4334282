//! Log records and forwarded commands as bytes. A record's body is one envelope of the codec; its magic says whether
//! it is a command, a membership or a leader's blank, its version which form of it. This is the only place where
//! commands become bytes and bytes commands.

use crate::types::{Entry, LogId, MemberNode, Membership, Payload, Proposal};
use prefixd_index::command::{Command, Stamped};
use prefixd_storage::codec::{self, CodecError};
use prefixd_storage::{LogPos, LogRecord};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;

/// The highest form of commands that this release reads and writes.
pub const FEATURE_MAX: u32 = 1;
const COMMAND: [u8; 4] = *b"PXCM";
const MEMBERSHIP: [u8; 4] = *b"PXMB";
const BLANK: [u8; 4] = *b"PXBL";
const FORWARD: [u8; 4] = *b"PXFW";
const VERSION: u16 = 1;
/// The largest encoded command: a message of the public port at its limit, with room for what the log adds.
pub(crate) const MAX_COMMAND_BYTES: usize = 32 << 20;

/// A membership as it lies on disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StoredMembers {
    /// One set of voters, or two while a change is under way.
    configs: Vec<BTreeSet<u64>>,
    /// All members, learners included.
    nodes: BTreeMap<u64, MemberNode>,
}

impl StoredMembers {
    pub(crate) fn of(membership: &Membership) -> Self {
        Self {
            configs: membership.get_joint_config().clone(),
            nodes: membership.nodes().map(|(id, node)| (*id, node.clone())).collect(),
        }
    }

    pub(crate) fn into_membership(self) -> io::Result<Membership> {
        Membership::new(self.configs, self.nodes).map_err(|e| invalid(format!("a stored membership is unusable: {e}")))
    }
}

fn invalid(message: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, message.into())
}

/// Encodes a command as the log holds it: one envelope of the codec.
///
/// # Errors
/// The command takes more than 32 MiB.
pub fn encode_command(stamped: &Stamped) -> Result<Arc<[u8]>, CodecError> {
    codec::encode_within(COMMAND, VERSION, stamped, MAX_COMMAND_BYTES).map(Into::into)
}

/// Decodes a command as the log holds it. Any bytes may be given; no length in them is trusted.
///
/// # Errors
/// Foreign, torn or changed bytes; a command from a later release, with both versions named; a body of another shape.
pub fn decode_command(body: &[u8]) -> Result<Stamped, CodecError> {
    codec::decode_within(COMMAND, VERSION..=VERSION, body, MAX_COMMAND_BYTES)
}

/// Encodes a command on its way to the leader, who stamps it.
pub(crate) fn encode_forward(command: &Command) -> Result<Vec<u8>, CodecError> {
    codec::encode_within(FORWARD, VERSION, command, MAX_COMMAND_BYTES)
}

/// Decodes a forwarded command.
pub(crate) fn decode_forward(bytes: &[u8]) -> Result<Command, CodecError> {
    codec::decode_within(FORWARD, VERSION..=VERSION, bytes, MAX_COMMAND_BYTES)
}

/// Encodes a membership for a snapshot's manifest, with the position of the entry that set it.
pub(crate) fn encode_members(at: Option<LogPos>, membership: &Membership) -> Result<Vec<u8>, CodecError> {
    codec::encode(MEMBERSHIP, VERSION, &(at, StoredMembers::of(membership)))
}

/// Decodes what [`encode_members`] wrote.
pub(crate) fn decode_members(bytes: &[u8]) -> io::Result<(Option<LogPos>, Membership)> {
    let (at, members): (Option<LogPos>, StoredMembers) =
        codec::decode(MEMBERSHIP, VERSION..=VERSION, bytes).map_err(|e| invalid(e.to_string()))?;
    Ok((at, members.into_membership()?))
}

/// The body of an entry's record.
pub(crate) fn body(payload: &Payload) -> io::Result<Arc<[u8]>> {
    let encoded = match payload {
        Payload::Normal(proposal) => return Ok(proposal.0.clone()),
        Payload::Blank => codec::encode(BLANK, VERSION, &()),
        Payload::Membership(membership) => codec::encode(MEMBERSHIP, VERSION, &StoredMembers::of(membership)),
    };
    encoded.map(Into::into).map_err(|e| invalid(e.to_string()))
}

/// The entry that a record holds. Commands stay encoded: the applier decodes them.
pub(crate) fn entry(pos: LogPos, body: Arc<[u8]>) -> io::Result<Entry> {
    let at = |e: CodecError| invalid(format!("log record {} of term {}: {e}", pos.index, pos.term));
    let payload = match body.get(..4) {
        Some(magic) if magic == COMMAND => Payload::Normal(Proposal(body)),
        Some(magic) if magic == BLANK => {
            codec::decode::<()>(BLANK, VERSION..=VERSION, &body).map_err(at)?;
            Payload::Blank
        }
        _ => {
            let members: StoredMembers = codec::decode(MEMBERSHIP, VERSION..=VERSION, &body).map_err(at)?;
            Payload::Membership(members.into_membership()?)
        }
    };
    Ok(Entry { log_id: LogId::new_term_index(pos.term, pos.index), payload })
}

/// The entry that a stored record holds.
pub(crate) fn from_record(record: LogRecord) -> io::Result<Entry> {
    entry(record.pos, record.body)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test that cannot go on says so by panicking")]
mod tests {
    use super::*;
    use prefixd_index::command::{Audit, Batch};

    fn stamped() -> Stamped {
        let batch = Batch { session: 7, sequence: 3, producer: None, deltas: Vec::new() };
        Stamped { stamp_us: 1_000, command: Command::Deltas(vec![batch]) }
    }

    #[test]
    fn every_kind_of_entry_comes_back_from_its_record() {
        let node = |name: &str| MemberNode { name: name.into(), addr: format!("{name}:9091") };
        let nodes = BTreeMap::from([(1, node("a")), (2, node("b")), (3, node("c"))]);
        let joint = vec![BTreeSet::from([1, 2]), BTreeSet::from([1, 3])];
        let payloads = [
            Payload::Blank,
            Payload::Normal(Proposal(encode_command(&stamped()).unwrap())),
            Payload::Membership(Membership::new(joint, nodes).unwrap()),
        ];
        for (index, payload) in (1..).zip(payloads) {
            let pos = LogPos { term: 4, index };
            let back = from_record(LogRecord { pos, body: body(&payload).unwrap() }).unwrap();
            assert_eq!(back.payload, payload);
            assert_eq!((back.log_id.committed_leader_id().term, back.log_id.index()), (4, index));
        }
    }

    #[test]
    fn commands_come_back_and_forwarded_ones_are_told_from_logged_ones() {
        let logged = encode_command(&stamped()).unwrap();
        assert_eq!(decode_command(&logged).unwrap(), stamped());
        let forwarded = encode_forward(&stamped().command).unwrap();
        assert_eq!(decode_forward(&forwarded).unwrap(), stamped().command);
        assert!(decode_command(&forwarded).is_err() && decode_forward(&logged).is_err());
    }

    #[test]
    fn a_command_of_a_later_release_is_refused_with_both_versions() {
        let later = codec::encode(COMMAND, 9, &stamped()).unwrap();
        let said = decode_command(&later).unwrap_err().to_string();
        assert!(said.contains('9') && said.contains('1'), "{said}");
    }

    #[test]
    fn no_flipped_bit_and_no_cut_of_a_command_is_read() {
        let audit = Command::Audit(Audit { index: 9, digest: 0x1234 });
        let whole = encode_command(&Stamped { stamp_us: 5, command: audit }).unwrap().to_vec();
        for at in 0..whole.len() {
            for bit in 0..8 {
                let mut bad = whole.clone();
                bad[at] ^= 1 << bit;
                assert!(decode_command(&bad).is_err(), "byte {at}, bit {bit}");
            }
            assert!(decode_command(&whole[..at]).is_err(), "cut to {at}");
        }
    }
}

//! What producers report, as core types: updates with prefix entries, and events. These types ride in the log, so a
//! change of shape here is a change of format. Validation happens before they are made (in the proto crate); apply
//! still treats every value as possible and never panics on one.

use serde::{Deserialize, Serialize};

/// One reported change, in the order in which it arrived.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Delta {
    /// Adds and refreshes entries of one replica, and replaces its stats if it carries any.
    Update(Update),
    /// Removes entries, or touches liveness.
    Event(Event),
}

/// An additive report of one replica in one (tenant, model, hash scheme).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Update {
    /// The reporting replica; also the key of `stats`.
    pub replica: String,
    /// The tenant that the entries belong to.
    pub tenant: String,
    /// The model that the entries belong to.
    pub model: String,
    /// The hash domain of all hashes in this update; empty means that it carries no entries.
    pub scheme: String,
    /// The producer's clock in microseconds since the Unix epoch; 0 means the stamp of the log entry. Apply takes a
    /// value above that stamp as the stamp.
    pub timestamp_us: u64,
    /// The entries, in wire order.
    pub entries: Vec<PrefixEntry>,
    /// A stats payload, replacing the last one whole.
    pub stats: Option<Stats>,
}

/// One prefix that a replica holds: a chain of blocks, a single hash, or both.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PrefixEntry {
    /// The adapter partition, already resolved against the update's default; empty is the default partition.
    pub adapter: String,
    /// The tier as sent, with 0 already turned into 1.
    pub tier: i32,
    /// The blocks of a chain entry, in order; written before `exact`.
    pub chain: Option<Chain>,
    /// A single hash with its token count.
    pub exact: Option<Exact>,
}

/// A single prefix hash with the number of tokens that it covers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Exact {
    /// The opaque hash, 1 to 128 bytes.
    #[serde(with = "serde_bytes")]
    pub hash: Vec<u8>,
    /// Tokens covered by the prefix, 0 or more.
    pub token_count: i32,
}

/// Ordered block hashes with each block's own token count, packed: chains stay chains in the log, and only apply
/// expands them to one entry a block with the cumulative count.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Chain {
    hashes: PackedHashes,
    counts: Vec<CountRun>,
}

/// Hashes side by side in one byte string.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PackedHashes {
    /// The width of every hash in bytes, or 0 when `widths` gives one a hash.
    width: u8,
    #[serde(with = "serde_bytes")]
    widths: Vec<u8>,
    #[serde(with = "serde_bytes")]
    bytes: Vec<u8>,
}

/// `repeat` blocks in a row of `tokens` tokens each.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CountRun {
    /// Tokens of each block of the run.
    pub tokens: i32,
    /// How many blocks follow each other with that count.
    pub repeat: u32,
}

impl PackedHashes {
    /// Packs hashes of at most 255 bytes each; `None` if one is longer.
    pub fn pack<B: AsRef<[u8]>>(hashes: &[B]) -> Option<Self> {
        let first = hashes.first().map_or(0, |h| h.as_ref().len());
        let uniform = first != 0 && hashes.iter().all(|h| h.as_ref().len() == first);
        let mut bytes = Vec::with_capacity(hashes.iter().map(|h| h.as_ref().len()).sum());
        for hash in hashes {
            bytes.extend_from_slice(hash.as_ref());
        }
        if uniform {
            return Some(Self { width: u8::try_from(first).ok()?, widths: Vec::new(), bytes });
        }
        let widths = hashes.iter().map(|h| u8::try_from(h.as_ref().len()).ok()).collect::<Option<Vec<u8>>>()?;
        Some(Self { width: 0, widths, bytes })
    }

    /// How many hashes there are.
    pub fn len(&self) -> usize {
        match usize::from(self.width) {
            0 => self.widths.len(),
            width => self.bytes.len() / width,
        }
    }

    /// True when there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The hashes in order. A damaged packing ends early instead of panicking.
    pub fn iter(&self) -> impl Iterator<Item = &[u8]> + '_ {
        let mut rest: &[u8] = &self.bytes;
        (0..self.len()).map_while(move |i| {
            let width = match self.width {
                0 => usize::from(*self.widths.get(i)?),
                width => usize::from(width),
            };
            let (hash, tail) = rest.split_at_checked(width)?;
            rest = tail;
            Some(hash)
        })
    }
}

impl Chain {
    /// Packs parallel lists; `None` when they disagree in length, are empty, or a hash is over 255 bytes.
    pub fn pack<B: AsRef<[u8]>>(hashes: &[B], counts: &[i32]) -> Option<Self> {
        if hashes.len() != counts.len() || hashes.is_empty() {
            return None;
        }
        let mut runs: Vec<CountRun> = Vec::new();
        for &tokens in counts {
            match runs.last_mut() {
                Some(run) if run.tokens == tokens && run.repeat < u32::MAX => run.repeat += 1,
                _ => runs.push(CountRun { tokens, repeat: 1 }),
            }
        }
        Some(Self { hashes: PackedHashes::pack(hashes)?, counts: runs })
    }

    /// How many blocks the chain has.
    pub fn len(&self) -> usize {
        self.hashes.len()
    }

    /// True when there is no block.
    pub fn is_empty(&self) -> bool {
        self.hashes.is_empty()
    }

    /// Bytes of the packed hashes and counts, for queue limits.
    pub fn packed_bytes(&self) -> usize {
        self.hashes.bytes.len() + self.hashes.widths.len() + self.counts.len() * size_of::<CountRun>()
    }

    /// True when there are as many counts as hashes, none of them negative, every hash has 1 to `max_hash_bytes`
    /// bytes and there are 1 to `max_blocks` blocks. What [`Chain::pack`] made may still fail this; so may bytes that
    /// were decoded from a log.
    pub fn is_sound(&self, max_hash_bytes: usize, max_blocks: usize) -> bool {
        let blocks = self.len();
        let counted: u64 = self.counts.iter().map(|run| u64::from(run.repeat)).sum();
        let sound = self.hashes.iter().filter(|hash| (1..=max_hash_bytes).contains(&hash.len())).count();
        (1..=max_blocks).contains(&blocks)
            && sound == blocks
            && counted == blocks as u64
            && self.counts.iter().all(|run| run.tokens >= 0)
    }

    /// (hash, cumulative token count) of each block in order; sums saturate.
    pub fn blocks(&self) -> impl Iterator<Item = (&[u8], i32)> + '_ {
        let counts = self.counts.iter().flat_map(|run| std::iter::repeat_n(run.tokens, run.repeat as usize));
        let cumulative = counts.scan(0i32, |sum, tokens| {
            *sum = sum.saturating_add(tokens);
            Some(*sum)
        });
        self.hashes.iter().zip(cumulative)
    }
}

/// A replica's own figures, as reported. NaN and infinities are already 0.
#[derive(Copy, Clone, Debug, PartialEq, Default, Serialize, Deserialize)]
pub struct Stats {
    /// Bytes of KV cache in use.
    pub cache_memory_bytes: i64,
    /// The replica's prefix cache hit rate, 0 to 1 by convention.
    pub hit_rate: f32,
    /// The replica's load, 0 (idle) to 1 (saturated) by convention.
    pub pressure: f32,
    /// Cumulative tokens served from the second tier.
    pub t2_hit_tokens: i64,
    /// Cumulative tokens asked of the second tier.
    pub t2_query_tokens: i64,
}

/// An event about one replica in one (tenant, model), across schemes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// What happened.
    pub kind: EventKind,
    /// The replica that it happened to.
    pub replica: String,
    /// The tenant.
    pub tenant: String,
    /// The model.
    pub model: String,
}

/// What an event does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum EventKind {
    /// The replica no longer holds this hash, in any scheme.
    PrefixEvicted {
        /// The evicted hash.
        #[serde(with = "serde_bytes")]
        hash: Vec<u8>,
        /// The one adapter partition meant; empty means all.
        adapter: String,
    },
    /// The replica holds nothing any more; its stats go too.
    AllCleared,
    /// The replica lives: the liveness of its existing stats is touched, nothing else.
    ReplicaUpdated {
        /// As in [`Update::timestamp_us`].
        timestamp_us: u64,
    },
}

//! What a bench reports and asks: chains that are made from their number alone, so that nothing needs to be kept, and
//! the tenant that they live in.

use futures::{StreamExt, TryStreamExt};
use prefixd_client::Client;
use prefixd_proto::inferencecache as pb;

/// Chains that share their first half.
const FAMILY: u64 = 16;
const BLOCK_TOKENS: i32 = 16;
/// Blocks of one stream while the index is filled.
pub const FILL_BLOCKS: u64 = 16_384;
/// Replicas that are cleared at once.
const CLEARING: usize = 16;

/// The chains of one bench.
pub struct Content {
    tenant: String,
    blocks: u64,
    hash_bytes: usize,
    replicas: u64,
    /// Keeps hashes of two benches apart.
    salt: u64,
}

/// Spreads a number over all bits (the finalizer of SplitMix64).
pub fn mix(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

impl Content {
    /// Chains of so many blocks, hashes of so many bytes, spread over so many replicas.
    pub fn new(blocks: u64, hash_bytes: u64, replicas: u64) -> Self {
        let salt = rand::random();
        let hash_bytes = usize::try_from(hash_bytes).unwrap_or(8);
        Self { tenant: format!("bench-{salt:016x}"), blocks, hash_bytes, replicas, salt }
    }

    /// The tenant that all is reported under.
    pub fn tenant(&self) -> String {
        self.tenant.clone()
    }

    /// The model likewise.
    pub fn model(&self) -> String {
        "bench".into()
    }

    /// Blocks of a chain.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    fn hash(&self, chain: u64, block: u64) -> bytes::Bytes {
        // Families and chains are numbered apart; a chain's own half begins where the family's ends.
        let owner = if block < self.blocks / 2 { chain / FAMILY * 2 } else { chain * 2 + 1 };
        let mut word = mix(self.salt ^ mix(owner.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ block));
        let mut hash = Vec::with_capacity(self.hash_bytes.next_multiple_of(8));
        while hash.len() < self.hash_bytes {
            hash.extend_from_slice(&word.to_be_bytes());
            word = mix(word);
        }
        hash.truncate(self.hash_bytes);
        hash.into()
    }

    fn hashes(&self, chain: u64) -> Vec<bytes::Bytes> {
        (0..self.blocks).map(|block| self.hash(chain, block)).collect()
    }

    fn token_counts(&self) -> Vec<i32> {
        (0..self.blocks).map(|_| BLOCK_TOKENS).collect()
    }

    fn replica(number: u64) -> String {
        format!("replica-{number}")
    }

    /// The report of one chain by the replica that holds it.
    pub fn update(&self, chain: u64) -> pb::CacheStateUpdate {
        pb::CacheStateUpdate {
            replica_id: Self::replica(mix(chain) % self.replicas),
            model_id: self.model(),
            tenant_id: self.tenant(),
            hash_scheme: "bench".into(),
            prefixes: vec![pb::PrefixEntry {
                block_hashes: self.hashes(chain),
                block_token_counts: self.token_counts(),
                ..Default::default()
            }],
            ..Default::default()
        }
    }

    /// The lookup of one chain.
    pub fn lookup(&self, chain: u64) -> pb::LookupRouteRequest {
        pb::LookupRouteRequest {
            model_id: self.model(),
            tenant_id: self.tenant(),
            hash_scheme: "bench".into(),
            block_hashes: self.hashes(chain),
            block_token_counts: self.token_counts(),
            ..Default::default()
        }
    }

    /// Has every replica say that it holds nothing any more. The first that fails ends it: it has tried every node for as
    /// long as a call may take, and the others would do the same.
    ///
    /// # Errors
    /// A cluster that takes no events.
    pub async fn clear(&self, client: &Client) -> Result<(), String> {
        let cleared = futures::stream::iter(0..self.replicas)
            .map(|replica| {
                client.publish(pb::CacheEvent {
                    r#type: pb::cache_event::Type::AllCleared as i32,
                    replica_id: Self::replica(replica),
                    model_id: self.model(),
                    tenant_id: self.tenant(),
                    ..Default::default()
                })
            })
            .buffer_unordered(CLEARING)
            .try_for_each(|_| std::future::ready(Ok(())))
            .await;
        cleared.map_err(|error| format!("tenant {} could not be cleared: {error}", self.tenant))
    }
}

//! The contract's messages as JSON: protobuf's field names (camelCase is understood too), every field optional, hashes
//! in hex where protobuf's own JSON has base64. Unknown fields are refused, so that a typo is not a silent miss.

use super::input::Hash;
use prefixd_proto::inferencecache as pb;
use serde::{Deserialize, Deserializer, Serialize};

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct LookupRequest {
    #[serde(alias = "modelId")]
    model_id: String,
    #[serde(alias = "tenantId")]
    tenant_id: String,
    #[serde(alias = "prefixHash")]
    prefix_hash: HexBytes,
    #[serde(alias = "prefixTokenCount")]
    prefix_token_count: i32,
    #[serde(alias = "hashScheme")]
    hash_scheme: String,
    slo: Option<Slo>,
    #[serde(alias = "blockHashes")]
    block_hashes: Vec<HexBytes>,
    #[serde(alias = "blockTokenCounts")]
    block_token_counts: Vec<i32>,
    #[serde(alias = "tokenIds")]
    token_ids: Vec<u32>,
    #[serde(alias = "promptText")]
    prompt_text: String,
    #[serde(alias = "adapterId")]
    adapter_id: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Slo {
    #[serde(alias = "ttftMs")]
    ttft_ms: i32,
    #[serde(alias = "tbtMs")]
    tbt_ms: i32,
}

/// One message of a producer: a CacheStateUpdate, or a CacheEvent, which has a `type`.
#[derive(Debug)]
pub enum Report {
    /// For ReportCacheState.
    Update(pb::CacheStateUpdate),
    /// For PublishEvent.
    Event(pb::CacheEvent),
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Update {
    #[serde(alias = "replicaId")]
    replica_id: String,
    #[serde(alias = "modelId")]
    model_id: String,
    #[serde(alias = "tenantId")]
    tenant_id: String,
    #[serde(alias = "hashScheme")]
    hash_scheme: String,
    #[serde(alias = "timestampUs")]
    timestamp_us: i64,
    prefixes: Vec<Entry>,
    stats: Option<Stats>,
    #[serde(alias = "adapterId")]
    adapter_id: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Entry {
    #[serde(alias = "prefixHash")]
    prefix_hash: HexBytes,
    #[serde(alias = "tokenCount")]
    token_count: i32,
    #[serde(alias = "blockHashes")]
    block_hashes: Vec<HexBytes>,
    #[serde(alias = "blockTokenCounts")]
    block_token_counts: Vec<i32>,
    tier: Option<Named>,
    #[serde(alias = "adapterId")]
    adapter_id: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Stats {
    #[serde(alias = "replicaId")]
    replica_id: String,
    #[serde(alias = "cacheMemoryBytes")]
    cache_memory_bytes: i64,
    #[serde(alias = "hitRate")]
    hit_rate: f32,
    pressure: f32,
    #[serde(alias = "clientVersion")]
    client_version: String,
    #[serde(alias = "t2HitTokens")]
    t2_hit_tokens: i64,
    #[serde(alias = "t2QueryTokens")]
    t2_query_tokens: i64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Event {
    r#type: Option<Named>,
    #[serde(alias = "replicaId")]
    replica_id: String,
    #[serde(alias = "modelId")]
    model_id: String,
    #[serde(alias = "tenantId")]
    tenant_id: String,
    #[serde(alias = "prefixHash")]
    prefix_hash: HexBytes,
    #[serde(alias = "timestampUs")]
    timestamp_us: i64,
    #[serde(alias = "adapterId")]
    adapter_id: String,
}

/// An enum's value, by name or by number.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Named {
    Number(i32),
    Name(String),
}

/// Bytes in hex; empty is allowed here.
#[derive(Debug, Default, Clone)]
struct HexBytes(Vec<u8>);

impl<'de> Deserialize<'de> for HexBytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        if text.is_empty() {
            return Ok(Self::default());
        }
        text.parse::<Hash>().map(|hash| Self(hash.0)).map_err(serde::de::Error::custom)
    }
}

impl From<LookupRequest> for pb::LookupRouteRequest {
    fn from(json: LookupRequest) -> Self {
        Self {
            model_id: json.model_id,
            tenant_id: json.tenant_id,
            prefix_hash: json.prefix_hash.0.into(),
            prefix_token_count: json.prefix_token_count,
            hash_scheme: json.hash_scheme,
            slo: json.slo.map(|slo| pb::Slo { ttft_ms: slo.ttft_ms, tbt_ms: slo.tbt_ms }),
            block_hashes: wire(json.block_hashes),
            block_token_counts: json.block_token_counts,
            token_ids: json.token_ids,
            prompt_text: json.prompt_text,
            adapter_id: json.adapter_id,
        }
    }
}

impl Entry {
    fn into_wire(self) -> Result<pb::PrefixEntry, String> {
        let tier = match self.tier {
            None => 0,
            Some(Named::Number(number)) => number,
            Some(Named::Name(name)) => tier(&name)? as i32,
        };
        Ok(pb::PrefixEntry {
            prefix_hash: self.prefix_hash.0.into(),
            token_count: self.token_count,
            block_hashes: wire(self.block_hashes),
            block_token_counts: self.block_token_counts,
            tier,
            adapter_id: self.adapter_id,
        })
    }
}

impl Update {
    fn into_wire(self) -> Result<pb::CacheStateUpdate, String> {
        let prefixes = self.prefixes.into_iter().map(Entry::into_wire).collect::<Result<_, _>>()?;
        let stats = self.stats.map(|stats| pb::ReplicaStats {
            replica_id: stats.replica_id,
            cache_memory_bytes: stats.cache_memory_bytes,
            hit_rate: stats.hit_rate,
            pressure: stats.pressure,
            client_version: stats.client_version,
            t2_hit_tokens: stats.t2_hit_tokens,
            t2_query_tokens: stats.t2_query_tokens,
        });
        Ok(pb::CacheStateUpdate {
            replica_id: self.replica_id,
            model_id: self.model_id,
            tenant_id: self.tenant_id,
            hash_scheme: self.hash_scheme,
            timestamp_us: self.timestamp_us,
            prefixes,
            stats,
            adapter_id: self.adapter_id,
        })
    }
}

impl Event {
    fn into_wire(self) -> Result<pb::CacheEvent, String> {
        let r#type = match self.r#type {
            None => 0,
            Some(Named::Number(number)) => number,
            Some(Named::Name(name)) => pb::cache_event::Type::from_str_name(&name.to_uppercase())
                .ok_or_else(|| format!("{name:?} is no event type"))? as i32,
        };
        Ok(pb::CacheEvent {
            r#type,
            replica_id: self.replica_id,
            model_id: self.model_id,
            tenant_id: self.tenant_id,
            prefix_hash: self.prefix_hash.0.into(),
            timestamp_us: self.timestamp_us,
            adapter_id: self.adapter_id,
        })
    }
}

fn wire<T: From<Vec<u8>>>(hashes: Vec<HexBytes>) -> Vec<T> {
    hashes.into_iter().map(|hash| hash.0.into()).collect()
}

/// A tier by its short or its full name.
pub fn tier(name: &str) -> Result<pb::CacheTier, String> {
    let name = name.to_uppercase();
    let full = if name.starts_with("CACHE_TIER_") { name.clone() } else { format!("CACHE_TIER_{name}") };
    pb::CacheTier::from_str_name(&full).ok_or_else(|| format!("{name:?} is no cache tier: T1, T2 or T3"))
}

/// A tier's short name.
pub fn tier_name(tier: i32) -> String {
    match pb::CacheTier::try_from(tier) {
        Ok(known) => known.as_str_name().trim_start_matches("CACHE_TIER_").to_owned(),
        Err(_) => tier.to_string(),
    }
}

/// Reads one lookup request.
pub fn lookup_request(text: &str) -> Result<pb::LookupRouteRequest, String> {
    // serde takes an array for a struct as well, field by field; here that is a mistake.
    if !text.trim_start().starts_with('{') {
        return Err("the request is not a JSON object".into());
    }
    serde_json::from_str::<LookupRequest>(text).map(Into::into).map_err(|error| format!("the request: {error}"))
}

/// Reads reports: one, several in a row (as JSON lines are), or arrays of them.
pub fn reports(text: &str) -> Result<Vec<Report>, String> {
    let mut reports = Vec::new();
    for value in serde_json::Deserializer::from_str(text).into_iter::<serde_json::Value>() {
        match value.map_err(|error| error.to_string())? {
            serde_json::Value::Array(values) => {
                for value in values {
                    reports.push(report(value, reports.len() + 1)?);
                }
            }
            value => reports.push(report(value, reports.len() + 1)?),
        }
    }
    if reports.is_empty() { Err("nothing to report".into()) } else { Ok(reports) }
}

fn report(value: serde_json::Value, number: usize) -> Result<Report, String> {
    if !value.is_object() {
        return Err(format!("message {number} is not a JSON object"));
    }
    let is_event = value.get("type").is_some();
    let read = if is_event {
        Event::deserialize(value).map_err(|error| error.to_string()).and_then(Event::into_wire).map(Report::Event)
    } else {
        Update::deserialize(value).map_err(|error| error.to_string()).and_then(Update::into_wire).map(Report::Update)
    };
    read.map_err(|error| format!("message {number}: {error}"))
}

/// An answered lookup.
#[derive(Debug, Serialize)]
pub struct LookupAnswer {
    reason_code: String,
    replica_scores: Vec<Score>,
    lookup_latency_us: i64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    token_ids: Vec<u32>,
    adapter_id: String,
    endpoint: String,
    attempts: u32,
    headers: serde_json::Map<String, serde_json::Value>,
}

#[derive(Debug, Serialize)]
struct Score {
    replica_id: String,
    score: f32,
    matched_tokens: i32,
    estimated_cache_hit_prob: f32,
    tier: String,
}

impl LookupAnswer {
    /// The answer with where it came from and the node's own headers.
    pub fn new(answer: &prefixd_client::Answer<pb::LookupRouteResponse>) -> Self {
        let message = &answer.message;
        let scores = message.replica_scores.iter().map(|score| Score {
            replica_id: score.replica_id.clone(),
            score: score.score,
            matched_tokens: score.matched_tokens,
            estimated_cache_hit_prob: score.estimated_cache_hit_prob,
            tier: tier_name(score.tier),
        });
        Self {
            reason_code: message.reason_code.clone(),
            replica_scores: scores.collect(),
            lookup_latency_us: message.lookup_latency_us,
            token_ids: message.token_ids.clone(),
            adapter_id: message.adapter_id.clone(),
            endpoint: answer.endpoint.to_string(),
            attempts: answer.attempts,
            headers: headers(answer).into_iter().map(|(name, value)| (name, value.into())).collect(),
        }
    }
}

/// The headers by which a node says how stale it is.
pub fn headers<T>(answer: &prefixd_client::Answer<T>) -> Vec<(String, String)> {
    answer
        .headers
        .iter()
        .filter_map(|header| match header {
            tonic::metadata::KeyAndValueRef::Ascii(name, value) if name.as_str().starts_with("x-prefixd-") => {
                Some((name.to_string(), value.to_str().unwrap_or("?").to_owned()))
            }
            _ => None,
        })
        .collect()
}

#[cfg(test)]
mod tests;

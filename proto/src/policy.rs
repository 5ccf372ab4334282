//! The policy document, versions 3 to 7, to and from the replicated policy set. Pure: text in, set or reason out.
//! Strict where a typing error could hide (unknown fields, types, ranges, trailing content), lenient where versions
//! differ: a field that is missing, or null, gets what its version says. The controller's body, an operator's file
//! and the node's own policy file all come through here.

use crate::keyed::Keyed;
use prefixd_index::policy::{Eviction, PolicySet, Strategy, TenantPolicy};
use serde::{Deserialize, Serialize};

/// Largest document, in bytes.
pub const MAX_BYTES: usize = 1 << 20;

const VERSIONS: std::ops::RangeInclusive<u64> = 3..=7;
/// From this version on a missing or 0 minimumMatchedTokens is "no floor".
const VERSION_OF_MATCHED_TOKENS: u64 = 4;

/// A document as it was written, in whatever notation.
#[derive(Deserialize)]
#[serde(transparent)]
pub struct Document(Keyed<Fields>);

#[derive(Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Fields {
    version: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    policies: Option<Vec<Keyed<Policy>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tenants: Option<Vec<Keyed<Tenant>>>,
}

#[derive(Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Policy {
    #[serde(skip_serializing_if = "Option::is_none")]
    namespace: Option<String>,
    #[serde(rename = "evictionTTL", skip_serializing_if = "Option::is_none")]
    eviction_ttl_ns: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    minimum_prefix_tokens: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    minimum_matched_tokens: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    routing_floor_score: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    lookup_timeout_ms: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    eviction: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    affinity_routing: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    strategy: Option<Keyed<Gates>>,
}

#[derive(Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Gates {
    #[serde(skip_serializing_if = "Option::is_none")]
    enable_chain_matching: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    require_chain: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    enable_tenant_hot: Option<bool>,
}

#[derive(Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Tenant {
    #[serde(rename = "tenantID", skip_serializing_if = "Option::is_none")]
    tenant_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_index_entries: Option<i64>,
    /// Says how a quota is meant, not what it is; any text is taken.
    #[serde(rename = "isolationMode", skip_serializing_if = "Option::is_none")]
    _isolation_mode: Option<String>,
}

/// Reads a whole JSON document, or says what is wrong with it. Nothing of a wrong one is taken.
pub fn decode(text: &[u8]) -> Result<PolicySet, String> {
    let document: Document = serde_json::from_slice(text).map_err(|error| error.to_string())?;
    document.into_set()
}

impl Document {
    /// The set that the document says, or what is wrong with it.
    pub fn into_set(self) -> Result<PolicySet, String> {
        let Self(Keyed(Fields { version, policies, tenants })) = self;
        if !VERSIONS.contains(&version) {
            return Err(format!("version {version} is not one of {} to {}", VERSIONS.start(), VERSIONS.end()));
        }
        let mut set = PolicySet::default();
        for Keyed(policy) in policies.unwrap_or_default() {
            let namespace = policy.namespace.clone().unwrap_or_default();
            let tenant =
                tenant_policy(policy, version).map_err(|reason| format!("namespace {namespace:?}: {reason}"))?;
            if !namespace.is_empty() {
                set.policies.insert(namespace, tenant);
            }
        }
        for Keyed(Tenant { tenant_id, max_index_entries, .. }) in tenants.unwrap_or_default() {
            let Some(tenant) = tenant_id.filter(|tenant| !tenant.is_empty()) else { continue };
            match max_index_entries {
                Some(most) => drop(set.quotas.insert(tenant, u64::try_from(most).unwrap_or(0))),
                None => drop(set.quotas.remove(&tenant)),
            }
        }
        Ok(set)
    }
}

/// A set as a JSON document that says the same.
pub fn encode(set: &PolicySet) -> String {
    // Only before version 4 can a policy say nothing of matched tokens, and only from then on "no floor".
    let is_old = set.policies.values().any(|policy| policy.minimum_matched_tokens.is_none());
    let version = if is_old { *VERSIONS.start() } else { *VERSIONS.end() };
    let policies = set.policies.iter().map(|(tenant, policy)| Keyed(written(tenant, policy))).collect();
    let quotas = set.quotas.iter().map(|(tenant, &quota)| {
        let max_index_entries = Some(i64::try_from(quota).unwrap_or(i64::MAX));
        Keyed(Tenant { tenant_id: Some(tenant.clone()), max_index_entries, ..Tenant::default() })
    });
    let fields = Fields { version, policies: Some(policies), tenants: Some(quotas.collect()) };
    // Strings and finite numbers always have a text.
    serde_json::to_string(&fields).unwrap_or_default()
}

fn written(tenant: &str, policy: &TenantPolicy) -> Policy {
    let ns = |us: u64| i64::try_from(us.saturating_mul(1_000)).unwrap_or(i64::MAX / 1_000 * 1_000);
    Policy {
        namespace: Some(tenant.to_owned()),
        eviction_ttl_ns: policy.ttl_us.map(ns),
        minimum_prefix_tokens: policy.minimum_prefix_tokens,
        minimum_matched_tokens: policy.minimum_matched_tokens,
        routing_floor_score: policy.routing_floor_score.map(short),
        lookup_timeout_ms: policy.lookup_timeout_ms.map(|ms| i32::try_from(ms).unwrap_or(i32::MAX)),
        eviction: Some(if policy.eviction == Eviction::Lfu { "lfu" } else { "lru" }.to_owned()),
        affinity_routing: policy.affinity_routing,
        strategy: policy.strategy.map(|gates| {
            Keyed(Gates {
                enable_chain_matching: Some(gates.enable_chain_matching),
                require_chain: Some(gates.require_chain),
                enable_tenant_hot: Some(gates.enable_tenant_hot),
            })
        }),
    }
}

/// The shortest number that is this one in 32 bits.
fn short(score: f32) -> f64 {
    let exact = f64::from(score);
    score.to_string().parse().ok().filter(|&short: &f64| short as f32 == score).unwrap_or(exact)
}

fn tenant_policy(policy: Policy, version: u64) -> Result<TenantPolicy, String> {
    let minimum_matched_tokens = match policy.minimum_matched_tokens {
        None | Some(0) if version < VERSION_OF_MATCHED_TOKENS => None,
        sent => Some(sent.unwrap_or(0)),
    };
    let routing_floor_score = policy.routing_floor_score.map(|score| score as f32);
    if routing_floor_score.is_some_and(|score| !score.is_finite()) {
        return Err("routingFloorScore is out of range".into());
    }
    Ok(TenantPolicy {
        ttl_us: policy.eviction_ttl_ns.and_then(ttl_us),
        minimum_prefix_tokens: policy.minimum_prefix_tokens,
        minimum_matched_tokens,
        routing_floor_score,
        lookup_timeout_ms: policy.lookup_timeout_ms.and_then(|ms| u32::try_from(ms).ok()).filter(|ms| *ms > 0),
        eviction: if policy.eviction.as_deref() == Some("lfu") { Eviction::Lfu } else { Eviction::Lru },
        affinity_routing: policy.affinity_routing,
        strategy: policy.strategy.map(|Keyed(gates)| strategy(gates)).transpose()?,
    })
}

/// 0 or less is the default; less than a microsecond is one.
fn ttl_us(ns: i64) -> Option<u64> {
    u64::try_from(ns).ok().filter(|ns| *ns > 0).map(|ns| (ns / 1_000).max(1))
}

fn strategy(gates: Gates) -> Result<Strategy, String> {
    let default = Strategy::default();
    let strategy = Strategy {
        enable_chain_matching: gates.enable_chain_matching.unwrap_or(default.enable_chain_matching),
        require_chain: gates.require_chain.unwrap_or(default.require_chain),
        enable_tenant_hot: gates.enable_tenant_hot.unwrap_or(default.enable_tenant_hot),
    };
    if strategy.require_chain && !strategy.enable_chain_matching {
        return Err("requireChain contradicts enableChainMatching=false".into());
    }
    Ok(strategy)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The policy that one entry becomes in one version.
    fn policy(version: u64, fields: &str) -> TenantPolicy {
        let comma = if fields.is_empty() { "" } else { "," };
        let text = format!(r#"{{"version":{version},"policies":[{{"namespace":"t"{comma}{fields}}}]}}"#);
        decode(text.as_bytes()).unwrap().policies.remove("t").unwrap()
    }

    #[test]
    fn a_full_document_is_read() {
        let text = br#"{"version":7,
            "policies":[{"namespace":"team-a","evictionTTL":900000000000,"minimumPrefixTokens":32,
              "minimumMatchedTokens":128,"routingFloorScore":5,"lookupTimeoutMs":25,"eviction":"lfu",
              "affinityRouting":true,
              "strategy":{"enableChainMatching":true,"requireChain":false,"enableTenantHot":true}}],
            "tenants":[{"tenantID":"team-a","maxIndexEntries":100000,"isolationMode":"Fairness"}]}"#;
        let set = decode(text).unwrap();
        let expected = TenantPolicy {
            ttl_us: Some(900_000_000),
            minimum_prefix_tokens: Some(32),
            minimum_matched_tokens: Some(128),
            routing_floor_score: Some(5.0),
            lookup_timeout_ms: Some(25),
            eviction: Eviction::Lfu,
            affinity_routing: Some(true),
            strategy: Some(Strategy::default()),
        };
        assert_eq!(set.policies.get("team-a"), Some(&expected));
        assert_eq!(set.quotas.get("team-a"), Some(&100_000));
    }

    #[test]
    fn missing_fields_get_what_their_version_says() {
        for (version, fields, matched) in [
            (3, "", None),
            (3, r#""minimumMatchedTokens":0"#, None),
            (3, r#""minimumMatchedTokens":9"#, Some(9)),
            (4, "", Some(0)),
            (4, r#""minimumMatchedTokens":0"#, Some(0)),
            (7, r#""minimumMatchedTokens":null"#, Some(0)),
            (7, r#""minimumMatchedTokens":64"#, Some(64)),
        ] {
            assert_eq!(policy(version, fields).minimum_matched_tokens, matched, "{version} {fields}");
        }
        let bare = policy(7, "");
        assert_eq!((bare.routing_floor_score, bare.affinity_routing, bare.strategy), (None, None, None));
        assert_eq!(policy(3, r#""routingFloorScore":0,"affinityRouting":false"#).routing_floor_score, Some(0.0));
        let partial = policy(6, r#""strategy":{"enableTenantHot":false}"#).strategy;
        assert_eq!(partial, Some(Strategy { enable_tenant_hot: false, ..Strategy::default() }));
    }

    #[test]
    fn odd_values_are_normalised() {
        for (ns, us) in [
            ("0", None),
            ("-5", None),
            ("1", Some(1)),
            ("1500", Some(1)),
            ("9223372036854775807", Some(9_223_372_036_854_775)),
        ] {
            assert_eq!(policy(7, &format!(r#""evictionTTL":{ns}"#)).ttl_us, us, "{ns}");
        }
        for (ms, timeout) in [("0", None), ("-1", None), ("5", Some(5))] {
            assert_eq!(policy(7, &format!(r#""lookupTimeoutMs":{ms}"#)).lookup_timeout_ms, timeout, "{ms}");
        }
        for (name, eviction) in [("lfu", Eviction::Lfu), ("lru", Eviction::Lru), ("fifo", Eviction::Lru)] {
            assert_eq!(policy(7, &format!(r#""eviction":"{name}""#)).eviction, eviction, "{name}");
        }
        let text = br#"{"version":7,"policies":null,"tenants":[{"tenantID":"a","maxIndexEntries":-3},
            {"tenantID":"b","maxIndexEntries":1},{"tenantID":"b"},{"tenantID":"","maxIndexEntries":1},{"tenantID":"c"}]}"#;
        let set = decode(text).unwrap();
        assert_eq!(set.quotas.into_iter().collect::<Vec<_>>(), [("a".to_owned(), 0)]);
    }

    #[test]
    fn the_last_of_duplicates_wins_and_the_nameless_are_skipped() {
        let text = br#"{"version":7,"policies":[{"namespace":"t","minimumPrefixTokens":1},{"namespace":""},{},
            {"namespace":"t","minimumPrefixTokens":2}]}"#;
        let set = decode(text).unwrap();
        assert_eq!(set.policies.len(), 1);
        assert_eq!(set.policies.get("t").and_then(|p| p.minimum_prefix_tokens), Some(2));
    }

    #[test]
    fn wrong_documents_are_refused_whole() {
        for wrong in [
            "",
            "{",
            "[]",
            "{}",
            r#"{"version":2}"#,
            r#"{"version":8}"#,
            r#"{"version":-1}"#,
            r#"{"version":"7"}"#,
            r#"{"version":7.0}"#,
            r#"{"version":7,"extra":1}"#,
            r#"{"version":7} x"#,
            r#"{"version":7}{"version":7}"#,
            r#"{"version":7,"version":7}"#,
            r#"{"version":7,"policies":{}}"#,
            r#"{"version":7,"policies":[{"namespace":"t","x":1}]}"#,
            r#"{"version":7,"policies":[{"namespace":1}]}"#,
            r#"{"version":7,"policies":[{"namespace":"t","minimumPrefixTokens":"3"}]}"#,
            r#"{"version":7,"policies":[{"namespace":"t","minimumPrefixTokens":2147483648}]}"#,
            r#"{"version":7,"policies":[{"namespace":"t","minimumPrefixTokens":1.5}]}"#,
            r#"{"version":7,"policies":[{"namespace":"t","routingFloorScore":1e300}]}"#,
            r#"{"version":7,"policies":[{"namespace":"t","evictionTTL":9223372036854775808}]}"#,
            r#"{"version":7,"policies":[{"namespace":"t","strategy":{"requireChain":true,"enableChainMatching":false}}]}"#,
            r#"{"version":7,"policies":[{"namespace":"t","strategy":{"other":true}}]}"#,
            r#"{"version":7,"tenants":[{"tenantID":"t","maxIndexEntries":1.5}]}"#,
            r#"{"version":7,"tenants":[{"tenantID":"t","isolationMode":1}]}"#,
            r#"{"version":7,"tenants":[{"tenantID":"t","maxIndexEntries":9223372036854775808}]}"#,
            r#"{"version":7,"policies":[{"namespace":"t","routingFloorScore":NaN}]}"#,
            r#"{"version":7,"policies":[{"namespace":"t","routingFloorScore":1e999}]}"#,
            r#"{"version":7,"policies":[{"namespace":"t","routingFloorScore":"1"}]}"#,
            r#"{"version":7,"policies":[{"namespace":"t","lookupTimeoutMs":2147483648}]}"#,
            r#"{"version":7,"policies":[{"namespace":"t","affinityRouting":1}]}"#,
            r#"{"version":7,"policies":[{"namespace":"t","eviction":true}]}"#,
            r#"{"version":7,"policies":[{"namespace":"t","strategy":[true,false,true]}]}"#,
            r#"{"version":7,"policies":[["t"]]}"#,
            r#"{"version":7,"policies":[null]}"#,
            r#"{"version":7,"tenants":[["t",1,null]]}"#,
            r#"{"Version":7}"#,
            r#"{"version":18446744073709551616}"#,
            "[7,null,null]",
            "\u{feff}{\"version\":7}",
            "{\"version\":7}\0",
        ] {
            assert!(decode(wrong.as_bytes()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_is_written_says_the_same() {
        for version in 3..=7 {
            let text = format!(
                r#"{{"version":{version},"policies":[{{"namespace":"a","evictionTTL":1,"routingFloorScore":0.1,
                "eviction":"lfu","lookupTimeoutMs":2147483647,"strategy":{{"enableTenantHot":false}}}},
                {{"namespace":"b","evictionTTL":9223372036854775807,"affinityRouting":false,"minimumMatchedTokens":-3,
                "minimumPrefixTokens":9,"routingFloorScore":-16777217.3}},{{"namespace":"c","minimumMatchedTokens":0}}],
                "tenants":[{{"tenantID":"a","maxIndexEntries":9223372036854775807}},{{"tenantID":"z",
                "maxIndexEntries":-1}}]}}"#
            );
            let set = decode(text.as_bytes()).unwrap();
            let written = encode(&set);
            assert_eq!(decode(written.as_bytes()), Ok(set), "{written}");
            assert!(written.contains("\"routingFloorScore\":0.1,"), "{written}");
        }
        assert_eq!(decode(encode(&PolicySet::default()).as_bytes()), Ok(PolicySet::default()));
    }

    proptest::proptest! {
        #[test]
        fn no_text_panics(text: Vec<u8>, cut in 0usize..400, byte: u8) {
            let _ = decode(&text);
            let mut near = br#"{"version":7,"policies":[{"namespace":"t","evictionTTL":1,"routingFloorScore":5,
                "strategy":{"requireChain":true}}],"tenants":[{"tenantID":"t","maxIndexEntries":1}]}"#.to_vec();
            let at = cut % near.len();
            near[at] = byte;
            let _ = decode(&near);
        }
    }
}

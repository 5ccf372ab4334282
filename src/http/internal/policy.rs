//! The controller's policy document, versions 3 to 7, as the replicated policy set. Pure: text in, set or reason out.
//! Strict where a typing error could hide (unknown fields, types, ranges, trailing content), lenient where versions
//! differ: a field that is missing, or null, gets what its version says.

use prefixd_index::policy::{Eviction, PolicySet, Strategy, TenantPolicy};
use serde::Deserialize;

const VERSIONS: std::ops::RangeInclusive<u64> = 3..=7;
/// From this version on a missing or 0 minimumMatchedTokens is "no floor".
const VERSION_OF_MATCHED_TOKENS: u64 = 4;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Document {
    version: u64,
    policies: Option<Vec<Policy>>,
    tenants: Option<Vec<Tenant>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Policy {
    #[serde(default)]
    namespace: Option<String>,
    #[serde(rename = "evictionTTL")]
    eviction_ttl_ns: Option<i64>,
    minimum_prefix_tokens: Option<i32>,
    minimum_matched_tokens: Option<i32>,
    routing_floor_score: Option<f64>,
    lookup_timeout_ms: Option<i32>,
    eviction: Option<String>,
    affinity_routing: Option<bool>,
    strategy: Option<Gates>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Gates {
    enable_chain_matching: Option<bool>,
    require_chain: Option<bool>,
    enable_tenant_hot: Option<bool>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Tenant {
    #[serde(rename = "tenantID")]
    tenant_id: Option<String>,
    max_index_entries: Option<i64>,
    /// Says how a quota is meant, not what it is; any text is taken.
    #[serde(rename = "isolationMode")]
    _isolation_mode: Option<String>,
}

/// Reads a whole document, or says what is wrong with it. Nothing of a wrong one is taken.
pub(super) fn decode(text: &[u8]) -> Result<PolicySet, String> {
    let document: Document = serde_json::from_slice(text).map_err(|error| error.to_string())?;
    let version = document.version;
    if !VERSIONS.contains(&version) {
        return Err(format!("version {version} is not one of {} to {}", VERSIONS.start(), VERSIONS.end()));
    }
    let mut set = PolicySet::default();
    for policy in document.policies.unwrap_or_default() {
        let namespace = policy.namespace.clone().unwrap_or_default();
        let tenant = tenant_policy(policy, version).map_err(|reason| format!("namespace {namespace:?}: {reason}"))?;
        if !namespace.is_empty() {
            set.policies.insert(namespace, tenant);
        }
    }
    for Tenant { tenant_id, max_index_entries, .. } in document.tenants.unwrap_or_default() {
        let Some(tenant) = tenant_id.filter(|tenant| !tenant.is_empty()) else { continue };
        match max_index_entries {
            Some(most) => drop(set.quotas.insert(tenant, u64::try_from(most).unwrap_or(0))),
            None => drop(set.quotas.remove(&tenant)),
        }
    }
    Ok(set)
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
        strategy: policy.strategy.map(strategy).transpose()?,
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
        ] {
            assert!(decode(wrong.as_bytes()).is_err(), "{wrong}");
        }
    }
}

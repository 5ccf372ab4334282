//! The controller of a test: it pushes policy sets to a node's internal port, and finds out which set governs a node.

use crate::cluster::Node;
use prefixd_proto::inferencecache::LookupRouteRequest;
use serde_json::{Value, json};
use std::time::Duration;

/// Longest wait for one answer; longer than any node takes to give up.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// Pushes a whole set; `Ok` when it was answered with 204. Any other answer, and none, leaves open what became of it.
pub async fn push(host: &str, document: &Value) -> Result<(), String> {
    let (url, body) = (format!("http://{host}:8081/policy"), document.to_string());
    let ask = move || {
        let config = ureq::Agent::config_builder().http_status_as_error(false).timeout_global(Some(ANSWER_TIMEOUT));
        let mut answer = config.build().new_agent().post(&url).send(body).map_err(|error| error.to_string())?;
        match answer.status().as_u16() {
            204 => Ok(()),
            status => Err(format!("{status} {}", answer.body_mut().read_to_string().unwrap_or_default().trim())),
        }
    };
    tokio::task::spawn_blocking(ask).await.unwrap()
}

/// A set that governs one tenant, and can be told from any other by a lookup alone.
pub fn marked(tenant: &str) -> Value {
    json!({"version": 7, "policies": [{"namespace": tenant, "strategy": {"requireChain": true}}]})
}

/// Whether the set of this mark governs a node now.
pub async fn governs(node: &Node, tenant: &str) -> bool {
    let request = LookupRouteRequest {
        model_id: "model".into(),
        tenant_id: tenant.into(),
        hash_scheme: "vllm".into(),
        prefix_hash: b"hash".as_slice().into(),
        ..Default::default()
    };
    let answer = node.client().lookup_route(request).await.unwrap().into_inner();
    answer.reason_code == "POLICY_REQUIRES_CHAIN"
}

/// The value of one series on a node's /metrics page, all its labels included.
pub async fn series(host: &str, series: &str) -> f64 {
    let url = format!("http://{host}:8080/metrics");
    let ask = move || ureq::get(&url).call().unwrap().body_mut().read_to_string().unwrap();
    let page = tokio::task::spawn_blocking(ask).await.unwrap();
    let line = page.lines().find(|line| line.strip_prefix(series).is_some_and(|rest| rest.starts_with(' ')));
    line.and_then(|line| line.rsplit(' ').next()?.parse().ok()).unwrap_or(0.0)
}

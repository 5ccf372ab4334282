//! The self-test of POST /probe: one synthetic block takes the real path, through proposal, commit and apply to a
//! lookup, under the reserved tenant, past policies, floors and quotas. It always cleans up.

use prefixd_index::command::{Command, Probe};
use prefixd_index::limits::MAX_ID_BYTES;
use prefixd_proto::keyed::Keyed;
use prefixd_raft::Node;
use rand::RngExt;
use serde::{Deserialize, Serialize};
use std::time::Duration;
use tokio::sync::OwnedSemaphorePermit;

const REPLICA_PREFIX: &str = "__probe-";
/// Attempts to remove the block again; what is left after them expires like everything else.
const CLEANUP_ATTEMPTS: u32 = 30;
/// Between them.
const CLEANUP_PAUSE: Duration = Duration::from_secs(2);

/// What the caller asks.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Asked {
    backend: String,
    model: String,
    hash_scheme: String,
    /// Selects a tier-2 prober; this release has none.
    #[serde(rename = "backendType")]
    _backend_type: Option<String>,
}

/// How the stages went.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct Report {
    backend: String,
    ingest: Stage,
    routing: Stage,
    t2: Stage,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    errors: Vec<StageError>,
}

#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Stage {
    Ok,
    Failed,
    Skipped,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
struct StageError {
    stage: &'static str,
    message: String,
}

/// Reads a request, or says what is wrong with it.
pub(super) fn decode(text: &[u8]) -> Result<Asked, String> {
    let Keyed(asked): Keyed<Asked> = serde_json::from_slice(text).map_err(|error| error.to_string())?;
    let required = [("backend", &asked.backend), ("model", &asked.model), ("hashScheme", &asked.hash_scheme)];
    for (name, value) in required {
        if value.is_empty() || value.len() > MAX_ID_BYTES - REPLICA_PREFIX.len() {
            return Err(format!("{name} must have 1 to {} bytes", MAX_ID_BYTES - REPLICA_PREFIX.len()));
        }
    }
    Ok(asked)
}

/// Runs the stages in order; a failed one skips the later ones. What is left of the probe goes with `permit`.
pub(super) async fn run(node: Node, asked: Asked, permit: OwnedSemaphorePermit) -> Report {
    let hash: [u8; 16] = rand::rng().random();
    let block = Probe {
        replica: format!("{REPLICA_PREFIX}{}", asked.backend),
        model: asked.model,
        scheme: asked.hash_scheme,
        hash: hash.to_vec(),
        present: true,
    };
    let mut report = Report {
        backend: asked.backend,
        ingest: Stage::Ok,
        routing: Stage::Skipped,
        t2: Stage::Skipped,
        errors: vec![],
    };
    match node.propose(Command::Probe(block.clone())).await {
        Ok(_) => report.routing = route(&node, &block, &mut report.errors),
        Err(error) => {
            report.ingest = Stage::Failed;
            report.errors.push(StageError { stage: "ingest", message: error.to_string() });
        }
    }
    // Also after a failed proposal: it may have been applied all the same. Then the caller needn't wait.
    let removal = Command::Probe(Probe { present: false, ..block });
    if report.ingest == Stage::Failed || node.propose(removal.clone()).await.is_err() {
        tokio::spawn(clean_up(node, removal, permit));
    }
    report
}

fn route(node: &Node, block: &Probe, errors: &mut Vec<StageError>) -> Stage {
    if node.view().probe(&block.model, &block.scheme, &block.replica, &block.hash, node.now_us()) {
        return Stage::Ok;
    }
    let message = "the block was committed and applied, and a lookup does not find it".into();
    errors.push(StageError { stage: "routing", message });
    Stage::Failed
}

/// Removes a block that could not be removed at once.
async fn clean_up(node: Node, removal: Command, _permit: OwnedSemaphorePermit) {
    for attempt in 1..=CLEANUP_ATTEMPTS {
        match node.propose(removal.clone()).await {
            Ok(_) => return,
            Err(error) => tracing::debug!(attempt, %error, "a probe's block is not removed yet"),
        }
        tokio::time::sleep(CLEANUP_PAUSE).await;
    }
    tracing::warn!("a probe's block could not be removed; it expires like everything else");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_strict() {
        let good = br#"{"backend":"ns/be","model":"m","hashScheme":"vllm","backendType":"lmcache"}"#;
        assert!(decode(good).is_ok());
        let long = format!(r#"{{"backend":"{}","model":"m","hashScheme":"v"}}"#, "b".repeat(1_024));
        for wrong in [
            r#"{"backend":"b","model":"m"}"#,
            r#"{"backend":"","model":"m","hashScheme":"v"}"#,
            r#"{"backend":"b","model":"m","hashScheme":"v","zzz":1}"#,
            r#"{"backend":"b","model":"m","hashScheme":"v"} trailing"#,
            r#"{"backend":1,"model":"m","hashScheme":"v"}"#,
            r#"{"backend":null,"model":"m","hashScheme":"v"}"#,
            r#"{"backend":"b","model":"m","hashScheme":"v","backendType":1}"#,
            r#"{"backend":"b","backend":"b","model":"m","hashScheme":"v"}"#,
            r#"["b","m","v",null]"#,
            "null",
            "",
            long.as_str(),
        ] {
            assert!(decode(wrong.as_bytes()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_report_leaves_out_what_it_has_not() {
        let stage_error = StageError { stage: "routing", message: "lost".into() };
        let report = Report {
            backend: "b".into(),
            ingest: Stage::Ok,
            routing: Stage::Failed,
            t2: Stage::Skipped,
            errors: vec![stage_error],
        };
        let text = serde_json::to_string(&report).unwrap();
        assert_eq!(
            text,
            r#"{"backend":"b","ingest":"ok","routing":"failed","t2":"skipped","errors":[{"stage":"routing","message":"lost"}]}"#
        );
        let fine = serde_json::to_string(&Report { errors: vec![], ..report }).unwrap();
        assert!(!fine.contains("errors"));
    }
}

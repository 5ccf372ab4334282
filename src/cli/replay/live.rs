//! The replay through prefixd: look up, route, serve, report, request by request.
//!
//! At speed 0 it is a closed loop that stays honest: a lookup waits for the acknowledgement of every earlier report that
//! changes who holds one of its blocks, and for no other, so that reports of different engines overlap. At any other
//! speed requests come when the trace says, and a lookup sees what has got through by then.

use super::engine::Claim;
use super::fleet::{Fleet, Shape};
use super::gateway::Hint;
use super::outcome::Outcome;
use super::sidecar::{self, Scope, Sidecars, Step};
use super::trace::Request;
use futures::StreamExt;
use hdrhistogram::Histogram;
use indicatif::ProgressBar;
use prefixd_client::Client;
use prefixd_proto::inferencecache as pb;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

/// A lookup that fails after this long was failed by nodes that are gone, not by one that refused it.
const SILENCE: Duration = Duration::from_millis(500);
/// Such lookups in a row after which a replay gives up: each was tried at every node.
const UNANSWERED_MAX: u32 = 8;
/// The reason code under which failed lookups are counted.
const ERROR: &str = "ERROR";

/// How to play.
pub struct Plan {
    /// The engines.
    pub shape: Shape,
    /// The trace's clock over the wall's; 0 is as fast as it goes.
    pub speed: f64,
    /// Whether an AFFINITY_HINT is followed like a match, or counts as no hint.
    pub follows_affinity: bool,
    /// Whose cache it is.
    pub scope: Scope,
}

/// The replay in progress.
struct Live<'a> {
    plan: &'a Plan,
    client: &'a Client,
    fleet: Fleet,
    sidecars: Sidecars,
    latency_us: Histogram<u64>,
    reason_codes: BTreeMap<String, u64>,
    wrong_hints: u64,
    stale_hints: u64,
    /// Lookups in a row that no node answered.
    unanswered: u32,
}

/// Plays the trace until its end or until `stop`; clears what it reported in either case. `None` when it was
/// stopped, or when no node answers any more.
pub async fn play(
    client: &Client,
    requests: &[Request],
    plan: &Plan,
    stop: &CancellationToken,
    progress: &ProgressBar,
) -> Option<Outcome> {
    let mut live = Live {
        plan,
        client,
        fleet: Fleet::new(plan.shape),
        sidecars: Sidecars::start(client, &plan.scope, plan.shape.engines),
        latency_us: histogram(),
        reason_codes: BTreeMap::new(),
        wrong_hints: 0,
        stale_hints: 0,
        unanswered: 0,
    };
    let started = Instant::now();
    let played = tokio::select! {
        answered = live.all(requests, progress) => {
            if !answered {
                tracing::error!("{UNANSWERED_MAX} lookups in a row failed at every node; giving up");
                return None;
            }
            true
        }
        () = stop.cancelled() => false,
    };
    let elapsed_s = started.elapsed().as_secs_f64();
    let outcome = live.finish(elapsed_s).await;
    clear(client, plan).await;
    played.then_some(outcome)
}

impl Live<'_> {
    /// Plays all requests; false when no node answers any more.
    async fn all(&mut self, requests: &[Request], progress: &ProgressBar) -> bool {
        let started = tokio::time::Instant::now();
        for request in requests {
            if self.plan.speed > 0.0 {
                let due = Duration::from_millis(request.arrival_ms).div_f64(self.plan.speed);
                tokio::time::sleep_until(started + due).await;
                self.sidecars.catch_up();
            } else {
                self.sidecars.settle(&request.blocks).await;
            }
            self.one(request).await;
            if self.unanswered >= UNANSWERED_MAX {
                return false;
            }
            progress.inc(1);
            if progress.position().is_multiple_of(64) {
                progress.set_message(format!("block hits {:.3}", self.fleet.block_hit_ratio()));
            }
        }
        true
    }

    async fn one(&mut self, request: &Request) {
        let hints = self.look_up(request).await;
        let engine = self.fleet.choose(&hints);
        let served = self.fleet.serve(engine, request);
        let step = Step {
            chain: request.blocks[..served.held_blocks].to_vec(),
            token_counts: token_counts(request).take(served.held_blocks).collect(),
            hit_blocks: served.hit_blocks,
            evicted: served.evicted,
        };
        self.sidecars.submit(engine, step).await;
    }

    async fn look_up(&mut self, request: &Request) -> Vec<Hint> {
        let scope = &self.plan.scope;
        let question = pb::LookupRouteRequest {
            model_id: scope.model_id.clone(),
            tenant_id: scope.tenant_id.clone(),
            hash_scheme: scope.hash_scheme.clone(),
            block_hashes: request.blocks.iter().map(|&id| sidecar::block_hash(id)).collect(),
            block_token_counts: token_counts(request).collect(),
            ..Default::default()
        };
        let asked = Instant::now();
        let answer = match self.client.lookup(question).await {
            Ok(answer) => answer.message,
            Err(error) => {
                tracing::warn!(%error, "a lookup failed; routing without a hint");
                *self.reason_codes.entry(ERROR.into()).or_default() += 1;
                self.unanswered += u32::from(asked.elapsed() >= SILENCE);
                return Vec::new();
            }
        };
        self.unanswered = 0;
        // It grows with what it gets; a saturating record would not.
        let _ = self.latency_us.record(u64::try_from(asked.elapsed().as_micros()).unwrap_or(u64::MAX));
        let hints = self.weigh(request, &answer);
        *self.reason_codes.entry(answer.reason_code).or_default() += 1;
        hints
    }

    /// Turns an answer into hints, and judges every claim in it, followed or not.
    fn weigh(&mut self, request: &Request, answer: &pb::LookupRouteResponse) -> Vec<Hint> {
        let mut hints = Vec::new();
        for score in &answer.replica_scores {
            let engine = sidecar::engine_of(&score.replica_id);
            let claimed_tokens = u64::try_from(score.matched_tokens).unwrap_or(0);
            if claimed_tokens > 0 {
                match self.fleet.judge(engine, request, claimed_tokens) {
                    Claim::True => {}
                    Claim::Stale => self.stale_hints += 1,
                    Claim::Wrong => {
                        self.wrong_hints += 1;
                        tracing::warn!(?score, "a hint for blocks that the engine never held");
                    }
                }
            }
            let is_affinity = answer.reason_code == "AFFINITY_HINT" && self.plan.follows_affinity;
            let worth = if is_affinity { f64::MIN_POSITIVE } else { f64::from(score.score) };
            hints.extend(engine.map(|engine| Hint { engine, score: worth }));
        }
        hints
    }

    async fn finish(self, elapsed_s: f64) -> Outcome {
        let report_errors = self.sidecars.finish().await;
        let lookups = self.latency_us.len();
        let quantile = |q| (lookups > 0).then(|| self.latency_us.value_at_quantile(q));
        Outcome {
            wrong_hints: self.wrong_hints,
            stale_hints: self.stale_hints,
            lookup_p50_us: quantile(0.5),
            lookup_p99_us: quantile(0.99),
            lookups_per_s: (lookups > 0).then(|| lookups as f64 / elapsed_s),
            reason_codes: self.reason_codes,
            report_errors: Some(report_errors),
            elapsed_s: Some(elapsed_s),
            ..self.fleet.outcome("prefixd")
        }
    }
}

/// Three digits, up to a minute; `new` fails only on bounds that these are not.
fn histogram() -> Histogram<u64> {
    let mut latency_us = Histogram::new(3).expect("3 digits are allowed");
    latency_us.auto(true);
    latency_us
}

fn token_counts(request: &Request) -> impl Iterator<Item = i32> + '_ {
    request.block_token_counts().map(|tokens| i32::try_from(tokens).unwrap_or(i32::MAX))
}

/// Leaves the server as it was found: every engine of this replay's tenant says that it holds nothing any more.
async fn clear(client: &Client, plan: &Plan) {
    let failed = futures::stream::iter(0..plan.shape.engines)
        .map(|engine| async move {
            let event = pb::CacheEvent {
                r#type: pb::cache_event::Type::AllCleared as i32,
                replica_id: sidecar::replica_id(engine),
                model_id: plan.scope.model_id.clone(),
                tenant_id: plan.scope.tenant_id.clone(),
                ..Default::default()
            };
            client.publish(event).await.err()
        })
        .buffer_unordered(16)
        .filter_map(std::future::ready)
        .collect::<Vec<_>>()
        .await;
    if let Some(error) = failed.first() {
        eprintln!("prefixd replay: could not clear tenant {}: {error}", plan.scope.tenant_id);
    }
}

#[cfg(test)]
mod tests;

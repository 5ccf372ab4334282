//! The live replay against a small model of the contract in this process, honest or faulty in chosen ways.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

use super::*;
use bytes::Bytes;
use pb::inference_cache_server::{InferenceCache, InferenceCacheServer};
use prefixd_client::Config;
use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex};
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Request as Call, Response, Status, Streaming};

/// What is wrong with the model.
#[derive(Clone, Copy, PartialEq)]
enum Fault {
    None,
    /// Evictions are acknowledged and forgotten.
    KeepsEvicted,
    /// Every lookup is answered with a claim out of thin air.
    Invents,
    /// Every lookup fails.
    RefusesLookups,
}

/// Who holds which block. One tenant is enough.
#[derive(Clone)]
struct Model {
    fault: Fault,
    holders: Arc<Mutex<HashMap<Bytes, BTreeSet<String>>>>,
}

impl Model {
    /// Leading runs, with the ranker's distinguishing power; freshness is always 1.
    fn rank(&self, question: &pb::LookupRouteRequest) -> Vec<pb::ReplicaScore> {
        let holders = self.holders.lock().unwrap();
        let everybody: BTreeSet<&String> = holders.values().flatten().collect();
        let runs: Vec<(String, usize)> = everybody
            .iter()
            .map(|replica| {
                let holds = |hash: &&Bytes| holders.get(*hash).is_some_and(|set| set.contains(*replica));
                ((*replica).clone(), question.block_hashes.iter().take_while(holds).count())
            })
            .filter(|(_, run)| *run > 0)
            .collect();
        let score = |run: usize, tokens: i32| {
            let matching = runs.iter().filter(|(_, other)| *other >= run).count() as f32;
            let total = everybody.len() as f32;
            tokens as f32 * if total <= 1.0 { 1.0 } else { 1.0 - matching / total }
        };
        let mut scores: Vec<_> = runs
            .iter()
            .map(|(replica, run)| {
                let matched_tokens = question.block_token_counts[..*run].iter().sum();
                let score = score(*run, matched_tokens);
                pb::ReplicaScore { replica_id: replica.clone(), score, matched_tokens, ..Default::default() }
            })
            .collect();
        scores.sort_by(|a, b| b.score.total_cmp(&a.score).then_with(|| a.replica_id.cmp(&b.replica_id)));
        if scores.first().is_some_and(|top| top.score >= 0.1) { scores } else { Vec::new() }
    }
}

fn accepted() -> Result<Response<pb::Ack>, Status> {
    Ok(Response::new(pb::Ack { accepted: true, ..Default::default() }))
}

#[tonic::async_trait]
impl InferenceCache for Model {
    async fn lookup_route(
        &self,
        call: Call<pb::LookupRouteRequest>,
    ) -> Result<Response<pb::LookupRouteResponse>, Status> {
        let replica_scores = match self.fault {
            Fault::RefusesLookups => return Err(Status::invalid_argument("no")),
            Fault::Invents => vec![pb::ReplicaScore {
                replica_id: "engine-1".into(),
                score: 1.0,
                matched_tokens: i32::MAX,
                ..Default::default()
            }],
            _ => self.rank(call.get_ref()),
        };
        let reason_code = if replica_scores.is_empty() { "NO_HINT" } else { "PREFIX_MATCH" }.into();
        Ok(Response::new(pb::LookupRouteResponse { replica_scores, reason_code, ..Default::default() }))
    }

    async fn report_cache_state(
        &self,
        call: Call<Streaming<pb::CacheStateUpdate>>,
    ) -> Result<Response<pb::Ack>, Status> {
        let mut stream = call.into_inner();
        while let Some(update) = stream.message().await? {
            let mut holders = self.holders.lock().unwrap();
            for hash in update.prefixes.iter().flat_map(|entry| &entry.block_hashes) {
                holders.entry(hash.clone()).or_default().insert(update.replica_id.clone());
            }
        }
        accepted()
    }

    async fn publish_event(&self, call: Call<pb::CacheEvent>) -> Result<Response<pb::Ack>, Status> {
        let event = call.into_inner();
        let mut holders = self.holders.lock().unwrap();
        match event.r#type() {
            pb::cache_event::Type::AllCleared => holders.values_mut().for_each(|set| {
                set.remove(&event.replica_id);
            }),
            pb::cache_event::Type::PrefixEvicted if self.fault != Fault::KeepsEvicted => {
                holders.entry(event.prefix_hash).or_default().remove(&event.replica_id);
            }
            _ => {}
        }
        holders.retain(|_, set| !set.is_empty());
        accepted()
    }

    async fn get_cache_state(
        &self,
        _: Call<pb::GetCacheStateRequest>,
    ) -> Result<Response<pb::GetCacheStateResponse>, Status> {
        Ok(Response::new(pb::GetCacheStateResponse::default()))
    }

    async fn render_template(
        &self,
        _: Call<pb::RenderTemplateRequest>,
    ) -> Result<Response<pb::RenderTemplateResponse>, Status> {
        Err(Status::unimplemented("not asked here"))
    }

    async fn lookup_pd_route(
        &self,
        _: Call<pb::LookupPdRouteRequest>,
    ) -> Result<Response<pb::LookupPdRouteResponse>, Status> {
        Err(Status::unimplemented("not asked here"))
    }

    type StreamCacheEventsStream = tokio_stream::Empty<Result<pb::CacheEvent, Status>>;

    async fn stream_cache_events(
        &self,
        _: Call<pb::StreamEventsRequest>,
    ) -> Result<Response<Self::StreamCacheEventsStream>, Status> {
        Ok(Response::new(tokio_stream::empty()))
    }

    type StreamMetricsStream = tokio_stream::Empty<Result<pb::Metric, Status>>;

    async fn stream_metrics(
        &self,
        _: Call<pb::StreamMetricsRequest>,
    ) -> Result<Response<Self::StreamMetricsStream>, Status> {
        Ok(Response::new(tokio_stream::empty()))
    }
}

async fn serve(fault: Fault) -> (Model, Client) {
    let model = Model { fault, holders: Arc::default() };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let server = tonic::transport::Server::builder().add_service(InferenceCacheServer::new(model.clone()));
    tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
    (model, Client::new(Config::new([address])).unwrap())
}

/// Twelve conversations of five turns over one system prompt; their turns come in a mixed order.
fn conversations() -> Vec<Request> {
    let mut requests = Vec::new();
    for turn in 1..=5u64 {
        for i in 0..12u64 {
            let who = (i * 7 + turn * 5) % 12 + 1;
            let blocks: Vec<u64> = std::iter::once(0).chain((1..=turn * 2).map(|n| who * 1000 + n)).collect();
            let input_tokens = 512 * blocks.len() as u64 - 100;
            requests.push(Request { arrival_ms: requests.len() as u64, input_tokens, blocks });
        }
    }
    // The last block of a prompt is partial, so the next turn replaces it.
    for request in &mut requests {
        let last = request.blocks.last_mut().unwrap();
        *last += 500;
    }
    requests
}

fn plan(speed: f64) -> Plan {
    let scope = Scope { tenant_id: "t".into(), model_id: "m".into(), hash_scheme: "s".into() };
    let shape = Shape { engines: 3, blocks_per_engine: 30, load_bound: 1.25 };
    Plan { shape, speed, follows_affinity: false, scope }
}

async fn replay(fault: Fault, speed: f64) -> (Model, Outcome) {
    let (model, client) = serve(fault).await;
    let outcome =
        play(&client, &conversations(), &plan(speed), &CancellationToken::new(), &ProgressBar::hidden()).await;
    (model, outcome.unwrap())
}

#[tokio::test]
async fn an_honest_index_is_as_good_as_perfect_knowledge() {
    let (model, outcome) = replay(Fault::None, 0.0).await;
    let perfect = super::super::offline::perfect(&conversations(), plan(0.0).shape);
    assert!(perfect.block_hit_ratio > 0.3, "the trace is worth something: {perfect:?}");
    assert!(outcome.block_hit_ratio >= 0.95 * perfect.block_hit_ratio, "{outcome:?} {perfect:?}");
    assert_eq!((outcome.wrong_hints, outcome.stale_hints, outcome.report_errors), (0, 0, Some(0)));
    assert_eq!(outcome.reason_codes.values().sum::<u64>(), 60);
    assert!(outcome.lookup_p99_us >= outcome.lookup_p50_us);
    assert!(outcome.lookup_p50_us > Some(5), "no call over a socket is faster: {:?}", outcome.lookup_p50_us);
    assert!(model.holders.lock().unwrap().is_empty(), "cleared at the end");
}

#[tokio::test]
async fn forgotten_evictions_are_seen_as_stale_hints() {
    let (_, outcome) = replay(Fault::KeepsEvicted, 0.0).await;
    assert!(outcome.stale_hints > 0, "{outcome:?}");
    assert_eq!(outcome.wrong_hints, 0);
}

#[tokio::test]
async fn invented_claims_are_seen_as_wrong_hints() {
    let (_, outcome) = replay(Fault::Invents, 0.0).await;
    assert_eq!(outcome.wrong_hints, 60);
}

#[tokio::test]
async fn a_failing_index_is_routed_around() {
    let (_, outcome) = replay(Fault::RefusesLookups, 0.0).await;
    assert_eq!(outcome.reason_codes, BTreeMap::from([(ERROR.to_owned(), 60)]));
    assert_eq!(outcome.lookup_p50_us, None);
    assert!(outcome.busiest_over_mean < 1.5, "{outcome:?}");
}

#[tokio::test]
async fn in_real_time_nothing_is_wrong_either() {
    let (_, outcome) = replay(Fault::None, 10.0).await;
    assert_eq!(outcome.wrong_hints, 0, "{outcome:?}");
    assert!(outcome.elapsed_s.unwrap() >= 0.0059, "59 ms of trace, ten times as fast: {outcome:?}");
}

#[tokio::test]
async fn a_stopped_replay_has_no_outcome_and_leaves_nothing_behind() {
    let (model, client) = serve(Fault::None).await;
    let stop = CancellationToken::new();
    let slow = plan(0.001);
    let requests = conversations();
    let progress = ProgressBar::hidden();
    let (outcome, ()) = tokio::join!(play(&client, &requests, &slow, &stop, &progress), async {
        while model.holders.lock().unwrap().is_empty() {
            tokio::task::yield_now().await;
        }
        stop.cancel();
    });
    assert!(outcome.is_none());
    assert!(model.holders.lock().unwrap().is_empty());
}

//! The client against real servers in this process, on ports of the system's choice, that fail in chosen ways.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

use super::*;
use prefixd_proto::inferencecache::inference_cache_server::{InferenceCache, InferenceCacheServer};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use tokio::net::TcpListener;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Code, Streaming};

/// What a node does with every call.
#[derive(Clone, Copy)]
enum Mood {
    Answer,
    Fail(Code),
    /// Fails the first call and hangs from then on.
    FailOnce(Code),
    Hang,
    Decline,
}

/// A node of this test; lookups are answered with its name as the reason code.
struct Fake {
    name: &'static str,
    mood: Mutex<Mood>,
    calls: AtomicU32,
    updates: Mutex<Vec<pb::CacheStateUpdate>>,
    events: Mutex<Vec<pb::CacheEvent>>,
}

struct Service(Arc<Fake>);

impl Fake {
    async fn decide(&self) -> Result<bool, Status> {
        let is_first = self.calls.fetch_add(1, Ordering::SeqCst) == 0;
        let mood = *self.mood.lock().unwrap();
        match mood {
            Mood::Answer => Ok(true),
            Mood::Decline => Ok(false),
            Mood::Fail(code) => Err(Status::new(code, format!("{} is in a bad mood", self.name))),
            Mood::FailOnce(code) if is_first => Err(Status::new(code, format!("{} is in a bad mood", self.name))),
            Mood::Hang | Mood::FailOnce(_) => std::future::pending().await,
        }
    }

    fn calls(&self) -> u32 {
        self.calls.load(Ordering::SeqCst)
    }

    fn turn(&self, mood: Mood) {
        *self.mood.lock().unwrap() = mood;
    }
}

fn ack(accepted: bool) -> Result<Response<pb::Ack>, Status> {
    let reason_code = if accepted { String::new() } else { "NOT_TODAY".into() };
    Ok(Response::new(pb::Ack { accepted, reason_code }))
}

type Empty<T> = tokio_stream::Empty<Result<T, Status>>;

#[tonic::async_trait]
impl InferenceCache for Service {
    async fn lookup_route(
        &self,
        _: Request<pb::LookupRouteRequest>,
    ) -> Result<Response<pb::LookupRouteResponse>, Status> {
        self.0.decide().await?;
        let mut response =
            Response::new(pb::LookupRouteResponse { reason_code: self.0.name.into(), ..Default::default() });
        response.metadata_mut().insert("x-prefixd-applied-index", "7".parse().unwrap());
        Ok(response)
    }

    async fn get_cache_state(
        &self,
        _: Request<pb::GetCacheStateRequest>,
    ) -> Result<Response<pb::GetCacheStateResponse>, Status> {
        self.0.decide().await?;
        Ok(Response::new(pb::GetCacheStateResponse::default()))
    }

    async fn report_cache_state(
        &self,
        request: Request<Streaming<pb::CacheStateUpdate>>,
    ) -> Result<Response<pb::Ack>, Status> {
        let mut stream = request.into_inner();
        while let Some(update) = stream.next().await {
            let update = update?;
            self.0.updates.lock().unwrap().push(update);
        }
        ack(self.0.decide().await?)
    }

    async fn publish_event(&self, request: Request<pb::CacheEvent>) -> Result<Response<pb::Ack>, Status> {
        let accepted = self.0.decide().await?;
        self.0.events.lock().unwrap().push(request.into_inner());
        ack(accepted)
    }

    async fn render_template(
        &self,
        _: Request<pb::RenderTemplateRequest>,
    ) -> Result<Response<pb::RenderTemplateResponse>, Status> {
        Err(Status::unimplemented("not asked here"))
    }

    async fn lookup_pd_route(
        &self,
        _: Request<pb::LookupPdRouteRequest>,
    ) -> Result<Response<pb::LookupPdRouteResponse>, Status> {
        Err(Status::unimplemented("not asked here"))
    }

    type StreamCacheEventsStream = Empty<pb::CacheEvent>;

    async fn stream_cache_events(
        &self,
        _: Request<pb::StreamEventsRequest>,
    ) -> Result<Response<Self::StreamCacheEventsStream>, Status> {
        Ok(Response::new(tokio_stream::empty()))
    }

    type StreamMetricsStream = Empty<pb::Metric>;

    async fn stream_metrics(
        &self,
        _: Request<pb::StreamMetricsRequest>,
    ) -> Result<Response<Self::StreamMetricsStream>, Status> {
        Ok(Response::new(tokio_stream::empty()))
    }
}

/// A node that serves, its address, and the task to abort when it shall vanish.
async fn serve(name: &'static str, mood: Mood) -> (Arc<Fake>, String, tokio::task::JoinHandle<()>) {
    let fake = Arc::new(Fake {
        name,
        mood: Mutex::new(mood),
        calls: AtomicU32::new(0),
        updates: Mutex::default(),
        events: Mutex::default(),
    });
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let service = InferenceCacheServer::new(Service(Arc::clone(&fake))).max_decoding_message_size(64 << 20);
    let server = tonic::transport::Server::builder().add_service(service);
    let task = tokio::spawn(async move {
        let _ = server.serve_with_incoming(TcpListenerStream::new(listener)).await;
    });
    (fake, address, task)
}

/// An address at which nobody listens: it was bound and given up.
async fn nobody() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    listener.local_addr().unwrap().to_string()
}

fn client(endpoints: &[&String]) -> Client {
    let mut config = Config::new(endpoints.iter().map(|endpoint| endpoint.as_str()));
    config.read_deadline = Duration::from_secs(10);
    config.write_deadline = Duration::from_secs(10);
    config.backoff_max = Duration::from_millis(20);
    Client::new(config).unwrap()
}

async fn who(client: &Client) -> Result<String, Error> {
    client.lookup(pb::LookupRouteRequest::default()).await.map(|answer| answer.message.reason_code)
}

#[tokio::test]
async fn lookups_take_turns_over_all_nodes() {
    let (a, address_a, _a) = serve("a", Mood::Answer).await;
    let (b, address_b, _b) = serve("b", Mood::Answer).await;
    let client = client(&[&address_a, &address_b]);
    for _ in 0..10 {
        who(&client).await.unwrap();
    }
    assert_eq!((a.calls(), b.calls()), (5, 5));
}

#[tokio::test]
async fn an_answer_says_where_it_came_from() {
    let (_, address, _task) = serve("a", Mood::Answer).await;
    let answer = client(&[&address]).lookup(pb::LookupRouteRequest::default()).await.unwrap();
    assert_eq!(&*answer.endpoint, address.as_str());
    assert_eq!(answer.attempts, 1);
    assert_eq!(answer.headers.get("x-prefixd-applied-index").unwrap(), "7");
}

#[tokio::test]
async fn a_dead_node_is_passed_by_and_then_tried_last() {
    let (_, living, _task) = serve("a", Mood::Answer).await;
    let dead = nobody().await;
    let client = client(&[&dead, &living]);
    let mut attempts = Vec::new();
    for _ in 0..6 {
        attempts.push(client.lookup(pb::LookupRouteRequest::default()).await.unwrap().attempts);
    }
    assert_eq!(attempts.iter().filter(|&&n| n == 2).count(), 1, "asked once, then remembered: {attempts:?}");
}

#[tokio::test]
async fn unavailable_and_exhausted_go_on_to_the_next_node() {
    for code in [Code::Unavailable, Code::ResourceExhausted] {
        let (bad, address_bad, _b) = serve("bad", Mood::Fail(code)).await;
        let (good, address_good, _g) = serve("good", Mood::Answer).await;
        let client = client(&[&address_bad, &address_good]);
        for _ in 0..4 {
            client.publish(pb::CacheEvent::default()).await.unwrap();
        }
        assert_eq!(bad.calls(), 1, "{code:?}");
        assert_eq!(good.calls(), 4, "{code:?}");
    }
}

#[tokio::test]
async fn a_node_that_hangs_leaves_time_for_the_others() {
    let (_, address_stuck, _s) = serve("stuck", Mood::Hang).await;
    let (_, address_good, _g) = serve("good", Mood::Answer).await;
    let mut config = Config::new([address_stuck, address_good]);
    config.read_deadline = Duration::from_millis(600);
    let client = Client::new(config).unwrap();
    for _ in 0..4 {
        assert_eq!(who(&client).await.unwrap(), "good");
    }
}

#[tokio::test]
async fn a_node_that_vanishes_in_the_middle_of_a_call_is_replaced() {
    // On a runtime of its own: its end takes the established connections along, as the end of a process does.
    let apart = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (stuck, address_stuck, _s) = apart.spawn(serve("stuck", Mood::Hang)).await.unwrap();
    let (_, address_good, _g) = serve("good", Mood::Answer).await;
    let client = client(&[&address_stuck, &address_good]);
    let pending = tokio::spawn(async move {
        loop {
            let answer = client.publish(pb::CacheEvent::default()).await.unwrap();
            if answer.attempts > 1 {
                return answer;
            }
        }
    });
    while stuck.calls() == 0 {
        tokio::task::yield_now().await;
    }
    apart.shutdown_background();
    assert_eq!(*pending.await.unwrap().endpoint, *address_good);
}

#[tokio::test]
async fn a_refusal_is_final() {
    let (first, address_first, _f) = serve("first", Mood::Fail(Code::InvalidArgument)).await;
    let (second, address_second, _s) = serve("second", Mood::Fail(Code::InvalidArgument)).await;
    let error = who(&client(&[&address_first, &address_second])).await.unwrap_err();
    assert!(matches!(&error, Error::Refused { status, .. } if status.code() == Code::InvalidArgument), "{error}");
    assert!(!error.is_transient());
    assert_eq!(first.calls() + second.calls(), 1);
}

#[tokio::test]
async fn an_ack_that_declines_is_an_error() {
    let (_, address, _task) = serve("a", Mood::Decline).await;
    let error = client(&[&address]).publish(pb::CacheEvent::default()).await.unwrap_err();
    assert!(matches!(&error, Error::NotAccepted { reason_code, .. } if reason_code == "NOT_TODAY"), "{error}");
}

#[tokio::test]
async fn giving_up_is_bounded_by_attempts_and_by_the_deadline() {
    let (fake, address, _task) = serve("a", Mood::Fail(Code::Unavailable)).await;
    let mut config = Config::new([address.clone()]);
    config.attempts_max = 3;
    config.backoff_max = Duration::from_millis(1);
    let error = who(&Client::new(config.clone()).unwrap()).await.unwrap_err();
    assert!(matches!(error, Error::Exhausted { attempts: 3, .. }), "{error}");
    assert_eq!(fake.calls(), 3);

    config.attempts_max = u32::MAX;
    config.read_deadline = Duration::from_millis(100);
    let error = who(&Client::new(config).unwrap()).await.unwrap_err();
    assert!(matches!(error, Error::Exhausted { elapsed, .. } if elapsed < Duration::from_secs(2)), "{error}");
}

/// What a write to this address is told as when it may take 300 ms.
async fn told_of_a_write(endpoint: &str) -> String {
    let mut config = Config::new([endpoint]);
    config.write_deadline = Duration::from_millis(300);
    config.backoff_base = Duration::from_millis(1);
    let error = Client::new(config).unwrap().publish(pb::CacheEvent::default()).await.unwrap_err();
    assert!(error.is_transient() || matches!(error, Error::Refused { .. }), "{error}");
    error.to_string()
}

#[tokio::test]
async fn an_error_says_whether_time_the_way_or_the_node_was_at_fault() {
    let (_, stuck, _s) = serve("stuck", Mood::Hang).await;
    let told = told_of_a_write(&stuck).await;
    let late = format!("and 1 attempt: {stuck} did not answer before the deadline of the call");
    assert!(told.starts_with("given up after 0.") && told.ends_with(&late), "{told}");
    let (_, torn, _t) = serve("torn", Mood::FailOnce(Code::Unavailable)).await;
    let told = told_of_a_write(&torn).await;
    let before = format!("; before that {torn} answered Unavailable: torn is in a bad mood");
    assert!(told.contains("and 2 attempts: ") && told.contains("the deadline") && told.ends_with(&before), "{told}");
    let dead = nobody().await;
    let told = told_of_a_write(&dead).await;
    assert!(told.contains(&format!(": {dead} can't be reached: Connection refused")), "{told}");
    let (_, firm, _f) = serve("firm", Mood::Fail(Code::PermissionDenied)).await;
    assert_eq!(told_of_a_write(&firm).await, format!("{firm} answered PermissionDenied: firm is in a bad mood"));
}

#[tokio::test]
async fn a_port_that_is_another_is_asked_after() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let other = listener.local_addr().unwrap().to_string();
    let server = tonic::transport::Server::builder().add_routes(tonic::service::Routes::default());
    let _other = tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
    let told = told_of_a_write(&other).await;
    assert!(told.contains("does not know this call (Unimplemented); is this the gRPC port (--grpc-addr"), "{told}");
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let http = listener.local_addr().unwrap().to_string();
    let _http = tokio::spawn(async move {
        use tokio::io::AsyncWriteExt;
        while let Ok((mut connection, _)) = listener.accept().await {
            let _ = connection.write_all(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n").await;
        }
    });
    let told = told_of_a_write(&http).await;
    assert!(told.contains("is this the gRPC port"), "{told}");
}

#[tokio::test]
async fn a_report_is_repeated_whole_on_the_next_node() {
    let (bad, address_bad, _b) = serve("bad", Mood::Fail(Code::Unavailable)).await;
    let (good, address_good, _g) = serve("good", Mood::Answer).await;
    let client = client(&[&address_bad, &address_good]);
    let updates: Vec<_> =
        (0..3).map(|i| pb::CacheStateUpdate { replica_id: format!("r{i}"), ..Default::default() }).collect();
    client.report(updates.clone()).await.unwrap();
    client.report(updates.clone()).await.unwrap();
    assert_eq!(*bad.updates.lock().unwrap(), updates);
    assert_eq!(*good.updates.lock().unwrap(), [updates.clone(), updates].concat());
}

#[tokio::test]
async fn writes_that_fail_do_not_shun_a_node_for_reads() {
    let (a, address_a, _a) = serve("a", Mood::Fail(Code::Unavailable)).await;
    let (_, address_b, _b) = serve("b", Mood::Answer).await;
    let client = client(&[&address_a, &address_b]);
    while a.calls() == 0 {
        client.publish(pb::CacheEvent::default()).await.unwrap();
    }
    a.turn(Mood::Answer);
    let mut seen = [who(&client).await.unwrap(), who(&client).await.unwrap()];
    seen.sort();
    assert_eq!(seen, ["a", "b"]);
}

#[tokio::test]
async fn messages_larger_than_four_mebibytes_pass() {
    let (fake, address, _task) = serve("a", Mood::Answer).await;
    let entry = pb::PrefixEntry { prefix_hash: vec![7; 9 << 20].into(), ..Default::default() };
    let update = pb::CacheStateUpdate { prefixes: vec![entry], ..Default::default() };
    client(&[&address]).report(vec![update.clone()]).await.unwrap();
    assert_eq!(*fake.updates.lock().unwrap(), [update]);
}

#[test]
fn unusable_endpoints_are_named() {
    for (endpoint, word) in
        [("", "invalid"), ("localhost", "port"), ("https://h:1", "whom to trust"), ("a b:1", "a b:1"), ("[::1", "[::1")]
    {
        let error = Client::new(Config::new([endpoint])).err().unwrap();
        assert!(matches!(error, Error::BadEndpoint { .. }), "{endpoint}: {error}");
        assert!(error.to_string().contains(word), "{endpoint}: {error}");
    }
    assert!(matches!(Client::new(Config::new(Vec::<String>::new())), Err(Error::NoEndpoints)));
}

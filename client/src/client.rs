//! The client: one lazy connection a node, and the loop that takes a call from node to node.

use crate::health::Health;
use crate::{Config, Error, retry, secure};
use prefixd_proto::failure::{self, Failure};
use prefixd_proto::inferencecache as pb;
use prefixd_proto::inferencecache::inference_cache_client::InferenceCacheClient;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Response, Status};

type Stub = InferenceCacheClient<Channel>;

/// A cluster as a client sees it. Cheap to clone; clones share connections and the memory of failures. Dropping a call
/// cancels it.
#[derive(Clone)]
pub struct Client {
    inner: Arc<Inner>,
}

struct Inner {
    config: Config,
    nodes: Vec<Node>,
    /// Apart, because a node that can't commit still answers lookups.
    reads: Health,
    writes: Health,
    origin: Instant,
}

struct Node {
    endpoint: Arc<str>,
    stub: Stub,
}

/// An answer and where it came from.
#[derive(Clone, Debug)]
pub struct Answer<T> {
    /// The answer itself.
    pub message: T,
    /// The node that gave it, as in [`Config::endpoints`].
    pub endpoint: Arc<str>,
    /// How many calls it took; 1 when the first node answered.
    pub attempts: u32,
    /// The answer's headers: on lookups `x-prefixd-applied-index` and its kin, which say how stale the node is.
    pub headers: tonic::metadata::MetadataMap,
}

/// How the time of a call is spent.
#[derive(Clone, Copy)]
enum Kind {
    Read,
    Write,
}

impl Client {
    /// A client of these nodes. Nothing is connected until the first call; must be called within a tokio runtime.
    ///
    /// # Errors
    /// [`Error::NoEndpoints`], [`Error::BadEndpoint`] and [`Error::NoRuntime`]; a node that is merely down is no error.
    pub fn new(config: Config) -> Result<Self, Error> {
        if config.endpoints.is_empty() {
            return Err(Error::NoEndpoints);
        }
        let nodes =
            config.endpoints.iter().map(|endpoint| Node::new(endpoint, &config)).collect::<Result<Vec<_>, _>>()?;
        let first = rand::random_range(0..nodes.len());
        let (reads, writes) = (Health::new(nodes.len(), first), Health::new(nodes.len(), first));
        Ok(Self { inner: Arc::new(Inner { config, nodes, reads, writes, origin: Instant::now() }) })
    }

    /// Asks which replicas hold a prompt's prefix.
    ///
    /// # Errors
    /// [`Error::Exhausted`] and [`Error::Refused`]. A miss is no error: it is an answer without scores.
    pub async fn lookup(&self, request: pb::LookupRouteRequest) -> Result<Answer<pb::LookupRouteResponse>, Error> {
        self.call(Kind::Read, |mut stub, timeout| {
            let request = self.timed(request.clone(), timeout);
            async move { stub.lookup_route(request).await }
        })
        .await
    }

    /// Asks for the stats and totals of one (tenant, model).
    ///
    /// # Errors
    /// [`Error::Exhausted`] and [`Error::Refused`].
    pub async fn cache_state(
        &self,
        request: pb::GetCacheStateRequest,
    ) -> Result<Answer<pb::GetCacheStateResponse>, Error> {
        self.call(Kind::Read, |mut stub, timeout| {
            let request = self.timed(request.clone(), timeout);
            async move { stub.get_cache_state(request).await }
        })
        .await
    }

    /// Reports updates in one stream and waits until all of them are committed by a quorum and applied on the node that
    /// took them. A retry repeats the whole stream.
    ///
    /// # Errors
    /// [`Error::Exhausted`] (any part of the stream may have been applied), [`Error::Refused`], [`Error::NotAccepted`].
    pub async fn report(&self, updates: Vec<pb::CacheStateUpdate>) -> Result<Answer<pb::Ack>, Error> {
        let updates: Arc<[pb::CacheStateUpdate]> = updates.into();
        let answer = self
            .call(Kind::Write, |mut stub, timeout| {
                let updates = Arc::clone(&updates);
                let stream = tokio_stream::iter((0..updates.len()).map(move |i| updates[i].clone()));
                let request = self.timed(stream, timeout);
                async move { stub.report_cache_state(request).await }
            })
            .await?;
        accepted(answer)
    }

    /// Publishes one event, acknowledged like a report.
    ///
    /// # Errors
    /// As for [`Client::report`].
    pub async fn publish(&self, event: pb::CacheEvent) -> Result<Answer<pb::Ack>, Error> {
        let answer = self
            .call(Kind::Write, |mut stub, timeout| {
                let request = self.timed(event.clone(), timeout);
                async move { stub.publish_event(request).await }
            })
            .await?;
        accepted(answer)
    }

    /// Takes one call from node to node until one answers, refuses it for good, or the deadline or the limit on
    /// attempts is reached.
    async fn call<T, F, Fut>(&self, kind: Kind, attempt_on: F) -> Result<Answer<T>, Error>
    where
        F: Fn(Stub, Duration) -> Fut,
        Fut: Future<Output = Result<Response<T>, Status>>,
    {
        let Inner { config, nodes, reads, writes, .. } = &*self.inner;
        let started = Instant::now();
        let (deadline, health) = match kind {
            Kind::Read => (config.read_deadline, reads),
            Kind::Write => (config.write_deadline, writes),
        };
        let mut attempts = 0;
        let mut earlier = None;
        loop {
            let order = health.order(self.now_ms());
            for (position, &index) in order.iter().enumerate() {
                let node = &nodes[index];
                let remaining = deadline.saturating_sub(started.elapsed());
                let timeout = match kind {
                    Kind::Read => retry::share(remaining, order.len() - position),
                    Kind::Write => remaining,
                };
                attempts += 1;
                let outcome = tokio::time::timeout(timeout, attempt_on(node.stub.clone(), timeout)).await;
                let status = match outcome.unwrap_or_else(|_| Err(failure::late())) {
                    Ok(response) => {
                        health.answered(index);
                        return Ok(Answer::new(response, node, attempts));
                    }
                    Err(status) if !retry::is_retryable(&status) => {
                        return Err(Error::Refused { endpoint: Arc::clone(&node.endpoint), status: Box::new(status) });
                    }
                    Err(status) => status,
                };
                let penalty_ms = u64::try_from(config.unhealthy_for.as_millis()).unwrap_or(u64::MAX);
                health.failed(index, self.now_ms().saturating_add(penalty_ms));
                tracing::debug!(endpoint = %node.endpoint, attempts, %status, "a node did not answer");
                let pause = retry::pause(attempts, config.backoff_base, config.backoff_max, rand::random());
                let elapsed = started.elapsed();
                if attempts >= config.attempts_max || elapsed + pause >= deadline {
                    let endpoint = Arc::clone(&node.endpoint);
                    let earlier = earlier.filter(|_| Failure::of(&status) == Failure::Deadline);
                    return Err(Error::Exhausted { attempts, elapsed, endpoint, status: Box::new(status), earlier });
                }
                if Failure::of(&status) != Failure::Deadline {
                    earlier = Some((Arc::clone(&node.endpoint), Box::new(status)));
                }
                tokio::time::sleep(pause).await;
            }
        }
    }

    /// A request with its limit in time and this client's token.
    fn timed<T>(&self, message: T, timeout: Duration) -> Request<T> {
        let mut request = Request::new(message);
        request.set_timeout(timeout);
        if let Some(authorization) = &self.inner.config.authorization {
            request.metadata_mut().insert("authorization", authorization.clone());
        }
        request
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.inner.origin.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

impl Node {
    fn new(endpoint: &str, config: &Config) -> Result<Self, Error> {
        let bad = |reason: String| Error::BadEndpoint { endpoint: endpoint.to_owned(), reason };
        let address = match endpoint.split_once("://") {
            None => format!("http://{endpoint}"),
            Some(("http", _)) if config.tls.is_none() => endpoint.to_owned(),
            // The scheme is only for people: whether TLS is spoken, the configuration says.
            Some(("https", address)) if config.tls.is_some() => format!("http://{address}"),
            Some(("https", _)) => return Err(bad("https needs a TLS configuration that says whom to trust".into())),
            Some(("http", _)) => return Err(bad("TLS is configured: give host:port or https://host:port".into())),
            Some(_) => return Err(bad("give host:port, http://host:port or https://host:port".into())),
        };
        let target = Endpoint::from_shared(address).map_err(|error| bad(error.to_string()))?;
        if target.uri().port_u16().is_none() {
            return Err(bad("the port is missing: give host:port".into()));
        }
        if tokio::runtime::Handle::try_current().is_err() {
            return Err(Error::NoRuntime);
        }
        let target = target
            .connect_timeout(config.connect_timeout)
            .http2_keep_alive_interval(config.keepalive)
            .keep_alive_timeout(config.keepalive)
            .keep_alive_while_idle(true)
            .tcp_nodelay(true);
        let channel = match &config.tls {
            Some(tls) => secure::channel(&target, tls.clone()),
            None => target.connect_lazy(),
        };
        let stub = InferenceCacheClient::new(channel)
            .max_decoding_message_size(config.message_bytes_max)
            .max_encoding_message_size(config.message_bytes_max);
        Ok(Self { endpoint: endpoint.into(), stub })
    }
}

impl<T> Answer<T> {
    fn new(response: Response<T>, node: &Node, attempts: u32) -> Self {
        let (headers, message, _) = response.into_parts();
        Self { message, endpoint: Arc::clone(&node.endpoint), attempts, headers }
    }
}

fn accepted(answer: Answer<pb::Ack>) -> Result<Answer<pb::Ack>, Error> {
    if answer.message.accepted {
        return Ok(answer);
    }
    Err(Error::NotAccepted { endpoint: answer.endpoint, reason_code: answer.message.reason_code })
}

#[cfg(test)]
mod tests;

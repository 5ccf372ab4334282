//! Asks a Kubernetes API server whose a token is (authentication.k8s.io/v1 TokenReview). Only an answer that names our
//! audience counts, and only users that the operator listed are let in: any pod can have a token made out to any
//! audience. Allowed tokens are remembered for a short while; refusals are not. Nothing is asked twice at once beyond
//! a limit.

use super::gate::Audience;
use super::{TokenHash, hash};
use crate::watched::Watched;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST};
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use serde_json::json;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;

/// Reviews under way at once.
const MAX_REVIEWS: usize = 16;
/// Allowed tokens that are remembered.
const MAX_REMEMBERED: usize = 1_024;
/// Largest answer of the reviewer.
const MAX_ANSWER_BYTES: usize = 1 << 20;
const PATH: &str = "/apis/authentication.k8s.io/v1/tokenreviews";

/// What the reviewer said of a token.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is a listed user's, for this audience.
    Allowed,
    /// It is valid for this audience, and of a user that isn't listed.
    SomebodyElse,
    /// It isn't valid for this audience.
    Invalid,
}

/// Where the reviewer is: `http://…` or `https://…`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReviewUrl {
    /// True for https.
    pub secure: bool,
    /// The host, without brackets.
    pub host: String,
    /// The port.
    pub port: u16,
    /// The path, where the usual one isn't meant.
    pub path: String,
}

impl ReviewUrl {
    /// Reads a URL; `None` if it is none.
    pub fn parse(text: &str) -> Option<Self> {
        let uri: hyper::Uri = text.parse().ok()?;
        let secure = match uri.scheme_str()? {
            "https" => true,
            "http" => false,
            _ => return None,
        };
        let host = uri.host()?.trim_start_matches('[').trim_end_matches(']').to_owned();
        let path = if uri.path() == "/" { PATH.to_owned() } else { uri.path().to_owned() };
        let port = uri.port_u16().unwrap_or(if secure { 443 } else { 80 });
        (!host.is_empty() && uri.query().is_none()).then_some(Self { secure, host, port, path })
    }

    /// True if the token would travel in clear beyond this machine.
    pub fn is_exposed(&self) -> bool {
        let loopback =
            self.host == "localhost" || self.host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback());
        !self.secure && !loopback
    }

    fn authority(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }
}

/// How to ask.
pub struct ReviewConfig {
    /// The reviewer.
    pub url: ReviewUrl,
    /// Whom to trust as the reviewer; needed for https.
    pub ca: Option<Arc<Watched<Arc<rustls::ClientConfig>>>>,
    /// This node's own token, if the reviewer wants one.
    pub own_token: Option<Arc<Watched<String>>>,
    /// The audience of /policy.
    pub policy_audience: String,
    /// The audience of /snapshot and /probe.
    pub controller_audience: String,
    /// Who is let in.
    pub users: Vec<String>,
    /// Longest review.
    pub timeout: Duration,
    /// How long an allowed token is remembered; zero asks each time.
    pub remember: Duration,
}

/// The reviewer's client.
pub struct Review {
    config: ReviewConfig,
    under_way: Semaphore,
    remembered: Mutex<HashMap<(TokenHash, &'static str), Instant>>,
}

/// The part of a TokenReview that matters here.
#[derive(Debug, Default, Deserialize)]
struct Answer {
    #[serde(default)]
    status: Status,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Status {
    authenticated: bool,
    user: User,
    audiences: Vec<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct User {
    username: String,
}

impl Review {
    /// A client that has asked nothing yet.
    pub fn new(config: ReviewConfig) -> Self {
        Self { config, under_way: Semaphore::new(MAX_REVIEWS), remembered: Mutex::default() }
    }

    /// Asks, or remembers.
    ///
    /// # Errors
    /// The reviewer can't be reached, is too slow, or answers what is no review.
    pub async fn judge(&self, audience: Audience, token: &str) -> Result<Verdict, String> {
        let (name, wanted) = match audience {
            Audience::Policy => ("policy", &self.config.policy_audience),
            Audience::Controller => ("controller", &self.config.controller_audience),
        };
        let key = (hash(token), name);
        if self.remembers(&key) {
            return Ok(Verdict::Allowed);
        }
        let asked = Instant::now();
        let asking = async {
            let _permit = self.under_way.acquire().await.map_err(|e| e.to_string())?;
            self.ask(token, wanted).await
        };
        let answer = tokio::time::timeout(self.config.timeout, asking).await;
        let answer =
            answer.map_err(|_| format!("no answer of the token reviewer within {:?}", self.config.timeout))??;
        let verdict = self.weigh(&answer.status, wanted);
        if verdict == Verdict::Allowed {
            self.remember(key, asked);
        }
        Ok(verdict)
    }

    fn weigh(&self, status: &Status, audience: &str) -> Verdict {
        if !status.authenticated || !status.audiences.iter().any(|named| named == audience) {
            return Verdict::Invalid;
        }
        match self.config.users.contains(&status.user.username) {
            true => Verdict::Allowed,
            false => Verdict::SomebodyElse,
        }
    }

    fn remembers(&self, key: &(TokenHash, &'static str)) -> bool {
        let remembered = self.remembered.lock().unwrap_or_else(PoisonError::into_inner);
        remembered.get(key).is_some_and(|asked| asked.elapsed() < self.config.remember)
    }

    fn remember(&self, key: (TokenHash, &'static str), asked: Instant) {
        let mut remembered = self.remembered.lock().unwrap_or_else(PoisonError::into_inner);
        if remembered.len() >= MAX_REMEMBERED {
            remembered.retain(|_, asked| asked.elapsed() < self.config.remember);
        }
        if remembered.len() < MAX_REMEMBERED {
            remembered.insert(key, asked);
        }
    }

    async fn ask(&self, token: &str, audience: &str) -> Result<Answer, String> {
        let url = &self.config.url;
        let unreachable = |error: String| format!("the token reviewer at {}: {error}", url.authority());
        let tcp = TcpStream::connect((url.host.as_str(), url.port)).await.map_err(|e| unreachable(e.to_string()))?;
        let body = json!({
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenReview",
            "spec": {"token": token, "audiences": [audience]},
        });
        let mut request = hyper::Request::post(&url.path)
            .header(HOST, url.authority())
            .header(CONTENT_TYPE, "application/json")
            .header(ACCEPT, "application/json");
        if let Some(own) = &self.config.own_token {
            request = request.header(AUTHORIZATION, format!("Bearer {}", own.current()));
        }
        let request = request.body(Full::new(Bytes::from(body.to_string()))).map_err(|e| unreachable(e.to_string()))?;
        let answered = match &self.config.ca {
            Some(ca) if url.secure => {
                let name = rustls::pki_types::ServerName::try_from(url.host.clone());
                let name = name.map_err(|e| unreachable(e.to_string()))?;
                let connector = tokio_rustls::TlsConnector::from(ca.current().as_ref().clone());
                exchange(connector.connect(name, tcp).await.map_err(|e| unreachable(e.to_string()))?, request).await
            }
            _ if url.secure => Err("https needs a CA".into()),
            _ => exchange(tcp, request).await,
        };
        let (status, content) = answered.map_err(unreachable)?;
        if !status.is_success() {
            return Err(unreachable(format!("answered {status}")));
        }
        serde_json::from_slice(&content).map_err(|_| unreachable("answered what is no TokenReview".into()))
    }
}

/// One request and its whole answer on a connection of its own.
async fn exchange(
    io: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    request: hyper::Request<Full<Bytes>>,
) -> Result<(hyper::StatusCode, Bytes), String> {
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(io)).await.map_err(|e| e.to_string())?;
    let answer = async {
        let answer = sender.send_request(request).await.map_err(|e| e.to_string())?;
        let status = answer.status();
        let body = Limited::new(answer.into_body(), MAX_ANSWER_BYTES).collect().await.map_err(|e| e.to_string())?;
        Ok((status, body.to_bytes()))
    };
    tokio::pin!(connection);
    tokio::pin!(answer);
    tokio::select! {
        biased;
        answer = &mut answer => answer,
        ended = &mut connection => {
            if let Err(error) = ended {
                return Err(error.to_string());
            }
            // The connection is done; what it read is there already.
            answer.await
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(text: &str) -> Option<(bool, String, bool)> {
        ReviewUrl::parse(text).map(|url| (url.secure, format!("{}{}", url.authority(), url.path), url.is_exposed()))
    }

    #[test]
    fn urls_are_read_with_the_usual_path_and_ports() {
        let at = |authority: &str| format!("{authority}{PATH}");
        assert_eq!(url("https://kubernetes.default.svc"), Some((true, at("kubernetes.default.svc:443"), false)));
        assert_eq!(url("https://[::1]:6443/"), Some((true, at("[::1]:6443"), false)));
        assert_eq!(url("http://127.0.0.1:1/review"), Some((false, "127.0.0.1:1/review".into(), false)));
        assert_eq!(url("http://api"), Some((false, at("api:80"), true)));
        for bad in ["", "kubernetes", "ftp://x", "https://", "https://x/?q"] {
            assert_eq!(url(bad), None, "{bad}");
        }
    }

    #[test]
    fn only_a_listed_user_with_our_audience_is_allowed() {
        let config = ReviewConfig {
            url: ReviewUrl::parse("http://127.0.0.1:1").unwrap(),
            ca: None,
            own_token: None,
            policy_audience: "p".into(),
            controller_audience: "c".into(),
            users: vec!["good".into()],
            timeout: Duration::from_secs(1),
            remember: Duration::from_secs(60),
        };
        let review = Review::new(config);
        for (answer, verdict) in [
            (json!({"authenticated": true, "user": {"username": "good"}, "audiences": ["p", "x"]}), Verdict::Allowed),
            (json!({"authenticated": true, "user": {"username": "bad"}, "audiences": ["p"]}), Verdict::SomebodyElse),
            (json!({"authenticated": true, "user": {"username": "good"}, "audiences": ["c"]}), Verdict::Invalid),
            (json!({"authenticated": true, "user": {"username": "good"}}), Verdict::Invalid),
            (json!({"authenticated": false, "user": {"username": "good"}, "audiences": ["p"]}), Verdict::Invalid),
            (json!({}), Verdict::Invalid),
        ] {
            let status: Status = serde_json::from_value(answer.clone()).unwrap();
            assert_eq!(review.weigh(&status, "p"), verdict, "{answer}");
        }
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let config = ReviewConfig {
            url: ReviewUrl::parse("http://127.0.0.1:1").unwrap(),
            ca: None,
            own_token: None,
            policy_audience: "p".into(),
            controller_audience: "c".into(),
            users: Vec::new(),
            timeout: Duration::from_secs(1),
            remember: Duration::from_secs(60),
        };
        let review = Review::new(config);
        for i in 0..MAX_REMEMBERED + 10 {
            review.remember((hash(&i.to_string()), "policy"), Instant::now());
        }
        assert_eq!(review.remembered.lock().unwrap().len(), MAX_REMEMBERED);
        assert!(review.remembers(&(hash("0"), "policy")) && !review.remembers(&(hash("0"), "controller")));
    }
}

//! Tokens that stand for tenants on the gRPC port. Each line of the file is a token, a space, and the tenants that it
//! may speak for, separated by commas; `*` is all of them. A token on several lines has the tenants of all. Without a
//! file every grant is open: the contract's tenant_id is then a label and no boundary.

use super::{TokenHash, bearer, hash, lines, sendable};
use crate::watched::Watched;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tonic::Status;
use tonic::metadata::MetadataMap;

/// Most tokens, and most tenants over all lines.
const MAX_TOKENS: usize = 100_000;
const MAX_TENANTS: usize = 1_000_000;

/// Whom one token may speak for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Tenants {
    all: bool,
    named: BTreeSet<Box<str>>,
}

/// The content of the file. Looked up by hash, so that no comparison of tokens takes a telling time.
#[derive(Debug, Default)]
pub struct Table(HashMap<TokenHash, Tenants>);

impl Table {
    /// Reads a file's content.
    ///
    /// # Errors
    /// No token, too many, or a line that is none. The error never quotes one.
    pub fn parse(content: &[u8]) -> Result<Self, String> {
        let mut table: HashMap<TokenHash, Tenants> = HashMap::new();
        let mut total = 0;
        for (number, line) in lines(content)? {
            let (token, tenants) = line
                .split_once(char::is_whitespace)
                .ok_or_else(|| format!("line {number} names no tenant: a line is a token, a space and tenants"))?;
            sendable(number, token)?;
            let held = table.entry(hash(token)).or_default();
            for tenant in tenants.split(',').map(str::trim) {
                total += 1;
                match tenant {
                    "" => return Err(format!("line {number} has an empty tenant")),
                    "*" => held.all = true,
                    name => drop(held.named.insert(name.into())),
                }
            }
            if table.len() > MAX_TOKENS || total > MAX_TENANTS {
                return Err(format!("holds more than {MAX_TOKENS} tokens or {MAX_TENANTS} tenants"));
            }
        }
        if table.is_empty() { Err("holds no token".into()) } else { Ok(Self(table)) }
    }

    fn allows(&self, token: &TokenHash, tenant: &str) -> Option<bool> {
        let tenants = self.0.get(token)?;
        Some(tenants.all || tenants.named.contains(tenant))
    }
}

/// The tenants' tokens of a node, or none at all.
#[derive(Default)]
pub struct TenantTokens {
    table: Option<Arc<Watched<Table>>>,
    counts: Counts,
}

/// Calls and messages that were judged.
#[derive(Debug, Default)]
struct Counts {
    ok: AtomicU64,
    unauth: AtomicU64,
    forbidden: AtomicU64,
}

/// What the token of one call is worth. It is looked up anew for each message: a token that was taken out of the file
/// ends the stream that it opened.
#[derive(Clone, Debug)]
pub struct Grant(Option<TokenHash>);

impl TenantTokens {
    /// Tokens from a watched file; `None` is the open behaviour.
    pub fn new(table: Option<Arc<Watched<Table>>>) -> Arc<Self> {
        Arc::new(Self { table, counts: Counts::default() })
    }

    /// Reads the call's token.
    ///
    /// # Errors
    /// UNAUTHENTICATED without a token that the file knows.
    pub fn admit(&self, metadata: &MetadataMap) -> Result<Grant, Status> {
        let Some(table) = &self.table else { return Ok(Grant(None)) };
        let header = metadata.get("authorization").map(|value| value.as_encoded_bytes());
        let token = header.and_then(bearer).map(hash);
        match token.filter(|token| table.current().0.contains_key(token)) {
            Some(token) => Ok(Grant(Some(token))),
            None => Err(self.unknown()),
        }
    }

    /// Judges one message of a call.
    ///
    /// # Errors
    /// PERMISSION_DENIED for a tenant that the token doesn't allow; UNAUTHENTICATED once the token is gone.
    pub fn check(&self, grant: &Grant, tenant: &str) -> Result<(), Status> {
        let (Some(table), Some(token)) = (&self.table, &grant.0) else { return Ok(()) };
        match table.current().allows(token, tenant) {
            Some(true) => {
                self.counts.ok.fetch_add(1, Ordering::Relaxed);
                Ok(())
            }
            Some(false) => {
                self.counts.forbidden.fetch_add(1, Ordering::Relaxed);
                Err(Status::permission_denied("the token does not allow this tenant_id"))
            }
            None => Err(self.unknown()),
        }
    }

    fn unknown(&self) -> Status {
        self.counts.unauth.fetch_add(1, Ordering::Relaxed);
        Status::unauthenticated("a bearer token of a tenant is required in the authorization metadata")
    }

    /// (result, how often), for the metrics.
    pub fn counts(&self) -> [(&'static str, u64); 3] {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let Counts { ok, unauth, forbidden } = &self.counts;
        [("ok", read(ok)), ("unauth", read(unauth)), ("forbidden", read(forbidden))]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_a_token_and_its_tenants() {
        let table = Table::parse(b"# gateways\na t1, t2\nb *\na\tt3\n").unwrap();
        for (token, tenant, allowed) in [
            ("a", "t1", Some(true)),
            ("a", "t2", Some(true)),
            ("a", "t3", Some(true)),
            ("a", "t4", Some(false)),
            ("a", "", Some(false)),
            ("b", "anyone", Some(true)),
            ("c", "t1", None),
        ] {
            assert_eq!(table.allows(&hash(token), tenant), allowed, "{token} {tenant}");
        }
    }

    #[test]
    fn what_is_no_table_is_refused_without_a_quote() {
        for (content, part) in
            [("", "no token"), ("a t\nsecret", "line 2 names no tenant"), ("secret t,,u", "line 1 has an empty tenant")]
        {
            let error = Table::parse(content.as_bytes()).unwrap_err();
            assert!(error.contains(part) && !error.contains("secret"), "{error}");
        }
    }
}

//! LookupRoute: from a decoded message to a reply within a deadline, on the calling task, without a lock and without
//! waiting. What the answer is, the index decides; that it is in time, this module.

use super::{Edge, deadline};
use prefixd_index::limits::RESERVED_TENANT;
use prefixd_index::{LookupRequest, LookupScratch, Reason};
use prefixd_proto::lookups::Reply;
use std::cell::RefCell;
use std::time::{Duration, Instant};
use tonic::codegen::http::{HeaderMap, HeaderName, HeaderValue};

thread_local! {
    /// A thread's buffers. A lookup never yields, so no two on one thread overlap.
    static SCRATCH: RefCell<LookupScratch> = RefCell::default();
}

const CLUSTER: HeaderName = HeaderName::from_static("x-prefixd-cluster");
const APPLIED_INDEX: HeaderName = HeaderName::from_static("x-prefixd-applied-index");
const STALE_MS: HeaderName = HeaderName::from_static("x-prefixd-stale-ms");
/// Room for the headers of an answer.
const HEADERS: usize = 8;

impl Edge {
    /// Answers and counts one lookup. The answer is lent to `write`, which is to make the message of it and nothing else;
    /// beside what that gave are the headers to send with it.
    pub(super) fn lookup<B: AsRef<[u8]>, R>(
        &self,
        request: &LookupRequest<'_, B>,
        started: Instant,
        caller: Option<Instant>,
        write: impl FnOnce(Reply<'_>) -> R,
    ) -> (R, HeaderMap) {
        let view = self.node.view();
        let tenant = view
            .lookup_timeout_ms(request.tenant, &self.rank)
            .and_then(|ms| started.checked_add(Duration::from_millis(ms.into())));
        let deadline = deadline::tighter(caller, tenant);
        let known = view.knows_model(request.model);
        let done = |reason, hint_used| {
            let latency = started.elapsed();
            self.metrics.lookups.record(request.model, known, reason, hint_used, latency);
            i64::try_from(latency.as_micros()).unwrap_or(i64::MAX)
        };
        let adapter = request.adapter;
        let early = |reason| Reply { answer: Err(reason), adapter, latency_us: done(reason, false) };
        let written = if request.tenant == RESERVED_TENANT {
            write(early(Reason::NoHint))
        } else if deadline::is_past(deadline) {
            write(early(Reason::Timeout))
        } else {
            let now_us = self.node.now_us();
            SCRATCH.with_borrow_mut(|scratch| {
                view.with_answer(request, now_us, &self.rank, scratch, |answer| {
                    if deadline::is_past(deadline) {
                        return write(early(Reason::Timeout));
                    }
                    self.credits.leave(answer.credits.clone());
                    let latency_us = done(answer.reason, !answer.is_empty());
                    write(Reply { answer: Ok(answer), adapter, latency_us })
                })
            })
        };
        (written, self.how_current(view.published().applied_index))
    }

    /// The answer to a lookup that was never read.
    pub(super) fn unread_lookup(&self) -> (Reply<'static>, HeaderMap) {
        let view = self.node.view();
        self.metrics.lookups.record("", false, Reason::Timeout, false, Duration::ZERO);
        let reply = Reply { answer: Err(Reason::Timeout), adapter: "", latency_us: 0 };
        (reply, self.how_current(view.published().applied_index))
    }

    /// Headers that say which state of which cluster answered.
    fn how_current(&self, applied_index: u64) -> HeaderMap {
        let sample = self.vitals.sample();
        let mut headers = HeaderMap::with_capacity(HEADERS);
        headers.insert(CLUSTER, sample.cluster.clone());
        headers.insert(APPLIED_INDEX, applied_index.into());
        headers.insert(
            STALE_MS,
            match sample.stale_ms() {
                0 => HeaderValue::from_static("0"),
                ms => ms.into(),
            },
        );
        headers
    }
}

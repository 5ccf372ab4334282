//! LookupRoute: from a decoded message to an answer within a deadline, on the calling task, without a lock and
//! without waiting. What the answer is, the index decides; that it is in time, this module.

use super::{Edge, deadline};
use prefixd_index::limits::RESERVED_TENANT;
use prefixd_index::{LookupAnswer, LookupScratch, Reason};
use prefixd_proto::inferencecache::{LookupRouteRequest, LookupRouteResponse};
use prefixd_proto::lookups;
use std::cell::RefCell;
use std::time::{Duration, Instant};
use tonic::Response;
use tonic::metadata::MetadataMap;

thread_local! {
    /// A thread's buffers. A lookup never yields, so no two on one thread overlap.
    static SCRATCH: RefCell<LookupScratch> = RefCell::default();
}

impl Edge {
    /// Answers and counts one lookup.
    pub(super) fn lookup(
        &self,
        mut message: LookupRouteRequest,
        started: Instant,
        caller: Option<Instant>,
    ) -> Response<LookupRouteResponse> {
        let view = self.node.view();
        let mut answer = self.answer(&view, &message, started, caller);
        self.credits.leave(std::mem::take(&mut answer.credits));
        let (reason, hint_used) = (answer.reason, !answer.scores.is_empty());
        let known = view.knows_model(&message.model_id);
        let applied_index = view.published().applied_index;
        let adapter = std::mem::take(&mut message.adapter_id);
        let latency = started.elapsed();
        let latency_us = i64::try_from(latency.as_micros()).unwrap_or(i64::MAX);
        self.metrics.lookups.record(&message.model_id, known, reason, hint_used, latency);
        let mut response = Response::new(lookups::response(answer, adapter, latency_us));
        self.say_how_current(response.metadata_mut(), applied_index);
        response
    }

    /// The answer to a lookup that was never read.
    pub(super) fn unread_lookup(&self) -> Response<LookupRouteResponse> {
        let view = self.node.view();
        let answer = LookupAnswer::early(Reason::Timeout);
        self.metrics.lookups.record("", false, answer.reason, false, Duration::ZERO);
        let mut response = Response::new(lookups::response(answer, String::new(), 0));
        self.say_how_current(response.metadata_mut(), view.published().applied_index);
        response
    }

    fn answer(
        &self,
        view: &prefixd_index::View,
        message: &LookupRouteRequest,
        started: Instant,
        caller: Option<Instant>,
    ) -> LookupAnswer {
        if message.tenant_id == RESERVED_TENANT {
            return LookupAnswer::early(Reason::NoHint);
        }
        let tenant = view
            .lookup_timeout_ms(&message.tenant_id, &self.rank)
            .and_then(|ms| started.checked_add(Duration::from_millis(ms.into())));
        let deadline = deadline::tighter(caller, tenant);
        if deadline::is_past(deadline) {
            return LookupAnswer::early(Reason::Timeout);
        }
        let request = lookups::request(message, self.max_token_ids);
        let now_us = self.node.now_us();
        let answer = SCRATCH.with_borrow_mut(|scratch| view.lookup(&request, now_us, &self.rank, scratch));
        if deadline::is_past(deadline) {
            return LookupAnswer::early(Reason::Timeout);
        }
        answer
    }

    /// Says in headers which state of which cluster answered.
    fn say_how_current(&self, metadata: &mut MetadataMap, applied_index: u64) {
        let sample = self.vitals.sample();
        metadata.insert("x-prefixd-cluster", sample.cluster.clone());
        metadata.insert("x-prefixd-applied-index", applied_index.into());
        metadata.insert("x-prefixd-stale-ms", sample.stale_ms().into());
    }
}

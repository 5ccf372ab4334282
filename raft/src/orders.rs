//! The operator's calls about members, on any node: passed on to the leader once, and again while leadership moves, until
//! they are answered or their time is over.

use crate::dial::Purpose;
use crate::node::Inner;
use crate::operate::{Ask, Miss, Obeyed, ask_members};
use prefixd_proto::admin as wire;
use prefixd_proto::admin::admin_client::AdminClient;
use prefixd_proto::failure::{Failure, Port};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use tonic::transport::Channel;
use tonic::{Code, Request, Response, Status};

/// Between two tries.
const PAUSE: Duration = Duration::from_millis(200);
/// An order may wait for so many times the time of a proposal: a change takes two of them, and may have to wait for one.
const PROPOSALS_WAITED: u32 = 3;

/// What an answer may take to its caller, or a tenth of the caller's time if that is less.
const WAY_BACK: Duration = Duration::from_millis(500);

/// Where an order is to go.
enum Leader {
    Here,
    At(u64, String),
    Nobody,
}

impl Inner {
    /// Has an order carried out by the leader. `forwarded`: it comes from a node that took this one for the leader.
    /// `patience`: how long its caller waits, if it said so; it is answered before that.
    pub(crate) async fn give_order(
        self: &Arc<Self>,
        ask: Ask,
        forwarded: bool,
        patience: Option<Duration>,
    ) -> Result<wire::ChangeResponse, Status> {
        let until = Instant::now() + wait(self.config.timing.propose_timeout, patience);
        let mut retry = Retry::default();
        loop {
            let why = match self.leader() {
                Leader::Here => match self.obey_here(&ask).await {
                    Ok(done) => return Ok(self.change_response(done)),
                    Err(Miss::Told(status)) => return retry.settle(self, &ask, self.unless_deaf(status)),
                    Err(Miss::Busy(why)) => Status::aborted(format!("{why}; run this again")),
                    Err(Miss::Unclear(why)) => {
                        retry.was_tried = true;
                        Status::aborted(format!("{why}; `prefixd ctl member list` shows what came of it"))
                    }
                    // This one has just resigned: who asked finds the next.
                    Err(Miss::NotLeader) if forwarded => return Err(not_the_leader(self)),
                    Err(Miss::NotLeader) => no_leader(self),
                },
                _ if forwarded => return Err(not_the_leader(self)),
                Leader::At(id, addr) => {
                    retry.first_leader.get_or_insert(id);
                    match self.pass_on(&addr, &ask, until).await {
                        Ok(response) => return Ok(response),
                        Err(status) if may_pass(&status) => {
                            retry.was_tried |= status.code() != Code::Aborted;
                            of_leader(&addr, status)
                        }
                        Err(status) => return retry.settle(self, &ask, of_leader(&addr, status)),
                    }
                }
                Leader::Nobody => no_leader(self),
            };
            if let Some(done) = retry.moved(self, &ask) {
                return Ok(done);
            }
            if Instant::now() + PAUSE >= until || self.stopping.is_cancelled() {
                // Raft remembers a leader that is gone, and that it is out of reach is not what is the matter.
                return Err(if self.present_leader().is_none() { no_leader(self) } else { why });
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// A leader that no quorum answers refuses for reasons that follow from that: it says so first.
    fn unless_deaf(&self, status: Status) -> Status {
        if status.code() != Code::FailedPrecondition || self.present_leader().is_some() {
            return status;
        }
        let name = &self.config.node_name;
        Status::failed_precondition(format!("{name} leads, but no quorum answers it now: {}", status.message()))
    }

    fn leader(&self) -> Leader {
        let Some(metrics) = self.metrics() else { return Leader::Nobody };
        match metrics.current_leader {
            Some(id) if id == metrics.id => Leader::Here,
            Some(id) => self.addr_of(&metrics, id).map_or(Leader::Nobody, |addr| Leader::At(id, addr)),
            None => Leader::Nobody,
        }
    }

    fn admin_client(&self, addr: &str) -> Result<AdminClient<Channel>, Status> {
        let unavailable = |why: String| Status::unavailable(format!("the leader's address {addr} {why}"));
        self.dialer.channel(addr, Purpose::Calls).map(AdminClient::new).map_err(unavailable)
    }

    async fn pass_on(&self, addr: &str, ask: &Ask, until: Instant) -> Result<wire::ChangeResponse, Status> {
        let mut client = self.admin_client(addr)?;
        let left = until.saturating_duration_since(Instant::now());
        let forwarded = true;
        let answer = async {
            match ask.clone() {
                Ask::Add { name, addr: node_addr } => {
                    client.add_member(limited(wire::AddMemberRequest { name, node_addr, forwarded }, left)).await
                }
                Ask::Remove(member) => {
                    client.remove_member(limited(wire::RemoveMemberRequest { member, forwarded }, left)).await
                }
                Ask::Promote(member) => {
                    client.promote_member(limited(wire::PromoteMemberRequest { member, forwarded }, left)).await
                }
                Ask::HandOver(to) => {
                    let to = to.unwrap_or_default();
                    client.transfer_leader(limited(wire::TransferLeaderRequest { to, forwarded }, left)).await
                }
            }
        };
        match tokio::time::timeout_at(until, answer).await {
            Ok(answer) => answer.map(Response::into_inner),
            Err(_) => Err(Status::unavailable(format!("the leader at {addr} did not answer in time"))),
        }
    }

    fn change_response(&self, done: Obeyed) -> wire::ChangeResponse {
        let status = self.status();
        wire::ChangeResponse {
            message: done.message,
            changed: done.changed,
            members: status.members.iter().map(crate::admin::member_to_wire).collect(),
            leader: status.leader,
        }
    }

    /// The members as the leader sees them, else as this node does.
    pub(crate) async fn list_members(&self, forwarded: bool) -> wire::ListMembersResponse {
        if let (Leader::At(_, addr), false) = (self.leader(), forwarded)
            && let Ok(mut client) = self.admin_client(&addr)
        {
            let wait = self.config.timing.election_max * 2;
            let request = limited(wire::ListMembersRequest { forwarded: true }, wait);
            if let Ok(Ok(answer)) = tokio::time::timeout(wait, client.list_members(request)).await
                && answer.get_ref().from_leader
            {
                return answer.into_inner();
            }
        }
        let status = self.status();
        let mut members: Vec<wire::MemberStatus> = status.members.iter().map(crate::admin::member_to_wire).collect();
        if let Some(metrics) = self.metrics() {
            for (member, said) in ask_members(self, &metrics).await {
                let row = members.iter_mut().find(|row| row.node_id == member.node_id);
                if let (Some(row), Some(said)) = (row, said) {
                    row.release = said.release;
                    row.feature_max = Some(said.feature_max);
                    row.ready = Some(said.ready);
                }
            }
        }
        wire::ListMembersResponse {
            members,
            leader: status.leader,
            term: status.term,
            cluster_id: status.cluster_id.map(|id| id.to_be_bytes().to_vec()).unwrap_or_default(),
            seen_by: status.node_name,
            from_leader: self.is_leader(),
            feature_level: status.feature_level,
        }
    }
}

/// How long an order may wait.
fn wait(propose_timeout: Duration, patience: Option<Duration>) -> Duration {
    let ours = propose_timeout * PROPOSALS_WAITED;
    patience.map_or(ours, |patience| ours.min(answered_within(patience)))
}

/// The answer to a caller that waits so long has to be on its way before its time is over, or it never learns what it
/// waited for.
pub(crate) fn answered_within(patience: Duration) -> Duration {
    patience - (patience / 10).min(WAY_BACK)
}

/// What earlier tries left unclear: an order whose answer was lost may have been carried out.
#[derive(Default)]
struct Retry {
    was_tried: bool,
    first_leader: Option<u64>,
}

impl Retry {
    /// The outcome of a try that was told no: a member that is gone at the second try was taken out by the first, unless
    /// that is not committed yet.
    fn settle(&self, inner: &Inner, ask: &Ask, status: Status) -> Result<wire::ChangeResponse, Status> {
        match ask {
            Ask::Remove(who)
                if self.was_tried
                    && status.code() == Code::NotFound
                    && !inner.metrics().is_some_and(|metrics| crate::join::changing(&metrics)) =>
            {
                Ok(inner.change_response(Obeyed { message: format!("{who} is no member any more"), changed: true }))
            }
            _ => Err(status),
        }
    }

    /// Leadership that was to go to anybody, and has moved since the first try.
    fn moved(&self, inner: &Inner, ask: &Ask) -> Option<wire::ChangeResponse> {
        let first = self.first_leader.filter(|_| self.was_tried && *ask == Ask::HandOver(None))?;
        let metrics = inner.metrics()?;
        let leader = metrics.current_leader.filter(|id| *id != first)?;
        let name = metrics.membership_config.membership().get_node(&leader)?.name.clone();
        Some(inner.change_response(Obeyed { message: format!("{name} ({leader:016x}) leads now"), changed: true }))
    }
}

/// A request that its server gives up after `left`.
fn limited<T>(message: T, left: Duration) -> Request<T> {
    let mut request = Request::new(message);
    request.set_timeout(left);
    request
}

/// Whether another try may fare better.
fn may_pass(status: &Status) -> bool {
    matches!(status.code(), Code::Unavailable | Code::Unknown | Code::Cancelled | Code::Aborted)
}

/// The leader's own word as it is, and anything else as what happened on the way to it.
fn of_leader(addr: &str, status: Status) -> Status {
    match Failure::of(&status) {
        Failure::Answered { .. } => status,
        failure => {
            let code = if failure == Failure::UnknownCall { Code::Unimplemented } else { Code::Unavailable };
            Status::new(code, format!("the leader known last, at {addr}, {}", failure.told(Port::Node)))
        }
    }
}

fn not_the_leader(inner: &Inner) -> Status {
    Status::unavailable(format!("{} does not lead", inner.config.node_name))
}

fn no_leader(inner: &Inner) -> Status {
    match inner.leaderless() {
        None => Status::failed_precondition(format!(
            "{} belongs to no cluster yet: {}; ask a member instead",
            inner.config.node_name,
            inner.readiness().1
        )),
        Some(said) => Status::unavailable(said),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_is_answered_before_its_caller_gives_up() {
        let ms = Duration::from_millis;
        for (propose, patience, waits) in [
            (ms(10_000), None, ms(30_000)),
            (ms(10_000), Some(ms(60_000)), ms(30_000)),
            (ms(10_000), Some(ms(5_000)), ms(4_500)),
            (ms(10_000), Some(ms(30_000)), ms(29_500)),
            (ms(10_000), Some(ms(1_000)), ms(900)),
            (ms(10_000), Some(ms(0)), ms(0)),
        ] {
            assert_eq!(wait(propose, patience), waits, "{propose:?} {patience:?}");
        }
    }
}

//! The links between nodes: messages are lost, delayed, and overtake each other; an answer may be lost when its
//! request was not. Entries, votes and positions cross it as the node port would carry them.

use super::SimConfig;
use super::disk::Taken;
use super::executor;
use super::machine::CLUSTER;
use super::node::Member;
use super::world::World;
use crate::generation;
use crate::record;
use crate::types::{MemberNode, RaftVote, log_pos, pos_from_wire, vote_from_wire, wire_pos, wire_vote};
use openraft::error::{RPCError, ReplicationClosed, StreamingError, Unreachable};
use openraft::network::RPCOption;
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, TransferLeaderRequest, TransferLeaderResponse,
    VoteRequest, VoteResponse,
};
use openraft::type_config::alias::SnapshotOf;
use openraft::{AnyError, OptionalSend, RaftNetworkFactory, RaftNetworkV2};
use prefixd_storage::LogPos;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;

/// The limit of an append that carries entries.
const APPEND_LIMIT: Duration = Duration::from_millis(1_200);
/// The limit of a snapshot's transfer and installation.
const SNAPSHOT_LIMIT: Duration = Duration::from_secs(5);
/// Longest delay of a message that was held up on its way.
const STRAGGLE: Duration = Duration::from_millis(1_500);

/// How long a message travels; `None` when it gets lost.
fn travel(world: &World, from: u64, to: u64) -> Option<Duration> {
    let wire = world.wire(from, to);
    if wire.is_cut || executor::happens(world.shape.loss) {
        world.count("message lost", from, (to, 0));
        return None;
    }
    let delay = executor::between(world.shape.delay / 4, world.shape.delay * 2) + wire.extra;
    if !executor::happens(0.008) {
        return Some(delay);
    }
    world.count("message held up", from, (to, 0));
    Some(delay + executor::between(Duration::ZERO, STRAGGLE))
}

/// Has a node do something for another one, and brings the answer back. What was asked may be done although the caller
/// gets no answer, and also after it has given up.
pub(super) async fn call<T, F>(
    world: &Arc<World>,
    (from, to): (u64, u64),
    limit: Duration,
    handle: impl FnOnce(Arc<Member>) -> F + Send + 'static,
) -> Result<T, String>
where
    T: Send + 'static,
    F: Future<Output = T> + Send + 'static,
{
    let (send, receive) = oneshot::channel();
    match travel(world, from, to) {
        // Half of the time the caller's side notices.
        None if executor::happens(0.5) => executor::sleep(world.shape.delay.min(limit)).await,
        None => executor::sleep(limit).await,
        Some(delay) => {
            let breaks = delay > world.shape.delay * 2 && executor::happens(0.5);
            let asked = world.clone();
            executor::spawn_in(executor::WORLD, async move {
                executor::sleep(delay).await;
                let Some(target) = asked.member(to) else { return };
                executor::spawn_in(target.group, async move {
                    let answer = handle(target).await;
                    if let Some(delay) = travel(&asked, to, from) {
                        executor::sleep(delay).await;
                        // The caller may have given up.
                        let _late = send.send(answer);
                    }
                });
            });
            let limit = if breaks { (world.shape.delay * 2).min(limit) } else { limit };
            return match executor::within(limit, receive).await {
                Some(Ok(answer)) => Ok(answer),
                Some(Err(_)) => Err("the connection was reset".into()),
                None => Err("no answer in time".into()),
            };
        }
    }
    Err("the message was lost".into())
}

/// Makes links.
pub(super) struct SimNetwork {
    pub(super) from: u64,
    pub(super) world: Arc<World>,
}

impl RaftNetworkFactory<SimConfig> for SimNetwork {
    type Network = SimLink;

    async fn new_client(&mut self, target: u64, _node: &MemberNode) -> SimLink {
        SimLink { ends: (self.from, target), world: self.world.clone() }
    }
}

/// The calls to one node.
pub(super) struct SimLink {
    ends: (u64, u64),
    world: Arc<World>,
}

fn unreachable(why: impl Into<String>) -> Unreachable<SimConfig> {
    Unreachable::new(&AnyError::error(why.into()))
}

type Answer<T> = Result<T, RPCError<SimConfig>>;

impl SimLink {
    async fn call<T, E, F>(
        &self,
        limit: Duration,
        handle: impl FnOnce(Arc<Member>) -> F + Send + 'static,
    ) -> Result<T, Unreachable<SimConfig>>
    where
        T: Send + 'static,
        E: std::fmt::Display + Send + 'static,
        F: Future<Output = Result<T, E>> + Send + 'static,
    {
        let answer = call(&self.world, self.ends, limit, handle).await.map_err(unreachable)?;
        answer.map_err(|error| unreachable(error.to_string()))
    }

    async fn ballot(
        &self,
        rpc: VoteRequest<SimConfig>,
        limit: Duration,
        is_pre_vote: bool,
    ) -> Answer<VoteResponse<SimConfig>> {
        let (vote, last) = (wire_vote(&rpc.vote), rpc.last_log_id.as_ref().map(wire_pos));
        let transfer = rpc.leadership_transfer;
        let answer = self
            .call(limit, move |target| async move {
                let mut rpc = VoteRequest::new(vote_from_wire(Some(vote)).unwrap(), pos_from_wire(last));
                rpc.leadership_transfer = transfer;
                match is_pre_vote {
                    true => target.raft().pre_vote(rpc).await,
                    false => target.raft().vote(rpc).await,
                }
            })
            .await?;
        Ok(answer)
    }
}

impl RaftNetworkV2<SimConfig> for SimLink {
    type SnapshotData = Arc<Taken>;

    async fn append_entries(
        &mut self,
        rpc: AppendEntriesRequest<SimConfig>,
        option: RPCOption,
    ) -> Answer<AppendEntriesResponse<SimConfig>> {
        let limit = if rpc.entries.is_empty() { option.soft_ttl() } else { APPEND_LIMIT };
        self.world.truth.lock().unwrap().leads(&self.world, rpc.vote.leader_id.term, self.ends.0);
        let vote = wire_vote(&rpc.vote);
        let (prev, commit) = (rpc.prev_log_id.as_ref().map(wire_pos), rpc.leader_commit.as_ref().map(wire_pos));
        let bodies: Vec<(LogPos, Arc<[u8]>)> = rpc
            .entries
            .iter()
            .map(|entry| Ok((log_pos(&entry.log_id), record::body(&entry.payload)?)))
            .collect::<std::io::Result<_>>()
            .map_err(|e| Unreachable::new(&e))?;
        let answer = self
            .call(limit, move |target| async move {
                let entries = bodies.into_iter().map(|(pos, body)| record::entry(pos, body).unwrap()).collect();
                let rpc = AppendEntriesRequest {
                    vote: vote_from_wire(Some(vote)).unwrap(),
                    prev_log_id: pos_from_wire(prev),
                    entries,
                    leader_commit: pos_from_wire(commit),
                };
                target.raft().append_entries(rpc).await
            })
            .await?;
        Ok(answer)
    }

    async fn vote(&mut self, rpc: VoteRequest<SimConfig>, option: RPCOption) -> Answer<VoteResponse<SimConfig>> {
        self.ballot(rpc, option.soft_ttl(), false).await
    }

    async fn pre_vote(&mut self, rpc: VoteRequest<SimConfig>, option: RPCOption) -> Answer<VoteResponse<SimConfig>> {
        self.ballot(rpc, option.soft_ttl(), true).await
    }

    async fn full_snapshot(
        &mut self,
        vote: RaftVote,
        snapshot: SnapshotOf<SimConfig, Arc<Taken>>,
        cancel: impl Future<Output = ReplicationClosed> + OptionalSend + 'static,
        _option: RPCOption,
    ) -> Result<SnapshotResponse<SimConfig>, StreamingError<SimConfig>> {
        let taken = snapshot.snapshot;
        self.world.count("snapshot sent", self.ends.0, (self.ends.1, taken.last()));
        let sent = self.call(SNAPSHOT_LIMIT, move |target| async move {
            let _one_at_a_time = target.receiving.lock().await;
            executor::sleep(executor::between(Duration::ZERO, Duration::from_millis(300))).await;
            receive(&target, &vote, &taken).await
        });
        let sent = std::pin::pin!(sent);
        let cancel = std::pin::pin!(cancel);
        match futures::future::select(sent, cancel).await {
            futures::future::Either::Left((answer, _)) => Ok(answer?),
            futures::future::Either::Right((closed, _)) => Err(closed.into()),
        }
    }

    async fn transfer_leader(
        &mut self,
        rpc: TransferLeaderRequest<SimConfig>,
        option: RPCOption,
    ) -> Answer<TransferLeaderResponse<SimConfig>> {
        let answer = self
            .call(option.soft_ttl(), move |target| async move { target.raft().handle_transfer_leader(rpc).await })
            .await?;
        Ok(answer)
    }
}

/// Takes a snapshot in as the node port does: onto the disk first, whatever Raft then says to it.
async fn receive(target: &Member, vote: &RaftVote, taken: &Taken) -> Result<SnapshotResponse<SimConfig>, String> {
    assert_eq!(taken.manifest.cluster_id, CLUSTER);
    generation::check(taken.records(), taken.manifest.digest).map_err(|e| e.to_string())?;
    let own = Arc::new(Taken { manifest: taken.manifest.clone(), records: taken.records.clone() });
    target.disk.publish(&target.world, own.clone()).await.map_err(|e| e.to_string())?;
    let meta = generation::meta(&own.manifest).map_err(|e| e.to_string())?;
    let snapshot = openraft::Snapshot { meta, snapshot: own };
    target.raft().install_full_snapshot(*vote, snapshot).await.map_err(|e| e.to_string())
}

//! One seed: a cluster comes up, clients and faults do what they do, then all must come together and agree.

use super::clients::{self, CLIENTS};
use super::executor;
use super::faults;
use super::governor;
use super::members;
use super::node;
use super::truth::{self, Deed};
use super::world::{Invariant, Plan, Tally, World};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::oneshot;

/// How long everything may take to come together: two hundred times the longest election timeout.
const RECOVERY: Duration = Duration::from_secs(120);

/// What came of a seed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Outcome {
    pub(super) seed: u64,
    /// Of everything that happened, with its time.
    pub(super) trace: u64,
    pub(super) tally: Tally,
    pub(super) broken: Option<(Invariant, String)>,
}

/// Runs one seed.
pub(super) fn run(plan: Plan) -> Outcome {
    let seed = plan.seed;
    let kept: Arc<Mutex<Option<Arc<World>>>> = Arc::default();
    let keeper = kept.clone();
    let ended = executor::run(seed, async move {
        let world = World::new(plan);
        *keeper.lock().unwrap() = Some(world.clone());
        history(world).await;
        executor::stop();
    });
    let world = kept.lock().unwrap().take().unwrap();
    let (trace, tally, mut broken) = world.outcome();
    if let Err(panic) = ended {
        broken.get_or_insert((Invariant::Alive, format!("a task panicked: {panic}")));
    }
    world.clear();
    Outcome { seed, trace, tally, broken }
}

async fn history(world: Arc<World>) {
    world.ids().into_iter().for_each(|id| node::start(&world, id));
    executor::spawn(truth::watch(world.clone(), CLIENTS));
    executor::sleep(executor::between(Duration::ZERO, Duration::from_secs(2))).await;
    for client in 0..CLIENTS {
        executor::spawn(clients::run(world.clone(), client));
    }
    if world.shape.is_governed {
        executor::spawn(governor::run(world.clone()));
    }
    let (send, operated) = oneshot::channel();
    let operating = world.clone();
    executor::spawn(async move {
        if operating.shape.is_moving {
            members::operate(operating).await;
        }
        // A run that has ended waits for nobody.
        let _waited = send.send(());
    });
    faults::run(&world).await;
    world.places.settle();
    let recovered = executor::within(RECOVERY, recover(&world, operated)).await;
    world.holds(Invariant::Recovery, recovered.is_some(), || {
        let state = world
            .members()
            .iter()
            .map(|member| (member.id, member.leads(), member.core.published.applied_index()))
            .collect::<Vec<_>>();
        let truth = world.truth.lock().unwrap();
        format!("nodes (id, leads, applied): {state:?}, of {} indexes; voters {:?}", truth.latest(), truth.voters())
    });
    // Clients go on a little, so that what the end left behind is looked at too.
    executor::sleep(Duration::from_millis(500)).await;
}

/// Until what operators began is done, every node is a voter and takes an update, and all have applied the same.
async fn recover(world: &Arc<World>, operated: oneshot::Receiver<()>) {
    let _operated = operated.await;
    members::at_full_strength(world).await;
    for id in world.ids() {
        loop {
            if let Some(member) = world.member(id)
                && clients::send(world.clone(), member, id % CLIENTS, Deed::Add(vec![0])).await
            {
                break;
            }
            executor::sleep(Duration::from_millis(50)).await;
        }
    }
    let target = world.truth.lock().unwrap().latest();
    while world.members().iter().any(|member| member.core.published.applied_index() < target) {
        executor::sleep(Duration::from_millis(20)).await;
    }
}

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says so by panicking")]

use super::*;
use prefixd_index::delta::{Event, EventKind};
use std::sync::Mutex;

/// A leader that answers as it is told, and remembers what it got.
#[derive(Default)]
struct Script {
    answers: Mutex<Vec<Result<u64, Refusal>>>,
    seen: Mutex<Vec<(u128, u64, usize)>>,
    gate: Option<Arc<tokio::sync::Semaphore>>,
}

impl Ambient for Script {}

impl Carrier for Script {
    async fn carry(&self, command: Command, _bytes: usize, _until: Instant) -> Result<Done, Refusal> {
        let Command::Deltas(batches) = command else { return Err(Refusal::Unreadable("no deltas".into())) };
        if let Some(gate) = &self.gate {
            gate.acquire().await.unwrap().forget();
        }
        let batch = &batches[0];
        self.seen.lock().unwrap().push((batch.session, batch.sequence, batch.deltas.len()));
        let answer = self.answers.lock().unwrap().pop().unwrap_or(Ok(1));
        answer.map(|index| Done { index, reply: crate::types::Reply::default() })
    }

    async fn applied(&self, _index: u64, _until: Instant) -> bool {
        true
    }
}

fn delta(replica: &str) -> Delta {
    let (tenant, model) = ("t".into(), "m".into());
    Delta::Event(Event { kind: EventKind::AllCleared, replica: replica.into(), tenant, model })
}

fn limits(queue_bytes: usize) -> LaneLimits {
    LaneLimits { batch_bytes: 1 << 20, queue_bytes, timeout: Duration::from_secs(5) }
}

fn sessions() -> impl FnMut() -> u128 {
    let mut next = 0;
    move || {
        next += 1;
        next
    }
}

#[tokio::test]
async fn a_retry_carries_the_same_number_and_later_batches_wait_behind_it() {
    let lost = || Err(Refusal::Submit(SubmitError::Unavailable("the answer was lost".into())));
    let script = Arc::new(Script { answers: Mutex::new(vec![Ok(9), Ok(8), lost(), lost()]), ..Script::default() });
    let lanes = Lanes::start(script.clone(), limits(1 << 20), sessions(), &CancellationToken::new());
    let first = lanes.submit(vec![delta("r")]);
    assert_eq!(first.await, Ok(8));
    assert_eq!(lanes.submit(vec![delta("r")]).await, Ok(9));
    let seen = script.seen.lock().unwrap().clone();
    let numbers: Vec<u64> = seen.iter().map(|(_, sequence, _)| *sequence).collect();
    assert_eq!(numbers, [1, 1, 1, 2]);
    assert!(seen.iter().all(|(session, _, _)| *session == seen[0].0));
    assert_eq!(lanes.waiting_bytes(), 0);
}

#[tokio::test]
async fn what_waits_is_joined_and_one_replica_stays_in_order() {
    let gate = Arc::new(tokio::sync::Semaphore::new(0));
    let script = Arc::new(Script { gate: Some(gate.clone()), ..Script::default() });
    let lanes = Lanes::start(script.clone(), limits(1 << 20), sessions(), &CancellationToken::new());
    let waiting: Vec<_> = (0..50).map(|_| lanes.submit(vec![delta("r"), delta("r")])).collect();
    gate.add_permits(1_000);
    for submitted in waiting {
        assert_eq!(submitted.await, Ok(1));
    }
    let seen = script.seen.lock().unwrap().clone();
    assert_eq!(seen.iter().map(|(_, _, deltas)| deltas).sum::<usize>(), 100);
    assert!(seen.len() <= 3, "{seen:?}");
    assert!(seen.windows(2).all(|pair| pair[0].1 < pair[1].1));
}

#[tokio::test]
async fn a_full_queue_refuses_at_once_and_forgets_nothing() {
    let gate = Arc::new(tokio::sync::Semaphore::new(0));
    let script = Arc::new(Script { gate: Some(gate.clone()), ..Script::default() });
    let one = weight(&delta("r"));
    let lanes = Lanes::start(script, limits(one * 3), sessions(), &CancellationToken::new());
    let taken: Vec<_> = (0..3).map(|_| lanes.submit(vec![delta("r")])).collect();
    assert!(matches!(lanes.submit(vec![delta("r")]).await, Err(SubmitError::QueueFull(_))));
    gate.add_permits(1_000);
    for submitted in taken {
        assert_eq!(submitted.await, Ok(1));
    }
    assert_eq!(lanes.waiting_bytes(), 0);
    assert_eq!(lanes.submit(vec![delta("r")]).await, Ok(1));
}

#[tokio::test]
async fn a_batch_that_finds_no_leader_ends_with_its_time() {
    let answers = std::iter::repeat_with(|| Err(Refusal::NotLeader(None))).take(10_000).collect();
    let script = Arc::new(Script { answers: Mutex::new(answers), ..Script::default() });
    let timeout = Duration::from_millis(300);
    let lanes = Lanes::start(script, LaneLimits { timeout, ..limits(1 << 20) }, sessions(), &CancellationToken::new());
    assert!(matches!(lanes.submit(vec![delta("r")]).await, Err(SubmitError::Unavailable(_))));
}

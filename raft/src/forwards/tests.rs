#![expect(clippy::unwrap_used, reason = "a test that cannot go on says so by panicking")]

use super::*;
use crate::proposer::Done;
use crate::types::Reply;
use std::sync::Mutex;
use std::time::Duration;
use tokio::sync::Semaphore;

/// A leader that takes calls as it is let, and remembers what each carried.
struct Gate {
    open: Semaphore,
    seen: Mutex<Vec<(u64, Vec<u64>)>>,
}

impl Ambient for Gate {}

impl Road for Gate {
    async fn forward(&self, leader: u64, command: Command, _until: Instant) -> Outcome {
        let Command::Deltas(batches) = command else { return Err(Refusal::Unreadable("no deltas".into())) };
        let numbers = batches.iter().map(|batch| batch.sequence).collect();
        self.seen.lock().unwrap().push((leader, numbers));
        self.open.acquire().await.unwrap().forget();
        match leader {
            9 => Err(Refusal::NotLeader(Some(1))),
            _ => Ok(Done { index: 70 + leader, reply: Reply::default() }),
        }
    }
}

fn batch(sequence: u64) -> Vec<Batch> {
    vec![Batch { session: 1, sequence, producer: None, deltas: Vec::new() }]
}

/// Bytes of as many batches as there may be calls, each enough to be worth a call of its own beside those before it.
const ALONE: [usize; IN_FLIGHT] = [40, 40, 40, 60];

/// What waits behind as many calls as there may be, and what each was told.
async fn sent(items: &[(u64, u64, usize)]) -> (Vec<(u64, Vec<u64>)>, Vec<Outcome>) {
    let gate = Arc::new(Gate { open: Semaphore::new(0), seen: Mutex::default() });
    let (forwards, task) = Forwards::new(100);
    let running = tokio::spawn(task.run(gate.clone()));
    let until = Instant::now() + Duration::from_secs(20);
    let mut sending = Vec::new();
    for (sent, (sequence, leader, bytes)) in (1..).zip(items.iter().copied()) {
        let forwards = forwards.clone();
        sending.push(tokio::spawn(async move { forwards.send(leader, batch(sequence), bytes, until).await }));
        // One after the other, and each of the first in a call of its own.
        while sent <= IN_FLIGHT && gate.seen.lock().unwrap().len() < sent {
            tokio::task::yield_now().await;
        }
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
    }
    gate.open.add_permits(items.len());
    let mut outcomes = Vec::new();
    for outcome in sending {
        outcomes.push(outcome.await.unwrap());
    }
    drop(forwards);
    running.await.unwrap();
    let seen = gate.seen.lock().unwrap().clone();
    (seen, outcomes)
}

#[tokio::test]
async fn what_waits_goes_together_up_to_the_limit_and_to_one_leader() {
    let first: Vec<(u64, u64, usize)> = (1..).zip(ALONE).map(|(number, bytes)| (number, 1, bytes)).collect();
    let behind = [(11, 1, 40), (12, 1, 40), (13, 1, 40), (14, 2, 40), (15, 2, 400), (16, 9, 40)];
    let (seen, outcomes) = sent(&[&first[..], &behind[..]].concat()).await;
    let alone = first.iter().map(|(number, leader, _)| (*leader, vec![*number]));
    let together = [(1, vec![11, 12]), (1, vec![13]), (2, vec![14]), (2, vec![15]), (9, vec![16])];
    assert_eq!(seen, alone.chain(together).collect::<Vec<_>>());
    let told: Vec<Option<u64>> = outcomes.iter().map(|outcome| outcome.as_ref().ok().map(|done| done.index)).collect();
    assert_eq!(told[IN_FLIGHT..], [Some(71), Some(71), Some(71), Some(72), Some(72), None]);
}

#[tokio::test]
async fn nobody_waits_beyond_his_time_and_who_has_gone_is_not_sent() {
    let gate = Arc::new(Gate { open: Semaphore::new(0), seen: Mutex::default() });
    let (forwards, task) = Forwards::new(100);
    let running = tokio::spawn(task.run(gate.clone()));
    for (number, bytes) in (0..).zip(ALONE.into_iter().chain([1, 1])) {
        let until = Instant::now() + Duration::from_millis(50);
        let outcome = forwards.send(1, batch(number), bytes, until).await;
        assert!(matches!(outcome, Err(Refusal::Submit(SubmitError::Unavailable(_)))), "{outcome:?}");
    }
    gate.open.add_permits(100);
    let until = Instant::now() + Duration::from_secs(20);
    assert!(forwards.send(1, batch(99), 1, until).await.is_ok());
    drop(forwards);
    running.await.unwrap();
    let seen = gate.seen.lock().unwrap().clone();
    let numbers: Vec<u64> = seen.into_iter().flat_map(|(_, numbers)| numbers).collect();
    assert_eq!(numbers, (0..IN_FLIGHT as u64).chain([99]).collect::<Vec<_>>());
}

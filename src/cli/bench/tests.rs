//! The bench against itself: content that is what it says, and clocks that charge a stall to all that waited.

use super::content::Content;
use super::pace::{Load, Pace};
use prefixd_client::{Client, Config};
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

#[test]
fn chains_of_a_family_share_their_first_half_and_nothing_else() {
    for hash_bytes in [8, 13, 32] {
        let content = Content::new(10, hash_bytes, 3);
        let chains: Vec<_> = (0..64).map(|chain| content.lookup(chain).block_hashes).collect();
        let distinct: HashSet<_> = chains.iter().flatten().collect();
        assert_eq!(distinct.len(), 4 * 5 + 64 * 5, "4 families of 16 chains");
        assert!(distinct.iter().all(|hash| hash.len() == hash_bytes as usize));
        assert_eq!(chains[0][..5], chains[15][..5]);
        assert_ne!(chains[0][..5], chains[16][..5]);
        let update = content.update(7);
        assert_eq!(update.prefixes[0].block_hashes, chains[7]);
        assert_eq!(update.prefixes[0].block_token_counts.len(), 10);
    }
    let (one, other) = (Content::new(10, 8, 1), Content::new(10, 8, 1));
    assert_ne!(one.tenant(), other.tenant());
    assert_ne!(one.lookup(0).block_hashes, other.lookup(0).block_hashes);
}

fn clients(count: usize) -> Vec<Client> {
    (0..count).map(|_| Client::new(Config::new(["127.0.0.1:1"])).unwrap()).collect()
}

fn pace(rate: f64, in_flight: u16) -> Pace {
    Pace { rate, in_flight, warmup: Duration::ZERO, length: Duration::from_millis(400), seed: 7 }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stall_is_charged_to_every_call_that_was_due_in_it() {
    let stalled = Arc::new(AtomicBool::new(false));
    let load = Load { clients: clients(1), pace: pace(1_000.0, 1) };
    // The first call takes all of the time; those behind it take none.
    let side = load
        .run(move |_, _| {
            let is_first = !stalled.swap(true, Ordering::Relaxed);
            async move {
                if is_first {
                    tokio::time::sleep(Duration::from_millis(400)).await;
                }
                Ok(1)
            }
        })
        .await;
    let json = super::Outcome { lookups: Some(side), reports: None, blocks: 1 }.json();
    let (calls, p50) =
        (json["lookup"]["calls"].as_u64().unwrap(), json["lookup"]["latency_us"]["p50"].as_u64().unwrap());
    assert!(calls >= 200, "about 400 were due: {json}");
    assert!(p50 >= 100_000, "half of the calls waited for about 200 ms or more: {json}");
    assert_eq!(json["lookup"]["matched"].as_u64(), Some(calls));
}

#[tokio::test]
async fn closed_load_keeps_as_many_under_way_as_asked() {
    let under_way = Arc::new(tokio::sync::Semaphore::new(6));
    let load = Load { clients: clients(2), pace: Pace { length: Duration::from_secs(1), ..pace(0.0, 3) } };
    let side = load
        .run(move |_, _| {
            let place = under_way.clone().try_acquire_owned().expect("never more than 2 times 3");
            async move {
                tokio::time::sleep(Duration::from_millis(5)).await;
                drop(place);
                Ok(64)
            }
        })
        .await;
    let outcome = super::Outcome { lookups: None, reports: Some(side), blocks: 64 };
    assert!(outcome.is_whole());
    let json = outcome.json();
    assert!(json["report"]["calls"].as_u64().unwrap() >= 6, "{json}");
    assert!(outcome.table().contains("blocks/s acknowledged"));
}

#[tokio::test]
async fn calls_without_an_answer_are_counted_and_named() {
    let mut config = Config::new(["127.0.0.1:1"]);
    config.read_deadline = Duration::from_millis(50);
    let load = Load { clients: vec![Client::new(config).unwrap()], pace: pace(50.0, 4) };
    let content = Arc::new(Content::new(2, 8, 1));
    let side = load
        .run(move |client, _| {
            let request = content.lookup(0);
            async move { client.lookup(request).await.map(|_| 1) }
        })
        .await;
    let outcome = super::Outcome { lookups: Some(side), reports: None, blocks: 2 };
    assert!(!outcome.is_whole());
    assert!(outcome.table().contains("a lookup failed: "), "{}", outcome.table());
}

#[tokio::test]
async fn a_cluster_that_takes_nothing_is_not_asked_again_for_every_replica() {
    let mut config = Config::new(["127.0.0.1:1"]);
    config.write_deadline = Duration::from_millis(200);
    let client = Client::new(config).unwrap();
    let began = std::time::Instant::now();
    let error = Content::new(2, 8, 4_096).clear(&client).await.unwrap_err();
    assert!(error.contains("could not be cleared: given up after "), "{error}");
    assert!(began.elapsed() < Duration::from_secs(20), "one after the other it takes 51 s: {:?}", began.elapsed());
}

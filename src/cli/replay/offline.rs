//! The policies to compare with, played without any server: round-robin and random, which know nothing, and perfect
//! knowledge, which sees into every engine's cache at once and bounds what an index can reach.

use super::fleet::{Fleet, Shape};
use super::outcome::Outcome;
use super::trace::Request;
use rand::{RngExt, SeedableRng, rngs::StdRng};

/// Each request to the next engine.
pub fn round_robin(requests: &[Request], shape: Shape) -> Outcome {
    let mut turn = (0..shape.engines).cycle();
    play("round-robin", requests, shape, |_, _| turn.next().unwrap_or(0))
}

/// Each request to any engine.
pub fn random(requests: &[Request], shape: Shape, seed: u64) -> Outcome {
    let mut rng = StdRng::seed_from_u64(seed);
    let outcome = play("random", requests, shape, |_, _| rng.random_range(0..shape.engines));
    Outcome { seed: Some(seed), ..outcome }
}

/// Each request by the true longest match; everything else as the gateway does it for prefixd.
pub fn perfect(requests: &[Request], shape: Shape) -> Outcome {
    play("perfect", requests, shape, |fleet, request| fleet.choose(&fleet.true_hints(request)))
}

fn play(
    name: &'static str,
    requests: &[Request],
    shape: Shape,
    mut route: impl FnMut(&Fleet, &Request) -> usize,
) -> Outcome {
    let mut fleet = Fleet::new(shape);
    for request in requests {
        let engine = route(&fleet, request);
        fleet.serve(engine, request);
    }
    fleet.outcome(name)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    const SHAPE: Shape = Shape { engines: 3, blocks_per_engine: 10, load_bound: 1.25 };

    /// Three conversations that share a system prompt and take turns: each turn adds a block.
    fn conversations() -> Vec<Request> {
        let turn = |n: u64, who: u64| {
            let blocks: Vec<u64> = std::iter::once(0).chain((1..=n).map(|i| who * 100 + i)).collect();
            Request { arrival_ms: n, input_tokens: 512 * blocks.len() as u64, blocks }
        };
        (1..=4).flat_map(|n| [turn(n, 1), turn(n, 3), turn(n, 2), turn(n, 4)]).collect()
    }

    #[test]
    fn knowing_beats_guessing() {
        let requests = conversations();
        let perfect = perfect(&requests, SHAPE);
        let round_robin = round_robin(&requests, SHAPE);
        assert!(perfect.block_hit_ratio > round_robin.block_hit_ratio, "{perfect:?} {round_robin:?}");
        assert_eq!(perfect.reason_codes.len() + round_robin.reason_codes.len(), 0);
    }

    #[test]
    fn the_example_trace_is_worth_replaying() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/trace.jsonl.gz");
        let requests = super::super::trace::read(std::path::Path::new(path), None).unwrap();
        let shape = Shape { engines: 4, blocks_per_engine: 100, load_bound: 1.25 };
        let (perfect, round_robin) = (perfect(&requests, shape), round_robin(&requests, shape));
        assert!(perfect.block_hit_ratio > 0.75, "{perfect:?}");
        assert!(round_robin.block_hit_ratio < 0.45, "{round_robin:?}");
        assert!(perfect.busiest_over_mean < 1.5, "{perfect:?}");
    }

    #[test]
    fn a_seed_names_its_run() {
        let requests = conversations();
        let (a, b) = (random(&requests, SHAPE, 7), random(&requests, SHAPE, 7));
        assert_eq!((a.block_hit_ratio, a.seed), (b.block_hit_ratio, Some(7)));
    }
}

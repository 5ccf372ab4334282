//! The engines behind one gateway and what became of the requests they served. Each policy plays the trace against a
//! fleet of its own.

use super::engine::{Claim, Engine, Served};
use super::gateway::{Gateway, Hint};
use super::outcome::Outcome;
use super::trace::Request;

/// The shape of a fleet.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    /// How many engines there are.
    pub engines: usize,
    /// Blocks that each one can cache.
    pub blocks_per_engine: usize,
    /// See [`Gateway`].
    pub load_bound: f64,
}

/// Engines, their gateway, and the running totals.
pub struct Fleet {
    engines: Vec<Engine>,
    gateway: Gateway,
    hit: Amount,
    asked: Amount,
}

#[derive(Default)]
struct Amount {
    blocks: u64,
    tokens: u64,
}

impl Fleet {
    /// Idle engines with empty caches.
    pub fn new(shape: Shape) -> Self {
        Self {
            engines: (0..shape.engines).map(|_| Engine::new(shape.blocks_per_engine)).collect(),
            gateway: Gateway::new(shape.engines, shape.load_bound),
            hit: Amount::default(),
            asked: Amount::default(),
        }
    }

    /// The engine that the gateway takes, given these hints.
    pub fn choose(&self, hints: &[Hint]) -> usize {
        self.gateway.choose(hints)
    }

    /// What a router with perfect knowledge knows: the true leading run of every engine.
    pub fn true_hints(&self, request: &Request) -> Vec<Hint> {
        let run = |engine: &Engine| engine.leading_run(&request.blocks) as f64;
        self.engines.iter().enumerate().map(|(engine, cache)| Hint { engine, score: run(cache) }).collect()
    }

    /// Judges a hint that an engine has the first `tokens` tokens of a request. A claim that ends within a block, or
    /// is about an engine that doesn't exist, is wrong.
    pub fn judge(&self, engine: Option<usize>, request: &Request, tokens: u64) -> Claim {
        let blocks = (0..=request.blocks.len()).find(|&blocks| request.tokens_in(blocks) == tokens);
        match (engine.and_then(|engine| self.engines.get(engine)), blocks) {
            (Some(engine), Some(blocks)) => engine.judge(&request.blocks[..blocks]),
            _ => Claim::Wrong,
        }
    }

    /// Lets an engine serve a request.
    pub fn serve(&mut self, engine: usize, request: &Request) -> Served {
        let served = self.engines[engine].serve(&request.blocks);
        self.gateway.routed(engine, request.input_tokens);
        self.hit.blocks += served.hit_blocks as u64;
        self.hit.tokens += request.tokens_in(served.hit_blocks);
        self.asked.blocks += request.blocks.len() as u64;
        self.asked.tokens += request.input_tokens;
        served
    }

    /// The share of blocks that were cached where they were asked for, so far.
    pub fn block_hit_ratio(&self) -> f64 {
        self.hit.blocks as f64 / self.asked.blocks.max(1) as f64
    }

    /// The totals, under a policy's name.
    pub fn outcome(&self, name: &'static str) -> Outcome {
        Outcome {
            name,
            block_hit_ratio: self.block_hit_ratio(),
            token_hit_ratio: self.hit.tokens as f64 / self.asked.tokens.max(1) as f64,
            busiest_over_mean: self.gateway.busiest_over_mean(),
            ..Outcome::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: Shape = Shape { engines: 2, blocks_per_engine: 4, load_bound: 0.0 };

    fn request(input_tokens: u64, blocks: &[u64]) -> Request {
        Request { arrival_ms: 0, input_tokens, blocks: blocks.to_vec() }
    }

    #[test]
    fn a_partial_block_counts_as_a_block_and_as_its_tokens() {
        let mut fleet = Fleet::new(SHAPE);
        fleet.serve(0, &request(700, &[1, 2]));
        fleet.serve(0, &request(700, &[1, 2]));
        let outcome = fleet.outcome("x");
        assert_eq!((outcome.block_hit_ratio, outcome.token_hit_ratio), (0.5, 0.5));
        fleet.serve(0, &request(512, &[3]));
        assert_eq!(fleet.outcome("x").token_hit_ratio, 700.0 / 1912.0);
        assert_eq!(fleet.outcome("x").busiest_over_mean, 2.0);
    }

    #[test]
    fn claims_in_tokens_are_judged_in_blocks() {
        let mut fleet = Fleet::new(SHAPE);
        let asked = request(700, &[1, 2]);
        fleet.serve(0, &asked);
        assert_eq!(fleet.judge(Some(0), &asked, 512), Claim::True);
        assert_eq!(fleet.judge(Some(0), &asked, 700), Claim::True);
        assert_eq!(fleet.judge(Some(0), &asked, 600), Claim::Wrong);
        assert_eq!(fleet.judge(Some(1), &asked, 512), Claim::Wrong);
        assert_eq!(fleet.judge(Some(7), &asked, 512), Claim::Wrong);
        assert_eq!(fleet.judge(None, &asked, 512), Claim::Wrong);
    }
}

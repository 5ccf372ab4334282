//! Recorded logs with the digest after each command: what an engine makes of a log is a format, and the one that came
//! before this made the same of these. testdata/logs says how they were made; `PREFIXD_RECORD_LOGS=1` adds what is missing, and
//! never writes over what is there.

use super::commands::World;
use crate::Index;
use crate::command::Stamped;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// One recorded log.
#[derive(Serialize, Deserialize)]
struct Recorded {
    commands: Vec<Stamped>,
    digests: Vec<u128>,
}

const SEEDS: [u64; 4] = [5_001, 5_002, 5_003, 5_004];
const STEPS: usize = 120;

fn path(seed: u64) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("testdata/logs/{seed}.bin"))
}

fn record(seed: u64) -> Recorded {
    let (mut world, mut index) = (World::new(seed), Index::new(seed));
    let mut recorded = Recorded { commands: vec![], digests: vec![] };
    for at in 0..STEPS as u64 {
        let stamped = Stamped { command: world.command(), stamp_us: world.now };
        index.apply(at, &stamped);
        recorded.digests.push(index.digest());
        recorded.commands.push(stamped);
    }
    recorded
}

#[test]
fn recorded_logs_have_their_digests() {
    for seed in SEEDS {
        let path = path(seed);
        if std::env::var_os("PREFIXD_RECORD_LOGS").is_some() && !path.exists() {
            std::fs::write(&path, bincode::serialize(&record(seed)).unwrap()).unwrap();
        }
        let recorded: Recorded = bincode::deserialize(&std::fs::read(&path).unwrap()).unwrap();
        assert_eq!(recorded.commands.len(), recorded.digests.len());
        let mut index = Index::new(seed);
        for (at, (stamped, digest)) in (0..).zip(recorded.commands.iter().zip(&recorded.digests)) {
            index.apply(at, stamped);
            assert_eq!(index.digest(), *digest, "log {seed}, command {at}: {stamped:?}");
        }
    }
}

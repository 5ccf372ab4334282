//! Commands decoded from damaged bytes: apply panics on none, and what two nodes make of them is the same.

use super::commands::World;
use super::{Dice, setting};
use crate::Index;
use crate::command::Stamped;

#[test]
fn damaged_commands_never_panic() {
    let seed = setting("PREFIXD_INDEX_SEED", 31);
    println!("seed {seed}");
    let (mut dice, mut world) = (Dice(seed), World::new(seed));
    let (mut one, mut other) = (Index::new(1), Index::new(2));
    let mut decoded = 0;
    for at in 0..setting("PREFIXD_INDEX_ROUNDS", 60) * 100 {
        let stamped = Stamped { command: world.command(), stamp_us: world.now };
        let mut bytes = bincode::serialize(&stamped).unwrap();
        for _ in 0..dice.roll(4) {
            let place = dice.roll(bytes.len() as u64) as usize;
            bytes[place] = dice.next() as u8;
        }
        let Ok(damaged) = bincode::deserialize::<Stamped>(&bytes) else { continue };
        decoded += 1;
        assert_eq!(one.apply(at, &damaged), other.apply(at, &damaged), "seed {seed} at {at}");
        assert_eq!((one.digest(), one.totals()), (other.digest(), other.totals()), "seed {seed} at {at}");
    }
    assert!(decoded > 100);
}

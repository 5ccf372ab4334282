//! The cluster's feature level: which form of commands may be written. Pure.
//!
//! It only ever rises, and only to what every member can read, learners included: a member that can't read a command
//! stops. Who reads what is asked of the members themselves; one that doesn't answer holds the level where it is.

/// A member and the highest level that it reads; `None` if it did not say.
pub type Reader = (String, Option<u32>);

/// The level to raise the cluster to, from `current`, on a leader that reads `own_max`. `None`: stay.
///
/// # Errors
/// Names the members that hold the level below `own_max`, when it stays because of them.
pub fn level_to_propose(current: u32, own_max: u32, others: &[Reader]) -> Result<Option<u32>, String> {
    let lowest = others.iter().map(|(_, max)| max.unwrap_or(0)).chain([own_max]).min().unwrap_or(own_max);
    if lowest > current {
        return Ok(Some(lowest));
    }
    let holding: Vec<String> = others
        .iter()
        .filter_map(|(name, max)| match max {
            Some(max) if *max <= current && *max < own_max => Some(format!("{name} (reads up to {max})")),
            None if current < own_max => Some(format!("{name} (does not answer)")),
            _ => None,
        })
        .collect();
    match holding.is_empty() {
        true => Ok(None),
        false => Err(format!(
            "the cluster stays at feature level {current}, though this release reads up to {own_max}: {}",
            holding.join(", ")
        )),
    }
}

/// What a node says of itself when the cluster's level is beyond what it reads.
pub fn beyond(level: u32, own_max: u32) -> String {
    format!(
        "the cluster is at feature level {level}, this release ({}) reads up to {own_max}; start a release on this node \
         that reads it: a level never goes down again",
        env!("CARGO_PKG_VERSION")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_rises_to_what_all_can_read_and_no_further() {
        type Row<'a> = (u32, u32, &'a [Option<u32>], Result<Option<u32>, &'a str>);
        let rows: [Row<'_>; 12] = [
            (1, 1, &[], Ok(None)),
            (1, 3, &[], Ok(Some(3))),
            (1, 2, &[Some(2), Some(2)], Ok(Some(2))),
            (1, 3, &[Some(2), Some(3)], Ok(Some(2))),
            (1, 2, &[Some(1), Some(2)], Err("m0 (reads up to 1)")),
            (1, 2, &[Some(2), None], Err("m1 (does not answer)")),
            (1, 3, &[None, Some(1)], Err("m0 (does not answer), m1 (reads up to 1)")),
            // At the level already: nobody holds anything.
            (2, 2, &[Some(2), None], Ok(None)),
            (2, 2, &[Some(5), Some(2)], Ok(None)),
            // The leader itself is the oldest.
            (1, 1, &[Some(4)], Ok(None)),
            // It never goes down, whoever reads less.
            (3, 3, &[Some(2)], Err("m0 (reads up to 2)")),
            (3, 2, &[Some(2)], Ok(None)),
        ];
        for (current, own, others, expected) in rows {
            let readers: Vec<Reader> = others.iter().enumerate().map(|(i, max)| (format!("m{i}"), *max)).collect();
            let found = level_to_propose(current, own, &readers);
            match (&found, expected) {
                (Ok(found), Ok(expected)) => assert_eq!(*found, expected, "{current} {own} {others:?}"),
                (Err(said), Err(part)) => assert!(said.ends_with(part), "{said}"),
                _ => panic!("{current} {own} {others:?}: {found:?}"),
            }
        }
    }

    #[test]
    fn over_all_small_clusters() {
        for current in 1..=3 {
            for own in 1..=3 {
                for code in 0..64 {
                    let max = |i: u32| Some(code / 4u32.pow(i) % 4).filter(|max| *max > 0);
                    let readers: Vec<Reader> = (0..3).map(|i| (format!("m{i}"), max(i))).collect();
                    if let Ok(Some(level)) = level_to_propose(current, own, &readers) {
                        assert!(level > current && level <= own);
                        assert!(readers.iter().all(|(_, max)| max.is_some_and(|max| max >= level)), "{readers:?}");
                    }
                }
            }
        }
    }
}

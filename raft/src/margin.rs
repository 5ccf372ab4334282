//! How many more voters the cluster can lose before it stops writing, as its leader sees it. Pure; [`crate::status`] says
//! who was heard, and /metrics shows it.

use std::collections::BTreeSet;

/// Voters heard of less a quorum, in the configuration where that is least: during a change of members both count. Below
/// 0 the leader is about to find that it has no quorum. `None` without voters.
pub(crate) fn quorum_margin<'a>(
    configurations: impl IntoIterator<Item = &'a BTreeSet<u64>>,
    is_heard: impl Fn(u64) -> bool,
) -> Option<i64> {
    let margin = |voters: &BTreeSet<u64>| {
        let heard = voters.iter().filter(|id| is_heard(**id)).count();
        let quorum = voters.len() / 2 + 1;
        // Clusters are of a handful of members.
        i64::try_from(heard).unwrap_or(i64::MAX) - i64::try_from(quorum).unwrap_or(i64::MAX)
    };
    configurations.into_iter().filter(|voters| !voters.is_empty()).map(margin).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Configurations, who was heard, the margin.
    type Case = (&'static [&'static [u64]], &'static [u64], Option<i64>);

    #[test]
    fn the_margin_is_that_of_the_tightest_configuration() {
        let cases: [Case; 9] = [
            (&[], &[1], None),
            (&[&[]], &[1], None),
            (&[&[1]], &[1], Some(0)),
            (&[&[1, 2, 3]], &[1, 2, 3], Some(1)),
            (&[&[1, 2, 3]], &[1, 3], Some(0)),
            (&[&[1, 2, 3]], &[1], Some(-1)),
            (&[&[1, 2, 3, 4]], &[1, 2, 3, 4], Some(1)),
            (&[&[1, 2, 3, 4, 5]], &[1, 2, 3, 4], Some(1)),
            // A change: the old three are whole, and the new five lack two.
            (&[&[1, 2, 3], &[1, 2, 3, 4, 5]], &[1, 2, 3], Some(0)),
        ];
        for (configurations, heard, wanted) in cases {
            let sets: Vec<BTreeSet<u64>> = configurations.iter().map(|ids| ids.iter().copied().collect()).collect();
            assert_eq!(quorum_margin(&sets, |id| heard.contains(&id)), wanted, "{configurations:?} {heard:?}");
        }
    }
}

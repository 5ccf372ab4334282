//! The fingerprint against vectors that others can check: testdata/fingerprints.txt.

use crate::fingerprint::{chain_from, to_bytes};

fn numbers(text: &str) -> Vec<u32> {
    if text == "-" {
        return vec![];
    }
    let range = |part: &str| match part.split_once("..") {
        Some((from, to)) => (from.parse().unwrap()..=to.parse().unwrap()).collect(),
        None => vec![part.parse().unwrap()],
    };
    text.split(',').flat_map(range).collect()
}

#[test]
fn the_fingerprint_is_the_fields() {
    let mut rows = 0;
    for line in include_str!("../../testdata/fingerprints.txt").lines().filter(|line| !line.starts_with('#')) {
        let [name, size, parent, tokens, hashes] = line.split(' ').collect::<Vec<_>>().try_into().unwrap();
        let parent = (parent != "-").then(|| u64::from_str_radix(parent, 16).unwrap());
        let made: Vec<String> = chain_from(parent, &numbers(tokens), size.parse().unwrap())
            .map(|hash| to_bytes(hash).iter().map(|byte| format!("{byte:02x}")).collect())
            .collect();
        let expected: Vec<&str> = hashes.split(',').filter(|hash| *hash != "-").collect();
        assert_eq!(made, expected, "{name}");
        rows += 1;
    }
    assert_eq!(rows, 11);
    assert_eq!(chain_from(None, &[1, 2, 3], 0).count(), 0, "a block size of 0 has no blocks");
}

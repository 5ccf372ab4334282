use super::*;
use bytes::Bytes;
use proptest::prelude::*;

fn hash(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

fn exact_entry(text: &str, token_count: i32) -> wire::PrefixEntry {
    wire::PrefixEntry { prefix_hash: hash(text), token_count, ..Default::default() }
}

fn chain_entry(hashes: &[&str], counts: &[i32]) -> wire::PrefixEntry {
    wire::PrefixEntry {
        block_hashes: hashes.iter().map(|h| hash(h)).collect(),
        block_token_counts: counts.to_vec(),
        ..Default::default()
    }
}

fn message(prefixes: Vec<wire::PrefixEntry>) -> wire::CacheStateUpdate {
    wire::CacheStateUpdate {
        replica_id: "r1".into(),
        model_id: "m".into(),
        tenant_id: "t".into(),
        hash_scheme: "vllm".into(),
        prefixes,
        ..Default::default()
    }
}

/// What survives of one entry beside a good one, and what is counted for it.
fn judge(entry: wire::PrefixEntry) -> (Option<PrefixEntry>, Vec<(DropReason, u64)>) {
    let mut drops = Drops::default();
    let kept = update(message(vec![entry, exact_entry("good", 1)]), &mut drops);
    let mut kept = kept.map(|u| u.entries).unwrap_or_default();
    let good = kept.pop();
    assert_eq!(good.and_then(|e| e.exact).map(|e| e.hash), Some(b"good".to_vec()), "the good entry must survive");
    (kept.pop(), drops.iter().collect())
}

#[test]
fn bad_entries_are_dropped_with_their_reason() {
    let long = "x".repeat(129);
    let with_hash = |mut e: wire::PrefixEntry| {
        e.prefix_hash = hash("p");
        e.token_count = 5;
        e
    };
    let too_long_chain = wire::PrefixEntry {
        block_hashes: vec![hash("a"); MAX_CHAIN_BLOCKS + 1],
        block_token_counts: vec![1; MAX_CHAIN_BLOCKS + 1],
        ..Default::default()
    };
    let long_adapter = wire::PrefixEntry { adapter_id: "a".repeat(1_025), ..exact_entry("p", 1) };
    for (name, entry, reason) in [
        ("nothing", wire::PrefixEntry::default(), DropReason::EmptyHash),
        ("negative", exact_entry("p", -5), DropReason::NegativeTokens),
        ("long hash", exact_entry(&long, 5), DropReason::HashTooLong),
        ("negative in a chain", with_hash(chain_entry(&["a", "b"], &[1, -1])), DropReason::NegativeTokens),
        ("empty in a chain", with_hash(chain_entry(&["a", ""], &[1, 1])), DropReason::EmptyHash),
        ("long in a chain", with_hash(chain_entry(&["a", &long], &[1, 1])), DropReason::HashTooLong),
        ("more hashes", with_hash(chain_entry(&["a", "b"], &[1])), DropReason::ChainLengths),
        ("more counts", with_hash(chain_entry(&[], &[1])), DropReason::ChainLengths),
        ("too many blocks", with_hash(too_long_chain), DropReason::ChainTooLong),
        ("long adapter", long_adapter, DropReason::IdTooLong),
    ] {
        assert_eq!(judge(entry), (None, vec![(reason, 1)]), "{name}");
    }
}

#[test]
fn a_bad_prefix_hash_beside_a_good_chain_costs_only_itself() {
    let long = "x".repeat(129);
    for (prefix_hash, token_count, reason) in [
        (long.as_str(), 5, Some(DropReason::HashTooLong)),
        ("p", -1, Some(DropReason::NegativeTokens)),
        ("", -1, None),
        ("", 0, None),
    ] {
        let mut entry = chain_entry(&["a", "b"], &[1, 2]);
        entry.prefix_hash = hash(prefix_hash);
        entry.token_count = token_count;
        let (kept, drops) = judge(entry);
        let kept = kept.unwrap();
        assert!(kept.exact.is_none());
        assert_eq!(kept.chain.unwrap().blocks().collect::<Vec<_>>(), [(&b"a"[..], 1), (&b"b"[..], 3)]);
        assert_eq!(drops, reason.map(|r| (r, 1)).into_iter().collect::<Vec<_>>(), "{prefix_hash:?} {token_count}");
    }
}

#[test]
fn limits_are_inclusive() {
    let chain = wire::PrefixEntry {
        block_hashes: vec![hash("a"); MAX_CHAIN_BLOCKS],
        block_token_counts: vec![1; MAX_CHAIN_BLOCKS],
        adapter_id: "a".repeat(1_024),
        ..Default::default()
    };
    assert!(judge(chain).0.is_some());
    assert!(judge(exact_entry(&"x".repeat(128), 0)).0.is_some());
}

#[test]
fn bad_ids_drop_the_whole_update_and_event() {
    let long = "i".repeat(1_025);
    for (replica, tenant, model, reason) in [
        ("", "t", "m", DropReason::EmptyReplica),
        ("r", "", "m", DropReason::EmptyTenant),
        ("r", "t", "", DropReason::EmptyModel),
        (long.as_str(), "t", "m", DropReason::IdTooLong),
        ("r", long.as_str(), "m", DropReason::IdTooLong),
        ("r", "t", long.as_str(), DropReason::IdTooLong),
    ] {
        let mut drops = Drops::default();
        let mut sent = message(vec![exact_entry("p", 1), exact_entry("q", 1)]);
        sent.stats = Some(wire::ReplicaStats::default());
        (sent.replica_id, sent.tenant_id, sent.model_id) = (replica.into(), tenant.into(), model.into());
        assert_eq!(update(sent, &mut drops), None);
        let sent = wire::CacheEvent {
            r#type: wire::cache_event::Type::AllCleared as i32,
            replica_id: replica.into(),
            tenant_id: tenant.into(),
            model_id: model.into(),
            ..Default::default()
        };
        assert_eq!(event(sent, &mut drops), None);
        assert_eq!(drops.iter().collect::<Vec<_>>(), [(reason, 2)]);
    }
}

#[test]
fn a_bad_scheme_costs_the_prefixes_and_keeps_the_stats() {
    for (scheme, reason) in [(String::new(), DropReason::EmptyScheme), ("s".repeat(1_025), DropReason::IdTooLong)] {
        let mut drops = Drops::default();
        let mut sent = message(vec![exact_entry("p", 1), exact_entry("q", 1)]);
        sent.hash_scheme = scheme.clone();
        assert_eq!(update(sent.clone(), &mut drops), None);
        sent.stats = Some(wire::ReplicaStats { hit_rate: 0.5, ..Default::default() });
        let kept = update(sent, &mut drops).unwrap();
        assert!(kept.entries.is_empty() && kept.scheme.is_empty());
        assert_eq!(kept.stats.map(|s| s.hit_rate), Some(0.5));
        assert_eq!(drops.of(reason), 4);
    }
}

#[test]
fn the_reserved_tenant_is_dropped_without_a_count() {
    let mut drops = Drops::default();
    let mut sent = message(vec![exact_entry("p", -1)]);
    sent.tenant_id = RESERVED_TENANT.into();
    assert_eq!(update(sent, &mut drops), None);
    let sent = wire::CacheEvent {
        r#type: wire::cache_event::Type::AllCleared as i32,
        tenant_id: RESERVED_TENANT.into(),
        ..Default::default()
    };
    assert_eq!(event(sent, &mut drops), None);
    assert_eq!(drops, Drops::default());
}

#[test]
fn values_are_normalised() {
    let mut drops = Drops::default();
    let mut sent = message(vec![
        wire::PrefixEntry { adapter_id: "own".into(), tier: 2, ..exact_entry("p", 1) },
        exact_entry("q", 1),
        wire::PrefixEntry { tier: -7, ..exact_entry("r", 1) },
    ]);
    sent.adapter_id = "default".into();
    sent.timestamp_us = -3;
    sent.stats = Some(wire::ReplicaStats {
        replica_id: "someone else".into(),
        hit_rate: f32::NAN,
        pressure: f32::NEG_INFINITY,
        cache_memory_bytes: -1,
        ..Default::default()
    });
    let kept = update(sent, &mut drops).unwrap();
    let shown: Vec<_> = kept.entries.iter().map(|e| (e.adapter.as_str(), e.tier)).collect();
    assert_eq!(shown, [("own", 2), ("default", 1), ("default", -7)]);
    assert_eq!((kept.timestamp_us, kept.replica.as_str()), (0, "r1"));
    assert_eq!(kept.stats, Some(Stats { cache_memory_bytes: -1, ..Stats::default() }));
    assert_eq!(drops, Drops::default());
}

#[test]
fn events_that_change_something_are_kept() {
    use wire::cache_event::Type;
    let sent = |kind: i32, prefix_hash: &str, adapter: &str| wire::CacheEvent {
        r#type: kind,
        replica_id: "r".into(),
        tenant_id: "t".into(),
        model_id: "m".into(),
        prefix_hash: hash(prefix_hash),
        timestamp_us: 7,
        adapter_id: adapter.into(),
    };
    let mut drops = Drops::default();
    let mut kind = |message| event(message, &mut drops).map(|e| e.kind);
    for ignored in [Type::Unspecified as i32, Type::PrefixAdded as i32, 99, -1] {
        assert_eq!(kind(sent(ignored, "h", "")), None);
    }
    let evicted = EventKind::PrefixEvicted { hash: b"h".to_vec(), adapter: "x".into() };
    assert_eq!(kind(sent(Type::PrefixEvicted as i32, "h", "x")), Some(evicted));
    assert_eq!(kind(sent(Type::AllCleared as i32, "", "ignored")), Some(EventKind::AllCleared));
    let touched = EventKind::ReplicaUpdated { timestamp_us: 7 };
    assert_eq!(kind(sent(Type::ReplicaUpdated as i32, "", "")), Some(touched));
    assert_eq!(kind(sent(Type::PrefixEvicted as i32, "", "")), None);
    assert_eq!(kind(sent(Type::PrefixEvicted as i32, &"h".repeat(129), "")), None);
    assert_eq!(kind(sent(Type::PrefixEvicted as i32, "h", &"a".repeat(1_025))), None);
    let counted: Vec<_> = drops.iter().collect();
    assert_eq!(counted, [(DropReason::IdTooLong, 1), (DropReason::EmptyHash, 1), (DropReason::HashTooLong, 1)]);
}

#[test]
fn reasons_have_distinct_labels_and_counters() {
    for (i, reason) in DropReason::ALL.into_iter().enumerate() {
        assert_eq!(reason as usize, i);
        assert!(DropReason::ALL.iter().skip(i + 1).all(|other| other.as_str() != reason.as_str()));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever comes in, what goes out keeps the promises that the log's types make.
    #[test]
    fn what_is_kept_is_clean(
        hashes in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..140), 0..6),
        counts in prop::collection::vec(-2i32..100, 0..6),
        prefix_hash in prop::collection::vec(any::<u8>(), 0..140),
        token_count in -2i32..100,
        tier in any::<i32>(),
    ) {
        let sent = wire::PrefixEntry {
            prefix_hash: prefix_hash.into(),
            token_count,
            block_hashes: hashes.into_iter().map(Bytes::from).collect(),
            block_token_counts: counts,
            tier,
            adapter_id: String::new(),
        };
        let mut drops = Drops::default();
        let kept = update(message(vec![sent]), &mut drops);
        prop_assert!(kept.is_some() || drops != Drops::default(), "gone without a count");
        for entry in kept.into_iter().flat_map(|u| u.entries) {
            prop_assert!(entry.tier != 0 && (entry.chain.is_some() || entry.exact.is_some()));
            if let Some(exact) = entry.exact {
                prop_assert!((1..=MAX_HASH_BYTES).contains(&exact.hash.len()) && exact.token_count >= 0);
            }
            if let Some(chain) = entry.chain {
                prop_assert!(!chain.is_empty() && chain.len() == chain.blocks().count());
                prop_assert!(chain.blocks().all(|(hash, tokens)| (1..=MAX_HASH_BYTES).contains(&hash.len()) && tokens >= 0));
            }
        }
    }
}

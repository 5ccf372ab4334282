#![expect(clippy::unwrap_used, reason = "a test may panic")]

use super::*;

#[test]
fn a_lookup_has_every_field_in_both_spellings() {
    let snake = lookup_request(
        r#"{"model_id":"m","tenant_id":"t","prefix_hash":"0a","prefix_token_count":3,"hash_scheme":"s",
            "slo":{"ttft_ms":1,"tbt_ms":2},"block_hashes":["0b","0c0d"],"block_token_counts":[16,16],
            "token_ids":[1,2],"prompt_text":"p","adapter_id":"a"}"#,
    )
    .unwrap();
    let camel = lookup_request(
        r#"{"modelId":"m","tenantId":"t","prefixHash":"0x0A","prefixTokenCount":3,"hashScheme":"s",
            "slo":{"ttftMs":1,"tbtMs":2},"blockHashes":["0B","0C0D"],"blockTokenCounts":[16,16],
            "tokenIds":[1,2],"promptText":"p","adapterId":"a"}"#,
    )
    .unwrap();
    assert_eq!(snake, camel);
    assert_eq!(snake.block_hashes, [vec![0x0b], vec![0x0c, 0x0d]]);
    assert_eq!(snake.slo, Some(pb::Slo { ttft_ms: 1, tbt_ms: 2 }));
    assert_eq!(lookup_request("{}").unwrap(), pb::LookupRouteRequest::default());
}

#[test]
fn mistakes_are_named() {
    for (text, word) in [
        (r#"{"model":"m"}"#, "`model`"),
        (r#"{"prefix_hash":"xyz"}"#, "'x'"),
        (r#"{"block_token_counts":[2147483648]}"#, "2147483648"),
        ("[]", "the request"),
    ] {
        assert!(lookup_request(text).unwrap_err().contains(word), "{text}: {}", lookup_request(text).unwrap_err());
    }
    for (text, word) in [
        ("", "nothing to report"),
        ("[]", "nothing to report"),
        (r#"{} {"replica":"r"}"#, "message 2"),
        (r#"{"prefixes":[{"tier":"T9"}]}"#, "T9"),
        (r#"{"type":"PREFIX_LOST"}"#, "PREFIX_LOST"),
        (r#"{"type":"ALL_CLEARED","stats":{}}"#, "stats"),
        ("{", "EOF"),
        ("7", "message 1"),
        ("[[]]", "message 1"),
    ] {
        assert!(reports(text).unwrap_err().contains(word), "{text}: {}", reports(text).unwrap_err());
    }
}

#[test]
fn reports_come_one_by_one_in_lines_or_in_arrays() {
    let text = r#"{"replica_id":"r","prefixes":[{"block_hashes":["01"],"block_token_counts":[16],"tier":"t2"}]}
        [{"type":"PREFIX_EVICTED","prefixHash":"01"},{"type":4,"replicaId":"r"}]
        {"stats":{"hit_rate":0.5,"pressure":0.25,"cache_memory_bytes":7}}"#;
    let reports = reports(text).unwrap();
    assert_eq!(reports.len(), 4);
    let Report::Update(first) = &reports[0] else { panic!("{reports:?}") };
    assert_eq!(first.prefixes[0].tier, pb::CacheTier::T2 as i32);
    let Report::Event(second) = &reports[1] else { panic!("{reports:?}") };
    assert_eq!(second.r#type(), pb::cache_event::Type::PrefixEvicted);
    let Report::Event(third) = &reports[2] else { panic!("{reports:?}") };
    assert_eq!(third.r#type(), pb::cache_event::Type::AllCleared);
    let Report::Update(fourth) = &reports[3] else { panic!("{reports:?}") };
    assert_eq!(fourth.stats.as_ref().unwrap().hit_rate, 0.5);
}

#[test]
fn tiers_go_both_ways() {
    for name in ["T1", "T2", "T3", "UNSPECIFIED"] {
        assert_eq!(tier_name(tier(name).unwrap() as i32), name);
    }
    assert_eq!(tier("CACHE_TIER_T1"), Ok(pb::CacheTier::T1));
    assert_eq!(tier_name(9), "9");
}

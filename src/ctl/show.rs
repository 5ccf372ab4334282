//! Answers of the admin service as text and as JSON. Pure.

use prefixd_proto::admin::{DigestResponse, MemberStatus, StatusResponse, SweepResponse};
use serde_json::{Value, json};
use std::fmt::Write;

/// A node's status for people.
pub(super) fn status(s: &StatusResponse) -> String {
    let mut out = String::new();
    let mut line = |name: &str, text: String| {
        let _ = writeln!(out, "{name:<10}{text}");
    };
    line(
        "node",
        format!("{} (id {:016x}, opened {} times, release {})", s.node_name, s.node_id, s.incarnation, s.release),
    );
    line("cluster", if s.cluster_id.is_empty() { "none yet".into() } else { hex(&s.cluster_id) });
    line("role", format!("{}, term {}", s.role, s.term));
    line("leader", s.leader.map_or_else(|| "unknown".into(), |id| named(&s.members, id)));
    line("ready", ready(s));
    let (last, committed, applied) = (s.last_log_index, s.committed_index, s.applied_index);
    line("log", format!("last {last}, committed {committed}, applied {applied}; {} on disk", bytes(s.log_bytes)));
    line("snapshot", snapshot(s));
    let index = format!("{} entries, {} prefixes, {}", s.entries, s.prefixes, bytes(s.index_bytes));
    line("index", index);
    line("digest", format!("{} at {applied}", hex(&s.digest)));
    let skew_ms = (i128::from(s.wall_us) - i128::from(s.cluster_time_us)) / 1_000;
    line("clock", format!("wall clock {skew_ms:+} ms from cluster time; feature level {}", s.feature_level));
    out.push_str("members\n");
    members(&mut out, s);
    out.truncate(out.trim_end().len());
    out
}

fn ready(s: &StatusResponse) -> String {
    match (s.ready, s.unready_reason.as_str()) {
        (true, "") => "yes".into(),
        (true, amiss) => format!("yes, but {amiss}"),
        (false, why) => format!("no: {why}"),
    }
}

fn snapshot(s: &StatusResponse) -> String {
    match s.snapshot_index {
        0 => "none".into(),
        at => format!("at {at}, {} on disk; log purged up to {}", bytes(s.snapshot_bytes), s.purged_index),
    }
}

fn members(out: &mut String, s: &StatusResponse) {
    let name_width = s.members.iter().map(|m| m.name.len()).max().unwrap_or(0).max(4);
    let addr_width = s.members.iter().map(|m| m.node_addr.len()).max().unwrap_or(0).max(7);
    let _ = writeln!(out, "  {:name_width$}  {:addr_width$}  {:>20}  {:8}  lag", "name", "address", "id", "role");
    for m in &s.members {
        let role = match (s.leader == Some(m.node_id), m.voter) {
            (true, _) => "leader",
            (false, true) => "voter",
            (false, false) => "learner",
        };
        let lag = m.lag.map_or_else(|| "-".into(), |lag| lag.to_string());
        let _ = writeln!(
            out,
            "  {:name_width$}  {:addr_width$}  {:>20}  {role:8}  {lag}",
            m.name,
            m.node_addr,
            format!("{:016x}", m.node_id)
        );
    }
}

/// A node's status for programs.
pub(super) fn status_json(s: &StatusResponse) -> String {
    let members: Vec<Value> = s.members.iter().map(member_json).collect();
    let value = json!({
        "node_name": s.node_name, "node_id": s.node_id, "incarnation": s.incarnation, "release": s.release,
        "cluster_id": hex(&s.cluster_id), "feature_level": s.feature_level,
        "role": s.role, "term": s.term, "leader": s.leader, "ready": s.ready, "unready_reason": s.unready_reason,
        "last_log_index": s.last_log_index, "committed_index": s.committed_index, "applied_index": s.applied_index,
        "snapshot_index": s.snapshot_index, "purged_index": s.purged_index,
        "entries": s.entries, "prefixes": s.prefixes, "index_bytes": s.index_bytes,
        "log_bytes": s.log_bytes, "snapshot_bytes": s.snapshot_bytes, "digest": hex(&s.digest),
        "cluster_time_us": s.cluster_time_us, "wall_us": s.wall_us, "members": members,
    });
    pretty(&value)
}

/// A member for programs; what was not asked for, or not answered, is null.
pub(super) fn member_json(m: &MemberStatus) -> Value {
    let release = Some(&m.release).filter(|release| !release.is_empty());
    json!({
        "node_id": m.node_id, "name": m.name, "node_addr": m.node_addr, "voter": m.voter, "lag": m.lag,
        "heard_ms": m.heard_ms, "release": release, "feature_max": m.feature_max, "ready": m.ready,
    })
}

/// A digest.
pub(super) fn digest(d: &DigestResponse, as_json: bool) -> String {
    if as_json {
        return pretty(&json!({"index": d.index, "digest": hex(&d.digest)}));
    }
    format!("{} at {}", hex(&d.digest), d.index)
}

/// What a sweep removed.
pub(super) fn sweep(s: &SweepResponse, as_json: bool) -> String {
    if as_json {
        return pretty(&json!({"entries_removed": s.entries_removed, "sweeps": s.sweeps}));
    }
    format!("{} entries removed in {} sweeps", s.entries_removed, s.sweeps)
}

fn named(members: &[MemberStatus], id: u64) -> String {
    let name = members.iter().find(|m| m.node_id == id).map_or("", |m| m.name.as_str());
    format!("{name} (id {id:016x})").trim_start().to_owned()
}

/// A value as indented JSON.
pub(super) fn pretty(value: &Value) -> String {
    // A value made of strings and numbers always has a text.
    serde_json::to_string_pretty(value).unwrap_or_default()
}

/// Bytes in hexadecimal digits.
pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut out, byte| {
        let _ = write!(out, "{byte:02x}");
        out
    })
}

fn bytes(n: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    let mut value = n as f64;
    let mut shown = None;
    for unit in UNITS {
        if value < 1_024.0 {
            break;
        }
        value /= 1_024.0;
        shown = Some(unit);
    }
    shown.map_or_else(|| format!("{n} bytes"), |unit| format!("{value:.1} {unit}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> StatusResponse {
        let member = |name: &str, id, voter, lag| MemberStatus {
            node_id: id,
            name: name.into(),
            node_addr: format!("{name}:9091"),
            voter,
            lag,
            ..Default::default()
        };
        StatusResponse {
            node_name: "n0".into(),
            node_id: 7,
            cluster_id: vec![0xab; 16],
            role: "leader".into(),
            term: 3,
            leader: Some(7),
            members: vec![
                member("n0", 7, true, Some(0)),
                member("node-1", 8, true, Some(5)),
                member("n2", 9, false, None),
            ],
            last_log_index: 12,
            log_bytes: 3 << 19,
            digest: vec![1; 16],
            ready: true,
            wall_us: 5_000,
            ..Default::default()
        }
    }

    #[test]
    fn people_see_the_cluster_at_a_glance() {
        let text = status(&sample());
        for part in [
            "leader    n0 (id 0000000000000007)",
            "ready     yes",
            "1.5 MiB on disk",
            "snapshot  none",
            "wall clock +5 ms",
        ] {
            assert!(text.contains(part), "{part} in\n{text}");
        }
        let rows: Vec<&str> = text.lines().skip_while(|l| *l != "members").skip(2).collect();
        assert_eq!(rows.len(), 3);
        assert!(rows.iter().zip(["leader", "voter", "learner"]).all(|(row, role)| row.contains(role)), "{text}");
        assert!(rows.last().is_some_and(|row| row.ends_with('-')));
    }

    #[test]
    fn programs_see_every_field() {
        let value: Value = serde_json::from_str(&status_json(&sample())).unwrap();
        assert_eq!(value["cluster_id"].as_str().map(str::len), Some(32));
        assert_eq!((value["leader"].as_u64(), value["members"][1]["lag"].as_u64()), (Some(7), Some(5)));
        assert!(value["members"][2]["lag"].is_null());
    }
}

//! `prefixd backup`: judges and describes backup files. It asks no node and changes nothing.

use super::{print, table};
use crate::http::internal::time::rfc3339;
use clap::Subcommand;
use prefixd_raft::backup::{Contents, verify};
use serde_json::json;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Flags of `prefixd backup`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    what: What,
    /// Print JSON.
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Read all of a backup, compare its checksums, and compute its digest from its records.
    Verify {
        /// The backup.
        file: PathBuf,
    },
    /// The same, and show what is in it.
    Inspect {
        /// The backup.
        file: PathBuf,
    },
}

/// Judges one file.
pub async fn run(args: Args) -> ExitCode {
    let (What::Verify { file } | What::Inspect { file }) = &args.what;
    let read = file.clone();
    let contents = match tokio::task::spawn_blocking(move || verify(&read)).await {
        Ok(Ok(contents)) => contents,
        Ok(Err(error)) => return refused(&args, file, &error.to_string()),
        Err(error) => return refused(&args, file, &error.to_string()),
    };
    print::line(&match &args.what {
        _ if args.json => json(file, &contents),
        What::Verify { .. } => format!("{}: good", summary(file, &contents)),
        What::Inspect { .. } => described(file, &contents),
    });
    ExitCode::SUCCESS
}

fn refused(args: &Args, file: &Path, reason: &str) -> ExitCode {
    if args.json {
        print::line(&pretty(&json!({"file": file.display().to_string(), "good": false, "reason": reason})));
    } else {
        eprintln!("prefixd backup: {reason}");
    }
    ExitCode::FAILURE
}

/// One line about a backup.
pub(crate) fn summary(file: &Path, contents: &Contents) -> String {
    let Contents { header, end, .. } = contents;
    format!(
        "{}: {} entries at log index {} of cluster {:032x}, digest {:032x}, {} bytes",
        file.display(),
        header.entries,
        header.last.index,
        header.cluster_id,
        header.digest,
        end.file_bytes
    )
}

fn bytes_an_entry(contents: &Contents) -> f64 {
    contents.end.file_bytes as f64 / contents.header.entries.max(1) as f64
}

/// All about a backup, for people.
fn described(file: &Path, contents: &Contents) -> String {
    let Contents { header, end, members, policies, quotas, tenants } = contents;
    let members: Vec<String> = members
        .iter()
        .map(|(name, id, voter)| format!("{name} ({id:016x}{})", if *voter { "" } else { ", learner" }))
        .collect();
    let rows = [
        ("file", file.display().to_string()),
        ("taken", format!("{} by {}, release {}", rfc3339(header.taken_at_us), header.node_name, header.release)),
        ("cluster", format!("{:032x}, feature level {}", header.cluster_id, header.feature_level)),
        ("members", members.join(", ")),
        ("position", format!("index {} of term {}", header.last.index, header.last.term)),
        ("time", format!("{} by the cluster", rfc3339(header.time_us))),
        ("digest", format!("{:032x}", header.digest)),
        ("index", format!("{} entries, {} prefixes, {} dead", header.entries, header.prefixes, header.dead_entries)),
        ("beside", format!("{} stats rows, {} sessions", header.stats_rows, header.sessions)),
        ("policy", format!("{policies} policies, {quotas} quotas")),
        (
            "size",
            format!(
                "{} bytes, {:.1} an entry; {} records in {} chunks",
                end.file_bytes,
                bytes_an_entry(contents),
                end.records,
                end.chunks
            ),
        ),
    ];
    let mut text: String = rows.iter().map(|(name, value)| format!("{name:<10}{value}\n")).collect();
    let head = ["tenant", "entries", "stats rows"].map(str::to_owned);
    let tenants =
        tenants.iter().map(|(name, held)| [name.clone(), held.entries.to_string(), held.stats_rows.to_string()]);
    text.push_str(&table::render(&std::iter::once(head).chain(tenants).collect::<Vec<_>>()));
    text.truncate(text.trim_end().len());
    text
}

/// All about a backup, for programs.
pub(crate) fn json(file: &Path, contents: &Contents) -> String {
    let Contents { header, end, members, policies, quotas, tenants } = contents;
    let members: Vec<_> =
        members.iter().map(|(name, id, voter)| json!({"name": name, "node_id": id, "voter": voter})).collect();
    let tenants: Vec<_> = tenants
        .iter()
        .map(|(name, held)| json!({"tenant": name, "entries": held.entries, "stats_rows": held.stats_rows}))
        .collect();
    pretty(&json!({
        "file": file.display().to_string(), "good": true, "format_version": prefixd_storage::backup::FORMAT_VERSION,
        "cluster_id": format!("{:032x}", header.cluster_id), "members": members,
        "term": header.last.term, "log_index": header.last.index, "digest": format!("{:032x}", header.digest),
        "cluster_time_us": header.time_us, "taken_at_us": header.taken_at_us, "node_name": header.node_name,
        "release": header.release, "feature_level": header.feature_level,
        "entries": header.entries, "prefixes": header.prefixes, "dead_entries": header.dead_entries,
        "stats_rows": header.stats_rows, "sessions": header.sessions, "policies": policies, "quotas": quotas,
        "tenants": tenants, "chunks": end.chunks, "records": end.records, "raw_bytes": end.raw_bytes,
        "file_bytes": end.file_bytes, "checksum": format!("{:032x}", end.checksum),
        "bytes_an_entry": bytes_an_entry(contents),
    }))
}

fn pretty(value: &serde_json::Value) -> String {
    // A value made of strings and numbers always has a text.
    serde_json::to_string_pretty(value).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use prefixd_raft::backup::TenantContents;
    use prefixd_storage::{BackupEnd, BackupHeader, LogPos};
    use std::collections::BTreeMap;

    fn contents() -> Contents {
        Contents {
            header: BackupHeader {
                cluster_id: 0xab,
                last: LogPos { term: 3, index: 77 },
                membership: Vec::new(),
                digest: 0xd1,
                time_us: 1_700_000_000_000_000,
                taken_at_us: 1_700_000_001_000_000,
                feature_level: 1,
                entries: 1_000,
                prefixes: 900,
                dead_entries: 5,
                stats_rows: 2,
                sessions: 16,
                node_name: "n1".into(),
                release: "0.1.0".into(),
            },
            end: BackupEnd { chunks: 1, records: 4, raw_bytes: 10_000, file_bytes: 9_500, checksum: 7 },
            members: vec![("n0".into(), 1, true), ("n1".into(), 2, false)],
            policies: 1,
            quotas: 0,
            tenants: BTreeMap::from([("acme".into(), TenantContents { entries: 1_000, stats_rows: 2 })]),
        }
    }

    #[test]
    fn people_see_what_a_backup_is_of() {
        let text = described(Path::new("nightly.pfbk"), &contents());
        for part in [
            "cluster   000000000000000000000000000000ab",
            "members   n0 (0000000000000001), n1 (0000000000000002, learner)",
            "position  index 77 of term 3",
            "taken     2023-11-14T22:13:21Z by n1",
            "9500 bytes, 9.5 an entry",
            "acme       1000           2",
        ] {
            assert!(text.contains(part), "{part} in\n{text}");
        }
        assert!(summary(Path::new("nightly.pfbk"), &contents()).contains("1000 entries at log index 77"));
    }

    #[test]
    fn programs_see_every_figure() {
        let value: serde_json::Value = serde_json::from_str(&json(Path::new("b"), &contents())).unwrap();
        assert_eq!(value["digest"].as_str().map(str::len), Some(32));
        assert_eq!((value["log_index"].as_u64(), value["bytes_an_entry"].as_f64()), (Some(77), Some(9.5)));
        assert_eq!(value["tenants"][0]["entries"], 1_000);
    }
}

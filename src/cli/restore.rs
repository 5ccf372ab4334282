//! `prefixd restore`: makes a data directory of a backup, the disk of a new cluster of one. It asks no node, and it never
//! touches a directory that holds anything.

use super::print;
use crate::config::parse;
use prefixd_raft::backup::{Ids, Restored, restore};
use serde_json::json;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Flags of `prefixd restore`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The backup.
    file: PathBuf,
    /// Where the new cluster's first node is to live; empty or absent.
    #[arg(long, value_name = "DIR", env = "PREFIXD_DATA_DIR")]
    data_dir: PathBuf,
    /// The name that this node will be started with.
    #[arg(long, value_name = "NAME", default_value = "prefixd", env = "PREFIXD_NODE_NAME", value_parser = parse::member_name)]
    node_name: String,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Restores one backup.
pub async fn run(args: Args) -> ExitCode {
    let (file, dir, name) = (args.file.clone(), args.data_dir.clone(), args.node_name.clone());
    let restored = tokio::task::spawn_blocking(move || restore(&file, &dir, &name, Ids::random())).await;
    let message = match restored {
        Ok(Ok(restored)) => {
            let shown = if args.json { as_json(&restored) } else { as_text(&args.data_dir, &restored) };
            print::line(&shown);
            return ExitCode::SUCCESS;
        }
        Ok(Err(fault)) => fault.to_string(),
        Err(error) => error.to_string(),
    };
    eprintln!("prefixd restore: {message}");
    ExitCode::FAILURE
}

fn as_text(dir: &Path, restored: &Restored) -> String {
    let Restored { header, cluster_id, node_id, node_name, digest } = restored;
    let dir = dir.display();
    format!(
        "restored {} entries at log index {} into {dir}\n\
         digest    {digest:032x}, as in the backup\n\
         cluster   {cluster_id:032x}, a new one; the backup was taken of {:032x}, whose nodes can't join\n\
         member    {node_name} (id {node_id:016x})\n\
         next      prefixd serve --node-name={node_name} --data-dir={dir}, with your other flags; then start the other \
         nodes of --peers on empty data directories with --bootstrap=never: they join",
        header.entries, header.last.index, header.cluster_id
    )
}

fn as_json(restored: &Restored) -> String {
    let Restored { header, cluster_id, node_id, node_name, digest } = restored;
    let value = json!({
        "entries": header.entries, "term": header.last.term, "log_index": header.last.index,
        "digest": format!("{digest:032x}"), "cluster_id": format!("{cluster_id:032x}"),
        "backup_cluster_id": format!("{:032x}", header.cluster_id), "node_id": node_id, "node_name": node_name,
    });
    // A value made of strings and numbers always has a text.
    serde_json::to_string_pretty(&value).unwrap_or_default()
}

//! `prefixd ctl backup`: brings a backup of a node's state into a file. The file gets its name only when all of it is
//! there, was read back, makes the digest that it says, and is on disk; until then it is FILE.partial.

use super::Args;
use crate::cli::backup::{json, summary};
use crate::cli::print;
use prefixd_proto::admin::BackupRequest;
use prefixd_proto::admin::admin_client::AdminClient;
use prefixd_raft::backup::{self, Contents};
use prefixd_storage::durable::sync_dir;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tonic::transport::Channel;

/// What to do.
#[derive(Debug, clap::Args)]
pub(super) struct Backup {
    /// Where the backup goes; written as FILE.partial until it is whole.
    file: PathBuf,
    /// Replace FILE if it exists.
    #[arg(long)]
    force: bool,
}

impl Backup {
    /// Refuses to overwrite; asked before any node is.
    pub(super) fn check(&self) -> Result<(), String> {
        match self.force || !exists(&self.file)? {
            true => Ok(()),
            false => Err(format!("{} exists: name another file, or replace it with --force", self.file.display())),
        }
    }
}

fn exists(path: &Path) -> Result<bool, String> {
    path.try_exists().map_err(|error| format!("{}: {error}", path.display()))
}

/// Takes the backup.
pub(super) async fn take(args: &Args, what: &Backup, node: AdminClient<Channel>) -> Result<bool, String> {
    let mut name = what.file.clone().into_os_string();
    name.push(".partial");
    let partial = PathBuf::from(name);
    let file = open(&partial)?;
    let taken = match receive(args, node, &file, &partial).await {
        Ok(()) => finish(what, partial.clone(), file).await,
        Err(message) => Err(message),
    };
    match taken {
        Ok(contents) => {
            let shown = if args.json { json(&what.file, &contents) } else { summary(&what.file, &contents) };
            print::line(&shown);
            Ok(true)
        }
        Err(message) => {
            // What is left would only be in the way.
            let _ = std::fs::remove_file(&partial);
            Err(message)
        }
    }
}

/// The partial file, empty, for this process alone.
fn open(partial: &Path) -> Result<File, String> {
    let said = |error: &dyn std::fmt::Display| format!("{}: {error}", partial.display());
    let file = File::options().read(true).write(true).create(true).truncate(false).open(partial);
    let file = file.map_err(|error| said(&error))?;
    file.try_lock().map_err(|_| said(&"another backup is being written to it"))?;
    file.set_len(0).map_err(|error| said(&error))?;
    Ok(file)
}

async fn receive(args: &Args, mut node: AdminClient<Channel>, mut file: &File, partial: &Path) -> Result<(), String> {
    let failed = |status: tonic::Status| super::failure(args, &status);
    let mut parts = node.backup(BackupRequest {}).await.map_err(failed)?.into_inner();
    let patience = Duration::from_secs(args.timeout);
    loop {
        let part = tokio::time::timeout(patience, parts.message()).await;
        let part = part.map_err(|_| format!("{} sent nothing for {} seconds", args.admin, args.timeout))?;
        match part.map_err(failed)? {
            Some(part) => file.write_all(&part.data).map_err(|error| format!("{}: {error}", partial.display()))?,
            None => return Ok(()),
        }
    }
}

/// Syncs it, reads all of it, and gives it its name.
async fn finish(what: &Backup, partial: PathBuf, file: File) -> Result<Contents, String> {
    file.sync_all().map_err(|error| format!("{}: {error}", partial.display()))?;
    let read = partial.clone();
    let contents = tokio::task::spawn_blocking(move || backup::verify(&read)).await.map_err(|e| e.to_string())?;
    let contents = contents.map_err(|error| format!("what was received is no good: {error}"))?;
    what.check()?;
    let renamed = std::fs::rename(&partial, &what.file).and_then(|()| {
        let dir = what.file.parent().filter(|dir| !dir.as_os_str().is_empty());
        sync_dir(dir.unwrap_or(Path::new(".")))
    });
    renamed.map_err(|error| format!("{}: {error}", what.file.display()))?;
    Ok(contents)
}

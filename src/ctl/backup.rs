//! `prefixd ctl backup`: brings a backup of a node's state into a file. The file gets its name only when all of it is
//! there, was read back, makes the digest that it says, and is on disk; until then it is FILE.partial.

use super::Args;
use crate::cli::backup::{json, summary};
use crate::cli::print;
use clap::builder::{OsStringValueParser, TypedValueParser};
use prefixd_proto::admin::BackupRequest;
use prefixd_proto::admin::admin_client::AdminClient;
use prefixd_raft::backup::{self, Contents};
use prefixd_storage::durable::sync_dir;
use std::ffi::OsString;
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tonic::transport::Channel;

/// What to do.
#[derive(Debug, clap::Args)]
pub(super) struct Backup {
    /// Where the backup goes; written as FILE.partial until it is whole.
    #[arg(value_parser = OsStringValueParser::new().try_map(file_name))]
    file: PathBuf,
    /// Replace FILE if it exists.
    #[arg(long)]
    force: bool,
}

/// Others write to standard output when they are given this name.
fn file_name(name: OsString) -> Result<PathBuf, &'static str> {
    match name == "-" {
        true => Err("a backup is written to a file, which is read back and renamed; name one"),
        false => Ok(name.into()),
    }
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

/// The partial file, empty, for this process alone and for its user's eyes: it holds every tenant's names and hashes.
fn open(partial: &Path) -> Result<File, String> {
    let said = |error: &dyn std::fmt::Display| format!("{}: {error}", partial.display());
    let file = File::options().read(true).write(true).create(true).truncate(false).mode(0o600).open(partial);
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn nothing_is_replaced_unasked_and_nobody_else_writes_or_reads_it() {
        let dir = tempfile::tempdir().unwrap();
        let asked = |force| Backup { file: dir.path().join("b.pfbk"), force };
        asked(false).check().unwrap();
        std::fs::write(dir.path().join("b.pfbk"), b"older").unwrap();
        let refused = asked(false).check().unwrap_err();
        assert!(refused.contains("b.pfbk exists") && refused.contains("--force"), "{refused}");
        asked(true).check().unwrap();
        let partial = dir.path().join("b.pfbk.partial");
        let held = open(&partial).unwrap();
        let busy = open(&partial).unwrap_err();
        assert!(busy.contains("another backup is being written"), "{busy}");
        let kept = held.metadata().unwrap();
        assert_eq!((kept.permissions().mode() & 0o777, kept.len()), (0o600, 0));
        (&held).write_all(b"half").unwrap();
        drop(held);
        assert_eq!(open(&partial).unwrap().metadata().unwrap().len(), 0, "it starts over");
    }
}

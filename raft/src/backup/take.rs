//! Taking a backup of a running node: the walk of the index that snapshots use, written into a file without a name in
//! the data directory, then sent from there at the receiver's pace. So a slow receiver holds up nothing and costs no
//! memory, and the walk is over as fast as this disk writes some ten bytes an entry.

use crate::core::{Core, Cut, CutError};
use crate::generation::encode_record;
use crate::machine::{OVERTAKEN_PAUSE, SLICE_ENTRIES};
use crate::node::{Inner, wall_us};
use crate::record;
use prefixd_proto::admin as wire;
use prefixd_storage::{BackupError, BackupHeader, BackupWriter, disk_free_bytes};
use std::fs::File;
use std::io::{self, BufWriter, Read, Seek};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::SendTimeoutError;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

/// Bytes of the file that one message carries.
const PART_BYTES: usize = 256 << 10;
/// Messages that wait for the receiver.
const PARTS_AHEAD: usize = 4;
/// Times that the walk is begun before it is given up.
const MAX_WALKS: u32 = 8;
/// How often the room for pre-images is doubled when too much changed under the walk.
const MAX_DOUBLINGS: u32 = 3;
/// Longest wait for a snapshot that is being written.
const MAX_IDLE_WAIT: Duration = Duration::from_secs(600);
/// Between looks at whether it is.
const IDLE_POLL: Duration = Duration::from_millis(50);
/// Longest that a receiver may take nothing.
const MAX_STALL: Duration = Duration::from_secs(60);
/// Room that must be free beside the file and the reserve: it is not a backup's to fill a node's disk.
const SPARE_BYTES: u64 = 64 << 20;
/// An upper estimate of what an entry takes in the file.
const ENTRY_BYTES: u64 = 40;
/// The file's name for the moment in which it has one.
const SPOOL_NAME: &str = "backup.spool";

/// What is sent.
pub(crate) type Parts = ReceiverStream<Result<wire::BackupPart, Status>>;
pub(super) type Sender = mpsc::Sender<Result<wire::BackupPart, Status>>;

impl Inner {
    /// Begins to take a backup and gives its file in parts.
    pub(crate) fn take_backup(self: &Arc<Self>) -> Result<Parts, Status> {
        let Ok(one_at_a_time) = self.backing_up.clone().try_lock_owned() else {
            return Err(Status::resource_exhausted("another backup of this node is being taken; try again after it"));
        };
        let (send, receive) = mpsc::channel(PARTS_AHEAD);
        let inner = self.clone();
        tokio::spawn(async move {
            let taken = tokio::select! {
                taken = take(&inner, &send) => taken,
                () = inner.stopping.cancelled() => Err(Status::unavailable("this node is stopping")),
            };
            if let Err(status) = taken {
                tracing::warn!(code = ?status.code(), why = status.message(), "a backup was not taken");
                // The receiver may have gone: then nobody misses the reason.
                let _gone = send.send(Err(status)).await;
            }
            drop(one_at_a_time);
        });
        Ok(ReceiverStream::new(receive))
    }

    fn backup_header(&self, cluster_id: u128, cut: &Cut) -> Result<BackupHeader, Status> {
        let last = cut.at.ok_or_else(|| Status::failed_precondition("nothing was applied on this node yet"))?;
        let membership = record::encode_members(cut.membership_at, &cut.membership);
        Ok(BackupHeader {
            cluster_id,
            last,
            membership: membership.map_err(|e| Status::internal(e.to_string()))?,
            digest: cut.digest,
            time_us: cut.time_us,
            taken_at_us: wall_us(),
            feature_level: cut.feature_level,
            entries: cut.totals.entries,
            prefixes: cut.totals.prefixes,
            dead_entries: cut.totals.dead_entries,
            stats_rows: cut.totals.stats_rows,
            sessions: cut.totals.sessions,
            node_name: self.config.node_name.clone(),
            release: env!("CARGO_PKG_VERSION").into(),
        })
    }
}

async fn take(inner: &Arc<Inner>, send: &Sender) -> Result<(), Status> {
    let cluster_id = inner.member().map(|(me, _)| me.cluster_id).ok_or_else(|| {
        Status::failed_precondition(format!("this node belongs to no cluster yet: {}", inner.readiness().1))
    })?;
    check_room(inner)?;
    let path = inner.config.data_dir.join(SPOOL_NAME);
    let mut preimages = inner.config.limits.snapshot_preimage_entries;
    let most_preimages = preimages.saturating_mul(1 << MAX_DOUBLINGS);
    for _ in 0..MAX_WALKS {
        let cut = begin(&inner.core, preimages, send).await?;
        let header = inner.backup_header(cluster_id, &cut)?;
        let (core, at, spool, progress) = (inner.core.clone(), cut.clone(), path.clone(), send.clone());
        let walked = tokio::task::spawn_blocking(move || write(&core, &at, &header, &spool, &progress)).await;
        inner.core.end_cut(&cut).await;
        match walked.map_err(|e| Status::internal(e.to_string()))?.map_err(|e| spool_status(&path, &e))? {
            Walked::Whole(file) => {
                tracing::info!(index = cut.at.map(|pos| pos.index), entries = cut.totals.entries, "a backup is sent");
                let send = send.clone();
                let sent = tokio::task::spawn_blocking(move || send_file(file, &send)).await;
                return sent.map_err(|e| Status::internal(e.to_string()))?.map_err(|e| spool_status(&path, &e));
            }
            Walked::Overflowed => preimages = preimages.saturating_mul(2).min(most_preimages),
            Walked::Displaced => {}
        }
        tokio::time::sleep(OVERTAKEN_PAUSE).await;
    }
    Err(Status::aborted(format!(
        "too much changed while the index was walked, {MAX_WALKS} times in a row; take the backup from a node that is \
         less busy, or raise --snapshot-preimage-entries"
    )))
}

/// Begins the walk once no snapshot is being written.
async fn begin(core: &Core, preimages: usize, send: &Sender) -> Result<Cut, Status> {
    let began = tokio::time::Instant::now();
    while began.elapsed() < MAX_IDLE_WAIT && !send.is_closed() {
        let cut = core.begin_cut_if_idle(preimages).await.map_err(|e| Status::unavailable(e.to_string()))?;
        if let Some(cut) = cut {
            return Ok(cut);
        }
        tokio::time::sleep(IDLE_POLL).await;
    }
    Err(Status::unavailable(format!("a snapshot was being written for {MAX_IDLE_WAIT:?}; try again")))
}

fn check_room(inner: &Inner) -> Result<(), Status> {
    let dir = &inner.config.data_dir;
    let kept = inner.room.reserve_bytes().saturating_add(SPARE_BYTES);
    let needed = inner.core.published.summary().totals.entries.saturating_mul(ENTRY_BYTES).saturating_add(kept);
    match disk_free_bytes(dir) {
        Ok(free) if free < needed => Err(Status::resource_exhausted(format!(
            "{} has {free} bytes free, a backup passes through it and wants {needed}: take it from another node",
            dir.display()
        ))),
        Ok(_) => Ok(()),
        Err(error) => Err(Status::internal(format!("{}: {error}", dir.display()))),
    }
}

fn spool_status(path: &Path, error: &io::Error) -> Status {
    let said = format!("{}: {error}", path.display());
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            Status::resource_exhausted(format!("{said}; take the backup from another node"))
        }
        io::ErrorKind::TimedOut => Status::deadline_exceeded(format!("the receiver took nothing for {MAX_STALL:?}")),
        io::ErrorKind::BrokenPipe => Status::cancelled("the receiver has gone"),
        _ => Status::internal(said),
    }
}

/// What became of a walk.
pub(super) enum Walked {
    Whole(File),
    /// Too much changed under it.
    Overflowed,
    /// A snapshot was wanted, which comes first.
    Displaced,
}

pub(super) fn write(
    core: &Core,
    cut: &Cut,
    header: &BackupHeader,
    path: &Path,
    progress: &Sender,
) -> io::Result<Walked> {
    let spool = BufWriter::with_capacity(PART_BYTES, nameless(path)?);
    let mut writer = BackupWriter::begin(spool, path, header).map_err(plain)?;
    let mut walked = 0u64;
    loop {
        if progress.is_closed() {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let slice = match core.slice(cut, SLICE_ENTRIES) {
            Ok(slice) => slice,
            Err(CutError::Overflow) => return Ok(Walked::Overflowed),
            Err(CutError::Ended) => return Ok(Walked::Displaced),
            Err(CutError::Gone) => return Err(io::Error::other("the index thread has ended")),
        };
        for record in &slice.records {
            writer.put(&encode_record(record)?).map_err(plain)?;
        }
        walked += SLICE_ENTRIES as u64;
        // Whether it is heard doesn't matter: it tells the receiver that this node is at work.
        let _full = progress.try_send(Ok(wire::BackupPart { data: Vec::new(), walked_entries: walked }));
        if slice.done {
            break;
        }
    }
    let (spool, _) = writer.finish().map_err(plain)?;
    spool.into_inner().map(Walked::Whole).map_err(io::IntoInnerError::into_error)
}

/// A file that is gone when it is closed, whatever happens to this process. One of an earlier process that ended in
/// between is taken over.
fn nameless(path: &Path) -> io::Result<File> {
    let file = File::options().read(true).write(true).create(true).truncate(true).mode(0o600).open(path)?;
    std::fs::remove_file(path)?;
    Ok(file)
}

fn plain(error: BackupError) -> io::Error {
    match error {
        BackupError::Io { source, .. } => source,
        other => io::Error::other(other.to_string()),
    }
}

fn send_file(mut file: File, send: &Sender) -> io::Result<()> {
    file.rewind()?;
    let runtime = tokio::runtime::Handle::current();
    loop {
        let mut data = Vec::with_capacity(PART_BYTES);
        if (&mut file).take(PART_BYTES as u64).read_to_end(&mut data)? == 0 {
            return Ok(());
        }
        let part = wire::BackupPart { data, walked_entries: 0 };
        match runtime.block_on(send.send_timeout(Ok(part), MAX_STALL)) {
            Ok(()) => {}
            Err(SendTimeoutError::Timeout(_)) => return Err(io::ErrorKind::TimedOut.into()),
            Err(SendTimeoutError::Closed(_)) => return Err(io::ErrorKind::BrokenPipe.into()),
        }
    }
}

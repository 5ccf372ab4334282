//! Snapshots between the index, the disk and the wire. A snapshot is a generation of the storage crate whose records
//! are the index's snapshot records, one envelope each; its manifest says at which log position it was cut.

use crate::core::Cut;
use crate::record;
use crate::types::{SnapshotMeta, StoredMembership, log_id};
use futures::{Stream, StreamExt};
use prefixd_index::{Index, Loader, RecordDigest, SnapshotRecord};
use prefixd_proto::node as wire;
use prefixd_storage::codec;
use prefixd_storage::{Generation, SetAside, SnapshotError, SnapshotManifest, SnapshotStore, SnapshotWriter};
use std::io;
use std::sync::Arc;
use tokio_stream::wrappers::ReceiverStream;

const RECORD: [u8; 4] = *b"PXSR";
const MANIFEST: [u8; 4] = *b"PXSM";
const VERSION: u16 = 1;
/// Largest encoded snapshot record.
const MAX_RECORD_BYTES: usize = 1 << 20;
/// Bytes of records that one chunk on the wire gathers.
const CHUNK_BYTES: usize = 256 << 10;
/// Chunks read ahead of the wire.
const CHUNKS_AHEAD: usize = 4;

/// A snapshot on disk; it stays there while it is held.
#[derive(Clone)]
pub(crate) struct SnapshotFile(pub(crate) Arc<Generation>);

fn invalid(error: impl std::fmt::Display) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error.to_string())
}

impl SnapshotFile {
    pub(crate) fn bytes(&self) -> u64 {
        self.0.record_bytes()
    }

    /// The manifest as it travels.
    pub(crate) fn wire_manifest(&self) -> io::Result<Vec<u8>> {
        encode_manifest(self.0.manifest())
    }

    /// What openraft wants to know of it.
    pub(crate) fn meta(&self) -> io::Result<SnapshotMeta> {
        meta(self.0.manifest())
    }

    /// All of it as chunks for the wire, read off the async workers, a few chunks ahead. One that can't be read to its
    /// end is set aside in `store`, so that the next who asks gets another.
    pub(crate) fn chunks(
        &self,
        head: wire::SnapshotHead,
        store: Option<Arc<SnapshotStore>>,
    ) -> impl Stream<Item = wire::SnapshotChunk> + use<> {
        let (send, receive) = tokio::sync::mpsc::channel(CHUNKS_AHEAD);
        let generation = self.0.clone();
        let unreadable = {
            let generation = generation.clone();
            move |error: &SnapshotError| unreadable(store.as_deref(), &generation, error)
        };
        tokio::task::spawn_blocking(move || {
            if send.blocking_send(wire::SnapshotChunk { head: Some(head), records: Vec::new() }).is_err() {
                return;
            }
            let mut chunk = wire::SnapshotChunk::default();
            let mut bytes = 0;
            let records = match generation.records() {
                Ok(records) => records,
                Err(error) => return unreadable(&error),
            };
            for record in records {
                let record = match record {
                    Ok(record) => record,
                    Err(error) => return unreadable(&error),
                };
                bytes += record.len();
                chunk.records.push(record.into());
                if bytes >= CHUNK_BYTES {
                    bytes = 0;
                    if send.blocking_send(std::mem::take(&mut chunk)).is_err() {
                        return;
                    }
                }
            }
            // The receiver may have gone; then nobody misses the last chunk.
            let _gone = send.blocking_send(chunk);
        });
        ReceiverStream::new(receive)
    }

    /// Writes it anew into a store. Blocking.
    pub(crate) fn copy_to(&self, store: &SnapshotStore) -> io::Result<SnapshotFile> {
        let mut writer = store.begin().map_err(invalid)?;
        for record in self.0.records().map_err(invalid)? {
            writer.put(&record.map_err(invalid)?).map_err(invalid)?;
        }
        publish(writer, self.0.manifest().clone())
    }

    /// Builds the index that this snapshot holds. Blocking.
    pub(crate) fn load(&self, hash_seed: u64) -> io::Result<Index> {
        load(self.0.records().map_err(invalid)?, self.0.manifest(), hash_seed)
    }
}

/// What openraft wants to know of a snapshot with this manifest.
pub(crate) fn meta(manifest: &SnapshotManifest) -> io::Result<SnapshotMeta> {
    let (at, membership) = record::decode_members(&manifest.membership)?;
    Ok(SnapshotMeta {
        last_log_id: manifest.last.map(log_id),
        last_membership: StoredMembership::new(at.map(log_id), membership),
    })
}

/// The index that these records make, if they make the digest that their manifest names.
pub(crate) fn load<E: std::fmt::Display>(
    records: impl IntoIterator<Item = Result<Vec<u8>, E>>,
    manifest: &SnapshotManifest,
    hash_seed: u64,
) -> io::Result<Index> {
    let mut loader = Loader::new(hash_seed);
    for record in records {
        loader.push(decode_record(&record.map_err(invalid)?)?).map_err(invalid)?;
    }
    loader.finish(manifest.last.map_or(0, |pos| pos.index), manifest.digest).map_err(invalid)
}

/// Refuses records that don't make the digest that their manifest names.
pub(crate) fn check<E: std::fmt::Display>(
    records: impl IntoIterator<Item = Result<Vec<u8>, E>>,
    expected: u128,
) -> io::Result<()> {
    let mut digest = RecordDigest::default();
    for record in records {
        digest.push(&decode_record(&record.map_err(invalid)?)?).map_err(invalid)?;
    }
    let found = digest.finish();
    if found != expected {
        return Err(invalid(format!("the records of the snapshot make digest {found:032x}, expected {expected:032x}")));
    }
    Ok(())
}

/// The stream that is being sent ends short of the manifest's count, so the receiver refuses it.
fn unreadable(store: Option<&SnapshotStore>, generation: &Arc<Generation>, error: &SnapshotError) {
    tracing::error!(%error, "a snapshot could not be read to its end while it was sent");
    if let Some(store) = store.filter(|_| error.blames_the_disk()) {
        set_aside(store, generation, &error.to_string()).unwrap_or_else(|error| {
            tracing::error!(%error, "it could not be set aside either");
            0
        });
    }
}

/// Puts a generation that is no good out of the way, with a message each for it and for older ones that are no better.
/// Returns how many those were. Blocking.
pub(crate) fn set_aside(store: &SnapshotStore, generation: &Arc<Generation>, why: &str) -> Result<u64, SnapshotError> {
    let bad = store.set_aside(generation, why)?;
    tell_set_aside(&bad);
    Ok(bad.len() as u64)
}

/// Says which generations were set aside, and why.
pub(crate) fn tell_set_aside(bad: &[SetAside]) {
    for bad in bad {
        tracing::error!(snapshot = %bad.path.display(), reason = bad.reason, "a snapshot is no good and was set aside");
    }
}

/// Encodes a manifest for the wire.
pub(crate) fn encode_manifest(manifest: &SnapshotManifest) -> io::Result<Vec<u8>> {
    codec::encode(MANIFEST, VERSION, manifest).map_err(invalid)
}

/// Decodes a manifest off the wire.
pub(crate) fn decode_manifest(bytes: &[u8]) -> io::Result<SnapshotManifest> {
    codec::decode(MANIFEST, VERSION..=VERSION, bytes).map_err(invalid)
}

/// Decodes one record of a generation or a backup.
pub(crate) fn decode_record(bytes: &[u8]) -> io::Result<SnapshotRecord> {
    codec::decode_within(RECORD, VERSION..=VERSION, bytes, MAX_RECORD_BYTES).map_err(invalid)
}

/// Makes what was written the latest generation, if its records make the digest that its manifest names. Blocking.
pub(crate) fn publish(writer: SnapshotWriter, manifest: SnapshotManifest) -> io::Result<SnapshotFile> {
    let expected = manifest.digest;
    let sealed = writer.seal(manifest).map_err(invalid)?;
    check(sealed.records().map_err(invalid)?, expected)?;
    sealed.publish().map(SnapshotFile).map_err(invalid)
}

/// Encodes one record of the index for a generation.
pub(crate) fn encode_record(record: &SnapshotRecord) -> io::Result<Vec<u8>> {
    codec::encode_within(RECORD, VERSION, record, MAX_RECORD_BYTES).map_err(invalid)
}

/// The manifest of a snapshot cut at `cut`.
pub(crate) fn manifest(cluster_id: u128, cut: &Cut, records: u64) -> io::Result<SnapshotManifest> {
    let membership = record::encode_members(cut.membership_at, &cut.membership).map_err(invalid)?;
    Ok(SnapshotManifest {
        cluster_id,
        last: cut.at,
        membership,
        header: Vec::new(),
        records,
        digest: cut.digest,
        taken_at_us: cut.time_us,
    })
}

/// Takes a snapshot off the wire and makes it a generation on this disk. It is refused unless its cluster, its record
/// count, its checksum and its digest are right.
pub(crate) async fn receive<E: std::fmt::Display>(
    store: Arc<SnapshotStore>,
    cluster_id: u128,
    manifest: &[u8],
    mut chunks: impl Stream<Item = Result<wire::SnapshotChunk, E>> + Unpin,
) -> io::Result<SnapshotFile> {
    let manifest = decode_manifest(manifest)?;
    if manifest.cluster_id != cluster_id {
        return Err(invalid(format!("the snapshot belongs to cluster {:032x}", manifest.cluster_id)));
    }
    let mut writer = blocking(move || store.begin().map_err(invalid)).await?;
    let mut records = 0u64;
    while let Some(chunk) = chunks.next().await {
        let chunk = chunk.map_err(invalid)?;
        records += chunk.records.len() as u64;
        writer = blocking(move || put_all(writer, &chunk.records)).await?;
    }
    if records != manifest.records {
        return Err(invalid(format!("the snapshot ended after {records} of {} records", manifest.records)));
    }
    blocking(move || publish(writer, manifest)).await
}

fn put_all(mut writer: SnapshotWriter, records: &[bytes::Bytes]) -> io::Result<SnapshotWriter> {
    for record in records {
        writer.put(record).map_err(invalid)?;
    }
    Ok(writer)
}

/// Runs a blocking call off the async workers.
pub(crate) async fn blocking<T: Send + 'static>(
    call: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    tokio::task::spawn_blocking(call).await.map_err(|e| io::Error::other(format!("a blocking call failed: {e}")))?
}

#[cfg(test)]
mod tests;

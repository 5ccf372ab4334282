//! The generations of a node: which there are, which is the latest, and which have to go.
//!
//! | name | what |
//! |---|---|
//! | `gen-N` | a generation |
//! | `tmp-N` | one that was being written; removed at open |
//! | `bad-N` | one that was no good; the two latest are kept |

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::error::{SetAside, SnapshotError};
use super::generation::Generation;
use super::manifest::StoredManifest;
use super::writer::{SnapshotWriter, TemporaryDir};
use crate::durable::sync_dir;

const KEPT_GENERATIONS: usize = 2;
const KEPT_BAD: usize = 2;
const GENERATION_PREFIX: &str = "gen-";
const TEMPORARY_PREFIX: &str = "tmp-";
const BAD_PREFIX: &str = "bad-";

/// The snapshots of a node. Clones share it.
#[derive(Clone)]
pub struct SnapshotStore {
    inner: Arc<StoreInner>,
}

pub(super) struct StoreInner {
    dir: PathBuf,
    generations: Mutex<Generations>,
    next_temporary: AtomicU64,
}

struct Generations {
    /// Best first, see [`Generation::rank`].
    ranked: Vec<Arc<Generation>>,
    next_number: u64,
}

impl SnapshotStore {
    /// Opens the store in `dir`, creating it if need be. Leftovers are removed; generations that are no
    /// good are set aside until the latest is a good one, or none is left.
    pub fn open(dir: &Path) -> Result<(SnapshotStore, Vec<SetAside>), SnapshotError> {
        fs::create_dir_all(dir).map_err(SnapshotError::io(dir))?;
        let mut ranked = Vec::new();
        let mut set_aside = Vec::new();
        for (number, path) in numbered(dir, TEMPORARY_PREFIX)? {
            tracing::info!(number, "removing an unfinished snapshot");
            fs::remove_dir_all(&path).map_err(SnapshotError::io(&path))?;
        }
        let bad_number = numbered(dir, BAD_PREFIX)?.last().map_or(0, |(number, _)| *number);
        let mut last_number = bad_number;
        for (number, path) in numbered(dir, GENERATION_PREFIX)? {
            last_number = last_number.max(number);
            match StoredManifest::read(&path) {
                Ok(stored) => ranked.push(Arc::new(Generation::new(number, path, stored))),
                Err(error) if error.blames_the_disk() => {
                    set_aside.push(put_aside(dir, number, &path, error.to_string())?);
                }
                Err(error) => return Err(error),
            }
        }
        let generations = Mutex::new(Generations { ranked, next_number: last_number + 1 });
        let inner = Arc::new(StoreInner { dir: dir.to_owned(), generations, next_temporary: AtomicU64::new(1) });
        {
            let mut generations = inner.lock();
            generations.sort();
            inner.settle_latest(&mut generations, &mut set_aside)?;
            generations.prune();
        }
        sync_dir(dir).map_err(SnapshotError::io(dir))?;
        Ok((SnapshotStore { inner }, set_aside))
    }

    /// Begins a new snapshot.
    pub fn begin(&self) -> Result<SnapshotWriter, SnapshotError> {
        let number = self.inner.next_temporary.fetch_add(1, Ordering::Relaxed);
        SnapshotWriter::new(self.inner.clone(), self.inner.dir.join(format!("{TEMPORARY_PREFIX}{number:020}")))
    }

    /// Has sled make what it makes once in the life of a process: 20 MiB of counters that are zero and stay so. They take
    /// no room in memory that has never been used, so a node asks at its start, before it has used any. Leaves nothing.
    pub fn warm_up(&self) -> Result<(), SnapshotError> {
        self.begin().map(drop)
    }

    /// The latest generation.
    pub fn latest(&self) -> Option<Arc<Generation>> {
        self.inner.lock().ranked.first().cloned()
    }

    /// All generations that are kept, the latest first.
    pub fn generations(&self) -> Vec<Arc<Generation>> {
        self.inner.lock().ranked.clone()
    }

    /// Puts a generation that turned out to be no good out of the way, and older ones that are no better;
    /// then `latest` is a good one or None.
    pub fn set_aside(&self, generation: &Arc<Generation>, reason: &str) -> Result<Vec<SetAside>, SnapshotError> {
        let mut generations = self.inner.lock();
        let Some(at) = generations.ranked.iter().position(|known| Arc::ptr_eq(known, generation)) else {
            return Ok(Vec::new());
        };
        let bad = generations.ranked.remove(at);
        let mut set_aside = vec![put_aside(&self.inner.dir, bad.number(), bad.path(), reason.to_owned())?];
        self.inner.settle_latest(&mut generations, &mut set_aside)?;
        Ok(set_aside)
    }
}

impl StoreInner {
    fn lock(&self) -> MutexGuard<'_, Generations> {
        self.generations.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives a synced directory its final name and makes it one of the generations.
    pub(super) fn publish(
        &self,
        temporary: TemporaryDir,
        stored: StoredManifest,
    ) -> Result<Arc<Generation>, SnapshotError> {
        let mut generations = self.lock();
        let number = generations.next_number;
        let path = self.dir.join(format!("{GENERATION_PREFIX}{number:020}"));
        fs::rename(&temporary.path, &path).map_err(SnapshotError::io(&path))?;
        sync_dir(&self.dir).map_err(SnapshotError::io(&self.dir))?;
        generations.next_number += 1;
        let generation = Arc::new(Generation::new(number, path, stored));
        generations.ranked.push(generation.clone());
        generations.sort();
        generations.prune();
        Ok(generation)
    }

    /// Sets the best aside until it is a good one.
    fn settle_latest(&self, generations: &mut Generations, out: &mut Vec<SetAside>) -> Result<(), SnapshotError> {
        while let Some(best) = generations.ranked.first().cloned() {
            match best.verify_files() {
                Ok(()) => return Ok(()),
                Err(error) if error.blames_the_disk() => {
                    generations.ranked.remove(0);
                    out.push(put_aside(&self.dir, best.number(), best.path(), error.to_string())?);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

impl Generations {
    fn sort(&mut self) {
        self.ranked.sort_by_key(|generation| std::cmp::Reverse(generation.rank()));
    }

    fn prune(&mut self) {
        for generation in self.ranked.drain(KEPT_GENERATIONS.min(self.ranked.len())..) {
            generation.replace();
        }
    }
}

/// Renames a generation that is no good, and removes the oldest of such if there are too many.
fn put_aside(dir: &Path, number: u64, path: &Path, reason: String) -> Result<SetAside, SnapshotError> {
    let aside = dir.join(format!("{BAD_PREFIX}{number:020}"));
    fs::rename(path, &aside).map_err(SnapshotError::io(path))?;
    let bad = numbered(dir, BAD_PREFIX)?;
    for (_, oldest) in &bad[..bad.len().saturating_sub(KEPT_BAD)] {
        fs::remove_dir_all(oldest).map_err(SnapshotError::io(oldest))?;
    }
    sync_dir(dir).map_err(SnapshotError::io(dir))?;
    Ok(SetAside { path: aside, reason })
}

/// Entries of `dir` that are called `prefix` and a number, by number.
fn numbered(dir: &Path, prefix: &str) -> Result<Vec<(u64, PathBuf)>, SnapshotError> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).map_err(SnapshotError::io(dir))? {
        let entry = entry.map_err(SnapshotError::io(dir))?;
        let name = entry.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix(prefix)).and_then(|rest| rest.parse().ok());
        if let Some(number) = number {
            found.push((number, entry.path()));
        }
    }
    found.sort();
    Ok(found)
}

//! Files that are read again when they change: certificates, keys and tokens. A new content takes effect whole or not
//! at all; a bad one leaves the old value in force and is said once. This module never knows what the files mean.

use arc_swap::ArcSwap;
use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// Largest file that is read.
const MAX_FILE_BYTES: u64 = 4 << 20;

/// A file and the flag that named it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// The flag without its dashes.
    pub flag: &'static str,
    /// The file.
    pub path: PathBuf,
}

impl Source {
    /// Reads it.
    ///
    /// # Errors
    /// No file that can be read, or one that is too large, by its flag and path.
    pub fn read(&self) -> Result<Content, String> {
        let mut bytes = Vec::new();
        let read = File::open(&self.path).and_then(|file| file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes));
        match read {
            Ok(n) if n as u64 > MAX_FILE_BYTES => Err(self.problem(&format!("is over {MAX_FILE_BYTES} bytes"))),
            Ok(_) => Ok(Content { source: self.clone(), bytes }),
            Err(error) => Err(self.problem(&error.to_string())),
        }
    }

    /// What is wrong with it, by its flag and path.
    pub fn problem(&self, what: &str) -> String {
        format!("{self}: {what}")
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "--{} {}", self.flag, self.path.display())
    }
}

/// A file as it was read; not to be shown, since it may be a key.
#[derive(Clone, PartialEq, Eq)]
pub struct Content {
    /// Where it is from.
    pub source: Source,
    /// What is in it.
    pub bytes: Vec<u8>,
}

impl Content {
    /// What is wrong with it, by its flag and path.
    pub fn problem(&self, what: &str) -> String {
        self.source.problem(what)
    }
}

/// What one read gave: the contents, or why there are none.
type Contents = Result<Vec<Content>, String>;
type Build<T> = Box<dyn Fn(&[Content]) -> Result<T, String> + Send + Sync>;

/// A value made of one or more files, the newest good one.
pub struct Watched<T> {
    sources: Vec<Source>,
    build: Build<T>,
    current: ArcSwap<T>,
    seen: Mutex<Contents>,
    reloads: AtomicU64,
    failures: AtomicU64,
}

impl<T: Send + Sync> Watched<T> {
    /// Reads the files for the first time. `build` gets their contents in order; its errors must name the file at fault
    /// ([`Content::problem`]) and not quote it.
    ///
    /// # Errors
    /// A file that can't be read or isn't what it should be, by its flag.
    pub fn open(
        sources: Vec<Source>,
        build: impl Fn(&[Content]) -> Result<T, String> + Send + Sync + 'static,
    ) -> Result<Arc<Self>, String> {
        let contents = read(&sources)?;
        let value = build(&contents)?;
        Ok(Arc::new(Self {
            sources,
            build: Box::new(build),
            current: ArcSwap::from_pointee(value),
            seen: Mutex::new(Ok(contents)),
            reloads: AtomicU64::new(0),
            failures: AtomicU64::new(0),
        }))
    }

    /// The newest good value.
    pub fn current(&self) -> Arc<T> {
        self.current.load_full()
    }
}

/// What the loop and the metrics know of a watched value.
pub trait Refresh: Send + Sync {
    /// Reads the files again. Blocking.
    fn refresh(&self);
    /// (the first file's flag, changes taken, changes refused).
    fn counts(&self) -> (&'static str, u64, u64);
}

impl<T: Send + Sync> Refresh for Watched<T> {
    fn refresh(&self) {
        let contents = read(&self.sources);
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if *seen == contents {
            return;
        }
        let built = match &contents {
            Ok(contents) => (self.build)(contents),
            Err(why) => Err(why.clone()),
        };
        *seen = contents;
        match built {
            Ok(value) => {
                self.current.store(Arc::new(value));
                self.reloads.fetch_add(1, Ordering::Relaxed);
                tracing::info!(files = paths(&self.sources), "read again: the new content is in force");
            }
            Err(why) => {
                self.failures.fetch_add(1, Ordering::Relaxed);
                tracing::error!(why, "the new content is no good: the old one stays in force");
            }
        }
    }

    fn counts(&self) -> (&'static str, u64, u64) {
        let flag = self.sources.first().map_or("", |source| source.flag);
        (flag, self.reloads.load(Ordering::Relaxed), self.failures.load(Ordering::Relaxed))
    }
}

/// Looks at all files from time to time. Contents are compared, not times: orchestrators swap links, and clocks jump.
pub async fn keep_fresh(all: Vec<Arc<dyn Refresh>>, interval: Duration, stopping: CancellationToken) {
    if all.is_empty() {
        return;
    }
    loop {
        tokio::select! {
            () = stopping.cancelled() => return,
            () = tokio::time::sleep(interval) => {}
        }
        let all = all.clone();
        let looked = tokio::task::spawn_blocking(move || all.iter().for_each(|one| one.refresh()));
        if looked.await.is_err() {
            tracing::error!("looking at watched files panicked; the old contents stay in force");
        }
    }
}

fn read(sources: &[Source]) -> Contents {
    sources.iter().map(Source::read).collect()
}

fn paths(sources: &[Source]) -> String {
    sources.iter().map(|source| source.path.display().to_string()).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(contents: &[Content]) -> Result<u32, String> {
        let content = contents.first().ok_or("no file")?;
        String::from_utf8_lossy(&content.bytes).trim().parse().map_err(|_| content.problem("is no number"))
    }

    #[test]
    fn a_bad_content_leaves_the_old_value_in_force_and_a_good_one_replaces_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("n");
        let source = Source { flag: "n-file", path: path.clone() };
        let missing = Watched::open(vec![source.clone()], number).err().unwrap();
        assert!(missing.starts_with(&format!("--n-file {}: ", path.display())), "{missing}");
        std::fs::write(&path, "7").unwrap();
        let watched = Watched::open(vec![source], number).unwrap();
        for (content, value, counts) in
            [("7", 7, (0, 0)), ("x", 7, (0, 1)), ("x", 7, (0, 1)), ("8", 8, (1, 1)), ("7", 7, (2, 1))]
        {
            std::fs::write(&path, content).unwrap();
            watched.refresh();
            assert_eq!((*watched.current(), watched.counts()), (value, ("n-file", counts.0, counts.1)), "{content}");
        }
        std::fs::remove_file(&path).unwrap();
        watched.refresh();
        watched.refresh();
        assert_eq!((*watched.current(), watched.counts()), (7, ("n-file", 2, 2)));
    }
}

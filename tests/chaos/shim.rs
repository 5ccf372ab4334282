//! The library in shim.c from the test's side: built once, laid under a node's process, told what time it is, and,
//! after a kill, asked what a power loss may take. See there for what it does.

use crate::cluster::Node;
use rand::RngExt;
use rand::rngs::StdRng;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// Bytes that a disk writes whole or not at all.
const SECTOR: u64 = 512;

/// The built library; None, with a line that says why, where there is no C compiler.
pub fn library() -> Option<&'static Path> {
    static BUILT: OnceLock<Option<PathBuf>> = OnceLock::new();
    BUILT.get_or_init(build).as_deref()
}

fn build() -> Option<PathBuf> {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("shim-{}.so", std::process::id()));
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/chaos/shim.c");
    let mut command = Command::new("cc");
    command.args(["-shared", "-fPIC", "-O2", "-Wall", "-Werror", "-o"]).arg(&target).arg(source);
    match command.args(["-ldl", "-lpthread"]).output() {
        Ok(output) if output.status.success() => Some(target),
        Ok(output) => panic!("shim.c can't be built: {}", String::from_utf8_lossy(&output.stderr)),
        Err(error) => {
            println!("SKIPPED: lost writes and wrong clocks need a C compiler, and cc can't be run: {error}");
            None
        }
    }
}

fn preload(node: &mut Node, library: &Path, name: &str, value: &Path) {
    node.env.retain(|(known, _)| known != "LD_PRELOAD" && known != name);
    node.env.push(("LD_PRELOAD".into(), library.display().to_string()));
    node.env.push((name.into(), value.display().to_string()));
}

/// A wall clock that can be set wrong while its node runs.
pub struct Clock(File);

impl Clock {
    /// For the next process of this node.
    pub fn under(node: &mut Node, library: &Path) -> Self {
        let path = node.dir.with_extension("clock");
        let file = File::options().create(true).write(true).truncate(true).open(&path).unwrap();
        preload(node, library, "PREFIXD_SHIM_CLOCK", &path);
        let clock = Self(file);
        clock.set(0);
        clock
    }

    /// How far it is off from now on.
    pub fn set(&self, offset_s: i64) {
        self.0.write_all_at(&(offset_s * 1_000_000).to_ne_bytes(), 0).unwrap();
    }
}

/// A disk whose next sync of one file fails, when it is told to.
pub struct FailingSync(PathBuf);

impl FailingSync {
    /// Under the next processes of this node.
    pub fn under(node: &mut Node, library: &Path, file: &str) -> Self {
        let switch = node.dir.with_extension("sync-fails");
        let value = PathBuf::from(format!("{file}:{}", switch.display()));
        preload(node, library, "PREFIXD_SHIM_SYNC_FAILS", &value);
        Self(switch)
    }

    /// The next sync fails, once.
    pub fn arm(&self) {
        File::create(&self.0).unwrap();
    }

    /// Whether it has.
    pub fn has_failed(&self) -> bool {
        !self.0.exists()
    }
}

/// A disk that does nothing at all with the syncs of one file while it is told to: they neither end nor fail.
pub struct StillDisk(PathBuf);

impl StillDisk {
    /// Under the next processes of this node.
    pub fn under(node: &mut Node, library: &Path, file: &str) -> Self {
        let switch = node.dir.with_extension("sync-waits");
        let value = PathBuf::from(format!("{file}:{}", switch.display()));
        preload(node, library, "PREFIXD_SHIM_SYNC_WAITS", &value);
        Self(switch)
    }

    /// From now on.
    pub fn stop(&self) {
        File::create(&self.0).unwrap();
    }

    /// No longer, if it was told to.
    pub fn go_on(&self) {
        remove(&self.0);
    }
}

/// A disk that keeps only what was fsynced.
pub struct ForgetfulDisk {
    data: PathBuf,
    journal: PathBuf,
}

/// What of the writes that were not fsynced a power loss takes.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Loss {
    /// Everything.
    All,
    /// Each sector and each latest change of a directory by chance: the order of writes is the disk's own.
    Some,
}

/// One write that can be undone: what was there before.
struct Write {
    offset: u64,
    changed_bytes: u64,
    old_len: u64,
    before: Vec<u8>,
}

/// How much was taken.
#[derive(Copy, Clone, Debug, Default)]
pub struct Taken {
    pub writes: usize,
    pub names: usize,
}

impl ForgetfulDisk {
    /// Under the next processes of this node.
    pub fn under(node: &mut Node, library: &Path) -> Self {
        let disk = Self { data: node.dir.clone(), journal: node.dir.with_extension("journal") };
        fs::create_dir_all(&disk.journal).unwrap();
        preload(node, library, "PREFIXD_SHIM_DATA", &disk.data);
        preload(node, library, "PREFIXD_SHIM_JOURNAL", &disk.journal);
        disk
    }

    /// The power is lost; the node's process must have been killed.
    pub fn lose(&self, loss: Loss, chances: &mut StdRng) -> Taken {
        let mut taken = Taken::default();
        for (inode, path) in self.inodes() {
            let mut writes = self.writes("o", inode);
            writes.extend(self.writes("w", inode));
            taken.writes += writes.len();
            if !writes.is_empty() {
                undo(&path, &writes, loss, chances);
            }
        }
        let directories = fs::read_dir(&self.journal).unwrap().map(|entry| entry.unwrap().file_name());
        let directories = directories.filter_map(|name| name.to_str()?.strip_prefix("d-")?.parse::<u64>().ok());
        for inode in directories.collect::<Vec<_>>() {
            taken.names += self.undo_names(inode, loss, chances);
        }
        fs::remove_dir_all(&self.journal).unwrap();
        fs::create_dir_all(&self.journal).unwrap();
        taken
    }

    /// Everything that may have been written, by inode: what is in the directory, and what has lost its name.
    fn inodes(&self) -> BTreeMap<u64, PathBuf> {
        let (mut found, mut folders) = (BTreeMap::new(), vec![self.data.clone(), self.journal.clone()]);
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(&folder).unwrap() {
                let path = entry.unwrap().path();
                let metadata = fs::symlink_metadata(&path).unwrap();
                found.insert(metadata.ino(), path.clone());
                if metadata.is_dir() {
                    folders.push(path);
                }
            }
        }
        found
    }

    fn writes(&self, kind: &str, inode: u64) -> Vec<Write> {
        let bytes = fs::read(self.journal.join(format!("{kind}-{inode}"))).unwrap_or_default();
        let (mut rest, mut writes) = (bytes.as_slice(), Vec::new());
        // A last record that is cut short belongs to a write that was not made any more.
        while let Some((head, tail)) = rest.split_at_checked(32) {
            let number = |at: usize| u64::from_ne_bytes(head[at * 8..at * 8 + 8].try_into().unwrap());
            let Some((before, tail)) = tail.split_at_checked(number(3) as usize) else { break };
            let (offset, changed_bytes, old_len) = (number(0), number(1), number(2));
            writes.push(Write { offset, changed_bytes, old_len, before: before.to_vec() });
            rest = tail;
        }
        writes
    }

    /// Undoes the latest changes of one directory, in reverse.
    fn undo_names(&self, inode: u64, loss: Loss, chances: &mut StdRng) -> usize {
        let text = fs::read_to_string(self.journal.join(format!("d-{inode}"))).unwrap();
        // A directory that is gone had its end written down in its parent.
        let inodes = self.inodes();
        let dir = if fs::metadata(&self.data).is_ok_and(|m| m.ino() == inode) {
            self.data.clone()
        } else if let Some(path) = inodes.get(&inode).filter(|path| path.is_dir()) {
            path.clone()
        } else {
            return 0;
        };
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        let lines: Vec<&str> = whole.lines().collect();
        let keep = if loss == Loss::All { 0 } else { chances.random_range(0..=lines.len()) };
        for line in lines[keep..].iter().rev() {
            let parts: Vec<&str> = line.split('/').collect();
            let [what, name, other, stash] = parts[..] else { panic!("a line of the journal: {line:?}") };
            let path = dir.join(name);
            match what {
                "C" => remove(&path),
                // Made, and whatever was put into it.
                "M" => {
                    let _gone = fs::remove_dir_all(&path);
                }
                "D" => {
                    let _exists = fs::create_dir(&path);
                }
                // Not renamed yet if the old name is there still.
                "R" if !dir.join(other).exists() => {
                    fs::rename(&path, dir.join(other)).unwrap();
                    self.restore(stash, &path);
                }
                "R" => {}
                "U" => self.restore(stash, &path),
                _ => panic!("a line of the journal: {line:?}"),
            }
        }
        lines.len() - keep
    }

    fn restore(&self, stash: &str, path: &Path) {
        if !stash.is_empty() {
            fs::rename(self.journal.join(stash), path).unwrap();
        }
    }
}

fn remove(path: &Path) {
    match fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => panic!("{}: {error}", path.display()),
        _ => {}
    }
}

/// Puts a file back to what it was before these writes, but for sectors that chance lets through.
fn undo(path: &Path, writes: &[Write], loss: Loss, chances: &mut StdRng) {
    let file = File::options().read(true).write(true).open(path).unwrap();
    let len = file.metadata().unwrap().len();
    let mut through = BTreeMap::new();
    if loss == Loss::Some {
        for write in writes {
            let mut at = write.offset;
            let end = (write.offset + write.changed_bytes).min(len);
            while at < end {
                let next = ((at / SECTOR + 1) * SECTOR).min(end);
                if chances.random_bool(0.5) {
                    let mut bytes = vec![0; (next - at) as usize];
                    file.read_exact_at(&mut bytes, at).unwrap();
                    through.insert(at, bytes);
                }
                at = next;
            }
        }
    }
    for write in writes.iter().rev() {
        file.write_all_at(&write.before, write.offset).unwrap();
        file.set_len(write.old_len).unwrap();
    }
    for (at, bytes) in through {
        file.write_all_at(&bytes, at).unwrap();
    }
}

//! Disks that are really full: a file system of a few megabytes for each node, mounted in a user and mount namespace of
//! the test's own. That needs no root where the kernel lets users make namespaces; where it doesn't, the tests say that
//! they were skipped, and why.

use crate::cluster::Cluster;
use prefixd_storage::disk_free_bytes;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

/// The namespace, held by a process that ends with the test.
pub struct SmallDisks {
    holder: Child,
    dirs: Vec<PathBuf>,
}

impl SmallDisks {
    /// Gives every node of a cluster that doesn't run yet a disk of `mib` MiB.
    pub fn mount(cluster: &mut Cluster, mib: u32) -> Option<Self> {
        let dirs: Vec<PathBuf> = cluster.nodes.iter().map(|node| node.dir.clone()).collect();
        let mut script = String::from("set -e\n");
        for dir in &dirs {
            std::fs::create_dir_all(dir).unwrap();
            script += &format!("mount -t tmpfs -o size={mib}m none '{}'\n", dir.display());
        }
        // It ends when its standard input does.
        script += "echo mounted\nexec cat >/dev/null\n";
        let spawned = Command::new("unshare")
            .args(["--user", "--map-root-user", "--mount", "sh", "-c", &script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        let mut holder = match spawned {
            Ok(holder) => holder,
            Err(error) => {
                println!("skipped: unshare can't be run: {error}");
                return None;
            }
        };
        let mut said = String::new();
        BufReader::new(holder.stdout.take().unwrap()).read_line(&mut said).unwrap();
        if said != "mounted\n" {
            let output = holder.wait_with_output().unwrap();
            let why = String::from_utf8_lossy(&output.stderr).into_owned();
            println!("skipped: no namespace with small file systems can be made here: {}", why.trim());
            return None;
        }
        for node in &mut cluster.nodes {
            let target = format!("--target={}", holder.id());
            node.behind =
                ["nsenter", &target, "--user", "--mount", "--preserve-credentials", "--"].map(String::from).to_vec();
        }
        let disks = Self { holder, dirs };
        assert!(disks.free_bytes(0) <= u64::from(mib) << 20, "not a small file system");
        Some(disks)
    }

    /// A node's data directory, as it is seen from outside of the namespace.
    pub fn dir(&self, node: usize) -> PathBuf {
        let inside = self.dirs[node].strip_prefix("/").unwrap();
        PathBuf::from(format!("/proc/{}/root", self.holder.id())).join(inside)
    }

    /// Bytes that are free on a node's disk.
    pub fn free_bytes(&self, node: usize) -> u64 {
        disk_free_bytes(&self.dir(node)).unwrap()
    }

    /// Fills a node's disk up, but for so many bytes.
    pub fn fill(&self, node: usize, but_bytes: u64) {
        let mut ballast = File::create(self.dir(node).join("ballast")).unwrap();
        loop {
            let left = self.free_bytes(node).saturating_sub(but_bytes);
            let chunk = usize::try_from(left.min(1 << 20)).unwrap();
            // A node that writes meanwhile may have taken the last byte.
            if chunk == 0 || ballast.write_all(&vec![1; chunk]).is_err() {
                return;
            }
        }
    }

    /// Fills up what came free since.
    pub fn fill_further(&self, node: usize) {
        let mut ballast = File::options().append(true).open(self.dir(node).join("ballast")).unwrap();
        while ballast.write_all(&[1; 4096]).is_ok() {}
    }

    /// Gives the room back.
    pub fn make_room(&self, node: usize) {
        std::fs::remove_file(self.dir(node).join("ballast")).unwrap();
    }
}

impl Drop for SmallDisks {
    fn drop(&mut self) {
        drop(self.holder.stdin.take());
        let _ = self.holder.wait();
    }
}

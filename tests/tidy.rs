//! The architecture, held against the tree: who may import whom, how long a file may be, what must not be in one. The
//! rules are those of ARCHITECTURE.md; change them there first. What is deployed is held to the same: see `manifests`.

#[path = "manifests.rs"]
mod manifests;

use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Our crates, and which of ours each may use.
const OURS: [(&str, &[&str]); 6] = [
    ("prefixd-index", &[]),
    ("prefixd-storage", &[]),
    ("prefixd-proto", &["prefixd-index"]),
    ("prefixd-raft", &["prefixd-index", "prefixd-storage", "prefixd-proto"]),
    ("prefixd-client", &["prefixd-proto", "prefixd-index"]),
    ("prefixd", &["prefixd-index", "prefixd-storage", "prefixd-proto", "prefixd-raft", "prefixd-client"]),
];

/// Crates of others that are confined, and who may use them.
const CONFINED: [(&[&str], &[&str]); 7] = [
    (&["openraft"], &["prefixd-raft"]),
    (&["redb", "sled", "bincode", "zstd"], &["prefixd-storage"]),
    (&["tonic", "prost"], &["prefixd-proto", "prefixd-raft", "prefixd-client", "prefixd"]),
    (&["axum", "clap", "figment", "prometheus-client", "opentelemetry"], &["prefixd"]),
    (&["tokio", "futures", "rand"], &["prefixd-raft", "prefixd-client", "prefixd"]),
    (&["rustls", "tokio-rustls"], &["prefixd-raft", "prefixd-client", "prefixd"]),
    (&["tracing"], &["prefixd-storage", "prefixd-raft", "prefixd-client", "prefixd"]),
];

/// Longest file in lines, and the files that may be longer, each with its reason.
const MAX_LINES: usize = 800;
const LONG_FILES: [(&str, &str); 0] = [];

/// File names that say nothing of what is in the file.
const EMPTY_NAMES: [&str; 5] = ["utils.rs", "util.rs", "common.rs", "helpers.rs", "manager.rs"];

/// What the tree must have.
const REQUIRED: [&str; 12] = [
    "proto/proto",
    "index/src",
    "index/clippy.toml",
    "storage/src",
    "raft/src",
    "client/src",
    "src",
    "tests/chaos",
    "docs",
    "benches",
    "Cargo.lock",
    "rustfmt.toml",
];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// (crate, the names of what it uses outside its tests) for each crate of the workspace.
fn dependencies() -> Vec<(String, BTreeSet<String>)> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--offline", "--no-deps", "--format-version", "1"])
        .current_dir(root())
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).expect("cargo metadata is JSON");
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let name = |value: &Value| value["name"].as_str().unwrap_or_default().to_owned();
    let used = |package: &Value| {
        list(&package["dependencies"]).iter().filter(|d| d["kind"] != "dev").map(name).collect::<BTreeSet<_>>()
    };
    list(&metadata["packages"]).iter().map(|package| (name(package), used(package))).collect()
}

#[test]
fn crates_import_only_what_they_may() {
    let packages = dependencies();
    let mut wrong = Vec::new();
    for (package, used) in &packages {
        let Some((_, allowed)) = OURS.iter().find(|(name, _)| name == package) else {
            wrong.push(format!("{package} is not in the table of crates"));
            continue;
        };
        let ours = used.iter().filter(|name| name.starts_with("prefixd"));
        wrong.extend(ours.filter(|n| !allowed.contains(&n.as_str())).map(|n| format!("{package} must not use {n}")));
        for (crates, users) in CONFINED {
            let here = crates.iter().filter(|name| used.contains(**name) && !users.contains(&package.as_str()));
            wrong.extend(here.map(|name| format!("{package} must not use {name}")));
        }
    }
    assert_eq!(packages.len(), OURS.len(), "crates in the workspace: {packages:?}");
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// All Rust files of ours, by their path from the root.
fn sources() -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut folders: Vec<PathBuf> =
        ["src", "proto", "index", "storage", "raft", "client", "tests", "benches", "fuzz"].map(PathBuf::from).into();
    while let Some(folder) = folders.pop() {
        let Ok(entries) = fs::read_dir(root().join(&folder)) else { continue };
        for entry in entries {
            let path = folder.join(entry.expect("a folder can be read").file_name());
            if root().join(&path).is_dir() {
                if !path.ends_with("target") {
                    folders.push(path);
                }
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = fs::read_to_string(root().join(&path)).expect("a source is UTF-8");
                found.push((path.display().to_string(), text));
            }
        }
    }
    assert!(found.len() > 50, "only {} files found", found.len());
    found
}

/// Asserts that no file is judged wrong.
fn no_file(judge: impl Fn(&str, &str) -> Option<String>) {
    let sources = sources();
    let wrong: Vec<_> =
        sources.iter().filter_map(|(path, text)| Some(format!("{path}: {}", judge(path, text)?))).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn files_fit_their_limit_and_have_telling_names() {
    no_file(|path, text| {
        let lines = text.lines().count();
        let excused = LONG_FILES.iter().any(|(long, _)| *long == path);
        if lines > MAX_LINES && !excused {
            return Some(format!("{lines} lines, at most {MAX_LINES} without a reason"));
        }
        let name = path.rsplit('/').next().unwrap_or(path);
        EMPTY_NAMES.contains(&name).then(|| "the name says nothing".to_owned())
    });
}

/// The one file that may hold unsafe code, each block of it with its proof.
const UNSAFE_FILE: &str = "index/src/store/memory.rs";

#[test]
fn nothing_is_left_undone() {
    // Spelled in two parts, so that this file doesn't hold them.
    let words = [["todo", "!("], ["unimplemented", "!("]].map(|parts| parts.concat());
    no_file(|_, text| {
        let found = words.iter().find(|word| text.contains(word.as_str()))?;
        Some(format!("holds {found:?}"))
    });
}

#[test]
fn one_file_holds_unsafe_code_and_proves_it() {
    let words = [["unsafe", " {"], ["unsafe", " fn"], ["unsafe", " impl"], ["unsafe", " extern"]];
    let words = words.map(|parts| parts.concat());
    let is_unsafe = |line: &str| words.iter().any(|word| line.contains(word.as_str()));
    no_file(|path, text| {
        let lines: Vec<&str> = text.lines().collect();
        let mut places = (0..lines.len()).filter(|&at| is_unsafe(lines[at]));
        if path != UNSAFE_FILE {
            return places.next().map(|at| format!("line {} is unsafe", at + 1));
        }
        let is_proven = |at: usize| lines[at.saturating_sub(4)..at].iter().any(|line| line.contains("// SAFETY:"));
        places.find(|&at| !is_proven(at)).map(|at| format!("line {} is unsafe and says not why it holds", at + 1))
    });
}

#[test]
fn every_module_says_what_it_is() {
    no_file(|path, text| {
        let is_tests = path.ends_with("/tests.rs");
        let items = ["use ", "pub", "mod ", "fn ", "const ", "#[", "///"];
        let mut head = text.lines().take_while(|line| !items.iter().any(|item| line.starts_with(item)));
        (!is_tests && !head.any(|line| line.starts_with("//!")))
            .then(|| "doesn't open with what it owns, must never do and where to look next".to_owned())
    });
}

#[test]
fn what_must_be_there_is_there() {
    let missing: Vec<_> = REQUIRED.iter().filter(|path| !root().join(path).exists()).collect();
    assert!(missing.is_empty(), "{missing:?}");
    let bans = fs::read_to_string(root().join("index/clippy.toml")).expect("the core bans impurity by lint");
    for banned in ["std::time::Instant::now", "std::time::SystemTime::now", "RandomState"] {
        assert!(bans.contains(banned), "index/clippy.toml no longer bans {banned}");
    }
}

//! The Kubernetes manifests under deploy/, held to what they speak of: the published schemas of Kubernetes and of the
//! operators (vendored in deploy/schemas), the binary's own `--help` and `serve --check`, and docs/METRICS.md. Needs no
//! network, no cluster and no kustomize; where `kubectl` is at hand, what was rendered is rendered again and compared.

#[path = "manifests/alerts.rs"]
mod alerts;
#[path = "manifests/commands.rs"]
mod commands;
#[path = "manifests/pods.rs"]
mod pods;
#[path = "manifests/rendered.rs"]
mod rendered;
#[path = "manifests/schema.rs"]
mod schema;

use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};

/// The folder of the StatefulSet's manifests.
fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/statefulset")
}

/// The text of a file in the tree.
fn text(path: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).expect(path)
}

/// The documents of a YAML file.
fn documents(text: &str) -> Vec<Value> {
    use serde::Deserialize;
    let documents = serde_yaml_ng::Deserializer::from_str(text);
    let documents = documents.map(|document| Value::deserialize(document).expect("YAML"));
    documents.filter(|document| !document.is_null()).collect()
}

/// All files under a folder, sorted by path.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder can be read") {
            let path = entry.expect("an entry can be read").path();
            if path.is_dir() { folders.push(path) } else { found.push(path) }
        }
    }
    found.sort();
    found
}

/// What `path/to/it` is in a document; null if there is none.
fn at<'v>(value: &'v Value, path: &str) -> &'v Value {
    path.split('/').fold(value, |value, key| match key.parse::<usize>() {
        Ok(index) => &value[index],
        Err(_) => &value[key],
    })
}

/// The items of a list; none for what isn't one.
fn items(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// "kind name" of a document.
fn named(document: &Value) -> String {
    format!("{} {}", document["kind"].as_str().unwrap_or("?"), at(document, "metadata/name").as_str().unwrap_or("?"))
}

/// Documents of one kind.
fn of_kind<'d>(documents: &'d [Value], kind: &str) -> Vec<&'d Value> {
    documents.iter().filter(|document| document["kind"] == kind).collect()
}

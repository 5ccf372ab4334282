//! The rendered manifests beside their sources. Each says, in its first line, which sources it was rendered from, so that
//! a change that wasn't rendered is found without kustomize.

use super::{documents, files, folder, named, text};
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fs;
use std::process::Command;

/// What is rendered, by the name of its file.
pub(super) const PATHS: [&str; 6] = ["dev", "production", "tls", "controller", "restore", "recover"];

/// The folder that is rendered into a file.
fn source(name: &str) -> String {
    match name {
        "restore" | "recover" => format!("jobs/{name}"),
        overlay => format!("overlays/{overlay}"),
    }
}

/// What all rendered files were made of: the paths and contents of the sources, as one digest.
fn sources_digest() -> String {
    let mut digest = Sha256::new();
    for folder_name in ["base", "components", "jobs", "overlays"] {
        for path in files(&folder().join(folder_name)) {
            let name = path.strip_prefix(folder()).expect("it is in there").display().to_string();
            let content = fs::read(&path).expect("a file");
            digest.update((name.len() as u64).to_be_bytes());
            digest.update(&name);
            digest.update((content.len() as u64).to_be_bytes());
            digest.update(&content);
        }
    }
    digest.finalize()[..8].iter().map(|byte| format!("{byte:02x}")).collect()
}

fn first_line(name: &str, digest: &str) -> String {
    format!("# Rendered by `kubectl kustomize {}` from the sources {digest}; change those, not this.", source(name))
}

/// What kustomize makes of a folder; none where there is no kubectl.
fn kustomize(name: &str) -> Option<String> {
    let output = Command::new("kubectl").arg("kustomize").arg(folder().join(source(name))).output().ok()?;
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "kubectl kustomize {}: {error}", source(name));
    Some(String::from_utf8(output.stdout).expect("UTF-8"))
}

fn by_name(text: &str) -> BTreeMap<String, Value> {
    documents(text).into_iter().map(|document| (named(&document), document)).collect()
}

#[test]
fn what_is_rendered_is_what_the_sources_say() {
    let digest = sources_digest();
    let write = std::env::var_os("PREFIXD_WRITE_MANIFESTS").is_some();
    let mut compared = 0;
    for name in PATHS {
        let path = format!("deploy/statefulset/rendered/{name}.yaml");
        let made = kustomize(name);
        if write {
            let made = made.as_deref().expect("PREFIXD_WRITE_MANIFESTS needs kubectl");
            fs::write(folder().join(format!("rendered/{name}.yaml")), format!("{}\n{made}", first_line(name, &digest)))
                .expect("a file can be written");
        }
        let rendered = text(&path);
        assert_eq!(
            rendered.lines().next(),
            Some(first_line(name, &digest).as_str()),
            "{path} is older than its sources: PREFIXD_WRITE_MANIFESTS=1 cargo test --test tidy manifests (needs kubectl)"
        );
        if let Some(made) = made {
            // Another release may order fields and documents otherwise; what they say must be the same.
            assert_eq!(by_name(&made), by_name(&rendered), "{path}");
            compared += 1;
        }
    }
    if compared == 0 {
        println!("skipped: nothing was rendered again, for there is no kubectl here; the sources' digest was compared");
    }
}

#[test]
fn every_source_is_used_and_every_name_in_one_place() {
    let mut unused = Vec::new();
    for folder_name in ["base", "components", "jobs", "overlays"] {
        let files = files(&folder().join(folder_name));
        for path in files.iter().filter(|path| !path.ends_with("kustomization.yaml")) {
            let name = path.file_name().expect("a name").to_string_lossy().into_owned();
            let list =
                fs::read_to_string(path.with_file_name("kustomization.yaml")).expect("a kustomization beside it");
            if !list.contains(&name) {
                unused.push(path.display().to_string());
            }
        }
    }
    assert!(unused.is_empty(), "in no kustomization: {unused:?}");
    for name in PATHS {
        let documents = documents(&text(&format!("deploy/statefulset/rendered/{name}.yaml")));
        assert_eq!(
            documents.len(),
            documents.iter().map(named).collect::<std::collections::BTreeSet<_>>().len(),
            "{name}"
        );
    }
}

//! The policy file: for people without a controller. It is read at start, watched, and offered to the cluster by
//! whichever node leads; the log decides whether an offer still counts. A file that becomes bad changes nothing. This
//! module keeps no policy of its own that governs anything: what governs is in the replicated state.

use crate::metrics::policies::PolicyCounters;
use prefixd_index::command::Command;
use prefixd_index::policy::{PolicySet, PolicySource};
use prefixd_proto::policy::{self, Document};
use prefixd_raft::Node;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

/// Between looks at the file, and at whether its set governs.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// A file that was good when it was opened.
#[derive(Clone, Debug, PartialEq)]
pub struct PolicyFile {
    path: PathBuf,
    /// What the last look saw, good or bad.
    seen: Result<Vec<u8>, String>,
    /// The last good set.
    set: PolicySet,
}

/// What a look at the file found.
#[derive(Debug, PartialEq, Eq)]
enum Look {
    Same,
    Changed,
    Bad(String),
}

impl PolicyFile {
    /// Reads the file, or says by name what is wrong with it.
    pub fn open(path: PathBuf) -> Result<Self, String> {
        let content = read(&path)?;
        let set = parse(&path, &content)?;
        Ok(Self { path, seen: Ok(content), set })
    }

    /// Reads the file again. Each content is judged once.
    fn look(&mut self) -> Look {
        let content = read(&self.path);
        if content == self.seen {
            return Look::Same;
        }
        self.seen = content;
        let parsed = self.seen.as_ref().map_err(String::clone).and_then(|content| parse(&self.path, content));
        match parsed {
            Ok(set) => {
                self.set = set;
                Look::Changed
            }
            Err(bad) => Look::Bad(bad),
        }
    }

    /// Watches the file, and while this node leads keeps the cluster's set equal to it, until the node stops.
    pub async fn run(mut self, node: Node, counters: &PolicyCounters, stopping: CancellationToken) {
        counters.file(true);
        let mut ticks = tokio::time::interval(LOOK_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while stopping.run_until_cancelled(ticks.tick()).await.is_some() {
            let looked = tokio::task::spawn_blocking(move || {
                let look = self.look();
                (self, look)
            });
            // A look doesn't panic, and is only cancelled with the runtime.
            let Ok((file, look)) = looked.await else { return };
            self = file;
            let (governing, source) = node.view().policies();
            self.tell(&look, source, counters);
            if node.leads() && source == PolicySource::File && governing != self.set {
                self.offer(&node).await;
            }
        }
    }

    fn tell(&self, look: &Look, source: PolicySource, counters: &PolicyCounters) {
        let file = self.path.display();
        match look {
            Look::Same => {}
            Look::Changed if source == PolicySource::Pushed => {
                counters.file(true);
                tracing::warn!(%file, "the policy file changed and does not count: a policy set was pushed");
            }
            Look::Changed => {
                counters.file(true);
                tracing::info!(%file, "the policy file changed");
            }
            Look::Bad(error) => {
                counters.file(false);
                tracing::error!(%error, "the policy file is bad; its last good content stays");
            }
        }
    }

    async fn offer(&self, node: &Node) {
        match node.propose(Command::OfferPolicy(self.set.clone())).await {
            Ok(index) => tracing::info!(file = %self.path.display(), index, "the policy file's set was offered"),
            // The next look tries again.
            Err(error) => tracing::debug!(%error, "the policy file's set could not be offered"),
        }
    }
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    let failed = |error: std::io::Error| format!("{}: {error}", path.display());
    let mut content = Vec::new();
    let limit = policy::MAX_BYTES as u64;
    File::open(path).map_err(failed)?.take(limit + 1).read_to_end(&mut content).map_err(failed)?;
    if content.len() as u64 > limit {
        return Err(format!("{}: is over {limit} bytes", path.display()));
    }
    Ok(content)
}

/// The set that a file's content says: YAML by its name, else JSON. Errors begin with the path.
pub fn parse(path: &Path, content: &[u8]) -> Result<PolicySet, String> {
    let is_yaml = path.extension().is_some_and(|extension| extension == "yaml" || extension == "yml");
    let set = if is_yaml {
        serde_yaml_ng::from_slice::<Document>(content).map_err(|error| error.to_string()).and_then(Document::into_set)
    } else {
        policy::decode(content)
    };
    set.map_err(|reason| format!("{}: {reason}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const YAML: &str = "version: 7\npolicies:\n- namespace: team-a\n  evictionTTL: 900000000000\n  eviction: lfu\n  \
                        routingFloorScore: 5\n  strategy: {enableTenantHot: false}\ntenants:\n- {tenantID: team-a, \
                        maxIndexEntries: 100}\n";
    const JSON: &str = r#"{"version":7,"policies":[{"namespace":"team-a","evictionTTL":900000000000,"eviction":"lfu",
        "routingFloorScore":5,"strategy":{"enableTenantHot":false}}],
        "tenants":[{"tenantID":"team-a","maxIndexEntries":100}]}"#;

    #[test]
    fn yaml_says_the_same_as_json() {
        let json = parse(Path::new("p.json"), JSON.as_bytes()).unwrap();
        assert_eq!(json.quotas.get("team-a"), Some(&100));
        for name in ["p.yaml", "p.yml"] {
            assert_eq!(parse(Path::new(name), YAML.as_bytes()).as_ref(), Ok(&json), "{name}");
        }
        assert!(parse(Path::new("policy"), YAML.as_bytes()).is_err(), "JSON unless the name says YAML");
    }

    #[test]
    fn yaml_is_as_strict() {
        for wrong in [
            "",
            "version: 8",
            "version: 7\nextra: 1",
            "version: 7\n---\nversion: 7",
            "version: 7\nversion: 7",
            "- 7",
            "version: 7\npolicies: [[t]]",
            "version: 7\npolicies:\n- {namespace: t, minimumPrefixTokens: many}",
            "version: 7\npolicies:\n- {namespace: t, minimumPrefixTokens: 2147483648}",
            "version: 7\npolicies:\n- {namespace: t, routingFloorScore: .nan}",
            "version: 7\npolicies:\n- {namespace: t, routingFloorScore: .inf}",
            "version: 7\n\tpolicies: []",
        ] {
            let error = parse(Path::new("p.yaml"), wrong.as_bytes()).unwrap_err();
            assert!(error.starts_with("p.yaml: "), "{wrong}: {error}");
        }
    }

    #[test]
    fn a_bad_change_keeps_the_last_good_set_and_is_told_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("policy.json");
        std::fs::write(&path, JSON).unwrap();
        let mut file = PolicyFile::open(path.clone()).unwrap();
        let good = file.set.clone();
        assert_eq!(file.look(), Look::Same);
        for bad in ["{", r#"{"version":9}"#] {
            std::fs::write(&path, bad).unwrap();
            assert!(matches!(file.look(), Look::Bad(_)), "{bad}");
            assert_eq!((file.look(), &file.set), (Look::Same, &good));
        }
        std::fs::remove_file(&path).unwrap();
        assert!(matches!(file.look(), Look::Bad(_)));
        assert_eq!((file.look(), &file.set), (Look::Same, &good));
        std::fs::write(&path, JSON).unwrap();
        assert_eq!((file.look(), &file.set), (Look::Changed, &good));
        std::fs::write(&path, r#"{"version":7}"#).unwrap();
        assert_eq!((file.look(), file.set), (Look::Changed, PolicySet::default()));
    }

    #[test]
    fn a_bad_file_is_refused_by_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("policy.json");
        let error = PolicyFile::open(path.clone()).unwrap_err();
        assert!(error.contains("policy.json: No such file"), "{error}");
        std::fs::write(&path, vec![b' '; policy::MAX_BYTES + 1]).unwrap();
        let error = PolicyFile::open(path.clone()).unwrap_err();
        assert!(error.contains("policy.json: is over 1048576 bytes"), "{error}");
        std::fs::write(&path, r#"{"version":7,"policy":[]}"#).unwrap();
        let error = PolicyFile::open(path).unwrap_err();
        assert!(error.contains("policy.json: unknown field `policy`"), "{error}");
    }
}

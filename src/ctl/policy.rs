//! `prefixd ctl policy`: shows the set that governs, replaces it, or judges a file without asking anybody. Files are
//! read as the node reads its policy file, and the node judges what it is sent again.

use super::within;
use crate::cli::print;
use crate::policy_file;
use clap::Subcommand;
use prefixd_index::policy::PolicySet;
use prefixd_proto::admin::admin_client::AdminClient;
use prefixd_proto::admin::{GetPolicyRequest, GetPolicyResponse, SetPolicyRequest};
use prefixd_proto::policy;
use serde_json::{Value, json};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tonic::Status;
use tonic::transport::Channel;

/// A document that a node shows is at most so large.
const MAX_SHOWN_BYTES: usize = 64 << 20;

/// What to do.
#[derive(Debug, Subcommand)]
pub(super) enum Policy {
    /// Show the set that governs, as a document that `set` takes.
    Get,
    /// Replace the set, as the controller does. From then on no policy file counts.
    Set {
        /// JSON, or YAML when it ends in .yaml or .yml; - is JSON from standard input.
        file: PathBuf,
    },
    /// Say whether a file is good; no node is asked.
    Validate {
        /// JSON, or YAML when it ends in .yaml or .yml; - is JSON from standard input.
        file: PathBuf,
    },
}

/// A file that was judged good.
struct Judged {
    content: Vec<u8>,
    set: PolicySet,
}

impl Judged {
    fn read(file: &Path) -> Result<Self, String> {
        let limit = policy::MAX_BYTES as u64;
        let mut content = Vec::new();
        let read = match file.to_str() {
            Some("-") => std::io::stdin().take(limit + 1).read_to_end(&mut content),
            _ => std::fs::File::open(file).and_then(|file| file.take(limit + 1).read_to_end(&mut content)),
        };
        read.map_err(|error| format!("{}: {error}", file.display()))?;
        if content.len() as u64 > limit {
            return Err(format!("{}: is over {limit} bytes", file.display()));
        }
        let set = policy_file::parse(file, &content)?;
        Ok(Self { content, set })
    }

    /// The document to send: the file itself where it is JSON, so that the node judges what was written.
    fn into_document(self) -> String {
        match String::from_utf8(self.content) {
            Ok(text) if policy::decode(text.as_bytes()).is_ok() => text,
            _ => policy::encode(&self.set),
        }
    }
}

/// Judges a file and says so.
pub(super) fn validate(file: &Path, as_json: bool) -> Result<bool, String> {
    let judged = Judged::read(file);
    if as_json {
        let value = match &judged {
            Ok(Judged { set, .. }) => {
                json!({"valid": true, "policies": set.policies.len(), "quotas": set.quotas.len()})
            }
            Err(reason) => json!({"valid": false, "reason": reason}),
        };
        print::line(&pretty(&value));
        return Ok(judged.is_ok());
    }
    let Judged { set, .. } = judged?;
    print::line(&format!("{}: good: {} policies, {} quotas", file.display(), set.policies.len(), set.quotas.len()));
    Ok(true)
}

/// Shows the set that governs.
pub(super) async fn get(node: AdminClient<Channel>, as_json: bool) -> Result<Result<bool, Status>, String> {
    let answer = node.max_decoding_message_size(MAX_SHOWN_BYTES).get_policy(GetPolicyRequest {}).await;
    let answer = match answer {
        Ok(answer) => answer.into_inner(),
        Err(status) => return Ok(Err(status)),
    };
    print::line(&shown(&answer, as_json)?);
    if !as_json {
        eprintln!("{}, at {}", if answer.pushed { "pushed" } else { "not pushed" }, answer.applied_index);
    }
    Ok(Ok(true))
}

fn shown(answer: &GetPolicyResponse, as_json: bool) -> Result<String, String> {
    let document: Value =
        serde_json::from_str(&answer.document).map_err(|error| format!("the node's document is none: {error}"))?;
    Ok(pretty(&match as_json {
        true => json!({"pushed": answer.pushed, "applied_index": answer.applied_index, "document": document}),
        false => document,
    }))
}

/// Replaces the set.
pub(super) async fn set(
    mut node: AdminClient<Channel>,
    file: &Path,
    patience: Duration,
    as_json: bool,
) -> Result<Result<bool, Status>, String> {
    let document = Judged::read(file)?.into_document();
    Ok(node.set_policy(within(patience, SetPolicyRequest { document })).await.map(|answer| {
        let index = answer.into_inner().index;
        print::line(&if as_json { pretty(&json!({"index": index})) } else { format!("committed at {index}") });
        true
    }))
}

fn pretty(value: &Value) -> String {
    // A value made of strings and numbers always has a text.
    serde_json::to_string_pretty(value).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(name: &str, content: &str) -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(name);
        std::fs::write(&path, content).unwrap();
        (dir, path)
    }

    #[test]
    fn what_is_sent_says_what_the_file_says() {
        let json = "{\"version\": 4,\n\"policies\": [{\"namespace\": \"t\"}]}";
        let (_dir, path) = file("p.json", json);
        assert_eq!(Judged::read(&path).unwrap().into_document(), json);
        let (_dir, path) = file("p.yaml", "version: 4\npolicies: [{namespace: t}]");
        let sent = Judged::read(&path).unwrap().into_document();
        assert_eq!(policy::decode(sent.as_bytes()), policy::decode(json.as_bytes()));
    }

    #[test]
    fn a_bad_file_is_named() {
        let (_dir, path) = file("p.json", r#"{"version":7,"policys":[]}"#);
        let error = validate(&path, false).unwrap_err();
        assert!(error.contains("p.json: unknown field `policys`"), "{error}");
        assert_eq!(validate(&path, true), Ok(false));
        assert!(validate(Path::new("/nonexistent/p.json"), false).is_err());
        let (_dir, path) = file("p.json", r#"{"version":7}"#);
        assert_eq!(validate(&path, false), Ok(true));
    }

    #[test]
    fn what_is_shown_can_be_set() {
        let set = policy::decode(br#"{"version":7,"policies":[{"namespace":"t"}]}"#).unwrap();
        let answer = GetPolicyResponse { document: policy::encode(&set), pushed: true, applied_index: 9 };
        assert_eq!(policy::decode(shown(&answer, false).unwrap().as_bytes()), Ok(set));
        let value: Value = serde_json::from_str(&shown(&answer, true).unwrap()).unwrap();
        assert_eq!((&value["pushed"], &value["applied_index"]), (&json!(true), &json!(9)));
        assert_eq!(value["document"]["policies"][0]["namespace"], json!("t"));
    }
}

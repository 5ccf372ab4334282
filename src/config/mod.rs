//! One configuration from flags, environment, file and defaults, read and checked whole before anything else happens.
//! Owns what every setting means alone ([`knobs`]) and together ([`check`]); it binds nothing and starts nothing.

pub mod args;
pub mod check;
pub mod knobs;
pub mod layers;
pub mod node;
pub mod parse;
pub mod show;

use crate::policy_file::PolicyFile;
pub use args::ServeArgs;
pub use knobs::Knobs;
use knobs::TABLE;
use layers::{Setting, Settings};
use prefixd_raft::BootstrapMode;
use std::path::{Path, PathBuf};

/// A checked configuration.
#[derive(Clone, Debug)]
pub struct Config {
    /// All settings.
    pub knobs: Knobs,
    /// How an empty disk becomes a member, decided.
    pub bootstrap: BootstrapMode,
    /// This node's name, decided.
    pub node_name: String,
    /// The policy file as it was found, if there is one.
    pub policy_file: Option<PolicyFile>,
    settings: Settings,
}

/// Why there is no configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file can't be read, or isn't TOML.
    #[error("--config {}: {reason}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// Settings that are wrong, alone or together.
    #[error("{}", shown(.0))]
    Problems(Vec<Problem>),
}

/// One setting that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem(String);

impl Problem {
    fn value(key: &str, setting: &Setting, allowed: &str) -> Self {
        let flag = key.replace('_', "-");
        Self(format!("--{flag}: {:?} (from {}) is not {allowed}", setting.text, setting.source))
    }

    fn unknown_key(path: &Path, key: &str) -> Self {
        Self(format!("{}: unknown key {key:?}{}", path.display(), similar(key)))
    }

    fn plain(key: &str, reason: &str) -> Self {
        Self(format!("--{}: {reason}", key.replace('_', "-")))
    }
}

fn shown(problems: &[Problem]) -> String {
    problems.iter().map(|p| p.0.as_str()).collect::<Vec<_>>().join("\n")
}

/// Points at a known key that shares a word with an unknown one.
fn similar(key: &str) -> String {
    let plain = key.replace('-', "_");
    let words: Vec<_> = plain.split('_').filter(|w| w.len() > 2).collect();
    let shared = |known: &str| known.split('_').filter(|w| words.contains(w)).count();
    let best = TABLE.iter().map(|k| k.key).filter(|k| shared(k) > 0).max_by_key(|k| (*k == plain, shared(k)));
    best.map_or_else(|| "; `prefixd serve --help` lists all keys".into(), |known| format!("; is {known:?} meant?"))
}

impl Config {
    /// Reads and checks everything. `host_name` is the machine's own name.
    pub fn resolve(args: &ServeArgs, host_name: Option<&str>) -> Result<Self, ConfigError> {
        let read = |path: &PathBuf| match std::fs::read_to_string(path) {
            Ok(content) => Ok((path.clone(), content)),
            Err(error) => Err(ConfigError::File { path: path.clone(), reason: error.to_string() }),
        };
        let file = args.config.as_ref().map(read).transpose()?;
        let file = file.as_ref().map(|(path, content)| (path.as_path(), content.as_str()));
        let settings = Settings::merge(&args.said, file)?;
        let knobs = Knobs::read(&settings).map_err(ConfigError::Problems)?;
        let decided = check::together(&knobs, host_name).map_err(ConfigError::Problems)?;
        let policy_file = knobs.policy_file.clone().map(PolicyFile::open).transpose();
        let policy_file =
            policy_file.map_err(|bad| ConfigError::Problems(vec![Problem::plain("policy_file", &bad)]))?;
        Ok(Self { knobs, bootstrap: decided.bootstrap, node_name: decided.node_name, policy_file, settings })
    }
}

#[cfg(test)]
mod tests;

//! The effective configuration as TOML that can be read back, with the source of each value.

use super::Config;
use super::knobs::TABLE;
use prefixd_raft::BootstrapMode;
use std::fmt::Write;

impl Config {
    /// The effective configuration. What stays unset is shown as a comment.
    pub fn to_toml(&self) -> String {
        let mut out = String::from("# The effective configuration of prefixd serve.\n");
        let mut group = "";
        for knob in TABLE {
            if knob.group != group {
                group = knob.group;
                let _ = write!(out, "\n# {group}\n");
            }
            let (text, source) = self.effective(knob.key);
            let line = match text.as_str() {
                "" if knob.default.is_empty() => format!("# {} is not set", knob.key),
                text => format!("{} = {}", knob.key, literal(text)),
            };
            let _ = if source == "default" { writeln!(out, "{line}") } else { writeln!(out, "{line}  # {source}") };
        }
        out
    }

    /// The text of a setting, with what was decided for it when it was unset.
    fn effective(&self, key: &str) -> (String, &str) {
        let (text, source) =
            self.settings.get(key).map(|s| (s.text.as_str(), s.source.as_str())).unwrap_or(("", "default"));
        let decided = match key {
            "node_name" => self.node_name.as_str(),
            "bootstrap" => match self.bootstrap {
                BootstrapMode::Solo => "solo",
                BootstrapMode::Peers => "peers",
                BootstrapMode::Never => "never",
            },
            _ => text,
        };
        (decided.to_owned(), if text.is_empty() && !decided.is_empty() { "decided from the others" } else { source })
    }
}

/// docs/CONFIGURATION.md: every setting with its default. A test holds the page to it.
#[cfg(test)]
pub(super) fn page() -> String {
    let mut out = String::from(
        "# Configuration\n\n\
         `prefixd serve` takes each setting from its flag, else from its environment variable, else from the TOML file\n\
         given by `--config` (or PREFIXD_CONFIG), else from its default. The key in the file is the flag with underscores,\n\
         the variable is PREFIXD_ and the key in capitals: `--default-ttl`, PREFIXD_DEFAULT_TTL, `default_ttl = \"30m\"`.\n\
         `prefixd serve --check` prints the effective configuration and where each value comes from. Everything is\n\
         checked before a port is bound. Durations carry a unit (500ms, 60s, 30m, 1h30m), bytes may (64KiB, 8MiB).\n",
    );
    let mut group = "";
    for knob in TABLE {
        if knob.group != group {
            group = knob.group;
            let _ = write!(out, "\n## {group}\n\n| flag | default | meaning |\n|---|---|---|\n");
        }
        let default = if knob.default.is_empty() { "unset".to_owned() } else { format!("`{}`", knob.default) };
        let _ = writeln!(out, "| `--{}` | {default} | {} |", knob.flag(), knob.help.replace('|', "\\|"));
    }
    out
}

/// Numbers and booleans bare, everything else quoted.
fn literal(text: &str) -> String {
    let bare = matches!(text, "true" | "false")
        || text.parse::<i64>().is_ok_and(|n| n.to_string() == text)
        || text.parse::<f64>().is_ok_and(|n| n.is_finite() && text.contains('.') && !text.ends_with('.'))
            && text.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    if bare { text.to_owned() } else { toml::Value::String(text.to_owned()).to_string() }
}

//! Where settings come from: flags over environment over the TOML file over defaults. Owns the merge and the memory of
//! each value's source; values stay text here, so that the same parser judges all sources alike.

use super::knobs::{Knob, TABLE};
use super::parse::Parsed;
use super::{ConfigError, Problem};
use figment::providers::{Format, Toml};
use figment::value::{Dict, Map, Num, Value};
use figment::{Figment, Metadata, Profile, Provider};
use std::collections::BTreeMap;
use std::path::Path;

/// The text of one setting and who said it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// The value as text.
    pub text: String,
    /// "default", "flag", "environment" or "file …".
    pub source: String,
}

/// The text of every setting, by key.
#[derive(Clone, Debug, Default)]
pub struct Settings(BTreeMap<&'static str, Setting>);

/// What was said outside the file.
#[derive(Clone, Debug, Default)]
pub struct Said {
    /// Flags, by key.
    pub flags: BTreeMap<String, String>,
    /// Environment variables of settings, by key.
    pub environment: BTreeMap<String, String>,
}

struct Layer<'a> {
    name: &'static str,
    values: &'a BTreeMap<String, String>,
}

impl Provider for Layer<'_> {
    fn metadata(&self) -> Metadata {
        Metadata::named(self.name)
    }

    fn data(&self) -> Result<Map<Profile, Dict>, figment::Error> {
        let dict = self.values.iter().map(|(key, text)| (key.clone(), Value::from(text.clone()))).collect();
        Ok(Map::from([(Profile::Default, dict)]))
    }
}

impl Settings {
    /// Merges all sources. `file` is the path and the content of the TOML file.
    pub fn merge(said: &Said, file: Option<(&Path, &str)>) -> Result<Self, ConfigError> {
        let defaults = TABLE.iter().map(|k| (k.key.to_owned(), k.default.to_owned())).collect();
        let mut figment = Figment::from(Layer { name: "default", values: &defaults });
        if let Some((path, content)) = file {
            let table = Toml::from_str::<Dict>(content)
                .map_err(|error| ConfigError::File { path: path.into(), reason: error.to_string() })?;
            refuse_unknown(path, &table)?;
            figment = figment.merge(Toml::string(content));
        }
        let figment = figment
            .merge(Layer { name: "environment", values: &said.environment })
            .merge(Layer { name: "flag", values: &said.flags });
        let mut problems = Vec::new();
        let mut settings = BTreeMap::new();
        for knob in TABLE {
            match setting(&figment, knob, file.map(|(path, _)| path)) {
                Ok(setting) => drop(settings.insert(knob.key, setting)),
                Err(problem) => problems.push(problem),
            }
        }
        if problems.is_empty() { Ok(Self(settings)) } else { Err(ConfigError::Problems(problems)) }
    }

    /// The value of one setting, or a problem that names it.
    pub fn read<T>(&self, key: &str, parse: impl Fn(&str) -> Parsed<T>, problems: &mut Vec<Problem>) -> Option<T> {
        let setting = self.0.get(key)?;
        match parse(&setting.text) {
            Ok(value) => Some(value),
            Err(allowed) => {
                problems.push(Problem::value(key, setting, &allowed));
                None
            }
        }
    }

    /// One setting.
    pub fn get(&self, key: &str) -> Option<&Setting> {
        self.0.get(key)
    }
}

fn refuse_unknown(path: &Path, table: &Dict) -> Result<(), ConfigError> {
    let unknown = |key: &&String| !TABLE.iter().any(|knob| knob.key == key.as_str());
    let problems: Vec<_> = table.keys().filter(unknown).map(|key| Problem::unknown_key(path, key)).collect();
    if problems.is_empty() { Ok(()) } else { Err(ConfigError::Problems(problems)) }
}

fn setting(figment: &Figment, knob: &Knob, file: Option<&Path>) -> Result<Setting, Problem> {
    let found = figment.find_value(knob.key).map_err(|error| Problem::plain(knob.key, &error.to_string()))?;
    let source = match figment.get_metadata(found.tag()).map(|metadata| metadata.name.as_ref()) {
        Some(name @ ("default" | "environment" | "flag")) => name.to_owned(),
        _ => file.map_or_else(|| "file".to_owned(), |path| format!("file {}", path.display())),
    };
    match text(&found) {
        Some(text) => Ok(Setting { text, source }),
        None => Err(Problem::plain(knob.key, &format!("must be a plain value, not a table ({source})"))),
    }
}

fn text(value: &Value) -> Option<String> {
    match value {
        Value::String(_, text) => Some(text.clone()),
        Value::Bool(_, value) => Some(value.to_string()),
        Value::Num(_, Num::F64(value)) => Some(value.to_string()),
        Value::Num(_, Num::F32(value)) => Some(value.to_string()),
        Value::Num(_, number) => {
            number.to_i128().map(|n| n.to_string()).or_else(|| number.to_u128().map(|n| n.to_string()))
        }
        Value::Char(_, value) => Some(value.to_string()),
        Value::Array(_, items) => items.iter().map(text).collect::<Option<Vec<_>>>().map(|items| items.join(",")),
        Value::Dict(..) | Value::Empty(..) => None,
    }
}

//! A small validator for the vendored schemas: types, unknown fields, required ones, and the few other keywords that
//! occur in them. A keyword that it doesn't know is an error, so that none is skipped silently.

use super::{documents, files, folder, named, text};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;

/// Keywords that the validator judges, and `x-kubernetes-preserve-unknown-fields`, which admits more.
const KEYWORDS: [&str; 12] = [
    "$ref",
    "additionalProperties",
    "anyOf",
    "enum",
    "items",
    "minLength",
    "minimum",
    "oneOf",
    "properties",
    "required",
    "type",
    "x-kubernetes-int-or-string",
];

/// The vendored definitions.
pub(super) struct Schemas {
    kinds: BTreeMap<String, String>,
    definitions: BTreeMap<String, Value>,
}

impl Schemas {
    pub(super) fn vendored() -> Self {
        let mut all = Self { kinds: BTreeMap::new(), definitions: BTreeMap::new() };
        for path in files(&folder().join("../schemas")) {
            if path.extension().is_some_and(|extension| extension == "json") {
                let file: Value = serde_json::from_str(&fs::read_to_string(&path).expect("a file")).expect("JSON");
                for (kind, name) in file["kinds"].as_object().expect("kinds") {
                    all.kinds.insert(kind.clone(), name.as_str().expect("a name").to_owned());
                }
                all.definitions.extend(file["definitions"].as_object().expect("definitions").clone());
            }
        }
        assert!(all.definitions.len() > 100, "only {} definitions", all.definitions.len());
        all
    }

    /// What is wrong with a document, by path.
    pub(super) fn faults(&self, document: &Value) -> Vec<String> {
        let word = |key: &str| document[key].as_str().unwrap_or_default();
        let kind = format!("{}/{}", word("apiVersion"), word("kind"));
        let Some(definition) = self.kinds.get(&kind).and_then(|name| self.definitions.get(name)) else {
            return vec![format!("no schema of {kind} is vendored in deploy/schemas")];
        };
        let mut faults = Vec::new();
        self.judge(definition, document, &named(document), &mut faults);
        faults
    }

    fn judge(&self, schema: &Value, value: &Value, path: &str, faults: &mut Vec<String>) {
        let Some(schema) = schema.as_object() else { return };
        if let Some(reference) = schema.get("$ref").and_then(Value::as_str) {
            let name = reference.rsplit('/').next().unwrap_or_default();
            return match self.definitions.get(name) {
                Some(definition) => self.judge(definition, value, path, faults),
                None => faults.push(format!("{path}: the schema refers to {name}, which isn't vendored")),
            };
        }
        if let Some(types) = schema.get("type").filter(|types| !has_type(types, value)) {
            return faults.push(format!("{path}: {value} is no {types}"));
        }
        if let Some(allowed) = schema.get("enum").filter(|allowed| !super::items(allowed).contains(value)) {
            faults.push(format!("{path}: {value} is none of {allowed}"));
        }
        for (any, keyword) in [(true, "anyOf"), (false, "oneOf")] {
            let Some(choices) = schema.get(keyword) else { continue };
            let fits = super::items(choices).iter().filter(|choice| {
                let mut faults = Vec::new();
                self.judge(choice, value, path, &mut faults);
                faults.is_empty()
            });
            let fits = fits.count();
            if fits == 0 || (fits > 1 && !any) {
                faults.push(format!("{path}: {value} fits {fits} of {choices}"));
            }
        }
        if schema.contains_key("x-kubernetes-int-or-string") && !value.is_string() && !value.is_i64() {
            faults.push(format!("{path}: {value} is neither a number nor a text"));
        }
        match value {
            Value::Object(_) => self.judge_object(schema, value, path, faults),
            Value::Array(values) => {
                for (n, value) in values.iter().enumerate() {
                    self.judge(&schema["items"], value, &format!("{path}[{n}]"), faults);
                }
            }
            _ => {
                let least = |keyword: &str| schema.get(keyword).and_then(Value::as_f64).unwrap_or(f64::NEG_INFINITY);
                let is_short = value.as_str().is_some_and(|value| (value.len() as f64) < least("minLength"));
                if is_short || value.as_f64().is_some_and(|value| value < least("minimum")) {
                    faults.push(format!("{path}: {value} is too short or too small"));
                }
            }
        }
    }

    fn judge_object(
        &self,
        schema: &serde_json::Map<String, Value>,
        value: &Value,
        path: &str,
        faults: &mut Vec<String>,
    ) {
        let known = schema.get("properties").and_then(Value::as_object);
        let more = schema.get("additionalProperties");
        for name in schema.get("required").map_or(&[][..], super::items).iter().filter_map(Value::as_str) {
            if value.get(name).is_none() {
                faults.push(format!("{path}: {name} is missing"));
            }
        }
        for (name, value) in value.as_object().into_iter().flatten() {
            let path = format!("{path}.{name}");
            match (known.and_then(|known| known.get(name)), more) {
                (Some(schema), _) => self.judge(schema, value, &path, faults),
                (None, Some(Value::Object(_))) => self.judge(&schema["additionalProperties"], value, &path, faults),
                (None, Some(Value::Bool(true))) => {}
                // An object without any properties is a map of anything; one with some is those alone.
                (None, None) if known.is_none() => {}
                (None, _) => faults.push(format!("{path}: there is no such field")),
            }
        }
    }
}

/// Whether a value has one of the types, a list of names or one name.
fn has_type(types: &Value, value: &Value) -> bool {
    let is = |name: &Value| match name.as_str().unwrap_or_default() {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        other => panic!("a type {other:?} in a schema"),
    };
    match types {
        Value::Array(types) => types.iter().any(is),
        one => is(one),
    }
}

/// The keywords of a schema and of those in it.
fn keywords(schema: &Value, found: &mut Vec<String>) {
    for (keyword, value) in schema.as_object().into_iter().flatten() {
        found.push(keyword.clone());
        match (keyword.as_str(), value) {
            ("properties", Value::Object(properties)) => properties.values().for_each(|s| keywords(s, found)),
            ("anyOf" | "oneOf", Value::Array(schemas)) => schemas.iter().for_each(|s| keywords(s, found)),
            ("items" | "additionalProperties", schema) => keywords(schema, found),
            _ => {}
        }
    }
}

#[test]
fn every_keyword_of_the_vendored_schemas_is_judged() {
    let mut found = Vec::new();
    Schemas::vendored().definitions.values().for_each(|schema| keywords(schema, &mut found));
    found.sort();
    found.dedup();
    let unknown: Vec<_> = found.iter().filter(|keyword| !KEYWORDS.contains(&keyword.as_str())).collect();
    assert!(unknown.is_empty(), "{unknown:?}");
}

#[test]
fn every_manifest_fits_the_published_schemas() {
    let schemas = Schemas::vendored();
    let mut wrong = Vec::new();
    for path in super::rendered::PATHS {
        let documents = documents(&text(&format!("deploy/statefulset/rendered/{path}.yaml")));
        assert!(!documents.is_empty(), "{path} is empty");
        wrong.extend(documents.iter().flat_map(|document| schemas.faults(document)).map(|f| format!("{path}: {f}")));
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn what_is_wrong_is_found() {
    let schemas = Schemas::vendored();
    let service = |spec: &str| format!("{{apiVersion: v1, kind: Service, metadata: {{name: s}}, spec: {spec}}}");
    let workload = |pod: &str| {
        format!(
            "{{apiVersion: apps/v1, kind: StatefulSet, spec: {{selector: {{}}, serviceName: s, template: {{spec: {pod}}}}}}}"
        )
    };
    let cases = [
        (service("{ports: [{port: 80}]}"), None),
        (service("{ports: [{prot: 80}]}"), Some("ports[0].prot: there is no such field")),
        (service("{ports: [{name: a}]}"), Some("port is missing")),
        (service("{ports: {port: 80}}"), Some("is no [\"array\"")),
        (service("{ports: [{port: \"80\"}]}"), Some("\"80\" is no \"integer\"")),
        (service("{ports: [{port: 80, targetPort: true}]}"), Some("fits 0 of")),
        (workload("{containers: [{name: c, imagePullPolicy: Always}]}"), None),
        (workload("{containers: [{image: c}]}"), Some("name is missing")),
        (workload("{containers: [{name: c, securityContext: {runAsNonRoot: yes-please}}]}"), Some("is no [\"boolean\"")),
        ("{apiVersion: v1, kind: Pond}".into(), Some("no schema of v1/Pond")),
        (
            "{apiVersion: cert-manager.io/v1, kind: Certificate, spec: {secretName: s, dnsName: d, issuerRef: {name: i}}}".into(),
            Some("dnsName: there is no such field"),
        ),
        (
            "{apiVersion: cert-manager.io/v1, kind: Certificate, spec: {secretName: s, usages: [fly], issuerRef: {name: i}}}".into(),
            Some("is none of"),
        ),
        (
            "{apiVersion: monitoring.coreos.com/v1, kind: PrometheusRule, spec: {groups: [{name: g, rules: [{alert: a}]}]}}".into(),
            Some("expr is missing"),
        ),
    ];
    for (yaml, wanted) in cases {
        let faults: Vec<_> = documents(&yaml).iter().flat_map(|document| schemas.faults(document)).collect();
        match wanted {
            None => assert!(faults.is_empty(), "{yaml}: {faults:?}"),
            Some(wanted) => assert!(faults.iter().any(|f| f.contains(wanted)), "{yaml}: {faults:?}, not {wanted:?}"),
        }
    }
}

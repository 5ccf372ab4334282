//! Every command line and every variable in the manifests and in the runbook, held to the binary's own `--help`; and the
//! settings of each overlay to `prefixd serve --check`.

use super::{at, documents, items, of_kind, text};
use serde_json::Value;
use std::collections::BTreeMap;
use std::process::Command;

const BINARY: &str = env!("CARGO_BIN_EXE_prefixd");

/// `prefixd …` with nothing of this process's own settings.
fn prefixd() -> Command {
    let mut command = Command::new(BINARY);
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("PREFIXD_")) {
        command.env_remove(name);
    }
    command
}

/// The help of a command, its line breaks and indents taken out; none if there is no such command.
fn help(path: &[&str]) -> Option<Help> {
    let output = prefixd().args(path).arg("--help").output().expect("the binary runs");
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    let known =
        output.status.success() && text.contains(&format!("Usage: prefixd {}", path.join(" ")).trim_end().to_owned());
    known.then(|| {
        let commands = text.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
        let commands = commands.filter_map(|line| line.strip_prefix("  ")?.split(' ').next());
        let commands = commands.filter(|name| !name.is_empty()).map(str::to_owned).collect();
        Help { commands, flat: text.split_whitespace().collect::<Vec<_>>().join(" ") }
    })
}

struct Help {
    commands: Vec<String>,
    flat: String,
}

impl Help {
    fn has_flag(&self, flag: &str) -> bool {
        self.flat.split(' ').any(|word| word == flag)
    }

    fn flag_takes_value(&self, flag: &str) -> bool {
        self.flat.split_once(&format!("{flag} ")).is_some_and(|(_, rest)| rest.starts_with('<'))
    }

    fn has_variable(&self, name: &str) -> bool {
        self.flat.contains(&format!("[env: {name}="))
    }

    fn takes_arguments(&self) -> bool {
        self.flat.contains(" Arguments: ")
    }
}

/// What is wrong with a command line, by the helps of the commands on its way; and those helps.
fn follow(arguments: &[String]) -> Result<Vec<Help>, String> {
    let mut path: Vec<&str> = Vec::new();
    let mut helps = vec![help(&[]).ok_or("prefixd --help fails")?];
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        let newest = helps.last().expect("one at least");
        if argument.starts_with("--") {
            let (flag, joined) = argument.split_once('=').map_or((argument.as_str(), None), |(f, v)| (f, Some(v)));
            let owner = helps.iter().rev().find(|help| help.has_flag(flag));
            let owner = owner.ok_or(format!("prefixd {} has no {flag}", path.join(" ")))?;
            if joined.is_none() && owner.flag_takes_value(flag) {
                rest.next().ok_or(format!("{flag} wants a value"))?;
            }
        } else if newest.commands.iter().any(|command| command == argument) {
            path.push(argument);
            helps.push(help(&path).ok_or(format!("prefixd {} --help fails", path.join(" ")))?);
        } else if !newest.takes_arguments() {
            return Err(format!("prefixd {} has no command {argument:?}", path.join(" ")));
        }
    }
    Ok(helps)
}

/// The pod templates of a document, with the container's image of each.
fn containers(document: &Value) -> Vec<&Value> {
    let pod = super::pods::pod(document);
    let lists = ["initContainers", "containers"].map(|list| pod.map_or(&Value::Null, |pod| &pod[list]));
    lists.into_iter().flat_map(items).collect()
}

fn words(value: &Value) -> Vec<String> {
    items(value).iter().map(|word| word.as_str().expect("an argument is a text").to_owned()).collect()
}

#[test]
fn every_flag_and_variable_is_the_binarys_own() {
    let mut wrong = Vec::new();
    let mut seen = 0;
    for name in super::rendered::PATHS {
        let documents = documents(&text(&format!("deploy/statefulset/rendered/{name}.yaml")));
        for container in documents.iter().flat_map(containers) {
            if !container["image"].as_str().is_some_and(|image| image.contains("prefixd:")) {
                continue;
            }
            let place = format!("{name}, container {}", container["name"]);
            let mut helps = match follow(&words(&container["args"])) {
                Ok(helps) => helps,
                Err(reason) => {
                    wrong.push(format!("{place}: {reason}"));
                    continue;
                }
            };
            seen += 1;
            // Operators' commands inside a node's pod take their settings from it too.
            helps.extend(help(&["ctl"]).filter(|_| container["args"][0] == "serve"));
            let own = items(&container["env"]).iter().filter_map(|variable| variable["name"].as_str());
            let maps = items(&container["envFrom"]).iter().filter_map(|from| at(from, "configMapRef/name").as_str());
            let maps = maps.flat_map(|map| {
                let found = documents.iter().find(|d| d["kind"] == "ConfigMap" && at(d, "metadata/name") == map);
                found.expect("the settings are there")["data"].as_object().expect("settings").keys()
            });
            for variable in own.chain(maps.map(String::as_str)).filter(|name| name.starts_with("PREFIXD_")) {
                if !helps.iter().any(|help| help.has_variable(variable)) {
                    wrong.push(format!("{place}: nothing reads {variable}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(seen >= 7, "only {seen} containers");
}

#[test]
fn a_wrong_command_line_is_found() {
    let follow = |line: &str| follow(&line.split(' ').map(str::to_owned).collect::<Vec<_>>()).map(|_| ());
    assert_eq!(follow("serve --data-dir=/data --check"), Ok(()));
    assert_eq!(follow("ctl --admin a:1 --timeout 5 digest --at 3"), Ok(()));
    assert_eq!(follow("serve --data-dirs=/data"), Err("prefixd serve has no --data-dirs".into()));
    assert_eq!(follow("ctl --admin a:1 digests"), Err("prefixd ctl has no command \"digests\"".into()));
    assert_eq!(follow("serve now"), Err("prefixd serve has no command \"now\"".into()));
}

/// The lines of the runbook that are commands: `prefixd …`, or `… -- prefixd …` in a pod.
fn runbook_commands(text: &str) -> Vec<String> {
    let mut inside = false;
    let mut found = Vec::new();
    // A line that ends in a backslash goes on.
    for line in text.replace("\\\n", " ").lines() {
        if line.trim_start().starts_with("```") {
            inside = !inside;
        } else if inside {
            let line = line.split(" #").next().unwrap_or_default().trim();
            let command = line.split_once(" -- prefixd ").map(|(_, rest)| rest).or(line.strip_prefix("prefixd "));
            let command = command.map(|command| command.split(['|', '>', ';', '&']).next().unwrap_or_default().trim());
            found.extend(command.map(str::to_owned));
        }
    }
    found
}

#[test]
fn every_command_of_the_runbook_is_the_binarys_own() {
    let commands = runbook_commands(&text("deploy/statefulset/README.md"));
    assert!(commands.len() > 10, "only {commands:?}");
    let wrong: Vec<_> = commands
        .iter()
        .filter_map(|line| {
            let words: Vec<_> = line.split_whitespace().map(str::to_owned).collect();
            follow(&words).err().map(|reason| format!("{line}: {reason}"))
        })
        .collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn every_step_of_the_runbook_is_tried() {
    let (page, script) = (text("deploy/statefulset/README.md"), text("deploy/statefulset/runbook.sh"));
    let steps: Vec<_> = page.lines().filter_map(|line| line.strip_prefix("## ")).collect();
    assert!(steps.len() >= 8, "{steps:?}");
    let untried: Vec<_> = steps.iter().filter(|step| !script.contains(&format!("\nstep \"{step}\"\n"))).collect();
    assert!(untried.is_empty(), "no step of runbook.sh is called {untried:?}");
}

/// Certificates that stand for the secrets, in a folder.
fn certificates(folder: &std::path::Path) {
    let key = rcgen::generate_simple_self_signed(vec!["prefixd-0.prefixd-nodes".to_owned()]).expect("a certificate");
    for port in ["node", "grpc", "controller"] {
        let folder = folder.join(port);
        std::fs::create_dir_all(&folder).expect("a folder");
        for (name, content) in
            [("tls.crt", key.cert.pem()), ("ca.crt", key.cert.pem()), ("tls.key", key.signing_key.serialize_pem())]
        {
            std::fs::write(folder.join(name), content).expect("a file");
        }
    }
    for audience in ["policy-tokens", "controller-tokens"] {
        let token = format!("{audience}-of-a-test-0123456789abcdef\n");
        std::fs::write(folder.join("controller").join(audience), token).expect("a file");
    }
}

/// What `serve --check` says of the node that a StatefulSet starts first: each setting in force, by its key.
pub(super) fn checked(documents: &[Value]) -> BTreeMap<String, String> {
    let folder = tempfile::tempdir().expect("a folder");
    certificates(folder.path());
    let set = of_kind(documents, "StatefulSet")[0];
    let container = at(set, "spec/template/spec/containers/0");
    let map = of_kind(documents, "ConfigMap")[0];
    let mut command = prefixd();
    for (name, value) in map["data"].as_object().expect("settings") {
        let value = value.as_str().expect("a setting is a text");
        // The volumes are elsewhere on this machine.
        command.env(name, value.replace("/tls/", &format!("{}/", folder.path().display())));
    }
    let arguments = words(&container["args"]).into_iter().map(|word| word.replace("$(POD_NAME)", "prefixd-0"));
    let output = command.args(arguments).arg("--check").output().expect("the binary runs");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "serve --check: {error}");
    let shown = String::from_utf8(output.stdout).expect("UTF-8");
    let shown: toml::Table = shown.parse().expect("it is TOML");
    shown.into_iter().map(|(key, value)| (key, value.as_str().map_or(value.to_string(), str::to_owned))).collect()
}

#[test]
fn the_settings_of_each_overlay_are_accepted() {
    for (overlay, tls) in [("dev", false), ("production", false), ("tls", true), ("controller", true)] {
        let documents = documents(&text(&format!("deploy/statefulset/rendered/{overlay}.yaml")));
        let settings = checked(&documents);
        let port = |key: &str| settings[key].rsplit(':').next().map(str::to_owned).expect("a port");
        let declared = items(at(of_kind(&documents, "StatefulSet")[0], "spec/template/spec/containers/0/ports"));
        for (name, key) in [("grpc", "grpc_addr"), ("http", "http_addr"), ("node", "node_addr")] {
            let declared = declared.iter().find(|port| port["name"] == name).expect("a port");
            assert_eq!(declared["containerPort"].to_string(), port(key), "{overlay}: {name}");
        }
        let is_open = !settings["internal_addr"].starts_with("127.0.0.1:");
        assert_eq!(is_open, overlay == "controller", "{overlay}: {settings:?}");
        assert_eq!(settings.contains_key("tls_client_ca_file"), tls, "{overlay}");
        assert_eq!(settings["insecure_disable_auth"], (overlay == "dev").to_string(), "{overlay}");
    }
}

//! What a careful operator would look for in the pods and in what surrounds them.

use super::{at, commands, documents, items, named, of_kind, text};
use serde_json::Value;
use std::collections::BTreeSet;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The pod that a document makes, if it makes any.
pub(super) fn pod(document: &Value) -> Option<&Value> {
    let paths = ["spec/template/spec", "spec/jobTemplate/spec/template/spec"];
    paths.into_iter().map(|path| at(document, path)).find(|pod| pod.is_object())
}

fn rendered(name: &str) -> Vec<Value> {
    documents(&text(&format!("deploy/statefulset/rendered/{name}.yaml")))
}

#[test]
fn no_pod_may_do_more_than_it_must() {
    let mut wrong = Vec::new();
    for name in super::rendered::PATHS {
        for document in &rendered(name) {
            let Some(pod) = pod(document) else { continue };
            let mut want = |value: &Value, path: &str, wanted: Value| {
                if *at(value, path) != wanted {
                    wrong.push(format!("{name}, {}: {path} is {}, not {wanted}", named(document), at(value, path)));
                }
            };
            want(pod, "automountServiceAccountToken", false.into());
            want(pod, "enableServiceLinks", false.into());
            want(pod, "serviceAccountName", "prefixd".into());
            want(pod, "securityContext/runAsNonRoot", true.into());
            want(pod, "securityContext/seccompProfile/type", "RuntimeDefault".into());
            for key in ["hostNetwork", "hostPID", "hostIPC"] {
                want(pod, key, Value::Null);
            }
            for container in ["initContainers", "containers"].into_iter().flat_map(|list| items(&pod[list])) {
                want(container, "securityContext/allowPrivilegeEscalation", false.into());
                want(container, "securityContext/readOnlyRootFilesystem", true.into());
                want(container, "securityContext/capabilities", serde_json::json!({"drop": ["ALL"]}));
                want(container, "securityContext/privileged", Value::Null);
                let has_limits = at(container, "resources/limits/memory").is_string()
                    && at(container, "resources/requests/cpu").is_string();
                want(&serde_json::json!({"limits": has_limits}), "limits", true.into());
            }
            for volume in items(&pod["volumes"]) {
                want(volume, "hostPath", Value::Null);
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn a_pod_has_the_time_that_its_node_takes_to_stop() {
    for overlay in ["dev", "production", "tls", "controller"] {
        let documents = rendered(overlay);
        let pod = at(of_kind(&documents, "StatefulSet")[0], "spec/template/spec");
        let pause = at(pod, "containers/0/lifecycle/preStop/sleep/seconds").as_u64().expect("a pause before SIGTERM");
        let stop = commands::checked(&documents)["stop_timeout"].clone();
        let stop: u64 = stop.strip_suffix('s').and_then(|seconds| seconds.parse().ok()).expect("whole seconds");
        // Connections and traces are given as long each after the node.
        let close = 2 * prefixd::serve::CLOSE_TIMEOUT.as_secs();
        let grace = pod["terminationGracePeriodSeconds"].as_u64().expect("a grace period");
        assert!(grace >= pause + stop + close + 5, "{overlay}: {grace} s for {pause} + {stop} + {close} s and room");
    }
}

#[test]
fn services_peers_certificates_and_policies_speak_of_the_same_pods() {
    for overlay in ["dev", "production", "tls", "controller"] {
        let documents = rendered(overlay);
        let set = of_kind(&documents, "StatefulSet")[0];
        let labels = at(set, "spec/template/metadata/labels").as_object().expect("labels");
        let selects = |selector: &Value| {
            selector.as_object().is_some_and(|selector| selector.iter().all(|(k, v)| labels.get(k) == Some(v)))
        };
        assert!(selects(at(set, "spec/selector/matchLabels")));
        assert!(selects(at(of_kind(&documents, "PodDisruptionBudget")[0], "spec/selector/matchLabels")));
        let ports: Vec<_> = items(at(set, "spec/template/spec/containers/0/ports")).iter().collect();
        let services = of_kind(&documents, "Service");
        for service in &services {
            assert!(selects(at(service, "spec/selector")), "{}", named(service));
            for port in items(at(service, "spec/ports")) {
                let target = ports.iter().find(|p| p["name"] == port["targetPort"]).expect("its port is the pod's");
                assert_eq!(target["containerPort"], port["port"], "{}", named(service));
            }
        }
        let headless = at(set, "spec/serviceName").as_str().expect("a service");
        let nodes = services.iter().find(|s| at(s, "metadata/name") == headless).expect("the headless service");
        assert_eq!(*at(nodes, "spec/clusterIP"), Value::from("None"));
        assert_eq!(*at(nodes, "spec/publishNotReadyAddresses"), Value::from(true));
        // Every port that is declared has a policy, and none has a policy but those.
        let admitted: BTreeSet<u64> = of_kind(&documents, "NetworkPolicy")
            .iter()
            .flat_map(|policy| items(at(policy, "spec/ingress")))
            .flat_map(|rule| {
                assert!(!items(&rule["from"]).is_empty(), "{overlay}: {rule} admits everybody");
                items(&rule["ports"]).iter().filter_map(|port| port["port"].as_u64())
            })
            .collect();
        let declared: BTreeSet<u64> = ports.iter().filter_map(|port| port["containerPort"].as_u64()).collect();
        assert_eq!(admitted, declared, "{overlay}");
        peers_are_the_pods(overlay, &documents, set, headless);
    }
}

#[test]
fn the_controllers_port_is_open_to_one_namespace_and_to_nobody_without_a_token() {
    let before = rendered("tls");
    let documents = rendered("controller");
    let names = |documents: &[Value]| documents.iter().map(named).collect::<BTreeSet<_>>();
    // The settings' name has a digest of them in it.
    let settings = |name: &String| !name.contains("prefixd-settings");
    let added: Vec<String> = names(&documents).difference(&names(&before)).filter(|n| settings(n)).cloned().collect();
    assert_eq!(added.len(), 1, "{added:?}");
    let policy = documents.iter().find(|document| named(document) == added[0]).expect("what was added");
    assert_eq!(
        (&policy["kind"], at(policy, "spec/ingress").as_array().map(Vec::len)),
        (&"NetworkPolicy".into(), Some(1))
    );
    let from = items(at(policy, "spec/ingress/0/from"));
    let chosen = serde_json::json!({"kubernetes.io/metadata.name": "inference-system"});
    assert_eq!((from.len(), at(&from[0], "namespaceSelector/matchLabels")), (1, &chosen));
    assert_eq!(*at(policy, "spec/ingress/0/ports"), serde_json::json!([{"port": 8081, "protocol": "TCP"}]));
    for documents in [&before, &documents] {
        for port in of_kind(documents, "Service").into_iter().flat_map(|service| items(at(service, "spec/ports"))) {
            assert_ne!(port["port"], 8081, "a Service leads to it");
        }
    }
    let settings = commands::checked(&documents);
    for key in ["internal_tls_cert_file", "internal_tls_key_file", "policy_token_file", "controller_token_file"] {
        assert!(settings.contains_key(key), "{key} is unset: {settings:?}");
    }
    assert_eq!(settings["insecure_disable_auth"], "false");
}

/// The peer list names each replica, by the name that its Service gives it and its certificate has.
fn peers_are_the_pods(overlay: &str, documents: &[Value], set: &Value, headless: &str) {
    let peers = at(of_kind(documents, "ConfigMap")[0], "data/PREFIXD_PEERS").as_str().expect("peers").to_owned();
    let replicas = at(set, "spec/replicas").as_u64().expect("replicas");
    let pods = (0..replicas).map(|n| format!("prefixd-{n}=prefixd-{n}.{headless}:9091"));
    assert_eq!(peers, pods.collect::<Vec<_>>().join(","), "{overlay}");
    let certificates = of_kind(documents, "Certificate");
    for node in certificates.iter().filter(|c| at(c, "spec/secretName") == "prefixd-node-tls") {
        let names: Vec<_> = items(at(node, "spec/dnsNames")).iter().filter_map(Value::as_str).collect();
        for pod in 0..replicas {
            assert!(names.contains(&format!("prefixd-{pod}.{headless}").as_str()), "{overlay}: {names:?}");
        }
        let usages = at(node, "spec/usages");
        assert!(items(usages).contains(&"server auth".into()) && items(usages).contains(&"client auth".into()));
    }
    assert_eq!(certificates.is_empty(), !["tls", "controller"].contains(&overlay));
}

/// The paths of a manifest's targets of one kind.
fn listed(manifest: &toml::Table, list: &str) -> Vec<String> {
    let entries = manifest.get(list).and_then(toml::Value::as_array).cloned().unwrap_or_default();
    entries.iter().filter_map(|entry| entry.get("path")?.as_str().map(str::to_owned)).collect()
}

#[test]
fn the_image_is_built_from_all_that_the_workspace_names() {
    let (dockerfile, ignored) = (text("deploy/Dockerfile"), text(".dockerignore"));
    let manifest: toml::Table = text("Cargo.toml").parse().expect("a manifest");
    let members = manifest["workspace"]["members"].as_array().expect("members").clone();
    for member in members.iter().filter_map(toml::Value::as_str) {
        let folder = if member == "." { "src" } else { member };
        assert!(dockerfile.contains(&format!("\nCOPY {folder} {folder}\n")), "the Dockerfile leaves {folder} out");
        assert!(ignored.contains(&format!("\n!{folder}\n")), ".dockerignore keeps {folder} out");
    }
    for path in ["test", "bench", "example"].into_iter().flat_map(|list| listed(&manifest, list)) {
        assert!(dockerfile.contains(&path), "the Dockerfile makes no stand-in for {path}");
    }
    let wanted = manifest["workspace"]["package"]["rust-version"].as_str().expect("a version");
    assert!(dockerfile.contains(&format!("FROM rust:{wanted}.")), "the image isn't built with Rust {wanted}");
    assert!(dockerfile.contains("\nUSER 65532:65532\n"));
}

/// A real node, ended with the test.
struct Node(Child);

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn probes_and_scrapes_ask_what_a_node_answers() {
    let folder = tempfile::tempdir().expect("a folder");
    let addresses = folder.path().join("addresses");
    let mut command = Command::new(env!("CARGO_BIN_EXE_prefixd"));
    command.args(["serve", "--bootstrap=solo", "--data-dir"]).arg(folder.path().join("data"));
    command.arg("--addr-file").arg(&addresses).stdout(Stdio::null());
    for port in ["--grpc-addr", "--http-addr", "--internal-addr", "--node-addr"] {
        command.args([port, "127.0.0.1:0"]);
    }
    let _node = Node(command.spawn().expect("a node starts"));
    let until = Instant::now() + Duration::from_secs(60);
    let documents = rendered("production");
    let container = at(of_kind(&documents, "StatefulSet")[0], "spec/template/spec/containers/0");
    let probes = ["startupProbe", "livenessProbe", "readinessProbe"].map(|probe| &container[probe]["httpGet"]);
    let scraped = at(of_kind(&documents, "ServiceMonitor")[0], "spec/endpoints/0");
    for asked in probes.into_iter().chain([scraped]) {
        assert_eq!(asked["port"], "http");
        let path = asked["path"].as_str().expect("a path");
        loop {
            let read = || -> Option<u16> {
                let addresses: Value = serde_json::from_str(&std::fs::read_to_string(&addresses).ok()?).ok()?;
                let url = format!("http://{}{path}", addresses["http"].as_str()?);
                Some(ureq::get(&url).call().ok()?.status().as_u16())
            };
            if read() == Some(200) {
                break;
            }
            assert!(Instant::now() < until, "{path} was not answered with 200 within a minute");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

//! The alerts, held to docs/METRICS.md, to the runbook, and to the grammar of PromQL as far as a tokenizer sees it. Where
//! Prometheus's own promtool is at hand it judges them too, and plays deploy/statefulset/alerts.test.yaml against them.

use super::{at, documents, folder, items, of_kind, text};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

/// Words of PromQL that the alerts may use; one that is new belongs here after a look at its manual.
const WORDS: [&str; 14] = [
    "abs",
    "and",
    "by",
    "histogram_quantile",
    "increase",
    "max",
    "min",
    "on",
    "or",
    "predict_linear",
    "rate",
    "sum",
    "time",
    "unless",
];
/// Labels that Prometheus gives a target of a ServiceMonitor, and those of histograms.
const TARGET_LABELS: [&str; 4] = ["namespace", "pod", "job", "le"];
/// The one series that everything scraped has.
const SCRAPED: &str = "up";
/// What must be watched, by a word of the metric that does it.
const WATCHED: [&str; 11] = [
    "leader_known",
    "leader_changes",
    "fsync_seconds",
    "disk_free",
    "lag_entries",
    "audit_mismatches",
    "snapshot_age",
    "quorum_margin",
    "clock_skew",
    "certificate_not_after",
    "last_successful_time",
];

fn rules() -> Vec<Value> {
    let documents = documents(&text("deploy/statefulset/rendered/production.yaml"));
    let groups = at(of_kind(&documents, "PrometheusRule")[0], "spec/groups").clone();
    items(&groups).iter().flat_map(|group| items(&group["rules"]).to_vec()).collect()
}

/// Each documented series with its labels; a histogram's three series each.
fn documented() -> BTreeMap<String, BTreeSet<String>> {
    let page = text("docs/METRICS.md");
    let rows = page.lines().filter_map(|line| {
        let cells: Vec<_> = line.strip_prefix("| `")?.split('|').map(str::trim).collect();
        let labels = cells.get(2)?.split(", ").filter(|label| !label.is_empty()).map(str::to_owned).collect();
        Some((cells[0].trim_matches('`').to_owned(), cells[1].to_owned(), labels))
    });
    let series = |(name, kind, labels): (String, String, BTreeSet<String>)| match kind.as_str() {
        "histogram" => {
            ["_bucket", "_sum", "_count"].map(|end| (format!("{name}{end}"), labels.clone())).into_iter().collect()
        }
        _ => vec![(name, labels)],
    };
    rows.flat_map(series).collect()
}

/// The series of others that docs/METRICS.md says are used: their labels, and whose they are.
fn foreign() -> BTreeMap<String, (BTreeSet<String>, String)> {
    let page = text("docs/METRICS.md");
    let lines = page.lines().filter_map(|line| line.strip_prefix("- `kube_").map(|rest| format!("kube_{rest}")));
    let parsed = lines.map(|line| {
        let (name, rest) = line.split_once("` (").expect("a name, then whose it is");
        let (whose, rest) = rest.split_once("; labels ").expect("its labels");
        let labels = rest.split(')').next().expect("an end").split(", ").map(str::to_owned).collect();
        (name.to_owned(), (labels, whose.to_owned()))
    });
    parsed.collect()
}

#[derive(Debug, PartialEq)]
enum Token {
    Name(String),
    Text,
    Other(String),
}

/// The tokens of an expression; an error for what can be none.
fn tokens(expression: &str) -> Result<Vec<Token>, String> {
    let mut found = Vec::new();
    let mut rest = expression;
    while let Some(first) = rest.chars().next() {
        let taken = match first {
            c if c.is_whitespace() => 1,
            c if c.is_ascii_alphabetic() || c == '_' => {
                let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != ':').unwrap_or(rest.len());
                found.push(Token::Name(rest[..end].to_owned()));
                end
            }
            '"' => {
                let end = rest[1..].find('"').ok_or(format!("a text without end: {rest}"))? + 2;
                found.push(Token::Text);
                end
            }
            c if c.is_ascii_digit() => {
                let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '.').unwrap_or(rest.len());
                found.push(Token::Other(rest[..end].to_owned()));
                end
            }
            _ => {
                let two = rest.get(..2).filter(|two| ["==", "!=", ">=", "<=", "=~", "!~"].contains(two));
                let one = rest.get(..1).filter(|one| "(){}[],=<>+-*/".contains(one));
                let operator = two.or(one).ok_or(format!("{first:?} is no PromQL"))?;
                found.push(Token::Other(operator.to_owned()));
                operator.len()
            }
        };
        rest = &rest[taken..];
    }
    Ok(found)
}

/// Whether brackets match, and which are open where a token stands.
fn nesting(tokens: &[Token]) -> Result<Vec<String>, String> {
    let mut open = String::new();
    let mut before = Vec::new();
    for token in tokens {
        before.push(open.clone());
        let Token::Other(sign) = token else { continue };
        match sign.as_str() {
            "(" | "{" | "[" => open.push_str(sign),
            ")" | "}" | "]" => {
                let wanted = match sign.as_str() {
                    ")" => '(',
                    "}" => '{',
                    _ => '[',
                };
                if open.pop() != Some(wanted) {
                    return Err(format!("{sign} closes nothing"));
                }
            }
            _ => {}
        }
    }
    if open.is_empty() { Ok(before) } else { Err(format!("{open} stays open")) }
}

/// What is wrong with an expression. A series of others counts where METRICS.md names its owner.
fn faults(expression: &str, documented: &BTreeMap<String, BTreeSet<String>>) -> Vec<String> {
    let foreign = foreign();
    let judged = tokens(expression).and_then(|tokens| nesting(&tokens).map(|open| (tokens, open)));
    let (tokens, open) = match judged {
        Ok(judged) => judged,
        Err(fault) => return vec![fault],
    };
    let mut wrong = Vec::new();
    let mut metrics = Vec::new();
    let mut labels = Vec::new();
    for (n, token) in tokens.iter().enumerate() {
        let Token::Name(name) = token else { continue };
        let after_by = || {
            let begin = tokens[..n].iter().rposition(|t| *t == Token::Other("(".into()));
            begin
                .and_then(|at| at.checked_sub(1))
                .is_some_and(|at| matches!(&tokens[at], Token::Name(word) if word == "by" || word == "on"))
        };
        if open[n].ends_with('{') || (open[n].ends_with('(') && after_by()) {
            labels.push(name.clone());
        } else if documented.contains_key(name) || foreign.contains_key(name) || name == SCRAPED {
            metrics.push(name.clone());
        } else if !WORDS.contains(&name.as_str()) {
            wrong.push(format!("{name} is neither a metric in docs/METRICS.md nor a known word of PromQL"));
        }
    }
    if metrics.is_empty() {
        wrong.push("no metric is asked for".into());
    }
    let of_others = metrics.iter().filter_map(|metric| foreign.get(metric)).flat_map(|(labels, _)| labels);
    let own: BTreeSet<_> =
        metrics.iter().filter_map(|metric| documented.get(metric)).flatten().chain(of_others).collect();
    let strange = labels.iter().filter(|label| !TARGET_LABELS.contains(&label.as_str()) && !own.contains(label));
    wrong.extend(strange.map(|label| format!("none of its metrics has the label {label}")));
    wrong
}

/// The anchors of a page's headings, as hosts of repositories make them.
fn anchors(page: &str) -> BTreeSet<String> {
    let headings =
        page.lines().filter_map(|line| line.strip_prefix('#').map(|rest| rest.trim_start_matches('#').trim()));
    let kept = |c: char| c.is_alphanumeric() || c == '-' || c == ' ' || c == '_';
    headings.map(|h| h.to_lowercase().chars().filter(|c| kept(*c)).collect::<String>().replace(' ', "-")).collect()
}

#[test]
fn every_alert_asks_for_metrics_that_there_are_and_says_what_to_do() {
    let (rules, documented, foreign) = (rules(), documented(), foreign());
    let anchors = anchors(&text("deploy/statefulset/README.md"));
    let mut wrong = Vec::new();
    for rule in &rules {
        let name = rule["alert"].as_str().expect("a name");
        let expression = rule["expr"].as_str().expect("an expression");
        let mut fault = |what: String| wrong.push(format!("{name}: {what}"));
        faults(expression, &documented).into_iter().for_each(&mut fault);
        let word = |path: &str| at(rule, path).as_str().unwrap_or_default();
        if !["critical", "warning"].contains(&word("labels/severity")) {
            fault(format!("severity {:?}", word("labels/severity")));
        }
        for annotation in ["annotations/summary", "annotations/description"] {
            if word(annotation).len() < 20 || !word(annotation).contains(' ') {
                fault(format!("{annotation} says nothing"));
            }
        }
        // Who reads an alert must know that it hangs on somebody else's exporter.
        for (name, (_, whose)) in &foreign {
            if expression.contains(name.as_str()) && !word("annotations/description").contains(whose.as_str()) {
                fault(format!("its description doesn't say that {name} is {whose}'s"));
            }
        }
        let place = word("annotations/runbook_url").strip_prefix("deploy/statefulset/README.md#");
        if !place.is_some_and(|anchor| anchors.contains(anchor)) {
            fault(format!("{:?} is no place in the runbook", word("annotations/runbook_url")));
        }
    }
    let own: Vec<_> =
        foreign.keys().filter(|name| documented.contains_key(*name) || name.starts_with("prefixd")).collect();
    assert!(!foreign.is_empty() && own.is_empty(), "others' series are told apart from prefixd's: {own:?}");
    let unused = foreign
        .keys()
        .filter(|name| !rules.iter().any(|rule| rule["expr"].as_str().is_some_and(|e| e.contains(name.as_str()))));
    wrong.extend(unused.map(|name| format!("no alert asks for {name}, which METRICS.md says is used")));
    let watched = |word: &&str| rules.iter().any(|rule| rule["expr"].as_str().is_some_and(|e| e.contains(*word)));
    wrong.extend(WATCHED.iter().filter(|word| !watched(word)).map(|word| format!("nothing watches {word}")));
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn a_wrong_expression_is_found() {
    let documented = documented();
    let cases = [
        ("max by (namespace) (prefixd_ready) == 0", None),
        ("rate(prefixd_storage_fsync_seconds_bucket{le=\"0.1\"}[5m]) > 0", None),
        ("prefixd_raedy == 0", Some("prefixd_raedy is neither")),
        ("max(prefixd_ready == 0", Some("( stays open")),
        ("prefixd_ready{a=\"b} == 0", Some("without end")),
        ("prefixd_ready] == 0", Some("] closes nothing")),
        ("sum by (tenant) (prefixd_ready)", Some("label tenant")),
        ("prefixd_storage_fsync_seconds > 1", Some("is neither")),
        ("time() > 1", Some("no metric")),
        ("time() - kube_cronjob_created{cronjob=\"a\"} > 1", None),
        ("kube_cronjob_created{container=\"a\"} > 1", Some("label container")),
        ("kube_pod_info > 1", Some("is neither")),
        ("prefixd_ready = 0 ; 1", Some("no PromQL")),
    ];
    for (expression, wanted) in cases {
        let faults = faults(expression, &documented);
        match wanted {
            None => assert!(faults.is_empty(), "{expression}: {faults:?}"),
            Some(wanted) => assert!(faults.iter().any(|f| f.contains(wanted)), "{expression}: {faults:?}"),
        }
    }
}

#[test]
fn promtool_agrees_and_the_alerts_fire_when_they_should() {
    let folder_of_test = tempfile::tempdir().expect("a folder");
    let documents = documents(&text("deploy/statefulset/rendered/production.yaml"));
    let groups = json!({"groups": at(of_kind(&documents, "PrometheusRule")[0], "spec/groups")});
    let play = std::fs::read(folder().join("alerts.test.yaml")).expect("the played series");
    std::fs::write(folder_of_test.path().join("alerts.yaml"), groups.to_string()).expect("a file");
    std::fs::write(folder_of_test.path().join("alerts.test.yaml"), play).expect("a file");
    for arguments in [["check", "rules", "alerts.yaml"], ["test", "rules", "alerts.test.yaml"]] {
        let Ok(output) = Command::new("promtool").args(arguments).current_dir(folder_of_test.path()).output() else {
            println!("skipped: there is no promtool here");
            return;
        };
        let said = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
        assert!(output.status.success(), "promtool {arguments:?}: {said}");
    }
}

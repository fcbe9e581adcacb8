//! The chart's rules of Prometheus, by promtool and against what is declared.

// Most of it stands beside the `#[test]` functions, so clippy does not see that it is a test.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use weft_agent::fault::Fault;
use weft_agent::transfer::state::State;
use weft_identity::ticket::TicketFault;
use weft_metrics::{Page, table};

fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)
}

fn read(path: &str) -> String {
    let text = fs::read_to_string(repository(path));
    text.unwrap_or_else(|error| panic!("{path}: {error}"))
}

const RULES: &str = "charts/weft/monitoring/rules.yaml";
const TESTS: &str = "tests/monitoring/alerts.yaml";

fn yaml(path: &str) -> Value {
    serde_saphyr::from_str(&read(path)).unwrap()
}

/// The members of `list`, which is one.
fn list(list: &Value) -> &[Value] {
    list.as_array().map_or(&[], Vec::as_slice)
}

/// All rules, of all groups.
fn rules() -> Vec<Value> {
    let file = yaml(RULES);
    let groups = list(&file["groups"]).iter();
    groups
        .flat_map(|group| list(&group["rules"]).to_vec())
        .collect()
}

/// What a query names that may be a metric: words with an underscore or a colon. `30m:30s` is a time.
fn names(query: &str) -> BTreeSet<&str> {
    let is_of_name = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
    let words = query.split(|c: char| !is_of_name(c));
    words
        .filter(|word| !word.starts_with(|c: char| c.is_ascii_digit()))
        .filter(|word| word.starts_with("weft_") || word.contains(':'))
        .collect()
}

/// Whether a program exports series of this name.
fn is_declared(name: &str) -> bool {
    table::ALL.iter().any(|it| it.has_series(name))
}

#[test]
fn every_rule_asks_for_metrics_that_there_are() {
    let rules = rules();
    let recorded: BTreeSet<_> = rules
        .iter()
        .filter_map(|it| it["record"].as_str())
        .collect();
    for rule in &rules {
        let query = rule["expr"].as_str().unwrap();
        let names = names(query);
        // Those of every target are Prometheus' own.
        assert!(!names.is_empty() || query.contains("up{"), "{query}");
        for name in names {
            assert!(
                recorded.contains(name) || is_declared(name),
                "{name} in {query}"
            );
        }
    }
}

/// The words that a query asks for in a label, by `=~` or `!~`.
fn asked<'a>(query: &'a str, label: &str) -> BTreeSet<&'a str> {
    let matchers = query.split([',', '{', '}']);
    let asked = matchers.filter_map(|matcher| {
        let matcher = matcher.strip_prefix(label)?;
        matcher.strip_prefix("=~").or(matcher.strip_prefix("!~"))
    });
    let asked = asked.flat_map(|words| words.trim_matches('"').split('|'));
    asked.collect()
}

#[test]
fn what_rules_ask_for_in_labels_is_what_agents_write_there() {
    let rules = rules();
    let queries = || rules.iter().filter_map(|it| it["expr"].as_str());
    let asked = |label| -> BTreeSet<&str> { queries().flat_map(|it| asked(it, label)).collect() };
    let states = [State::Transferring, State::Verifying].map(|it| it.to_string());
    assert_eq!(asked("state"), states.iter().map(String::as_str).collect());
    let text = String::new;
    let certificate = Fault::WrongCertificate { problem: text() };
    let call = Fault::NotAllowed {
        call: text(),
        allowed: "",
        caller: text(),
    };
    let superseded = Fault::Superseded { by: 1 };
    let faults = [certificate, call, Fault::Cancelled, superseded];
    let mut reasons: BTreeSet<_> = faults.iter().map(Fault::reason).collect();
    assert!(
        Fault::Ticket(TicketFault::Forged)
            .reason()
            .starts_with("Ticket")
    );
    reasons.insert("Ticket.+");
    assert_eq!(asked("reason"), reasons);
    let what: BTreeSet<_> = table::WHAT.says.split([',', ' ']).collect();
    assert!(asked("what").is_subset(&what), "{what:?}");
    assert_eq!(asked("what").len(), 3);
}

#[test]
fn every_alert_says_what_it_means_and_has_a_runbook_and_tests_of_firing_and_of_silence() {
    let tests = yaml(TESTS);
    let groups = list(&tests["tests"]).iter();
    let cases: Vec<_> = groups.flat_map(|it| list(&it["alert_rule_test"])).collect();
    let mut runbooks = BTreeSet::new();
    for rule in rules() {
        let Some(alert) = rule["alert"].as_str() else {
            continue;
        };
        let text = |name: &str| rule["annotations"][name].as_str().unwrap_or_default();
        assert!(!text("summary").is_empty(), "{alert}");
        assert!(!text("description").is_empty(), "{alert}");
        let runbook = text("runbook_url").rsplit('/').next().unwrap_or_default();
        let page = read(&format!("docs/runbooks/{runbook}"));
        assert!(page.starts_with(&format!("# {alert}\n")), "{runbook}");
        assert!(
            runbooks.insert(runbook.to_owned()),
            "{runbook} is of two alerts"
        );
        let of_alert = || cases.iter().filter(|case| case["alertname"] == alert);
        assert!(
            of_alert().any(|case| !list(&case["exp_alerts"]).is_empty()),
            "no test fires {alert}"
        );
        assert!(
            of_alert().any(|case| list(&case["exp_alerts"]).is_empty()),
            "no test keeps {alert} silent"
        );
    }
    let guide = read("docs/monitoring.md");
    for rule in rules().iter().filter(|rule| rule["alert"].is_string()) {
        let text = |value: &Value| value.as_str().unwrap_or("at once").to_owned();
        let runbook = text(&rule["annotations"]["runbook_url"]);
        let line = format!(
            "| `{}` | {} | {} | [what to do](runbooks/{}) |",
            text(&rule["alert"]),
            text(&rule["labels"]["severity"]),
            text(&rule["for"]),
            runbook.rsplit('/').next().unwrap_or_default()
        );
        assert!(guide.contains(&line), "{line}");
    }
    let pages = fs::read_dir(repository("docs/runbooks")).unwrap();
    let pages: BTreeSet<_> = pages
        .map(|page| page.unwrap().file_name().into_string().unwrap())
        .collect();
    assert_eq!(pages, runbooks);
}

/// The boards of the chart, by file.
fn boards() -> Vec<(String, Value)> {
    let files = fs::read_dir(repository("charts/weft/dashboards")).unwrap();
    let boards = files.map(|file| {
        let name = file.unwrap().file_name().into_string().unwrap();
        let text = read(&format!("charts/weft/dashboards/{name}"));
        (name, serde_json::from_str(&text).unwrap())
    });
    boards.collect()
}

#[test]
fn a_boards_panels_are_questions_with_units_about_metrics_that_there_are() {
    let rules = rules();
    let recorded: BTreeSet<_> = rules
        .iter()
        .filter_map(|it| it["record"].as_str())
        .collect();
    let (mut uids, mut read) = (BTreeSet::new(), BTreeSet::new());
    for (file, board) in boards() {
        let uid = board["uid"].as_str().unwrap_or_default().to_owned();
        assert!(uids.insert(uid), "{file}: the uid is of two boards");
        assert!(
            board["title"].as_str().is_some_and(|it| it.ends_with('?')),
            "{file}"
        );
        let mut titles = BTreeSet::new();
        for panel in list(&board["panels"]) {
            let title = panel["title"].as_str().unwrap_or_default();
            assert!(title.ends_with('?'), "{file}: {title}");
            assert!(titles.insert(title), "{file}: {title} stands there twice");
            let says = panel["description"].as_str().unwrap_or_default();
            assert!(!says.is_empty(), "{file}: {title}");
            let unit = &panel["fieldConfig"]["defaults"]["unit"];
            assert!(unit.is_string(), "{file}: {title}");
            assert_eq!(
                panel["datasource"]["uid"], "${datasource}",
                "{file}: {title}"
            );
            assert!(!list(&panel["targets"]).is_empty(), "{file}: {title}");
            for target in list(&panel["targets"]) {
                let query = target["expr"].as_str().unwrap();
                for name in names(query) {
                    let is_known = recorded.contains(name) || is_declared(name);
                    assert!(is_known, "{file}: {title}: {name}");
                    read.insert(name.to_owned());
                }
            }
        }
    }
    // Who reads what an agent or an operator exports.
    let of_rules = rules.iter().filter_map(|it| it["expr"].as_str());
    read.extend(of_rules.flat_map(names).map(str::to_owned));
    let unread = table::ALL
        .iter()
        .filter(|it| it.page != Page::Paths && !read.iter().any(|name| it.has_series(name)));
    let unread: Vec<_> = unread.map(|it| it.name).collect();
    // For a look by hand.
    let by_hand = [
        "weft_packets_sent_total",
        "weft_timeouts_total",
        "weft_spurious_resends_total",
        "weft_resets_sent_total",
        "weft_connections",
        "weft_operator_build_info",
    ];
    assert_eq!(unread, by_hand);
}

#[test]
fn every_query_of_a_board_is_one_for_prometheus() {
    let mut queries = Vec::new();
    for (_, board) in boards() {
        for panel in list(&board["panels"]) {
            let targets = list(&panel["targets"]).iter();
            queries.extend(targets.map(|it| it["expr"].as_str().unwrap().to_owned()));
        }
    }
    assert!(queries.len() > 30, "{}", queries.len());
    let rules = queries.iter().enumerate();
    let rules = rules.map(|(number, query)| {
        // A variable of Grafana's own.
        let query = query.replace("$__rate_interval", "5m");
        serde_json::json!({"record": format!("query:{number}"), "expr": query})
    });
    let file = serde_json::json!({"groups": [{"name": "boards", "rules": Vec::from_iter(rules)}]});
    let directory = tempfile::tempdir().unwrap();
    // JSON is YAML.
    fs::write(directory.path().join("boards.yaml"), file.to_string()).unwrap();
    promtool(directory.path(), &["check", "rules", "boards.yaml"]);
}

#[test]
fn promtool_takes_the_rules_and_their_tests_pass() {
    // The tests read the rules from beside them.
    let directory = tempfile::tempdir().unwrap();
    for path in [RULES, TESTS] {
        let name = Path::new(path).file_name().unwrap();
        fs::copy(repository(path), directory.path().join(name)).unwrap();
    }
    promtool(directory.path(), &["check", "rules", "rules.yaml"]);
    promtool(directory.path(), &["test", "rules", "alerts.yaml"]);
}

/// What Prometheus is told on the test cluster; the files that it names are there.
#[test]
fn promtool_takes_the_configuration_of_the_test_cluster() {
    let check = ["check", "config", "--syntax-only", "prometheus.yml"];
    promtool(&repository("tests/monitoring"), &check);
}

/// Grafana's own schema: it knows each field, and misses none.
#[test]
fn grafana_s_schema_takes_every_board() {
    let mut paths = Vec::new();
    for entry in fs::read_dir(repository("charts/weft/dashboards")).unwrap() {
        paths.push(entry.unwrap().path());
    }
    assert!(paths.len() > 4, "{paths:?}");
    let said = schema(&paths);
    assert_eq!(said, "");
    let directory = tempfile::tempdir().unwrap();
    let wrong = directory.path().join("wrong.json");
    let board = fs::read_to_string(&paths[0]).unwrap();
    fs::write(&wrong, board.replace("\"gridPos\"", "\"gridPosition\"")).unwrap();
    let said = schema(&[wrong]);
    let unknown = "unexpected field 'gridPosition'";
    assert!(said.contains(unknown), "{said}");
}

/// What the schema finds wrong with boards.
fn schema(boards: &[PathBuf]) -> String {
    let run = Command::new(binaries().join("schema"))
        .args(boards)
        .output()
        .unwrap();
    String::from_utf8(run.stderr).unwrap()
}

/// Where Prometheus' programs are.
fn binaries() -> PathBuf {
    let built = Command::new(repository("hack/monitoring-binaries.sh")).output();
    let built = built.unwrap();
    let said = String::from_utf8_lossy(&built.stderr);
    assert!(built.status.success(), "{said}");
    PathBuf::from(String::from_utf8_lossy(&built.stdout).trim())
}

/// Runs it in a directory. It has to find nothing wrong.
fn promtool(directory: &Path, arguments: &[&str]) {
    let run = Command::new(binaries().join("promtool"))
        .args(arguments)
        .current_dir(directory)
        .output()
        .unwrap();
    let said = [run.stdout, run.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    assert!(run.status.success(), "promtool {arguments:?}: {said}");
}

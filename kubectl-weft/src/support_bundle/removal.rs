//! What is taken out of everything before it gets into a bundle.
//!
//! Objects are taken apart: variables, arguments and annotations go by their names. Every text, those in objects and
//! whole logs, goes by patterns. A pattern that takes out a word too many is no fault, one that leaves a secret is.

use std::{collections::BTreeMap, fmt, sync::LazyLock};

use regex::{Captures, Regex};
use serde_json::{Map, Value};

/// What stands where something was.
pub(super) const REMOVED: &str = "REMOVED";
/// The annotation in which `kubectl apply` keeps the whole object as it was applied.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";
/// The end of a name whose value is a secret, wherever names have values: in texts, fields, options and variables.
const SECRET_WORDS: &str = "(?:password|passwd|passphrase|pwd|secret|token|credentials?\
    |(?:api|access|account|private|secret)[-_]?key(?:[-_]?id)?)";
/// A private key of 16,384 bits has 12,600 characters.
const KEY_BYTES_MAX: usize = 16 << 10;

/// How often something was taken out, by what it was.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Removals(BTreeMap<&'static str, usize>);

impl Removals {
    fn add(&mut self, what: &'static str) {
        *self.0.entry(what).or_default() += 1;
    }
}

impl fmt::Display for Removals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("-");
        }
        let parts = self.0.iter();
        let parts: Vec<_> = parts
            .map(|(what, count)| format!("{count} {what}"))
            .collect();
        f.write_str(&parts.join(", "))
    }
}

/// A pattern, and what it finds. Its first group stays.
struct Rule {
    what: &'static str,
    pattern: Regex,
}

/// In their order. The first group of each, which may be empty, is what stands before the secret.
static RULES: LazyLock<Vec<Rule>> = LazyLock::new(|| {
    // In quotes, which may be escaped, as in JSON within JSON. The last quote may be cut off, and a line ends it.
    const QUOTED: &str = r#""(?:[^"\\\n]|\\.)*"?|\\"(?:[^"\\\n]|\\{2,}"?|\\[^"\\])*(?:\\")?|\\{2,}"[^"\n]*"?|'[^'\n]*'?"#;
    // Up to a blank, a quote, or a comma before one of these. A quote between letters ends nothing.
    const WORD: &str = r#"(?:[^\s"',]|,[^\s"'])+(?:["'][A-Za-z0-9](?:[^\s"',]|,[^\s"'])*)*"#;
    // A list, or what Rust prints of a type: Some("x"), Token { value: "x" }.
    let wrapped = format!(
        r#"(?:[\w:]*[(\[]|[\w:]*[ \t]?\{{)(?:{QUOTED}|[^"')\]}}\n])*(?:[^\s"',]|,[^\s"'])*"#
    );
    let value = format!("(?:{QUOTED}|{wrapped}|{WORD})");
    // How a parameter of a URL begins: `&` is \u0026 in JSON of some programs.
    const PARAMETER: &str = r"(?:\b|\\u0026|%26|%3F)";
    let rules = [
        (
            "tokens",
            r"()eyJ[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]*)*".to_owned(),
        ),
        (
            "tokens",
            r"((?i:bearer)\s+)[A-Za-z0-9._~+/=-]{6,}".to_owned(),
        ),
        (
            "tokens",
            format!(r#"((?i:authorization)\\*["']?\s*[=:]\s*)(?:{QUOTED}|(?:\w+[ \t]+)?{WORD})"#),
        ),
        (
            "tokens",
            r"()(?:gh[pousr]_|github_pat_|glpat-|hf_)[A-Za-z0-9_-]{16,}".to_owned(),
        ),
        ("access keys", r"()(?:AKIA|ASIA)[A-Z0-9]{16}\b".to_owned()),
        (
            "credentials in URLs",
            r#"([A-Za-z][A-Za-z0-9+.-]*://)[^\s/"'<>\\]*@"#.to_owned(),
        ),
        // Of a proxy, which needs no scheme.
        (
            "credentials in URLs",
            r#"((?i:proxy)\\*["']?\s*[=:]\s*\\*["']?(?:[A-Za-z][A-Za-z0-9+.-]*://)?)[^\s"'<>\\]*@"#
                .to_owned(),
        ),
        (
            "signatures of URLs",
            format!(
                r#"({PARAMETER}(?i:X-(?:Amz|Goog)-(?:Signature|Credential|Security-Token)|sig|signature|AWSAccessKeyId|GoogleAccessId)=)[^&\s"'<>\\]+"#
            ),
        ),
        (
            "values of secret names",
            format!(r#"((?i:{SECRET_WORDS})\\*["']?\s*[=:]\s*){value}"#),
        ),
        (
            "values of secret names",
            format!(r"((?i:--[\w-]*{SECRET_WORDS})[ \t]+){value}"),
        ),
        // Of a registry, in the configuration of Docker.
        (
            "values of secret names",
            format!(r#"("auth\\*"\s*:\s*)(?:{QUOTED})"#),
        ),
    ];
    let rules = rules.into_iter().map(|(what, pattern)| Rule {
        what,
        pattern: Regex::new(&pattern).expect("the patterns are constants, and tests use each"),
    });
    rules.collect()
});

/// Names of options and fields whose value is a secret: not those that name a file or an object.
static SECRET_NAME: LazyLock<Regex> = LazyLock::new(|| {
    let pattern = format!("(?i){SECRET_WORDS}$");
    Regex::new(&pattern).expect("the pattern is a constant, and tests use it")
});

/// Names of variables whose value is a secret: the words may stand anywhere.
static SECRET_VARIABLE: LazyLock<Regex> = LazyLock::new(|| {
    let pattern = format!("(?i){SECRET_WORDS}|key");
    Regex::new(&pattern).expect("the pattern is a constant, and tests use it")
});

/// What colours a log (ECMA-48), and may stand between a name and its value.
static COLOUR: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"\x1b\[[0-9;]*[A-Za-z]").expect("the pattern is a constant, and tests use it")
});

/// A text without what is secret in it.
pub(super) fn text(text: &str, removals: &mut Removals) -> String {
    let mut text = private_keys(&COLOUR.replace_all(text, ""), removals);
    for Rule { what, pattern } in RULES.iter() {
        let changed = pattern.replace_all(&text, |found: &Captures<'_>| {
            // What an earlier rule has put there.
            let secret = found[0][found[1].len()..].trim_matches(['\\', '"', '\'', '@']);
            if secret == REMOVED || secret.eq_ignore_ascii_case("bearer REMOVED") {
                return found[0].to_owned();
            }
            removals.add(what);
            let after = if *what == "credentials in URLs" {
                "@"
            } else {
                ""
            };
            format!("{}{REMOVED}{after}", &found[1])
        });
        text = changed.into_owned();
    }
    text
}

/// A text without private keys in PEM: also those that are cut off at either end, and those whose line breaks are
/// escaped.
fn private_keys(text: &str, removals: &mut Removals) -> String {
    const LABEL: &str = "PRIVATE KEY-----";
    let (mut kept, mut rest) = (String::with_capacity(text.len()), text);
    while let Some(label) = rest.find(LABEL) {
        removals.add("private keys");
        let line = rest[..label].rfind('\n').map_or(0, |at| at + 1);
        let begin = rest[line..label].rfind("-----BEGIN");
        let after = &rest[label + LABEL.len()..];
        match begin {
            Some(begin) => {
                kept += &rest[..line + begin];
                let end = after.find(LABEL).map(|end| end + LABEL.len());
                let end = end.filter(|end| *end <= KEY_BYTES_MAX);
                rest = &after[end.unwrap_or_else(|| boundary(after, KEY_BYTES_MAX))..];
            }
            // The beginning is not there.
            None => {
                kept += before_base64(&rest[..label]);
                rest = after;
            }
        }
        kept += REMOVED;
    }
    kept + rest
}

/// The last place up to `at` at which a text can be cut.
fn boundary(text: &str, at: usize) -> usize {
    let mut at = at.min(text.len());
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    at
}

/// What stands before the lines of base64 at the end of a text.
fn before_base64(text: &str) -> &str {
    let is_base64 = |c: char| c.is_ascii_alphanumeric() || "+/=-\\ ".contains(c);
    let mut end = text.rfind('\n').map_or(0, |at| at + 1);
    while let Some(before) = text[..end].strip_suffix('\n') {
        let start = before.rfind('\n').map_or(0, |at| at + 1);
        if !before[start..].chars().all(is_base64) {
            break;
        }
        end = start;
    }
    &text[..end]
}

/// Takes out of an object what is secret in it. What the API server notes of each field's writer goes as well.
pub(super) fn object(value: &mut Value, removals: &mut Removals) {
    match value {
        Value::String(string) => *string = text(string, removals),
        Value::Array(items) => items.iter_mut().for_each(|item| object(item, removals)),
        Value::Object(fields) => of_fields(fields, removals),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

fn of_fields(fields: &mut Map<String, Value>, removals: &mut Removals) {
    fields.remove("managedFields");
    if fields.get("kind").is_some_and(|kind| kind == "Secret") {
        for field in ["data", "stringData"] {
            replace(fields, field, "Secrets", removals);
        }
    }
    replace(
        fields,
        LAST_APPLIED,
        "annotations of kubectl apply",
        removals,
    );
    for (name, value) in fields {
        match (name.as_str(), &mut *value) {
            ("env", Value::Array(variables)) => {
                variables
                    .iter_mut()
                    .for_each(|variable| of_variable(variable, removals));
            }
            ("args" | "command", Value::Array(arguments)) => of_arguments(arguments, removals),
            (_, Value::String(_) | Value::Number(_) | Value::Array(_))
                if SECRET_NAME.is_match(name) =>
            {
                if *value != REMOVED {
                    removals.add("values of secret names");
                    *value = REMOVED.into();
                }
            }
            (_, Value::String(string)) => *string = named(name, string, removals),
            _ => object(value, removals),
        }
    }
}

/// The value of a name without what is secret in it, be it so by itself or beside the name.
fn named(name: &str, value: &str, removals: &mut Removals) -> String {
    let cleaned = text(&format!("{name}={value}"), removals);
    let value = cleaned
        .strip_prefix(name)
        .and_then(|rest| rest.strip_prefix('='));
    value.unwrap_or(REMOVED).to_owned()
}

fn replace(
    fields: &mut Map<String, Value>,
    name: &str,
    what: &'static str,
    removals: &mut Removals,
) {
    if let Some(value) = fields.get_mut(name)
        && *value != REMOVED
    {
        *value = REMOVED.into();
        removals.add(what);
    }
}

/// The value of a variable with such a name, and whatever comes from elsewhere.
fn of_variable(variable: &mut Value, removals: &mut Removals) {
    let Value::Object(fields) = variable else {
        return object(variable, removals);
    };
    let name = fields.get("name").and_then(Value::as_str);
    let name = name.unwrap_or_default().to_owned();
    if SECRET_VARIABLE.is_match(&name) {
        replace(fields, "value", "values of variables", removals);
    }
    replace(fields, "valueFrom", "values of variables", removals);
    for (field, value) in fields {
        match value {
            Value::String(string) if field == "value" => *string = named(&name, string, removals),
            value => object(value, removals),
        }
    }
}

/// `--password=x`, as every text; `--password`, `x` by the name before.
fn of_arguments(arguments: &mut [Value], removals: &mut Removals) {
    let mut is_secret = false;
    for argument in arguments {
        let said = argument.as_str().unwrap_or_default();
        let is_option = said.starts_with("--") && !said.contains('=');
        // A password may begin with a hyphen, and an option with one alone.
        let names_secret =
            said.starts_with('-') && !said.contains('=') && SECRET_NAME.is_match(said);
        if is_secret && !is_option {
            if said != REMOVED {
                removals.add("values of secret names");
            }
            *argument = REMOVED.into();
        } else {
            object(argument, removals);
        }
        is_secret = names_secret;
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn cleaned(dirty: &str) -> String {
        text(dirty, &mut Removals::default())
    }

    #[test]
    fn each_kind_of_secret_is_taken_out_of_a_text() {
        for (dirty, clean) in [
            (
                "a eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2ln b",
                "a REMOVED b",
            ),
            ("Bearer abcdef123456", "Bearer REMOVED"),
            (
                "authorization: Basic YWRhOmFkYQ==",
                "authorization: REMOVED",
            ),
            (
                r#"{"Authorization":"Basic YWRhOmFkYQ=="}"#,
                r#"{"Authorization":REMOVED}"#,
            ),
            ("key AKIAIOSFODNN7EXAMPLE.", "key REMOVED."),
            ("pull with ghp_0123456789abcdefghij", "pull with REMOVED"),
            ("https://ada:p@ss@host/x", "https://REMOVED@host/x"),
            (
                "https://b/x?X-Amz-Signature=ab12&X-Amz-Date=1",
                "https://b/x?X-Amz-Signature=REMOVED&X-Amz-Date=1",
            ),
            (
                r"?sv=1\u0026sig=a%2Bb\u0026se=2",
                r"?sv=1\u0026sig=REMOVED\u0026se=2",
            ),
            (
                "AWS_SECRET_ACCESS_KEY=wJalrXUtn",
                "AWS_SECRET_ACCESS_KEY=REMOVED",
            ),
            (r#"password: "two words" x"#, "password: REMOVED x"),
            (
                r#"{"password":"a \"b\" c","d":1}"#,
                r#"{"password":REMOVED,"d":1}"#,
            ),
            (
                r#"{\"token\":\"a \\\"b\\\" c\",\"d\":1}"#,
                r#"{\"token\":REMOVED,\"d\":1}"#,
            ),
            ("passwd=\"cut off", "passwd=REMOVED"),
            (r"line\neyJhbGciOiJIUzI1NiJ9.e30.", r"line\nREMOVED"),
            (
                "\u{1b}[3mtoken\u{1b}[0m\u{1b}[2m=\u{1b}[0mabc",
                "token=REMOVED",
            ),
            (
                r#"{"auths":{"r":{"auth":"YTpi"}}}"#,
                r#"{"auths":{"r":{"auth":REMOVED}}}"#,
            ),
            (
                r#"{\"client_secret\":\"two words\"}"#,
                r#"{\"client_secret\":REMOVED}"#,
            ),
            ("--s3-token=abc --log=info", "--s3-token=REMOVED --log=info"),
            (
                "run --s3-token abc --log=info",
                "run --s3-token REMOVED --log=info",
            ),
            // As Rust prints a type.
            (r#"token=Some("abc123") x"#, "token=REMOVED x"),
            (r#"\"token=Some(\"abc123\")\",1"#, r#"\"token=REMOVED",1"#),
            (
                r#"C { secret_key: SecretString("x y)z"), n: 1 }"#,
                "C { secret_key: REMOVED, n: 1 }",
            ),
            (
                r#"token: Token { value: "x y" }, n: 1"#,
                "token: REMOVED, n: 1",
            ),
            (
                r#"{"token":["abc","def"],"d":1}"#,
                r#"{"token":REMOVED,"d":1}"#,
            ),
            ("password=Tr0ub,4dor x", "password=REMOVED x"),
            ("password=Tr0ub&4;d}o]r x", "password=REMOVED x"),
            ("password=Tr0ub'4\"dor x", "password=REMOVED x"),
            ("'password=abc','b'", "'password=REMOVED','b'"),
            (
                r#"{"password": 1234,"d":1}"#,
                r#"{"password": REMOVED,"d":1}"#,
            ),
            (
                "DB_PASSPHRASE=abc DB_PWD: abc",
                "DB_PASSPHRASE=REMOVED DB_PWD: REMOVED",
            ),
            (
                "HTTPS_PROXY=ada:p/w@proxy:3128 x",
                "HTTPS_PROXY=REMOVED@proxy:3128 x",
            ),
            (
                "https_proxy=http://ada:pw@proxy:3128",
                "https_proxy=http://REMOVED@proxy:3128",
            ),
            // A quote that somebody else has put there hides one line.
            (
                "a password=\"b\nnext \"line\"",
                "a password=REMOVED\nnext \"line\"",
            ),
            ("token='a\nnext 'line'", "token=REMOVED\nnext 'line'"),
        ] {
            assert_eq!(cleaned(dirty), clean);
        }
    }

    #[test]
    fn what_is_no_secret_stays() {
        for text in [
            "node n1: certificate ends in 3 days",
            "secretRef creds of team-a cannot be read; give the operator the right",
            "tokenFile=/var/run/token tls-key=/etc/key",
            "https://example.org/a@b?x=1",
            "HTTPS_PROXY=http://proxy:3128 NO_PROXY=10.0.0.0/8",
            "registry:5000/weft/operator:0.1.0@sha256:0123",
            "weft_refused_total{reason=\"TicketForged\"} 3",
            "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----",
        ] {
            assert_eq!(cleaned(text), text);
        }
    }

    #[test]
    fn private_keys_are_taken_out_whole_or_cut_off_at_either_end() {
        let (begin, end) = (
            "-----BEGIN EC PRIVATE KEY-----",
            "-----END EC PRIVATE KEY-----",
        );
        for (dirty, clean) in [
            (
                format!("a\n{begin}\nMHcC\nAQEE\n{end}\nb"),
                "a\nREMOVED\nb".to_owned(),
            ),
            (
                format!("x=\"{begin}\\nMHcC\\n{end}\\n\" y"),
                "x=\"REMOVED\\n\" y".to_owned(),
            ),
            (format!("a\n{begin}\nMHcC\nAQ"), "a\nREMOVED".to_owned()),
            (format!("MHcC\nAQEE\n{end}\nb"), "REMOVED\nb".to_owned()),
            (
                format!("a: b\nMHcC\n{end}\nb"),
                "a: b\nREMOVED\nb".to_owned(),
            ),
            (
                format!("{begin}\nQQ\n{end} and {begin}\nRR\n{end}"),
                "REMOVED and REMOVED".to_owned(),
            ),
        ] {
            assert_eq!(cleaned(&dirty), clean);
        }
        let endless = format!("{begin}\n{}é tail", "A".repeat(KEY_BYTES_MAX - 2));
        assert_eq!(cleaned(&endless), "REMOVEDé tail");
    }

    #[test]
    fn an_object_loses_variables_arguments_and_what_kubectl_applied() {
        let mut pod = json!({
            "kind": "Pod",
            "metadata": {
                "managedFields": [1],
                "annotations": {LAST_APPLIED: "{\"a\":1}", "team": "red"},
            },
            "spec": {
                "tolerations": [{"key": "gpu", "operator": "Exists"}],
                "containers": [{
                    "env": [
                        {"name": "HF_TOKEN", "value": "abc"},
                        {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
                        {"name": "LOG", "value": "info"},
                        {"name": "DbPwd", "value": "abc"},
                        {"name": "SSL_PASSPHRASE_1", "value": "abc"},
                        {"name": "HTTPS_PROXY", "value": "ada:pw@proxy:3128"},
                    ],
                    "args": ["--log=info", "--password", "hunter2", "--token", "--verbose",
                             "--password", "-hunter2", "-token", "abc", "-v"],
                }],
            },
            "status": {"message": "https://a:b@c/d", "password": "x", "pwd": 1234, "token": ["a"],
                       "automountServiceAccountToken": true, "secret": {"secretName": "s"},
                       "proxy": "ada:pw@proxy:3128"},
        });
        let mut removals = Removals::default();
        object(&mut pod, &mut removals);
        let expected = json!({
            "kind": "Pod",
            "metadata": {"annotations": {LAST_APPLIED: REMOVED, "team": "red"}},
            "spec": {
                "tolerations": [{"key": "gpu", "operator": "Exists"}],
                "containers": [{
                    "env": [
                        {"name": "HF_TOKEN", "value": REMOVED},
                        {"name": "POD_IP", "valueFrom": REMOVED},
                        {"name": "LOG", "value": "info"},
                        {"name": "DbPwd", "value": REMOVED},
                        {"name": "SSL_PASSPHRASE_1", "value": REMOVED},
                        {"name": "HTTPS_PROXY", "value": "REMOVED@proxy:3128"},
                    ],
                    "args": ["--log=info", "--password", REMOVED, "--token", "--verbose",
                             "--password", REMOVED, "-token", REMOVED, "-v"],
                }],
            },
            "status": {"message": "https://REMOVED@c/d", "password": REMOVED, "pwd": REMOVED, "token": REMOVED,
                       "automountServiceAccountToken": true, "secret": {"secretName": "s"},
                       "proxy": "REMOVED@proxy:3128"},
        });
        assert_eq!(pod, expected);
        assert_eq!(
            removals.to_string(),
            "1 annotations of kubectl apply, 3 credentials in URLs, 6 values of secret names, 4 values of variables"
        );
        let before = removals.clone();
        object(&mut pod, &mut removals);
        assert_eq!(removals, before, "nothing is counted twice");
    }

    #[test]
    fn a_secret_that_comes_all_the_same_is_empty() {
        let mut secret = json!({"kind": "Secret", "data": {"a": "b"}, "stringData": {"c": "d"}});
        object(&mut secret, &mut Removals::default());
        let empty = json!({"kind": "Secret", "data": REMOVED, "stringData": REMOVED});
        assert_eq!(secret, empty);
    }
}

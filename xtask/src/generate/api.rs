//! From the API's types: the definitions that the chart installs, and the reference in `docs/api.md`.

use std::fmt::Write as _;

use serde_json::{Map, Value, json};
use weft_crds::Document;

const DIRECTORY: &str = "charts/weft/templates/crds";
const HEADER: &str = "# Generated from crds/ by `make generate`.\n";

/// Path and text of each definition. `helm uninstall` leaves them, and with them what users made.
pub(super) fn definitions() -> Vec<(String, String)> {
    let file = |Document {
                    name,
                    mut definition,
                }| {
        let metadata = &mut definition["metadata"];
        metadata["annotations"] = json!({"helm.sh/resource-policy": "keep"});
        let text = serde_saphyr::to_string(&definition).expect("a definition is plain data");
        assert!(
            !text.contains("{{"),
            "{name}: Helm would take this for its own"
        );
        let read: Value = serde_saphyr::from_str(&text).expect("what was written can be read");
        assert_eq!(read, definition, "{name}: YAML changed it");
        (format!("{DIRECTORY}/{name}"), format!("{HEADER}{text}"))
    };
    weft_crds::documents().into_iter().map(file).collect()
}

/// Every field of every kind: its type, its default, what it is for.
pub(super) fn reference() -> String {
    let mut out = String::new();
    for Document { definition, .. } in weft_crds::documents() {
        let spec = &definition["spec"];
        let version = &spec["versions"][0];
        let schema = &version["schema"]["openAPIV3Schema"];
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let short = spec["names"]["shortNames"][0].as_str().unwrap_or_default();
        writeln!(
            out,
            "## {}\n\n`{}/{}`, {}, `kubectl get {short}`. {}\n\n| field | type | default | |\n|---|---|---|---|",
            text(&spec["names"]["kind"]),
            text(&spec["group"]),
            text(&version["name"]),
            text(&spec["scope"]).to_lowercase(),
            one_line(&schema["description"]),
        )
        .expect("writing to a string cannot fail");
        for part in ["spec", "status"] {
            fields(&mut out, part, &schema["properties"][part]);
        }
        out.push('\n');
    }
    out
}

fn fields(out: &mut String, path: &str, schema: &Value) {
    let Some(properties) = schema["properties"].as_object() else {
        return;
    };
    let none = Vec::new();
    let required = schema["required"].as_array().unwrap_or(&none);
    for (name, property) in properties {
        let is_list = property["type"] == "array";
        let of = if is_list {
            &property["items"]
        } else {
            property
        };
        let path = format!("{path}.{name}{}", if is_list { "[]" } else { "" });
        let default = match &property["default"] {
            Value::Null if required.iter().any(|r| r == name.as_str()) => "required".to_owned(),
            // What its fields say.
            Value::Null | Value::Object(_) => String::new(),
            value => format!("`{value}`"),
        };
        writeln!(
            out,
            "| `{path}` | {}{} | {default} | {} |",
            kind(of),
            at_most(&property["maxItems"], "of them"),
            one_line(&property["description"])
        )
        .expect("writing to a string cannot fail");
        if !is_foreign(of) {
            fields(out, &path, of);
        }
    }
}

/// Types of Kubernetes itself, which its own reference describes.
fn is_foreign(schema: &Value) -> bool {
    let has = |name: &str| schema["properties"].get(name).is_some();
    has("matchExpressions") || (has("lastTransitionTime") && has("reason"))
}

fn kind(schema: &Value) -> String {
    if let Some(values) = schema["enum"].as_array() {
        let values: Vec<String> = values
            .iter()
            .filter(|v| !v.is_null())
            .map(|v| format!("`{v}`").replace('"', ""))
            .collect();
        return values.join(", ");
    }
    if is_foreign(schema) {
        let selector = schema["properties"].get("matchExpressions").is_some();
        return if selector {
            format!(
                "label selector: {} labels, {} expressions of {} values at most",
                schema["properties"]["matchLabels"]["maxProperties"],
                schema["properties"]["matchExpressions"]["maxItems"],
                schema["properties"]["matchExpressions"]["items"]["properties"]["values"]["maxItems"],
            )
        } else {
            "condition".to_owned()
        };
    }
    let mut kind = schema["type"].as_str().unwrap_or_default().to_owned();
    let empty = Map::new();
    let schema = schema.as_object().unwrap_or(&empty);
    match (schema.get("minimum"), schema.get("maximum")) {
        (Some(least), Some(most)) => write!(kind, ", {} to {}", plain(least), plain(most)),
        (Some(least), None) if *least != 0.0 => write!(kind, ", at least {}", plain(least)),
        _ => Ok(()),
    }
    .expect("writing to a string cannot fail");
    kind + &at_most(
        schema.get("maxLength").unwrap_or(&Value::Null),
        "characters",
    )
}

fn at_most(bound: &Value, what: &str) -> String {
    match bound {
        Value::Null => String::new(),
        bound => format!(", at most {bound} {what}"),
    }
}

fn plain(number: &Value) -> String {
    number.as_f64().map_or_else(String::new, |n| n.to_string())
}

fn one_line(text: &Value) -> String {
    let text = text.as_str().unwrap_or_default();
    text.split_whitespace()
        .collect::<Vec<_>>()
        .join(" ")
        .replace('|', "\\|")
}

//! How large a field may be. The API server refuses what is larger, so the operator's memory does not depend on what
//! a tenant writes into one object.

use schemars::{Schema, SchemaGenerator, json_schema};
use serde_json::{Value, json};

/// Labels, and expressions, of one selector.
const SELECTOR_TERMS_MAX: usize = 16;
/// Values of one expression.
const SELECTOR_VALUES_MAX: usize = 64;
/// Characters of a label's key: a DNS subdomain of 253, a slash, a name of 63.
const LABEL_KEY_MAX: usize = 317;
/// Characters of a label's value.
const LABEL_VALUE_MAX: usize = 63;
/// A label's key, as Kubernetes takes it.
pub(crate) const LABEL_KEY: &str =
    "^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$";
/// A label's value, as Kubernetes takes it.
const LABEL_VALUE: &str = "^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$";

/// Characters of a text in a status. The operator cuts messages at 1,000 bytes.
const STATUS_TEXT_MAX: usize = 2048;

/// A label selector, with Kubernetes' rules for keys and values. Keys of `matchLabels` have no pattern in a schema:
/// the operator checks them.
pub(crate) fn selector(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "properties": {
            "matchLabels": {
                "description": "Labels that a match has, each with this value.",
                "type": "object",
                "maxProperties": SELECTOR_TERMS_MAX,
                "additionalProperties": label_value(),
                "x-kubernetes-validations": [{
                    "rule": format!("self.all(key, key.size() <= {LABEL_KEY_MAX})"),
                    "message": format!("the key of a label has at most {LABEL_KEY_MAX} characters"),
                }],
            },
            "matchExpressions": {
                "description": "Conditions on labels. A match meets all of them.",
                "type": "array",
                "maxItems": SELECTOR_TERMS_MAX,
                "items": {
                    "type": "object",
                    "required": ["key", "operator"],
                    "properties": {
                        "key": {
                            "description": "The key of the label.",
                            "type": "string",
                            "maxLength": LABEL_KEY_MAX,
                            "pattern": LABEL_KEY,
                        },
                        "operator": {
                            "description": "In: the value is one of values. NotIn: it is none of them, or there is no such label. Exists, DoesNotExist: whether there is the label.",
                            "type": "string",
                            "enum": ["In", "NotIn", "Exists", "DoesNotExist"],
                        },
                        "values": {
                            "description": "For In and NotIn: at least one value.",
                            "type": "array",
                            "maxItems": SELECTOR_VALUES_MAX,
                            "items": label_value(),
                        },
                    },
                    "x-kubernetes-validations": [{
                        "rule": "(self.operator in ['In', 'NotIn']) == (has(self.values) && self.values.size() > 0)",
                        "message": "In and NotIn need values, Exists and DoesNotExist take none",
                    }],
                },
            },
        },
    })
}

/// The same where it may be left out.
pub(crate) fn optional_selector(generator: &mut SchemaGenerator) -> Schema {
    let mut schema = selector(generator);
    schema.insert("nullable".to_owned(), Value::Bool(true));
    schema
}

fn label_value() -> Value {
    json!({"type": "string", "maxLength": LABEL_VALUE_MAX, "pattern": LABEL_VALUE})
}

/// Bounds each text and number of a status that its type leaves open, and the texts of a condition as Kubernetes does. The API
/// server knows int32 and int64 only, and would take a larger number than a type of other width has.
pub(crate) fn bound_status(schema: &mut Value) {
    if schema["properties"].get("lastTransitionTime").is_some() {
        for (field, most) in [("type", 316), ("reason", 1024), ("message", 32768)] {
            schema["properties"][field]["maxLength"] = json!(most);
        }
        schema["properties"]["status"]["enum"] = json!(["True", "False", "Unknown"]);
        return;
    }
    let is_open = |key| schema.get(key).is_none();
    if schema["type"] == "string" && is_open("enum") && is_open("format") && is_open("maxLength") {
        schema["maxLength"] = json!(STATUS_TEXT_MAX);
    }
    let number_max = match schema["format"].as_str() {
        Some("uint16") => Some(f64::from(u16::MAX)),
        Some("uint32") => Some(f64::from(u32::MAX)),
        _ => None,
    };
    if let Some(most) = number_max.filter(|_| schema.get("maximum").is_none()) {
        schema["maximum"] = json!(most);
    }
    if let Some(properties) = schema.get_mut("properties").and_then(Value::as_object_mut) {
        properties.values_mut().for_each(bound_status);
    }
    if let Some(items) = schema.get_mut("items") {
        bound_status(items);
    }
}

//! What the values of an enum mean, in the description of each field that takes them: `kubectl explain` prints
//! nothing else of them.

use schemars::Schema;
use serde_json::Value;

/// Adds `VALUE: MEANING` for each value. The meanings are the doc comments of the enum's variants.
pub(crate) fn explain(schema: &mut Schema) {
    let values = schema.get("oneOf").and_then(Value::as_array);
    let meanings: Vec<String> = values
        .into_iter()
        .flatten()
        .filter_map(|value| {
            let (name, meaning) = (value["const"].as_str()?, value["description"].as_str()?);
            Some(format!("{name}: {meaning}"))
        })
        .collect();
    let about = schema.get("description").and_then(Value::as_str);
    let text = format!("{} {}", about.unwrap_or_default(), meanings.join(" "));
    schema.insert("description".to_owned(), Value::String(text));
}

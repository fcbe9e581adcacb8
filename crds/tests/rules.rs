//! What the API server takes and refuses, run offline: the same schema and the same rules (CEL).

use kube::CustomResourceExt as _;
use kube::core::cel::{validate_cel, validate_cel_update};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use weft_crds::{RdmaFabric, TransferJob, documents};

fn fabric() -> Value {
    json!({
        "apiVersion": "weft.dev/v1alpha1", "kind": "RdmaFabric",
        "metadata": {"name": "default"},
        "spec": {
            "nodeSelector": {"matchLabels": {"gpu": "true"}},
            "roots": [{"name": "models", "hostPath": "/var/lib/weft/models", "access": "ReadWrite"}],
        },
    })
}

fn job() -> Value {
    json!({
        "apiVersion": "weft.dev/v1alpha1", "kind": "TransferJob",
        "metadata": {"name": "minilm", "namespace": "team-a"},
        "spec": {
            "source": {"file": {"node": "n1", "root": "models", "path": "minilm/"}},
            "destinations": {"nodeSelector": {"matchLabels": {"gpu": "true"}}, "root": "models", "path": "minilm/"},
        },
    })
}

fn with(mut object: Value, pointer: &str, value: Value) -> Value {
    let (parent, key) = pointer.rsplit_once('/').expect("a pointer");
    let parent = object.pointer_mut(parent).expect("a parent");
    match parent {
        Value::Array(items) if key == "-" => items.push(value),
        _ => parent[key] = value,
    }
    object
}

fn without(mut object: Value, parent: &str, key: &str) -> Value {
    let parent = object.pointer_mut(parent).expect("a parent");
    parent.as_object_mut().expect("an object").remove(key);
    object
}

fn typed<T: DeserializeOwned>(object: Value) -> T {
    serde_json::from_value(object).expect("of this kind")
}

/// What the rules say of it; "" when they have nothing to say.
macro_rules! said {
    ($kind:ty, $object:expr) => {
        match validate_cel(&typed::<$kind>($object)) {
            Ok(()) => String::new(),
            Err(errors) => errors.to_string(),
        }
    };
}

#[test]
fn the_examples_of_the_readme_are_taken() {
    assert_eq!(said!(RdmaFabric, fabric()), "");
    for (free, namespace) in [("0", "1"), ("100%", "500Gi"), ("5%", "2T"), ("200Gi", "0")] {
        let limited = with(fabric(), "/spec/roots/0/minFree", json!(free));
        let pointer = "/spec/roots/0/bytesPerNamespace";
        assert_eq!(
            said!(RdmaFabric, with(limited, pointer, json!(namespace))),
            ""
        );
    }
    assert_eq!(said!(TransferJob, job()), "");
    // The default of 128 paths is lowered to what the ports give.
    let few_ports = with(fabric(), "/spec/ports", json!({"count": 2}));
    assert_eq!(said!(RdmaFabric, few_ports), "");
}

#[test]
fn a_fabric_that_cannot_work_is_refused_with_the_field_and_the_remedy() {
    let root =
        |name: &str, path: &str| json!({"name": name, "hostPath": path, "access": "ReadOnly"});
    let path = |path: &str| with(fabric(), "/spec/roots/0/hostPath", json!(path));
    for (object, expected) in [
        (
            with(fabric(), "/spec/roots/-", root("models", "/srv/other")),
            "two roots have the same name",
        ),
        (
            with(
                fabric(),
                "/spec/roots/-",
                root("deep", "/var/lib/weft/models/deep"),
            ),
            "one hostPath lies within another",
        ),
        (path("models"), "hostPath must be absolute"),
        (path("/var/lib/../etc"), "hostPath must be absolute"),
        (path("/var/lib/weft/"), "hostPath must be absolute"),
        (
            with(fabric(), "/spec/roots/0/minFree", json!("10 GB")),
            "minFree must be a percentage",
        ),
        (
            with(fabric(), "/spec/roots/0/minFree", json!("101%")),
            "minFree must be a percentage",
        ),
        (
            with(fabric(), "/spec/roots/0/bytesPerNamespace", json!("10%")),
            "bytesPerNamespace must be a whole number of bytes",
        ),
        (path("/etc"), "a directory of the system"),
        (path("/var/lib/kubelet/pods"), "a directory of the system"),
        (
            with(
                fabric(),
                "/spec/ports",
                json!({"first": 65530, "count": 16}),
            ),
            "beyond port 65535",
        ),
        (
            with(
                fabric(),
                "/spec/devices",
                json!({"namespaces": ["team-a", "Team_B"]}),
            ),
            "devices.namespaces must be names of namespaces",
        ),
        (
            with(fabric(), "/metadata/name", json!("a.b")),
            "metadata.name must be",
        ),
        (
            with(fabric(), "/spec/transport", json!({"congestion": "Eqds"})),
            "set spec.topology.linkMbps",
        ),
        (
            with(
                with(fabric(), "/spec/transport", json!({"paths": 200})),
                "/spec/ports",
                json!({"count": 2}),
            ),
            "lower spec.transport.paths or raise spec.ports.count",
        ),
    ] {
        let said = said!(RdmaFabric, object.clone());
        assert!(
            said.contains(expected),
            "{object}: `{said}` does not say `{expected}`"
        );
    }
}

#[test]
fn a_job_that_cannot_work_is_refused_with_the_field_and_the_remedy() {
    let both = with(job(), "/spec/destinations/nodes", json!(["n2"]));
    let neither = without(job(), "/spec/destinations", "nodeSelector");
    let path = |path: &str| with(job(), "/spec/source/file/path", json!(path));
    for (object, expected) in [
        (both, "give either nodeSelector or nodes"),
        (neither, "give either nodeSelector or nodes"),
        (
            with(job(), "/spec/source", json!({})),
            "give exactly one of: file, object",
        ),
        (path("/etc/shadow"), "path must be relative"),
        (path("../other-team/model"), "path must be relative"),
        (path("a/../../b"), "path must be relative"),
        (path("a//b"), "path must be relative"),
        (path("./a"), "path must be relative"),
        (
            with(job(), "/spec/destinations/path", json!("../x")),
            "path must be relative",
        ),
    ] {
        let said = said!(TransferJob, object.clone());
        assert!(
            said.contains(expected),
            "{object}: `{said}` does not say `{expected}`"
        );
    }
}

fn of_object(url: &str) -> Value {
    with(
        job(),
        "/spec/source",
        json!({"object": {"url": url, "secretRef": {"name": "store"}}}),
    )
}

#[test]
fn an_object_is_named_by_a_url_that_a_reader_can_use() {
    for url in [
        "s3://models",
        "s3://models/minilm/",
        "gs://models/a/b.bin",
        "az://container/a",
        "https://example.org/a/model.bin",
        "https://example.org:8443/m",
        "http://minio.storage:9000/models/m.bin",
    ] {
        assert_eq!(said!(TransferJob, of_object(url)), "", "{url}");
    }
    let (scheme, file) = ("url must be s3://BUCKET/KEY", "must name a file");
    for (url, expected) in [
        ("ftp://example.org/a", scheme),
        ("file:///etc/shadow", scheme),
        ("models/minilm", scheme),
        ("s3:///minilm", scheme),
        ("https://ada:hunter2@example.org/m", scheme),
        ("s3://models/a?versionId=1", scheme),
        ("https://example.org/a#b", scheme),
        ("https://example.org", file),
        ("https://example.org/models/", file),
    ] {
        let said = said!(TransferJob, of_object(url));
        assert!(
            said.contains(expected),
            "{url}: `{said}` does not say `{expected}`"
        );
    }
    let both = with(of_object("s3://models/a"), "/spec/source/file", {
        json!({"node": "n1", "root": "models", "path": "minilm/"})
    });
    let said = said!(TransferJob, both);
    assert!(said.contains("exactly one of: file, object"), "{said}");
    let expect = |url: &str| {
        let expect = json!({"etag": "\"v1\"", "bytes": 7});
        with(of_object(url), "/spec/source/object/expect", expect)
    };
    assert_eq!(said!(TransferJob, expect("s3://models/a")), "");
    let said = said!(TransferJob, expect("s3://models/a/"));
    assert!(said.contains("is that of one object"), "{said}");
}

#[test]
fn a_root_comes_and_goes_and_never_moves() {
    let root =
        |name: &str, path: &str| json!({"name": name, "hostPath": path, "access": "ReadWrite"});
    let roots =
        |roots: Vec<Value>| typed::<RdmaFabric>(with(fabric(), "/spec/roots", roots.into()));
    let old = roots(vec![root("models", "/srv/a"), root("data", "/srv/b")]);
    for well in [
        vec![root("models", "/srv/a")],
        vec![
            root("data", "/srv/b"),
            root("models", "/srv/a"),
            root("more", "/srv/c"),
        ],
        vec![root("models2", "/srv/a"), root("data", "/srv/b")],
    ] {
        validate_cel_update(&roots(well), &old).unwrap();
    }
    let moved = roots(vec![root("models", "/srv/c"), root("data", "/srv/b")]);
    let said = validate_cel_update(&moved, &old).unwrap_err().to_string();
    assert!(said.contains("hostPath of a root is immutable"), "{said}");
}

#[test]
fn what_is_under_way_cannot_be_changed_but_stopped() {
    let old: TransferJob = typed(job());
    for (pointer, value, expected) in [
        (
            "/spec/source/file/path",
            json!("other/"),
            "spec.source is immutable",
        ),
        (
            "/spec/destinations/path",
            json!("other/"),
            "spec.destinations is immutable",
        ),
        (
            "/spec/source/file/scope",
            json!("Shared"),
            "spec.source is immutable",
        ),
        (
            "/spec/destinations/scope",
            json!("Shared"),
            "spec.destinations is immutable",
        ),
        ("/spec/strategy", json!("Chain"), "are immutable"),
        ("/spec/overwrite", json!("Never"), "are immutable"),
        (
            "/spec/verification",
            json!({"algorithm": "Xxh3"}),
            "are immutable",
        ),
    ] {
        let new: TransferJob = typed(with(job(), pointer, value));
        let said = validate_cel_update(&new, &old)
            .expect_err(pointer)
            .to_string();
        assert!(
            said.contains(expected),
            "{pointer}: `{said}` does not say `{expected}`"
        );
    }
    let old_object: TransferJob = typed(of_object("s3://models/a"));
    for changed in [
        of_object("s3://models/b"),
        with(
            of_object("s3://models/a"),
            "/spec/source/object/secretRef",
            json!({"name": "other"}),
        ),
    ] {
        let new: TransferJob = typed(changed);
        let said = validate_cel_update(&new, &old_object).unwrap_err();
        assert!(said.to_string().contains("spec.source is immutable"));
    }
    for (pointer, value) in [
        ("/spec/suspend", json!(true)),
        ("/spec/ttlSecondsAfterFinished", json!(60)),
        ("/spec/deadlineSeconds", json!(60)),
        ("/spec/backoffLimit", json!(0)),
    ] {
        let new: TransferJob = typed(with(job(), pointer, value));
        validate_cel_update(&new, &old).expect(pointer);
    }
}

#[test]
fn defaults_are_in_the_schema_and_are_those_of_the_types() {
    let schema = |crd: Value| crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"].clone();
    let fabric = schema(serde_json::to_value(RdmaFabric::crd()).expect("JSON"));
    let spec = &fabric["properties"]["spec"]["properties"];
    assert_eq!(spec["transport"]["default"]["paths"], 128);
    assert_eq!(spec["ports"]["properties"]["first"]["default"], 7500);
    assert_eq!(
        spec["roots"]["items"]["properties"]["scope"]["default"],
        "PerNamespace"
    );
    assert_eq!(
        spec["roots"]["items"]["properties"]["minFree"]["default"],
        "10%"
    );
    let job = schema(serde_json::to_value(TransferJob::crd()).expect("JSON"));
    let spec = &job["properties"]["spec"]["properties"];
    assert_eq!(spec["backoffLimit"]["default"], 6);
    assert_eq!(spec["strategy"]["default"], "Auto");
    let file = &spec["source"]["properties"]["file"];
    for end in [file, &spec["destinations"]] {
        assert_eq!(end["properties"]["scope"]["default"], "PerNamespace");
    }
    assert_eq!(spec["verification"]["default"]["algorithm"], "Blake3");
}

#[test]
fn what_kubectl_prints_in_columns_is_in_the_status() {
    for crd in weft_crds::documents() {
        let version = &crd.definition["spec"]["versions"][0];
        let properties = &version["schema"]["openAPIV3Schema"]["properties"];
        for column in version["additionalPrinterColumns"]
            .as_array()
            .expect("columns")
        {
            let path = column["jsonPath"].as_str().expect("a path");
            if path.starts_with(".metadata") {
                continue;
            }
            let mut at = properties.clone();
            for name in path.split(['.', '[']).filter(|part| !part.is_empty()) {
                if name.starts_with("?(@") || name.starts_with("type==") {
                    break;
                }
                let fields = if at.get("properties").is_some() {
                    at["properties"].clone()
                } else {
                    at
                };
                at = fields[name].clone();
                assert!(
                    !at.is_null(),
                    "{}: no field {name} of column {path}",
                    crd.name
                );
            }
        }
    }
}

/// The fields below a schema that a tenant, or an agent, could fill without end.
fn unbounded(path: &str, schema: &Value, found: &mut Vec<String>) {
    let has = |key: &str| schema.get(key).is_some();
    let is_bounded = match schema["type"].as_str() {
        Some("string") => has("maxLength") || has("enum") || has("format"),
        Some("array") => has("maxItems"),
        Some("object") => has("properties") || has("maxProperties"),
        Some(_) => true,
        None => has("x-kubernetes-int-or-string"),
    };
    if !is_bounded {
        found.push(path.to_owned());
    }
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        unbounded(&format!("{path}.{name}"), property, found);
    }
    for part in ["items", "additionalProperties"] {
        if has(part) {
            unbounded(&format!("{path}[]"), &schema[part], found);
        }
    }
}

#[test]
fn every_list_map_and_text_has_a_bound() {
    let mut found = Vec::new();
    for document in documents() {
        let schema = &document.definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
        for part in ["spec", "status"] {
            let path = format!("{}: {part}", document.name);
            unbounded(&path, &schema["properties"][part], &mut found);
        }
    }
    assert_eq!(found, Vec::<String>::new());
    let open = json!({"type": "object", "properties": {
        "text": {"type": "string"}, "map": {"type": "object", "additionalProperties": {"type": "string", "maxLength": 1}},
        "list": {"type": "array", "items": {"type": "string"}},
    }});
    unbounded("x", &open, &mut found);
    assert_eq!(found, ["x.list", "x.list[]", "x.map", "x.text"]);
}

#[test]
fn a_selector_that_matches_nothing_for_its_form_is_refused() {
    let selector = "/spec/destinations/nodeSelector";
    let expression = |operator: &str, values: Value| json!({"matchExpressions": [{"key": "gpu", "operator": operator, "values": values}]});
    for (good, operator, values) in [
        (true, "In", json!(["a"])),
        (true, "Exists", json!([])),
        (false, "In", json!([])),
        (false, "NotIn", json!([])),
        (false, "Exists", json!(["a"])),
    ] {
        let said = said!(
            TransferJob,
            with(job(), selector, expression(operator, values))
        );
        assert_eq!(said.is_empty(), good, "{operator}: {said}");
        assert!(good || said.contains("need values"), "{said}");
    }
    let key = "k".repeat(318);
    let said = said!(
        TransferJob,
        with(job(), selector, json!({"matchLabels": {key: "v"}}))
    );
    assert!(said.contains("at most 317 characters"), "{said}");
}

/// Calls `check` with the path and the schema of each field.
fn each_field(path: &str, schema: &Value, check: &mut impl FnMut(&str, &Value)) {
    check(path, schema);
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        each_field(&format!("{path}.{name}"), field, check);
    }
    for part in ["items", "additionalProperties"] {
        if let Some(part) = schema.get(part) {
            each_field(path, part, check);
        }
    }
}

/// One object with a number that its type cannot hold would end the operator's watch of its whole kind.
#[test]
fn every_number_that_the_api_server_takes_fits_its_type() {
    let mut numbers = 0;
    for document in documents() {
        let schema = &document.definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
        each_field(&document.name, schema, &mut |path, field| {
            if field["type"] != "integer" {
                return;
            }
            numbers += 1;
            let most = match field["format"].as_str() {
                Some("uint8") => u32::from(u8::MAX),
                Some("uint16") => u32::from(u16::MAX),
                Some("uint32") => u32::MAX,
                // The API server itself refuses a number that is none.
                Some("int64") => return,
                other => panic!("{path}: say here what a number of format {other:?} can hold"),
            };
            let bound = |key: &str| {
                let bound = field[key].as_f64();
                bound.unwrap_or_else(|| panic!("{path} has no {key}"))
            };
            assert!(bound("minimum") >= 0.0, "{path}");
            assert!(bound("maximum") <= f64::from(most), "{path}");
        });
    }
    assert!(numbers >= 50, "{numbers} numbers");
}

#[test]
fn kubectl_explain_says_what_each_value_of_an_enum_does() {
    let mut enums = 0;
    for document in documents() {
        let schema = &document.definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
        each_field(&document.name, schema, &mut |path, field| {
            let Some(values) = field["enum"].as_array() else {
                return;
            };
            // A condition is Kubernetes' own, and its description names the values.
            if path.ends_with("conditions.status") {
                return;
            }
            enums += 1;
            let text = field["description"].as_str().unwrap_or_default();
            for value in values.iter().filter_map(Value::as_str) {
                let is_explained = text
                    .split_whitespace()
                    .any(|word| word.trim_end_matches([':', ',']) == value && word != value);
                assert!(is_explained, "{path}: {value} is not explained in `{text}`");
            }
        });
    }
    assert!(enums >= 15, "{enums} enums");
}

#[test]
fn a_digest_has_the_length_of_its_algorithm() {
    let verified = |algorithm: &str, digits: usize| {
        let verification = json!({"algorithm": algorithm, "expect": "a".repeat(digits)});
        said!(TransferJob, with(job(), "/spec/verification", verification))
    };
    assert_eq!(verified("Blake3", 64), "");
    assert_eq!(verified("Xxh3", 32), "");
    for wrong in [verified("Blake3", 32), verified("Xxh3", 64)] {
        assert!(wrong.contains("expect has 64 digits for Blake3"), "{wrong}");
    }
}

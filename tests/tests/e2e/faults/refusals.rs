//! What is asked for that may not be: the answer names the field and the remedy.

use serde_json::{Value, json};

use crate::harness::{Harness, TEAM, job};

/// A user who may edit in the tenant's namespace, and nothing else.
const USER: &str = "mallory";

pub(super) fn an_edit_of_an_immutable_field_is_refused_and_the_job_completes(
    harness: &mut Harness,
) {
    let running = harness.begin("edited");
    for (field, patch) in [
        (
            "spec.source",
            json!({"source": {"file": {"path": "other"}}}),
        ),
        (
            "spec.destinations",
            json!({"destinations": {"path": "other"}}),
        ),
        ("spec.strategy", json!({"strategy": "Direct"})),
        ("spec.overwrite", json!({"overwrite": "Always"})),
    ] {
        let patch = json!({"spec": patch}).to_string();
        let said = harness.cluster.refused(&[
            "patch",
            "tj",
            "edited",
            "--namespace",
            TEAM,
            "--type=merge",
            "--patch",
            &patch,
        ]);
        assert!(said.contains(field) && said.contains("immutable"), "{said}");
    }
    harness.assert_fell_within(&running);
    harness.completes(&running, "four edits of the spec refused");
}

/// What the API server says to the user who makes a job, if it says no.
fn made_by_user(harness: &Harness, job: &Value) -> Result<(), String> {
    let file = harness.cluster.scratch.path().join("job.json");
    std::fs::write(&file, job.to_string()).unwrap();
    let file = file.display().to_string();
    let create = ["create", "-f", &file, "--as", USER];
    let made = harness.cluster.inner.kubectl(&create);
    made.map(drop).map_err(|error| error.to_string())
}

fn bind(harness: &Harness, role: &str) {
    let (user, role) = (format!("--user={USER}"), format!("--clusterrole={role}"));
    let name = role.replace(['=', '-'], "");
    harness.cluster.kubectl(&[
        "create",
        "rolebinding",
        &name,
        &role,
        &user,
        "--namespace",
        TEAM,
    ]);
}

pub(super) fn a_shared_root_needs_a_permission(harness: &mut Harness) {
    let mut wanted = job(TEAM, "shared", &["node1"]);
    wanted["spec"]["source"]["file"]["root"] = json!("library");
    wanted["spec"]["source"]["file"]["scope"] = json!("Shared");
    let no_role = made_by_user(harness, &wanted).unwrap_err();
    assert!(
        no_role.contains("transferjobs.weft.dev is forbidden"),
        "{no_role}"
    );
    // Who may edit in a namespace may make jobs there, …
    bind(harness, "edit");
    let refused = made_by_user(harness, &wanted).unwrap_err();
    for part in [
        "spec.source.file.scope",
        "Shared",
        "use on rdmafabrics in namespace team-a",
        "weft-use-shared-roots",
    ] {
        assert!(refused.contains(part), "{part}: {refused}");
    }
    let mut own = wanted.clone();
    own["spec"]["source"]["file"] = json!({"node": "node0", "root": "models", "path": "shared"});
    made_by_user(harness, &own).unwrap();
    harness
        .cluster
        .kubectl(&["delete", "tj", "shared", "--namespace", TEAM]);
    // … and one that names a Shared root without the word waits, as one does that is older than the
    // root's scope.
    let mut silent = wanted.clone();
    silent["spec"]["source"]["file"]["scope"] = json!("PerNamespace");
    made_by_user(harness, &silent).unwrap();
    harness.cluster.kubectl(&[
        "wait",
        "tj/shared",
        "--namespace",
        TEAM,
        "--for=jsonpath={.status.phase}=Waiting",
        "--timeout=30s",
    ]);
    let message = ["get", "tj", "shared", "--namespace", TEAM];
    let message = [&message[..], &["-o=jsonpath={.status.message}"]].concat();
    let message = harness.cluster.kubectl(&message);
    assert!(message.contains("spec.source.file.scope"), "{message}");
    harness
        .cluster
        .kubectl(&["delete", "tj", "shared", "--namespace", TEAM]);
    // The word is free once that is granted.
    bind(harness, "weft-use-shared-roots");
    made_by_user(harness, &wanted).unwrap();
    harness
        .cluster
        .kubectl(&["delete", "tj", "shared", "--namespace", TEAM]);
    println!(
        "  refused without a role, with edit only; waits without the word; accepted with weft-use-shared-roots"
    );
}

pub(super) fn a_path_that_leaves_its_root_is_refused(harness: &mut Harness) {
    let paths = ["../team-b/model", "/etc", "a/../../b", "a/./b", "a//b"];
    for path in paths {
        for (at, field) in [
            ("/spec/source/file/path", "spec.source.file.path"),
            ("/spec/destinations/path", "spec.destinations.path"),
        ] {
            let mut wanted = job(TEAM, "traversal", &["node1"]);
            *wanted.pointer_mut(at).unwrap() = json!(path);
            let refused = harness.cluster.inner.apply(&wanted.to_string());
            let refused = refused.unwrap_err().to_string();
            assert!(refused.contains(field), "{path}: {refused}");
            assert!(
                refused.contains("relative to the root"),
                "{path}: {refused}"
            );
        }
    }
    println!("  {} paths refused at source and destination", paths.len());
}

/// A root shows a job its own namespace's directory; a link out of it is not followed.
pub(super) fn a_job_cannot_read_the_files_of_another_namespace(harness: &mut Harness) {
    let theirs = harness.directory("node0", "team-z", "secret");
    std::fs::create_dir_all(&theirs).unwrap();
    std::fs::write(theirs.join("key"), "theirs").unwrap();
    let ours = harness.directory("node0", TEAM, "");
    std::fs::create_dir_all(&ours).unwrap();
    std::os::unix::fs::symlink("../team-z/secret", ours.join("link")).unwrap();
    for path in ["team-z/secret", "link", "link/key"] {
        let mut wanted = job(TEAM, "theirs", &["node1"]);
        wanted["spec"]["source"]["file"]["path"] = json!(path);
        wanted["spec"]["backoffLimit"] = json!(0);
        harness.cluster.apply(&wanted);
        let failed = harness.until_phase(TEAM, "theirs", weft_crds::Phase::Failed);
        let message = failed.status.unwrap_or_default().message;
        assert!(
            message.contains("node0") && message.contains(path),
            "{message}"
        );
        println!("  {path}: {message}");
        harness
            .cluster
            .kubectl(&["delete", "tj", "theirs", "--namespace", TEAM]);
        assert!(!harness.directory("node1", TEAM, "theirs").exists());
    }
}

//! Between the control API's messages and the types that the agent works with. Everything that
//! comes from outside is checked here, once; the error names the field.

use weft_core::connection::Settings;
use weft_engine::RemoteEnd;
use weft_proto::agent::v1 as proto;

use crate::fault::Fault;
use crate::files::copies::CopyJob;
use crate::files::{Algorithm, Digest, JobUid, Overwrite};

/// A field that must be there.
pub(crate) fn required<T>(field: Option<T>, name: &str) -> Result<T, Fault> {
    field.ok_or_else(|| Fault::bad(name, "is missing"))
}

/// The reference of an attempt, checked.
pub(crate) fn attempt_ref(attempt: Option<proto::AttemptRef>) -> Result<proto::AttemptRef, Fault> {
    let attempt = required(attempt, "attempt")?;
    uid(&attempt)?;
    if attempt.number == 0 {
        return Err(Fault::bad("attempt.number", "must be 1 or more"));
    }
    Ok(attempt)
}

/// A job's UID as file names carry it.
pub(crate) fn uid(attempt: &proto::AttemptRef) -> Result<JobUid, Fault> {
    attempt
        .uid
        .parse()
        .map_err(|error| Fault::bad("attempt.uid", format!("{error}")))
}

/// The job that a copy is recorded for.
pub(crate) fn copy_job(uid: &str, name: proto::JobName) -> Result<CopyJob, Fault> {
    let proto::JobName {
        namespace,
        name,
        namespace_uid,
    } = name;
    let allowed = |c: u8| matches!(c, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.');
    for (part, text) in [("namespace", &namespace), ("name", &name)] {
        if !(1..=253).contains(&text.len()) || !text.bytes().all(allowed) {
            let problem = format!(
                "{part} {:?} is not 1 to 253 lower-case letters, digits, '-' and '.'",
                text.chars().take(253).collect::<String>()
            );
            return Err(Fault::bad("job_name", problem));
        }
    }
    Ok(CopyJob {
        uid: uid.to_owned(),
        namespace,
        name,
        namespace_uid,
    })
}

/// A hash algorithm.
pub(crate) fn algorithm(value: proto::Algorithm) -> Result<Algorithm, Fault> {
    match value {
        proto::Algorithm::Blake3 => Ok(Algorithm::Blake3),
        proto::Algorithm::Xxh3 => Ok(Algorithm::Xxh3),
        proto::Algorithm::Unspecified => Err(Fault::bad(
            "verification.algorithm",
            "must be BLAKE3 or XXH3",
        )),
    }
}

/// A hash algorithm, for the API.
pub(crate) fn algorithm_to_proto(value: Algorithm) -> proto::Algorithm {
    match value {
        Algorithm::Blake3 => proto::Algorithm::Blake3,
        Algorithm::Xxh3 => proto::Algorithm::Xxh3,
    }
}

/// How to verify, and the digest that is expected, if one is.
pub(crate) fn verification(
    value: Option<proto::Verification>,
) -> Result<(Algorithm, Option<Digest>), Fault> {
    let value = required(value, "verification")?;
    let algorithm = algorithm(value.algorithm())?;
    if value.expect.is_empty() {
        return Ok((algorithm, None));
    }
    let digest: Digest = value
        .expect
        .parse()
        .map_err(|error| Fault::bad("verification.expect", format!("{error}")))?;
    if digest.algorithm() != algorithm {
        let problem = format!("is not a digest of {algorithm}, which verification.algorithm says");
        return Err(Fault::bad("verification.expect", problem));
    }
    Ok((algorithm, Some(digest)))
}

/// What to do with files that are there.
pub(crate) fn overwrite(value: proto::Overwrite) -> Result<Overwrite, Fault> {
    match value {
        proto::Overwrite::IfDifferent => Ok(Overwrite::IfDifferent),
        proto::Overwrite::Never => Ok(Overwrite::Never),
        proto::Overwrite::Always => Ok(Overwrite::Always),
        proto::Overwrite::Unspecified => Err(Fault::bad(
            "overwrite",
            "must be IF_DIFFERENT, NEVER or ALWAYS",
        )),
    }
}

/// The other end of a connection, of the node that has authenticated itself as `owner`, as it describes
/// itself; its settings must be ours.
pub(crate) fn connection_end(
    owner: &str,
    end: Option<proto::ConnectionEnd>,
    ours: &Settings,
) -> Result<RemoteEnd, Fault> {
    let (end, send_secret) = weft_connection_end::from_proto(end)
        .map_err(|error| Fault::bad(error.field, error.problem))?;
    if let Some(difference) = ours.difference(&end.settings) {
        return Err(Fault::SettingsDiffer { difference });
    }
    Ok(RemoteEnd::new(owner.into(), &end, send_secret))
}

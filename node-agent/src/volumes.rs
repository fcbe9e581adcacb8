//! Serves the node's driver of volumes: which verified copy a pod may mount, by `weft.volumes.v1` at a Unix socket.
//!
//! The driver says which namespace a pod has. The agent knows namespaces and jobs by their UIDs, and asks the operator for them.

mod comparisons;

use std::fmt::Debug;
use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::Path;
use std::sync::Arc;

use tokio::net::UnixListener;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::Server;
use tonic::{Request, Response, Status};
use weft_proto::operator::v1::FindJobResponse;
use weft_proto::volumes::v1::use_copy_request::Copy;
use weft_proto::volumes::v1::volumes_server::{Volumes, VolumesServer};
use weft_proto::volumes::v1::{UseCopyRequest, UseCopyResponse};
use weft_proto::volumes::{IN_USE, SOCKET, is_id};

use crate::control::attempt_registry::AttemptRegistry;
use crate::files::volumes::{CopyInUse, NotShown, PodNamespace, WantedCopy, use_copy};
use crate::files::{FileError, Root, RootPath};
use crate::volumes::comparisons::{Comparisons, Wanted};

/// Of the directory, so that only its owner reaches the socket.
const OWNER_ONLY: u32 = 0o700;
/// Of a name in Kubernetes.
const NAME_BYTES_MAX: usize = 253;

/// Asks for the namespace and the job of a pod.
#[tonic::async_trait]
pub(crate) trait FindJob: Debug + Send + Sync {
    /// Or why that is not known.
    async fn find_job(&self, namespace: &str, name: &str) -> Result<FindJobResponse, String>;
}

/// Answers the driver.
#[derive(Debug, Clone)]
pub(crate) struct VolumeService {
    registry: Arc<AttemptRegistry>,
    operator: Arc<dyn FindJob>,
    comparisons: Comparisons,
}

/// Makes the directory, and the socket in it.
pub(crate) fn bind(directory: &Path) -> io::Result<UnixListener> {
    let mut builder = DirBuilder::new();
    builder.recursive(true).mode(OWNER_ONLY);
    builder.create(directory.join(IN_USE))?;
    fs::set_permissions(directory, Permissions::from_mode(OWNER_ONLY))?;
    let socket = directory.join(SOCKET);
    // Of an earlier agent.
    match fs::remove_file(&socket) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => UnixListener::bind(socket),
    }
}

/// How many volumes show copies now.
pub(crate) fn count_in_use(directory: &Path) -> u32 {
    // No driver has served a volume where there is no directory.
    let entries = fs::read_dir(directory.join(IN_USE)).into_iter().flatten();
    let names = entries.flatten().map(|entry| entry.file_name());
    // One with a dot is being written.
    let volumes = names.filter(|name| !name.as_encoded_bytes().starts_with(b"."));
    u32::try_from(volumes.count()).unwrap_or(u32::MAX)
}

impl VolumeService {
    /// By the directory of [`bind`].
    pub(crate) fn new(
        registry: Arc<AttemptRegistry>,
        operator: Arc<dyn FindJob>,
        directory: &Path,
    ) -> Self {
        Self {
            registry,
            operator,
            comparisons: Comparisons::new(directory.join(IN_USE)),
        }
    }

    /// Serves until it is dropped.
    pub(crate) async fn serve(self, listener: UnixListener) {
        let served = Server::builder()
            .add_service(VolumesServer::new(self))
            .serve_with_incoming(UnixListenerStream::new(listener));
        if let Err(error) = served.await {
            tracing::error!("no volume is mounted any more: {error}");
        }
    }

    async fn find(&self, request: UseCopyRequest) -> Result<CopyInUse, Status> {
        let UseCopyRequest {
            volume,
            namespace,
            copy,
        } = request;
        if !is_id(&volume) {
            return Err(Status::invalid_argument("volume: is no id of a volume"));
        }
        let copy = copy.ok_or_else(|| Status::invalid_argument("copy: name a job or a place"))?;
        check(&copy)?;
        let name = match &copy {
            Copy::Job(name) => name.as_str(),
            Copy::Place(_) => "",
        };
        let known = self.operator.find_job(&namespace, name).await;
        let known = known.map_err(|problem| {
            let text = format!(
                "the pod waits for the operator to say which namespace is {namespace}: {problem}"
            );
            Status::unavailable(text)
        })?;
        if known.namespace_uid.is_empty() {
            return Err(Status::unavailable(
                "the operator names no UID of the namespace",
            ));
        }
        let (wanted, roots) = self.wanted(&namespace, &copy, &known)?;
        let pod = PodNamespace {
            name: namespace.clone(),
            uid: known.namespace_uid.clone(),
        };
        match self.look(roots, volume, pod, wanted).await? {
            Some(found) => Ok(found),
            None => Err(self.absent(&namespace, &copy, &known)),
        }
    }

    /// What is to be looked for, and where.
    fn wanted(
        &self,
        namespace: &str,
        copy: &Copy,
        known: &FindJobResponse,
    ) -> Result<(WantedCopy, Vec<Arc<Root>>), Status> {
        let roots = self.registry.reloadable_config().roots.clone();
        match copy {
            Copy::Job(name) => {
                let job = known.job.clone().unwrap_or_default();
                let name = name.clone();
                Ok((
                    WantedCopy::Job {
                        name,
                        uids: job.uids,
                    },
                    roots,
                ))
            }
            Copy::Place(place) => {
                let refused = |error: FileError| {
                    Status::invalid_argument(format!("volumeAttributes.path: {error}"))
                };
                let directory = RootPath::parse(namespace).map_err(refused)?;
                let path = directory.join(&place.path).map_err(refused)?;
                let root = roots.iter().find(|root| root.name() == place.root);
                let root = root.cloned().ok_or_else(|| {
                    let names: Vec<&str> = roots.iter().map(|root| root.name()).collect();
                    let text = format!(
                        "volumeAttributes.root: node {} has no root {:?}: choose one of {}",
                        self.registry.config.node,
                        place.root,
                        names.join(", ")
                    );
                    Status::failed_precondition(text)
                })?;
                Ok((WantedCopy::Path(path), vec![root]))
            }
        }
    }

    /// Looks through the roots, on a thread that may block.
    async fn look(
        &self,
        roots: Vec<Arc<Root>>,
        volume: String,
        pod: PodNamespace,
        wanted: WantedCopy,
    ) -> Result<Option<CopyInUse>, Status> {
        let request = Wanted {
            volume: volume.clone(),
            pod: pod.clone(),
            copy: wanted.clone(),
        };
        let compare = move || {
            let mut not_shown = None;
            for root in roots {
                match use_copy(&root, &volume, &pod, &wanted) {
                    Ok(None) => {}
                    // Another root may have a copy that can be shown.
                    Err(error) => not_shown = not_shown.or(Some(error)),
                    Ok(found) => return Ok(found),
                }
            }
            not_shown.map_or(Ok(None), |error| Err(refusal(&error)))
        };
        self.comparisons.run(request, compare).await
    }

    /// What the pod waits for.
    fn absent(&self, namespace: &str, copy: &Copy, known: &FindJobResponse) -> Status {
        let node = &self.registry.config.node;
        let text = match (copy, &known.job) {
            (Copy::Job(name), None) => format!(
                "the pod waits for TransferJob {name}, which namespace {namespace} does not have, and node {node} has no verified copy \
                 of one of that name: make the job"
            ),
            (Copy::Job(name), Some(job)) => format!(
                "the pod waits for the verified copy of TransferJob {name} at node {node}; the job is {}: see kubectl describe tj/{name} \
                 -n {namespace}, and whether its destinations have this node",
                job.phase
            ),
            (Copy::Place(place), _) => format!(
                "the pod waits for a verified copy at path {:?} of root {:?} at node {node}, which a TransferJob of namespace {namespace} \
                 makes",
                place.path, place.root
            ),
        };
        Status::unavailable(text)
    }
}

/// Refuses what no job can have, before the operator is asked: a pod would wait for it for ever.
fn check(copy: &Copy) -> Result<(), Status> {
    match copy {
        Copy::Job(name) if !is_job_name(name) => Err(Status::invalid_argument(format!(
            "volumeAttributes.job: {name:?} is no name of a TransferJob: give its metadata.name, 1 to 253 lower-case letters, digits, \
             \"-\" and \".\", as kubectl get tj shows it"
        ))),
        // An empty path is a source's whole directory of the namespace.
        Copy::Place(place) if !place.path.is_empty() && has_no_name(&place.path) => {
            Err(Status::invalid_argument(format!(
                "volumeAttributes.path: {:?} names no copy: give spec.destinations.path of a TransferJob, for example minilm",
                place.path
            )))
        }
        Copy::Job(_) | Copy::Place(_) => Ok(()),
    }
}

/// As the API server names objects (RFC 1123, a subdomain).
fn is_job_name(name: &str) -> bool {
    let is_letter = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let is_label = |label: &str| {
        let bytes = label.as_bytes();
        bytes.first().copied().is_some_and(is_letter)
            && bytes.last().copied().is_some_and(is_letter)
            && bytes.iter().all(|byte| is_letter(*byte) || *byte == b'-')
    };
    name.len() <= NAME_BYTES_MAX && name.split('.').all(is_label)
}

/// Whether a path is relative and stays where it begins, as `.` does.
fn has_no_name(path: &str) -> bool {
    !path.starts_with('/') && path.split('/').all(|name| matches!(name, "" | "."))
}

fn refusal(error: &NotShown) -> Status {
    match error {
        NotShown::NotOwn(_) | NotShown::NoHostPath(_) => {
            Status::failed_precondition(error.to_string())
        }
        _ => Status::unavailable(error.to_string()),
    }
}

#[tonic::async_trait]
impl Volumes for VolumeService {
    async fn use_copy(
        &self,
        request: Request<UseCopyRequest>,
    ) -> Result<Response<UseCopyResponse>, Status> {
        let request = request.into_inner();
        let (volume, namespace) = (request.volume.clone(), request.namespace.clone());
        let found = self.find(request).await?;
        tracing::info!(
            volume,
            namespace,
            path = found.path.as_str(),
            "a pod mounts a copy"
        );
        let root_directory = found.host_path.to_str().map(str::to_owned);
        Ok(Response::new(UseCopyResponse {
            root_directory: root_directory
                .ok_or_else(|| Status::unavailable("the root's path is not UTF-8"))?,
            path: found.path.as_str().to_owned(),
            device: found.device,
            inode: found.inode,
        }))
    }
}

#[cfg(test)]
mod tests {
    use tonic::Code;
    use weft_proto::volumes::v1::Place;

    use super::*;

    #[test]
    fn what_no_job_can_have_is_refused_by_its_attribute_and_its_value() {
        let job = |name: &str| Copy::Job(name.to_owned());
        let at = |path: &str| {
            Copy::Place(Place {
                root: "models".to_owned(),
                path: path.to_owned(),
            })
        };
        let long = "a".repeat(NAME_BYTES_MAX + 1);
        for (copy, field) in [
            (job("MiniLM"), "volumeAttributes.job: \"MiniLM\""),
            (job(""), "volumeAttributes.job"),
            (job("-a"), "volumeAttributes.job"),
            (job("a..b"), "volumeAttributes.job"),
            (job("team-a/minilm"), "volumeAttributes.job"),
            (job(&long), "volumeAttributes.job"),
            (at("."), "volumeAttributes.path: \".\""),
            (at("./"), "volumeAttributes.path"),
        ] {
            let refused = check(&copy).unwrap_err();
            assert_eq!(refused.code(), Code::InvalidArgument);
            assert!(refused.message().starts_with(field), "{refused}");
            assert!(refused.message().contains(": give "), "{refused}");
        }
        for copy in [
            job("minilm"),
            job("3.mini-lm"),
            at(""),
            at("minilm"),
            at("./m/"),
        ] {
            assert!(check(&copy).is_ok(), "{copy:?}");
        }
    }
}

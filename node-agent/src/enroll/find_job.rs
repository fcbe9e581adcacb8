//! Asks the operator for the namespace and the job of a pod that mounts a copy.

use weft_proto::operator::v1::{FindJobRequest, FindJobResponse};

use crate::enroll::queries::OperatorQueries;
use crate::volumes::FindJob;

#[tonic::async_trait]
impl FindJob for OperatorQueries {
    async fn find_job(&self, namespace: &str, name: &str) -> Result<FindJobResponse, String> {
        let request = FindJobRequest {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        };
        let asked = self.ask(|mut operator| async move { operator.find_job(request).await });
        asked.await.map_err(|error| error.to_string())
    }
}

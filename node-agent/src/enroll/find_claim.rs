//! Asks the operator which devices of this node a ResourceClaim has been allocated.

use tonic::Status;
use weft_proto::claims::v1::{FindClaimRequest, FindClaimResponse};

use crate::devices::claims::FindClaim;
use crate::enroll::error::OperatorError;
use crate::enroll::queries::OperatorQueries;

impl OperatorQueries {
    async fn claim(&self, request: &FindClaimRequest) -> Result<FindClaimResponse, OperatorError> {
        let request = request.clone();
        let asked = self.ask(|mut operator| async move { operator.find_claim(request).await });
        asked.await
    }
}

#[tonic::async_trait]
impl FindClaim for OperatorQueries {
    async fn find_claim(&self, request: FindClaimRequest) -> Result<FindClaimResponse, Status> {
        let asked = match self.claim(&request).await {
            // The connection may have been to a leader that is gone.
            Err(OperatorError::Unreachable { .. }) => self.claim(&request).await,
            asked => asked,
        };
        asked.map_err(|error| match error {
            OperatorError::Refused { code, message, .. } => Status::new(code, message),
            error => Status::unavailable(error.to_string()),
        })
    }
}

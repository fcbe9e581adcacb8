//! Asks the operator which node has an address on the data network.

use std::net::Ipv4Addr;

use weft_proto::operator::v1::{FindNodeRequest, FindNodeResponse};

use crate::devices::peers::{FindNode, FindNodeError, Peer};
use crate::enroll::error::OperatorError;
use crate::enroll::queries::OperatorQueries;

#[tonic::async_trait]
impl FindNode for OperatorQueries {
    async fn find_node(&self, address: Ipv4Addr) -> Result<Peer, FindNodeError> {
        let request = FindNodeRequest {
            data_address: address.to_string(),
        };
        let asked = self.ask(|mut operator| async move { operator.find_node(request).await });
        match asked.await {
            Ok(answer) => peer(&answer).map_err(FindNodeError::Unknown),
            Err(error @ OperatorError::Refused { .. }) => {
                Err(FindNodeError::Unknown(error.to_string()))
            }
            Err(error) => Err(FindNodeError::NotAsked(error.to_string())),
        }
    }
}

fn peer(answer: &FindNodeResponse) -> Result<Peer, String> {
    let node = answer.node.parse();
    let node = node.map_err(|problem| format!("the operator names no node: {problem}"))?;
    let control = answer.control_address.parse();
    let control = control.map_err(|_| "the operator names no control address".to_owned())?;
    Ok(Peer { node, control })
}

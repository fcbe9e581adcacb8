//! Asks the operator which node has an address on the data network.

use std::net::Ipv4Addr;
use std::sync::Arc;

use tokio::sync::Mutex;
use tonic::transport::Channel;
use weft_proto::operator::v1::operator_client::OperatorClient;
use weft_proto::operator::v1::{FindNodeRequest, FindNodeResponse};

use crate::devices::peers::{FindNode, FindNodeError, Peer};
use crate::enroll::error::OperatorError;
use crate::enroll::keys::Keys;
use crate::enroll::operator;
use crate::enroll::settings::Settings;

/// Calls the operator over one connection.
#[derive(Debug)]
pub(crate) struct NodeFinder {
    pub(crate) settings: Arc<Settings>,
    pub(crate) keys: Arc<Keys>,
    /// None where the next call connects anew.
    pub(crate) client: Mutex<Option<OperatorClient<Channel>>>,
}

impl NodeFinder {
    async fn ask(&self, address: Ipv4Addr) -> Result<FindNodeResponse, OperatorError> {
        let mut kept = self.client.lock().await;
        let mut client = match kept.take() {
            Some(client) => client,
            None => operator::connect(&self.settings, Some(self.keys.identity()?)).await?,
        };
        let request = FindNodeRequest {
            data_address: address.to_string(),
        };
        let call = client.find_node(request);
        let answer = operator::with_timeout(&self.settings, call).await?;
        // After an error the next call connects anew, with the certificate that is then in force.
        *kept = Some(client);
        Ok(answer)
    }
}

#[tonic::async_trait]
impl FindNode for NodeFinder {
    async fn find_node(&self, address: Ipv4Addr) -> Result<Peer, FindNodeError> {
        match self.ask(address).await {
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

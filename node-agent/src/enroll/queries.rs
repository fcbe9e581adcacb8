//! What an agent asks the operator beside its reports.

use std::sync::Arc;

use tokio::sync::Mutex;
use tonic::transport::Channel;
use tonic::{Response, Status};
use weft_proto::operator::v1::operator_client::OperatorClient;

use crate::enroll::error::OperatorError;
use crate::enroll::keys::Keys;
use crate::enroll::operator;
use crate::enroll::settings::Settings;

/// Calls the operator over one connection, one call at a time.
#[derive(Debug)]
pub(crate) struct OperatorQueries {
    settings: Arc<Settings>,
    keys: Arc<Keys>,
    /// None where the next call connects anew.
    client: Mutex<Option<OperatorClient<Channel>>>,
}

impl OperatorQueries {
    /// Not connected yet.
    pub(crate) fn new(settings: Arc<Settings>, keys: Arc<Keys>) -> Self {
        Self {
            settings,
            keys,
            client: Mutex::default(),
        }
    }

    /// The answer to a call.
    pub(crate) async fn ask<T, F>(
        &self,
        call: impl FnOnce(OperatorClient<Channel>) -> F + Send,
    ) -> Result<T, OperatorError>
    where
        F: Future<Output = Result<Response<T>, Status>> + Send,
    {
        let mut kept = self.client.lock().await;
        let client = match kept.take() {
            Some(client) => client,
            None => operator::connect(&self.settings, Some(self.keys.identity()?)).await?,
        };
        let answer = operator::with_timeout(&self.settings, call(client.clone())).await?;
        // After an error the next call connects anew, with the certificate that is then in force.
        *kept = Some(client);
        Ok(answer)
    }
}

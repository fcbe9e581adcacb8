//! The calls to the operator: enrolling, with the token, and reporting, with the certificate.

use std::path::Path;
use std::time::Duration;

use tonic::Status;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use weft_identity::OPERATOR_NAME;
use weft_identity::cause::chain;
use weft_proto::operator::v1::operator_client::OperatorClient;
use weft_proto::operator::v1::{EnrollRequest, EnrollResponse};

use crate::enroll::error::OperatorError;
use crate::enroll::keys::Keys;
use crate::enroll::settings::Settings;
use crate::transfer::agent_client::{PING_INTERVAL, PING_TIMEOUT, refusal};

/// Time for a connection, and then for an answer.
const TRY_TIMEOUT: Duration = Duration::from_secs(10);

/// Asks for a certificate and the configuration.
pub(crate) async fn enroll(
    settings: &Settings,
    keys: &Keys,
) -> Result<EnrollResponse, OperatorError> {
    let token = read("--token", &settings.token).await?;
    let request = EnrollRequest {
        fabric: settings.fabric.to_string(),
        certificate_request: keys.request()?,
        token: token.trim().to_owned(),
    };
    let mut client = connect(settings, None).await?;
    with_timeout(settings, client.enroll(request)).await
}

/// A connection that shows who the agent is, if it has a certificate to show.
pub(crate) async fn connect(
    settings: &Settings,
    identity: Option<Identity>,
) -> Result<OperatorClient<Channel>, OperatorError> {
    let authorities = read("--operator-ca", &settings.operator_ca).await?;
    if x509_parser::pem::parse_x509_pem(authorities.as_bytes()).is_err() {
        return Err(OperatorError::File {
            flag: "--operator-ca",
            path: settings.operator_ca.clone(),
            problem: "no PEM certificate in it".to_owned(),
        });
    }
    let mut tls = ClientTlsConfig::new()
        .ca_certificate(Certificate::from_pem(authorities))
        .domain_name(OPERATOR_NAME);
    if let Some(identity) = identity {
        tls = tls.identity(identity);
    }
    let endpoint = Endpoint::from_shared(format!("https://{}", settings.operator))
        .and_then(|endpoint| endpoint.tls_config(tls))
        .map_err(|error| unreachable(settings, chain(&error)))?
        .http2_keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_TIMEOUT);
    match tokio::time::timeout(TRY_TIMEOUT, endpoint.connect()).await {
        Ok(Ok(channel)) => Ok(OperatorClient::new(channel)),
        Ok(Err(error)) => Err(unreachable(settings, chain(&error))),
        Err(_) => Err(unreachable(
            settings,
            format!("no connection within {TRY_TIMEOUT:?}"),
        )),
    }
}

/// The answer to a call, if it comes in time.
pub(crate) async fn with_timeout<T>(
    settings: &Settings,
    call: impl Future<Output = Result<tonic::Response<T>, Status>>,
) -> Result<T, OperatorError> {
    match tokio::time::timeout(TRY_TIMEOUT, call).await {
        Ok(Ok(answer)) => Ok(answer.into_inner()),
        Ok(Err(status)) => Err(refused(settings, &status)),
        Err(_) => Err(unreachable(
            settings,
            format!("no answer within {TRY_TIMEOUT:?}"),
        )),
    }
}

/// What a status means: the operator's own word, or that there is no operator.
pub(crate) fn refused(settings: &Settings, status: &Status) -> OperatorError {
    match refusal(status) {
        Some(detail) => OperatorError::Refused {
            code: status.code(),
            reason: detail.reason,
            message: status.message().to_owned(),
        },
        None => unreachable(settings, chain(status)),
    }
}

fn unreachable(settings: &Settings, problem: String) -> OperatorError {
    let address = settings.operator.clone();
    // rustls' words for everything that is wrong with what the peer shows.
    if problem.contains("certificate") {
        OperatorError::Untrusted { address, problem }
    } else {
        OperatorError::Unreachable { address, problem }
    }
}

async fn read(flag: &'static str, path: &Path) -> Result<String, OperatorError> {
    tokio::fs::read_to_string(path)
        .await
        .map_err(|error| OperatorError::File {
            flag,
            path: path.to_owned(),
            problem: error.to_string(),
        })
}

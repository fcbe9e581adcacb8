//! What the administrator sets for stores: an identity, a proxy, authorities.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpListener;
use std::sync::Arc;

use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use tonic::Status;
use weft_proto::agent::v1::*;

use crate::objects::{PASSWORD, assert_verified, object, read, s3, stat, with};
use crate::s3_server::{AnswerFault, S3Server};
use crate::support::{Lab, job, name_of, noise, reason};

/// What a node says of a store to a job of this namespace.
async fn stat_of(
    lab: &Lab,
    node: usize,
    namespace: &str,
    url: &str,
) -> Result<StatResponse, Status> {
    let request = StatRequest {
        leader_epoch: 1,
        object: Some(object(url)),
        job_name: Some(JobName {
            namespace: namespace.to_owned(),
            ..JobName::default()
        }),
        ..StatRequest::default()
    };
    Ok(lab.operator(node).await.stat(request).await?.into_inner())
}

/// Amazon's token service: a caller that shows it a token is the reader.
async fn token_service() -> S3Server {
    let answer = format!(
        "<AssumeRoleWithWebIdentityResponse><AssumeRoleWithWebIdentityResult><Credentials>\
         <AccessKeyId>reader</AccessKeyId><SecretAccessKey>{PASSWORD}</SecretAccessKey>\
         <SessionToken>session</SessionToken><Expiration>2200-01-01T00:00:00Z</Expiration>\
         </Credentials></AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>"
    );
    S3Server::open(&[("", answer.as_bytes())]).await
}

/// Jobs of the namespace `team` may read below `s3://models/minilm/` as the agent; `more` stands beside that.
fn with_identity(lab: &Lab, store: &str, tokens: &S3Server, more: &str) -> String {
    let token = lab.dir.path().join("token");
    std::fs::write(&token, "of-the-pod").unwrap();
    format!(
        "objects:
  allowInsecure: true
{more}
  workloadIdentity:
    allowed: ['team=s3://models/minilm/']
    environment:
      AWS_ROLE_ARN: arn:aws:iam::1:role/weft
      AWS_WEB_IDENTITY_TOKEN_FILE: {}
      AWS_ENDPOINT_URL: {store}
      AWS_ENDPOINT_URL_STS: http://{}
",
        token.display(),
        tokens.address
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_without_a_secret_reads_as_the_agent_where_that_is_allowed_and_nowhere_else() {
    let lab = Lab::new();
    let big = noise(300_000, 7);
    let files = [
        ("minilm/model.bin", big.as_slice()),
        ("other/model.bin", b"o"),
    ];
    let (store, tokens) = (s3(&lab, &files).await, token_service().await);
    let agent = lab
        .agent(0, &with_identity(&lab, &store, &tokens, ""))
        .await;
    let allowed = "s3://models/minilm/";
    let found = stat_of(&lab, 0, "team", allowed).await.unwrap();
    assert_eq!(found.files, 1);
    let posted = tokens.change(|contents| std::mem::take(&mut contents.posted));
    assert_eq!(posted.len(), 1);
    for part in [
        "RoleArn=arn%3Aaws%3Aiam%3A%3A1%3Arole%2Fweft",
        "WebIdentityToken=of-the-pod",
    ] {
        assert!(posted[0].contains(part), "{posted:?}");
    }
    let job = job("as-agent", 1);
    assert_eq!(name_of(&job).unwrap().namespace, "team");
    let ends = read(&lab, &job, &object(allowed), &found, &[]).await;
    assert_verified(&ends);

    // A job's Secret counts alone: here one that has no key.
    tokens.change(|contents| contents.posted.clear());
    let secret = with(object(allowed), &[("endpoint", &store)]);
    let status = stat(&lab, &secret).await.unwrap_err();
    let told = "Signature is required";
    assert!(status.message().contains(told), "{status:?}");
    // Of Amazon's own store, which others are asked for without a signature, this proxy has nothing.
    let proxy = S3Server::open(&[]).await;
    let more = format!(
        "  listTimeout: 1s\n  proxy: http://{}\n  noProxy: 127.0.0.1",
        proxy.address
    );
    let elsewhere = lab
        .agent(1, &with_identity(&lab, &store, &tokens, &more))
        .await;
    let other = "s3://models/other/model.bin";
    let (a, b, c) = tokio::join!(
        stat_of(&lab, 1, "team-b", allowed),
        stat_of(&lab, 1, "team", other),
        stat_of(&lab, 1, "", allowed),
    );
    for status in [a, b, c] {
        assert_eq!(reason(&status.unwrap_err()), "ObjectUnavailable");
    }
    assert!(tokens.change(|contents| contents.posted.is_empty()));
    agent.stop().await;
    elsewhere.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_without_a_secret_reads_from_azure_as_the_agent() {
    let lab = Lab::new();
    let answer = r#"{"token_type": "Bearer", "expires_in": 3600, "access_token": "of-azure"}"#;
    let tokens = S3Server::open(&[("tenant/oauth2/v2.0/token", answer.as_bytes())]).await;
    let store = S3Server::open(&[]).await;
    let list = "<EnumerationResults><Blobs><Blob><Name>minilm/m.bin</Name><Properties>\
                <Last-Modified>Tue, 24 Nov 2026 00:00:00 GMT</Last-Modified>\
                <Content-Length>3</Content-Length><Content-Type>x</Content-Type><Etag>v1</Etag>\
                </Properties></Blob></Blobs><NextMarker/></EnumerationResults>";
    store.change(|contents| contents.list = list.as_bytes().to_vec());
    let token = lab.dir.path().join("token");
    std::fs::write(&token, "of-the-pod").unwrap();
    let extra = format!(
        "objects:
  allowInsecure: true
  workloadIdentity:
    allowed: ['*=az://models/']
    environment:
      AZURE_CLIENT_ID: client
      AZURE_TENANT_ID: tenant
      AZURE_FEDERATED_TOKEN_FILE: {}
      AZURE_AUTHORITY_HOST: http://{}/
      AZURE_STORAGE_ACCOUNT_NAME: account
      AZURE_STORAGE_ENDPOINT: http://{}
",
        token.display(),
        tokens.address,
        store.address
    );
    let agent = lab.agent(0, &extra).await;
    let found = stat_of(&lab, 0, "team", "az://models/minilm/").await;
    assert_eq!(found.unwrap().bytes, 3);
    let shown = store.change(|contents| contents.shown.clone());
    assert_eq!(shown, ["authorization: Bearer of-azure"]);
    agent.stop().await;
}

/// A role of which the token service thinks nothing, and an agent that no webhook has given anything.
#[tokio::test(flavor = "multi_thread")]
async fn an_identity_that_is_refused_or_missing_is_named_and_no_other_is_looked_for() {
    let lab = Lab::new();
    let store = s3(&lab, &[("minilm/model.bin", b"m")]).await;
    let tokens = token_service().await;
    tokens.change(|contents| {
        contents.faults.push_back(AnswerFault::Status(403));
    });
    let agent = lab
        .agent(0, &with_identity(&lab, &store, &tokens, ""))
        .await;
    let allowed = "s3://models/minilm/";
    let status = stat_of(&lab, 0, "team", allowed).await.unwrap_err();
    assert_eq!(reason(&status), "StoreForbidden", "{status:?}");
    let told = format!("http://{} answers 403", tokens.address);
    assert!(status.message().contains(&told), "{status:?}");
    agent.stop().await;

    let missing =
        "objects: {allowInsecure: true, workloadIdentity: {allowed: ['*=s3://models/']}}\n";
    let agent = lab.agent(1, missing).await;
    let status = stat_of(&lab, 1, "team", allowed).await.unwrap_err();
    assert_eq!(reason(&status), "StoreForbidden", "{status:?}");
    assert!(status.message().contains("AWS_ROLE_ARN"), "{status:?}");
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn stores_are_reached_by_the_proxy_that_is_set_and_those_that_it_is_not_for_directly() {
    let lab = Lab::new();
    // A proxy is shown whole URLs.
    let proxy = S3Server::open(&[("http://store.example/m.bin", b"through")]).await;
    let server = S3Server::open(&[("m.bin", b"direct")]).await;
    let extra = format!(
        "objects: {{allowInsecure: true, proxy: 'http://{}', noProxy: '127.0.0.1'}}\n",
        proxy.address
    );
    let agent = lab.agent(0, &extra).await;
    let found = stat(&lab, &object("http://store.example/m.bin")).await;
    assert_eq!(found.unwrap().bytes, 7);
    let found = stat(&lab, &object(&server.url("m.bin"))).await.unwrap();
    assert_eq!(found.bytes, 6);
    // What belongs to the node or its cloud is refused before a proxy is asked.
    let metadata = object("http://169.254.169.254/latest");
    let status = stat(&lab, &metadata).await.unwrap_err();
    assert_eq!(reason(&status), "StoreForbidden", "{status:?}");
    agent.stop().await;
}

/// A store with TLS by an authority of its own. Its certificate, and where it is.
fn private_store() -> (String, String) {
    let names = vec!["127.0.0.1".to_owned()];
    let own = rcgen::generate_simple_self_signed(names).unwrap();
    let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(own.signing_key.serialize_der()));
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![own.cert.der().clone()], key)
        .unwrap();
    let config = Arc::new(config);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("https://{}/m.bin", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let connection = ServerConnection::new(config.clone()).unwrap();
            let mut reader = BufReader::new(StreamOwned::new(connection, stream));
            let mut line = String::new();
            // To the empty line; a client that does not believe the certificate sends none.
            while reader.read_line(&mut line).is_ok_and(|read| read > 2) {
                line.clear();
            }
            let answer = "HTTP/1.1 200 OK\r\nETag: \"v1\"\r\nContent-Length: 3\r\n\r\n";
            // The caller has closed the connection.
            let _ = reader.get_mut().write_all(answer.as_bytes());
        }
    });
    (own.cert.pem(), url)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_of_a_private_authority_is_believed_where_the_agent_has_its_certificate() {
    let lab = Lab::new();
    let (pem, url) = private_store();
    let short = "objects: {allowInsecure: true, listTimeout: 1s}\n";
    let agent = lab.agent(0, short).await;
    let status = stat(&lab, &object(&url)).await.unwrap_err();
    assert_eq!(reason(&status), "ObjectUnavailable", "{status:?}");
    agent.stop().await;

    let indented = pem.replace('\n', "\n    ");
    let extra = format!("objects:\n  allowInsecure: true\n  authorities: |\n    {indented}\n");
    let agent = lab.agent(0, &extra).await;
    assert_eq!(stat(&lab, &object(&url)).await.unwrap().bytes, 3);
    agent.stop().await;
}

//! `kubectl weft ui`: the page of a fabric in a browser, with the user's own rights.
//!
//! A web server at 127.0.0.1 asks the operator for the page by the user's kubeconfig. It passes nothing else on. Other
//! users of the machine and pages of other sites reach it too: its address has a random part that only its user is
//! told, and it answers to its own name only, so that no other site can get a browser to ask for it by a name of its own.

use std::{
    io::{self, Write},
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
};

use axum::{
    Router,
    body::Body,
    extract::State,
    http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header},
    response::{IntoResponse, Response},
};
use kube::{Api, ResourceExt as _};
use ring::rand::{SecureRandom as _, SystemRandom};
use thiserror::Error;
use tokio::net::TcpListener;
use weft_crds::{FabricPage, RdmaFabric};
use weft_page::View;

use crate::{
    cluster::{Cluster, ClusterError, Reach},
    output::say,
};

/// Of the address: as many as a key of AES-128 has.
const RANDOM_BYTES: usize = 16;
/// The headers that are passed on from the operator: its policy names the script of its own release.
const PASSED_ON: [header::HeaderName; 2] = [header::CONTENT_TYPE, header::CONTENT_SECURITY_POLICY];
/// The headers of every answer; a policy from the operator comes in place of this one.
const HEADERS: [(header::HeaderName, &str); 4] = [
    (header::CONTENT_SECURITY_POLICY, "default-src 'none'"),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "no-referrer"),
    (header::CACHE_CONTROL, "no-store"),
];

/// What `kubectl weft ui` takes.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// The RdmaFabric; without it the only one that there is.
    pub fabric: Option<String>,
    /// The port at 127.0.0.1; 0 is a free one.
    #[arg(long, value_name = "PORT", default_value_t = 0)]
    pub port: u16,
    /// Which cluster to ask, and with which user. With a namespace the page shows the jobs of that one.
    #[command(flatten)]
    pub reach: Reach,
}

/// Why there is no page.
#[derive(Debug, Error)]
pub enum UiError {
    /// No fabric, or not a single one.
    #[error("name the RdmaFabric; there are: {0}; see: kubectl get rdmafabrics")]
    Fabrics(String),
    /// The port is taken.
    #[error("--port {port}: {source}; give another port, or 0 for a free one")]
    Port {
        /// What was asked for.
        port: u16,
        /// What the system said.
        source: io::Error,
    },
    /// The system has no random numbers.
    #[error("the system's random generator does not answer; see getrandom(2)")]
    Random,
    /// The cluster refused, or did not answer.
    #[error("{}", explained(.0))]
    Cluster(#[from] ClusterError),
    /// The address could not be written.
    #[error("the output could not be written: {0}; check the pipe or the disk behind it")]
    Write(#[from] io::Error),
}

/// What a refusal is, and who has the right.
fn explained(error: &ClusterError) -> String {
    match error {
        ClusterError::Refused { code: 403, message } => {
            format!("{message}; the ClusterRole weft-monitor has the rights that the page takes")
        }
        other => other.to_string(),
    }
}

/// Prints the page's address and serves it until the program is ended.
///
/// # Errors
/// The cluster refused the page, or the port is taken.
pub async fn run(args: &Args, out: &mut impl Write) -> Result<bool, UiError> {
    let cluster = Cluster::reach(&args.reach).await?;
    let fabric = match &args.fabric {
        Some(fabric) => fabric.clone(),
        None => only_fabric(&cluster).await?,
    };
    // Who may not see it is told so here.
    drop(cluster.live_response(&FabricPage::path(&fabric)).await?);
    let port = |source| UiError::Port {
        port: args.port,
        source,
    };
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, args.port)).await;
    let listener = listener.map_err(port)?;
    let proxy = Proxy::new(cluster, fabric, listener.local_addr()?)?;
    let view = View {
        namespace: args.reach.namespace.clone(),
        ..View::default()
    };
    say(proxy.url() + &view.query(), out)?;
    say(
        "Everybody with this address sees what you may see. Ctrl-C ends it.",
        out,
    )?;
    axum::serve(listener, router(proxy)).await?;
    Ok(true)
}

async fn only_fabric(cluster: &Cluster) -> Result<String, UiError> {
    let api: Api<RdmaFabric> = Api::all(cluster.client());
    let listed = api.list_metadata(&Default::default()).await;
    let listed = listed.map_err(|error| cluster.explain("", error))?;
    let names: Vec<String> = listed.iter().map(|fabric| fabric.name_any()).collect();
    match &names[..] {
        [only] => Ok(only.clone()),
        [] => Err(UiError::Fabrics("none".to_owned())),
        _ => Err(UiError::Fabrics(names.join(", "))),
    }
}

/// What is passed on, and to whom.
struct Proxy {
    cluster: Cluster,
    fabric: String,
    address: SocketAddr,
    /// `/RANDOM/`.
    base: String,
}

impl Proxy {
    fn new(cluster: Cluster, fabric: String, address: SocketAddr) -> Result<Self, UiError> {
        let mut random = [0; RANDOM_BYTES];
        let filled = SystemRandom::new().fill(&mut random);
        filled.map_err(|_| UiError::Random)?;
        Ok(Self {
            cluster,
            fabric,
            address,
            base: format!("/{:032x}/", u128::from_be_bytes(random)),
        })
    }

    fn url(&self) -> String {
        format!("http://{}{}", self.address, self.base)
    }

    /// What the operator is asked for; nothing for another address.
    fn path(&self, address: &Uri) -> Option<String> {
        // No more of the query than what the page knows.
        let view = View::of_query(address.query().unwrap_or_default());
        let query = view.query();
        match address.path().strip_prefix(&*self.base)? {
            "" => Some(FabricPage::path(&self.fabric) + &query),
            "events" => {
                let path = FabricPage::events_path(&self.fabric);
                Some(path + &query.replacen('?', "&", 1))
            }
            _ => None,
        }
    }

    /// A browser that was led here by another site's name sends that name.
    fn is_named_by(&self, call: &HeaderMap) -> bool {
        let port = self.address.port();
        let names = [format!("127.0.0.1:{port}"), format!("localhost:{port}")];
        let host = call.get(header::HOST);
        host.is_some_and(|host| names.iter().any(|name| host.as_bytes() == name.as_bytes()))
    }
}

fn router(proxy: Proxy) -> Router {
    Router::new().fallback(answer).with_state(Arc::new(proxy))
}

async fn answer(
    State(proxy): State<Arc<Proxy>>,
    method: Method,
    address: Uri,
    call: HeaderMap,
) -> Response {
    let mut response = if method != Method::GET {
        let allow = [(header::ALLOW, "GET")];
        (
            StatusCode::METHOD_NOT_ALLOWED,
            allow,
            "the page is only read\n",
        )
            .into_response()
    } else if !proxy.is_named_by(&call) {
        let text = "this server answers to 127.0.0.1 and localhost\n";
        (StatusCode::MISDIRECTED_REQUEST, text).into_response()
    } else if let Some(path) = proxy.path(&address) {
        match proxy.cluster.live_response(&path).await {
            Ok(answer) => passed_on(answer),
            Err(error) => refused(&error),
        }
    } else {
        let text = "the page is at the address that kubectl weft ui has printed\n";
        (StatusCode::NOT_FOUND, text).into_response()
    };
    for (name, value) in HEADERS {
        let value = HeaderValue::from_static(value);
        response.headers_mut().entry(name).or_insert(value);
    }
    response
}

fn passed_on(answer: http::Response<kube::client::Body>) -> Response {
    let (head, body) = answer.into_parts();
    let mut response = Body::new(body).into_response();
    for name in PASSED_ON {
        if let Some(value) = head.headers.get(&name) {
            response.headers_mut().insert(name, value.clone());
        }
    }
    response
}

fn refused(error: &ClusterError) -> Response {
    let code = match error {
        ClusterError::Refused { code, .. } => StatusCode::from_u16(*code).ok(),
        _ => None,
    };
    let code = code.unwrap_or(StatusCode::BAD_GATEWAY);
    (code, explained(error) + "\n").into_response()
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use tower::ServiceExt as _;

    use super::*;

    /// A proxy at port 4000 to an API server with this answer, and what that was asked.
    fn proxy(code: u16, body: &'static str) -> (Router, String, Arc<Mutex<Vec<String>>>) {
        let asked = Arc::new(Mutex::new(Vec::new()));
        let paths = Arc::clone(&asked);
        let server = tower::service_fn(move |request: http::Request<kube::client::Body>| {
            let line = format!("{} {}", request.method(), request.uri());
            paths.lock().unwrap().push(line);
            let response = http::Response::builder()
                .status(code)
                .header("content-type", "text/html")
                .header("content-security-policy", "default-src 'self'")
                .header("set-cookie", "a=b");
            let body = kube::client::Body::from(body.as_bytes().to_vec());
            std::future::ready(response.body(body))
        });
        let cluster = Cluster::of(kube::Client::new(server, "default"));
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 4000));
        let proxy = Proxy::new(cluster, "lab".to_owned(), address).unwrap();
        let base = proxy.base.clone();
        (router(proxy), base, asked)
    }

    async fn call(router: &Router, method: &str, path: &str, host: &str) -> (Response, String) {
        let request = http::Request::builder().method(method).uri(path);
        let request = request.header("host", host).body(Body::empty()).unwrap();
        let response = router.clone().oneshot(request).await.unwrap();
        let (head, body) = response.into_parts();
        let body = axum::body::to_bytes(body, usize::MAX).await.unwrap();
        let text = String::from_utf8(body.to_vec()).unwrap();
        (Response::from_parts(head, Body::empty()), text)
    }

    const HOST: &str = "127.0.0.1:4000";

    #[tokio::test]
    async fn the_page_and_its_events_are_passed_on_and_of_the_query_what_the_page_knows() {
        let (router, base, asked) = proxy(200, "<p>page</p>");
        let (response, text) = call(&router, "GET", &base, HOST).await;
        assert_eq!((response.status(), &*text), (StatusCode::OK, "<p>page</p>"));
        let header = |name: &str| response.headers()[name].to_str().unwrap().to_owned();
        assert_eq!(header("content-security-policy"), "default-src 'self'");
        assert_eq!(header("cache-control"), "no-store");
        assert!(!response.headers().contains_key("set-cookie"));
        let query = "?jobs=all&watch=false&fieldSelector=x&namespace=a%26b";
        for path in [format!("{base}{query}"), format!("{base}events{query}")] {
            call(&router, "GET", &path, "localhost:4000").await;
        }
        let group = "GET /apis/live.weft.dev/v1alpha1/fabricpages";
        assert_eq!(
            *asked.lock().unwrap(),
            [
                format!("{group}/lab"),
                format!("{group}/lab?namespace=a%26b&jobs=all"),
                format!(
                    "{group}?watch=true&fieldSelector=metadata.name%3Dlab&namespace=a%26b&jobs=all"
                ),
            ]
        );
    }

    #[tokio::test]
    async fn another_method_name_or_address_reaches_no_cluster() {
        let (router, base, asked) = proxy(200, "");
        let (api, below) = (format!("{base}api/v1/secrets"), format!("{base}../api"));
        for (method, path, host, code) in [
            ("POST", &*base, HOST, StatusCode::METHOD_NOT_ALLOWED),
            ("HEAD", &base, HOST, StatusCode::METHOD_NOT_ALLOWED),
            (
                "GET",
                &base,
                "evil.example:4000",
                StatusCode::MISDIRECTED_REQUEST,
            ),
            ("GET", &base, "127.0.0.1", StatusCode::MISDIRECTED_REQUEST),
            ("GET", "/", HOST, StatusCode::NOT_FOUND),
            (
                "GET",
                "/00000000000000000000000000000000/",
                HOST,
                StatusCode::NOT_FOUND,
            ),
            (
                "GET",
                base.trim_end_matches('/'),
                HOST,
                StatusCode::NOT_FOUND,
            ),
            ("GET", &api, HOST, StatusCode::NOT_FOUND),
            ("GET", &below, HOST, StatusCode::NOT_FOUND),
        ] {
            let (response, text) = call(&router, method, path, host).await;
            assert_eq!(response.status(), code, "{method} {path} {host}");
            assert!(!text.contains(&base[1..9]), "{text}");
            let policy = &response.headers()["content-security-policy"];
            assert_eq!(policy, "default-src 'none'");
        }
        assert!(asked.lock().unwrap().is_empty());
    }

    #[tokio::test]
    async fn a_refusal_says_which_right_is_missing_and_which_role_has_it() {
        let (router, base, _) = proxy(
            403,
            r#"{"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "reason": "Forbidden",
                "message": "fabricpages.live.weft.dev \"lab\" is forbidden: User \"ada\" cannot get resource \"fabricpages\"",
                "code": 403}"#,
        );
        let (response, text) = call(&router, "GET", &base, HOST).await;
        assert_eq!(response.status(), StatusCode::FORBIDDEN);
        assert!(
            text.contains("cannot get resource \"fabricpages\""),
            "{text}"
        );
        assert!(text.contains("ClusterRole weft-monitor"), "{text}");
    }

    #[tokio::test]
    async fn each_run_has_an_address_of_its_own() {
        let ((_, one, _), (_, other, _)) = (proxy(200, ""), proxy(200, ""));
        assert_ne!(one, other);
        assert_eq!(one.len(), 34);
    }
}

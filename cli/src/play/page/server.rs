//! The page over HTTP: `/`, and `/events` with an event a second.

use std::{convert::Infallible, io, time::Duration};

use axum::{
    Router,
    body::Body,
    extract::{Request, State},
    http::{HeaderName, HeaderValue, StatusCode, Uri, header},
    middleware::{Next, from_fn},
    response::{IntoResponse, Response},
    routing::get,
};
use tokio::{
    net::TcpListener,
    sync::watch,
    time::{MissedTickBehavior, interval},
};
use tokio_stream::{StreamExt as _, wrappers::IntervalStream};
use weft_page::{EVENTS_CONTENT_TYPE, Fabric, HEADERS, View, event, render};

const EVENT_INTERVAL: Duration = Duration::from_secs(1);

type Shown = watch::Receiver<Fabric>;

/// Serves until it is dropped.
pub(super) async fn serve(listener: TcpListener, fabric: Shown) -> io::Result<()> {
    axum::serve(listener, router(fabric)).await
}

fn router(fabric: Shown) -> Router {
    Router::new()
        .route("/", get(page))
        .route("/events", get(events))
        .fallback(|| async { (StatusCode::NOT_FOUND, "the fabric's page is /\n") })
        .layer(from_fn(check_name))
        .with_state(fabric)
}

/// Another site can lead a browser here by a name of its own, and the browser sends that name (DNS rebinding).
async fn check_name(call: Request, next: Next) -> Response {
    let host = call.headers().get(header::HOST);
    let host = host.and_then(|host| host.to_str().ok()).unwrap_or_default();
    let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
    if ["127.0.0.1", "localhost"].contains(&name) {
        return next.run(call).await;
    }
    let text = "this server answers to 127.0.0.1 and localhost\n";
    (StatusCode::MISDIRECTED_REQUEST, text).into_response()
}

fn view(address: &Uri) -> View {
    View::of_query(address.query().unwrap_or_default())
}

fn with_headers(body: Body) -> Response {
    let mut response = body.into_response();
    for (name, value) in HEADERS {
        let (name, value) = (
            HeaderName::from_static(name),
            HeaderValue::from_static(value),
        );
        response.headers_mut().insert(name, value);
    }
    response
}

async fn page(State(fabric): State<Shown>, address: Uri) -> Response {
    let html = render(&fabric.borrow(), &view(&address));
    with_headers(Body::from(html))
}

async fn events(State(fabric): State<Shown>, address: Uri) -> Response {
    let view = view(&address);
    let mut every = interval(EVENT_INTERVAL);
    every.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let events = IntervalStream::new(every)
        .map(move |_| Ok::<_, Infallible>(event(&fabric.borrow(), &view)));
    let mut response = with_headers(Body::from_stream(events));
    let kind = HeaderValue::from_static(EVENTS_CONTENT_TYPE);
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}

#[cfg(test)]
mod tests {
    use std::{net::Ipv4Addr, time::SystemTime};

    use tokio::{
        io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
        net::TcpStream,
    };
    use weft_page::Job;

    use super::*;

    /// Asks a server of this fabric; its answer can be read line by line.
    async fn ask(fabric: Fabric, path: &str) -> BufReader<TcpStream> {
        ask_as(fabric, path, "127.0.0.1").await
    }

    async fn ask_as(fabric: Fabric, path: &str, name: &str) -> BufReader<TcpStream> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(serve(listener, watch::Sender::new(fabric).subscribe()));
        let mut stream = TcpStream::connect(address).await.unwrap();
        let request =
            format!("GET {path} HTTP/1.1\r\nHost: {name}:8080\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        BufReader::new(stream)
    }

    async fn answer(fabric: Fabric, path: &str) -> String {
        let mut text = String::new();
        ask(fabric, path)
            .await
            .read_to_string(&mut text)
            .await
            .unwrap();
        text
    }

    fn fabric() -> Fabric {
        let mut fabric = Fabric::new("play", SystemTime::UNIX_EPOCH);
        fabric.jobs = ["a", "b"]
            .map(|namespace| Job {
                namespace: namespace.to_owned(),
                name: "model".to_owned(),
                ..Job::default()
            })
            .to_vec();
        fabric
    }

    #[tokio::test]
    async fn the_page_comes_with_its_policy_and_is_not_stored() {
        let text = answer(fabric(), "/?namespace=a").await;
        assert!(text.starts_with("HTTP/1.1 200"), "{text}");
        assert!(text.contains("content-type: text/html; charset=utf-8\r\n"));
        assert!(text.contains("content-security-policy: default-src 'none'; "));
        assert!(text.contains("cache-control: no-store\r\n"));
        assert!(text.contains("a/model") && !text.contains("b/model"));
    }

    #[tokio::test]
    async fn the_first_event_comes_at_once_with_the_jobs_that_were_asked_for() {
        let mut lines = ask(fabric(), "/events?namespace=b").await.lines();
        let mut next = async || lines.next_line().await.unwrap().unwrap();
        let mut head = String::new();
        let event = loop {
            let line = next().await;
            if line.starts_with("data: ") {
                break line;
            }
            head += &line;
        };
        assert!(head.contains("content-type: text/event-stream"), "{head}");
        assert!(
            event.contains("b/model") && !event.contains("a/model"),
            "{event}"
        );
        assert_eq!(next().await, "", "the event ends");
    }

    #[tokio::test]
    async fn another_name_gets_nothing_of_the_page() {
        for name in ["evil.example", "127.0.0.1.evil.example", ""] {
            let mut text = String::new();
            let mut answer = ask_as(fabric(), "/", name).await;
            answer.read_to_string(&mut text).await.unwrap();
            assert!(text.starts_with("HTTP/1.1 421"), "{text}");
            assert!(!text.contains("model"), "{text}");
        }
    }

    #[tokio::test]
    async fn another_address_is_not_found() {
        let text = answer(fabric(), "/favicon.ico").await;
        assert!(text.starts_with("HTTP/1.1 404"), "{text}");
        assert!(text.ends_with("the fabric's page is /\n"), "{text}");
    }
}

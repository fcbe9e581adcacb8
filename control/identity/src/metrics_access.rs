//! Who may read the metrics: the user of a token who may `get` the path `/metrics`, as the cluster's API server says.
//!
//! A server has one [`MetricsAccess`], whose [`Reviewer`] asks the API server, or somebody who can ask it. It keeps the
//! answers for a short time. It asks about a limited number of new tokens, so that a caller with made-up tokens costs little;
//! tokens that were allowed before do not count, so that this caller keeps no reader out. Tokens are kept as digests, and
//! never logged.

use std::{
    collections::HashMap,
    fmt::Debug,
    num::NonZeroU32,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use axum::{
    Router,
    extract::{Request, State},
    http::{HeaderMap, HeaderValue, StatusCode, header},
    middleware::{Next, from_fn_with_state},
    response::{IntoResponse as _, Response},
};
use ring::digest::{SHA256, digest};
use tokio::time::Instant;

/// How long a user who may read goes on reading without another review.
pub const ALLOWED_FOR: Duration = Duration::from_secs(60);
/// How long a refusal counts: a right that was just given is soon seen.
pub const REFUSED_FOR: Duration = Duration::from_secs(10);
/// How long after its answer a token counts as one that was allowed, and no new one: Prometheus comes each minute, and is given a
/// new token each hour.
const KNOWN_FOR: Duration = Duration::from_secs(60 * 60);
/// Tokens whose answers are kept. A cluster has a few readers.
const TOKENS_MAX: usize = 64;
/// New tokens that are reviewed at once are those of so long a time.
const BURST: Duration = Duration::from_secs(10);

/// What is known of a token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Its user may read the metrics.
    Allowed {
        /// Who.
        user: String,
    },
    /// Its user may not.
    Forbidden {
        /// Who.
        user: String,
    },
    /// It is nobody's.
    Unknown {
        /// In the API server's words where it gave any.
        problem: String,
    },
}

/// An answer about a token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Review {
    /// What it says.
    pub verdict: Verdict,
    /// For how long it counts.
    pub valid_for: Duration,
}

impl Verdict {
    fn is_allowed(&self) -> bool {
        matches!(self, Self::Allowed { .. })
    }

    /// An answer that was given just now.
    #[must_use]
    pub fn review(self) -> Review {
        let valid_for = match self {
            Self::Allowed { .. } => ALLOWED_FOR,
            Self::Forbidden { .. } | Self::Unknown { .. } => REFUSED_FOR,
        };
        Review {
            verdict: self,
            valid_for,
        }
    }
}

/// Knows whose a token is, and what they may do.
#[tonic::async_trait]
pub trait Reviewer: Debug + Send + Sync {
    /// What is known of a token.
    ///
    /// # Errors
    /// Nobody can say now: why, and what to do.
    async fn review(&self, token: &str) -> Result<Review, String>;
}

/// A token's SHA-256.
type TokenDigest = [u8; 32];

/// What was said of tokens.
#[derive(Debug, Default)]
struct Answers {
    /// Each with its end. Tokens that were allowed stay for longer, to be known as such.
    verdicts: HashMap<TokenDigest, (Verdict, Instant)>,
    /// When the next review of a new token would be due, had they come at their rate.
    next_new: Option<Instant>,
}

impl Answers {
    /// What counts for a token, and for how much longer.
    fn get(&self, token: &TokenDigest, now: Instant) -> Option<Review> {
        let (verdict, end) = self.verdicts.get(token)?;
        (*end > now).then(|| Review {
            verdict: verdict.clone(),
            valid_for: *end - now,
        })
    }

    /// The last answer about it was that its user may read.
    fn was_allowed(&self, token: &TokenDigest) -> bool {
        let last = self.verdicts.get(token);
        last.is_some_and(|(verdict, _)| verdict.is_allowed())
    }

    /// Keeps an answer. Where there are too many, a refusal makes room before a user who may read.
    fn put(&mut self, token: TokenDigest, review: &Review, now: Instant) {
        let verdicts = &mut self.verdicts;
        verdicts.retain(|_, (verdict, end)| match verdict.is_allowed() {
            true => *end + KNOWN_FOR > now,
            false => *end > now,
        });
        verdicts.insert(token, (review.verdict.clone(), now + review.valid_for));
        if verdicts.len() > TOKENS_MAX {
            let of = verdicts.iter();
            let least = of.min_by_key(|(_, (verdict, end))| (verdict.is_allowed(), *end));
            if let Some(least) = least.map(|(token, _)| *token) {
                verdicts.remove(&least);
            }
        }
    }

    /// Counts a review of a new token; false if there were too many.
    fn count_new(&mut self, per_second: NonZeroU32, now: Instant) -> bool {
        let next = self.next_new.map_or(now, |next| next.max(now));
        let may = next - now < BURST;
        if may {
            self.next_new = Some(next + Duration::from_secs(1) / per_second.get());
        }
        may
    }
}

/// Decides who may read the metrics of a server.
#[derive(Debug)]
pub struct MetricsAccess {
    reviewer: Box<dyn Reviewer>,
    new_per_second: NonZeroU32,
    answers: Mutex<Answers>,
    /// One review of a new token is under way at a time, and one of a token that was allowed.
    turns: [Turn; 2],
}

type Turn = tokio::sync::Mutex<()>;

impl MetricsAccess {
    /// By what this reviewer says, who is asked about so many new tokens a second.
    pub fn new(reviewer: impl Reviewer + 'static, new_per_second: NonZeroU32) -> Self {
        Self {
            reviewer: Box::new(reviewer),
            new_per_second,
            answers: Mutex::default(),
            turns: Default::default(),
        }
    }

    fn answers(&self) -> MutexGuard<'_, Answers> {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is known of a token.
    ///
    /// # Errors
    /// The reviewer's, or that there are too many new tokens.
    pub async fn review(&self, token: &str) -> Result<Review, String> {
        let key = token_digest(token);
        let known = || self.answers().get(&key, Instant::now());
        if let Some(known) = known() {
            return Ok(known);
        }
        let was_allowed = self.answers().was_allowed(&key);
        let _turn = self.turns[usize::from(was_allowed)].lock().await;
        // Another caller with the same token may have had the turn before.
        if let Some(known) = known() {
            return Ok(known);
        }
        let asked_at = Instant::now();
        let per_second = self.new_per_second;
        if !was_allowed && !self.answers().count_new(per_second, asked_at) {
            return Err(format!(
                "this server reviews {per_second} new tokens a second, and more have come: find out who sends them"
            ));
        }
        let review = self.reviewer.review(token).await?;
        self.answers().put(key, &review, asked_at);
        Ok(review)
    }

    /// Routes that answer only to those who may read the metrics.
    pub fn protect(self: &Arc<Self>, routes: Router) -> Router {
        routes.layer(from_fn_with_state(Arc::clone(self), check))
    }
}

fn token_digest(token: &str) -> TokenDigest {
    let mut bytes = TokenDigest::default();
    bytes.copy_from_slice(digest(&SHA256, token.as_bytes()).as_ref());
    bytes
}

async fn check(State(access): State<Arc<MetricsAccess>>, request: Request, next: Next) -> Response {
    let Some(token) = bearer_token(request.headers()) else {
        return unauthorized(
            "the request has no token: send the header `Authorization: Bearer TOKEN`, for example with a token of \
             `kubectl -n weft-system create token weft-metrics-reader`\n"
                .to_owned(),
        );
    };
    match access.review(token).await {
        Ok(Review { verdict, .. }) => match verdict {
            Verdict::Allowed { .. } => next.run(request).await,
            Verdict::Forbidden { user } => {
                let text = format!(
                    "{user} may not `get` the nonResourceURL /metrics: bind a ClusterRole that has this right, for example by \
                     `kubectl create clusterrolebinding read-weft-metrics --clusterrole=weft-metrics-reader --user={user}`\n"
                );
                (StatusCode::FORBIDDEN, text).into_response()
            }
            Verdict::Unknown { problem } => unauthorized(format!(
                "the token is nobody's ({problem}): send one of this cluster that has not ended, for example of \
                 `kubectl -n weft-system create token weft-metrics-reader`\n"
            )),
        },
        Err(problem) => {
            let text = format!("the token cannot be checked now: {problem}\n");
            (StatusCode::SERVICE_UNAVAILABLE, text).into_response()
        }
    }
}

/// The token of a request (RFC 6750, section 2.1).
fn bearer_token(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = value.split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}

fn unauthorized(text: String) -> Response {
    let how = HeaderValue::from_static("Bearer realm=\"weft metrics\"");
    let headers = [(header::WWW_AUTHENTICATE, how)];
    (StatusCode::UNAUTHORIZED, headers, text).into_response()
}

/// What a page of metrics answers without TLS: a token that was sent so could be read on its way.
pub(crate) async fn refuse_without_tls() -> (StatusCode, &'static str) {
    let text = "metrics need TLS and a token: call this address by https, with the header `Authorization: Bearer TOKEN`; \
                the chart's value metrics.auth turns both off\n";
    (StatusCode::FORBIDDEN, text)
}

#[cfg(test)]
mod tests {
    use std::{
        net::SocketAddr,
        sync::atomic::{AtomicUsize, Ordering},
    };

    use axum::routing::get;
    use rustls::{ClientConfig, crypto::ring, pki_types::ServerName};
    use tokio::{
        io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
        net::{TcpListener, TcpStream},
        sync::watch,
    };
    use tokio_rustls::TlsConnector;

    use super::*;
    use crate::{
        AGENT_NAME, OPERATOR_NAME,
        authority::Authority,
        health_server::{self, Pages},
        tls,
    };

    const USER: &str = "system:serviceaccount:monitoring:prometheus";

    fn allowed() -> Verdict {
        Verdict::Allowed {
            user: USER.to_owned(),
        }
    }

    fn unknown() -> Verdict {
        Verdict::Unknown {
            problem: "expired".to_owned(),
        }
    }

    #[test]
    fn an_answer_counts_for_its_time_and_no_longer() {
        let (mut answers, now) = (Answers::default(), Instant::now());
        let (good, bad) = (token_digest("good"), token_digest("bad"));
        answers.put(good, &allowed().review(), now);
        answers.put(bad, &unknown().review(), now);
        let tick = Duration::from_millis(1);
        for (token, verdict, life) in [
            (good, allowed(), ALLOWED_FOR),
            (bad, unknown(), REFUSED_FOR),
        ] {
            let last = answers.get(&token, now + life - tick).unwrap();
            assert_eq!((last.verdict, last.valid_for), (verdict, tick));
            assert_eq!(answers.get(&token, now + life), None);
        }
        // A reader is known for longer, and not for ever.
        for (later, known) in [(tick, true), (KNOWN_FOR, false)] {
            answers.put(bad, &unknown().review(), now + ALLOWED_FOR + later);
            assert_eq!(answers.was_allowed(&good), known);
        }
    }

    #[test]
    fn made_up_tokens_do_not_displace_a_reader_and_take_bounded_memory() {
        let (mut answers, now) = (Answers::default(), Instant::now());
        let reader = token_digest("reader");
        answers.put(reader, &allowed().review(), now);
        // Its answer would end before theirs.
        let later = now + ALLOWED_FOR - Duration::from_secs(1);
        for number in 0..1000 {
            let made_up = token_digest(&format!("made up {number}"));
            answers.put(made_up, &unknown().review(), later);
        }
        assert_eq!(answers.verdicts.len(), TOKENS_MAX);
        assert!(answers.get(&reader, later).is_some());
    }

    /// Counts what it is asked; none of its answers comes before [`Reviewer::review`] was polled by all.
    #[derive(Debug, Default)]
    struct Slow {
        asked: Arc<AtomicUsize>,
        at_once: Arc<AtomicUsize>,
        most: Arc<AtomicUsize>,
    }

    #[tonic::async_trait]
    impl Reviewer for Slow {
        async fn review(&self, token: &str) -> Result<Review, String> {
            self.asked.fetch_add(1, Ordering::Relaxed);
            let at_once = self.at_once.fetch_add(1, Ordering::Relaxed) + 1;
            self.most.fetch_max(at_once, Ordering::Relaxed);
            for _ in 0..10 {
                tokio::task::yield_now().await;
            }
            self.at_once.fetch_sub(1, Ordering::Relaxed);
            match token.starts_with("away") {
                true => Err("no operator".to_owned()),
                false => Ok(allowed().review()),
            }
        }
    }

    /// A server that asks about ten new tokens at once, and then one a second.
    fn slow() -> (MetricsAccess, [Arc<AtomicUsize>; 2]) {
        let (asked, most) = (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
        let reviewer = Slow {
            asked: Arc::clone(&asked),
            most: Arc::clone(&most),
            at_once: Arc::default(),
        };
        (MetricsAccess::new(reviewer, NonZeroU32::MIN), [asked, most])
    }

    #[tokio::test(start_paused = true)]
    async fn callers_with_one_token_share_a_review_and_one_new_token_is_reviewed_at_a_time() {
        let (access, [asked, most]) = slow();
        let all = async |tokens: Vec<String>| {
            let reviews = tokens.iter().map(|token| access.review(token));
            let answers = futures::future::join_all(reviews).await;
            assert!(answers.iter().all(Result::is_ok));
        };
        all(vec!["one".to_owned(); 20]).await;
        assert_eq!(asked.load(Ordering::Relaxed), 1);
        all((0..9).map(|number| number.to_string()).collect()).await;
        assert_eq!(most.load(Ordering::Relaxed), 1);
        // Another review when the minute is over, for all.
        let before = asked.load(Ordering::Relaxed);
        all(vec!["one".to_owned(); 20]).await;
        assert_eq!(asked.load(Ordering::Relaxed), before);
        tokio::time::advance(ALLOWED_FOR).await;
        all(vec!["one".to_owned(); 20]).await;
        assert_eq!(asked.load(Ordering::Relaxed), before + 1);
    }

    #[tokio::test(start_paused = true)]
    async fn few_new_tokens_are_reviewed_and_those_allowed_before_always() {
        let (access, [asked, _]) = slow();
        access.review("reader").await.unwrap();
        // The reader's answer has ended, and reviews of new tokens all fail.
        tokio::time::advance(ALLOWED_FOR).await;
        let before = asked.load(Ordering::Relaxed);
        let burst = usize::try_from(BURST.as_secs()).unwrap();
        for number in 0..2 * burst {
            let refused = access.review(&format!("away {number}")).await.unwrap_err();
            let text = match number < burst {
                true => "no operator",
                false => "this server reviews 1 new tokens a second",
            };
            assert!(refused.contains(text), "{number}: {refused}");
        }
        assert_eq!(asked.load(Ordering::Relaxed), before + burst);
        access.review("reader").await.unwrap();
        assert_eq!(asked.load(Ordering::Relaxed), before + burst + 1);
        tokio::time::advance(Duration::from_secs(1)).await;
        for _ in 0..10 {
            access.review("away").await.unwrap_err();
        }
        assert_eq!(asked.load(Ordering::Relaxed), before + burst + 2);
    }

    #[test]
    fn a_token_is_what_follows_bearer() {
        let of = |value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::AUTHORIZATION, value.parse().unwrap());
            bearer_token(&headers).map(str::to_owned)
        };
        assert_eq!(of("Bearer a.b.c").as_deref(), Some("a.b.c"));
        assert_eq!(of("bearer  a.b.c").as_deref(), Some("a.b.c"));
        for none in ["Basic YTpi", "Bearer", "Bearer ", "a.b.c"] {
            assert_eq!(of(none), None, "{none}");
        }
    }

    /// Knows `reader` and `guest`, of whom `reader` may read, and is away when asked about `away`.
    #[derive(Debug)]
    struct Table;

    #[tonic::async_trait]
    impl Reviewer for Table {
        async fn review(&self, token: &str) -> Result<Review, String> {
            let user = token.to_owned();
            match token {
                "reader" => Ok(Verdict::Allowed { user }.review()),
                "guest" => Ok(Verdict::Forbidden { user }.review()),
                "away" => Err("the operator cannot be reached".to_owned()),
                _ => Ok(unknown().review()),
            }
        }
    }

    /// A server with a page of metrics and one for probes, whose certificate is `certificate`.
    async fn server(certificate: health_server::Certificate) -> SocketAddr {
        let access = Arc::new(MetricsAccess::new(Table, NonZeroU32::MIN));
        let healthz = Router::new().route("/healthz", get(|| async { "ok\n" }));
        let metrics = Router::new().route("/metrics", get(|| async { "weft_up 1\n" }));
        let plain = Router::new().route("/metrics", get(refuse_without_tls));
        let pages = Pages {
            plain: plain.merge(healthz.clone()),
            tls: Some((certificate, access.protect(metrics).merge(healthz))),
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(health_server::serve(listener, pages));
        address
    }

    async fn ask(
        mut stream: impl AsyncRead + AsyncWrite + Unpin,
        path: &str,
        token: &str,
    ) -> String {
        let token = match token {
            "" => String::new(),
            token => format!("Authorization: Bearer {token}\r\n"),
        };
        let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\n{token}Connection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    /// Over TLS to a server that must show a certificate of this authority with this name.
    async fn ask_tls(
        address: SocketAddr,
        (authority, name): (&Authority, &'static str),
        path: &str,
        token: &str,
    ) -> std::io::Result<String> {
        let roots = tls::roots(authority.certificate().as_bytes()).unwrap();
        let provider = Arc::new(ring::default_provider());
        let client = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let name = ServerName::try_from(name).unwrap();
        let stream = TcpStream::connect(address).await?;
        let stream = TlsConnector::from(Arc::new(client)).connect(name, stream);
        Ok(ask(stream.await?, path, token).await)
    }

    #[tokio::test]
    async fn metrics_are_given_over_tls_to_those_who_may_read_and_others_learn_what_they_lack() {
        let authority = Authority::new("lab").unwrap();
        let node = authority.node("n1").unwrap();
        let config = tls::page_server(node.certificate.as_bytes(), node.key.as_bytes()).unwrap();
        let (_sender, certificate) = watch::channel(Some(Arc::new(config)));
        let address = server(certificate).await;
        for (token, status, text) in [
            ("reader", "200 OK", "weft_up 1"),
            (
                "guest",
                "403 Forbidden",
                "guest may not `get` the nonResourceURL /metrics",
            ),
            (
                "guest",
                "403 Forbidden",
                "--clusterrole=weft-metrics-reader",
            ),
            ("", "401 Unauthorized", "the request has no token"),
            ("made-up", "401 Unauthorized", "nobody's (expired)"),
            (
                "away",
                "503 Service Unavailable",
                "the operator cannot be reached",
            ),
        ] {
            let answer = ask_tls(address, (&authority, AGENT_NAME), "/metrics", token).await;
            let answer = answer.unwrap();
            assert!(
                answer.starts_with(&format!("HTTP/1.1 {status}")),
                "{answer}"
            );
            assert!(answer.contains(text), "{token}: {answer}");
            assert_eq!(answer.contains("weft_up"), token == "reader", "{answer}");
            let says_how = answer.contains("www-authenticate: Bearer");
            assert_eq!(says_how, status.starts_with("401"), "{answer}");
        }
        // A server that shows another name, or a certificate of another authority, gets no token.
        let other = Authority::new("lab").unwrap();
        for wrong in [(&authority, OPERATOR_NAME), (&other, AGENT_NAME)] {
            let refused = ask_tls(address, wrong, "/metrics", "reader").await;
            assert!(refused.is_err(), "{refused:?}");
        }
    }

    #[tokio::test]
    async fn probes_need_neither_tls_nor_token_and_metrics_are_not_given_without_tls() {
        let (sender, certificate) = watch::channel(None);
        let address = server(certificate).await;
        let plain = async |path, token| {
            let stream = TcpStream::connect(address).await.unwrap();
            ask(stream, path, token).await
        };
        let authority = Authority::new("lab").unwrap();
        let asked = (&authority, OPERATOR_NAME);
        // Before there is a certificate, too.
        assert!(plain("/healthz", "").await.ends_with("ok\n"));
        assert!(ask_tls(address, asked, "/healthz", "").await.is_err());
        let own = authority.operator_server(&[]).unwrap();
        let config = tls::page_server(own.certificate.as_bytes(), own.key.as_bytes()).unwrap();
        sender.send_replace(Some(Arc::new(config)));
        assert!(plain("/healthz", "").await.ends_with("ok\n"));
        let healthz = ask_tls(address, asked, "/healthz", "").await.unwrap();
        assert!(healthz.ends_with("ok\n"), "{healthz}");
        let refused = plain("/metrics", "reader").await;
        assert!(refused.starts_with("HTTP/1.1 403 "), "{refused}");
        assert!(refused.contains("need TLS and a token"), "{refused}");
    }
}

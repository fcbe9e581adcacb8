//! A web server with a few objects and with the faults of real ones.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

/// What is wrong with an answer to GET.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AnswerFault {
    /// This status, and nothing else.
    Status(u16),
    /// So many bytes, and then silence.
    Stall(usize),
    /// So many bytes, and then one after the other, ten a second.
    Trickle(usize),
    /// So many bytes, and the end of the connection.
    Truncate(usize),
    /// This status, and a body without end.
    Endless(u16),
}

/// What the server does.
#[derive(Debug, Default)]
pub(crate) struct Contents {
    pub(crate) objects: BTreeMap<String, Vec<u8>>,
    /// "" for none.
    pub(crate) etag: String,
    /// For the next GETs, one after the other.
    pub(crate) faults: VecDeque<AnswerFault>,
    /// After so many GETs all that follow are refused.
    pub(crate) refuses_after: Option<usize>,
    /// What the object that is asked for is once the next GET is answered.
    pub(crate) replaced_by: Option<Vec<u8>>,
    /// The ETag once the next GET is answered.
    pub(crate) next_etag: Option<String>,
    /// What a list is answered with, in S3's manner or in Azure's.
    pub(crate) list: Vec<u8>,
    /// No request is answered.
    pub(crate) silent: bool,
    /// Where every request is sent on to.
    pub(crate) sends_on_to: Option<String>,
    /// Ranges are ignored.
    pub(crate) whole_only: bool,
    /// What was asked for: path and range, of GETs.
    pub(crate) asked: Vec<(String, Option<(usize, usize)>)>,
    /// What requests showed that is nobody else's, as `name: value`.
    pub(crate) shown: Vec<String>,
    /// What was posted, as it is in the URL.
    pub(crate) posted: Vec<String>,
}

/// A running server; it ends with its runtime.
pub(crate) struct S3Server {
    pub(crate) address: String,
    pub(crate) contents: Arc<Mutex<Contents>>,
}

impl S3Server {
    pub(crate) async fn open(objects: &[(&str, &[u8])]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let object = |(name, bytes): &(&str, &[u8])| ((*name).to_owned(), bytes.to_vec());
        let contents = Arc::new(Mutex::new(Contents {
            objects: objects.iter().map(object).collect(),
            etag: "\"v1\"".to_owned(),
            ..Contents::default()
        }));
        let served = contents.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, served.clone()));
            }
        });
        Self { address, contents }
    }

    pub(crate) fn url(&self, name: &str) -> String {
        format!("http://{}/{name}", self.address)
    }

    pub(crate) fn change<T>(&self, change: impl FnOnce(&mut Contents) -> T) -> T {
        change(&mut self.contents.lock().unwrap())
    }
}

async fn serve(mut stream: TcpStream, contents: Arc<Mutex<Contents>>) {
    let mut head = Vec::new();
    let mut byte = [0];
    // One request after the other on a connection, until it is hung up.
    while stream.read_exact(&mut byte).await.is_ok() {
        head.push(byte[0]);
        if !head.ends_with(b"\r\n\r\n") {
            continue;
        }
        let text = String::from_utf8(std::mem::take(&mut head)).unwrap();
        if contents.lock().unwrap().silent {
            return std::future::pending().await;
        }
        let (answer, fault) = contents.lock().unwrap().answer(&text);
        let cut = match fault {
            Some(
                AnswerFault::Stall(bytes)
                | AnswerFault::Trickle(bytes)
                | AnswerFault::Truncate(bytes),
            ) => bytes,
            _ => usize::MAX,
        };
        let header = answer.0.len();
        let whole = [answer.0.into_bytes(), answer.1].concat();
        let sent = whole.len().min(header.saturating_add(cut));
        if stream.write_all(&whole[..sent]).await.is_err() {
            return;
        }
        match fault {
            Some(AnswerFault::Stall(_)) => std::future::pending().await,
            Some(AnswerFault::Trickle(_)) => {
                let mut pause = tokio::time::interval(Duration::from_millis(100));
                for byte in &whole[sent..] {
                    pause.tick().await;
                    if stream.write_all(&[*byte]).await.is_err() {
                        return;
                    }
                }
            }
            Some(AnswerFault::Truncate(_)) => return,
            Some(AnswerFault::Endless(_)) => {
                while stream.write_all(&[b'!'; 4096]).await.is_ok() {}
                return;
            }
            _ => {}
        }
    }
}

type Answer = (String, Vec<u8>);

impl Contents {
    fn answer(&mut self, request: &str) -> (Answer, Option<AnswerFault>) {
        let header = |name: &str| {
            let mut lines = request.lines();
            lines.find_map(|line| {
                let (key, value) = line.split_once(": ")?;
                key.eq_ignore_ascii_case(name).then(|| value.to_owned())
            })
        };
        let mut words = request.split(' ');
        let (method, path) = (words.next().unwrap(), words.next().unwrap());
        for secret in ["authorization", "x-amz-security-token", "referer"] {
            let shown = header(secret).map(|value| format!("{secret}: {value}"));
            self.shown.extend(shown);
        }
        if let Some(to) = &self.sends_on_to {
            let head = format!(
                "HTTP/1.1 307 Elsewhere\r\nLocation: {to}{path}\r\nContent-Length: 0\r\n\r\n"
            );
            return ((head, Vec::new()), None);
        }
        if path.contains("list-type=2") || path.contains("comp=list") {
            let length = self.list.len();
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n");
            return ((head, self.list.clone()), None);
        }
        let mut name = path.trim_start_matches('/').to_owned();
        if method == "POST" {
            name.truncate(name.find('?').unwrap_or(name.len()));
            self.posted.push(path.to_owned());
        }
        let Some(bytes) = self.objects.get(&name).cloned() else {
            return (status(404), None);
        };
        let etag = self.etag.clone();
        let tag = match etag.as_str() {
            "" => String::new(),
            etag => format!("ETag: {etag}\r\n"),
        };
        if method == "HEAD" {
            let length = bytes.len();
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n{tag}\r\n");
            return ((head, Vec::new()), None);
        }
        let range = header("range").map(|range| {
            let (first, last) = range.trim_start_matches("bytes=").split_once('-').unwrap();
            (first.parse().unwrap(), last.parse::<usize>().unwrap() + 1)
        });
        if let Some(next) = self.replaced_by.take() {
            self.objects.insert(name.clone(), next);
        }
        if let Some(next) = self.next_etag.take() {
            self.etag = next;
        }
        self.asked.push((name, range));
        let fault = self.faults.pop_front();
        if let Some(AnswerFault::Status(code)) = fault {
            return (status(code), fault);
        }
        if let Some(AnswerFault::Endless(code)) = fault {
            let head = format!("HTTP/1.1 {code} AnswerFault\r\nConnection: close\r\n\r\n");
            return ((head, Vec::new()), fault);
        }
        if self
            .refuses_after
            .is_some_and(|count| self.asked.len() > count)
        {
            return (status(403), None);
        }
        if header("if-match").is_some_and(|wanted| wanted != etag) {
            return (status(412), None);
        }
        let total = bytes.len();
        let (code, part, more) = match range {
            Some((first, end)) if !self.whole_only => {
                let more = format!("Content-Range: bytes {first}-{}/{total}\r\n", end - 1);
                ("206 Partial Content", bytes[first..end].to_vec(), more)
            }
            _ => ("200 OK", bytes, String::new()),
        };
        let length = part.len();
        let head = format!("HTTP/1.1 {code}\r\nContent-Length: {length}\r\n{tag}{more}\r\n");
        ((head, part), fault)
    }
}

fn status(code: u16) -> Answer {
    let head = format!("HTTP/1.1 {code} AnswerFault\r\nContent-Length: 0\r\n\r\n");
    (head, Vec::new())
}

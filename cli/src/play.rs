//! `weft play`: a small fabric, the agents and the planner of a cluster, and one transfer.
//!
//! It builds the fabric in namespaces that end with it, makes a certificate authority, starts an
//! agent per node, and plays the operator ([`weft_transfer`]). Where namespaces are refused the
//! agents run on loopback with one path. Nothing is left behind but what `--out` or `--keep` asked
//! for.
//!
//! | exit status | |
//! |---|---|
//! | 0 | every destination is Verified, and every fault that was asked for has happened |
//! | 1 | not so; the reason is on standard error, or in the summary |
//! | 2 | the arguments make no sense |
//! | 128 + n | ended by signal n |

mod arguments;
mod error;
mod out;
mod page;
mod progress;
mod report;
mod scratch;
mod session;
mod usage_error;

use std::{
    io::{self, IsTerminal, Write},
    time::Duration,
};

use tokio::signal::unix::{SignalKind, signal};
use weft_fabric::isolation::{self, Entered};

pub use arguments::{Args, Data, Destinations, Fault, FaultKind, Moment, Settings, Verification};
pub use error::PlayError;
pub use progress::{Rate, style as bar_style};
pub use report::{Chunks, FaultReport, Happened, NodeReport, Report, Summary};
pub use usage_error::UsageError;

use crate::stage;
use page::Page;

/// The arguments make no sense.
const USAGE: u8 = 2;
/// It did not work.
const FAILED: u8 = 1;
/// What shells report for a program that ended by a signal: this plus the signal's number.
const SIGNALLED: u8 = 128;
/// What still runs by then on other threads ends with the process.
const SHUTDOWN: Duration = Duration::from_millis(500);

/// Plays, and gives the exit status. Call it before any thread is started.
pub fn run(args: &Args, out: &mut impl Write, err: &mut impl Write) -> u8 {
    let settings = match args.check() {
        Ok(settings) => settings,
        Err(error) => return complain(err, &error, USAGE),
    };
    let program = match stage::find(stage::Program::Agent) {
        Ok(program) => program,
        Err(error) => return failed(&settings, &error.into(), out, err),
    };
    if let Some(port) = settings.ui_port
        && let Err(source) = page::listen(port)
    {
        let error = PlayError::PageNotServed { port, source };
        return failed(&settings, &error, out, err);
    }
    match isolation::enter() {
        Ok(Entered::Ended(status)) => return status,
        Ok(Entered::Inside) => {}
        Err(refused) if settings.of_fabric.is_empty() => {
            let text =
                format!("{refused}\nplaying over loopback instead, with one path and no spines");
            complain(err, &text, 0);
        }
        Err(source) => {
            let flags = settings.of_fabric.join(", ");
            let error = PlayError::NeedsFabric { flags, source };
            return failed(&settings, &error, out, err);
        }
    }
    // The control plane is idle most of the time, and a runtime of several threads waits for ever for one that the system
    // does not give.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => return failed(&settings, &PlayError::Runtime(error), out, err),
    };
    // On the main thread: loopback agents die with the thread that started them.
    let outcome = runtime.block_on(until_signalled(&settings, &program, out, err));
    runtime.shutdown_timeout(SHUTDOWN);
    match outcome {
        Ok(true) => 0,
        Ok(false) => FAILED,
        Err(error) => failed(&settings, &error, out, err),
    }
}

/// Says why there is no result, and what is left; gives the exit status.
fn failed(
    settings: &Settings,
    error: &PlayError,
    out: &mut impl Write,
    err: &mut impl Write,
) -> u8 {
    if settings.json {
        let (reason, message) = (error.reason(), error.to_string());
        let text = serde_json::json!({"error": {"reason": reason, "message": message}});
        // Nobody may be listening; the status says it too.
        let _ = writeln!(out, "{text}");
    }
    let status = match error {
        PlayError::Signalled { number } => SIGNALLED.saturating_add(*number),
        _ => FAILED,
    };
    // What another run writes is not left.
    let is_ours = !matches!(error, PlayError::OutInUse { .. });
    let out = settings.out.as_deref().filter(|_| is_ours);
    if let Some(text) = out.and_then(out::left) {
        complain(err, &text, status);
    }
    match error {
        // Who sent it knows.
        PlayError::Signalled { .. } => status,
        error => complain(err, error, status),
    }
}

fn complain(err: &mut impl Write, text: &impl std::fmt::Display, status: u8) -> u8 {
    // Nobody may be listening; the status says it too.
    let _ = writeln!(err, "weft play: {text}");
    status
}

async fn until_signalled(
    settings: &Settings,
    program: &std::path::Path,
    out: &mut impl Write,
    err: &mut impl Write,
) -> Result<bool, PlayError> {
    let kinds = [
        SignalKind::interrupt(),
        SignalKind::terminate(),
        SignalKind::hangup(),
        SignalKind::quit(),
    ];
    let [mut interrupt, mut terminate, mut hangup, mut quit] = kinds.map(signal);
    let came = |kind: SignalKind| PlayError::Signalled {
        number: u8::try_from(kind.as_raw_value()).unwrap_or_default(),
    };
    let mut signalled = async || {
        tokio::select! {
            () = arrives(&mut interrupt) => kinds[0],
            () = arrives(&mut terminate) => kinds[1],
            () = arrives(&mut hangup) => kinds[2],
            () = arrives(&mut quit) => kinds[3],
        }
    };
    let mut page = match settings.ui_port {
        Some(port) => Some(serve(port)?),
        None => None,
    };
    if let Some(page) = &page {
        complain(err, &format!("the fabric's page: {}", page.url()), 0);
    }
    let terminal = io::stderr().is_terminal();
    let playing = session::play(settings, program, terminal, page.as_mut(), out, err);
    let played = tokio::select! {
        outcome = playing => outcome?,
        signal = signalled() => return Err(came(signal)),
    };
    if let Some(page) = &page {
        let text = format!("the fabric's page stays until Ctrl-C: {}", page.url());
        complain(err, &text, 0);
        signalled().await;
    }
    Ok(played.is_good)
}

fn serve(port: u16) -> Result<Page, PlayError> {
    let page = page::take_listener().and_then(Page::serve);
    page.map_err(|source| PlayError::PageNotServed { port, source })
}

/// Never, where the signal cannot be watched: it then ends the process at once, and isolation the
/// rest.
async fn arrives(signal: &mut io::Result<tokio::signal::unix::Signal>) {
    if let Ok(signal) = signal
        && signal.recv().await.is_some()
    {
        return;
    }
    std::future::pending::<()>().await;
}

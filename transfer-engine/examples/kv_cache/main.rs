//! Disaggregated inference: a prefiller computes a KV cache, and writes it layer by layer into the memory of a decoder.
//!
//! ```text
//! cargo run --release -p weft-transfer-engine --example kv_cache
//! ```
//!
//! This process becomes the decoder, and starts two prefillers, each as a process. It shows:
//!
//! 1. **The transfer.** The decoder sends a request with its pages. The prefiller increments a watched word after each layer,
//!    and the callback of the watcher submits the pages of that layer. No message says that the cache is complete: the decoder
//!    waits for a count of immediates. Then it checks each byte.
//! 2. **A cancel.** The client hangs up in the middle. The prefiller answers when no byte of its writes lands any more, and the
//!    decoder gives the pages to another request at once.
//! 3. **A dead prefiller.** It is killed in the middle. A heartbeat ends in an error that names the peer and the stage. The
//!    decoder closes the key of the request, and the other prefiller fills the same pages.
//!
//! On several machines: `kv_cache prefiller IP` prints an address, which is a secret. `kv_cache decoder IP` reads two
//! addresses, one in a line, and prints when it is time to kill the first prefiller. Ctrl-D ends a prefiller.
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "the program talks to people"
)]

mod decoder;
mod prefiller;
mod request;

use std::error::Error;
use std::io::{BufRead, BufReader};
use std::net::{IpAddr, Ipv4Addr};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use weft_transfer_engine::{EngineAddress, TransferEngine, TransferEngineConfig};

use decoder::Decoder;
use request::{LAYERS, PAGES, TRANSFERS};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let nic = arguments
        .get(1)
        .map_or(Ok(Ipv4Addr::LOCALHOST.into()), |ip| ip.parse());
    let engine = start_engine(nic.map_err(|_| "the second argument is the IP address of a NIC")?)?;
    match arguments.first().map(String::as_str) {
        None => {
            let (mut first, first_address) = start_prefiller()?;
            let (mut second, second_address) = start_prefiller()?;
            decode(engine, &[first_address, second_address], || first.kill())?;
            first.wait()?;
            // The end of its input ends it.
            drop(second.stdin.take());
            second.wait()?;
            Ok(())
        }
        Some("prefiller") => prefiller::run(engine),
        Some("decoder") => {
            let mut lines = std::io::stdin().lines();
            let mut next = || -> Result<EngineAddress> {
                let line = lines
                    .next()
                    .ok_or("the address of a prefiller is missing")?;
                Ok(line?.parse()?)
            };
            decode(engine, &[next()?, next()?], || Ok(()))
        }
        Some(role) => Err(format!("{role} is no role: prefiller, decoder, or none for all").into()),
    }
}

fn start_engine(nic: IpAddr) -> Result<TransferEngine> {
    Ok(TransferEngine::start(TransferEngineConfig {
        nics: vec![nic],
        // A busy laptop may need more than the default.
        cancel_timeout: Duration::from_secs(3),
        ..TransferEngineConfig::default()
    })?)
}

/// Starts this program as a prefiller. It runs until its input ends.
fn start_prefiller() -> Result<(Child, EngineAddress)> {
    let mut process = Command::new(std::env::current_exe()?)
        .arg("prefiller")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let output = process.stdout.take().ok_or("its output is piped")?;
    let mut line = String::new();
    BufReader::new(output).read_line(&mut line)?;
    Ok((process, line.parse()?))
}

/// What the decoder does with two prefillers.
fn decode(
    engine: TransferEngine,
    prefillers: &[EngineAddress; 2],
    kill_first: impl FnOnce() -> std::io::Result<()>,
) -> Result<()> {
    let decoder = Decoder::new(engine)?;
    let [a, b] = prefillers;

    let first = decoder.ask(1, a, 0, LAYERS)?;
    decoder.wait(&first, TRANSFERS)?;
    decoder.check(&first)?;
    println!("request 1: {LAYERS} layers and the tail are here, and each byte is right");

    // Its last layer never comes.
    let second = decoder.ask(2, a, PAGES, LAYERS - 1)?;
    decoder.wait(&second, 1)?;
    decoder.cancel(&second)?;
    println!("request 2: the prefiller confirms the cancel: no byte lands any more");
    let third = decoder.ask(3, b, PAGES, LAYERS)?;
    decoder.wait(&third, TRANSFERS)?;
    decoder.check(&third)?;
    println!("request 3: the pages of request 2 were used again at once, and each byte is right");

    let fourth = decoder.ask(4, a, 2 * PAGES, 3)?;
    let fifth = decoder.ask(5, b, 3 * PAGES, LAYERS)?;
    decoder.wait(&fourth, 3)?;
    println!(
        "request 4: 3 of {LAYERS} layers are here: kill the prefiller {}",
        a.name()
    );
    kill_first()?;
    match decoder.wait(&fourth, TRANSFERS) {
        Ok(()) => return Err("the prefiller of request 4 should be dead".into()),
        Err(error) => println!("request 4: {error}"),
    }
    decoder.wait(&fifth, TRANSFERS)?;
    decoder.check(&fifth)?;
    println!("request 5: the other prefiller goes on, and each byte is right");
    // Nobody confirms that nothing lands. The closed key sees to it.
    drop(fourth);
    let sixth = decoder.ask(6, b, 2 * PAGES, LAYERS)?;
    decoder.wait(&sixth, TRANSFERS)?;
    // No late byte of another request has landed in any of them.
    for request in [&first, &third, &fifth, &sixth] {
        decoder.check(request)?;
    }
    println!(
        "request 6: the pages of request 4 were used again, and each byte of all requests is right"
    );
    Ok(())
}

//! The house's own lints and generators: `cargo run -p xtask -- lint | generate | generate --check`.
//!
//! Called by `make lint`, `make generate` and by CI. A lint reads the repository's files and what
//! cargo says about its crates, and changes nothing. Only `generate` writes, and only between the
//! markers of a file that is committed.
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command-line tool's output is its product"
)]

mod crates;
mod generate;
mod rules;
mod source;
mod tree;

use std::process::ExitCode;

use rules::Weight;
use tree::Tree;

const USAGE: &str = "usage: cargo run -p xtask -- lint | generate | generate --check";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let command: fn(&Tree) -> ExitCode = match arguments.as_slice() {
        ["lint"] => lint,
        ["generate"] => generate,
        ["generate", "--check"] => generate_check,
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match Tree::load() {
        Ok(tree) => command(&tree),
        Err(error) => {
            eprintln!("xtask: {error}");
            ExitCode::from(2)
        }
    }
}

/// Prints every finding; fails when one of them breaks a rule.
fn lint(tree: &Tree) -> ExitCode {
    let mut broken = 0_usize;
    for rule in rules::ALL {
        let findings = (rule.check)(tree);
        if findings.is_empty() {
            continue;
        }
        let word = match rule.weight {
            Weight::Error => "error",
            Weight::Report => "note",
        };
        for finding in &findings {
            println!("{word}[{}] {finding}", rule.id);
        }
        println!("  rule: {}\n  why:  {}", rule.says, rule.why);
        if rule.weight == Weight::Error {
            broken += findings.len();
        }
    }
    println!(
        "{} rules over {} files: {broken} broken",
        rules::ALL.len(),
        tree.files().len()
    );
    if broken == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Writes every generated section that differs from its source.
fn generate(tree: &Tree) -> ExitCode {
    for change in generate::changes(tree) {
        match change.write(tree.root()) {
            Ok(()) => println!("wrote {}", change.path),
            Err(error) => {
                eprintln!("xtask: {}: {error}", change.path);
                return ExitCode::FAILURE;
            }
        }
    }
    ExitCode::SUCCESS
}

/// Names every generated section that differs from its source, and writes nothing.
fn generate_check(tree: &Tree) -> ExitCode {
    let changes = generate::changes(tree);
    for change in &changes {
        println!(
            "error: {} differs from its source; run `make generate`",
            change.path
        );
    }
    if changes.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

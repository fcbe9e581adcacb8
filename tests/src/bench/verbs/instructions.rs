//! Instructions that a program executes to post a write and to take its completion, counted by callgrind.
//!
//! The program runs twice, with so many writes and with twice as many; the difference leaves its start out.

use std::fs;
use std::process::Command;

use super::BenchError;
use super::devices::{Devices, Program};

const SOURCE: &str = include_str!("instructions.c");

/// Instructions of one write, by `count` of them.
pub(super) fn of_a_write(devices: &Devices<'_>, count: u64) -> Result<f64, BenchError> {
    let [source, program] = ["instructions.c", "instructions"].map(|name| devices.path(name));
    fs::write(&source, SOURCE).map_err(BenchError::system("instructions.c"))?;
    let mut compiler = Command::new("cc");
    compiler.args(["-O2", "-o"]).args([&program, &source]);
    let built = compiler
        .arg("-libverbs")
        .output()
        .map_err(BenchError::system("cc"))?;
    if !built.status.success() {
        return Err(failed("cc", &String::from_utf8_lossy(&built.stderr)));
    }
    let run = |count: u64| {
        let mut command = devices.command(0, "valgrind");
        command
            .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
            .arg(&program)
            .arg(count.to_string());
        let printed = Program::start("valgrind", command)?.output()?;
        collected(&printed).ok_or_else(|| failed("valgrind", &printed))
    };
    Ok((run(2 * count)? - run(count)?) / count as f64)
}

fn failed(program: &str, message: &str) -> BenchError {
    BenchError::Program {
        program: program.to_owned(),
        message: message.to_owned(),
    }
}

/// Callgrind's count: `==77== Collected : 1234`.
fn collected(printed: &str) -> Option<f64> {
    let line = printed.lines().find(|line| line.contains("Collected :"))?;
    line.split_whitespace().last()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_count_is_read_from_callgrinds_summary() {
        assert_eq!(
            collected("==7== Events    : Ir\n==7== Collected : 4321\n"),
            Some(4321.0)
        );
        assert_eq!(collected("==7== error: no such program\n"), None);
    }
}

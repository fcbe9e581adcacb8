//! Programs in C, compiled as a user compiles them: the header, the libraries and `weft.pc` are installed by the script that
//! `make install-c` calls, and `pkg-config` says the rest. Each program exits with 0 when all is as it should be.

use std::collections::BTreeSet;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

const C11: &[&str] = &["cc", "-std=c11"];
/// Also looks for leaks, and for uses of memory that was freed.
const SANITIZED: &[&str] = &["cc", "-g", "-std=c11", "-fsanitize=address,undefined"];
const CPP: &[&str] = &["c++", "-x", "c++", "-std=c++20"];

fn run(command: &mut Command) -> Output {
    let output = command.output();
    let output = output.unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {error}");
    output
}

fn text(output: Output) -> String {
    String::from_utf8(output.stdout).expect("it prints text")
}

/// Where it is installed.
fn prefix() -> &'static Path {
    static PREFIX: OnceLock<PathBuf> = OnceLock::new();
    PREFIX.get_or_init(|| {
        let prefix = Path::new(env!("CARGO_TARGET_TMPDIR")).join("weft-c");
        let _ = std::fs::remove_dir_all(&prefix);
        // Cargo has built the libraries beside this test.
        let test = std::env::current_exe().expect("this program has a path");
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let mut script = Command::new(root.join("hack/install-c.sh"));
        script.arg("--prefix").arg(&prefix);
        script
            .arg("--libraries")
            .arg(test.parent().expect("a folder"));
        run(&mut script);
        prefix
    })
}

fn pkg_config(arguments: &[&str]) -> Vec<String> {
    let mut command = Command::new("pkg-config");
    command.env("PKG_CONFIG_PATH", prefix().join("lib/pkgconfig"));
    let flags = text(run(command.args(arguments).arg("weft")));
    flags.split_whitespace().map(str::to_owned).collect()
}

fn compile(compiler: &[&str], program: &str, flags: &[String]) -> PathBuf {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs");
    let mut source = sources.join(program);
    if source.extension().is_none() {
        source.set_extension("c");
    }
    let kind = match flags.iter().any(|flag| flag.contains("libweft.a")) {
        true => "static",
        false => compiler[compiler.len() - 1],
    };
    let binary = prefix().join(format!("{program}{kind}"));
    let mut command = Command::new(compiler[0]);
    command.args(&compiler[1..]);
    command
        .args(["-Wall", "-Wextra", "-Werror", "-o"])
        .arg(&binary);
    run(command.arg(source).args(flags));
    binary
}

fn run_all_of(program: &str, compilers: &[&[&str]]) {
    for compiler in compilers {
        let binary = compile(compiler, program, &pkg_config(&["--cflags", "--libs"]));
        let mut command = Command::new(binary);
        let output = run(command.env("LD_LIBRARY_PATH", prefix().join("lib")));
        assert_eq!(text(output), format!("{program}: all as it should be\n"));
    }
}

#[test]
fn the_smallest_program_writes_eleven_bytes_with_either_library() {
    let shared = pkg_config(&["--cflags", "--libs"]);
    // As docs/c.md says.
    let linked = pkg_config(&["--cflags", "--static", "--libs"]);
    let linked = linked.iter().map(|flag| match flag.as_str() {
        "-lweft" => "-l:libweft.a".to_owned(),
        _ => flag.clone(),
    });
    let linked: Vec<_> = linked.collect();
    for (compiler, flags, folder) in [
        (C11, &shared, prefix().join("lib")),
        (CPP, &shared, prefix().join("lib")),
        (C11, &linked, PathBuf::from("/nonexistent")),
    ] {
        let mut command = Command::new(compile(compiler, "smallest", flags));
        let output = run(command.env("LD_LIBRARY_PATH", folder));
        assert_eq!(text(output), "done: hello, weft\n");
    }
}

#[test]
fn every_operation_works_between_engines_of_one_process() {
    run_all_of("operations", &[C11, CPP, SANITIZED]);
}

#[test]
fn another_process_is_written_to_stopped_and_killed() {
    run_all_of("processes", &[C11, CPP, SANITIZED]);
}

#[test]
fn several_threads_use_an_engine_and_an_operation_at_once() {
    run_all_of("threads", &[C11, CPP, SANITIZED]);
}

#[test]
fn what_a_program_does_wrong_is_named_and_begins_nothing() {
    run_all_of("arguments", &[C11, CPP, SANITIZED]);
}

#[test]
fn a_forked_program_is_told_to_start_an_engine_of_its_own() {
    // The sanitizer's own locks do not survive a fork among threads.
    run_all_of("fork", &[C11, CPP]);
}

#[test]
fn an_exception_of_a_callback_aborts_the_program_and_says_so() {
    let flags = pkg_config(&["--cflags", "--libs"]);
    let mut command = Command::new(compile(CPP, "exception.cpp", &flags));
    let output = command
        .env("LD_LIBRARY_PATH", prefix().join("lib"))
        .output();
    let output = output.expect("it starts");
    assert_eq!(output.status.signal(), Some(6), "SIGABRT");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.contains("foreign exception"), "{error}");
}

#[test]
fn the_header_declares_what_the_library_exports() {
    let library = prefix().join("lib/libweft.so");
    let symbols = text(run(Command::new("readelf")
        .args(["--dyn-syms", "--wide"])
        .arg(library)));
    let defined = |line: &&str| line.contains(" DEFAULT ") && !line.contains(" UND ");
    let symbols = symbols.lines().filter(defined);
    let exported: BTreeSet<&str> = symbols
        .filter_map(|line| line.split_whitespace().last())
        .collect();
    let header = std::fs::read_to_string(prefix().join("include/weft.h"));
    let header = header.expect("it is installed");
    let code = header.lines().filter(|line| !line.trim().starts_with("//"));
    let declared: BTreeSet<&str> = code
        .filter_map(|line| line.split_once('(')?.0.rsplit([' ', '*']).next())
        .filter(|name| name.starts_with("weft_"))
        .collect();
    assert!(declared.len() > 30, "{declared:?}");
    assert_eq!(exported, declared);
}

#[test]
fn valgrind_finds_no_fault_in_the_smallest_program() {
    let binary = compile(C11, "smallest", &pkg_config(&["--cflags", "--libs"]));
    let mut valgrind = Command::new("valgrind");
    valgrind.env("LD_LIBRARY_PATH", prefix().join("lib"));
    // It takes what the assembler of TLS computes for uninitialised. What std leaves to the end of a process is not lost
    // for certain.
    valgrind.args(["--quiet", "--error-exitcode=9", "--undef-value-errors=no"]);
    // Else a thread that polls keeps the others from their turn.
    valgrind.args(["--leak-check=full", "--fair-sched=try"]);
    valgrind.args([
        "--show-leak-kinds=definite",
        "--errors-for-leak-kinds=definite",
    ]);
    let output = run(valgrind.arg(binary));
    assert_eq!(text(output), "done: hello, weft\n");
}

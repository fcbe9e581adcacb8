//! Verbs programs of Debian, unmodified, over virtual devices: two devices of one node, each program as an ordinary user.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use weft_tests::{
    stdout_of,
    verbs::{Node, ended, listening},
};

/// Writes in batches of 64.
const WRITES: &str = include_str!("../src/bench/verbs/instructions.c");
/// Calls what devices do not have, and prints what does not fail as it should.
const UNSUPPORTED: &str = include_str!("../verbs/unsupported.c");
/// Posts by several threads, in forked children, and more than a queue takes.
const POSTING: &str = include_str!("../verbs/posting.c");
/// What each call does.
const DOCUMENT: &str = include_str!("../../docs/verbs.md");
/// What programs are built with.
const HEADER: &str = "/usr/include/infiniband/verbs.h";

/// A program at both devices: one waits, the other connects to it over 127.0.0.1. What both say.
fn pair(node: &Node, line: &str, port: u16) -> [String; 2] {
    let server = format!("{line} -d weft0 -p {port}");
    let waiting = listening(node.command(&server), port);
    let client = node.run(&format!("{line} -d weft1 -p {port} 127.0.0.1"));
    let told = [stdout_of(&server, &ended(waiting)), client];
    // So a ping-pong says it; it ends as if nothing were wrong.
    for told in &told {
        assert!(!told.contains("invalid data"), "{line}: {told}");
    }
    told
}

/// A program in C.
fn compiled(node: &Node, name: &str, source: &str) -> PathBuf {
    let [file, program] = [format!("{name}.c"), name.to_owned()].map(|name| node.path(&name));
    fs::write(&file, source).expect("it is ours");
    let mut compiler = Command::new("cc");
    compiler.args(["-O2", "-o"]).args([&program, &file]);
    let built = compiler.args(["-libverbs", "-ldl"]).output();
    stdout_of(name, &built.expect("a C compiler"));
    program
}

/// Programs at once would only wait for each other's turns, and each has a port of its own.
#[test]
fn programs_of_rdma_core_and_perftest_run_as_they_are() {
    let node = Node::default();
    let listed = node.run("ibv_devices");
    assert!(
        listed.contains("weft0") && listed.contains("weft1"),
        "{listed}"
    );
    let shown = node.run("ibv_devinfo -d weft1 -v");
    for part in [
        "PORT_ACTIVE (4)",
        "4096 (5)",
        "Ethernet",
        "RoCE v2",
        "::ffff:10.0.0.2",
    ] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    // `-c` looks at a byte of each page that has come last.
    let told = pair(&node, "ibv_rc_pingpong -g 0 -c -n 500", 18_515);
    for told in told {
        assert!(told.contains("500 iters in "), "{told}");
    }
    // `-e` waits for events instead of polling.
    for told in pair(&node, "ibv_rc_pingpong -g 0 -c -e -n 500", 18_600) {
        assert!(told.contains("500 iters in "), "{told}");
    }
    // 16 queue pairs take their receives from one queue.
    for (port, line) in (18_700..).zip([
        "ibv_srq_pingpong -g 0 -c -n 500",
        "ibv_srq_pingpong -g 0 -c -e -n 500",
        "ibv_uc_pingpong -g 0 -c -n 500",
        "ibv_ud_pingpong -g 0 -c -n 500",
        "ibv_ud_pingpong -g 0 -c -e -n 500",
    ]) {
        for told in pair(&node, line, port) {
            assert!(told.contains("500 iters in "), "{told}");
        }
    }
    let programs = [
        "ib_send_bw --use-srq -q 4 -s 4096",
        "ib_write_bw -c UC -s 65536",
        "ib_send_bw -c UD -s 4096",
        "ib_send_lat -c UD -s 64",
        "ib_send_bw -e -s 4096",
        "ib_write_bw -s 65536",
        "ib_write_bw -q 4 -s 4096",
        "ib_send_bw -s 65536",
        "ib_read_bw -s 65536",
        "ib_atomic_bw -A FETCH_AND_ADD",
        "ib_write_lat",
        "ib_send_lat",
        "ib_read_lat",
        "ib_atomic_lat -A CMP_AND_SWAP",
    ];
    for (port, line) in (18_516..).zip(programs) {
        let [_, told] = pair(&node, &format!("{line} -x 0 -n 200"), port);
        assert!(told.contains("#bytes"), "{line}: {told}");
    }
}

#[test]
fn memory_that_programs_have_shared_is_mapped_by_the_engine() {
    let node = Node::default();
    let [waits, connects] = [(); 2].map(|()| {
        let file = tempfile::NamedTempFile::new_in("/dev/shm").expect("it is there");
        file.as_file().set_len(16 << 20).expect("it has room");
        // The programs are an ordinary user's.
        let everyone = fs::Permissions::from_mode(0o666);
        file.as_file()
            .set_permissions(everyone)
            .expect("it is ours");
        file
    });
    let line = |device: &str, file: &tempfile::NamedTempFile| {
        let path = file.path().display();
        format!("ib_write_bw -x 0 -s 65536 -n 20000 -p 18900 -d {device} --mmap={path}")
    };
    let waiting = listening(node.command(&line("weft0", &waits)), 18_900);
    let mut connecting = node.command(&format!("{} 127.0.0.1", line("weft1", &connects)));
    let mut connecting = connecting.spawn().expect("it starts");
    let mut windows = [0; 2];
    while connecting.try_wait().expect("it is ours").is_none() {
        for (most, device) in windows.iter_mut().zip(node.server.list()) {
            *most = device.windows.max(*most);
        }
        std::thread::yield_now();
    }
    let told = stdout_of("ib_write_bw", &ended(connecting));
    assert!(told.contains("#bytes"), "{told}");
    stdout_of("ib_write_bw", &ended(waiting));
    assert_eq!(windows, [1, 1]);
}

#[test]
fn a_program_hears_that_the_engine_has_ended() {
    let node = Node::default();
    let mut watching = node.command("stdbuf -oL ibv_asyncwatch -d weft0");
    let mut watching = watching.spawn().expect("it starts");
    // It says what it waits for once the device is open.
    let mut said = BufReader::new(watching.stdout.take().expect("it is piped"));
    let mut line = String::new();
    said.read_line(&mut line).expect("it is text");
    assert!(line.contains("weft0"), "{line}");
    drop(node.server);
    let mut rest = String::new();
    said.read_to_string(&mut rest).expect("it is text");
    assert!(rest.contains("IBV_EVENT_DEVICE_FATAL"), "{rest}");
    watching.wait().expect("it ends");
}

/// The names and versions that NCCL asks the dynamic linker for.
#[test]
fn every_name_is_there_with_the_version_that_programs_ask_for() {
    const NAMES: [(&str, &str); 12] = [
        (
            "IBVERBS_1.1",
            "ibv_get_device_list ibv_free_device_list ibv_get_device_name ibv_open_device ibv_close_device \
             ibv_get_async_event ibv_ack_async_event ibv_query_device ibv_query_port ibv_query_gid ibv_query_qp \
             ibv_alloc_pd ibv_dealloc_pd ibv_reg_mr ibv_dereg_mr ibv_create_cq ibv_destroy_cq ibv_create_qp \
             ibv_modify_qp ibv_destroy_qp ibv_fork_init ibv_event_type_str",
        ),
        (
            "IBVERBS_1.0",
            "ibv_create_comp_channel ibv_destroy_comp_channel",
        ),
        ("IBVERBS_1.5", "ibv_get_pkey_index"),
        ("IBVERBS_1.6", "ibv_qp_to_qp_ex"),
        ("IBVERBS_1.7", "ibv_reg_mr_iova"),
        ("IBVERBS_1.8", "ibv_reg_mr_iova2"),
        ("IBVERBS_1.9", "ibv_get_device_index"),
        ("IBVERBS_1.10", "ibv_query_ece ibv_set_ece"),
        ("IBVERBS_1.11", "_ibv_query_gid_ex _ibv_query_gid_table"),
        ("IBVERBS_1.12", "ibv_reg_dmabuf_mr"),
        ("IBVERBS_1.13", "ibv_is_fork_initialized"),
        ("IBVERBS_1.14", "ibv_query_qp_data_in_order"),
    ];
    Node::default().assert_names("libibverbs.so.1", &NAMES);
}

/// Calls that the library exports and that are not supported, each with how it says so.
fn unsupported_calls() -> Vec<[&'static str; 3]> {
    let mut library = "";
    let mut calls = Vec::new();
    for line in DOCUMENT.lines() {
        library = line.strip_prefix("## ").unwrap_or(library);
        if !line.contains("fails with `EOPNOTSUPP`") {
            continue;
        }
        let name = line.split('`').nth(1).expect("a row begins with a name");
        let makes_something = ["ibv_import_", "ibv_reg_"];
        let how = match library {
            "librdmacm.so.1" => "minus",
            _ if makes_something.iter().any(|begin| name.starts_with(begin)) => "null",
            _ => "number",
        };
        calls.push([library, how, name]);
    }
    calls
}

#[test]
fn every_call_that_is_not_supported_says_so() {
    let node = Node::default();
    let calls = unsupported_calls();
    assert!(calls.len() > 40, "{calls:?}");
    let program = compiled(&node, "unsupported", UNSUPPORTED);
    let line = format!("{} {}", program.display(), calls.concat().join(" "));
    assert_eq!(node.run(&line), "");
}

/// Those that `verbs.h` itself refuses where a table has no function.
#[test]
fn every_inline_call_is_carried_out_or_is_among_those_that_say_so() {
    let header = fs::read_to_string(HEADER).expect("libibverbs-dev");
    let (_, carried_out) = DOCUMENT.split_once("\nCarried out: ").expect("a list");
    // What comes first is the macro that looks for a function.
    let uses: Vec<&str> = header.split("verbs_get_ctx_op(").skip(2).collect();
    assert!(uses.len() > 30);
    for found in uses {
        let (arguments, _) = found.split_once(')').expect("it ends");
        let (_, name) = arguments.split_once(',').expect("two arguments");
        let name = name.trim().trim_start_matches("ibv_");
        let is_carried_out = carried_out.contains(&format!("`{name}`"));
        let is_called = UNSUPPORTED.contains(&format!("(ibv_{name}"));
        assert!(is_carried_out || is_called, "{name}");
    }
}

/// System calls of a program that writes so often, by name. Those by which it gives its turn to others are left out.
fn system_calls(node: &Node, program: &Path, writes: u64) -> BTreeMap<String, u64> {
    let line = format!(
        "strace -f --seccomp-bpf -c -U calls,name -e trace=!sched_yield {} {writes} polling",
        program.display()
    );
    let output = node.command_at(0, &line).output().expect("it starts");
    let told = stdout_of(&line, &output);
    assert!(told.contains(&format!("{writes} writes")), "{told}");
    let table = String::from_utf8_lossy(&output.stderr);
    let rows = table.lines().filter_map(|row| {
        let (calls, name) = row.trim().split_once(' ')?;
        Some((name.trim().to_owned(), calls.parse().ok()?))
    });
    rows.filter(|(name, _)| name != "total").collect()
}

#[test]
fn a_program_that_polls_makes_no_system_call_for_a_write() {
    const FEW: u64 = 16_384;
    const BATCH: u64 = 64;
    let node = Node::default();
    let program = compiled(&node, "writes", WRITES);
    let [mut few, mut many] = [FEW, 2 * FEW].map(|writes| system_calls(&node, &program, writes));
    // By `write` it wakes an engine that sleeps. An engine does so when it has found nothing for 20 µs, which may be while a
    // batch is taken, and on a busy machine in between.
    let [in_few, in_many] = [&mut few, &mut many].map(|calls| calls.remove("write").unwrap_or(0));
    // By `recvmsg` it looks for the answer to a call, before the first write and after the last.
    let looks = [&mut few, &mut many].map(|calls| calls.remove("recvmsg").unwrap_or(0));
    assert!(
        looks.iter().all(|looks| *looks < FEW / 8),
        "{looks:?} looks"
    );
    assert!(few.len() > 10, "{few:?}");
    assert_eq!(few, many);
    assert!(
        in_many < in_few + 4 * FEW / BATCH,
        "{in_few} and {in_many} times an engine was woken"
    );
}

/// Runs one part of [`POSTING`].
fn post(part: &str) {
    let node = Node::default();
    let program = compiled(&node, "posting", POSTING);
    let told = node.run(&format!("{} {part}", program.display()));
    assert_eq!(told, "done\n");
}

#[test]
fn a_thread_that_posts_by_parts_is_alone_until_it_has_ended_that() {
    post("threads");
}

#[test]
fn a_child_that_is_forked_while_other_threads_call_and_poll_waits_for_none_of_them() {
    post("forks");
}

#[test]
fn a_queue_takes_as_many_work_requests_as_it_was_made_for_and_more_when_completions_were_polled() {
    post("outstanding");
}

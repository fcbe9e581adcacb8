//! Programs of Debian that connect by librdmacm, unmodified, over virtual devices: two devices of one node, each program as an
//! ordinary user that sees one of them. They connect over 127.0.0.1.

use std::{
    io::{Read as _, Write as _},
    net::{TcpListener, TcpStream},
    thread,
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use weft_tests::{
    stdout_of,
    verbs::{Node, ended, listening},
};

/// A program at each device: the first waits, the second connects to it. What both say.
fn pair(node: &Node, server: &str, client: &str, port: u16) -> [String; 2] {
    let waiting = listening(node.command_at(0, server), port);
    let output = node.command_at(1, client).output().expect("it starts");
    let told = stdout_of(client, &output);
    [stdout_of(server, &ended(waiting)), told]
}

#[test]
fn programs_of_rdma_core_connect_as_they_are() {
    let node = Node::default();
    // `-V` compares every byte; `-q` has the program make and move its queue pair itself.
    for (port, option) in [(17_174, ""), (17_175, "-q")] {
        let server = format!("rping -s -v -V {option} -p {port}");
        let client = format!("rping -c -v -V {option} -a 127.0.0.1 -C 10 -p {port}");
        let [server, client] = pair(&node, &server, &client, port);
        assert!(client.contains("ping data: rdma-ping-9: "), "{client}");
        assert!(
            server.contains("server ping data: rdma-ping-9: "),
            "{server}"
        );
    }
    // `-c`: connections at once; `-m`: the ids move to another event channel. `udaddy` sends datagrams, and knows one port.
    for (port, server) in [
        (17_176, "ucmatose -c 8 -p 17176"),
        (17_177, "ucmatose -m -p 17177"),
        (7174, "udaddy"),
    ] {
        let client = format!("{server} -s 127.0.0.1");
        for told in pair(&node, server, &client, port) {
            assert!(told.contains("data transfers complete"), "{told}");
            assert!(told.contains("return status 0"), "{told}");
        }
    }
    // Their calls wait, without an event channel.
    for (port, name, options) in [(17_178, "rdma_", ""), (17_179, "rdma_x", "-c r")] {
        let server = format!("{name}server {options} -p {port}");
        let client = format!("{name}client {options} -s 127.0.0.1 -p {port}");
        for told in pair(&node, &server, &client, port) {
            assert!(told.contains("end 0"), "{told}");
        }
    }
}

#[test]
fn programs_of_perftest_connect_by_it() {
    let node = Node::default();
    let lines = [
        "ib_write_bw -s 65536",
        "ib_send_bw -s 4096",
        "ib_read_bw -q 2 -s 4096",
        "ib_send_lat",
        "ib_send_bw -c UD -s 1024",
        "ib_write_lat",
        "ib_read_lat",
        "ib_send_lat -c UD -s 64",
        "ib_atomic_lat -A CMP_AND_SWAP",
    ];
    for (port, line) in (17_200..).zip(lines) {
        let server = format!("{line} -R -n 200 -p {port}");
        let [_, told] = pair(&node, &server, &format!("{server} 127.0.0.1"), port);
        assert!(told.contains("#bytes"), "{line}: {told}");
    }
}

/// Of two programs that are started together, either may be the first.
#[test]
fn a_client_that_is_a_little_early_finds_its_server() {
    let node = Node::default();
    for port in 17_280..17_290 {
        let client = format!("rping -c -V -a 127.0.0.1 -C 1 -p {port}");
        let server = format!("rping -s -V -p {port}");
        let [client, server] = [(1, &client), (0, &server)].map(|(device, line)| {
            let spawned = node.command_at(device, line).spawn();
            (line, spawned.expect("it starts"))
        });
        for (line, child) in [client, server] {
            stdout_of(line, &ended(child));
        }
    }
}

#[test]
fn a_client_hears_that_nobody_listens_and_that_somebody_else_does() {
    let node = Node::default();
    let rejected = |port: u16, status: u16| {
        let client = format!("rping -c -a 127.0.0.1 -C 1 -p {port}");
        let output = node.command_at(0, &client).output().expect("it starts");
        assert!(!output.status.success());
        let said = String::from_utf8_lossy(&output.stderr);
        let wanted = format!("RDMA_CM_EVENT_REJECTED, error {status}");
        assert!(said.contains(&wanted), "{said}");
    };
    // Invalid service: nobody.
    rejected(17_250, 8);
    // Unsupported: no connection manager.
    let other = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = other.local_addr().expect("it is bound").port();
    thread::scope(|scope| {
        scope.spawn(|| {
            let (mut stream, _) = other.accept().expect("a connection");
            let mut begin = [0; 8];
            stream.read_exact(&mut begin).expect("a request");
            stream
                .write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                .expect("it is read");
            // It stays until the other has gone.
            let _ = stream.read_to_end(&mut Vec::new());
        });
        rejected(port, 5);
    });
}

#[test]
fn a_listener_goes_on_with_strangers_that_say_nothing_or_something_else() {
    let node = Node::default();
    let server = "rping -s -V -p 17260";
    let waiting = listening(node.command_at(0, server), 17_260);
    let strangers: Vec<TcpStream> = (0..240)
        .map(|at| {
            let mut stream = TcpStream::connect("127.0.0.1:17260").expect("it listens");
            let said: &[u8] = [b"", b"GET / HTTP/1.1\r\n\r\n" as &[u8], b"wft"][at % 3];
            stream.write_all(said).expect("it takes it");
            stream
        })
        .collect();
    let client = "rping -c -V -a 127.0.0.1 -C 3 -p 17260";
    let output = node.command_at(1, client).output().expect("it starts");
    stdout_of(client, &output);
    stdout_of(server, &ended(waiting));
    drop(strangers);
}

#[test]
fn a_client_hears_that_its_server_was_killed() {
    let node = Node::default();
    let waiting = listening(node.command_at(0, "rping -s -p 17270"), 17_270);
    let mut client = node.command_at(1, "stdbuf -oL rping -c -v -a 127.0.0.1 -p 17270");
    let mut client = client.spawn().expect("it starts");
    let mut said = client.stdout.take().expect("it is piped");
    said.read_exact(&mut [0]).expect("a ping");
    // `timeout` ends the program.
    kill(Pid::from_raw(waiting.id() as i32), Signal::SIGTERM).expect("it runs");
    let _ = ended(waiting);
    let _ = said.read_to_end(&mut Vec::new());
    let said = ended(client).stderr;
    let said = String::from_utf8_lossy(&said);
    assert!(said.contains("DISCONNECT EVENT"), "{said}");
}

/// All that Debian 12's library has.
#[test]
fn every_name_is_there_with_the_version_that_programs_ask_for() {
    const NAMES: [(&str, &str); 4] = [
        (
            "RDMACM_1.0",
            "raccept rbind rclose rconnect rdma_accept rdma_ack_cm_event rdma_bind_addr rdma_connect rdma_create_ep \
             rdma_create_event_channel rdma_create_id rdma_create_qp rdma_create_qp_ex rdma_create_srq \
             rdma_create_srq_ex rdma_destroy_ep rdma_destroy_event_channel rdma_destroy_id rdma_destroy_qp \
             rdma_destroy_srq rdma_disconnect rdma_event_str rdma_free_devices rdma_freeaddrinfo rdma_get_cm_event \
             rdma_get_devices rdma_get_dst_port rdma_get_request rdma_get_src_port rdma_getaddrinfo \
             rdma_join_multicast rdma_leave_multicast rdma_listen rdma_migrate_id rdma_notify rdma_reject \
             rdma_resolve_addr rdma_resolve_route rdma_set_option rfcntl rgetpeername rgetsockname rgetsockopt \
             riomap riounmap riowrite rlisten rpoll rread rreadv rrecv rrecvfrom rrecvmsg rselect rsend rsendmsg \
             rsendto rsetsockopt rshutdown rsocket rwrite rwritev",
        ),
        ("RDMACM_1.1", "rdma_join_multicast_ex"),
        ("RDMACM_1.2", "rdma_establish rdma_init_qp_attr"),
        (
            "RDMACM_1.3",
            "rdma_get_remote_ece rdma_reject_ece rdma_set_local_ece",
        ),
    ];
    Node::default().assert_names("librdmacm.so.1", &NAMES);
}

//! Which link engines use to reach each other.

mod start;

use crossbeam_channel::unbounded;
use start::{PATIENCE, bytes_of, config, done, engine, options, pattern, source, whole};
use weft_transfer_engine::{
    Cause, LinkChoice, LinkKind, Outcome, Stage, TransferEngine, TransferEngineConfig,
};

fn engine_over(link: LinkChoice) -> TransferEngine {
    TransferEngine::start(TransferEngineConfig { link, ..config() }).expect("it starts")
}

#[test]
fn the_fastest_link_is_measured_once_for_a_host_and_named_with_the_figures() {
    let [a, b, c] = [(); 3].map(|()| engine_over(LinkChoice::Network));
    assert_eq!(a.link(b.main_address()), None);
    done(&a.connect(b.main_address(), options()).unwrap());
    let link = a.link(b.main_address()).unwrap();
    for part in ["measured: ", "udp ", "tcp ", " GB/s"] {
        assert!(link.reason.contains(part), "{}", link.reason);
    }
    done(&a.connect(c.main_address(), options()).unwrap());
    assert_eq!(a.link(c.main_address()), Some(link));
    a.remove_peer(b.main_address());
    assert_eq!(a.link(b.main_address()), None);
}

#[test]
fn engines_of_a_node_use_shared_memory() {
    let [a, b] = [engine(), engine()];
    done(&a.connect(b.main_address(), options()).unwrap());
    let link = a.link(b.main_address()).unwrap();
    assert_eq!(
        link.to_string(),
        "shm: both engines are in one network namespace"
    );
}

#[test]
fn bytes_and_messages_arrive_over_each_link() {
    let receiver = engine();
    let (told, messages) = unbounded();
    let handler = Box::new(move |bytes, _| told.send(bytes).unwrap());
    receiver.submit_recvs(64, 2, handler).unwrap();
    for link in [LinkKind::Udp, LinkKind::Tcp, LinkKind::Shm] {
        let sender = engine_over(LinkChoice::Only(link));
        let written = pattern(3_000_000);
        let from = source(&sender, written.clone());
        let (to, descriptor) = receiver.alloc(3_000_000).unwrap();
        let write = whole(&from, &descriptor);
        done(&sender.submit_single_write(&write, options()).unwrap());
        assert!(bytes_of(&to) == written, "over {link:?}");
        let text = format!("over {link:?}").into_bytes();
        let peer = receiver.main_address();
        let send = sender.submit_send(peer, text.clone(), None, options());
        done(&send.unwrap());
        assert_eq!(messages.recv_timeout(PATIENCE), Ok(text));
        let in_use = sender.link(peer).unwrap();
        assert_eq!(
            (in_use.link, in_use.reason.as_str()),
            (link, "this engine is set to it")
        );
    }
}

#[test]
fn engines_with_no_link_in_common_say_what_each_is_set_to() {
    let sender = engine_over(LinkChoice::Only(LinkKind::Tcp));
    let receiver = engine_over(LinkChoice::Only(LinkKind::Udp));
    let connect = sender.connect(receiver.main_address(), options()).unwrap();
    let Outcome::Failed(failure) = connect.wait() else {
        panic!("there is no link");
    };
    assert_eq!(failure.stage, Stage::Connect);
    let Cause::Refused(why) = failure.cause else {
        panic!("{failure}");
    };
    assert_eq!(why, "the peer has no link tcp: its setting is udp");
}

#[test]
fn of_two_engines_one_of_which_has_one_link_that_one_is_used() {
    let sender = engine_over(LinkChoice::Network);
    let receiver = engine_over(LinkChoice::Only(LinkKind::Tcp));
    done(&sender.connect(receiver.main_address(), options()).unwrap());
    let in_use = sender.link(receiver.main_address()).unwrap();
    assert_eq!(in_use.link, LinkKind::Tcp);
    assert_eq!(
        in_use.reason,
        "the peer has no link udp or xdp: its setting is tcp"
    );
}

#[test]
fn over_af_xdp_an_engine_has_one_worker() {
    let config = TransferEngineConfig {
        link: LinkChoice::Only(LinkKind::Xdp),
        workers: 2,
        ..TransferEngineConfig::default()
    };
    let refused = TransferEngine::start(config).map(drop).unwrap_err();
    let said = "workers must be 1 over the link xdp";
    assert!(refused.to_string().contains(said), "{refused}");
}

//! Registrations that overlap, keys at the wrong engine, IPv6 alone, and ends that do not fit.

mod start;

use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use crossbeam_channel::unbounded;
use start::{PATIENCE, bytes_of, config, done, engine, options, pattern, source, whole};
use weft_transfer_engine::{
    Access, EngineAddress, Failure, LinkChoice, LinkKind, MrDescriptor, Operation, Outcome, Region,
    SingleRead, SingleWrite, Stage, TransferEngine, TransferEngineConfig,
};

fn failure(operation: &Operation) -> Failure {
    match operation.wait() {
        Outcome::Failed(failure) => failure,
        other => panic!("{other:?}"),
    }
}

fn at(nics: &[IpAddr], mtu: u16) -> TransferEngine {
    let started = TransferEngine::start(TransferEngineConfig {
        nics: nics.to_vec(),
        mtu,
        link: LinkChoice::Only(LinkKind::Udp),
        ..config()
    });
    started.expect("the addresses are those of loopback")
}

#[test]
fn the_same_memory_has_as_many_keys_as_registrations_and_each_closes_alone() {
    const KEYS: usize = 16;
    let [a, b, c] = [engine(), engine(), engine()];
    let memory = Region::share(vec![0; KEYS << 10]);
    let register = |access| b.reg_mr(Arc::clone(&memory), access).unwrap();
    let regions: Vec<_> = (0..KEYS).map(|_| register(Access::WRITE)).collect();
    let (read_only, to_read) = register(Access::READ);

    // Two peers write by all keys at once, each to places of its own.
    let expected = pattern(KEYS << 10);
    let sources = [&a, &c].map(|peer| source(peer, expected.clone()));
    let write = |index: usize, to: &MrDescriptor| {
        let (peer, from) = ([&a, &c][index % 2], &sources[index % 2]);
        let place = (index as u64) << 10;
        let write = SingleWrite {
            source: (from.clone(), place),
            destination: (to.clone(), place),
            bytes: 1 << 10,
            immediate: Some(1),
        };
        peer.submit_single_write(&write, options()).unwrap()
    };
    let numbered = regions.iter().enumerate();
    let writes: Vec<_> = numbered.map(|(index, (_, to))| write(index, to)).collect();
    writes.iter().for_each(done);
    done(&b.expect_imm_count(1, KEYS as u64, options()).unwrap());
    assert!(bytes_of(&read_only) == expected);

    // Who may read by one key may not write by it.
    let (here, _) = a.alloc((KEYS << 10) as u64).unwrap();
    let read = SingleRead {
        source: (to_read.clone(), 0),
        destination: (here.clone(), 0),
        bytes: to_read.bytes,
    };
    done(&a.submit_read(&read, options()).unwrap());
    assert!(bytes_of(&here) == expected);
    let forged = MrDescriptor {
        access: Access::WRITE,
        ..to_read.clone()
    };
    assert_eq!(failure(&write(0, &forged)).cause.reason(), "KeyRefused");

    // Every second key closes.
    for (region, _) in regions.iter().step_by(2) {
        region.deregister();
    }
    for (index, (_, to)) in regions.iter().enumerate() {
        let operation = write(index, to);
        match index % 2 {
            0 => assert_eq!(failure(&operation).cause.reason(), "KeyRefused"),
            _ => done(&operation),
        }
    }
    assert_eq!(b.counts().unwrap().regions, KEYS / 2 + 1);
}

#[test]
fn a_key_of_one_engine_opens_nothing_at_another() {
    let [a, b, c] = [engine(), engine(), engine()];
    let (there, descriptor) = b.alloc(100).unwrap();
    let (other, at_other) = c.alloc(100).unwrap();
    let forged = MrDescriptor {
        engine: c.main_address().clone(),
        ..descriptor.clone()
    };
    let from = source(&a, pattern(100));
    let write = |to: &MrDescriptor| a.submit_single_write(&whole(&from, to), options()).unwrap();
    let refused = failure(&write(&forged));
    assert_eq!(refused.cause.reason(), "KeyRefused");
    assert_eq!(refused.peer, Some(c.main_address().name()));
    assert!(bytes_of(&other) == [0; 100] && bytes_of(&there) == [0; 100]);
    done(&write(&descriptor));
    done(&write(&at_other));
}

#[test]
fn engines_with_ipv6_alone_do_all_that_others_do() {
    let here = IpAddr::V6(Ipv6Addr::LOCALHOST);
    let [a, b] = [(); 2].map(|()| at(&[here], 1500));
    let text = b.main_address().to_string();
    let parsed: EngineAddress = text.parse().unwrap();
    assert_eq!(&parsed, b.main_address());
    assert!(b.main_address().name().starts_with("[::1]:"));

    let (to, descriptor) = b.alloc(1 << 20).unwrap();
    let from = source(&a, pattern(1 << 20));
    let write = SingleWrite {
        immediate: Some(3),
        ..whole(&from, &descriptor)
    };
    done(&a.submit_single_write(&write, options()).unwrap());
    done(&b.expect_imm_count(3, 1, options()).unwrap());
    assert!(bytes_of(&to) == pattern(1 << 20));
    let (back, _) = a.alloc(1 << 20).unwrap();
    let read = SingleRead {
        source: (descriptor.clone(), 0),
        destination: (back.clone(), 0),
        bytes: 1 << 20,
    };
    done(&a.submit_read(&read, options()).unwrap());
    assert!(bytes_of(&back) == pattern(1 << 20));

    let (tell, told) = unbounded();
    let handler = move |message, immediate| drop(tell.send((message, immediate)));
    b.submit_recvs(100, 4, Box::new(handler)).unwrap();
    let message = pattern(50);
    let sent = a.submit_send(&parsed, message.clone(), Some(9), options());
    done(&sent.unwrap());
    assert_eq!(told.recv_timeout(PATIENCE), Ok((message, Some(9))));
    let group = a.add_peer_group(vec![parsed]).unwrap();
    done(&a.submit_barrier(&group, 3, options()).unwrap());
    done(&b.expect_imm_count(3, 2, options()).unwrap());

    to.deregister();
    let refused = failure(&a.submit_single_write(&write, options()).unwrap());
    assert_eq!(refused.cause.reason(), "KeyRefused");
    let path = refused.path.unwrap();
    assert!(path.contains(" -> ::1 UDP ports"), "{path}");
}

#[test]
fn ends_that_do_not_fit_are_refused_at_set_up_by_what_differs_and_others_go_on() {
    let v4 = IpAddr::from([127, 0, 0, 1]);
    let v6 = IpAddr::V6(Ipv6Addr::LOCALHOST);
    let (a, b) = (at(&[v4], 1500), at(&[v4], 1500));
    let from = source(&a, pattern(100));
    let (_there, beside) = b.alloc(100).unwrap();
    let table = [
        // Another MTU: the packets of one end would not fit the other's chunks.
        (at(&[v4], 9000), "packet_payload"),
        (at(&[v4], 1280), "packet_payload"),
        // Another IP version. Its headers are 20 bytes longer.
        (at(&[v6], 1520), "two IP versions"),
    ];
    for (other, differs) in table {
        let (to, descriptor) = other.alloc(100).unwrap();
        let (here, _) = a.alloc(100).unwrap();
        let read = SingleRead {
            source: (descriptor.clone(), 0),
            destination: (here, 0),
            bytes: 100,
        };
        let write = whole(&from, &descriptor);
        let operations = [
            a.submit_single_write(&write, options()).unwrap(),
            a.submit_read(&read, options()).unwrap(),
        ];
        for operation in &operations {
            let refused = failure(operation);
            assert_eq!(refused.stage, Stage::Connect, "{refused}");
            assert_eq!(refused.cause.reason(), "Refused", "{refused}");
            assert_eq!(refused.peer, Some(other.main_address().name()));
            assert!(refused.to_string().contains(differs), "{refused}");
        }
        assert!(bytes_of(&to) == [0; 100]);
        done(
            &a.submit_single_write(&whole(&from, &beside), options())
                .unwrap(),
        );
    }
    // None of them is kept.
    assert_eq!(a.counts().unwrap().peers, 1);
}

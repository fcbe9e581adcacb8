//! Every operation between two engines or more, over sockets.

mod start;

use std::collections::BTreeSet;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use crossbeam_channel::unbounded;
use start::{PATIENCE, bytes_of, done, engine, engine_with_nics, options, pattern, source, whole};
use weft_transfer_engine::{
    Access, Completion, LinkKind, Options, Outcome, PagedWrites, Pages, Region, SingleRead,
    SingleWrite,
};

#[test]
fn a_count_is_seen_with_the_bytes_that_were_written_before_it() {
    let [a, b] = [engine(), engine()];
    for bytes in [1, 8, 70_000, 3_000_000] {
        let written = pattern(bytes);
        let from = source(&a, written.clone());
        let (to, descriptor) = b.alloc(bytes as u64).unwrap();
        let counter = b.imm_counter(bytes as u32);
        let write = SingleWrite {
            immediate: Some(bytes as u32),
            ..whole(&from, &descriptor)
        };
        let operation = a.submit_single_write(&write, options()).unwrap();
        done(&b.expect_imm_count(bytes as u32, 1, options()).unwrap());
        assert!(bytes_of(&to) == written, "{bytes} bytes differ");
        assert_eq!(counter.count(), 1);
        done(&operation);
        assert_eq!(b.free_imm(bytes as u32), 1);
        assert_eq!(b.imm_counter(bytes as u32).count(), 0);
    }
}

#[test]
fn immediates_count_whatever_their_order() {
    let [a, b] = [engine(), engine()];
    let (_to, descriptor) = b.alloc(1 << 20).unwrap();
    // Short messages overtake long ones.
    let from = source(&a, pattern(1 << 20));
    let expected = b.expect_imm_count(1, 200, options()).unwrap();
    let write = |index: u64| SingleWrite {
        bytes: if index.is_multiple_of(10) {
            1 << 19
        } else {
            1 + index
        },
        immediate: Some(1 + (index % 2) as u32),
        ..whole(&from, &descriptor)
    };
    let operations: Vec<_> = (0..400)
        .map(|index| a.submit_single_write(&write(index), options()).unwrap())
        .collect();
    done(&expected);
    operations.iter().for_each(done);
    done(&b.expect_imm_count(2, 200, options()).unwrap());
    assert_eq!([1, 2].map(|it| b.imm_counter(it).count()), [200, 200]);
}

#[test]
fn pages_go_where_the_lists_say() {
    let [a, b] = [engine(), engine()];
    let written = pattern(64 * 5_000);
    let from = source(&a, written.clone());
    let (to, descriptor) = b.alloc(32 * 8_000).unwrap();
    // Every second page of the source, to the pages of the destination from the last one on.
    let from_pages = Pages {
        indices: (0..32).map(|page| 2 * page).collect(),
        stride: 5_000,
        offset: 3,
    };
    let to_pages = Pages {
        indices: (0..32).rev().collect(),
        stride: 8_000,
        offset: 100,
    };
    let paged = PagedWrites {
        page_bytes: 4_096,
        source: (from, from_pages),
        destination: (descriptor, to_pages),
        immediate: Some(5),
    };
    done(&a.submit_paged_writes(&paged, options()).unwrap());
    done(&b.expect_imm_count(5, 1, options()).unwrap());
    let arrived = bytes_of(&to);
    for page in 0..32 {
        let sent = &written[3 + 2 * page * 5_000..][..4_096];
        let place = &arrived[100 + (31 - page) * 8_000..][..4_096];
        assert!(sent == place, "page {page}");
    }
}

#[test]
fn a_scatter_and_a_barrier_reach_every_peer_of_the_group() {
    let a = engine();
    let peers = [engine(), engine(), engine()];
    let group = peers.iter().map(|peer| peer.main_address().clone());
    let group = a.add_peer_group(group.collect()).unwrap();
    let memory: Vec<_> = peers
        .iter()
        .map(|peer| peer.alloc(1_000).unwrap())
        .collect();
    let written = pattern(3_000);
    let from = source(&a, written.clone());
    let slice = |(index, (_, descriptor)): (u64, &(_, _))| SingleWrite {
        source: (from.clone(), index * 1_000),
        destination: (Clone::clone(descriptor), 10),
        bytes: 900 + index,
        immediate: Some(1),
    };
    let writes: Vec<_> = (0..).zip(&memory).map(slice).collect();
    done(&a.submit_scatter(&writes, options()).unwrap());
    done(&a.submit_barrier(&group, 2, options()).unwrap());
    for (index, (peer, (to, _))) in peers.iter().zip(&memory).enumerate() {
        done(&peer.expect_imm_count(1, 1, options()).unwrap());
        done(&peer.expect_imm_count(2, 1, options()).unwrap());
        let sent = &written[index * 1_000..][..900 + index];
        assert!(bytes_of(to)[10..910 + index] == *sent, "peer {index}");
    }
}

#[test]
fn more_reads_than_a_connection_takes_at_once_all_end() {
    let [a, b] = [engine(), engine()];
    let there = pattern(300_000);
    let (_memory, descriptor) = b
        .reg_mr(Region::share(there.clone()), Access::READ)
        .unwrap();
    let (here, _) = a.alloc(300_000).unwrap();
    let read = |index: u64| SingleRead {
        source: (descriptor.clone(), index * 1_000),
        destination: (here.clone(), (299 - index) * 1_000),
        bytes: 1_000,
    };
    let reads: Vec<_> = (0..300)
        .map(|index| a.submit_read(&read(index), options()).unwrap())
        .collect();
    reads.iter().for_each(done);
    let arrived = bytes_of(&here);
    for index in 0..300 {
        let read = &arrived[(299 - index) * 1_000..][..1_000];
        assert!(read == &there[index * 1_000..][..1_000], "read {index}");
    }
}

#[test]
fn messages_come_in_order_into_receives_that_peers_share_and_wait_for_them() {
    let receiver = engine();
    let senders = [engine(), engine()];
    let send = |sender: usize, index: u32| {
        let (peer, mut bytes) = (receiver.main_address(), vec![sender as u8]);
        bytes.extend(pattern(index as usize * 100));
        let sent = senders[sender].submit_send(peer, bytes, Some(index), options());
        sent.unwrap()
    };
    let sent: Vec<_> = (0..20)
        .flat_map(|index| [send(0, index), send(1, index)])
        .collect();
    let (to_test, messages) = unbounded();
    let handler = Box::new(move |bytes, immediate| to_test.send((bytes, immediate)).unwrap());
    receiver.submit_recvs(2_000, 3, handler).unwrap();
    let again = receiver.submit_recvs(1, 1, Box::new(|_, _| ()));
    assert!(
        again
            .unwrap_err()
            .to_string()
            .starts_with("submit_recvs was called before")
    );
    // The first byte names the sender.
    let mut next = [0; 2];
    for _ in 0..40 {
        let (bytes, immediate) = messages.recv_timeout(PATIENCE).unwrap();
        let expected = &mut next[usize::from(bytes[0])];
        assert_eq!(immediate, Some(*expected));
        assert!(bytes[1..] == pattern(*expected as usize * 100));
        *expected += 1;
    }
    sent.iter().for_each(done);
}

#[test]
fn every_operation_goes_over_all_nics_of_both_ends() {
    let cases = [
        (2, 2, LinkKind::Udp),
        (1, 3, LinkKind::Udp),
        (2, 4, LinkKind::Tcp),
    ];
    for (here, there, link) in cases {
        let [a, b] = [here, there].map(|nics| engine_with_nics(nics, link));
        let written = pattern(5_000_000);
        let from = source(&a, written.clone());
        let (to, descriptor) = b.alloc(5_000_000).unwrap();
        let write = SingleWrite {
            immediate: Some(1),
            ..whole(&from, &descriptor)
        };
        let operation = a.submit_single_write(&write, options()).unwrap();
        done(&b.expect_imm_count(1, 1, options()).unwrap());
        assert!(bytes_of(&to) == written);
        done(&operation);
        let pages = |offset| Pages {
            indices: (0..400).collect(),
            stride: 8_192,
            offset,
        };
        let paged = PagedWrites {
            page_bytes: 8_192,
            source: (from, pages(1)),
            destination: (descriptor.clone(), pages(0)),
            immediate: Some(2),
        };
        let operation = a.submit_paged_writes(&paged, options()).unwrap();
        done(&b.expect_imm_count(2, 1, options()).unwrap());
        assert!(bytes_of(&to)[..400 * 8_192] == written[1..][..400 * 8_192]);
        done(&operation);
        let (back, _) = a.alloc(5_000_000).unwrap();
        let read = SingleRead {
            source: (descriptor, 0),
            destination: (back.clone(), 0),
            bytes: 5_000_000,
        };
        done(&a.submit_read(&read, options()).unwrap());
        assert!(bytes_of(&back) == bytes_of(&to));
        assert_eq!([1, 2].map(|it| b.imm_counter(it).count()), [1, 1]);
        let pairs = a.nic_pairs().unwrap();
        let used = pairs.iter().filter(|pair| pair.sent_chunks > 0);
        let (ours, theirs): (BTreeSet<_>, BTreeSet<_>) =
            used.map(|pair| (pair.here, pair.there)).unzip();
        assert_eq!((ours.len(), theirs.len()), (here.into(), there.into()));
    }
}

#[test]
fn an_engine_writes_to_itself() {
    let a = engine();
    let (to, descriptor) = a.alloc(100_000).unwrap();
    let from = source(&a, pattern(100_000));
    done(
        &a.submit_single_write(&whole(&from, &descriptor), options())
            .unwrap(),
    );
    assert!(bytes_of(&to) == pattern(100_000));
}

/// Wakes a thread that waits on a channel.
struct Woken(crossbeam_channel::Sender<()>);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        let _ = self.0.send(());
    }
}

#[test]
fn completion_is_told_by_callback_by_flag_and_by_future() {
    let [a, b] = [engine(), engine()];
    let (_to, descriptor) = b.alloc(100).unwrap();
    let from = source(&a, pattern(100));
    let submit = |completion| {
        let options = Options {
            completion,
            ..options()
        };
        let write = whole(&from, &descriptor);
        a.submit_single_write(&write, options).unwrap()
    };
    let (to_test, told) = unbounded();
    let callback = Box::new(move |outcome| {
        let thread = std::thread::current().name().map(str::to_owned);
        to_test.send((outcome, thread)).unwrap();
    });
    submit(Completion::Callback(callback));
    let told = told.recv_timeout(PATIENCE).unwrap();
    assert_eq!(told, (Outcome::Done, Some("weft-callbacks".to_owned())));

    let flag = Arc::new(AtomicU64::new(0));
    let operation = submit(Completion::Flag(Arc::clone(&flag)));
    done(&operation);
    assert_eq!(flag.load(Ordering::Acquire), Outcome::Done.code());

    let stored = Arc::new(AtomicU64::new(0));
    let there = Arc::clone(&stored);
    let store = Box::new(move |code| there.store(code, Ordering::Release));
    let operation = submit(Completion::Store(store));
    assert_eq!(operation.wait_for(PATIENCE), Some(Outcome::Done));
    assert_eq!(stored.load(Ordering::Acquire), Outcome::Done.code());
    let open = b.expect_imm_count(99, 1, options()).unwrap();
    assert_eq!(open.wait_for(Duration::from_millis(1)), None);

    let (to_test, woken) = unbounded();
    let waker = Waker::from(Arc::new(Woken(to_test)));
    // It goes on until the peer sends a message with this immediate.
    let waits = b.expect_imm_count(1, 1, options()).unwrap();
    assert_eq!(waits.wait_for(Duration::from_millis(1)), None);
    let (to_test, told) = unbounded();
    for index in 0..2 {
        let to_test = to_test.clone();
        let callback = Box::new(move |outcome| to_test.send((index, outcome)).unwrap());
        assert_eq!(waits.on_end(callback), None);
    }
    let signal = SingleWrite {
        immediate: Some(1),
        ..whole(&from, &descriptor)
    };
    done(&a.submit_single_write(&signal, options()).unwrap());
    assert_eq!(waits.wait_for(PATIENCE), Some(Outcome::Done));
    let mut callbacks = [0, 1].map(|_| told.recv_timeout(PATIENCE).unwrap());
    callbacks.sort_by_key(|(index, _)| *index);
    assert_eq!(callbacks, [(0, Outcome::Done), (1, Outcome::Done)]);
    let late = Box::new(|_| panic!("it has ended"));
    assert_eq!(waits.on_end(late), Some(Outcome::Done));

    let mut future = pin!(submit(Completion::None));
    let outcome = loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(outcome) => break outcome,
            Poll::Pending => woken.recv_timeout(PATIENCE).unwrap(),
        }
    };
    assert_eq!(outcome, Outcome::Done);
}

#[test]
fn a_watcher_tells_old_and_new_values_without_a_gap() {
    let a = engine();
    let (to_test, told) = unbounded();
    let handler = Box::new(move |old, new| to_test.send((old, new)).unwrap());
    let watcher = a.alloc_watcher(handler).unwrap();
    assert!(watcher.file().is_some());
    std::thread::scope(|scope| {
        scope.spawn(|| (0..1_000).for_each(|_| watcher.add(1)));
    });
    let mut last = 0;
    while last < 1_000 {
        let (old, new) = told.recv_timeout(PATIENCE).unwrap();
        assert_eq!(old, last);
        assert!(new > old);
        last = new;
    }
    assert_eq!((last, watcher.load()), (1_000, 1_000));
    // A dropped watcher calls nobody, and its handler is dropped too.
    drop(watcher);
    assert!(
        told.recv_timeout(PATIENCE)
            .is_err_and(|it| it.is_disconnected())
    );
}

"""Every operation between two engines or more, over sockets."""

from __future__ import annotations

import queue

import pytest
from conftest import PATIENCE, pattern

import weft


@pytest.mark.parametrize("length", [1, 8, 70_000, 3_000_000])
def test_a_count_is_seen_with_the_bytes_that_were_written_before_it(pair, length):
    a, b = pair
    written = pattern(length)
    here, there = a.reg_mr(bytearray(written)), b.alloc(length)
    operation = a.submit_single_write(here, there.descriptor, immediate=length, deadline=PATIENCE)
    b.expect_imm_count(length, 1, deadline=PATIENCE).wait()
    assert bytes(there.memory) == written
    assert b.imm_count(length) == 1
    operation.wait()
    assert (operation.done(), operation.outcome(), operation.exception()) == (True, weft.Outcome.DONE, None)
    assert (b.free_imm(length), b.imm_count(length)) == (1, 0)


def test_a_write_takes_offsets_at_both_ends_and_a_length(pair):
    a, b = pair
    here, there = a.reg_mr(bytearray(b"0123456789")), b.alloc(10)
    a.submit_single_write((here, 2), (there.descriptor, 5), 3, deadline=PATIENCE).wait()
    assert bytes(there.memory) == b"\0\0\0\0\0" + b"234" + b"\0\0"
    # Without a length it goes to the end of the source.
    a.submit_single_write((here, 8), there.descriptor, deadline=PATIENCE).wait()
    assert bytes(there.memory[:2]) == b"89"


def test_pages_go_where_the_lists_say(pair):
    numpy = pytest.importorskip("numpy")
    a, b = pair
    written = pattern(64 * 5_000)
    here, there = a.reg_mr(bytearray(written)), b.alloc(32 * 8_000)
    # Every second page of the source, to the pages of the destination from the last one on.
    source = weft.Pages(range(0, 64, 2), stride=5_000, offset=3)
    destination = weft.Pages(numpy.arange(31, -1, -1), stride=8_000, offset=100)
    pages = a.submit_paged_writes(
        (here, source), (there.descriptor, destination), page_bytes=4_096, immediate=5, deadline=PATIENCE
    )
    pages.wait()
    b.expect_imm_count(5, 1, deadline=PATIENCE).wait()
    for page in range(32):
        sent = written[3 + 2 * page * 5_000 :][:4_096]
        assert bytes(there.memory[100 + (31 - page) * 8_000 :][:4_096]) == sent, page


def test_a_scatter_and_a_barrier_reach_every_peer_of_the_group(engine):
    a, peers = engine(), [engine() for _ in range(3)]
    group = a.add_peer_group([peer.main_address for peer in peers])
    written = pattern(3_000)
    here, memory = a.reg_mr(bytearray(written)), [peer.alloc(1_000) for peer in peers]
    writes = [
        weft.SingleWrite((here, index * 1_000), (region.descriptor, 10), 900 + index, immediate=1)
        for index, region in enumerate(memory)
    ]
    a.submit_scatter(writes, deadline=PATIENCE).wait()
    a.submit_barrier(group, 2, deadline=PATIENCE).wait()
    for index, (peer, region) in enumerate(zip(peers, memory)):
        peer.expect_imm_count(1, 1, deadline=PATIENCE).wait()
        peer.expect_imm_count(2, 1, deadline=PATIENCE).wait()
        assert bytes(region.memory[10 : 910 + index]) == written[index * 1_000 :][: 900 + index]


def test_a_read_brings_the_bytes_of_the_peer(pair):
    a, b = pair
    there = b.reg_mr(bytearray(pattern(300_000)), weft.Access.READ)
    here = a.alloc(200_000)
    a.submit_read((there.descriptor, 1_000), (here, 10), 100_000, deadline=PATIENCE).wait()
    assert bytes(here.memory[10:100_010]) == pattern(300_000)[1_000:101_000]
    # Without a length it goes to the end of the destination.
    a.submit_read(there.descriptor, (here, 199_990), deadline=PATIENCE).wait()
    assert bytes(here.memory[199_990:]) == pattern(10)


def test_messages_come_in_order_with_their_immediates(engine):
    receiver, senders = engine(), [engine(), engine()]
    # Sent before there is a receive: they wait.
    sent = [
        senders[name].submit_send(receiver.main_address, bytes([name]) * index, index, deadline=PATIENCE)
        for index in range(1, 20)
        for name in (0, 1)
    ]
    messages: queue.Queue[tuple[bytes, int | None]] = queue.Queue()
    receiver.submit_recvs(2_000, 3, lambda message, immediate: messages.put((message, immediate)))
    following = [1, 1]
    for _ in sent:
        message, immediate = messages.get(timeout=PATIENCE)
        name = message[0]
        assert (message, immediate) == (bytes([name]) * following[name], following[name])
        following[name] += 1
    for operation in sent:
        operation.wait()


@pytest.mark.parametrize("message", [b"", bytearray(b"abc"), memoryview(b"abcdef")[::2]])
def test_a_message_is_anything_like_bytes(pair, message):
    a, b = pair
    messages: queue.Queue[tuple[bytes, int | None]] = queue.Queue()
    b.submit_recvs(10, 1, lambda *message: messages.put(message))
    a.submit_send(b.main_address, message, deadline=PATIENCE).wait()
    assert messages.get(timeout=PATIENCE) == (bytes(message), None)


def test_a_write_goes_over_two_nics(engine):
    a = engine(nics=["127.0.0.1", "127.0.0.2"], link="udp")
    b = engine(nics=["127.0.0.1", "127.0.0.2"], link="udp")
    here, there = a.reg_mr(bytearray(pattern(5_000_000))), b.alloc(5_000_000)
    a.submit_single_write(here, there.descriptor, immediate=1, deadline=PATIENCE).wait()
    b.expect_imm_count(1, 1, deadline=PATIENCE).wait()
    assert bytes(there.memory) == pattern(5_000_000)
    pairs = a.nic_pairs()
    assert {(pair.here, pair.there) for pair in pairs} == {
        (f"127.0.0.{x}", f"127.0.0.{y}") for x in (1, 2) for y in (1, 2)
    }
    assert {pair.here for pair in pairs if pair.sent_chunks} == {"127.0.0.1", "127.0.0.2"}


def test_an_encrypted_engine_writes_to_its_kind_only(engine):
    a, b, plain = engine(encryption="required"), engine(encryption="required"), engine()
    here, there = a.reg_mr(bytearray(b"secret")), b.alloc(6)
    a.submit_single_write(here, there.descriptor, deadline=PATIENCE).wait()
    assert bytes(there.memory) == b"secret"
    with pytest.raises(weft.TransferFailed) as failed:
        plain.connect(b.main_address, deadline=PATIENCE).wait()
    assert failed.value.stage == "Connect"


def test_a_watcher_tells_old_and_new_values_without_a_gap(engine):
    told: queue.Queue[tuple[int, int]] = queue.Queue()
    with engine().alloc_watcher(lambda old, new: told.put((old, new))) as watcher:
        for _ in range(1_000):
            watcher.add(1)
        last = 0
        while last < 1_000:
            old, new = told.get(timeout=PATIENCE)
            assert old == last < new
            last = new
        assert watcher.value == 1_000
        assert watcher.fileno() >= 0
    with pytest.raises(RuntimeError, match="the watcher is closed"):
        watcher.add(1)


def test_counts_show_what_there_is_and_what_has_gone(pair):
    a, b = pair
    here, there = a.reg_mr(bytearray(100)), b.alloc(100)
    for _ in range(100):
        a.submit_single_write(here, there.descriptor, deadline=PATIENCE).wait()
    assert a.counts() == weft.Counts(peers=1, connections=2, operations=0, counters=0, regions=1)
    here.deregister()
    a.remove_peer(b.main_address)
    assert (a.counts().peers, a.counts().regions) == (0, 0)

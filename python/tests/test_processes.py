"""Engines of two processes, forks, and the end of the interpreter."""

from __future__ import annotations

import gc
import hashlib
import os
import signal
import subprocess
import sys
import warnings
import weakref

import pytest
from conftest import PATIENCE, pattern, until

import weft

numpy = pytest.importorskip("numpy")

LENGTH = 16_000_000

RECEIVER = f"""
import hashlib, sys, weft
with weft.Engine(port_count=4, stall_timeout=60) as engine:
    region = engine.alloc({LENGTH})
    print(region.descriptor, flush=True)
    for line in sys.stdin:
        engine.expect_imm_count(1, 1, deadline=60).wait()
        print(hashlib.sha256(region.memory).hexdigest(), flush=True)
"""


@pytest.fixture
def receiver():
    """A process with an engine that can be stopped."""
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", RECEIVER], stdin=pipe, stdout=pipe, text=True) as process:
        try:
            yield process, process.stdout.readline().strip()
        finally:
            process.send_signal(signal.SIGCONT)
            process.kill()


def test_an_object_that_is_freed_in_flight_is_kept_until_the_write_has_ended(engine, receiver):
    process, descriptor = receiver
    a = engine(stall_timeout=60)
    a.submit_single_write(a.reg_mr(bytearray(1)), descriptor, deadline=PATIENCE).wait()
    # Nothing ends while the peer is stopped.
    process.send_signal(signal.SIGSTOP)
    source = numpy.frombuffer(bytearray(pattern(LENGTH // 16) * 16), numpy.uint8).copy()
    digest, kept = hashlib.sha256(source).hexdigest(), weakref.ref(source)
    region = a.reg_mr(source)
    operation = a.submit_single_write(region, descriptor, immediate=1, deadline=PATIENCE)
    region.deregister()
    del source, region
    gc.collect()
    assert a.counts().operations == 1
    assert kept() is not None
    process.send_signal(signal.SIGCONT)
    operation.wait()
    process.stdin.write("\n")
    process.stdin.flush()
    assert process.stdout.readline().strip() == digest
    # Each call releases what the engine's threads have dropped.
    assert until(lambda: a.counts() and kept() is None)


def test_a_peer_whose_process_is_killed_is_named(engine, receiver):
    process, descriptor = receiver
    a = engine(stall_timeout=60)
    region = a.reg_mr(bytearray(LENGTH))
    a.submit_single_write(region, descriptor, 1, deadline=PATIENCE).wait()
    process.send_signal(signal.SIGSTOP)
    operation = a.submit_single_write(region, descriptor, deadline=PATIENCE)
    process.kill()
    with pytest.raises(weft.TransferFailed) as failed:
        operation.wait()
    assert (failed.value.outcome, failed.value.cause) == (weft.Outcome.FAILED, "PeerEnded")


def forked(act) -> str:
    """What `act` returns in a forked process; nothing if that takes too long."""
    readable, writable = os.pipe()
    with warnings.catch_warnings():
        # This process has threads: that is what the test is about.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        signal.alarm(int(PATIENCE))
        try:
            os.write(writable, str(act()).encode())
        finally:
            os._exit(0)
    os.close(writable)
    with os.fdopen(readable) as answer:
        text = answer.read()
    os.waitpid(child, 0)
    return text


def test_a_forked_process_is_refused_and_can_start_its_own_engine(pair):
    a, b = pair
    here, there = a.reg_mr(bytearray(8)), b.alloc(8)
    watcher = a.alloc_watcher(lambda old, new: None)
    operation = a.expect_imm_count(1, 1, deadline=PATIENCE)
    group = a.add_peer_group([b.main_address])
    calls = [
        operation.wait,
        operation.done,
        operation.outcome,
        operation.exception,
        operation.cancel,
        a.counts,
        lambda: a.submit_single_write(here, there.descriptor),
        lambda: a.submit_barrier(group, 1),
        lambda: a.expect_imm_count(1, 1),
        lambda: a.imm_count(1),
        lambda: a.free_imm(1),
        lambda: a.remove_peer(b.main_address),
        lambda: a.reg_mr(bytearray(1)),
        lambda: a.alloc(1),
        lambda: a.alloc_watcher(print),
    ]

    def child() -> int:
        refused = 0
        for call in calls:
            try:
                call()
            except RuntimeError as error:
                refused += f"this process was forked from {os.getppid()}" in str(error)
        # These do nothing here, and end.
        here.deregister()
        a.close()
        b.close()
        watcher.add(5)
        with weft.Engine(port_count=4) as own:
            own.submit_single_write(own.reg_mr(bytearray(b"x")), there.descriptor, deadline=PATIENCE).wait()
        return refused

    assert forked(child) == str(len(calls))
    # The parent goes on. The word of the watcher is shared.
    assert bytes(there.memory[:1]) == b"x"
    assert watcher.value == 5
    a.submit_single_write(here, there.descriptor, deadline=PATIENCE).wait()
    operation.cancel()


ENDS = {
    "an engine that is not closed": "",
    "an operation that goes on": "operation = a.expect_imm_count(1, 1)",
    "a watcher": "watcher = a.alloc_watcher(print)",
    "a daemon thread that waits": """
operation = a.expect_imm_count(1, 1)
import threading
threading.Thread(target=operation.wait, daemon=True).start()
threading.excepthook = lambda hook: None
""",
    "callbacks that go on": """
def again(error):
    if error is None:
        a.submit_single_write(here, there.descriptor, on_done=again)
import sys
sys.unraisablehook = lambda hook: None
for _ in range(10):
    again(None)
""",
}


@pytest.mark.parametrize("what", ENDS)
def test_an_interpreter_ends_with(what):
    start = (
        "import weft; a, b = weft.Engine(port_count=4), weft.Engine(port_count=4)\n"
        "here, there = a.reg_mr(bytearray(8)), b.alloc(8)\n"
        "a.submit_single_write(here, there.descriptor).wait()\n"
    )
    run = [sys.executable, "-c", start + ENDS[what]]
    ended = subprocess.run(run, capture_output=True, text=True, timeout=PATIENCE)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")

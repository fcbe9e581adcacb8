"""How operations end, and who learns of it."""

from __future__ import annotations

import copy
import os
import pickle
import queue
import signal
import sys
import threading

import pytest
from conftest import PATIENCE, pattern, until

import weft


def test_a_deadline_that_passes_is_told_as_reusable(engine):
    operation = engine().expect_imm_count(1, 1, deadline=0.01)
    with pytest.raises(weft.Reusable) as stopped:
        operation.wait()
    error = stopped.value
    assert isinstance(error, weft.TransferFailed)
    assert (error.peer, error.path, error.stage, error.cause) == (None, None, "Count", "DeadlinePassed")
    assert error.outcome is operation.outcome() is weft.Outcome.REUSABLE
    assert "the deadline passed" in str(error)
    told = operation.exception()
    assert (type(told), str(told)) == (weft.Reusable, str(error))


def test_a_cancelled_operation_is_told_as_reusable(engine):
    operation = engine().expect_imm_count(1, 1, deadline=PATIENCE)
    assert (operation.done(), operation.outcome(), operation.exception()) == (False, None, None)
    operation.cancel()
    with pytest.raises(weft.Reusable, match="the program cancelled it"):
        operation.wait()


def test_a_wait_for_some_time_tells_whether_the_operation_is_done(pair):
    a, b = pair
    operation = b.expect_imm_count(1, 1, deadline=PATIENCE)
    assert [operation.wait_for(seconds) for seconds in (0, 0.001, 0.1)] == [False] * 3
    a.submit_barrier(a.add_peer_group([b.main_address]), 1, deadline=PATIENCE).wait()
    # The end ends the wait, and not the time.
    assert operation.wait_for(1000 * PATIENCE) is True
    assert operation.wait_for(0) is True
    with pytest.raises(weft.Reusable, match="the deadline passed"):
        b.expect_imm_count(1, 2, deadline=0.01).wait_for(PATIENCE)
    with pytest.raises(ValueError, match="seconds"):
        operation.wait_for(-1)


def test_a_stop_that_the_peer_does_not_confirm_is_told_as_unconfirmed(engine):
    a, b = engine(cancel_timeout=0.01), engine()
    a.connect(b.main_address, deadline=PATIENCE).wait()
    # It waits for a receive, and a send cannot be cancelled.
    operation = a.submit_send(b.main_address, b"message", deadline=PATIENCE)
    operation.cancel()
    with pytest.raises(weft.Unconfirmed) as stopped:
        operation.wait()
    error = stopped.value
    assert (error.outcome, error.stage, error.cause) == (weft.Outcome.UNCONFIRMED, "Transfer", "Cancelled")
    assert "127.0.0.1" in (error.path or "")


def test_after_a_cancel_that_is_confirmed_no_byte_lands(pair):
    a, b = pair
    here, there = a.reg_mr(bytearray(b"x" * 64_000_000)), b.alloc(64_000_000)
    a.connect(b.main_address, deadline=PATIENCE).wait()
    for _ in range(20):
        there.memory[0] = 0
        operation = a.submit_single_write(here, there.descriptor, deadline=PATIENCE)
        assert until(lambda: there.memory[0] == ord("x"))
        operation.cancel()
        try:
            operation.wait()
        except weft.Reusable:
            break
    else:
        pytest.fail("each write was done before its cancel")
    length = len(there)
    there.memory[:] = bytes(length)
    # A second write goes the same way, so that what is late would have come before it.
    a.submit_single_write(a.reg_mr(bytearray(b"y")), there.descriptor, deadline=PATIENCE).wait()
    assert bytes(there.memory) == b"y" + bytes(length - 1)


def test_a_peer_that_has_ended_is_named(pair):
    a, b = pair
    here, there = a.reg_mr(bytearray(8)), b.alloc(8)
    name = repr(b).split()[-1].rstrip(">")
    b.close()
    with pytest.raises(weft.TransferFailed) as failed:
        a.submit_single_write(here, there.descriptor, deadline=PATIENCE).wait()
    error = failed.value
    assert type(error) is weft.TransferFailed
    assert (error.outcome, error.peer, error.stage) == (weft.Outcome.FAILED, name, "Connect")
    # Another engine of this machine may have got its port.
    assert error.cause in ("Unreachable", "AnotherGeneration")
    assert name in str(error)


def test_an_end_of_the_own_engine_ends_what_is_under_way(pair):
    a, b = pair
    waits = a.expect_imm_count(1, 1, deadline=PATIENCE)
    sends = a.submit_send(b.main_address, b"nobody receives it", deadline=PATIENCE)
    a.close()
    a.close()
    for operation in (waits, sends):
        with pytest.raises(weft.TransferFailed) as failed:
            operation.wait()
        assert failed.value.cause == "EndedHere"
    with pytest.raises(RuntimeError, match="the engine is closed"):
        a.imm_count(1)


@pytest.mark.parametrize("again", [copy.copy, lambda error: pickle.loads(pickle.dumps(error))])
def test_an_exception_goes_to_another_process(engine, again):
    operation = engine().expect_imm_count(1, 1, deadline=0)
    assert until(operation.done)
    error = operation.exception()
    other = again(error)
    assert type(other) is weft.Reusable
    assert (str(other), vars(other), other.outcome) == (str(error), vars(error), weft.Outcome.REUSABLE)


def test_other_threads_run_while_one_waits(pair):
    a, b = pair
    group = a.add_peer_group([b.main_address])
    waits = b.expect_imm_count(1, 100, deadline=PATIENCE)

    def send() -> None:
        for _ in range(100):
            a.submit_barrier(group, 1, deadline=PATIENCE).wait()

    sender = threading.Thread(target=send)
    sender.start()
    # It ends only if the other thread runs.
    waits.wait()
    sender.join()


def test_an_interrupt_leaves_the_wait_and_the_operation_goes_on(pair):
    a, b = pair
    operation = b.expect_imm_count(1, 1, deadline=PATIENCE)
    waiter = threading.main_thread().ident

    def interrupt() -> None:
        # When the main thread is in the wait, or one step before it.
        def is_waiting() -> bool:
            frame = sys._current_frames()[waiter]
            return (frame.f_code.co_filename, frame.f_lineno) == (__file__, line)

        assert until(is_waiting)
        os.kill(os.getpid(), signal.SIGINT)

    line = sys._getframe().f_lineno + 5
    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            operation.wait()
    finally:
        thread.join()
    assert not operation.done()
    a.submit_barrier(a.add_peer_group([b.main_address]), 1, deadline=PATIENCE).wait()
    operation.wait()


def test_a_callback_gets_none_or_the_error_on_the_callback_thread(pair):
    a, b = pair
    told: queue.Queue[tuple[object, int]] = queue.Queue()

    def on_done(error: weft.TransferFailed | None) -> None:
        told.put((error, threading.get_ident()))

    here, there = a.reg_mr(bytearray(8)), b.alloc(8)
    a.submit_single_write(here, there.descriptor, deadline=PATIENCE, on_done=on_done)
    error, thread = told.get(timeout=PATIENCE)
    assert error is None
    assert thread != threading.get_ident()
    a.expect_imm_count(1, 1, deadline=0, on_done=on_done)
    error, _ = told.get(timeout=PATIENCE)
    assert type(error) is weft.Reusable


def test_an_exception_in_a_callback_is_shown_and_harms_nothing(pair, monkeypatch):
    a, b = pair
    shown: queue.Queue[tuple[str, object]] = queue.Queue()
    monkeypatch.setattr(sys, "unraisablehook", lambda hook: shown.put((str(hook.exc_value), hook.object)))

    def raises(*_: object) -> None:
        raise SystemExit("it ends here")

    here, there = a.reg_mr(bytearray(8)), b.alloc(8)
    watcher = b.alloc_watcher(raises)
    b.submit_recvs(10, 1, raises)
    for _ in range(3):
        a.submit_single_write(here, there.descriptor, deadline=PATIENCE, on_done=raises).wait()
        a.submit_send(b.main_address, b"message", deadline=PATIENCE).wait()
        watcher.add(1)
        for _ in range(3):
            assert shown.get(timeout=PATIENCE) == ("it ends here", raises)


def test_a_callback_may_submit_and_close(pair):
    a, b = pair
    here, there = a.reg_mr(bytearray(pattern(8))), b.alloc(8)
    closed = threading.Event()

    def close(_: object) -> None:
        a.close()
        closed.set()

    def write(_: object) -> None:
        a.submit_single_write(here, there.descriptor, deadline=PATIENCE, on_done=close)

    a.connect(b.main_address, deadline=PATIENCE, on_done=write)
    assert closed.wait(PATIENCE)
    assert bytes(there.memory) == pattern(8)


def test_a_callback_and_what_it_has_are_released(engine):
    import weakref

    class Owned:
        pass

    a, owned = engine(), Owned()
    gone = weakref.ref(owned)
    operation = a.expect_imm_count(1, 1, deadline=PATIENCE, on_done=lambda error, owned=owned: None)
    del owned
    assert gone() is not None
    operation.cancel()
    del operation
    assert until(lambda: a.counts() and gone() is None)

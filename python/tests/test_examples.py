"""The examples as programs: what they print is what they promise."""

from __future__ import annotations

import contextlib
import pathlib
import re
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest
from conftest import PATIENCE

pytest.importorskip("numpy")

EXAMPLES = pathlib.Path(__file__).parents[1] / "examples"

LAYER_BYTES = 16 << 20
REQUEST_BYTES = 4 * LAYER_BYTES
FIRST = "request 1: 4 layers are here, and each byte is right"
SECOND = re.compile(rf"request 2: cancelled after (\d+) of {REQUEST_BYTES} bytes, (\d) layers whole; no byte lands any more")
THIRD = "request 3: the pages of request 2 were used again at once, and each byte is right"
FOURTH = "request 4: 1 of 4 layers is here: kill the first prefiller"
FIFTH = "request 5: the pages of request 4 were used again, and each byte of all requests is right"


def run(name: str) -> list[str]:
    """What an example prints. It has to succeed."""
    program = [sys.executable, str(EXAMPLES / name)]
    ended = subprocess.run(program, capture_output=True, text=True, timeout=5 * PATIENCE)
    assert (ended.returncode, ended.stderr) == (0, "")
    return ended.stdout.splitlines()


def test_a_cancel_in_mid_write_frees_the_pages_at_once():
    for _ in range(5):
        first, second, third, *_ = run("kv_cache.py")
        assert (first, third) == (FIRST, THIRD)
        cancelled = SECOND.fullmatch(second)
        assert cancelled, second
        landed, layers = map(int, cancelled.groups())
        # Bytes of a write that was then stopped have landed.
        if layers * LAYER_BYTES < landed < REQUEST_BYTES:
            break
    else:
        pytest.fail("no cancel has met bytes under way")


@contextlib.contextmanager
def start(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    program, pipe = [sys.executable, str(EXAMPLES / "kv_cache.py"), *arguments], subprocess.PIPE
    with subprocess.Popen(program, stdin=pipe, stdout=pipe, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("sent", "failure"),
    [
        # It cannot be reached, or has ended the connection.
        (signal.SIGKILL, "the peer "),
        # It is silent until the deadline of a heartbeat.
        (signal.SIGSTOP, "the deadline passed"),
    ],
    ids=lambda value: value.name if isinstance(value, signal.Signals) else "",
)
def test_a_decoder_goes_on_when_a_prefiller_is_dead(sent, failure):
    with start("prefiller") as first, start("prefiller") as second, start("decoder") as decoder:
        addresses = [prefiller.stdout.readline() for prefiller in (first, second)]
        decoder.stdin.writelines(addresses)
        decoder.stdin.flush()
        lines = [decoder.stdout.readline().rstrip() for _ in range(4)]
        assert (lines[0], *lines[2:]) == (FIRST, THIRD, FOURTH)
        first.send_signal(sent)
        dead, *rest = decoder.stdout.read().splitlines()
        name_and_stage = r"request 4: 127\.0\.0\.1:\d+#\w+, stage (Connect|Post|Transfer)(, path [^:]*)?: " + failure
        assert re.match(name_and_stage, dead), dead
        assert rest == [FIFTH]
        assert decoder.wait(PATIENCE) == 0


def test_experts_on_four_ranks_compute_what_a_plain_program_computes():
    line = "round {}: the 256 tokens of 4 ranks equal the plain computation, bit by bit: {} of 512 rows went ahead"
    # To any expert: 12 rows for each pair of ranks. To those of rank 0: 12 of each rank.
    assert run("moe.py") == [line.format(number, 48 if number % 2 else 192) for number in range(8)]


def test_each_inference_engine_has_the_parameters_of_each_step():
    lines = run("broadcast.py")
    sent = [rf"step {step}: 18874380 bytes are at 3 engines after .* ms" for step in (1, 2, 3)]
    loaded = [
        rf"step {step}: engine {number} has the parameters, checksum \w{{8}}" for number in range(3) for step in (1, 2, 3)
    ]
    assert len(lines) == 12
    for pattern, line in zip(sent + loaded, lines):
        assert re.fullmatch(pattern, line), line
    # The parameters change with each step, and the slices with each engine.
    assert len({line.split()[-1] for line in lines[3:]}) == 9


def test_a_role_that_nobody_knows_is_refused():
    program = [sys.executable, str(EXAMPLES / "kv_cache.py"), "encoder"]
    ended = subprocess.run(program, capture_output=True, text=True, timeout=PATIENCE)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr == "encoder is no role: prefiller, decoder, or none for all\n"

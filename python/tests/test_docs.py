"""What the docs show is true, and the types are what the stubs say."""

from __future__ import annotations

import doctest
import importlib.util
import inspect
import pathlib
import re
import subprocess
import sys

import pytest
from conftest import PATIENCE

import weft

TESTS = pathlib.Path(__file__).parent
TUTORIAL = TESTS.parents[1] / "docs" / "python.md"


def examples() -> list[doctest.DocTest]:
    found = doctest.DocTestFinder().find(weft, "weft")
    return [test for test in found if test.examples]


@pytest.mark.parametrize("test", examples(), ids=lambda test: test.name)
def test_the_examples_of_help_are_right(test):
    said: list[str] = []
    failed, attempted = doctest.DocTestRunner().run(test, out=said.append)
    assert (failed, attempted > 0) == (0, True), "".join(said)


def test_help_shows_the_engine_by_example():
    names = {test.name for test in examples()}
    assert {"weft", "weft.Engine", "weft.Engine.submit_read", "weft.MemoryRegion", "weft.Operation"} <= names


def test_each_public_name_has_a_doc():
    for name in weft.__all__:
        each = getattr(weft, name)
        assert inspect.getdoc(each), name
        for member, value in vars(each).items():
            if member.startswith("_") or not (inspect.isroutine(value) or inspect.isdatadescriptor(value)):
                continue
            assert inspect.getdoc(value), f"{name}.{member}"


def test_the_tutorial_does_what_it_says(tmp_path):
    pytest.importorskip("numpy")
    text = TUTORIAL.read_text()
    for name, code in re.findall(r"```python\n# (\w+\.py)\n(.*?)```", text, re.DOTALL):
        (tmp_path / name).write_text(code)
    run = [sys.executable, "receiver.py"]
    with subprocess.Popen(run, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as receiver:
        descriptor = receiver.stdout.readline().strip()
        sender = subprocess.run(
            [sys.executable, "sender.py", descriptor], cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE
        )
        assert (sender.returncode, sender.stdout, sender.stderr) == (0, "", "")
        printed = receiver.stdout.read().strip()
    said = re.search(r"The receiver prints `(.*?)`", text)
    assert (receiver.returncode, printed) == (0, said.group(1))


def mypy(*arguments: str) -> None:
    if importlib.util.find_spec("mypy") is None:
        pytest.skip("mypy is not installed")
    # Not beside the sources: there `weft` has no compiled part.
    checked = subprocess.run(
        [sys.executable, "-m", *arguments], cwd=TESTS, capture_output=True, text=True, timeout=5 * PATIENCE
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_the_package_has_no_untyped_part():
    mypy("mypy", "--strict", "--cache-dir=/dev/null", "-p", "weft")


def test_a_typed_program_is_accepted_and_its_mistakes_are_found():
    mypy("mypy", "--strict", "--cache-dir=/dev/null", "typed_example.py")


def test_the_stubs_are_what_the_module_has():
    mypy("mypy.stubtest", "weft")

#!/usr/bin/env python3
"""Makes docs/images/play.svg, the README's picture, from a real run of `weft play`.

    python3 -m venv target/recording && target/recording/bin/pip install pyte rich
    target/recording/bin/python hack/recording.py target/play/weft play --source DIR --rate 1gbit

The program runs on a terminal of its own; what the picture shows is that terminal's content half way
through, and again at the end. Nothing is typed in or retouched but the home directory's name.
"""

import fcntl
import os
import pty
import struct
import sys
import termios
import time

import pyte
from rich.console import Console
from rich.text import Text

COLUMNS, LINES = 160, 40
OUT = "docs/images/play.svg"


def shown(screen):
    """The screen's lines, without the blank ones at its end."""
    lines = [line.rstrip() for line in screen.display]
    while lines and not lines[-1]:
        lines.pop()
    return lines


def record(command):
    """Runs the command on a terminal; returns what stood there at each moment, and at the end."""
    child, terminal = pty.fork()
    if child == 0:
        os.execvp(command[0], command)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    screen = pyte.Screen(COLUMNS, LINES)
    stream = pyte.ByteStream(screen)
    frames = []
    while True:
        try:
            data = os.read(terminal, 65536)
        except OSError:
            break
        if not data:
            break
        stream.feed(data)
        frames.append((time.monotonic(), shown(screen)))
    _, status = os.waitpid(child, 0)
    return frames, os.waitstatus_to_exitcode(status)


def main():
    command = sys.argv[1:]
    if not command:
        sys.exit(__doc__)
    frames, status = record(command)
    if status != 0:
        sys.exit(f"{command[0]} ended with status {status}: no picture is made of that")
    last = frames[-1][1]
    running = [lines for _, lines in frames if sum("ETA" in line for line in lines) >= 2]
    middle = running[len(running) // 2] if running else []
    prompt = "$ weft " + " ".join(command[1:])
    home = os.path.expanduser("~")
    text = "\n".join([prompt, *middle, "", *last]).replace(home + "/", "~/")
    console = Console(record=True, width=COLUMNS, file=open(os.devnull, "w", encoding="utf-8"))
    console.print(Text(text), soft_wrap=True)
    console.save_svg(OUT, title="weft play")
    print(f"{OUT}: {len(frames)} updates of the terminal, the middle one and the last are shown")


main()

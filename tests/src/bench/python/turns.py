"""What the programs of the peers share: memory of known content, and commands by standard input.

A pair of processes serves one peer. `python3 PROGRAM.py target BYTES ADDRESS` prints the name of its memory, and
`python3 PROGRAM.py initiator BYTES ADDRESS NAME` prints "ready". Then each reads a command, does it, prints one line and
waits for the next one. While it waits it takes no processor time, unless the command was `serve`.
"""

import array
import ctypes
import mmap
import select
import statistics
import sys
import time

# Bytes after which the content begins again. No multiple of 8 MiB, so that a write to a wrong place is found.
PERIOD = (8 << 20) - 8
# Whatever calls move bytes on are made so many times between two looks for a command.
CALLS = 64
# Steps through the pages of a source and of a destination. Both are odd, so each page occurs once, and pages that follow
# one another in the list never do in memory.
SOURCE_STEP, DESTINATION_STEP = 5, 11

libc = ctypes.CDLL(None, use_errno=True)
libc.memcmp.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]


class Memory:
    """Private memory of a process."""

    def __init__(self, size):
        self.size = size
        self.map = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.view = (ctypes.c_char * size).from_buffer(self.map)
        self.address = ctypes.addressof(self.view)
        # No eight bytes of a period are alike. Twice: a comparison may begin anywhere in the first one.
        self.pattern = array.array("Q", range(1, PERIOD // 8 + 1)).tobytes() * 2

    def fill(self):
        for at in range(0, self.size, PERIOD):
            ctypes.memmove(self.address + at, self.pattern, min(PERIOD, self.size - at))

    def clear(self):
        ctypes.memset(self.address, 0xA5, self.size)

    def differs(self, at, source, size):
        """Whether the bytes at one offset are not those that a source has at another one."""
        while size:
            step = min(size, PERIOD)
            # Of a copy: `c_char_p` would end at the first zero.
            expected = self.pattern[source % PERIOD : source % PERIOD + step]
            if libc.memcmp(self.address + at, expected, step) != 0:
                return True
            at, source, size = at + step, source + step, size - step
        return False


def places(memory, size, count):
    """Where each of `count` writes is, at either end."""
    return [(at % (memory.size // size)) * size for at in range(count)]


def pages(page, count, operation):
    """Where the pages of an operation are, at the source and at the destination."""
    base = operation * count * page
    at = range(count)
    source = [base + i * SOURCE_STEP % count * page for i in at]
    destination = [base + i * DESTINATION_STEP % count * page for i in at]
    return list(zip(source, destination))


def run(requests, outstanding, post, ended):
    """Has so many requests under way. Answers the seconds of all, and the median microseconds of one where one is."""
    under_way, times = [], []
    begun = time.perf_counter()
    if outstanding == 1:
        before = begun
        for request in requests:
            state = post(request)
            while not ended(state):
                pass
            now = time.perf_counter()
            times.append(now - before)
            before = now
    else:
        for request in requests:
            if len(under_way) == outstanding:
                oldest = under_way.pop(0)
                while not ended(oldest):
                    pass
            under_way.append(post(request))
        for state in under_way:
            while not ended(state):
                pass
    took = time.perf_counter() - begun
    return took, statistics.median(times) * 1e6 if times else 0.0


def say(*words):
    print(*words, flush=True)


def commands():
    for line in iter(sys.stdin.readline, ""):
        yield line.split()[0], [int(word) for word in line.split()[1:]]


def serve(memory, progress=None):
    """The target's commands. `progress` moves bytes on; without it the library's threads do."""
    for command, numbers in commands():
        if command == "serve":
            say("serves")
            while progress is not None and not select.select([sys.stdin], [], [], 0)[0]:
                for _ in range(CALLS):
                    progress()
        elif command == "clear":
            memory.clear()
            say("cleared")
        elif command == "check":
            size, count = numbers
            bad = [at for at in places(memory, size, count) if memory.differs(at, at, size)]
            say("differs" if bad else "same", *bad[:1])
        elif command == "check_pages":
            page, number, operations = numbers
            moved = (pair for i in range(operations) for pair in pages(page, number, i))
            bad = [there for here, there in moved if memory.differs(there, here, page)]
            say("differs" if bad else "same", *bad[:1])


def initiate(memory, write, write_pages):
    """The initiator's commands, which print seconds and the median microseconds of one request."""
    memory.fill()
    say("ready")
    for command, numbers in commands():
        if command == "write":
            size, count, outstanding = numbers
            say(*write(places(memory, size, count), size, outstanding))
        elif command == "write_pages":
            page, number, operations, outstanding = numbers
            lists = [pages(page, number, i) for i in range(operations)]
            say(*write_pages(lists, page, outstanding))

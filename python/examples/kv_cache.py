"""Disaggregated inference: a prefiller computes a KV cache, and writes it layer by layer into the memory of a decoder.

    pip install ./python numpy
    python examples/kv_cache.py

This process becomes the decoder, and starts two prefillers, each as a process. It shows:

1. The transfer. The prefiller increments a watched word after each layer, and the callback of the watcher submits the pages
   of that layer. No message says that the cache is complete: the decoder waits for a count.
2. A cancel in mid-write. The prefiller answers when no byte lands any more, and the decoder gives the pages to another
   request at once.
3. A dead prefiller. It is killed, and a heartbeat finds out. The decoder closes the key of the request, so its pages are
   safe, and the other prefiller fills them.

On several machines: `kv_cache.py prefiller IP` prints an address, which is a secret. `kv_cache.py decoder IP` reads two of
them, one in a line, and says when it is time to kill the first prefiller.
"""

import json
import queue
import subprocess
import sys
import threading
import time

import numpy
import weft

LAYERS, PAGES, PAGE_BYTES = 4, 8, 2 << 20  # of a request: in each layer so many pages
CACHE_PAGES = 3 * PAGES  # the decoder has room for three requests
WORDS = PAGE_BYTES // 4
HEARTBEAT = 0  # an immediate; those of requests are their numbers


def compute(prompt, layer):
    """The model: words that differ by prompt, layer, page and place."""
    words = numpy.arange(1, PAGES * WORDS + 1, dtype=numpy.uint32)
    words *= numpy.uint32(2 * (prompt * LAYERS + layer) + 1)
    return words.reshape(PAGES, WORDS)


class Prefill:
    """A request at the prefiller. `write`, `end` and `cancel` run on the engine's callback thread, one after the other."""

    def __init__(self, engine, request):
        self.engine, self.request = engine, request
        self.writes, self.ends = [], []
        self.is_cancelled, self.has_ended = False, threading.Event()

    def run(self):
        """Has a thread of its own. What it computes, a GPU would: that knows nothing of transfers, and increments a word."""
        self.layers = numpy.empty((LAYERS, PAGES, WORDS), numpy.uint32)
        with self.engine.reg_mr(self.layers) as self.region, self.engine.alloc_watcher(self.write) as computed:
            for layer in range(self.request["layers"]):
                self.layers[layer] = compute(self.request["prompt"], layer)
                computed.add(1)
            self.has_ended.wait()

    def answer(self):
        """What the decoder is told of a cancel. None and Reusable promise that nothing lands any more."""
        done = self.ends.count(None)
        reusable = done + sum(isinstance(end, weft.Reusable) for end in self.ends)
        return {"id": self.request["id"], "done": done, "reusable": reusable == len(self.ends)}

    def write(self, old, new):
        for layer in range(old, new):
            if not self.is_cancelled:
                here = (self.region, weft.Pages(range(PAGES), PAGE_BYTES, layer * PAGES * PAGE_BYTES))
                pages = weft.Pages(self.request["pages"], PAGE_BYTES, layer * CACHE_PAGES * PAGE_BYTES)
                there = (self.request["cache"], pages)
                write = self.engine.submit_paged_writes(
                    here, there, PAGE_BYTES, immediate=self.request["id"], on_done=self.end
                )
                self.writes.append(write)

    def end(self, error):
        self.ends.append(error)
        if len(self.ends) == (len(self.writes) if self.is_cancelled else LAYERS):
            self.has_ended.set()

    def cancel(self):
        self.is_cancelled = True
        for write in self.writes:
            write.cancel()
        if len(self.ends) == len(self.writes):
            self.has_ended.set()


def prefill(engine):
    requests, lock = {}, threading.Lock()

    def serve(key, request):
        request.run()
        with lock:  # a cancel comes before this, or finds no request
            del requests[key]
        if request.is_cancelled:
            send(engine, request.request["decoder"], request.answer()).wait()

    def handle(message, immediate):
        message = json.loads(message)
        key = message["decoder"], message["id"]
        if "cache" in message:
            requests[key] = Prefill(engine, message)
            threading.Thread(target=serve, args=[key, requests[key]], daemon=True).start()
            return
        with lock:
            request = requests.get(key)
            if request:
                return request.cancel()
        # Each write has ended, and the decoder has not counted it yet. A callback does not wait.
        send(engine, message["decoder"], {"id": message["id"], "done": LAYERS, "reusable": True})

    engine.submit_recvs(16384, 16, handle)
    print(engine.main_address, flush=True)
    sys.stdin.read()


def send(engine, peer, message):
    return engine.submit_send(peer, json.dumps(message).encode())


class Decoder:
    def __init__(self, engine):
        self.engine, self.answers = engine, queue.Queue()
        self.cache = numpy.zeros((LAYERS, CACHE_PAGES, WORDS), numpy.uint32)
        engine.submit_recvs(16384, 16, lambda message, immediate: self.answers.put(json.loads(message)))

    def ask(self, number, prefiller, pages, layers=LAYERS):
        """Asks for a cache in these pages. Only so many layers come: that is how this program shows a slow prefiller."""
        # Each request has a key of its own: who asks closes it when the request is over.
        region = self.engine.reg_mr(self.cache, weft.Access.WRITE)
        request = {"id": number, "prompt": number, "pages": list(pages), "layers": layers}
        address = self.engine.main_address
        send(self.engine, prefiller, request | {"cache": region.descriptor, "decoder": address}).wait()
        return region

    def wait(self, number, prefiller, layers=LAYERS):
        """Waits for so many layers. Raises weft.TransferFailed when the prefiller is dead."""
        here = self.engine.expect_imm_count(number, layers, deadline=60)
        group = self.engine.add_peer_group([prefiller])
        while not here.wait_for(0.02):
            try:
                # The prefiller's engine counts it. Its program does nothing for it.
                self.engine.submit_barrier(group, HEARTBEAT, deadline=3).wait()
            except weft.TransferFailed:
                here.cancel()
                raise

    def cancel(self, number, prefiller):
        """Cancels a request. When this returns its pages may be used again. Returns how many layers were written whole."""
        send(self.engine, prefiller, {"id": number, "decoder": self.engine.main_address}).wait()
        answer = self.answers.get(timeout=15)
        if answer["id"] != number or not answer["reusable"]:
            raise RuntimeError(f"the cancel of request {number} is not confirmed")
        self.engine.free_imm(number)  # some layers may have counted
        return answer["done"]

    def landed(self, prompt, pages):
        """Bytes of a request that are in its pages."""
        same = (numpy.count_nonzero(self.cache[layer, pages] == compute(prompt, layer)) for layer in range(LAYERS))
        return 4 * int(sum(same))


def decode(engine, prefillers, kill_first):
    decoder, (a, b) = Decoder(engine), prefillers
    pages = [range(first, CACHE_PAGES, 3) for first in range(3)]
    whole = LAYERS * PAGES * PAGE_BYTES

    def check(prompt, of):
        if decoder.landed(prompt, of) != whole:
            raise RuntimeError(f"request {prompt}: wrong bytes")

    with decoder.ask(1, a, pages[0]):
        decoder.wait(1, a)
    check(1, pages[0])
    print(f"request 1: {LAYERS} layers are here, and each byte is right", flush=True)

    with decoder.ask(2, a, pages[1]):
        while not decoder.cache[0, pages[1]].any():  # the client hangs up when the first bytes land
            time.sleep(0)
        done = decoder.cancel(2, a)
    landed = decoder.landed(2, pages[1])
    print(f"request 2: cancelled after {landed} of {whole} bytes, {done} layers whole; no byte lands any more", flush=True)
    with decoder.ask(3, b, pages[1]):
        decoder.wait(3, b)
    check(3, pages[1])
    print("request 3: the pages of request 2 were used again at once, and each byte is right", flush=True)

    with decoder.ask(4, a, pages[2], layers=1):
        decoder.wait(4, a, layers=1)
        print(f"request 4: 1 of {LAYERS} layers is here: kill the first prefiller", flush=True)
        kill_first()
        try:
            decoder.wait(4, a)
            raise RuntimeError("the prefiller of request 4 should be dead")
        except weft.TransferFailed as failed:
            print(f"request 4: {failed}", flush=True)
    # Nobody confirms that nothing lands. The closed key sees to it.
    with decoder.ask(5, b, pages[2]):
        decoder.wait(5, b)
    for prompt, of in zip((1, 3, 5), pages):
        check(prompt, of)
    print("request 5: the pages of request 4 were used again, and each byte of all requests is right", flush=True)


def main(role=None, nic="127.0.0.1"):
    with weft.Engine(nics=[nic], cancel_timeout=3) as engine:
        if role == "prefiller":
            prefill(engine)
        elif role == "decoder":
            decode(engine, [sys.stdin.readline().strip() for _ in range(2)], lambda: None)
        elif role is None:
            command, pipe = [sys.executable, __file__, "prefiller"], subprocess.PIPE
            start = lambda: subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
            with start() as first, start() as second:  # at the end their input ends, and so do they
                addresses = [each.stdout.readline().strip() for each in (first, second)]
                decode(engine, addresses, first.kill)
        else:
            sys.exit(f"{role} is no role: prefiller, decoder, or none for all")


if __name__ == "__main__":
    main(*sys.argv[1:])

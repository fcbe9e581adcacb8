"""Mixture of experts: four ranks dispatch tokens to experts, and combine what comes back.

    pip install ./python numpy
    python examples/moe.py

Each rank is a process with two experts. In each round:

1. A rank scatters its routes (how many rows it has for each expert), and at once the first rows of each destination, into
   private buffers: their places do not depend on the routes of others. This hides the time of the exchange.
2. With the routes of all ranks, each knows where the other rows go: without a gap into a buffer that all ranks share.
3. Each waits for a count of rows, and runs its experts. One scatter brings the results back, in the order of the rows.

There is no barrier, and no rank asks whether a buffer is free: `MEMORY` says why. The result equals a plain computation, bit
by bit.
"""

import multiprocessing

import numpy
import weft

RANKS, LOCAL_EXPERTS, TOKENS, TOP_K, HIDDEN, ROUNDS = 4, 2, 64, 2, 256, 8
EXPERTS = RANKS * LOCAL_EXPERTS
ROWS = TOKENS * TOP_K  # that a rank sends in a round
PRIVATE = 12  # rows ahead of the routes, for each destination: as many as the link sends while the routes travel
ROUTES, DISPATCH, COMBINE = range(3)  # with the round they make the immediates

# The memory of a rank. All ranks have the same, so the offset of an item here is its offset there.
#
# A rank sends its routes of a round when it has read all that came in the round before. Others write `shared` and `results`
# only after they have these routes, so both are free by then. They write `routes` and `private` without, so there are two
# of each, in turn: who has all routes of a round knows that everybody has read what came in the round before that.
MEMORY = numpy.dtype([
    ("routes", numpy.uint32, (2, RANKS, EXPERTS)),
    ("private", numpy.float32, (2, RANKS, PRIVATE, HIDDEN)),
    ("shared", numpy.float32, (RANKS * ROWS, HIDDEN)),
    ("results", numpy.float32, (ROWS, HIDDEN)),
    # What this rank sends, beside its routes.
    ("rows_out", numpy.float32, (ROWS, HIDDEN)),
    ("results_out", numpy.float32, (RANKS * ROWS, HIDDEN)),
])


def tokens_of(number, rank):
    """The tokens of a rank in a round: their hidden states, and the experts of each with their weights."""
    random = numpy.random.default_rng([number, rank])
    hidden = random.standard_normal((TOKENS, HIDDEN), numpy.float32)
    # Any experts; in each second round those of rank 0 only.
    chance = random.random((TOKENS, EXPERTS)) + (number % 2) * (numpy.arange(EXPERTS) < LOCAL_EXPERTS)
    experts = numpy.argsort(-chance, axis=1)[:, :TOP_K]
    return hidden, experts, random.random((TOKENS, TOP_K), numpy.float32)


def run_expert(expert, rows):
    scale = numpy.float32(1 + expert / 7)
    return rows * scale + numpy.roll(rows, expert + 1, axis=1) / scale


def combine(results, weights):
    """A token becomes the weighted sum of what its experts make of it."""
    return sum(results[:, k] * weights[:, k, None] for k in range(TOP_K))


def compute_plainly(number, rank):
    hidden, experts, weights = tokens_of(number, rank)
    of_each = numpy.stack([run_expert(expert, hidden) for expert in range(EXPERTS)], axis=1)
    return combine(numpy.take_along_axis(of_each, experts[:, :, None], axis=1), weights)


class Rank:
    def __init__(self, me, engine, pipe):
        self.me, self.engine, self.sent = me, engine, []
        self.region = engine.alloc(MEMORY.itemsize)
        self.memory = numpy.frombuffer(self.region.memory, MEMORY)
        pipe.send(self.region.descriptor)
        self.there = pipe.recv()  # the descriptors of all ranks

    def scatter(self, immediate, parts):
        """Writes parts, each (rank, rows here, where they go there), as one operation. Those of no rows are left out."""
        def offset(view):
            return view.ctypes.data - self.memory.ctypes.data

        writes = [
            weft.SingleWrite((self.region, offset(rows)), (self.there[to], offset(place)), rows.nbytes, immediate)
            for to, rows, place in parts
            if len(rows)
        ]
        if writes:
            self.sent.append(self.engine.submit_scatter(writes))

    def wait(self, immediate, messages):
        self.engine.expect_imm_count(immediate, messages).wait()
        self.engine.free_imm(immediate)  # no more come

    def run(self, number):
        """A round: returns the tokens of this rank, and how many of its rows went ahead of the routes."""
        me, turn = self.me, number % 2
        routes, private = self.memory["routes"][0, turn], self.memory["private"][0, turn]
        shared, results, rows_out, results_out = (
            self.memory[name][0] for name in ("shared", "results", "rows_out", "results_out")
        )
        routes_here, rows_here, results_here = (3 * number + kind for kind in (ROUTES, DISPATCH, COMBINE))

        # Rows in the order of their experts, so of their ranks too.
        hidden, experts, weights = tokens_of(number, me)
        order = numpy.argsort(experts, axis=None, kind="stable")
        rows_out[:] = hidden[order // TOP_K]
        routes[me] = numpy.bincount(experts.ravel(), minlength=EXPERTS)
        mine = numpy.split(rows_out, routes[me].cumsum()[LOCAL_EXPERTS - 1 : -1 : LOCAL_EXPERTS])

        # Without the routes of others.
        others = [rank for rank in range(RANKS) if rank != me]
        self.scatter(routes_here, [(to, routes[me], routes[me]) for to in others])
        self.scatter(rows_here, [(to, mine[to][:PRIVATE], private[me]) for to in range(RANKS)])

        # With them: rows by sender and receiver, those that did not go ahead, and where they begin in the shared buffer.
        self.wait(routes_here, len(others))
        count = routes.reshape(RANKS, RANKS, LOCAL_EXPERTS).sum(axis=2, dtype=int)
        rest = numpy.maximum(count - PRIVATE, 0)
        begin = rest.cumsum(axis=0) - rest
        self.scatter(rows_here, [(to, mine[to][PRIVATE:], shared[begin[me, to] :]) for to in range(RANKS)])
        self.wait(rows_here, numpy.count_nonzero(count[:, me]) + numpy.count_nonzero(rest[:, me]))

        # The experts here, sender by sender.
        experts_here = numpy.arange(me * LOCAL_EXPERTS, (me + 1) * LOCAL_EXPERTS)
        first = count.cumsum(axis=1) - count  # of a receiver's rows among those of their sender
        parts, end = [], 0
        for sender in range(RANKS):
            ahead = private[sender, : count[sender, me]]
            rows = numpy.concatenate([ahead, shared[begin[sender, me] :][: rest[sender, me]]])
            made, end = results_out[end : end + len(rows)], end + len(rows)
            expert_of_row = numpy.repeat(experts_here, routes[sender, experts_here])
            for expert in experts_here:
                made[expert_of_row == expert] = run_expert(expert, rows[expert_of_row == expert])
            parts.append((sender, made, results[first[sender, me] :]))
        self.scatter(results_here, parts)

        # The results lie as the rows do.
        self.wait(results_here, numpy.count_nonzero(count[me]))
        of_rows = numpy.empty_like(results)
        of_rows[order] = results
        for operation in self.sent:
            operation.wait()  # until then the bytes that it sends stay as they are
        self.sent.clear()
        return combine(of_rows.reshape(TOKENS, TOP_K, HIDDEN), weights), int(numpy.minimum(count[me], PRIVATE).sum())


def serve(me, pipe):
    with weft.Engine() as engine:
        rank = Rank(me, engine, pipe)
        for number in range(ROUNDS):
            pipe.send(rank.run(number))
        pipe.recv()  # others may need this engine until all are done


def main():
    context = multiprocessing.get_context("spawn")
    pipes = []
    for me in range(RANKS):
        pipe, there = context.Pipe()
        context.Process(target=serve, args=(me, there), daemon=True).start()
        there.close()
        pipes.append(pipe)
    # In a real program the descriptors go from rank to rank as messages.
    descriptors = [pipe.recv() for pipe in pipes]
    for pipe in pipes:
        pipe.send(descriptors)
    for number in range(ROUNDS):
        rows_ahead = 0
        for rank, pipe in enumerate(pipes):
            tokens, ahead = pipe.recv()
            if tokens.tobytes() != compute_plainly(number, rank).tobytes():
                raise RuntimeError(f"round {number}: the result of rank {rank} differs")
            rows_ahead += ahead
        print(
            f"round {number}: the {RANKS * TOKENS} tokens of {RANKS} ranks equal the plain computation, bit by bit: "
            f"{rows_ahead} of {RANKS * ROWS} rows went ahead"
        )
    for pipe in pipes:
        pipe.send("end")


if __name__ == "__main__":
    main()

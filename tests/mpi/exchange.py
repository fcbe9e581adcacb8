"""A ping-pong of each two ranks, and an all-reduce of all of them.

`mpirun -np 4 /usr/bin/python3 exchange.py`, or another even number of ranks. It needs mpi4py.
"""

from array import array
import random

from mpi4py import MPI

# From one that fits into the request to one that the peer reads: UCX sends each in another way.
SIZES = (1, 200, 5_000, 60_000, 1_000_000)
TURNS = 10
NUMBERS = (1 << 20) // 8

world = MPI.COMM_WORLD
rank, ranks = world.Get_rank(), world.Get_size()


def compare(ours, theirs, what):
    """Ends all ranks where they differ: one that ended alone would leave the others waiting."""
    if ours != theirs:
        differ = sum(our != their for our, their in zip(ours, theirs))
        print(f"rank {rank}: {differ} of {len(theirs)} are wrong: {what}", flush=True)
        world.Abort(1)


def exchange(peer):
    for size in SIZES:
        for turn in range(TURNS):
            # Both know what the other one sends.
            mine, yours = (random.Random(f"{who} {turn}").randbytes(size) for who in (rank, peer))
            came = bytearray(size)
            if rank < peer:
                world.Send(mine, peer)
            world.Recv(came, peer)
            if rank > peer:
                world.Send(mine, peer)
            compare(came, yours, f"{size} bytes from rank {peer}, turn {turn}")


def multiples(number):
    return array("q", range(number, number * (NUMBERS + 1), number))


def reduce():
    for turn in range(1, TURNS + 1):
        came = array("q", bytes(8 * NUMBERS))
        world.Allreduce(multiples((rank + 1) * turn), came)
        everyone = sum(range(1, ranks + 1))
        compare(came, multiples(everyone * turn), f"sums, turn {turn}")


exchange(rank ^ 1)
reduce()
# Until everyone has compared.
world.Barrier()
if rank == 0:
    print(f"{ranks} ranks: each two exchanged {len(SIZES)} sizes, and all summed {NUMBERS} numbers, {TURNS} times")

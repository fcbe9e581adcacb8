"""Runs `exchange.py` by OpenMPI, two ranks at each of two nodes that do not let each other log in.

`/usr/bin/python3 launch.py` waits at one node, `/usr/bin/python3 launch.py ADDRESS` starts `mpirun` at another one. `mpirun`
calls it in place of ssh, with an address and a command, and the one that waits runs that. UCX_TLS and UCX_NET_DEVICES say by
which device.
"""

import contextlib
import os
import pathlib
import socket
import subprocess
import sys
import tempfile

PORT = 18_700
# Debian's, which has mpi4py, and without files of its own beside the programs.
PYTHON = [sys.executable, "-B"]
OWN = pathlib.Path(__file__).resolve()
PROGRAM = OWN.with_name("exchange.py")


def run(command, **more):
    # Both nodes may have one /tmp, and OpenMPI takes files there for those of its node.
    with tempfile.TemporaryDirectory() as directory:
        environment = {**os.environ, "TMPDIR": directory}
        return subprocess.run(command, stdin=subprocess.DEVNULL, env=environment, **more).returncode


def wait():
    """Runs one command. What it says goes to the one that asked, and its status in a last byte."""
    with socket.create_server(("", PORT)) as server:
        peer, _ = server.accept()
    with peer:
        command = peer.makefile("r").readline()
        status = run(command, shell=True, stdout=peer, stderr=peer)
        peer.sendall(bytes([status & 0xFF]))
    return status


def ask(address, command):
    with socket.create_connection((address, PORT)) as peer:
        peer.sendall(f"{command}\n".encode())
        told = peer.makefile("rb").read()
    sys.stdout.buffer.write(told[:-1])
    return told[-1] if told else "the other node has failed"


def start(address):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as towards:
        towards.connect((address, PORT))
        own, _ = towards.getsockname()
    settings = {
        "plm_rsh_agent": " ".join([*PYTHON, str(OWN)]),
        "orte_leave_session_attached": "1",
        # For connections of `mpirun` itself.
        "oob_tcp_if_include": f"{address}/24",
        # Ranks reach each other by UCX and nothing else, also those of one node.
        "pml": "ucx",
        "btl": "self",
        "coll": "^sm",
        # More ranks than cores.
        "mpi_yield_when_idle": "1",
        "hwloc_base_binding_policy": "none",
    }
    options = [word for name, value in settings.items() for word in ("--mca", name, value)]
    # Each rank's next one is at the other node.
    where = ["--host", f"{own}:2,{address}:2", "--map-by", "node", "-np", "4"]
    try:
        # Where an ordinary user made the fabric, the user is root there, without capabilities.
        return run(["mpirun", "--allow-run-as-root", *options, *where, *PYTHON, str(PROGRAM)])
    finally:
        # Where `mpirun` has failed early, nobody has asked the other node, which waits.
        with contextlib.suppress(OSError):
            socket.create_connection((address, PORT)).close()


match sys.argv[1:]:
    case []:
        status = wait()
    case [address]:
        status = start(address)
    case [address, *command]:
        status = ask(address, " ".join(command))
sys.exit(status)

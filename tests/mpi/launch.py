"""Runs `exchange.py` by OpenMPI, two ranks at each of several nodes or pods that do not let each other log in.

`/usr/bin/python3 launch.py` waits at all of them but one, and there `/usr/bin/python3 launch.py ADDRESS...` starts `mpirun`.
`mpirun` calls `launch.py --run` in place of ssh, with an address and a command, and the one that waits there runs that. UCX_TLS
and UCX_NET_DEVICES say by which device.
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
# Links are kept: a ConfigMap has other directories behind them in each pod.
OWN = pathlib.Path(__file__).absolute()
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


def start(addresses):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as towards:
        towards.connect((addresses[0], PORT))
        own, _ = towards.getsockname()
    settings = {
        "plm_rsh_agent": " ".join([*PYTHON, str(OWN), "--run"]),
        "orte_leave_session_attached": "1",
        # For connections of `mpirun` itself. Pods of several nodes share no smaller network.
        "oob_tcp_if_include": f"{own}/16",
        # Ranks reach each other by UCX and nothing else, also those of one node.
        "pml": "ucx",
        "btl": "self",
        "coll": "^sm",
        # More ranks than cores.
        "mpi_yield_when_idle": "1",
        "hwloc_base_binding_policy": "none",
    }
    options = [word for name, value in settings.items() for word in ("--mca", name, value)]
    # Each rank's next one is at another node.
    nodes = [own, *addresses]
    hosts = ",".join(f"{node}:2" for node in nodes)
    where = ["--host", hosts, "--map-by", "node", "-np", str(2 * len(nodes))]
    try:
        # Where an ordinary user made the fabric, the user is root there, without capabilities.
        return run(["mpirun", "--allow-run-as-root", *options, *where, *PYTHON, str(PROGRAM)])
    finally:
        # Where `mpirun` has failed early, nobody has asked the other nodes, which wait.
        for address in addresses:
            with contextlib.suppress(OSError):
                socket.create_connection((address, PORT)).close()


match sys.argv[1:]:
    case []:
        status = wait()
    case ["--run", address, *command]:
        status = ask(address, " ".join(command))
    case addresses:
        status = start(addresses)
sys.exit(status)

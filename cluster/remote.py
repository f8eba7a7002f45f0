"""Where a worker on another machine listens, as a shell has to find out over there."""

from __future__ import annotations

import shlex

from network import Network

# Nothing is sent: this asks the system which of its addresses leads to the scheduler.
_OWN_ADDRESS = """
import socket, sys
family, kind, protocol, _, where = socket.getaddrinfo(sys.argv[1], 9, type=socket.SOCK_DGRAM)[0]
caller = socket.socket(family, kind, protocol)
caller.connect(where)
print(caller.getsockname()[0])
"""


def listening_address(network: Network, python: str) -> tuple[str, str]:
    """A shell command to run before a worker, and the worker's arguments after it.

    A worker listens in the network in which it reaches the scheduler, and in no other.
    """
    if network.interface is not None:
        return "true", shlex.join(["--interface", network.interface])
    program = "; ".join(_OWN_ADDRESS.strip().splitlines())
    asked = shlex.join([python, "-c", program, network.host])
    return f"slrt_address=$({asked}) || exit 1", '--host "$slrt_address"'

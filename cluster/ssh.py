"""Start a dask scheduler here, and workers on the hosts of a file, by ssh.

    python cluster/ssh.py hosts.txt --tls certs

The file has a line for each host: its name, as ssh knows it, and what it gives, if that is not all
of its cores and memory to one worker:

    node1
    node2 workers=2 threads=8 memory=16GB      # of each worker

Prints the scheduler's address when all workers are there. Ctrl-C, or a TERM signal, stops them; so
does a lost connection.
"""

from __future__ import annotations

import argparse
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from launching import WorkerProcesses, run
from network import Network, add_network_options, network_of, workers_command
from remote import listening_address

# ssh must not wait for a password that nobody types, nor for a host that is gone.
SSH = "ssh -o BatchMode=yes -o ConnectTimeout=15 -o ServerAliveInterval=15"
HOST_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@:%-]*")


@dataclass(frozen=True)
class Host:
    """A machine and its workers. No threads: the cores are shared among them."""

    name: str
    workers: int = 1
    threads: int = 0
    memory: str = "auto"


class RemoteWorkers(WorkerProcesses):
    """What runs here are the ssh commands, each for as long as the workers of its host."""

    def __init__(self, hosts: list[Host], options: argparse.Namespace, network: Network) -> None:
        super().__init__()
        self.hosts, self.options, self.network = hosts, options, network

    def start(self, address: str, directory: Path) -> int:
        for host in self.hosts:
            command = remote_command(host, address, self.network, self.options)
            call = [*shlex.split(self.options.ssh), host.name, command]
            self.processes.start(host.name, call, stdin=subprocess.PIPE)
        return sum(host.workers for host in self.hosts)


def main() -> int:
    options, network, hosts = _options()
    return run(network, RemoteWorkers(hosts, options, network))


def read_hosts(text: str) -> list[Host]:
    hosts: list[Host] = []
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        try:
            host = _host(words)
            if host.name in {other.name for other in hosts}:
                raise ValueError(f"{host.name} is there twice; use workers=2 instead")
        except ValueError as error:
            raise ValueError(f"line {number}: {error}.") from None
        hosts.append(host)
    if not hosts:
        raise ValueError("it names no host.")
    return hosts


def _host(words: list[str]) -> Host:
    from dask.utils import parse_bytes

    name, *rest = words
    if not HOST_NAME.fullmatch(name):
        raise ValueError(f"{name!r} is not the name of a host")
    given: dict[str, str] = {}
    for word in rest:
        key, equals, value = word.partition("=")
        if key not in ("workers", "threads", "memory") or not equals or key in given:
            raise ValueError(f"{word!r} is not one of workers=N, threads=N and memory=SIZE")
        given[key] = value
    counts = {key: _count(key, given[key]) for key in ("workers", "threads") if key in given}
    memory = given.get("memory", "auto")
    try:
        if memory != "auto" and parse_bytes(memory) <= 0:
            raise ValueError
    except ValueError:
        raise ValueError(f"memory={memory} is not an amount, such as 16GB") from None
    return Host(name, memory=memory, **counts)


def _count(key: str, value: str) -> int:
    if not value.isdecimal() or int(value) < 1:
        raise ValueError(f"{key}={value} is not a whole number from 1")
    return int(value)


def remote_command(host: Host, address: str, network: Network, options: argparse.Namespace) -> str:
    """What a host's shell is told. Workers end when standard input does: with the connection."""
    command = workers_command(
        address,
        workers=host.workers,
        threads=host.threads,
        memory_limit=host.memory,
        local_directory=options.local_directory,
    )
    settings = [f"{name}={value}" for name, value in network.settings("worker").items()]
    start = shlex.join(["env", *settings, options.python, "-m", "dask", *command])
    prepare, listening = listening_address(network, options.python)
    script = (
        f"{prepare}; exec 3<&0; {start} {listening} </dev/null & workers=$!; "
        "(cat <&3; kill $workers) >/dev/null 2>&1 & wait $workers"
    )
    # The shell that ssh runs may be of any kind; inside the quotes it is always this one.
    return f"exec sh -c {shlex.quote(script)}"


def _options() -> tuple[argparse.Namespace, Network, list[Host]]:
    parser = argparse.ArgumentParser(description="Start a dask cluster on several hosts, by ssh.")
    parser.add_argument("hosts", type=Path, help="a file with a line for each host")
    parser.add_argument(
        "--python", default=sys.executable, help="Python on the hosts (default: the same path)"
    )
    parser.add_argument("--ssh", default=SSH, help=f"how to call ssh (default: {SSH})")
    parser.add_argument("--local-directory", help="where workers may keep files meanwhile")
    add_network_options(parser, None)
    options = parser.parse_args()
    try:
        hosts = read_hosts(options.hosts.read_text())
    except (OSError, ValueError) as error:
        parser.error(f"{options.hosts}: {error}")
    return options, network_of(parser, options), hosts


if __name__ == "__main__":
    sys.exit(main())

"""Where a cluster listens and who may speak with it: what all launchers have in common.

Whoever reaches a scheduler or a worker can run code as the user who started it. So nothing here
ever listens on all networks at once, what other machines can reach asks for certificates, and the
dashboard, which cannot ask for them, stays on the loopback interface.
"""

from __future__ import annotations

import argparse
import ipaddress
import os
import socket
from dataclasses import dataclass
from pathlib import Path

from slrt_dask.certificates import ROLES, CertificateDirectory, CertificatesUnusable
from slrt_dask.dask_settings import as_variables

LOOPBACK = "127.0.0.1"
DASHBOARD_PORT = 8787
DEFAULTS = {**as_variables(), "DASK_DISTRIBUTED__LOGGING__DISTRIBUTED": "warning"}
# Told not to have a dashboard, a worker still answers some HTTP, by default to everybody.
WITHOUT_DASHBOARD = ("--no-dashboard", "--dashboard-address", f"{LOOPBACK}:0")
SECONDS_WITHOUT_SCHEDULER = 60
"""After which a worker ends by itself."""


@dataclass(frozen=True)
class Network:
    """What the options say of the network, checked."""

    host: str
    port: int
    interface: str | None
    dashboard: str
    certificates: CertificateDirectory | None

    @property
    def protocol(self) -> str:
        return "tcp" if self.certificates is None else "tls"

    def settings(self, role: str) -> dict[str, str]:
        """Environment variables that make a dask process part of this cluster."""
        return {**DEFAULTS, **self._certified(role)}

    def environment(self, role: str) -> dict[str, str]:
        """The same for a process on this machine, whose user may have chosen other defaults."""
        return {**DEFAULTS, **os.environ, **self._certified(role)}

    def scheduler(self) -> list[str]:
        return [
            "scheduler", "--protocol", self.protocol, "--host", self.host,
            "--port", str(self.port), "--dashboard-address", self.dashboard,
        ]  # fmt: skip

    def _certified(self, role: str) -> dict[str, str]:
        return {} if self.certificates is None else self.certificates.environment(role)


def workers_command(
    address: str, *, workers: int, threads: int, memory_limit: str, local_directory: str | None
) -> list[str]:
    """All but where they listen."""
    command = [
        "worker", address, "--nworkers", str(workers), "--nthreads", str(threads),
        "--memory-limit", memory_limit, *WITHOUT_DASHBOARD,
        "--death-timeout", str(SECONDS_WITHOUT_SCHEDULER),
    ]  # fmt: skip
    return command if local_directory is None else [*command, "--local-directory", local_directory]


def add_network_options(parser: argparse.ArgumentParser, host: str | None) -> None:
    """host : where to listen by default; None for the one private network of this machine."""
    where = parser.add_mutually_exclusive_group()
    default = host or "that in this machine's only private network"
    where.add_argument("--host", default=host, help=f"address to listen at (default: {default})")
    where.add_argument("--interface", help="or the name of the interface to use, such as eth0")
    parser.add_argument("--port", type=int, default=0, help="the scheduler's port (default: any)")
    parser.add_argument(
        "--dashboard",
        type=int,
        default=DASHBOARD_PORT,
        metavar="PORT",
        help=f"port of the dashboard, which only this machine reaches (default {DASHBOARD_PORT})",
    )
    add_certificate_options(parser)


def add_certificate_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--tls", metavar="DIRECTORY", help="certificates, made with slrt-dask certificates"
    )
    parser.add_argument(
        "--insecure",
        action="store_true",
        help="let everyone who reaches the cluster run code as you",
    )


def network_of(parser: argparse.ArgumentParser, options: argparse.Namespace) -> Network:
    """The network that the options ask for; what would be open to others is refused."""
    host = options.host
    if options.interface is not None:
        host = _address_of(parser, options.interface)
    elif host is None:
        host = _private_address(parser)
    if host in ("", "0.0.0.0", "::"):
        parser.error(f"--host {host} would listen on every network; name one address.")
    return Network(
        host=host,
        port=options.port,
        interface=options.interface,
        dashboard=f"{LOOPBACK}:{options.dashboard}",
        certificates=certificates_of(
            parser, options.tls, insecure=options.insecure or is_loopback(host)
        ),
    )


def certificates_of(
    parser: argparse.ArgumentParser, directory: str | None, *, insecure: bool
) -> CertificateDirectory | None:
    """insecure : whether none are needed."""
    if directory is not None:
        certificates = CertificateDirectory(Path(directory))
        try:
            certificates.check(*ROLES)
        except CertificatesUnusable as error:
            parser.error(str(error))
        return certificates
    if not insecure:
        parser.error(
            "whoever reaches this cluster could run code as you. Make certificates with "
            "slrt-dask certificates DIRECTORY and give --tls DIRECTORY; or, in a network where "
            "everyone may do that, --insecure."
        )
    return None


def is_loopback(host: str) -> bool:
    try:
        found = {information[4][0] for information in socket.getaddrinfo(host, None)}
    except OSError:
        return False
    return all(ipaddress.ip_address(address).is_loopback for address in found)


def _addresses() -> dict[str, str]:
    """The IPv4 address of each interface."""
    import psutil

    return {
        name: address.address
        for name, addresses in psutil.net_if_addrs().items()
        for address in addresses
        if address.family == socket.AF_INET
    }


def _address_of(parser: argparse.ArgumentParser, interface: str) -> str:
    known = _addresses()
    if interface not in known:
        parser.error(f"there is no interface {interface} with an address; use {_listed(known)}.")
    return known[interface]


def _private_address(parser: argparse.ArgumentParser) -> str:
    """Guessing between several networks could mean the wrong one, so there must be only one."""
    private = {name: address for name, address in _addresses().items() if _is_private(address)}
    if len(private) != 1:
        parser.error(
            f"this machine is in {len(private)} private networks; say where to listen, with "
            f"--host ADDRESS or --interface {_listed(private) or 'NAME'}."
        )
    return next(iter(private.values()))


def _is_private(address: str) -> bool:
    parsed = ipaddress.ip_address(address)
    return parsed.is_private and not parsed.is_loopback and not parsed.is_link_local


def _listed(interfaces: dict[str, str]) -> str:
    return " or ".join(f"{name} ({address})" for name, address in sorted(interfaces.items()))

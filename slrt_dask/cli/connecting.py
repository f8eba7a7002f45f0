"""Connecting to a cluster that others started, and saying plainly why that did not work."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from slrt_dask.certificates import CertificateDirectory
from slrt_dask.errors import SlrtError

SECONDS_FOR_WORKERS = 20


class ClusterUnavailable(SlrtError, ConnectionError):
    """A scheduler that does not answer or turns us away, or one without workers."""


@contextmanager
def existing_cluster(
    address: str, certificates: CertificateDirectory | None, seconds: float
) -> Iterator[Any]:
    """A client of the scheduler at this address, which has to answer within so many seconds."""
    from distributed import Client

    # A connection that is lost is told once, in our words; dask's account of it is a traceback.
    logging.getLogger("distributed.batched").setLevel(logging.WARNING)

    security = _security(address, certificates)
    _knock(address, security, seconds)
    try:
        client = Client(address, timeout=seconds, security=security)
    except OSError as error:
        raise ClusterUnavailable(_nobody(address)) from error
    with client:
        try:
            client.wait_for_workers(1, timeout=SECONDS_FOR_WORKERS)
        except TimeoutError as error:
            raise ClusterUnavailable(
                f"the scheduler at {address} has no workers; start at least one."
            ) from error
        yield client


def _security(address: str, certificates: CertificateDirectory | None) -> Any:
    """The certificates given, or else those that dask's own configuration names."""
    from distributed.security import Security

    if certificates is not None:
        certificates.check("client")
        return certificates.security()
    security = Security()
    if address.startswith("tls://") and not (security.tls_ca_file and security.tls_client_cert):
        raise ClusterUnavailable(
            f"the scheduler at {address} asks for a certificate; give the directory that the "
            "cluster was started with as --tls DIRECTORY."
        )
    return security


def _knock(address: str, security: Any, seconds: float) -> None:
    """See whether the scheduler lets us in.

    A client does not bound how long it waits for the first word of whatever listens there, and
    gives errors of every kind; this does the first step of what a client does, in bounded time.
    """
    from distributed.comm import CommClosedError, connect, parse_host_port

    async def knock() -> None:
        arguments = security.get_connection_args("client")
        comm = await connect(address, timeout=seconds, **arguments)
        await comm.close()

    try:
        parse_host_port(address.partition("://")[2] or address)
    except ValueError as error:
        raise ClusterUnavailable(_nobody(address)) from error
    try:
        asyncio.run(asyncio.wait_for(knock(), seconds + 1))
    except (CommClosedError, ValueError, TimeoutError) as error:
        raise ClusterUnavailable(_turned_away(address)) from error
    except OSError as error:
        raise ClusterUnavailable(_nobody(address)) from error


def _nobody(address: str) -> str:
    return (
        f"no scheduler answers at {address}; check the address, which looks like "
        "tcp://host:8786, or tls://host:8786 with --tls, and that the cluster is running."
    )


def _turned_away(address: str) -> str:
    if address.startswith("tls://"):
        return (
            f"what listens at {address} does not accept these certificates; use the directory "
            "that the cluster was started with, and a tcp:// address if that was without --tls."
        )
    return (
        f"what listens at {address} does not speak with this client; if the cluster uses "
        "certificates, give its address as tls://… together with --tls DIRECTORY."
    )

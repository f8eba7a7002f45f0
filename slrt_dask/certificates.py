"""The certificates that let a process take part in a dask cluster.

A directory belongs to one cluster. It holds the certificate of an authority made for that cluster
alone and, for each role, a certificate signed by it with its private key. Dask asks both sides of
every connection for one, so whoever has none is turned away. `slrt_dask.issuing` makes such
directories; this module finds what is in them and hands it to dask.
"""

from __future__ import annotations

import ssl
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slrt_dask.errors import SlrtError

ROLES = ("scheduler", "worker", "client")
AUTHORITY = "ca.pem"
DASK_CONFIG = "dask.yaml"
_TLS = "DASK_DISTRIBUTED__COMM__TLS"


class CertificatesUnusable(SlrtError, OSError):
    """A directory of certificates that lacks a file, or whose certificates no longer hold."""


@dataclass(frozen=True)
class CertificateDirectory:
    """Where the certificates of a cluster are. Nothing is read until it is needed."""

    path: Path

    def __post_init__(self) -> None:
        # Other processes, in other directories, are told these paths.
        object.__setattr__(self, "path", Path(self.path).expanduser().absolute())

    @property
    def authority(self) -> Path:
        return self.path / AUTHORITY

    def certificate(self, role: str) -> Path:
        return self.path / f"{role}.pem"

    def key(self, role: str) -> Path:
        return self.path / f"{role}-key.pem"

    def files(self, role: str) -> tuple[Path, Path, Path]:
        """What a process of this role needs; the keys of other roles are not for it."""
        return self.authority, self.certificate(role), self.key(role)

    def check(self, *roles: str) -> None:
        """Refuse now what would otherwise end in a connection that fails without a reason."""
        for role in roles:
            for file in self.files(role):
                if not file.is_file():
                    raise CertificatesUnusable(
                        f"there is no {file.name} in {self.path}; make the certificates of a "
                        "cluster with slrt-dask certificates DIRECTORY."
                    )
            self._load(role)

    def environment(self, role: str) -> dict[str, str]:
        """Variables with which a dask process of this role uses the certificates, and only them.

        The role's own certificate serves for a client too, for code that opens one inside it.
        """
        certificate, key = str(self.certificate(role)), str(self.key(role))
        return {
            "DASK_DISTRIBUTED__COMM__REQUIRE_ENCRYPTION": "True",
            f"{_TLS}__CA_FILE": str(self.authority),
            f"{_TLS}__CLIENT__CERT": certificate,
            f"{_TLS}__CLIENT__KEY": key,
            f"{_TLS}__{role.upper()}__CERT": certificate,
            f"{_TLS}__{role.upper()}__KEY": key,
        }

    def security(self) -> Any:
        """For `distributed.Client(address, security=…)`, and for clusters made in this process."""
        from distributed.security import Security

        files = {
            f"tls_{role}_{kind}": str(file)
            for role in ROLES
            for kind, file in (("cert", self.certificate(role)), ("key", self.key(role)))
        }
        return Security(require_encryption=True, tls_ca_file=str(self.authority), **files)

    def _load(self, role: str) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        try:
            context.load_verify_locations(self.authority)
            context.load_cert_chain(self.certificate(role), self.key(role))
        except PermissionError as error:
            raise CertificatesUnusable(
                f"the {role}'s key in {self.path} belongs to another user; each user makes "
                "certificates of their own."
            ) from error
        except ssl.SSLError as error:
            raise CertificatesUnusable(
                f"the {role}'s certificate and key in {self.path} are damaged or do not belong "
                f"together ({error.reason}); make new ones in another directory."
            ) from error
        # All certificates of a directory end together with their authority's.
        end = str(context.get_ca_certs()[0]["notAfter"])
        if ssl.cert_time_to_seconds(end) < time.time():
            raise CertificatesUnusable(
                f"the certificates in {self.path} were valid until {end}; make new ones in "
                "another directory and start the cluster again with those."
            )

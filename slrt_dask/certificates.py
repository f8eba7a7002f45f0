"""The TLS certificates of a dask cluster: making a directory of them, checking it, using it.

A directory belongs to one cluster. It holds the certificate of an authority made for that cluster
alone and, for each role, a key and a certificate that the authority signed. Both sides of every
connection ask for one, so whoever has none is refused. The authority's key is not kept: nobody can
make a fourth certificate, and renewing means a new directory.
"""

from __future__ import annotations

import datetime
import json
import os
import ssl
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slrt_dask.errors import MissingDependency, SlrtError, StoreExists

ROLES = ("scheduler", "worker", "client")
DAYS = 365
SIGNS_CERTIFICATES = 5
"""The bit of a key's usage that says so."""
CLOCKS_DIFFER = datetime.timedelta(hours=1)
"""Certificates are valid from this long ago on, for machines whose clocks are slow."""


class CertificatesUnusable(SlrtError, OSError):
    """A directory of certificates that lacks a file, or whose certificates are not valid."""


@dataclass(frozen=True)
class CertificateDirectory:
    """Where the certificates of a cluster are. Nothing is read until it is needed."""

    path: Path

    def __post_init__(self) -> None:
        # Processes that run in other directories get these paths.
        object.__setattr__(self, "path", Path(self.path).expanduser().absolute())

    @property
    def authority(self) -> Path:
        return self.path / "ca.pem"

    def certificate(self, role: str) -> Path:
        return self.path / f"{role}.pem"

    def key(self, role: str) -> Path:
        return self.path / f"{role}-key.pem"

    def files(self, role: str) -> tuple[Path, Path, Path]:
        """What a process of this role needs; the keys of other roles are not for it."""
        return self.authority, self.certificate(role), self.key(role)

    def check(self, *roles: str) -> None:
        """Raise CertificatesUnusable for what would end in a connection that fails."""
        for role in roles:
            for file in self.files(role):
                if not file.is_file():
                    raise CertificatesUnusable(
                        f"there is no {file.name} in {self.path}; make the certificates of a "
                        "cluster with slrt-dask certificates DIRECTORY."
                    )
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            try:
                context.load_verify_locations(self.authority)
                context.load_cert_chain(self.certificate(role), self.key(role))
            except OSError as error:  # ssl.SSLError is one, too
                wrong = "belong to another user"
                if isinstance(error, ssl.SSLError):
                    wrong = f"are damaged or do not belong together ({error.reason})"
                raise CertificatesUnusable(
                    f"the {role}'s certificate and key in {self.path} {wrong}; make new ones in "
                    "another directory."
                ) from error
            # All certificates of a directory end together with their authority's.
            end = str(context.get_ca_certs()[0]["notAfter"])
            if ssl.cert_time_to_seconds(end) < time.time():
                raise CertificatesUnusable(
                    f"the certificates in {self.path} were valid until {end}; make new ones in "
                    "another directory and start the cluster again with those."
                )

    def config(self, *roles: str) -> dict[str, Any]:
        """Dask's configuration for processes of these roles, which use nothing but TLS."""
        files = {r: {"cert": str(self.certificate(r)), "key": str(self.key(r))} for r in roles}
        tls = {"ca-file": str(self.authority), **files}
        return {"distributed": {"comm": {"require-encryption": True, "tls": tls}}}

    def environment(self, role: str) -> dict[str, str]:
        """Environment variables with which a dask process of this role uses the certificates.

        The role's own certificate serves for a client too, for code that opens one inside it.
        """
        tls = self.config(role)["distributed"]["comm"]["tls"]
        found = {"COMM__REQUIRE_ENCRYPTION": "True", "COMM__TLS__CA_FILE": tls["ca-file"]}
        for name in (role, "client"):
            for kind, file in tls[role].items():
                found[f"COMM__TLS__{name.upper()}__{kind.upper()}"] = file
        return {f"DASK_DISTRIBUTED__{name}": value for name, value in found.items()}

    def security(self) -> Any:
        """For `distributed.Client(address, security=…)`, and for clusters made in this process."""
        from distributed.security import Security

        files = {f"tls_{role}_cert": str(self.certificate(role)) for role in ROLES}
        files |= {f"tls_{role}_key": str(self.key(role)) for role in ROLES}
        return Security(require_encryption=True, tls_ca_file=str(self.authority), **files)


def make_certificates(directory: str | Path, days: int = DAYS) -> CertificateDirectory:
    """A new directory with the certificates of one cluster; only its owner can read the keys."""
    made = CertificateDirectory(Path(directory))
    if made.path.exists() and (not made.path.is_dir() or any(made.path.iterdir())):
        raise StoreExists(
            f"{made.path} exists already; certificates in use must not change: choose a new "
            "directory."
        )
    contents = _signed(made, days)
    # JSON is YAML, and needs no care for what a path may contain.
    contents[made.path / "dask.yaml"] = json.dumps(made.config(*ROLES), indent=2).encode()
    made.path.mkdir(parents=True, exist_ok=True)
    made.path.chmod(0o700)
    for path, content in contents.items():
        # A key is never readable by others, not even while it is written.
        mode = 0o600 if path.name.endswith("-key.pem") else 0o644
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(content)
    return made


def _signed(made: CertificateDirectory, days: int) -> dict[Path, bytes]:
    """The certificates of an authority and of every role, and the roles' keys."""
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.x509.oid import ExtendedKeyUsageOID as Use
        from cryptography.x509.oid import NameOID
    except ImportError as error:
        raise MissingDependency(
            "making certificates needs cryptography: pip install 'slrt-dask[tls]'."
        ) from error

    def name(role: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"slrt-dask {role}")])

    now, pem = datetime.datetime.now(datetime.UTC), serialization.Encoding.PEM
    pkcs8, plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    keys = {role: ec.generate_private_key(ec.SECP256R1()) for role in ("authority", *ROLES)}
    authority = keys["authority"]
    contents = {made.key(role): keys[role].private_bytes(pem, pkcs8, plain) for role in ROLES}
    for role, key in keys.items():
        builder = (
            x509.CertificateBuilder(name("authority"), name(role), key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - CLOCKS_DIFFER)
            .not_valid_after(now + datetime.timedelta(days=days))
        )
        if key is authority:
            path = made.authority
            extensions: list[x509.ExtensionType] = [
                x509.BasicConstraints(ca=True, path_length=0),
                x509.KeyUsage(*(bit == SIGNS_CERTIFICATES for bit in range(9))),
                x509.SubjectKeyIdentifier.from_public_key(key.public_key()),
            ]
        else:
            path = made.certificate(role)
            # A client only calls: with its certificate nobody can pose as a scheduler or a worker.
            both = [Use.CLIENT_AUTH, Use.SERVER_AUTH]
            extensions = [
                x509.ExtendedKeyUsage(both[:1] if role == "client" else both),
                x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key()),
            ]
        for one in extensions:
            critical = isinstance(one, x509.BasicConstraints | x509.KeyUsage)
            builder = builder.add_extension(one, critical=critical)
        contents[path] = builder.sign(authority, hashes.SHA256()).public_bytes(pem)
    return contents

"""Making the certificates of a cluster: an authority, and what it signs for each role.

The authority's key signs three certificates and is then forgotten, so that nobody can make a
fourth. Renewing means a new directory.
"""

from __future__ import annotations

import datetime
import ipaddress
import json
import os
import re
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from slrt_dask.certificates import AUTHORITY, DASK_CONFIG, ROLES, CertificateDirectory
from slrt_dask.errors import InvalidInput, MissingDependency, StoreExists

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

DAYS = 365
# Clocks of a cluster's machines differ a little.
EARLIER = datetime.timedelta(hours=1)
_LABEL = r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_HOST_NAME = re.compile(rf"(?=.{{1,253}}$){_LABEL}(\.{_LABEL})*")


def make_certificates(
    directory: str | Path, hosts: Iterable[str] = (), days: int = DAYS
) -> CertificateDirectory:
    """A new directory with the certificates of one cluster; keys are for their owner only.

    hosts : names and addresses to write into them, besides this machine's. Dask does not compare
    these with the host it talks to: who holds a certificate of this authority may take part.
    """
    made = CertificateDirectory(Path(directory))
    _check_is_new(made.path)
    contents = _contents(made, sorted({"localhost", socket.gethostname(), *hosts}), days)
    made.path.mkdir(parents=True, exist_ok=True)
    made.path.chmod(0o700)
    for name, content in contents.items():
        # Never readable by others, not even between being made and being closed to them.
        mode = 0o600 if name.endswith("-key.pem") else 0o644
        handle = os.open(made.path / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with open(handle, "wb") as file:
            file.write(content)
    return made


def _check_is_new(path: Path) -> None:
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise StoreExists(
            f"{path} exists already; certificates in use must not change: choose a new directory."
        )


def _contents(made: CertificateDirectory, hosts: list[str], days: int) -> dict[str, bytes]:
    """What goes into each file."""
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError as error:
        raise MissingDependency(
            "making certificates needs cryptography: pip install 'slrt-dask[tls]'."
        ) from error

    authority_key = ec.generate_private_key(ec.SECP256R1())
    authority = _authority(authority_key, days)
    pem = serialization.Encoding.PEM
    contents = {
        AUTHORITY: authority.public_bytes(pem),
        DASK_CONFIG: _dask_config(made).encode(),
    }
    for role in ROLES:
        key = ec.generate_private_key(ec.SECP256R1())
        signed = _signed(role, key, hosts, authority, authority_key)
        contents[made.certificate(role).name] = signed.public_bytes(pem)
        contents[made.key(role).name] = key.private_bytes(
            pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    return contents


def _authority(key: EllipticCurvePrivateKey, days: int) -> x509.Certificate:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes

    now = datetime.datetime.now(datetime.UTC)
    name = _name("cluster authority")
    return (
        x509.CertificateBuilder(issuer_name=name, subject_name=name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - EARLIER)
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )


def _signed(
    role: str,
    key: EllipticCurvePrivateKey,
    hosts: list[str],
    authority: x509.Certificate,
    authority_key: EllipticCurvePrivateKey,
) -> x509.Certificate:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.x509.oid import ExtendedKeyUsageOID

    # A client only calls. With its certificate nobody can pose as a scheduler or a worker.
    uses = [ExtendedKeyUsageOID.CLIENT_AUTH]
    if role != "client":
        uses.append(ExtendedKeyUsageOID.SERVER_AUTH)
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key())
    return (
        x509.CertificateBuilder(issuer_name=authority.subject, subject_name=_name(role))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(authority.not_valid_before_utc)
        .not_valid_after(authority.not_valid_after_utc)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(uses), critical=False)
        .add_extension(x509.SubjectAlternativeName([_host(host) for host in hosts]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(issuer, critical=False)
        .sign(authority_key, hashes.SHA256())
    )


def _name(role: str) -> x509.Name:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"slrt-dask {role}")])


def _host(host: str) -> x509.GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        if not _HOST_NAME.fullmatch(host):
            raise InvalidInput(f"{host!r} is neither a host name nor an address.") from None
        return x509.DNSName(host)


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _dask_config(made: CertificateDirectory) -> str:
    """For dask processes that no launcher starts: DASK_CONFIG=DIRECTORY/dask.yaml."""
    roles = {
        role: {"cert": str(made.certificate(role)), "key": str(made.key(role))} for role in ROLES
    }
    tls = {"ca-file": str(made.authority), **roles}
    # JSON is YAML, and needs no care for what a path may contain.
    return json.dumps({"distributed": {"comm": {"require-encryption": True, "tls": tls}}}, indent=2)

"""A directory of certificates: what is in it, what dask makes of it, and what is refused."""

from __future__ import annotations

import contextlib
import datetime
import re
import shutil
import ssl
import stat
import subprocess
import sys
import time

import dask
import pytest
from cryptography import x509

from slrt_dask.certificates import (
    ROLES,
    CertificateDirectory,
    CertificatesUnusable,
    make_certificates,
)
from slrt_dask.errors import StoreExists
from tests.cluster.conftest import ROOT, environment


def read(path):
    return x509.load_pem_x509_certificate(path.read_bytes())


def test_keys_are_for_their_owner_and_the_authority_s_is_not_kept(certificates):
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in certificates.path.iterdir()}
    assert modes == {
        "ca.pem": 0o644,
        "dask.yaml": 0o644,
        **{f"{role}.pem": 0o644 for role in ROLES},
        **{f"{role}-key.pem": 0o600 for role in ROLES},
    }
    assert stat.S_IMODE(certificates.path.stat().st_mode) == 0o700
    authority = read(certificates.authority).public_key()
    assert all(read(certificates.certificate(role)).public_key() != authority for role in ROLES)


def test_nothing_is_overwritten(certificates, tmp_path):
    (tmp_path / "file").write_text("")
    for used in (certificates.path, tmp_path / "file"):
        with pytest.raises(StoreExists, match=re.escape(str(used))):
            make_certificates(used)


def test_dask_reads_the_configuration(certificates):
    code = "from distributed import Security; print(Security())"
    shown = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60,
        env={**environment(), "DASK_CONFIG": str(certificates.path / "dask.yaml")},
    )  # fmt: skip
    assert "require_encryption=True" in shown.stdout
    assert f"tls_ca_file=Local ({certificates.authority})" in shown.stdout
    for role in ROLES:
        assert f"tls_{role}_key=Local ({certificates.key(role)})" in shown.stdout


@pytest.mark.parametrize("role", ROLES)
def test_dask_reads_the_environment(certificates, role):
    comm = dask.config.collect_env(certificates.environment(role))["distributed"]["comm"]
    assert comm["require_encryption"] is True
    assert comm["tls"]["ca_file"] == str(certificates.authority)
    assert set(comm["tls"]) == {"ca_file", role, "client"}
    for part in (role, "client"):
        assert comm["tls"][part]["cert"] == str(certificates.certificate(role))
        assert comm["tls"][part]["key"] == str(certificates.key(role))


def test_a_path_is_the_same_from_everywhere(certificates, monkeypatch):
    monkeypatch.chdir(certificates.path.parent)
    assert CertificateDirectory("certs").path == certificates.path


@pytest.fixture
def copied(certificates, tmp_path):
    return CertificateDirectory(shutil.copytree(certificates.path, tmp_path / "copied"))


def test_a_missing_file_is_named(copied):
    copied.key("worker").unlink()
    copied.check("scheduler", "client")
    with pytest.raises(CertificatesUnusable, match=r"worker-key\.pem"):
        copied.check(*ROLES)


@pytest.mark.parametrize("damage", ["foreign key", "no certificate", "no authority"])
def test_damaged_and_foreign_files_are_refused(copied, other_certificates, damage):
    if damage == "foreign key":
        shutil.copy(other_certificates.key("client"), copied.key("client"))
    else:
        file = copied.authority if damage == "no authority" else copied.certificate("client")
        file.write_text("")
    with pytest.raises(CertificatesUnusable, match=re.escape(str(copied.path))):
        copied.check("client")


def test_certificates_end_and_are_refused_then(tmp_path):
    made = make_certificates(tmp_path / "made", days=30)
    made.check(*ROLES)
    valid = read(made.authority).not_valid_after_utc - datetime.datetime.now(datetime.UTC)
    assert abs(valid.days - 30) <= 1
    ended = make_certificates(tmp_path / "ended", days=0)
    time.sleep(1.1)
    with pytest.raises(CertificatesUnusable, match="valid until"):
        ended.check("client")


def shake_hands(certificates, client, server):
    """Let one role call another as dask does; raises what the client makes of it."""
    calling, listening = (
        certificates.security().get_connection_args("client")["ssl_context"],
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=certificates.authority),
    )
    calling.load_cert_chain(certificates.certificate(client), certificates.key(client))
    listening.load_cert_chain(certificates.certificate(server), certificates.key(server))
    for context in (calling, listening):
        context.verify_flags |= ssl.VERIFY_X509_STRICT  # as from Python 3.13 on
    listening.verify_mode = ssl.CERT_REQUIRED
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = (
        calling.wrap_bio(back, there),
        listening.wrap_bio(there, back, server_side=True),
    )
    for _ in range(4):
        for side in sides:
            with contextlib.suppress(ssl.SSLWantReadError):
                side.do_handshake()
    return [side.getpeercert()["subject"][0][0][1] for side in sides]


@pytest.mark.parametrize("client", ROLES)
@pytest.mark.parametrize("server", ["scheduler", "worker"])
def test_a_strict_reader_accepts_what_the_authority_signed(certificates, client, server):
    assert shake_hands(certificates, client, server) == [
        f"slrt-dask {server}",
        f"slrt-dask {client}",
    ]


def test_a_client_s_certificate_does_not_pass_for_a_scheduler_s(certificates):
    with pytest.raises(ssl.SSLCertVerificationError, match="certificate purpose"):
        shake_hands(certificates, "client", "client")


def test_the_command_makes_them_once(run_command, tmp_path):
    said = run_command("certificates", tmp_path / "certs", "--days", "7")
    assert said.exit_code == 0, said.stderr
    assert "for 7 days" in said.stdout
    CertificateDirectory(tmp_path / "certs").check(*ROLES)
    again = run_command("certificates", tmp_path / "certs")
    assert (again.exit_code, "exists already" in again.stderr) == (1, True)


def test_without_cryptography_the_command_says_what_to_install(run_command, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.asymmetric", None)
    said = run_command("certificates", tmp_path / "certs")
    assert said.exit_code == 1
    assert "pip install 'slrt-dask[tls]'" in said.stderr


def test_the_container_recipe_fits_the_repository_and_the_pods():
    from kubernetes_manifest import USER

    lines = (ROOT / "cluster" / "Containerfile").read_text().splitlines()
    sources = [name for line in lines if line.startswith("COPY") for name in line.split()[1:-1]]
    assert all((ROOT / name).exists() for name in sources)
    assert {"pyproject.toml", "README.md", "LICENSE", "slrt_dask"} <= set(sources)
    assert f"USER {USER}:{USER}" in lines
    (extras,) = re.findall(r"'\.\[(.*)\]'", "\n".join(lines))
    project = (ROOT / "pyproject.toml").read_text()
    assert all(re.search(rf"^{name} = \[", project, re.MULTILINE) for name in extras.split(","))

"""What is in a directory of certificates, and what is refused."""

from __future__ import annotations

import contextlib
import datetime
import errno
import re
import shutil
import ssl
import stat
import subprocess
import sys

import dask
import pytest
import yaml
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID as Use
from cryptography.x509.verification import PolicyBuilder, Store

from slrt_dask import certificates as using
from slrt_dask.certificates import ROLES, CertificateDirectory, CertificatesUnusable
from slrt_dask.errors import InvalidInput, StoreExists
from slrt_dask.issuing import make_certificates
from tests.cluster.conftest import ROOT, environment


def read(path):
    return x509.load_pem_x509_certificate(path.read_bytes())


def extension(certificate, kind):
    return certificate.extensions.get_extension_for_class(kind).value


def test_keys_are_for_their_owner_only(certificates):
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in certificates.path.iterdir()}
    assert {name for name, mode in modes.items() if mode == 0o600} == {
        "scheduler-key.pem", "worker-key.pem", "client-key.pem",
    }  # fmt: skip
    assert stat.S_IMODE(certificates.path.stat().st_mode) == 0o700


def test_the_authority_s_key_is_not_kept(certificates):
    authority = read(certificates.authority).public_key()
    for role in ROLES:
        assert read(certificates.certificate(role)).public_key() != authority
    assert {path.name for path in certificates.path.iterdir()} == {
        "ca.pem", "dask.yaml", *(f"{role}.pem" for role in ROLES),
        *(f"{role}-key.pem" for role in ROLES),
    }  # fmt: skip


@pytest.mark.parametrize("role", ROLES)
def test_a_certificate_holds_for_its_hosts_its_time_and_its_use(tmp_path, role):
    made = make_certificates(tmp_path / "new", hosts=["node1", "10.0.0.7", "fd00::7"], days=30)
    certificate = read(made.certificate(role))
    names = extension(certificate, x509.SubjectAlternativeName)
    assert {"node1", "localhost"} <= set(names.get_values_for_type(x509.DNSName))
    addresses = {str(address) for address in names.get_values_for_type(x509.IPAddress)}
    assert addresses == {"10.0.0.7", "fd00::7"}
    length = certificate.not_valid_after_utc - certificate.not_valid_before_utc
    assert length == datetime.timedelta(days=30, hours=1)
    listens = {Use.SERVER_AUTH} if role != "client" else set()
    assert set(extension(certificate, x509.ExtendedKeyUsage)) == {Use.CLIENT_AUTH, *listens}
    assert extension(certificate, x509.BasicConstraints).ca is False


@pytest.mark.parametrize("role", ROLES)
def test_a_strict_reader_accepts_what_the_authority_signed(certificates, role):
    policy = PolicyBuilder().store(Store([read(certificates.authority)]))
    verified = policy.build_client_verifier().verify(read(certificates.certificate(role)), [])
    assert len(verified.chain) == 2


def test_nothing_is_overwritten(certificates, tmp_path):
    with pytest.raises(StoreExists, match="choose a new directory"):
        make_certificates(certificates.path)
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreExists):
        make_certificates(tmp_path / "file")


@pytest.mark.parametrize("host", ["", "two words", "-n", "a..b", "x" * 64])
def test_a_host_that_is_none_is_refused_and_leaves_nothing(tmp_path, host):
    with pytest.raises(InvalidInput, match=re.escape(repr(host))):
        make_certificates(tmp_path / "new", hosts=[host])
    assert list(tmp_path.iterdir()) == []


def test_dask_reads_the_configuration(certificates):
    code = "from distributed import Security; print(Security())"
    shown = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60,
        env={**environment(), "DASK_CONFIG": str(certificates.path / "dask.yaml")},
    )  # fmt: skip
    for role in ROLES:
        assert f"tls_{role}_key=Local ({certificates.key(role)})" in shown.stdout
    assert "require_encryption=True" in shown.stdout
    config = yaml.safe_load((certificates.path / "dask.yaml").read_text())
    assert config["distributed"]["comm"]["tls"]["ca-file"] == str(certificates.authority)


@pytest.mark.parametrize("role", ROLES)
def test_dask_reads_the_environment(certificates, role):
    config = dask.config.collect_env(certificates.environment(role))
    comm = config["distributed"]["comm"]
    assert comm["require_encryption"] is True
    assert comm["tls"]["ca_file"] == str(certificates.authority)
    for part in (role, "client"):
        assert comm["tls"][part]["key"] == str(certificates.key(role))


def test_a_path_is_the_same_from_everywhere(certificates, monkeypatch):
    monkeypatch.chdir(certificates.path.parent)
    assert CertificateDirectory("certs").path == certificates.path


@pytest.fixture
def copied(certificates, tmp_path):
    return CertificateDirectory(shutil.copytree(certificates.path, tmp_path / "copied"))


def test_a_missing_file_is_named_with_the_remedy(copied):
    copied.key("worker").unlink()
    copied.check("scheduler", "client")
    with pytest.raises(CertificatesUnusable, match=r"no worker-key\.pem in .*slrt-dask certifi"):
        copied.check(*ROLES)


def test_a_key_of_another_certificate_is_refused(copied, other_certificates):
    shutil.copy(other_certificates.key("client"), copied.key("client"))
    with pytest.raises(CertificatesUnusable, match="do not belong together"):
        copied.check("client")


def test_a_damaged_certificate_is_refused(copied):
    copied.certificate("client").write_text("torn")
    with pytest.raises(CertificatesUnusable, match="damaged"):
        copied.check("client")
    copied.authority.write_text("")
    with pytest.raises(CertificatesUnusable, match="damaged"):
        copied.check("scheduler")


def test_certificates_that_have_ended_are_refused(certificates, monkeypatch):
    end = read(certificates.authority).not_valid_after_utc.timestamp()
    monkeypatch.setattr(using.time, "time", lambda: end - 1)
    certificates.check(*ROLES)
    monkeypatch.setattr(using.time, "time", lambda: end + 1)
    with pytest.raises(CertificatesUnusable, match="were valid until"):
        certificates.check("client")


def test_the_key_of_another_user_is_refused(certificates, monkeypatch):
    def refuse(*_):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(ssl.SSLContext, "load_cert_chain", refuse)
    with pytest.raises(CertificatesUnusable, match="another user"):
        certificates.check("client")


def shake_hands(client, server):
    for _ in range(4):
        for side in (client, server):
            with contextlib.suppress(ssl.SSLWantReadError):
                side.do_handshake()


def test_a_client_s_certificate_does_not_pass_for_a_scheduler_s(certificates):
    listening = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=certificates.authority)
    listening.load_cert_chain(certificates.certificate("client"), certificates.key("client"))
    calling = certificates.security().get_connection_args("client")["ssl_context"]
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = calling.wrap_bio(back, there)
    server = listening.wrap_bio(there, back, server_side=True)
    with pytest.raises(ssl.SSLCertVerificationError, match="certificate purpose"):
        shake_hands(client, server)


def test_the_command_makes_them_once(run_command, tmp_path):
    said = run_command("certificates", tmp_path / "certs", "--host", "node1", "--days", "7")
    assert said.exit_code == 0, said.stderr
    assert "for 7 days" in said.stdout
    CertificateDirectory(tmp_path / "certs").check(*ROLES)
    again = run_command("certificates", tmp_path / "certs")
    assert again.exit_code == 1
    assert "exists already" in again.stderr


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

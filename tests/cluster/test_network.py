"""Where launchers listen: in one private network, and not without certificates."""

from __future__ import annotations

import argparse
from socket import AF_INET
from types import SimpleNamespace

import network
import psutil
import pytest

PRIVATE = {"lo": "127.0.0.1", "ib0": "10.0.0.5"}


@pytest.fixture
def found(monkeypatch, capsys):
    """The network for options, on a machine with these interfaces; or what was said against it."""

    def find(*arguments, interfaces=PRIVATE, host=None):
        addresses = {
            name: [SimpleNamespace(family=AF_INET, address=address)]
            for name, address in interfaces.items()
        }
        monkeypatch.setattr(psutil, "net_if_addrs", lambda: addresses)
        parser = argparse.ArgumentParser()
        network.add_network_options(parser, host)
        try:
            return network.network_of(parser, parser.parse_args(list(map(str, arguments))))
        except SystemExit:
            return capsys.readouterr().err

    return find


def test_the_only_private_network_is_the_default(found, certificates):
    made = found("--tls", certificates.path)
    assert (made.host, made.protocol, made.interface) == ("10.0.0.5", "tls", None)
    assert made.dashboard == "127.0.0.1:8787"


@pytest.mark.parametrize(
    ("more", "count"),
    [({"eth0": "192.168.0.9"}, 2), ({"ib0": "8.8.8.8"}, 0), ({"ib0": "169.254.1.1"}, 0)],
)
def test_no_network_is_guessed_and_a_public_one_never_taken(found, certificates, more, count):
    said = found("--tls", certificates.path, interfaces={**PRIVATE, **more})
    assert f"this machine is in {count} private networks" in said
    assert "--interface" in said


def test_an_interface_or_a_host_can_be_chosen(found, certificates):
    several = {**PRIVATE, "eth0": "192.168.0.9"}
    chosen = found("--interface", "eth0", "--tls", certificates.path, interfaces=several)
    assert (chosen.host, chosen.interface) == ("192.168.0.9", "eth0")
    assert found("--host", "192.168.0.9", "--tls", certificates.path).host == "192.168.0.9"
    assert "use ib0 (10.0.0.5) or lo (127.0.0.1)" in found("--interface", "eth7")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", ""])
def test_no_launcher_listens_everywhere(found, certificates, host):
    assert "every network" in found("--host", host, "--tls", certificates.path)


def test_what_others_reach_needs_certificates_or_a_clear_word(found):
    said = found()
    assert "could run code as you" in said
    assert "slrt-dask certificates DIRECTORY" in said
    assert found("--insecure").protocol == "tcp"


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1"])
def test_this_machine_alone_needs_none(found, host):
    assert found(host=host).protocol == "tcp"


def test_certificates_that_are_not_there_are_told(found, tmp_path):
    assert f"there is no ca.pem in {tmp_path}" in found("--tls", tmp_path)


def test_a_machine_s_own_choice_wins_but_for_the_certificates(found, certificates, monkeypatch):
    stealing = "DASK_DISTRIBUTED__SCHEDULER__WORK_STEALING"
    authority = "DASK_DISTRIBUTED__COMM__TLS__CA_FILE"
    made = found("--tls", certificates.path)
    assert made.environment("worker")[stealing] == made.settings("worker")[stealing] == "False"
    monkeypatch.setenv(stealing, "True")
    monkeypatch.setenv(authority, "elsewhere")
    assert made.environment("worker")[stealing] == "True"
    assert made.environment("worker")[authority] == str(certificates.authority)

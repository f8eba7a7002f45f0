"""A cluster with certificates: who has them can use it, and nobody else."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time

import dask
import numpy as np
import psutil
import pytest
import yaml
from distributed import Client, Security

import slrt_dask
from tests.cluster.conftest import FIT, environment, launched

SOON = 15
"""Seconds within which a refusal comes, on a busy machine; it takes milliseconds."""
FEW = (*FIT, "--max-iterations", "1", "--gap-tolerance", "0")


@pytest.fixture(scope="module")
def cluster(certificates):
    """A scheduler and two workers with certificates: the launcher's process and the address."""
    arguments = ("--workers", "2", "--threads", "1", "--tls", certificates.path)
    with launched("local", *arguments) as (process, address):
        yield process, address


@pytest.fixture(scope="module")
def address(cluster):
    return cluster[1]


def worker_count(address, certificates):
    with Client(address, security=certificates.security()) as client:
        return len(client.scheduler_info(n_workers=-1)["workers"])


@pytest.fixture
def plan(run_command, store, address):
    """Plan a fit on the cluster; gives what was said and how long it took."""

    def run(*options, scheduler=address):
        began = time.monotonic()
        said = run_command(
            "plan", store.path, "--ranks", "4,4,3", "--scheduler", scheduler, *options
        )
        return said, time.monotonic() - began

    return run


def test_a_fit_over_tls_gives_the_same_answer(address, certificates, run_command, store, tmp_path):
    over = ("--scheduler", address, "--tls", certificates.path)
    for run, where in (("there", over), ("here", ())):
        said = run_command("fit", store.path, *FEW, "--run", tmp_path / run, *where)
        assert said.exit_code == 0, said.stderr
    there, here = (
        slrt_dask.load_completion(tmp_path / run / "completion") for run in ("there", "here")
    )
    everywhere = np.indices(here.shape).reshape(3, -1)
    np.testing.assert_allclose(
        there.predict(everywhere), here.predict(everywhere), rtol=1e-5, atol=1e-7
    )


def test_certificates_may_come_from_dask_s_configuration(plan, certificates):
    config = yaml.safe_load((certificates.path / "dask.yaml").read_text())
    with dask.config.set(dask.config.merge(dask.config.config, config)):
        said, _ = plan()
    assert "workers           2" in said.stdout, said.stderr


def test_a_python_client_needs_the_directory_only(address, certificates):
    with Client(address, security=certificates.security()) as client:
        assert client.submit(sum, [1, 2]).result() == 3
        stealing = client.run_on_scheduler(dask.config.get, "distributed.scheduler.work-stealing")
    assert stealing is False


def test_without_a_certificate_nobody_gets_in(address, plan):
    said, seconds = plan()
    assert said.exit_code == 1
    assert said.stderr.startswith(f"error: the scheduler at {address} asks for a certificate")
    assert "--tls DIRECTORY" in said.stderr
    assert seconds < SOON


def test_without_encryption_nobody_gets_in(address, plan):
    plain = address.replace("tls://", "tcp://")
    said, seconds = plan(scheduler=plain)
    assert said.exit_code == 1
    assert f"what listens at {plain} does not speak with this client" in said.stderr
    assert "tls://" in said.stderr
    assert seconds < SOON
    with pytest.raises(OSError, match=r"closed|reset|Timed out"):
        Client(plain, timeout=5)


def test_with_the_certificate_of_another_cluster_nobody_gets_in(plan, other_certificates):
    said, seconds = plan("--tls", other_certificates.path)
    assert said.exit_code == 1
    assert "does not accept these certificates" in said.stderr
    assert seconds < SOON


def test_knowing_the_right_authority_is_not_enough(address, certificates, other_certificates):
    """Here it is the scheduler that refuses."""
    stranger = Security(
        require_encryption=True,
        tls_ca_file=str(certificates.authority),
        tls_client_cert=str(other_certificates.certificate("client")),
        tls_client_key=str(other_certificates.key("client")),
    )
    began = time.monotonic()
    with pytest.raises(OSError, match=r"closed|reset|Timed out"):
        Client(address, security=stranger, timeout=5)
    assert time.monotonic() - began < SOON


def test_a_worker_without_a_certificate_of_the_cluster_is_turned_away(
    address, certificates, other_certificates
):
    before = worker_count(address, certificates)
    said = subprocess.run(
        [sys.executable, "-m", "dask", "worker", address, "--no-nanny", "--death-timeout", "1"],
        env={**environment(), **other_certificates.environment("worker")},
        capture_output=True,
        timeout=60,
    )
    assert said.returncode != 0
    assert worker_count(address, certificates) == before


def test_nothing_listens_beyond_this_machine(cluster):
    process = psutil.Process(cluster[0].pid)
    listening = [
        connection.laddr.ip
        for each in (process, *process.children(recursive=True))
        for connection in each.net_connections()
        if connection.status == psutil.CONN_LISTEN
    ]
    assert len(listening) >= 6
    assert set(listening) == {"127.0.0.1"}


def test_the_end_of_its_terminal_ends_a_cluster(cluster):
    """The last test that has it: after this there is none."""
    process, _ = cluster
    started = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGHUP)
    assert process.wait(30) == 0
    _, alive = psutil.wait_procs(started, timeout=10)
    assert (len(started) >= 3, alive) == (True, [])


def test_workers_of_one_command_can_use_certificates_too(run_command, store, certificates):
    said = run_command(
        "plan", store.path, "--ranks", "4,4,3", "--workers", "1", "--tls", certificates.path
    )
    assert said.exit_code == 0, said.stderr
    assert "workers           1" in said.stdout


def test_whatever_does_not_answer_is_given_up(run_command, store, monkeypatch):
    monkeypatch.setattr("slrt_dask.cli.computing.SECONDS_TO_CONNECT", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"tcp://127.0.0.1:{silent.getsockname()[1]}"
        began = time.monotonic()
        said = run_command("plan", store.path, "--ranks", "4,4,3", "--scheduler", address)
    assert said.exit_code == 1
    assert "does not speak with this client" in said.stderr
    assert time.monotonic() - began < SOON


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (["--tls", "."], 2, "--tls goes with --scheduler or --workers"),
        (["--tls", ".", "--scheduler", "tcp://a:1"], 2, "begins with tls://, unlike tcp://a:1"),
        (["--tls", "nowhere", "--scheduler", "tls://a:1"], 1, "no ca.pem in"),
        (["--scheduler", "nonsense"], 1, "no scheduler answers at nonsense"),
    ],
)
def test_options_that_cannot_work_are_explained(run_command, store, options, code, words):
    said = run_command("plan", store.path, "--ranks", "4,4,3", *options)
    assert said.exit_code == code
    assert words in said.stderr

"""Workers on the hosts of a file, with an ssh that stays on this machine."""

from __future__ import annotations

import sys
import time

import psutil
import pytest
from distributed import Client
from ssh import Host, read_hosts

from tests.cluster.conftest import launched

# Like ssh: options, a host, and a command for the login shell there, which runs on its own and
# has the same input for as long as this process lives.
SSH = """
import shutil, subprocess, sys, threading
*options, host, command = sys.argv[1:]
if host == "unreachable":
    sys.exit(255)
shell = subprocess.Popen(["sh", "-c", command], stdin=subprocess.PIPE, start_new_session=True)
def relay():
    shutil.copyfileobj(sys.stdin.buffer, shell.stdin)
    shell.stdin.close()
threading.Thread(target=relay, daemon=True).start()
sys.exit(shell.wait())
"""


@pytest.fixture(scope="module")
def ssh(program):
    return program("ssh", SSH, interpreter=sys.executable)


@pytest.fixture
def hosts(tmp_path):
    path = tmp_path / "hosts.txt"
    path.write_text("# two machines\nnode1 threads=1 memory=1GB\nnode2 threads=1\n")
    return path


def descendants(process):
    return psutil.Process(process.pid).children(recursive=True)


def wait_until(condition):
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < 20
        time.sleep(0.05)


def test_hosts_bring_their_workers_and_a_lost_one_is_only_missed(ssh, hosts, certificates):
    arguments = (hosts, "--tls", certificates.path, "--host", "127.0.0.1")
    with launched("ssh", *arguments, programs=[ssh]) as (process, address):
        assert address.startswith("tls://127.0.0.1:")
        with Client(address, security=certificates.security()) as client:

            def workers():
                return client.scheduler_info(n_workers=-1)["workers"].values()

            assert sorted(worker["memory_limit"] for worker in workers())[0] == 10**9
            assert {worker["host"] for worker in workers()} == {"127.0.0.1"}
            assert len(workers()) == 2
            started = descendants(process)
            (lost,) = [each for each in started if "node2" in each.cmdline()]
            lost.kill()
            wait_until(lambda: len(workers()) == 1)
        assert process.poll() is None
    _, alive = psutil.wait_procs(started, timeout=10)
    assert alive == []


def test_a_host_that_cannot_be_reached_is_named(call_launcher, ssh, certificates, tmp_path):
    path = tmp_path / "hosts.txt"
    path.write_text("unreachable\n")
    said = call_launcher(
        "ssh", path, "--tls", certificates.path, "--host", "127.0.0.1", "--dashboard", "0",
        programs=[ssh],
    )  # fmt: skip
    assert (said.code, said.out) == (1, "")
    assert "the cluster did not start: unreachable ended with exit code 255." in said.err


def test_a_hosts_file_is_read():
    text = "\n# all\nnode1   # its cores\nme@node2 workers=2 memory=16GB threads=8\n"
    assert read_hosts(text) == [Host("node1"), Host("me@node2", 2, 8, "16GB")]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "names no host"),
        ("# nobody\n", "names no host"),
        ("a\n-oProxyCommand=evil\n", "line 2: '-oProxyCommand=evil' is not the name of a host"),
        ("a;b\n", "line 1: 'a;b' is not the name of a host"),
        ("a threads=0\n", "line 1: threads=0 is not a whole number from 1"),
        ("a workers=two\n", "line 1: workers=two is not a whole number from 1"),
        ("a memory=much\n", "line 1: memory=much is not an amount, such as 16GB"),
        ("a memory=-1GB\n", "line 1: memory=-1GB is not an amount"),
        ("a cores=4\n", "line 1: 'cores=4' is not one of workers=N"),
        ("a 4\n", "line 1: '4' is not one of workers=N"),
        ("a threads=1 threads=2\n", "line 1: 'threads=2' is not one of"),
        ("a\n\na\n", "line 3: a is there twice; use workers=2 instead"),
    ],
)
def test_a_hosts_file_with_a_mistake_is_refused_by_its_line(text, words):
    with pytest.raises(ValueError, match=r"line|host") as refused:
        read_hosts(text)
    assert words in str(refused.value)


def test_mistakes_in_the_file_are_told_with_its_name(call_launcher, tmp_path, certificates):
    path = tmp_path / "hosts.txt"
    path.write_text("a b\n")
    said = call_launcher("ssh", path, "--tls", certificates.path)
    assert said.code == 2
    assert f"{path}: line 1: 'b' is not one of" in said.err

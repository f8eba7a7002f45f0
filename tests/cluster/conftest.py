"""Certificates, launchers run as a user runs them, and stand-ins for what is not installed here."""

from __future__ import annotations

import importlib
import os
import shutil
import signal
import subprocess
import sys
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from slrt_dask.certificates import make_certificates
from tests.cli.conftest import FIT, ROOT, observations, run_command, store

__all__ = ["FIT", "ROOT", "observations", "run_command", "store"]

LAUNCHERS = ROOT / "cluster"
SHELL = shutil.which("sh")
# As in a launcher itself, whose folder Python puts first.
sys.path.insert(0, str(LAUNCHERS))


@pytest.fixture(scope="session")
def certificates(tmp_path_factory):
    return make_certificates(tmp_path_factory.mktemp("tls") / "certs")


@pytest.fixture(scope="session")
def other_certificates(tmp_path_factory):
    """Just as good, for another cluster."""
    return make_certificates(tmp_path_factory.mktemp("tls") / "others")


def environment(*folders):
    """For launchers; programs in these folders come before those of the system."""
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    programs = [*map(str, folders), os.environ["PATH"]]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "PATH": os.pathsep.join(programs),
    }


@pytest.fixture
def call_launcher(monkeypatch, capsys):
    """Run a launcher to its end, in this process: exit code, and what it said."""

    def call(name, *arguments, programs=()):
        monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
        monkeypatch.setenv("PATH", environment(*programs)["PATH"])
        try:
            code = importlib.import_module(name).main()
        except SystemExit as ended:
            code = ended.code
        if isinstance(code, str):
            # Python itself does this with a sentence.
            print(code, file=sys.stderr)
            code = 1
        return SimpleNamespace(code=code, **capsys.readouterr()._asdict())

    return call


@contextmanager
def launched(name, *arguments, programs=()):
    """A launcher's process and the address that it printed; stopped, without complaint, after."""
    process = subprocess.Popen(
        [sys.executable, str(LAUNCHERS / f"{name}.py"), *map(str, arguments), "--dashboard", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(*programs),
        # Whoever runs the tests beyond the end of a terminal has this signal ignored.
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),
    )
    with process:
        try:
            yield process, process.stdout.readline().strip()
        finally:
            process.terminate()
            _, messages = process.communicate(timeout=60)
    assert process.returncode == 0, messages
    assert "Traceback" not in messages


@pytest.fixture(scope="session")
def program(tmp_path_factory):
    """Put a script in a folder of its own, under the name of a program."""

    def write(name, text, interpreter=SHELL):
        folder = tmp_path_factory.mktemp("programs")
        path = folder / name
        path.write_text(f"#!{interpreter}\n{text}")
        path.chmod(0o755)
        return folder

    return write

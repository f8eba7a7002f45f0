"""Workers as jobs, with an sbatch that runs a job at once on this machine."""

from __future__ import annotations

import dask
import psutil
import pytest
from dask_jobqueue import SLURMCluster
from distributed import Client

from tests.cluster.conftest import launched

SETTINGS = (
    "--cores", "4", "--memory", "8GB", "--workers-per-job", "2", "--walltime", "01:00:00",
    "--queue", "short", "--account", "us", "--directive=--exclusive", "--python", "/opt/python",
)  # fmt: skip


@pytest.fixture
def script(call_launcher):
    """The printed job script."""

    def printed(*arguments):
        said = call_launcher("slurm", *arguments, "--print")
        assert said.code == 0, said.err
        return said.out

    return printed


def by_jobqueue(certificates, prologue, **more):
    """What dask-jobqueue's own cluster would submit, for its scheduler's address."""
    with (
        dask.config.set({"distributed.scheduler.work-stealing": False}),
        SLURMCluster(
            cores=4, memory="8GB", processes=2, walltime="01:00:00", queue="short", account="us",
            job_extra_directives=["--exclusive"], python="/opt/python",
            job_script_prologue=prologue, security=certificates.security(),
            scheduler_options={"host": "127.0.0.1", "dashboard_address": "127.0.0.1:0"}, **more,
        ) as cluster,
    ):  # fmt: skip
        found = cluster.job_script().replace(cluster.scheduler_address, "tls://127.0.0.1:PORT")
    return found.replace("dummy-name", "NAME")


def prologue_of(text):
    """The lines between the directives and the worker."""
    return text[text.index("export ") :].splitlines()[:-1]


def test_the_script_is_the_one_that_dask_jobqueue_would_submit(script, certificates):
    ours = script(*SETTINGS, "--tls", certificates.path, "--host", "127.0.0.1")
    quiet = ["--no-dashboard", "--dashboard-address", "127.0.0.1:0"]
    theirs = by_jobqueue(
        certificates,
        prologue_of(ours),
        worker_extra_args=[*quiet, "--host", '"$slrt_address"'],
    )
    assert ours == theirs
    for line in ("-p short", "-A us", "-t 01:00:00", "--cpus-per-task=4", "--exclusive"):
        assert f"#SBATCH {line}\n" in ours


def test_an_interface_is_used_as_dask_jobqueue_uses_it(script, certificates):
    ours = script(*SETTINGS, "--tls", certificates.path, "--interface", "lo")
    quiet = ["--no-dashboard", "--dashboard-address", "127.0.0.1:0"]
    theirs = by_jobqueue(certificates, prologue_of(ours), worker_extra_args=quiet, interface="lo")
    assert ours == theirs


def test_settings_of_the_site_are_kept(script, certificates):
    site = {
        "cores": 3, "memory": "6GB", "interface": "lo",
        "job-script-prologue": ["module load python"], "worker-extra-args": ["--lifetime", "50m"],
    }  # fmt: skip
    with dask.config.set({f"jobqueue.slurm.{key}": value for key, value in site.items()}):
        text = script("--tls", certificates.path)
        elsewhere = script("--tls", certificates.path, "--host", "127.0.0.1")
    for words in (
        "--cpus-per-task=3\n", "--interface lo", "\nmodule load python\n", "--lifetime 50m",
        "tls://127.0.0.1:PORT",
    ):  # fmt: skip
        assert words in text
    assert "--interface" not in elsewhere


def test_jobs_become_workers_and_are_cancelled(certificates, program, tmp_path):
    """The script is run as it is; its address has to be right for that."""
    log = tmp_path / "log"
    sbatch = program(
        "sbatch",
        f'cp "$1" {log}.sh; setsid sh {log}.sh > {log} 2>&1 < /dev/null &\n'
        f'echo $! > {log}.pid; echo "Submitted batch job $!"\n',
    )
    scancel = program("scancel", f'kill -KILL -- "-$1"; echo "$1" > {log}.cancelled\n')
    arguments = (
        "--cores", "2", "--memory", "2GB", "--host", "127.0.0.1", "--tls", certificates.path,
    )  # fmt: skip
    with launched("slurm", *arguments, programs=[sbatch, scancel]) as (_, address):
        with Client(address, security=certificates.security()) as client:
            workers = client.scheduler_info(n_workers=-1)["workers"].values()
            assert [worker["name"] for worker in workers] == ["slrt-0"]
            assert [worker["host"] for worker in workers] == ["127.0.0.1"]
        job = psutil.Process(int((tmp_path / "log.pid").read_text()))
    assert (tmp_path / "log.cancelled").read_text().strip() == str(job.pid)
    job.wait(20)


def test_a_job_that_is_not_taken_is_told_with_slurm_s_words(call_launcher, certificates, program):
    sbatch = program("sbatch", "echo 'invalid account' >&2; exit 1\n")
    scancel = program("scancel", "")
    said = call_launcher(
        "slurm", "--cores", "1", "--memory", "1GB", "--host", "127.0.0.1", "--dashboard", "0",
        "--tls", certificates.path, programs=[sbatch, scancel],
    )  # fmt: skip
    assert (said.code, said.out) == (1, "")
    assert "SLURM did not take a job" in said.err
    assert "invalid account" in said.err
    assert "Traceback" not in said.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--memory", "1GB"], "with --cores and --memory"),
        ([*SETTINGS, "--jobs", "0"], "at least 1"),
        ([*SETTINGS], "there is no sbatch here; --print shows"),
        ([*SETTINGS, "--print", "--host", "10.1.2.3"], "could run code as you"),
    ],
)
def test_what_cannot_be_is_refused(call_launcher, arguments, words):
    said = call_launcher("slurm", *arguments)
    assert said.code == 2
    assert words in said.err

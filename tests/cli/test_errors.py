"""Whatever goes wrong: one sentence, the right exit code, and a traceback only when asked for."""

from __future__ import annotations

import errno
import inspect
from types import SimpleNamespace

import numpy as np
import pytest

from slrt_dask import errors, from_array
from slrt_dask.cli import index_files, main
from slrt_dask.cli.computing import _limit_suspected
from slrt_dask.cli.fit_commands import _tell_of_idle_workers
from slrt_dask.cli.wording import in_options
from tests.cli.conftest import FIT

ERRORS = [
    kind
    for _, kind in inspect.getmembers(errors, inspect.isclass)
    if issubclass(kind, errors.SlrtError)
]


@pytest.fixture
def failing(monkeypatch, run_command, fitted, store):
    """Run `evaluate` with an evaluation that raises."""

    def run(error, *flags, before=()):
        def fail(*_, **__):
            raise error

        monkeypatch.setattr("slrt_dask.scoring.evaluate", fail)
        return run_command(*before, "evaluate", fitted[0], store.path, *flags)

    return run


@pytest.fixture(scope="module")
def series(tmp_path_factory):
    return from_array(tmp_path_factory.mktemp("series") / "store", np.arange(30.0)).path


def is_one_sentence(text):
    return text.startswith("error: ") and text.count("\n") == 1 and "Traceback" not in text


@pytest.mark.parametrize("kind", ERRORS, ids=lambda kind: kind.__name__)
def test_every_deliberate_error_is_a_sentence_and_exit_code_1(failing, kind):
    said = failing(kind("this is wrong;\n give that"))
    assert said.exit_code == 1
    assert said.stderr == "error: this is wrong; give that\n"
    assert said.stdout == ""


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
def test_debug_shows_the_traceback_too(failing, before):
    flags = {"before": ["--debug"]} if before else {}
    said = failing(errors.InvalidInput("wrong"), *([] if before else ["--debug"]), **flags)
    assert said.exit_code == 1
    assert said.stderr.startswith("Traceback")
    assert said.stderr.endswith("error: wrong\n")


def test_a_full_disk_is_a_sentence(failing):
    said = failing(OSError(errno.ENOSPC, "No space left on device", "/data/run"))
    assert said.exit_code == 1
    assert said.stderr == (
        "error: no space left on device: /data/run; free some space and try again.\n"
    )


def test_running_out_of_memory_is_a_sentence(failing):
    said = failing(MemoryError())
    assert said.exit_code == 1
    assert is_one_sentence(said.stderr)


def test_an_unexpected_error_is_called_a_bug(failing):
    said = failing(ZeroDivisionError("division by zero"))
    assert said.exit_code == 70
    assert is_one_sentence(said.stderr)
    assert "bug" in said.stderr
    assert "--debug" in said.stderr


def test_an_interrupt_ends_with_exit_code_130(failing):
    said = failing(KeyboardInterrupt())
    assert (said.exit_code, said.stderr) == (130, "error: interrupted.\n")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["ingest", "nowhere.npz", "new"], "there is no file nowhere.npz"),
        (["ingest", "data.xyz", "new"], "unknown file type '.xyz'"),
        (["split", "nowhere"], "nowhere"),
        (
            ["plan", "STORE", "--ranks", "4,4"],
            "ranks must be 3 numbers",
        ),
        (["fit", "STORE", *FIT, "--run", "RUN"], "already exists"),
        (
            ["fit", "STORE", "--ranks", "4,4,9", "--C", "1", "--run", "new"],
            "more than the mode's length 8; give at most 8",
        ),
        (["fit", "STORE", "--ranks", "4,4,3", "--C", "-1", "--run", "new"], "C must be a positive"),
        (["fit", "STORE", *FIT, "--lambdas", "1,2", "--run", "new"], "lambdas must be 3"),
        (["fit", "STORE", *FIT, "--run", "new", "--memory-limit", "1MB"], "but may use 1 MB"),
        (["fit", "--config", "nowhere.toml"], "no configuration file nowhere.toml"),
        (["evaluate", "STORE", "STORE"], "not a completion"),
        (["predict", "RUN", "nowhere.csv", "-o", "found.csv"], "there is no file nowhere.csv"),
        (["predict", "RUN", "bad.csv", "-o", "found.csv"], "line 2 of bad.csv is '1,two,3'"),
        (["predict", "RUN", "short.csv", "-o", "found.csv"], "line 1 of short.csv is '1,2'"),
        (["predict", "RUN", "far.csv", "-o", "found.csv"], "line 3 of far.csv has the index 8"),
        (["predict", "RUN", "far.csv", "-o", "found.csv"], "out of range"),
        (["predict", "RUN", "far.tns", "-o", "found.csv"], "line 1 of far.tns has the index 0"),
        (["predict", "RUN", "far.npy", "-o", "found.csv"], "entry 1 (from 0) of far.npy has"),
        (["predict", "RUN", "text.npy", "-o", "found.csv"], "does not begin as a .npy file"),
        (["predict", "RUN", "text.npz", "-o", "found.csv"], "is not an .npz archive"),
        (["ingest", "text.npy", "new"], "text.npy does not begin as a .npy file does; check it"),
        (["ingest", "semi.csv", "new"], "If it is ';' that separates its columns, give that as --"),
        (["ingest", "semi.csv", "new", "--delimiter", ";"], "Write decimal points"),
        (["report", "nowhere", "-o", "fine.csv"], "nowhere holds neither a run nor a completion"),
        (["fit", "SERIES", "--ranks", "8", "--C", "1", "--run", "new"], "structure: --hankel 15"),
        (["fit", "STORE", *FIT, "--patience", "5", "--run", "new"], "needs --validation: give"),
        (
            ["fit", "STORE", *FIT, "--center", "modes", "--nonnegative", "--run", "new"],
            "--center modes takes no constraint",
        ),
        (["fit", "STORE", *FIT, "--max-ranks", "5", "--run", "new"], "goes with --ranks certified"),
        (["predict", "RUN", "flat.npy", "-o", "found.csv"], "shape (4,)"),
        (["predict", "RUN", "half.npy", "-o", "found.csv"], "whole numbers"),
        (["predict", "RUN", "fine.csv", "-o", "found.txt"], "unknown ending"),
        (["export", "RUN", "taken.zarr"], "already exists"),
        (["export", "RUN", "new.zarr", "--chunks", "1,2"], "chunks must be 3"),
    ],
)
def test_what_the_user_can_mend_is_named(
    run_command, fitted, store, series, tmp_path, monkeypatch, arguments, words
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "taken.zarr").mkdir()
    for name, text in {
        "data.xyz": "",
        "bad.csv": "0,0,0\n1,two,3\n",
        "short.csv": "1,2\n",
        "far.csv": "0,0,0\n# and\n0,0,8\n",
        "far.tns": "1 0 1\n",
        "semi.csv": "0;0;0;1,5\n",
        "text.npy": "no array",
        "text.npz": "no arrays",
        "fine.csv": "0,0,0\n",
    }.items():
        (tmp_path / name).write_text(text)
    np.save("far.npy", np.array([[0, 0], [1, -1], [2, 2]]))
    np.save("flat.npy", np.arange(4))
    np.save("half.npy", np.full((3, 1), 0.5))
    before = sorted(tmp_path.iterdir())
    places = {"STORE": store.path, "RUN": fitted[0], "SERIES": series}
    said = run_command(*(places.get(argument, argument) for argument in arguments))
    assert said.exit_code == 1, said.output
    assert is_one_sentence(said.stderr), said.stderr
    assert words in said.stderr
    assert said.stdout == ""
    left = [path for path in tmp_path.iterdir() if path not in before and path.name != "new"]
    assert left == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["fit", "store"], "--run is missing"),
        (["fit"], "STORE is missing"),
        (["fit", "store", "--ranks", "4;4"], "not a list of whole numbers"),
        (["fit", "store", "--rank", "4"], "No such option"),
        (["fit", "store", "--C", "much"], "neither a number nor auto"),
        (["plan", "store", "--ranks", "4", "--memory-limit", "much"], "not an amount of memory"),
        (["plan", "store", "--ranks", "4", "--workers", "2", "--scheduler", "a"], "not both"),
        (["plan", "store", "--ranks", "4", "--threads", "2", "--scheduler", "a"], "--threads out"),
        (["frobnicate"], "No such command"),
    ],
)
def test_a_command_not_understood_is_exit_code_2(run_command, arguments, words):
    said = run_command(*arguments)
    assert said.exit_code == 2
    assert words in said.stderr


def test_an_export_that_fails_leaves_nothing(run_command, fitted, tmp_path, monkeypatch):
    def fail(**_):
        raise errors.StoreCorrupt("torn")

    monkeypatch.setattr("slrt_dask.completed_chunks.chunk_task", fail)
    said = run_command("export", fitted[0], tmp_path / "all.zarr")
    assert (said.exit_code, list(tmp_path.iterdir())) == (1, [])


def test_an_unreachable_scheduler_is_a_sentence(run_command, store, monkeypatch):
    monkeypatch.setattr("slrt_dask.cli.computing.SECONDS_TO_CONNECT", 0.5)
    said = run_command("plan", store.path, "--ranks", "4,4,3", "--scheduler", "tcp://127.0.0.1:1")
    assert said.exit_code == 1
    assert is_one_sentence(said.stderr)
    assert "no scheduler answers at tcp://127.0.0.1:1" in said.stderr


def test_workers_that_are_gone_are_blamed_on_the_memory_limit_that_was_given():
    for limit, words in (("10MB", "--memory-limit 10MB"), (None, "the cluster has no worker")):
        with pytest.raises(errors.NoWorkers, match=words), _limit_suspected(limit):
            raise errors.NoWorkers("the cluster has no worker; start one")


def test_workers_without_a_partition_are_told_of_in_one_line(thread_client, store, capsys):
    partitions = len(store.partitions)
    _tell_of_idle_workers(store, thread_client)
    assert partitions >= 3
    assert capsys.readouterr().err == ""
    alone = SimpleNamespace(partitions=store.partitions[:1], nnz=100)
    _tell_of_idle_workers(alone, thread_client)
    said = capsys.readouterr().err
    assert said.startswith("1 of 3 workers has work to do")
    assert "--partition-entries 34" in said
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("sentence", "said"),
    [
        ("use center=True, or none", "use --center, or none"),
        ("give constraint=Hankel(3, 4)", "give --hankel 3,4"),
        ("`max_ranks` is 3", "--max-ranks is 3"),
        ("delimiter=';' is no option of it", "delimiter=';' is no option of it"),
        ("/data/center=3/C=1.0 is a path", "/data/center=3/C=1.0 is a path"),
    ],
)
def test_arguments_are_named_by_the_options_of_the_command(sentence, said):
    assert in_options(sentence, main.commands["fit"]) == said
    assert in_options(sentence, None) == sentence


def test_indices_of_a_tensor_are_read_in_blocks(tmp_path, monkeypatch):
    monkeypatch.setattr(index_files, "BLOCK_ENTRIES", 2)
    (tmp_path / "i.csv").write_text("a,b\n0,1\n\n2,3\n# remark\n4,5\n")
    blocks = list(index_files.read_indices(str(tmp_path / "i.csv"), (5, 6)))
    np.testing.assert_array_equal(np.concatenate(blocks, axis=1), [[0, 2, 4], [1, 3, 5]])
    assert max(block.shape[1] for block in blocks) <= 2

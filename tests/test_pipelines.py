"""The scripts of pipelines/ run, on data of their own and on files, and leave their pictures."""

from __future__ import annotations

import runpy
from pathlib import Path

import numpy as np
import pytest

SCRIPTS = Path(__file__).parent.parent / "pipelines/series"


def run(name, *arguments):
    runpy.run_path(str(SCRIPTS / name))["main"]([str(argument) for argument in arguments])


def numbers(line):
    return [float(word.rstrip("%")) for word in line.split() if word[0].isdigit()]


def test_a_series_of_ones_own_is_read(tmp_path, capsys):
    samples = np.sin(0.3 * np.arange(80))
    samples[30:35] = np.nan
    np.save(tmp_path / "samples.npy", samples)
    run("series.py", tmp_path / "samples.npy", "--rank", 2, "--forecast", 5, "--output", tmp_path)
    assert "Completion(85, ranks (2,)" in capsys.readouterr().out
    assert (tmp_path / "series.png").stat().st_size > 10_000


def test_rows_and_columns_that_are_missing_are_filled(tmp_path, capsys):
    run("image.py", "--size", 40, "--output", tmp_path)
    told = capsys.readouterr().out
    structured, plain = (
        float(line.split("PSNR")[1].split()[0]) for line in told.splitlines() if "PSNR" in line
    )
    assert structured > plain + 10.0
    assert (tmp_path / "image.png").stat().st_size > 10_000


@pytest.mark.parametrize("given", [(), ("--hide", "9,13")])
def test_days_that_are_missing_are_filled(given, tmp_path, capsys):
    generator = np.random.default_rng(0)
    day = 5.0 + 100.0 * np.exp(-0.5 * ((np.arange(12) - 4.0) / 2.0) ** 2)
    week = np.where(np.arange(21) % 7 < 5, 1.0, 0.5)
    counts = generator.poisson(np.einsum("p,d,t->pdt", [1.0, 2.0, 3.0], week, day))
    np.savez(tmp_path / "counts.npz", counts=counts)
    run("traffic.py", tmp_path / "counts.npz", "--output", tmp_path, *given)
    told = capsys.readouterr().out.splitlines()
    errors = {line[:25].strip(): numbers(line[25:]) for line in told[1:5]}
    assert np.mean(errors["with Hankel"]) < np.mean(errors["mean of all days"])
    assert np.mean(errors["with Hankel"]) < 0.5 * np.mean(errors["low rank only"])
    assert (tmp_path / "traffic.png").stat().st_size > 10_000

"""Settings are checked where they enter, and an unknown key is an error."""

from __future__ import annotations

import dataclasses
import json

import pytest

from slrt_dask.config import FitSettings, read_settings
from slrt_dask.errors import InvalidConfig


def test_settings_are_frozen_and_survive_json():
    settings = FitSettings(ranks=(3, 2), C=1.0, lambdas=(1.0, 2.0))
    with pytest.raises(dataclasses.FrozenInstanceError):
        settings.C = 2.0
    again = json.loads(json.dumps(settings.to_dict()))
    again["ranks"], again["lambdas"] = tuple(again["ranks"]), tuple(again["lambdas"])
    assert FitSettings(**again) == settings


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"ranks": ()}, r"ranks.*\(\)"),
        ({"ranks": (True, 2)}, "ranks.*True"),
        ({"ranks": (2, "3")}, "ranks.*'3'"),
        ({"C": True}, "C.*True"),
        ({"C": "much"}, "C.*much"),
        ({"C": 0}, "C.*0"),
        ({"lambdas": (1.0, float("inf"))}, "lambda.*inf"),
        ({"method": "sgd"}, "sgd.*auto, lbfgs, rcg, rtr"),
        ({"precision": "int8"}, "int8.*float64"),
        ({"gap_tolerance": float("inf")}, "gap_tolerance.*inf"),
        ({"max_iterations": True}, "max_iterations.*True"),
        ({"max_seconds": -1.0}, "max_seconds.*-1.0"),
        ({"seed": 1.0}, "seed.*1.0"),
    ],
    ids=str,
)
def test_a_value_outside_its_range_is_named(change, named):
    with pytest.raises(InvalidConfig, match=named):
        FitSettings(**{"ranks": (2, 2), "C": 1.0, **change})


def test_a_table_of_a_file_becomes_settings(tmp_path):
    file = tmp_path / "fit.toml"
    file.write_text('[fit]\nranks = [3, 2]\nC = 10\nmethod = "rtr"\n[other]\nkey = 1\n')
    read = read_settings(file)
    assert read == {"ranks": (3, 2), "C": 10, "method": "rtr"}
    assert FitSettings(**read).ranks == (3, 2)


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("[fit]\nrank = [3, 2]\n", "fit.rank.*unknown.*ranks"),
        ("[other]\nranks = [3]\n", r"\[fit\]"),
        ("fit = 3\n", r"\[fit\]"),
        ("[fit\n", "not valid TOML"),
    ],
)
def test_a_file_with_a_mistake_is_refused_by_name(tmp_path, content, named):
    file = tmp_path / "fit.toml"
    file.write_text(content)
    with pytest.raises(InvalidConfig, match=named):
        read_settings(file)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(InvalidConfig, match=r"nowhere\.toml"):
        read_settings(tmp_path / "nowhere.toml")

"""The settings of a fit as the command line has them: a TOML file, and flags, which win."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from slrt_dask.config import FitSettings, read_settings
from slrt_dask.errors import InvalidConfig

PATHS = ("store", "run", "validation")
CONSTRAINT = ("lower", "upper", "where")
REQUIRED = {"store": "STORE", "ranks": "--ranks", "C": "--C", "run": "--run"}


@dataclass(frozen=True)
class FitRequest:
    """A fit that was asked for: which stores, where to keep the run, and the settings."""

    store: str
    run: str
    validation: str | None
    settings: FitSettings


def requested(config: str | None, flags: dict[str, Any]) -> FitRequest:
    """Join a file's settings with the flags that were given (those that are not None)."""
    values = {} if config is None else _from_file(config)
    given = {key: value for key, value in flags.items() if value is not None}
    bounds = constraint_table(given, values.get("constraint"))
    values.update(given, constraint=bounds)
    for key, flag in REQUIRED.items():
        if key not in values:
            raise click.UsageError(f"{flag} is missing; give it, or set fit.{key} in a --config.")
    store, run = values.pop("store"), values.pop("run")
    return FitRequest(store, run, values.pop("validation", None), _settings(values))


def constraint_table(
    flags: dict[str, Any], table: dict[str, Any] | None = None
) -> dict[str, Any] | None:
    """Take the flags of a constraint out of all flags; joined with a file's table, they win."""
    from slrt_dask.constraints import constraint_of

    found = dict(table or {})
    if flags.pop("nonnegative", False):
        found["lower"] = 0.0
    for key in CONSTRAINT:
        if key in flags:
            found[key] = flags.pop(key)
    constraint = constraint_of(found or None)
    return None if constraint is None else constraint.to_dict()


def _settings(values: dict[str, Any]) -> FitSettings:
    for key in ("ranks", "lambdas"):
        if not isinstance(values.get(key, ()), tuple):
            raise InvalidConfig(f"{key} is {values[key]!r}; give a list with one number per mode")
    try:
        return FitSettings(**values)
    except TypeError as error:
        raise InvalidConfig(f"a setting has the wrong type: {error}") from error


def _from_file(config: str) -> dict[str, Any]:
    values = read_settings(config)
    for key in PATHS:
        if key in values:
            values[key] = _beside(config, key, values[key])
    bounds = values.get("constraint")
    if isinstance(bounds, dict) and bounds.get("where", "all") not in ("all", "observed"):
        values["constraint"] = {**bounds, "where": _beside(config, "where", bounds["where"])}
    return values


def _beside(config: str, key: str, value: object) -> str:
    """A path of the file, taken relative to where the file is; URLs as they are."""
    if not isinstance(value, str):
        raise InvalidConfig(f"{config} sets fit.{key} to {value!r}; give a path in quotes")
    return value if "://" in value else os.fspath(Path(config).parent / value)

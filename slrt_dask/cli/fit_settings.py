"""The settings of a fit as the command line has them: a TOML file, and flags, which win."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from slrt_dask.config import read_settings
from slrt_dask.errors import InvalidConfig

PATHS = ("store", "run", "validation")
BOUNDS = ("lower", "upper", "where")
LINEAR = ("rows", "bound", "kind")
HANKEL = ("tau", "deviation")
REQUIRED = {"store": "STORE", "run": "--run"}


@dataclass(frozen=True)
class FitRequest:
    """A fit that was asked for: which stores, where to keep the run, and what `complete` gets."""

    store: str
    run: str
    validation: str | None
    arguments: dict[str, Any]


def loss_of(huber: float | str | None) -> Any:
    """The loss with this δ, which may be "auto"; None for the squared misfit."""
    from slrt_dask.losses import Huber

    return None if huber is None else Huber(huber)


def requested(config: str | None, flags: dict[str, Any]) -> FitRequest:
    """Join a file's settings with the flags that were given (those that are not None)."""
    values = {} if config is None else _from_file(config)
    given = {key: value for key, value in flags.items() if value is not None}
    constraint = constraint_table(given, values.get("constraint"))
    values.update(given, constraint=constraint)
    for key, flag in REQUIRED.items():
        if key not in values:
            raise click.UsageError(f"{flag} is missing; give it, or set fit.{key} in a --config.")
    store, run = values.pop("store"), values.pop("run")
    values["loss"] = loss_of(values.pop("huber", None))
    return FitRequest(store, run, values.pop("validation", None), values)


def constraint_table(flags: dict[str, Any], given: Any = None) -> Any:
    """Take the flags of constraints out of all flags; joined with a file's tables, they win."""
    from slrt_dask.combining import constraints_of

    tables = list(given) if isinstance(given, tuple) else [given] if given else []
    if any(not isinstance(table, dict) for table in tables):
        raise InvalidConfig(f"constraint is {given!r}; give a table such as lower = 0, or several")
    found = {key: flags.pop(key) for key in BOUNDS if key in flags}
    if flags.pop("nonnegative", False):
        found = {"lower": 0.0, **found}
    rows = {key: flags.pop(key) for key in LINEAR if key in flags}
    if rows and "rows" not in rows:
        raise click.UsageError("--bound and --kind say what --rows must come to; give --rows too.")
    hankel = {key: flags.pop(key) for key in HANKEL if key in flags}
    for of_kind, key in ((found, None), (rows, "rows"), (hankel, "tau")):
        tables = _joined(tables, of_kind, key)
    constraints = constraints_of(tables)
    return constraints.to_table() if constraints.are_stored else tuple(tables)


def _joined(
    tables: list[dict[str, Any]], flags: dict[str, Any], key: str | None
) -> list[dict[str, Any]]:
    """The tables with flags put into the first that is of their kind, or into one of their own.

    key : what tables of that kind have; None for bounds
    """
    if not flags:
        return tables
    for number, table in enumerate(tables):
        if next((name for name in ("rows", "tau") if name in table), None) == key:
            return [*tables[:number], {**table, **flags}, *tables[number + 1 :]]
    return [*tables, flags]


def _from_file(config: str) -> dict[str, Any]:
    values = read_settings(config)
    for key in PATHS:
        if key in values:
            values[key] = _beside(config, key, values[key])
    given = values.get("constraint")
    if isinstance(given, dict):
        values["constraint"] = _with_paths(config, given)
    elif isinstance(given, tuple):
        values["constraint"] = tuple(_with_paths(config, table) for table in given)
    return values


def _with_paths(config: str, table: Any) -> Any:
    """The table of a constraint with its paths taken relative to where the file is."""
    if not isinstance(table, dict):
        return table  # which is refused where it is read
    named = dict(table)
    for key in ("where", "rows", "bound"):
        value = named.get(key)
        if isinstance(value, str) and value not in ("all", "observed"):
            named[key] = _beside(config, key, value)
    return named


def _beside(config: str, key: str, value: object) -> str:
    """A path of the file, taken relative to where the file is; URLs as they are."""
    if not isinstance(value, str):
        raise InvalidConfig(f"{config} sets fit.{key} to {value!r}; give a path in quotes")
    return value if "://" in value else os.fspath(Path(config).parent / value)

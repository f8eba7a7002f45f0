"""Documented names whose capability is still to come: each says so instead of half working."""

from __future__ import annotations

from typing import NoReturn

from slrt_dask.errors import NotYetAvailable


def _refuse(name: str) -> NoReturn:
    raise NotYetAvailable(f"{name} is not yet available in this release; complete without it")


def Hankel(tau: object, deviation: object = "auto") -> NoReturn:
    _refuse("Hankel")

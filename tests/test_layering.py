"""Imports go one way through the rooms of the package."""

from __future__ import annotations

import ast
import functools
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1] / "slrt_dask"
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(ROOT.rglob("*.py"))
}
LONGEST = 600
# Parts of the package that any room may import: they import no room themselves.
COMMON = {"errors", "spending", "interrupts"}
# Which parts of the package each of its rooms may import besides.
ALLOWED = {
    "config": set(),
    "data": {"data", "show.html"},
    "kernels": {"kernels"},
    "engine": {"data", "kernels", "engine", "show.html", "show.text"},
    "dual": {"data", "kernels", "engine", "dual", "optim.manifold"},
    "optim": {"optim"},
}
FORBIDDEN_LIBRARIES = {
    "kernels": {"dask", "distributed", "zarr", "scipy"},
    "data": {"numba", "distributed"},
    "dual": {"dask", "distributed"},
    "errors": {"numpy", "dask", "zarr", "numba", "scipy"},
    "config": {"dask", "distributed", "zarr", "numba", "scipy"},
}


@functools.cache
def parsed(module):
    return ast.parse(MODULES[module].read_text(encoding="utf-8"))


@functools.cache
def imported_by(module):
    """Full names of everything that a module imports, wherever in it that happens."""
    found = set()
    for node in ast.walk(parsed(module)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} has a relative import"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def inside_package(module):
    """The parts of the package that a module imports: "data.store", "errors", …"""
    known = set()
    for name in imported_by(module):
        parts = name.removeprefix("slrt_dask.").split(".")
        # `from slrt_dask.data.store import open_store` names a module and something in it.
        while name.startswith("slrt_dask.") and parts and ".".join(parts) not in MODULES:
            parts.pop()
        if name.startswith("slrt_dask."):
            known.add(".".join(parts))
    return known


def libraries_of(module):
    """The first parts of the names that a module imports."""
    return {name.split(".")[0] for name in imported_by(module)}


def room_of(module):
    return module.split(".")[0]


def modules_of(room):
    found = [module for module in MODULES if room_of(module) == room]
    assert found, f"there is no {room}"
    return found


@pytest.mark.parametrize("room", [*ALLOWED, *sorted(COMMON)])
def test_modules_import_only_what_their_room_may_know(room):
    allowed = COMMON | ALLOWED.get(room, set())
    for module in modules_of(room):
        unknown = {n for n in inside_package(module) if not {n, room_of(n)} & allowed}
        assert not unknown, module


@pytest.mark.parametrize("room", FORBIDDEN_LIBRARIES)
def test_modules_import_no_library_that_their_room_must_not_need(room):
    for module in modules_of(room):
        assert not libraries_of(module) & FORBIDDEN_LIBRARIES[room], module


def test_optimisers_need_numpy_and_the_standard_library_only():
    allowed = {*sys.stdlib_module_names, "numpy", "slrt_dask", "__future__"}
    for module in modules_of("optim"):
        assert libraries_of(module) <= allowed, module


def test_nobody_but_the_command_line_imports_the_command_line():
    for module in MODULES:
        importing = {room_of(name) for name in inside_package(module)}
        assert room_of(module) == "cli" or "cli" not in importing, module


def test_modules_say_what_they_are_for_and_are_not_too_long():
    for module, path in MODULES.items():
        lines = path.read_text(encoding="utf-8").splitlines()
        assert len(lines) <= LONGEST, module
        assert not lines or ast.get_docstring(parsed(module)), module

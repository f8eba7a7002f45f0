"""Imports go one way, and modules stay short enough to be read."""

from __future__ import annotations

import ast
import functools
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1] / "slrt_dask"
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(ROOT.rglob("*.py"))
}
MOST_LINES = 320

# Which parts of the package each of its rooms may import.
ALLOWED = {
    "errors": set(),
    "config": {"errors"},
    "data": {"errors", "data"},
    "kernels": {"errors", "kernels"},
    "engine": {"errors", "data", "kernels", "engine"},
    "dual": {"errors", "data", "kernels", "engine", "dual", "optim.manifold"},
    "optim": {"errors", "optim"},
}
FORBIDDEN_LIBRARIES = {
    "kernels": {"dask", "distributed", "zarr", "scipy"},
    "data": {"numba", "distributed"},
    "optim": {"dask", "distributed", "zarr", "numba", "scipy"},
    "dual": {"dask", "distributed"},
    "errors": {"numpy", "dask", "zarr", "numba", "scipy"},
    "config": {"dask", "distributed", "zarr", "numba", "scipy"},
}


@functools.cache
def parsed(path):
    return ast.parse(path.read_text(encoding="utf-8"))


@functools.cache
def imported_by(path):
    """Full names of everything that a module imports, wherever in it that happens."""
    found = set()
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def inside_package(path):
    """The parts of the package that a module imports: "data.store", "errors", …"""
    names = {
        name.removeprefix("slrt_dask.")
        for name in imported_by(path)
        if name.startswith("slrt_dask.")
    }
    known = set()
    for name in names:
        parts = name.split(".")
        # `from slrt_dask.data.store import open_store` names a module and something in it.
        while parts and ".".join(parts) not in MODULES:
            parts.pop()
        known.add(".".join(parts))
    return known


def room_of(module):
    return module.split(".")[0]


def libraries_of(module):
    """The first parts of the names that a module imports."""
    return {name.split(".")[0] for name in imported_by(MODULES[module])}


def assert_none(wrong):
    """Of what is wrong by module, nothing is there; otherwise the modules are named."""
    assert {module: names for module, names in wrong.items() if names} == {}


ROOMED = [module for module in MODULES if room_of(module) in ALLOWED]


def test_the_rooms_are_all_there():
    assert {room_of(module) for module in ROOMED} == set(ALLOWED)


def test_modules_import_only_what_their_room_may_know():
    wrong = {}
    for module in ROOMED:
        allowed = ALLOWED[room_of(module)]
        known = inside_package(MODULES[module])
        wrong[module] = {n for n in known if n not in allowed and room_of(n) not in allowed}
    assert_none(wrong)


def test_modules_import_no_library_that_their_room_must_not_need():
    rooms = {m: room_of(m) for m in MODULES if room_of(m) in FORBIDDEN_LIBRARIES}
    assert_none({m: libraries_of(m) & FORBIDDEN_LIBRARIES[room] for m, room in rooms.items()})


def test_optimisers_need_numpy_and_the_standard_library_only():
    allowed = {*sys.stdlib_module_names, "numpy", "slrt_dask", "__future__"}
    assert_none({m: libraries_of(m) - allowed for m in MODULES if room_of(m) == "optim"})


def test_nobody_but_the_command_line_imports_the_command_line():
    for module, path in MODULES.items():
        if room_of(module) != "cli":
            assert not any(room_of(name) == "cli" for name in inside_package(path)), module


def test_no_room_imports_what_joins_the_rooms():
    joining = {room_of(module) for module in MODULES if module} - set(ALLOWED)
    for module in ROOMED:
        assert not {room_of(name) for name in inside_package(MODULES[module])} & joining, module


def test_modules_can_be_read_in_one_sitting():
    lengths = {m: len(p.read_text(encoding="utf-8").splitlines()) for m, p in MODULES.items()}
    assert {m: length for m, length in lengths.items() if length > MOST_LINES} == {}


def test_modules_say_what_they_are_for():
    written = [m for m, path in MODULES.items() if path.stat().st_size]
    assert [m for m in written if not ast.get_docstring(parsed(MODULES[m]))] == []

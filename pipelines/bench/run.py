"""Measure everything and write it into the README of this folder.

    pip install -e '.[bench]'
    python pipelines/bench/run.py                  all but streamed; about 15 minutes
    python pipelines/bench/run.py --only kernels   one section
    python pipelines/bench/run.py --only engine --before CHECKOUT
    python pipelines/bench/run.py --only streamed --stores DIRECTORY   15 GB, 10 minutes

The two sides of a ratio are measured in turns and their medians compared, because machines are
noisy. Nothing else should run meanwhile.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import engine
import kernels
import peers
import report
import scale
from measuring import Row


def measure_kernels(directory: Path, options: argparse.Namespace) -> list[Row]:
    found = kernels.everything(directory)
    report.draw_kernels(found)
    return kernels.rows(found)


def measure_errors(directory: Path, options: argparse.Namespace) -> list[Row]:
    plain = kernels.measured(directory, kernels.CUBE, kernels.CUBE_RANKS, kernels.CUBE_ENTRIES)
    courses = peers.everything()
    report.draw_courses(courses)
    return peers.rows(courses, plain.plain)


SECTIONS = {
    "kernels": measure_kernels,
    "engine": lambda directory, options: engine.rows(directory, options.before),
    "errors": measure_errors,
    "rounds": lambda directory, options: scale.rounds(directory),
    "workers": lambda directory, options: scale.workers(directory),
    "growth": lambda directory, options: scale.growth(directory),
    "streamed": lambda directory, options: scale.streamed(directory, options.entries),
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure, and write it into the README.")
    parser.add_argument("--only", choices=SECTIONS, help="one of the sections")
    parser.add_argument("--stores", type=Path, help="where stores are made, and kept")
    parser.add_argument("--before", type=Path, help="a checkout of a version to compare with")
    parser.add_argument(
        "--entries", type=int, default=100_000_000, help="that are streamed (default 100,000,000)"
    )
    options = parser.parse_args()
    if options.only is None:
        for section in SECTIONS:
            if section != "streamed":
                print(f"measuring {section}", flush=True)
                # Each in a process of its own, so that memory and threads are its own.
                subprocess.run([sys.executable, *sys.argv, "--only", section], check=True)
        return
    with tempfile.TemporaryDirectory() as name:
        found = SECTIONS[options.only](options.stores or Path(name), options)
    report.write_table(options.only, found)


if __name__ == "__main__":
    main()

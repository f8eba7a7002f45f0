"""Measure everything and write it into the README beside this file.

    pip install -e '.[bench]'
    python pipelines/bench/run.py                    all but the largest stores; about 15 minutes
    python pipelines/bench/run.py --only kernels     one section: kernels, tiles, engine, …
    python pipelines/bench/run.py --stores DIRECTORY --entries 100000000     with 15 GB there

The two sides of a ratio are measured in turns and their medians compared, because machines are
noisy. Nothing else should run meanwhile.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from measuring import Row
from threadpoolctl import threadpool_limits

SECTIONS = ("kernels", "tiles", "engine", "errors", "scale")


def measure_kernels(directory: Path) -> None:
    import kernels
    import report

    with threadpool_limits(limits=1, user_api="blas"):
        found = kernels.everything(directory)
        report.write_table("kernels", kernels.rows(found))
    report.draw_kernels(found)


def measure_tiles(directory: Path) -> None:
    import report
    import tiles

    with threadpool_limits(limits=1, user_api="blas"):
        report.write_table("tiles", tiles.rows(directory))


def measure_engine(directory: Path) -> None:
    import engine
    import report

    with threadpool_limits(limits=1, user_api="blas"):
        report.write_table("engine", engine.rows(directory))


def measure_errors(directory: Path) -> None:
    import kernels
    import peers
    import report

    with threadpool_limits(limits=1, user_api="blas"):
        plain = kernels.measured(directory, kernels.CUBE, kernels.CUBE_RANKS, kernels.CUBE_ENTRIES)
    courses = peers.everything()
    report.write_table("errors", peers.rows(courses, plain.plain))
    report.draw_courses(courses)


def measure_scale(directory: Path, entries: int) -> None:
    import report

    script = Path(__file__).with_name("scale.py")
    command = [sys.executable, str(script), str(directory), "--entries", str(entries)]
    said = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    lines = [line.strip("| ").split(" | ") for line in said.splitlines() if line.startswith("| ")]
    report.write_table("scale", [Row(what, measured, "") for what, measured in lines])


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure, and write it into the README.")
    parser.add_argument("--only", choices=SECTIONS, help="one of the sections")
    parser.add_argument("--stores", type=Path, help="where large stores are made, and kept")
    parser.add_argument(
        "--entries", type=int, default=10_000_000, help="of the largest store (default 10,000,000)"
    )
    options = parser.parse_args()
    if options.only is None:
        for section in SECTIONS:
            print(f"measuring {section}", flush=True)
            # Each in a process of its own, so that none finds another's memory or threads.
            subprocess.run([sys.executable, *sys.argv, "--only", section], check=True)
        return
    with tempfile.TemporaryDirectory() as name:
        directory = options.stores or Path(name)
        if options.only == "scale":
            measure_scale(directory, options.entries)
        else:
            measures = {
                "kernels": measure_kernels, "tiles": measure_tiles, "engine": measure_engine,
                "errors": measure_errors,
            }  # fmt: skip
            measures[options.only](Path(name))


if __name__ == "__main__":
    main()

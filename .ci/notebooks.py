"""Run all notebooks from top to bottom, in kernels of their own, as a reader would.

    python .ci/notebooks.py [NAME …]

Any error in a cell, failed assertions included, ends with exit code 1 and the cell. Nothing is
written: the notebooks in the folder stay without outputs, and no files may appear beside them.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

FOLDER = Path(__file__).parents[1] / "notebooks"
SECONDS_FOR_A_CELL = 240


def run(path: Path) -> str | None:
    """What went wrong, if anything did."""
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook,
        timeout=SECONDS_FOR_A_CELL,
        kernel_name="python3",
        resources={"metadata": {"path": str(path.parent)}},
    )
    try:
        client.execute()
    except (CellExecutionError, CellTimeoutError, DeadKernelError) as error:
        return str(error)
    return None


def files() -> dict[Path, int]:
    """All that is in the folder, and when it was last changed."""
    return {path: path.stat().st_mtime_ns for path in FOLDER.rglob("*")}


def main(names: list[str]) -> int:
    paths = sorted(FOLDER.glob("*.ipynb"))
    if names:
        paths = [path for path in paths if path.stem in names or path.name in names]
    if not paths:
        print(f"there is no notebook {' or '.join(names)} in {FOLDER}", file=sys.stderr)
        return 1
    before, failed = files(), False
    for path in paths:
        began = time.monotonic()
        problem = run(path)
        print(f"{path.name}: {'failed' if problem else 'ran'}, {time.monotonic() - began:.0f} s")
        if problem:
            print(problem, file=sys.stderr)
            failed = True
    if files() != before:
        print(f"{FOLDER} has changed; notebooks must write elsewhere", file=sys.stderr)
        failed = True
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

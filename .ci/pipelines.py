"""Run every pipeline at its small size: it must end, leave its pictures, and beat the mean.

    python .ci/pipelines.py

One process runs them one after the other, which saves importing and compiling for each.
"""

from __future__ import annotations

import contextlib
import io
import re
import runpy
import sys
import tempfile
import time
from pathlib import Path

PIPELINES = Path(__file__).parent.parent / "pipelines"
RMSE = re.compile(r"test RMSE +([\d.e+-]+) \(predicting the mean: ([\d.e+-]+)\)")
# How much of the mean's error may be left, and which pictures there are.
EXPECTED = {
    "toy/run.py": (0.7, ["toy-nonnegative", "toy-nonnegative-slice", "toy-hankel",
                         "toy-hankel-slice", "toy-waves", "toy-waves-slice"]),
    "hyperspectral/run.py": (0.5, ["hyperspectral-band", "hyperspectral-spectra",
                                   "hyperspectral-convergence"]),
    "video/run.py": (0.6, ["video-frames", "video-convergence"]),
    "ratings/run.py": (0.9, ["ratings-predictions", "ratings-convergence"]),
    "series/series.py": (0.2, ["series-filled", "series-convergence"]),
    "series/image.py": (0.3, ["image-filled", "image-convergence"]),
    "series/traffic.py": (0.5, ["traffic-filled", "traffic-convergence"]),
}  # fmt: skip


def problems(script: str, output: Path, printed: str) -> list[str]:
    """What is wrong with what a pipeline left behind."""
    most, pictures = EXPECTED[script]
    found = []
    for name in pictures:
        picture = output / f"{name}.png"
        if not picture.exists() or not picture.read_bytes().startswith(b"\x89PNG"):
            found.append(f"there is no picture {picture.name}")
    scores = [(float(ours), float(mean)) for ours, mean in RMSE.findall(printed)]
    if not scores:
        found.append("no test RMSE was printed")
    found += [f"RMSE {a:g}, the mean has {b:g}" for a, b in scores if not a < most * b]
    return found


def checked(script: str, output: Path) -> bool:
    """Run one pipeline and tell of it in one line."""
    printed, began = io.StringIO(), time.perf_counter()
    with contextlib.redirect_stdout(printed):
        main = runpy.run_path(str(PIPELINES / script))["main"]
        main(["--small", "--quiet", "--output", str(output)])
    seconds, text = time.perf_counter() - began, printed.getvalue()
    wrong = problems(script, output, text)
    scores = ", ".join(f"RMSE {ours} against {mean}" for ours, mean in RMSE.findall(text))
    print(f"{'wrong' if wrong else 'ok':6}{script:22}{seconds:5.1f} s  {scores}", flush=True)
    for problem in wrong:
        print(f"      {problem}")
    if wrong:
        print(text)
    return not wrong


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        results = [checked(script, Path(directory) / script) for script in EXPECTED]
    sys.exit(not all(results))


if __name__ == "__main__":
    main()

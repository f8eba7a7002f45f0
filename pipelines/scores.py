"""How good an answer is: a table, and a sentence where a simple guess would have been better.

This changes when all pipelines are to tell something else of their answers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import dask.array as da
import numpy as np

import slrt_dask as slrt
from slrt_dask.show.text import searched

if TYPE_CHECKING:
    from shared import Fitted

THE_MEAN = "mean"
WIDTH = 24
"""Of the names in a table."""


def report(
    fitted: Fitted,
    *,
    top: float | None = None,
    more: Sequence[tuple[str, str]] = (),
    guesses: Mapping[str, float] = MappingProxyType({}),
) -> None:
    """Print how good the answer is, and what it took.

    top : the peak, for the PSNR;  more : rows for the table
    guesses : errors of simple predictions of the same entries, besides that of the mean
    """
    done, train = fitted.done, fitted.train
    weights = ", ".join(f"{weight:.4g}" for weight in done.lambdas)
    scores = None if fitted.test is None else slrt.evaluate(done, fitted.test, peak=top)
    of_the_mean = _error_of_the_mean(fitted)
    table([
        ("tensor", " × ".join(map(str, train.shape))),
        ("observed", f"{train.nnz:,} entries, {100 * train.nnz / np.prod(train.shape):.3g} %"),
        *([("search", done.records[0].event)] if searched(done) else []),
        ("settings", f"ranks {done.ranks}, C = {done.C:.4g}, λ = ({weights}), {_centring(done)}"),
        *([] if scores is None else _rows(scores, of_the_mean, top)),
        *((name, f"RMSE {error:.5g}") for name, error in guesses.items()),
        *more,
        ("certificate", f"relative gap {done.certificate.relative_gap:.2g}"),
        ("stop", done.stop_reason.value),
        ("effort", _effort(fitted)),
    ])  # fmt: skip
    if scores is not None:
        _advise(fitted, scores.rmse, {THE_MEAN: of_the_mean, **guesses})


def compare(
    fitted: Fitted,
    truth: np.ndarray,
    hidden: np.ndarray,
    answers: dict[str, np.ndarray],
    top: float | None = None,
) -> None:
    """Print how far answers are from the truth where it was hidden; the first one is the fit's."""
    wanted = truth[hidden]

    def error(answer: Any) -> float:
        return float(np.sqrt(np.mean((answer - wanted) ** 2)))

    errors = {name: error(answer[hidden]) for name, answer in answers.items()}
    of_the_mean, (ours, *others) = error(np.nanmean(truth[~hidden])), errors
    print()
    table([("test RMSE", _judged(errors[ours], of_the_mean))])
    for name, found in errors.items():
        quality = "" if top is None else f", PSNR {20 * np.log10(top / found):.2f} dB"
        relative = found / error(np.zeros(())) if wanted.any() else np.inf
        table([(name, f"RMSE {found:.5g}, relative error {relative:.4f}{quality}")])
    guesses = {name: errors[name] for name in others}
    _advise(fitted, errors[ours], {THE_MEAN: of_the_mean, **guesses})


def table(rows: Sequence[tuple[str, str]]) -> None:
    for name, text in rows:
        print(f"{name:{WIDTH}}{text}")


def _rows(scores: slrt.Scores, of_the_mean: float, top: float | None) -> list[tuple[str, str]]:
    part = "" if top is None else f", {scores.rmse / top:.5f} of the peak {top:g}"
    return [
        ("held out", f"{scores.count:,} entries"),
        ("test RMSE", _judged(scores.rmse, of_the_mean) + part),
        *([] if top is None else [("PSNR", f"{scores.psnr:.2f} dB")]),
        ("relative error", f"{scores.relative_error:.4f}"),
    ]


def _judged(error: float, of_the_mean: float) -> str:
    return f"{error:.5g} (predicting the mean: {of_the_mean:.5g})"


def _error_of_the_mean(fitted: Fitted) -> float:
    if fitted.test is None:
        return float("inf")
    return float(da.sqrt(da.mean((fitted.test.values() - fitted.train.mean) ** 2)).compute())


def _centring(done: slrt.Completion) -> str:
    if any(effects.any() for effects in done.effects):
        return "with offsets per mode"
    return "centred on the mean" if done.header.offset else "not centred"


def _effort(fitted: Fitted) -> str:
    """Of the fit, and of the search before it."""
    records = fitted.done.records
    count, sweeps = records[-1].iteration, sum(row.sweeps for row in records)
    fit = f"{count} iteration{'s' * (count != 1)}, {sweeps} sweeps"
    if not fitted.trials:
        return f"{fit}, {fitted.seconds:.1f} s"
    searching = sum(tried.seconds for tried in fitted.trials)
    return f"a search of {searching:.1f} s, then {fit}; {fitted.seconds:.1f} s in all"


def _advise(fitted: Fitted, ours: float, guesses: Mapping[str, float]) -> None:
    """Say so if a simple guess is nearer to the truth than the fit, and what to try."""
    name, least = min(guesses.items(), key=lambda guess: guess[1])
    if not least < ours:
        return
    guess = f"the {name}" if name.startswith(THE_MEAN) else name
    if fitted.interrupted:
        remedy = "The fit was interrupted; let it go on for longer."
    elif fitted.done.header.dense:  # of Hankel structure, for which a search seldom does better
        remedy = "Other --ranks or another --C may suit these data better."
    elif fitted.trials:
        remedy = "A search found no settings that do better; more observations might."
    else:
        remedy = "The settings do not suit these data; try --auto, which searches for others."
    print(f"\nNearer to the truth is {guess}: RMSE {least:.4g} against {ours:.4g}. {remedy}\n")

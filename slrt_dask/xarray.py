"""Completion from xarray: `import slrt_dask.xarray` gives every DataArray an accessor `.slrt`.

    filled = array.slrt.complete(ranks=(5, 5, 5), C=10.0)

xarray has to be imported for this, so that `import slrt_dask` alone does not do it. This changes
when what is asked of xarray's arrays does.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from slrt_dask.data.libraries import load
from slrt_dask.errors import InvalidInput

if TYPE_CHECKING:
    import distributed

    from slrt_dask.combining import Constraint
    from slrt_dask.completion import Completion
    from slrt_dask.data.holding_out import KindLike
    from slrt_dask.data.store import ObservationStore
    from slrt_dask.losses import Huber
    from slrt_dask.optim.records import Observer

xarray = load("xarray", extra="xarray")


@xarray.register_dataarray_accessor("slrt")
class CompletionAccessor:
    """`array.slrt`: what is missing from an array (NaN) is filled in."""

    def __init__(self, array: Any) -> None:
        self._array = array

    def complete(
        self,
        ranks: tuple[int, ...] | str = "auto",
        *,
        keep_observed: bool = True,
        weights: Any = None,
        constraint: Constraint | Sequence[Constraint] | None = None,
        C: float | str = "auto",
        lambdas: tuple[float, ...] | None = None,
        method: str = "auto",
        inner: str = "joint",
        loss: Huber | None = None,
        center: bool | str | None = None,
        gap_tolerance: float = 1e-3,
        gradient_tolerance: float = 1e-6,
        max_iterations: int = 200,
        max_seconds: float | None = None,
        validation: ObservationStore | None = None,
        patience: int | None = None,
        held_out: KindLike = "auto",
        run_directory: str | os.PathLike[str] | None = None,
        client: distributed.Client | None = None,
        memory_limit: int | str | None = None,
        threads: int | None = None,
        precision: str = "float64",
        seed: int = 0,
        checkpoint_every: int | str = 1,
        observers: Sequence[Observer[Any]] | None = (),
        max_ranks: tuple[int, ...] | int | None = None,
    ) -> Any:
        """The array with its missing entries filled in, and the certificate in its attributes.

        keep_observed : leave observed entries as they are; False gives the model's values there
            too, which are smoother than noisy observations

        All else is as in `slrt_dask.complete`. The answer is lazy if the array is.
        """
        from slrt_dask.fit import complete

        done = complete(
            self._array,
            ranks,
            weights=weights,
            constraint=constraint,
            C=C,
            lambdas=lambdas,
            method=method,
            inner=inner,
            loss=loss,
            center=center,
            gap_tolerance=gap_tolerance,
            gradient_tolerance=gradient_tolerance,
            max_iterations=max_iterations,
            max_seconds=max_seconds,
            validation=validation,
            patience=patience,
            held_out=held_out,
            run_directory=run_directory,
            client=client,
            memory_limit=memory_limit,
            threads=threads,
            precision=precision,
            seed=seed,
            checkpoint_every=checkpoint_every,
            observers=observers,
            max_ranks=max_ranks,
        )
        return self.filled_by(done, keep_observed=keep_observed)

    def filled_by(self, done: Completion, *, keep_observed: bool = True) -> Any:
        """The array with its missing entries taken from a completion of the same shape.

        Names, coordinates, attributes and the type of the numbers are the array's; attributes
        that begin with `slrt_` tell of the completion. The answer is lazy if the array is.
        """
        array = self._array
        if tuple(array.shape) != done.shape:
            raise InvalidInput(
                f"the array has shape {tuple(array.shape)}, the completion {done.shape}; they must "
                "agree"
            )
        model = done.to_dask()
        values = model.compute() if array.chunks is None else model.rechunk(array.chunks)
        if array.dtype.kind == "f":
            values = values.astype(array.dtype)
        filled = array.copy(data=values)
        if keep_observed:
            filled = array.where(array.notnull(), filled)
        filled.attrs = {**array.attrs, **done.header.described()}
        return filled

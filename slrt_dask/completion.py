"""The answer of a fit: a tensor that can be asked for any of its entries, and its certificate.

A completion lives in a directory: the factors, the dual entries in the layout of a store, and the
fibre sums of the slab mode. Entries are computed from these when they are asked for, a slab at a
time, as dask tasks; the whole tensor is never formed unless the caller does it.
"""

from __future__ import annotations

import functools
import shlex
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from dask.base import tokenize
from numpy.typing import ArrayLike, NDArray

from slrt_dask import completed_chunks, model_files, model_reads
from slrt_dask.combining import constraints_of
from slrt_dask.data.ingest import Progress
from slrt_dask.data.libraries import load
from slrt_dask.data.location import StorePath, exists, normal_path
from slrt_dask.dual.certificate import Certificate
from slrt_dask.dual.offsets import Offset
from slrt_dask.enforcing import Enforced
from slrt_dask.errors import InvalidInput, StoreCorrupt, StoreNotFound
from slrt_dask.exporting import write_dense, write_labelled
from slrt_dask.kernels.simd import padded_width
from slrt_dask.losses import Huber
from slrt_dask.model_files import ModelHeader
from slrt_dask.optim.records import IterationRecord
from slrt_dask.optim.stopping import StopReason
from slrt_dask.queries import checked_places, predicted
from slrt_dask.runs import COMPLETION, SEARCHING, SETTINGS
from slrt_dask.temporary import TemporaryPlace
from slrt_dask.tuning.journal import ASKED, what_goes_on


@dataclass(frozen=True, repr=False, eq=False)
class Completion:
    """A completed tensor: W = offset + Σ_k λ_k Z ×_k U_kU_kᵀ.

    Without a constraint, an entry none of whose fibres was observed is predicted as the offset: 0,
    or the mean when the fit was centred, with the `effects` of its indices if there are any.
    `factors` are the K matrices U_k (n_k, r_k), `path` is
    where it is kept. Printed, it says what was fitted, its certificate, and why the fit stopped.
    """

    path: str
    header: ModelHeader
    factors: tuple[NDArray[np.float64], ...]
    _held: TemporaryPlace | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        forgetting = weakref.finalize(self, model_reads.forget, self.path, self.header.digest)
        forgetting.atexit = False

    @property
    def shape(self) -> tuple[int, ...]:
        """Lengths of the modes."""
        return self.header.shape

    @property
    def ranks(self) -> tuple[int, ...]:
        """Columns of the factors, those that were found where ranks were searched for."""
        return tuple(factor.shape[1] for factor in self.factors)

    @property
    def lambdas(self) -> tuple[float, ...]:
        """Weights of the modes, as given or found."""
        return self.header.lambdas

    @property
    def C(self) -> float:
        """Weight of the misfit, as given or found."""
        return self.header.cost_weight

    @functools.cached_property
    def effects(self) -> tuple[NDArray[np.float64], ...]:
        """The offsets of a fit with `center="modes"`, K arrays (n_k,); none of any other.

        They are part of what is predicted: `header.offset` plus one of them per mode.
        """
        return self.offset.effects

    @functools.cached_property
    def offset(self) -> Offset:
        """What was subtracted from the observations, and is part of every prediction."""
        return model_files.read_offset(self.path, self.header)

    @property
    def loss(self) -> Huber | None:
        """What misfits cost, delta being a number; None for their squares."""
        return None if self.header.huber is None else Huber(self.header.huber)

    @property
    def records(self) -> tuple[IterationRecord, ...]:
        """One row per iteration of the fit."""
        return self.header.records

    @property
    def stop_reason(self) -> StopReason:
        """Why the fit ended; its `value` is a sentence."""
        return self.header.stop_reason

    @property
    def certificate(self) -> Certificate:
        """How far from the global optimum of the convex problem the answer can be."""
        return self.header.certificate

    def predict(self, indices: ArrayLike | Sequence[ArrayLike]) -> NDArray[np.float64]:
        """Values at an index set: a (K, m) array or K arrays; returns (m,).

        Runs on the current dask scheduler: threads, or the active client's workers.
        """
        places = checked_places(indices, self.shape)
        if self.header.dense:
            return model_reads.dense_values(self.path, places)
        return predicted(self.path, self.header, places)

    def support(self, indices: ArrayLike | Sequence[ArrayLike]) -> NDArray[np.int64]:
        """How many observations there are in the fibres through some places, per mode.

        indices : as in `predict`; returns (K, m). A prediction is only as good as what is near it:
        where all are 0 it is the offset of the fit, but for what a constraint adds to it.
        """
        from slrt_dask.support import supported

        return supported(self.path, self.header, checked_places(indices, self.shape))

    def rests_on_nothing(self, indices: ArrayLike | Sequence[ArrayLike]) -> NDArray[np.bool_]:
        """Which of some places, (m,), nothing was observed about.

        In every mode the fibre through them has no observation, or their whole slice has none, so
        that its factor knows nothing of it. They are predicted as the offset of the fit, but for
        what a constraint adds to it.
        """
        from slrt_dask.support import rests_on_nothing

        places = checked_places(indices, self.shape)
        return rests_on_nothing(self.path, self.header, places, self.support(places))

    def support_map(self, mode: int, chunks: tuple[int, ...] | None = None) -> Any:
        """Observations in the fibres of one mode for the whole tensor, as a lazy dask array."""
        from slrt_dask.support import check_support

        check_support(self.header)
        if not 0 <= mode < len(self.shape):
            raise InvalidInput(f"mode is {mode}; give one from 0 to {len(self.shape) - 1}")
        sizes = self._sizes(chunks, of_sums=False)
        return self._lazy(
            completed_chunks.support_task, sizes, digest=self.header.digest, mode=mode
        )

    def to_dask(self, chunks: tuple[int, ...] | None = None, *, enforce: bool = False) -> Any:
        """The whole tensor as a lazy dask array of shape `shape`.

        enforce : clip what misses the fit's bounds, so that they hold to the last bit, and
            change the entries of a linear constraint's rows so that these hold to rounding
        """
        sizes = self._sizes(chunks, of_sums=not self.header.dense)
        if self.header.dense:
            if enforce and constraints_of(self.header.constraint).bounds is None:
                raise InvalidInput(
                    "there is nothing to enforce: a Hankel fit has no other constraint"
                )
            # Bounds hold as it is stored.
            return self._lazy(model_reads.read_tensor, sizes)
        enforced = Enforced.of(self.header) if enforce else None
        return self._lazy(
            completed_chunks.chunk_task, sizes, digest=self.header.digest, enforced=enforced
        )

    def _lazy(self, task: Callable[..., Any], sizes: tuple[int, ...], **given: Any) -> Any:
        """The tensor as the dask array whose blocks `task` makes."""
        # It takes a second, which a command or a worker that makes no array need not spend.
        import dask.array as da

        grid = da.core.normalize_chunks(sizes, shape=self.shape)
        mode = given.get("mode")
        token = tokenize(self.path, self.header.digest, grid, given.get("enforced") is not None)
        kind = np.float64 if mode is None else np.int64
        name = f"slrt-complete-{token}" if mode is None else f"slrt-support-{mode}-{token}"
        return da.map_blocks(
            task,
            path=self.path,
            held=self._held,  # as long as there is the array there is what it is computed from
            chunks=grid,
            dtype=kind,
            meta=np.zeros((0,) * len(self.shape), dtype=kind),
            name=name,
            **given,
        )

    def to_zarr(
        self,
        path: StorePath,
        *,
        chunks: tuple[int, ...] | None = None,
        enforce: bool = False,
        coordinates: bool = False,
        progress: Progress | None = None,
    ) -> Any:
        """Write the whole tensor to a new zarr array, chunk by chunk; returns the array.

        enforce : as in `to_dask`
        coordinates : write a group that `xarray.open_zarr` opens instead, in which the array has
            its coordinates; without them it has the names of the input's dimensions
        progress : called with ("write", chunks written, chunks in all)
        """
        place = normal_path(path)
        if coordinates:
            return write_labelled(place, self.to_xarray(chunks, enforce=enforce), progress)
        return write_dense(place, self.to_dask(chunks, enforce=enforce), self.header, progress)

    def to_xarray(self, chunks: tuple[int, ...] | None = None, *, enforce: bool = False) -> Any:
        """The whole tensor as a lazy xarray.DataArray, described as the input was.

        Names, coordinates and attributes are the input's, as far as the store kept them; attributes
        that begin with `slrt_` tell of the completion (`slrt_relative_gap`, …).
        chunks, enforce : as in `to_dask`
        """
        xarray = load("xarray", extra="xarray")
        about = self.header.about
        return xarray.DataArray(
            self.to_dask(chunks, enforce=enforce),
            dims=self.header.names,
            coords=self.header.labels,
            name=about["name"] or "completion",
            attrs={**about["attributes"], **self.header.described()},
        )

    def save(self, path: StorePath) -> Completion:
        """Write a copy that stands on its own to a new path; returns it, opened."""
        model_files.copy_model(self.path, normal_path(path))
        return load_completion(path)

    def stays_within(self, place: TemporaryPlace) -> None:
        """Have a place stay as long as this, if this is in it."""
        if self._held is not None and self.path.startswith(f"{place.path}/"):
            self._held.stays_within(place)

    def __repr__(self) -> str:
        from slrt_dask.show.text import completion_text

        return completion_text(self)

    def _repr_html_(self) -> str:
        from slrt_dask.show.html import completion_html

        return completion_html(self)

    def _sizes(self, chunks: tuple[int, ...] | None, *, of_sums: bool) -> tuple[int, ...]:
        """Those asked for, or default ones; of_sums : whether chunks are made from fibre sums."""
        slab = self.header.slab_mode
        width = padded_width(self.ranks[slab]) if of_sums else None
        sizes = completed_chunks.chunk_sizes(self.shape, slab, width) if chunks is None else chunks
        if len(sizes) != len(self.shape) or any(size < 1 for size in sizes):
            raise InvalidInput(f"chunks must be {len(self.shape)} positive numbers, not {sizes}")
        return sizes


def load_completion(path: StorePath) -> Completion:
    """Open the completion at a path, or that of the run in a directory.

    path : what `save` was given, or a run directory whose fit has ended
    Anything unfinished, torn or altered is refused.
    """
    place = normal_path(path)
    if exists(f"{place}/{SETTINGS}"):
        _refuse_without_result(place)
    elif exists(f"{place}/{SEARCHING}/{ASKED}"):
        raise StoreNotFound(
            f"{place} is still in its search for settings, and has no completion: it is under way, "
            f"or was stopped; {what_goes_on(Path(place, SEARCHING))} goes on with it."
        )
    if exists(f"{place}/{COMPLETION}"):
        place = f"{place}/{COMPLETION}"
    elif not exists(f"{place}/zarr.json"):
        raise StoreNotFound(f"there is no run or completion at {place}; check the path.")
    header = model_files.read_model_header(place)
    return Completion(place, header, model_files.read_factors(place, header))


def _refuse_without_result(run: str) -> None:
    goes_on = f"slrt-dask resume {shlex.quote(run)} goes on with it"
    if not exists(f"{run}/{COMPLETION}"):
        raise StoreNotFound(
            f"the run in {run} has no completion: it is under way, or was stopped before it had a "
            f"result; {goes_on}."
        )
    if model_files.is_unfinished(f"{run}/{COMPLETION}"):
        raise StoreCorrupt(
            f"the run in {run} has half a completion: it is being written, or was stopped in "
            f"that; {goes_on}."
        )

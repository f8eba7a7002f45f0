"""The dual problem of Hankel completion.

    g(U) = max_S ⟨H*(S), Y⟩ − ‖H*(S)‖²/(4C) − δ/2 ‖S‖² − Σ_k λ_k/2 ‖U_kᵀ S_{2k}‖²

subject to H*(S) = 0 where nothing was observed. Its primal lets the parts V^k of the embedded
tensor miss the Hankel tensor H(W) at a price of 1/(2δ) a square; δ = 0 is the exact constraint. For
given factors S = M⁻¹ H(W), so the completed tensor W, which is small, stands for S everywhere.
Bounds on W only bound the variables of the inner problem.
"""

from __future__ import annotations

import math
from typing import Any, TypeVar

from slrt_dask.data.holding_out import Kind, SquaredErrors
from slrt_dask.data.store import ObservationStore
from slrt_dask.dual.certificate import Certificate, captured, nuclear_norm
from slrt_dask.dual.entries import EntryModel
from slrt_dask.dual.feasible import Correction
from slrt_dask.dual.hankel.answers import HankelValidationErrors, WithTensor, WriteTensor
from slrt_dask.dual.hankel.certificate import HankelBounds, HankelProducts, MeasureHankel
from slrt_dask.dual.hankel.embedded import EmbeddedStore
from slrt_dask.dual.hankel.embedding import Embedding
from slrt_dask.dual.hankel.inner import HankelOutcome, HankelSolve, Setting
from slrt_dask.dual.hankel.observed import Box, Tensor
from slrt_dask.dual.hankel.sums import (
    HankelDerivativeRowSums,
    HankelRightHandSide,
    HankelRowSums,
)
from slrt_dask.dual.lanczos import Spectrum, TopEigenvalues
from slrt_dask.dual.problem import (
    CERTIFICATE_SECONDS,
    Evaluation,
    InnerSummary,
    check_settings,
    checked_norm,
)
from slrt_dask.dual.solve import TimeLimit
from slrt_dask.dual.sums import ObservationSize
from slrt_dask.engine.base import Engine, VectorHandle
from slrt_dask.errors import InvalidInput
from slrt_dask.optim.manifold import Point, SpectrahedronProduct

Value = TypeVar("Value")
STAGE_LOOSENESS = 1e4
CLOSE = 1e-3
"""A relative deviation from Hankel that needs no further stages."""


class HankelProblem:
    """g on the product of spectrahedra, for an engine that holds an embedded store.

    deviation : δ, at the last of the stages
    stages : larger values of it that lead there, the first one first; the last may not be reached
        when the parts come close enough to a Hankel tensor before
    offset : what was subtracted from the observations
    box : bounds on W, in the units of the data
    """

    def __init__(
        self,
        engine: Engine,
        ranks: tuple[int, ...],
        *,
        cost_weight: float,
        weights: tuple[float, ...],
        deviation: float,
        stages: tuple[float, ...] = (),
        offset: float = 0.0,
        box: Box | None = None,
        certificate_rtol: float = 1e-5,
        max_inner_iterations: int = 1000,
    ) -> None:
        assert isinstance(engine.store, EmbeddedStore)
        self._store = engine.store
        window = Embedding(self._store.shape, self._store.tau).window
        check_settings(window, ranks, cost_weight, weights)
        if not (math.isfinite(deviation) and deviation >= 0.0):
            raise InvalidInput(f"the deviation is {deviation}; give a number, at least 0")
        self.engine = engine
        self.cost_weight = cost_weight
        self.weights = weights
        self._stages = (*stages, deviation)
        self.deviation = self._stages[0]
        self._close = self._final = False
        self._before = self.progress()
        self.sweeps = 0
        self._offset, self._box = offset, box
        self._max_inner_iterations = max_inner_iterations
        self._manifold = SpectrahedronProduct(tuple(zip(window, ranks, strict=True)))
        self._certificate_rtol = certificate_rtol
        self._eigenvalues = TopEigenvalues()
        squares, *_ = engine.run(ObservationSize(EntryModel(cost_weight)))
        checked_norm(math.sqrt(squares))

    @property
    def manifold(self) -> SpectrahedronProduct:
        return self._manifold

    def reshape(self, ranks: tuple[int, ...]) -> None:
        self._manifold = self._manifold.with_ranks(ranks)

    @property
    def spectra(self) -> tuple[Spectrum, ...]:
        return self._eigenvalues.seen

    def evaluate(self, point: Point, *, rtol: float, warm: Evaluation | None) -> Evaluation:
        """Solve for W at a point to a relative residual, from the tensor of `warm`."""
        setting, solution = self._setting(point), self.engine.new_vector()
        start = None if warm is None else warm.dual.name
        outcome = self._solved(
            HankelSolve(
                setting,
                solution.name,
                start,
                rtol,
                self._max_inner_iterations,
                seconds=self.engine.seconds_left,
            )
        )
        inner = InnerSummary(outcome.iterations, outcome.residual, outcome.converged)
        return Evaluation(point, outcome.cost, inner, solution)

    def renew(self, evaluation: Evaluation, *, rtol: float) -> Evaluation | None:
        return None

    def settle(self, evaluation: Evaluation, *, rtol: float) -> Evaluation:
        return evaluation

    @property
    def looseness(self) -> float:
        """Stages before the last one are solved less exactly; which that is, shows as they end."""
        last = self._final or self.deviation == self._stages[-1]
        return 1.0 if last else STAGE_LOOSENESS

    def next_stage(self) -> bool:
        if self.looseness == 1.0:
            return False
        self._before = self.progress()
        self._final = self._close
        if not self._final:
            self.deviation = max(value for value in self._stages if value < self.deviation)
        return True

    def stay(self) -> None:
        self.go_on(self._before, ())

    @property
    def notice(self) -> str:
        return ""

    @property
    def has_multipliers(self) -> bool:
        return False

    @property
    def kept_vectors(self) -> tuple[VectorHandle, ...]:
        return ()

    def progress(self) -> dict[str, Any]:
        return {"deviation": self.deviation, "final": float(self._final)}

    def go_on(self, progress: dict[str, Any], kept: tuple[VectorHandle, ...]) -> None:
        self.deviation, self._final = progress["deviation"], bool(progress["final"])

    def correction(self, evaluation: Evaluation) -> Correction | None:
        return None

    def gradient(self, evaluation: Evaluation) -> Point:
        """∇_k g = −λ_k S_{2k} (S_{2k}ᵀ U_k)."""
        totals = self.row_sums(evaluation.dual, evaluation.point)
        return tuple(-weight * total for weight, total in zip(self.weights, totals, strict=True))

    def hessian(self, evaluation: Evaluation, direction: Point, *, rtol: float) -> Point:
        """The derivative of the gradient along a direction; one more solve of the same system."""
        setting, along = self._setting(evaluation.point), self._turned(direction)
        target, moved = self.engine.new_vector(), self.engine.new_vector()
        at = evaluation.dual.name
        self.engine.run(HankelRightHandSide(setting, at, target.name, along))
        self._solved(
            HankelSolve(
                setting,
                moved.name,
                None,
                rtol,
                self._max_inner_iterations,
                target.name,
                at,
                self.engine.seconds_left,
            )
        )
        self.sweeps += 3
        totals = self.engine.run(HankelDerivativeRowSums(setting, at, moved.name, along))
        return self._weighted(totals)

    def row_sums(
        self,
        dual: VectorHandle | None,
        matrices: Point,
        at: Point | None = None,
        less: VectorHandle | None = None,
    ) -> Point:
        """S_{2k} (S_{2k}ᵀ F_k) for K matrices F_k; H(Y) takes the place of S if there is no dual.

        at : the factors with which S was made;  less : of what H is taken off S
        """
        self.sweeps += 1
        program = HankelRowSums(
            self._setting(matrices if at is None else at),
            None if dual is None else dual.name,
            None if less is None else less.name,
            self._turned(matrices),
        )
        return self._returned(self.engine.run(program))

    def observed_rows(self) -> None:
        """Windows overlap: that two of them meet is no accident, as it is for single entries."""
        return

    # ---- certificate and answer --------------------------------------------------------------

    def tensor(self, evaluation: Evaluation) -> Tensor:
        """W at a point; for tensors that the caller wants here."""
        program = WithTensor(self._setting(evaluation.point), evaluation.dual.name)
        tensor: Tensor = self.engine.run(program)
        return tensor

    def validation_errors(
        self, evaluation: Evaluation, validation: ObservationStore, kind: Kind
    ) -> SquaredErrors:
        """Of held-out observations; kind : what was held out."""
        setting = self._setting(evaluation.point)
        program = HankelValidationErrors(setting, evaluation.dual.name, validation, kind)
        errors: SquaredErrors = self.engine.run(program)
        return errors

    def write_tensor(self, evaluation: Evaluation, group: str) -> None:
        """Write W as an array of a group."""
        self.engine.run(WriteTensor(self._setting(evaluation.point), evaluation.dual.name, group))

    def certify(self, evaluation: Evaluation, *, rough: bool = False) -> Certificate:
        """Bounds on the distance to the optimum, right however loose the inner solve is."""
        point, less = evaluation.point, self.engine.new_vector()
        setting = self._setting(point)
        products = self.engine.run(MeasureHankel(setting, evaluation.dual.name, less.name))
        self.sweeps += 1
        primal = self._primal(setting, self.row_sums(evaluation.dual, point, point), products)
        row_sums = self.row_sums(evaluation.dual, point, point, less)
        energy = 0.5 * self.deviation * products.feasible_squares
        if products.curve is None:
            energy += products.z_dot_z / (4 * self.cost_weight)
        bounds = HankelBounds(
            primal, energy, products.overlap, captured(point, row_sums), self.weights,
            curve=products.curve,
        )  # fmt: skip
        lower, upper = self._eigenvalues.bounds(
            lambda matrices: self.row_sums(evaluation.dual, matrices, point, less),
            point,
            row_sums,
            lambda low, high: bounds.are_settled(low, high, self._certificate_rtol, rough),
            TimeLimit(self.engine.seconds_left + CERTIFICATE_SECONDS),
        )
        embedded = products.embedded
        relative = math.sqrt(products.deviation / embedded) if embedded > 0.0 else 0.0
        self._close = relative <= CLOSE
        return bounds.certificate(lower, upper, relative)

    def _primal(self, setting: Setting, row_sums: Point, products: HankelProducts) -> float:
        """P at W and the parts V^k; with δ = 0 what they lack of H(W) is added to one of them."""
        point = self._returned(setting.factors)
        norms = [
            weight * nuclear_norm(factor, totals)
            for factor, totals, weight in zip(point, row_sums, self.weights, strict=True)
        ]
        primal = self.cost_weight * products.misfit
        primal += sum(n**2 / (2 * weight) for n, weight in zip(norms, self.weights, strict=True))
        if self.deviation > 0.0:
            return primal + 0.5 * self.deviation * products.squares
        left = setting.model.deviation * math.sqrt(products.squares)
        return primal + min(
            ((norm + math.sqrt(len(factor)) * left) ** 2 - norm**2) / (2 * weight)
            for norm, factor, weight in zip(norms, point, self.weights, strict=True)
        )

    def _setting(self, point: Point) -> Setting:
        return Setting(
            self._store,
            self._turned(point),
            self._turned(self.weights),
            2.0 * self.cost_weight,
            self.deviation,
            self._offset,
            self._box,
        )

    def _solved(self, program: HankelSolve) -> HankelOutcome:
        outcome: HankelOutcome = self.engine.run(program)
        self.sweeps += outcome.sweeps
        return outcome

    def _turned(self, of_modes: tuple[Value, ...]) -> tuple[Value, ...]:
        """What belongs to modes, in the order that the store has them in."""
        return tuple(of_modes[mode] for mode in self._store.mode_order)

    def _returned(self, of_modes: tuple[Value, ...]) -> tuple[Value, ...]:
        return tuple(of_modes[self._store.mode_order.index(mode)] for mode in range(len(of_modes)))

    def _weighted(self, totals: Point) -> Point:
        pairs = zip(self.weights, self._returned(totals), strict=True)
        return tuple(-weight * total for weight, total in pairs)

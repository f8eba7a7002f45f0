"""What a fit is doing, so that something can befall it just then."""

from __future__ import annotations

import sys
from collections import Counter

from slrt_dask.engine.local import LocalEngine

from slrt_dask.dual.problem import DualProblem
from slrt_dask.engine.cluster import ClusterEngine
from slrt_dask.engine.share import Share
from slrt_dask.optim.line_search import LineSearch

ON_SHARES = {
    "write_dual_files": "checkpoint",
    "partition_extents": "result",
    "slice_counts": "result",
    "read_dual_files": "going on",
    "read_places": "going on",
    "write_dual_partitions": "result",
}
PROGRAMS = {
    "number": "loading",
    "norm": "loading",
    "moments": "loading",
    "rows": "gradient",
    "solve": "inner solve",
    "write-sums": "result",
}
FILES = {"/checkpoints/": "checkpoint files", "/completion/": "result files"}
CHANGES = ("os.mkdir", "os.rename", "os.remove", "os.rmdir")


class Phases:
    """Calls `befall(engine)` in each phase in turn, at the step of a drawn number.

    A step is just before or after tasks are submitted, a round in this process, or a change of a
    file of the run.

    plan : (phase, number) in the order wanted; numbers count from what befell before
    """

    def __init__(self, monkeypatch, plan, befall):
        self.happened = []
        self._plan = list(plan)
        self._befall = befall
        self._within = []
        self._seen = Counter()
        for owner, name, phase in (
            (LineSearch, "search", lambda *_, **__: "line search"),
            (DualProblem, "certify", lambda *_, **__: "certificate"),
            (ClusterEngine, "run", lambda _, program: PROGRAMS[program.label]),
            (LocalEngine, "run", lambda _, program: PROGRAMS[program.label]),
            (ClusterEngine, "on_shares", lambda _, task, *__: ON_SHARES[task.__name__]),
            (LocalEngine, "on_shares", lambda _, task, *__: ON_SHARES[task.__name__]),
        ):
            monkeypatch.setattr(owner, name, self._entering(getattr(owner, name), phase))
        monkeypatch.setattr(ClusterEngine, "_submit", self._submitting(ClusterEngine._submit))
        monkeypatch.setattr(Share, "contribute", self._stepping(Share.contribute))

    def watch_files(self):
        """Have changes of files count too; for good, so in processes that are to be killed."""
        sys.addaudithook(self._on_event)

    def _on_event(self, event, arguments):
        if event in CHANGES or (event == "open" and set(str(arguments[1])) & set("wa+")):
            for part, phase in FILES.items():
                if part in str(arguments[0]):
                    self._step({phase}, None)

    def _entering(self, method, phase):
        def entered(*arguments, **options):
            self._within.append(phase(*arguments, **options))
            try:
                return method(*arguments, **options)
            finally:
                self._within.pop()

        return entered

    def _submitting(self, method):
        def counted(engine, label, *rest):
            if label == "unload":
                return method(engine, label, *rest)
            self._step({*self._within} or {"loading"}, engine)
            submitted = method(engine, label, *rest)
            self._step({*self._within} or {"loading"}, engine)
            return submitted

        return counted

    def _stepping(self, method):
        def stepped(share, *rest):
            self._step({*self._within}, share)
            return method(share, *rest)

        return stepped

    def _step(self, phases, engine):
        self._seen.update(phases)
        if self._plan and self._seen[self._plan[0][0]] >= self._plan[0][1]:
            self.happened.append(self._plan.pop(0)[0])
            self._befall(engine)
            self._seen.clear()

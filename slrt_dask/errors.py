"""Every error this package raises on purpose.

Each has one base, so that a caller can catch them all, and is also the builtin that a Python
programmer would expect. A message says what was wrong, which value it was, and what to do.
"""


class SlrtError(Exception):
    """Base of all errors raised deliberately by slrt-dask."""


class InvalidInput(SlrtError, ValueError):
    """Data or an argument that cannot be used."""


class NoWorkers(InvalidInput, ValueError):
    """A cluster on which nothing can be computed."""


class InvalidConfig(SlrtError, ValueError):
    """A configuration with an unknown key or a value outside its range."""


class UnsupportedFormat(SlrtError, ValueError):
    """A file type or a store version that this release cannot read."""


class StoreExists(SlrtError, FileExistsError):
    """A path that should be new and is not."""


class StoreNotFound(SlrtError, FileNotFoundError):
    """A path that holds no store."""


class StoreCorrupt(SlrtError, ValueError):
    """A store that is incomplete, torn or altered."""


class MemoryBudgetExceeded(SlrtError, MemoryError):
    """Work that would not fit in the memory it was given."""


class DiskFull(SlrtError, OSError):
    """A disk without room for what is written to stay."""


class ScratchFull(SlrtError, OSError):
    """A disk without room for the working files of a fit."""


class MissingDependency(SlrtError, ImportError):
    """An optional package that this feature needs."""


class NotYetAvailable(SlrtError, NotImplementedError):
    """A documented name whose capability is not in this release."""


class CheckpointMismatch(SlrtError, ValueError):
    """A run or checkpoint that belongs to something else than what it is used for."""


class RunInUse(SlrtError, BlockingIOError):
    """A run on which another process is at work."""


class StateLost(SlrtError, RuntimeError):
    """A worker that no longer holds the state a step was written for."""


class ClusterLost(SlrtError, ConnectionError):
    """A cluster whose workers or scheduler went away and did not come back."""


class NumericalBreakdown(SlrtError, ArithmeticError):
    """A computation that produced a value no exact arithmetic would."""


class OutOfTime(SlrtError, TimeoutError):
    """The time of a fit ended during a solve; caught by the loop, which ends the fit."""

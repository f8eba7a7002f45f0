"""How work that takes long is told of: the one form of it, for whoever wants to show it."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str, int, int | None], None]
"""Called with a stage, how much of it is done, and how much there is; None where unknown."""


def tell(progress: Progress | None, stage: str, done: int, total: int | None) -> None:
    """Tell whoever listens, if somebody does."""
    if progress is not None:
        progress(stage, done, total)

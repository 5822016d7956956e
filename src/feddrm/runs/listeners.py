"""Listeners to a training: functions that are called after every round."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from feddrm.engine import RoundResult
from feddrm.errors import FeddrmError
from feddrm.progress import progress_bar

# Called with the round, its metrics (None if it was not evaluated) and the number of rounds in all.
OnRound = Callable[[RoundResult, dict[str, Any] | None, int], None]


@contextmanager
def progress_listener(title: str, wanted: bool = True) -> Iterator[OnRound | None]:
    """Show progress on standard error: a bar on a terminal, a line now and then elsewhere. None if not wanted."""
    if not wanted:
        yield None
        return
    with progress_bar(title) as advance:

        def show(result: RoundResult, metrics: dict[str, Any] | None, rounds: int) -> None:
            notes = [] if result.loss is None else [f"loss {result.loss:.3f}"]
            if metrics:
                some = metrics.get("participants")
                of, figures = (" of the participants", some) if some else ("", metrics)
                for key, what in (("average_accuracy", "accuracy"), ("average_c_index", "C-index")):
                    if figures.get(key) is not None:
                        notes.append(f"average {what}{of} {100 * figures[key]:.1f} %")
            advance(result.state.round, rounds, ", ".join(notes), metrics is not None)

        yield show


@contextmanager
def tensorboard_listener(folder: Path, wanted: bool) -> Iterator[OnRound | None]:
    """Write TensorBoard scalars into a folder. None if not wanted."""
    if not wanted:
        yield None
        return
    with require_tensorboard()(str(folder)) as writer:

        def write(result: RoundResult, metrics: dict[str, Any] | None, rounds: int) -> None:  # noqa: ARG001
            scalars = {"lr": result.lr, "loss": result.loss, **_flat(metrics or {})}
            for name, value in scalars.items():
                if isinstance(value, int | float):
                    writer.add_scalar(name, value, result.state.round)

        yield write


def require_tensorboard() -> Any:
    """TensorBoard's writer; an error if it is not installed."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise FeddrmError("tracking needs TensorBoard: pip install 'feddrm[track]'") from error
    return SummaryWriter


def _flat(metrics: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The accuracies in one dictionary, with names such as ``system_accuracy/vote``."""
    out: dict[str, Any] = {}
    for key, value in metrics.items():
        if isinstance(value, Mapping):
            out |= _flat(value, f"{prefix}{key}/")
        elif key.endswith(("_accuracy", "_c_index")) or prefix:
            out[f"{prefix}{key}"] = value
    return out

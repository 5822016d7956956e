"""Listeners to a training: what is called after every round."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from feddrm.engine import RoundResult
from feddrm.errors import FeddrmError
from feddrm.progress import progress_bar

OnRound = Callable[[RoundResult, dict[str, Any] | None, int], None]  # the round, its metrics if evaluated, of how many


@contextmanager
def shown(title: str, wanted: bool = True) -> Iterator[OnRound | None]:
    """A bar on a terminal, a line now and then elsewhere; where asked for."""
    if not wanted:
        yield None
        return
    with progress_bar(title) as advance:

        def on_round(played: RoundResult, metrics: dict[str, Any] | None, rounds: int) -> None:
            notes = [] if played.loss is None else [f"loss {played.loss:.3f}"]
            if metrics:
                notes.append(f"average accuracy {100 * metrics['average_accuracy']:.1f} %")
            advance(played.state.round, rounds, ", ".join(notes), metrics is not None)

        yield on_round


@contextmanager
def tracked(folder: Path, wanted: bool) -> Iterator[OnRound | None]:
    """TensorBoard scalars under ``tensorboard/``, where asked for."""
    if not wanted:
        yield None
        return
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise FeddrmError("tracking needs TensorBoard: pip install 'feddrm[track]'") from error
    with SummaryWriter(str(folder / "tensorboard")) as writer:

        def write(played: RoundResult, metrics: dict[str, Any] | None, rounds: int) -> None:  # noqa: ARG001
            scalars = {"lr": played.lr, "loss": played.loss, **_flat(metrics or {})}
            for name, value in scalars.items():
                if isinstance(value, int | float):
                    writer.add_scalar(name, value, played.state.round)

        yield write


def _flat(metrics: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key, value in metrics.items():
        if isinstance(value, Mapping):
            out |= _flat(value, f"{prefix}{key}/")
        elif key.endswith("_accuracy") or prefix:
            out[f"{prefix}{key}"] = value
    return out

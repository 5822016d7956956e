"""The loop over rounds, on the engine of choice: sequential, or one CUDA graph per round."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from functools import partial

import torch

from feddrm.data import Federation
from feddrm.engine.cuda_graph import GraphEngine
from feddrm.engine.rounds import play_round
from feddrm.engine.schedule import RoundResult, RoundSchedule, State
from feddrm.errors import FeddrmError, SettingError
from feddrm.methods import Forward
from feddrm.registry import check_choice, nearest
from feddrm.threads import thread_map

ENGINES = ("auto", "sequential", "graph")
DEVICES = ("cpu", "cuda")


def federate(
    schedule: RoundSchedule,
    net: Forward,
    federation: Federation,
    state: State,
    *,
    workers: int = 1,
    engine: str = "sequential",
) -> Iterator[RoundResult]:
    """Play the rounds that are left after ``state``. Each round is a function of the state and the seed.

    The ``sequential`` engine trains ``workers`` clients side by side, which changes no bit of the
    result. The ``graph`` engine trains all clients at once on a GPU.
    """
    with ExitStack() as stack:
        if engine == "graph":
            play = stack.enter_context(closing(GraphEngine(schedule, net, federation))).play
        else:
            play = partial(play_round, schedule, net, federation, spread=stack.enter_context(thread_map(workers)))
        while state.round < schedule.plan.rounds:
            result = play(state)
            state = result.state
            yield result


def require_gpu(device: str) -> None:
    """Refuse a GPU that is not there."""
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise FeddrmError(f"device '{device}' was asked for, but torch sees no GPU here: use --device cpu")


def engine_for(engine: str, device: str) -> str:
    """The engine that ``engine`` stands for; ``auto`` is graph on a GPU and sequential elsewhere."""
    check_choice("engine", engine, ENGINES)
    try:
        kind = torch.device(device).type
    except RuntimeError:
        kind = "unknown"
    if kind not in DEVICES:
        raise SettingError(f"unknown device '{device}'{nearest(device, DEVICES)} (known: {', '.join(DEVICES)})")
    on_gpu = kind == "cuda"
    if engine == "graph" and not on_gpu:
        raise SettingError(f"engine 'graph' needs a GPU, not {device}: use --device cuda, or --engine sequential")
    return ("graph" if on_gpu else "sequential") if engine == "auto" else engine

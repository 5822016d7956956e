"""The evaluation of all clients' models as one CUDA graph: captured once, then replayed by a single launch."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from feddrm.engine.cuda_graph import STREAMS, room_for
from feddrm.evaluation.passes import Logits, Pass, PassRunner, in_order


class Replay:
    """Runs passes of one form (which models share a trunk, how many samples) again and again.

    The first call runs them one after another, because libraries choose their algorithms then. The
    second call captures them, with trunks on parallel streams. Passes of another form start anew, for
    example when tuning makes the trunks differ.
    """

    def __init__(self) -> None:
        self.form: Hashable = None
        self.begun: _Begun | None = None

    def __call__(self, runner: PassRunner, passes: Sequence[Pass], x: Tensor) -> Logits:
        tensors = _tensors(passes, x)
        form = tuple((one.rows, one.client) for one in passes), tuple((k, v.shape) for k, v in tensors.items())
        if self.begun is None or form != self.form:
            self.begun = None  # frees the old tensors before new ones are allocated
            self.form, self.begun = form, _Begun({name: room_for(value, x.device) for name, value in tensors.items()})
        begun = self.begun
        torch._foreach_copy_([begun.rooms[name] for name in tensors], list(tensors.values()))
        if begun.graph is None:
            own = begun.own(passes)
            if not begun.warm:
                begun.warm = True
                return runner.run(own, begun.rooms["x"])
            begun.capture(runner, own)
        begun.graph.replay()
        logits, client = begun.results
        return None if logits is None else logits.clone(), None if client is None else client.clone()


@dataclass
class _Begun:
    """The tensors that the graph of one form reads and, once captured, the graph and the tensors it writes."""

    rooms: dict[str, Tensor]
    warm: bool = False
    graph: Any = None
    results: Any = None

    def own(self, passes: Sequence[Pass]) -> list[Pass]:
        """The same passes over the graph's own tensors."""
        return [
            replace(
                one,
                leaves={name: self.rooms[f"{i}/leaves/{name}"] for name in one.leaves},
                heads={name: self.rooms[f"{i}/heads/{name}"] for name in one.heads},
            )
            for i, one in enumerate(passes)
        ]

    def capture(self, runner: PassRunner, passes: Sequence[Pass]) -> None:
        x = self.rooms["x"]
        side = [torch.cuda.Stream(x.device) for _ in range(min(STREAMS, len(passes)))]  # type: ignore[no-untyped-call]
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, capture_error_mode="thread_local"):
            main = torch.cuda.current_stream()
            results = []
            for i, one in enumerate(passes):
                stream = side[i % len(side)]
                stream.wait_stream(main)
                with torch.cuda.stream(stream):
                    results.append(runner.run([one], x))
            for stream in side:
                main.wait_stream(stream)
            self.results = in_order(passes, results)


def _tensors(passes: Sequence[Pass], x: Tensor) -> dict[str, Tensor]:
    """Everything that changes from one evaluation to the next, by name."""
    tensors = {"x": x}
    for i, one in enumerate(passes):
        tensors |= {f"{i}/leaves/{name}": value for name, value in one.leaves.items()}
        tensors |= {f"{i}/heads/{name}": value for name, value in one.heads.items()}
    return tensors

"""The graph engine: a whole round as one CUDA graph, with all clients at once on a GPU.

A round has thousands of small kernels. Launched one by one, they keep a GPU waiting for Python most of
the time. Captured once and replayed, they cost one launch, and clients run on parallel streams. The
graph records :func:`client_update` itself, once for every seat of a round. A seat is a place for one
client: its number, the tensors it received and the samples it trains on are copied in before each replay.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from feddrm.data import Batch, Draw, Federation, Participant, Pool, draw_for
from feddrm.engine.client_update import Update, client_update
from feddrm.engine.private_shards import PrivateShards
from feddrm.engine.rounds import play_round
from feddrm.engine.schedule import RoundResult, RoundSchedule, State
from feddrm.methods import Forward, Slots, Stage, Tensors

STREAMS = 4

Leaves = dict[tuple[str, ...], Tensor]  # nested tensors in one dictionary, by their path


class GraphEngine:
    """Plays the first round of every stage one client after another, and the others from one captured graph.

    In the first round libraries choose their algorithms, and the clients' slots take their final form.
    A later round whose tensors have another form (a method may send some clients more than others) is
    also played one client after another; so are all rounds of a method that reads the round's number or rate.
    """

    def __init__(self, schedule: RoundSchedule, net: Forward, federation: Federation, streams: int = STREAMS) -> None:
        self.schedule, self.method, self.net, self.federation = schedule, schedule.method, net, federation
        self.pool = Pool.of(federation, "train")
        streams = min(streams, schedule.seats)
        self.streams = [torch.cuda.Stream(self.pool.x.device) for _ in range(streams)]  # type: ignore[no-untyped-call]
        self.memory: Any = None
        self.begun: set[Stage] = set()
        self.captured: dict[Stage, _Round] = {}
        self.reads_round = False  # whether the method computes otherwise in every round
        self.drawer = ThreadPoolExecutor(1)
        self.ahead: tuple[int, Future[list[Draw]]] | None = None

    def close(self) -> None:
        """Stop drawing ahead, and free the graphs and their memory."""
        self.drawer.shutdown(cancel_futures=True)
        self.captured.clear()

    def play(self, state: State) -> RoundResult:
        """Play the round after ``state``, which does not change."""
        number = state.round + 1
        stage, answering = self.schedule.stage(number), self.schedule.answering(number)
        if not answering or stage not in self.begun or self.reads_round:
            self.begun |= {stage} if answering else set()
            return self._one_by_one(_laid_out(state, self.pool.x.device))
        # An empty seat repeats the work of the first one; its result is not used.
        sitting = answering + answering[:1] * (self.schedule.seats - len(answering))
        received = [self.method.send(state.shared, client) for client in sitting]
        personal = any(sent is not state.shared for sent in received)
        inputs = _inputs(state, sitting, received if personal else None)
        if stage not in self.captured:
            watched = _WatchedStage(**vars(stage))
            self.captured[stage] = self._capture(watched, inputs, personal)
            self.reads_round = bool(watched.reads)
        captured = self.captured[stage]
        if self.reads_round:
            self.captured.clear()
        if self.reads_round or not captured.takes(inputs):
            return self._one_by_one(state)
        captured.fill(inputs)
        captured.fill_draws(self._drawn(number, stage, sitting))
        sizes = self.federation.sizes[list(answering)].double()
        weights = sizes / sizes.sum()
        captured.lr.fill_(self.schedule.plan.rate(number))
        captured.who.copy_(torch.tensor(sitting))
        captured.weights.zero_()
        captured.weights[: len(answering)].copy_(weights)
        captured.graph.replay()
        self._draw_ahead(number + 1)
        return self._read(captured, state, stage, answering, weights)

    def _one_by_one(self, state: State) -> RoundResult:
        return play_round(self.schedule, self.net, self.federation, state)

    def _read(
        self, captured: _Round, state: State, stage: Stage, answering: tuple[int, ...], weights: Tensor
    ) -> RoundResult:
        """Copies of the round's results, because the next replay overwrites the graph's tensors."""
        private = {
            client: {name: _copies(slot) for name, slot in update.private.items()}
            for client, update in zip(answering, captured.updates, strict=False)
        }
        if captured.shared is not None and len(answering) == self.schedule.seats:
            shared = _copies(captured.shared)
        else:
            uploads = [_copies(update.upload) for update in captured.updates[: len(answering)]]
            shared = self.method.aggregate(state.shared, uploads, weights)
        sent = self.schedule.communication(state, [u.upload for u in captured.updates[: len(answering)]])
        number = state.round + 1
        loss = float(captured.loss)  # waits until the round is done
        return RoundResult(state.after(shared, private, sent), stage, self.schedule.plan.rate(number), loss, answering)

    # Random draws are made on the CPU, as in the sequential engine, while the GPU plays the round before.

    def _draw_ahead(self, number: int) -> None:
        if number > self.schedule.plan.rounds:
            return
        answering = self.schedule.answering(number)
        sitting = answering + answering[:1] * (self.schedule.seats - len(answering))
        self.ahead = number, self.drawer.submit(self._draw, number, self.schedule.stage(number), sitting)

    def _drawn(self, number: int, stage: Stage, sitting: tuple[int, ...]) -> list[Draw]:
        if self.ahead is not None and self.ahead[0] == number:
            return self.ahead[1].result()
        return self._draw(number, stage, sitting)

    def _draw(self, number: int, stage: Stage, sitting: tuple[int, ...]) -> list[Draw]:
        """One draw per phase for all seats [seat, step, place]; samples are numbered as in the pool."""
        plan, drawn = self.schedule.plan, []
        for k, phase in enumerate(self.method.phases(stage)):
            draws = [
                draw_for(
                    Participant.of(self.federation, client),
                    steps=phase.steps,
                    batch_size=plan.batch_size,
                    seed=plan.seed,
                    round=number,
                    phase=k,
                )
                for client in sitting
            ]
            samples = torch.stack([d.samples + self.pool.starts[c] for d, c in zip(draws, sitting, strict=True)])
            boxes = [d.boxes for d in draws if d.boxes is not None]
            masks = torch.stack([d.mask for d in draws])
            drawn.append(Draw(samples, masks, torch.stack(boxes) if boxes else None))
        return drawn

    def _capture(self, stage: Stage, inputs: Leaves, personal: bool) -> _Round:
        device, seats = self.pool.x.device, self.schedule.seats
        shape = self._draw(1, stage, (0,) * seats)
        captured = _Round(
            graph=torch.cuda.CUDAGraph(),
            inputs={path: room_for(value, device) for path, value in inputs.items()},
            draws=[draw.to(device) for draw in shape],
            who=torch.zeros(seats, dtype=torch.int64, device=device),
            lr=torch.zeros((), device=device),
            weights=torch.full((seats,), 1 / seats, dtype=torch.float64, device=device),
        )
        captured.fill(inputs)
        self.memory = self.memory or torch.cuda.graph_pool_handle()
        with first_error(), torch.cuda.graph(captured.graph, pool=self.memory, capture_error_mode="thread_local"):
            main = torch.cuda.current_stream()
            for stream in self.streams:
                stream.wait_stream(main)
            for seat in range(seats):
                with torch.cuda.stream(self.streams[seat % len(self.streams)]):
                    captured.updates.append(self._seat(captured, stage, seat, personal))
            for stream in self.streams:
                main.wait_stream(stream)
            losses = torch.stack([update.loss for update in captured.updates]).double()
            captured.loss = captured.weights @ losses
            if self.method.device_aggregate:
                uploads = [update.upload for update in captured.updates]
                captured.shared = self.method.aggregate(captured.part("shared"), uploads, captured.weights)
        return captured

    def _seat(self, captured: _Round, stage: Stage, seat: int, personal: bool) -> Update:
        streams = [self._batches(draw, seat, captured.who[seat]) for draw in captured.draws]
        received = captured.part("received", str(seat)) if personal else captured.part("shared")
        private = captured.slots("private", str(seat))
        sgd = self.schedule.plan.sgd(captured.lr)
        return client_update(self.method, self.net, received, private, streams, stage, sgd)

    def _batches(self, draw: Draw, seat: int, who: Tensor) -> Iterator[Batch]:
        """The batches of a phase, all prepared at once: a few large kernels instead of many small ones."""
        steps, size = draw.samples.shape[1:]
        if not steps:
            return
        samples = draw.samples[seat].flatten()
        x = self.pool(samples, who, None if draw.boxes is None else draw.boxes[seat].flatten(0, 1))
        y, client = self.pool.y[samples], who.expand(size)
        for step in range(steps):
            part = slice(step * size, (step + 1) * size)
            yield Batch(x[part], y[part], client, draw.mask[seat, step])


@dataclass(frozen=True)
class _WatchedStage(Stage):
    """A stage that notes when its round or its rate is read: a graph of such a round fits no other."""

    reads: list[str] = field(default_factory=list, compare=False)

    def __getattribute__(self, name: str) -> Any:
        if name in ("round", "lr"):
            self.reads.append(name)
        return super().__getattribute__(name)


@dataclass
class _Round:
    """A captured round: its graph, the tensors it reads, and those it writes."""

    graph: torch.cuda.CUDAGraph
    inputs: Leaves
    draws: list[Draw]
    who: Tensor
    lr: Tensor
    weights: Tensor

    def __post_init__(self) -> None:
        self.updates: list[Update] = []
        self.shared: Tensors | None = None
        self.loss = self.lr

    def takes(self, inputs: Leaves) -> bool:
        """Whether these tensors have the captured form."""
        return inputs.keys() == self.inputs.keys() and all(
            value.shape == self.inputs[path].shape and value.dtype == self.inputs[path].dtype
            for path, value in inputs.items()
        )

    def fill(self, inputs: Leaves) -> None:
        torch._foreach_copy_([self.inputs[path] for path in inputs], list(inputs.values()))

    def fill_draws(self, draws: Sequence[Draw]) -> None:
        for mine, new in zip(self.draws, draws, strict=True):
            for to, value in zip(mine, new, strict=True):
                if to is not None and value is not None:
                    to.copy_(value)

    def part(self, *path: str) -> Tensors:
        """The leaves below a path."""
        return {p[-1]: value for p, value in self.inputs.items() if p[:-1] == path}

    def slots(self, *path: str) -> Slots:
        """The slots below a path; an empty slot has the mark EMPTY."""
        names = {p[len(path)]: None for p in self.inputs if p[: len(path)] == path}
        return {name: {k: v for k, v in self.part(*path, name).items() if k != EMPTY} for name in names}


EMPTY = "(empty)"  # the only leaf of a slot that has none


def _inputs(state: State, sitting: tuple[int, ...], received: list[Tensors] | None) -> Leaves:
    """All tensors that a round reads and that change between rounds, by path."""
    inputs: Leaves = {("shared", leaf): value for leaf, value in state.shared.items()}
    for seat, client in enumerate(sitting):
        if received is not None:
            inputs |= {("received", str(seat), leaf): value for leaf, value in received[seat].items()}
        for name, slot in state.private[client].items():
            leaves = slot or {EMPTY: torch.zeros((), device=next(iter(state.shared.values())).device)}
            inputs |= {("private", str(seat), name, leaf): value for leaf, value in leaves.items()}
    return inputs


@contextmanager
def first_error() -> Iterator[None]:
    """Raise what went wrong during a capture, not the complaint that a capture so interrupted cannot end."""
    try:
        yield
    except RuntimeError as error:
        if error.__context__ is None or "captur" not in str(error):
            raise
        raise error.__context__ from None


def _laid_out(state: State, device: torch.device) -> State:
    """The same state in the graph's memory layout, by which libraries choose their algorithms before the capture."""

    def copy(tensors: Tensors) -> Tensors:
        return {leaf: room_for(value, device).copy_(value) for leaf, value in tensors.items()}

    def laid_out(slots: Slots) -> Slots:
        return {name: copy(slot) for name, slot in slots.items()}

    private = state.private
    if isinstance(private, PrivateShards):  # what lies on disk is laid out when it is read
        return state._replace(shared=copy(state.shared), private=replace(private, first=laid_out(private.first)))
    return state._replace(shared=copy(state.shared), private=tuple(map(laid_out, private)))


def room_for(value: Tensor, device: torch.device) -> Tensor:
    """An empty tensor of the same form; weights of convolutions are channels last, as cuDNN wants them."""
    layout = torch.channels_last if value.dim() == 4 else torch.contiguous_format
    return torch.empty(value.shape, dtype=value.dtype, device=device, memory_format=layout)


def _copies(tensors: Tensors) -> Tensors:
    out = {leaf: torch.empty_like(value) for leaf, value in tensors.items()}
    if out:
        torch._foreach_copy_(list(out.values()), list(tensors.values()))
    return out

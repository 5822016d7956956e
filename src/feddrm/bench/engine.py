"""Benchmark of the engine on a GPU: FedDRM's rounds by loop, compiled loop and graph, and with more clients.

The work is the paper's: ResNet-18 with GroupNorm; every client makes 10 steps on 128 cropped and shifted
images. The images are random, because their content does not change the time. A client step is one
forward, backward and SGD step of one client, with its share of data, aggregation and copies.
"""

from __future__ import annotations

import datetime
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call
from torch.utils.flop_counter import FlopCounterMode

from feddrm.data import Client, Federation, RandomResizedCrop, Split, View, colour_shifts
from feddrm.engine import (
    Arithmetic,
    Plan,
    RoundResult,
    RoundSchedule,
    State,
    arithmetic,
    first_state,
    functional,
    play_round,
)
from feddrm.engine.cuda_graph import STREAMS, GraphEngine
from feddrm.errors import FeddrmError
from feddrm.methods import FedDRM, Forward, Tensors
from feddrm.models import Net, Outputs, ResNet18
from feddrm.runs import hardware, train, versions

CLASSES, SAMPLES, SHAPE = 10, 1000, (3, 32, 32)
PRODUCT = 8192  # side of the matrices whose product measures the GPU's own speed
PRODUCTS = 20
REPEATS = 3

Say = Callable[[str], None]


@dataclass(frozen=True)
class Bench:
    """The plan of a round and the number of clients to measure it with."""

    plan: Plan
    clients: int = 8

    @property
    def steps(self) -> int:
        return self.clients * self.plan.local_steps

    def federation(self) -> Federation:
        generator = torch.Generator().manual_seed(0)
        clients = []
        for i, shift in enumerate(colour_shifts("high", self.clients)):
            x = torch.randint(0, 256, (SAMPLES, *SHAPE), dtype=torch.uint8, generator=generator)
            y = torch.randint(0, CLASSES, (SAMPLES,), generator=generator)
            split = Split(x, y)
            clients.append(Client(f"client-{i}", split, Split(x[:1], y[:1]), View(shift)))
        names = tuple(map(str, range(CLASSES)))
        made = Federation("made", tuple(clients), names, "made images", crop=RandomResizedCrop())
        return made.to("cuda")

    def network(self) -> Net:
        return ResNet18().build(SHAPE, CLASSES, self.clients, seed=0).to("cuda")


def bench_engine(
    *,
    streams: Sequence[int] = (1, 2, 4, 8),
    scaling: Sequence[int] = (8, 16, 32, 64),
    compiled: bool = True,
    paper: bool = True,
    data_dir: str | None = None,
    keep: Path | None = None,
    say: Say = print,
) -> dict[str, Any]:
    """All measurements as one plain value; the paper run's folder is kept at ``keep``, if given."""
    if not torch.cuda.is_available():
        raise FeddrmError("the engine's benchmark needs a CUDA GPU, and torch finds none: run it on a machine with one")
    bench = Bench(Plan())
    flops = _flops(bench)
    rate = _product_rate()
    say(f"bf16 matrix product: {rate:.0f} TFLOP/s; a client step: {flops / 1e12:.3f} TFLOP")
    ways: dict[str, dict[str, float]] = {}

    def note(name: str, measured: dict[str, float]) -> None:
        ms = measured["ms_per_client_step"]
        measured["images_per_second"] = bench.plan.batch_size / ms * 1e3
        measured["tflops"] = flops / ms / 1e9
        measured["of_matrix_product"] = measured["tflops"] / rate
        ways[name] = {key: round(value, 4) for key, value in measured.items()}
        say(f"{name:>18}: {ms:6.2f} ms per client step, {measured['tflops']:5.0f} TFLOP/s, "
            f"{measured['peak_memory_gib']:.1f} GiB")  # fmt: skip

    note("eager fp32", _loop(bench, "fp32"))
    note("eager tf32", _loop(bench, "tf32"))
    note("eager bf16", _loop(bench, "bf16"))
    if compiled:
        note("compiled bf16", _loop(bench, "bf16", compiled=True))
    for count in streams:
        note(f"graph, {count} streams" if count > 1 else "graph, 1 stream", _graph(bench, count))
    eager = min(measured["ms_per_client_step"] for name, measured in ways.items() if name.startswith("eager"))
    graphs = {name: measured for name, measured in ways.items() if name.startswith("graph")}
    best = min(graphs, key=lambda name: graphs[name]["ms_per_client_step"])
    default = f"graph, {STREAMS} streams"
    chosen = graphs.get(default, graphs[best])["ms_per_client_step"]
    sizes: dict[str, float] = {}
    for clients in scaling:
        measured = _graph(Bench(bench.plan, clients), STREAMS)
        sizes[str(clients)] = round(measured["ms_per_client_step"], 3)
        say(f"{clients:>7} clients: {measured['ms_per_client_step']:6.2f} ms per client step, "
            f"{measured['peak_memory_gib']:.1f} GiB, captured in {measured['capture_seconds']:.1f} s")  # fmt: skip
    result: dict[str, Any] = {
        "ms_per_client_step": chosen,
        "ratio_to_eager": round(eager / chosen, 2),
        "fastest": best,
        "ways": ways,
        "scaling": sizes,
        "matrix_product_tflops": round(rate, 1),
        "tflop_per_client_step": round(flops / 1e12, 4),
    }
    if paper:
        result |= _paper_run(data_dir, keep, say)
    return result | {
        "hardware": hardware("cuda"),
        "versions": versions(),
        "date": datetime.date.today().isoformat(),
    }


def _loop(bench: Bench, precision: str, *, compiled: bool = False) -> dict[str, float]:
    """The sequential engine on the GPU."""
    how, net, federation = arithmetic(precision, "cuda"), bench.network(), bench.federation()
    began = time.perf_counter()
    forward = _compiled(net, how) if compiled else functional(net, how)
    schedule = RoundSchedule(FedDRM(), bench.plan, bench.clients)

    def play(state: State) -> RoundResult:
        return play_round(schedule, forward, federation, state)

    with how.set():
        measured = _time(play, net, bench)
    seconds = measured.pop("seconds")
    if compiled:
        measured["compile_seconds"] = time.perf_counter() - began - seconds
    return measured


def _graph(bench: Bench, streams: int) -> dict[str, float]:
    """The graph engine."""
    how, net, federation = arithmetic("bf16", "cuda"), bench.network(), bench.federation()
    schedule = RoundSchedule(FedDRM(), bench.plan, bench.clients)
    with closing(GraphEngine(schedule, functional(net, how), federation, streams)) as engine, how.set():
        measured = _time(engine.play, net, bench)
    measured.pop("seconds")
    return measured


def _time(play: Callable[[State], RoundResult], net: Net, bench: Bench) -> dict[str, float]:
    """Milliseconds per client step: the median of some rounds, after one round to warm up and one to capture."""
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    leaves = {leaf: value.detach() for leaf, value in net.named_parameters()}
    state = play(first_state(FedDRM(), leaves, bench.clients)).state
    began = time.perf_counter()
    state = play(state).state
    second = time.perf_counter() - began
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        state = play(state).state  # reads the loss, and so waits for the end of the round
        times.append(time.perf_counter() - start)
    return {
        "ms_per_client_step": 1e3 * statistics.median(times) / bench.steps,
        "capture_seconds": max(second - statistics.median(times), 0.0),
        "peak_memory_gib": torch.cuda.max_memory_allocated() / 2**30,
        "seconds": sum(times),
    }


def _compiled(net: Net, how: Arithmetic) -> Forward:
    """The forward pass by torch.compile, without stages, because all of them would have to stay in memory."""

    def plain(leaves: Tensors, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        with how.casting():
            out = functional_call(net, leaves, (x,))
        return out.logits, out.features.float(), out.client_logits

    fast = torch.compile(plain)

    def run(leaves: Tensors, x: Tensor) -> Outputs:
        return Outputs(*fast(leaves, x), stages={})

    return run


def _flops(bench: Bench) -> float:
    """Floating-point operations of the products in a client step, forward and backward."""
    net = bench.network()
    x = torch.randn(bench.plan.batch_size, *SHAPE, device="cuda")
    with FlopCounterMode(display=False) as counter:
        out = net(x)
        (out.logits.sum() + out.client_logits.sum()).backward()
    return float(counter.get_total_flops())


def _product_rate() -> float:
    """TFLOP/s of one large bf16 product: the upper limit with which other figures are compared."""
    a, b = torch.randn(2, PRODUCT, PRODUCT, device="cuda", dtype=torch.bfloat16)
    for _ in range(3):
        a @ b
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(PRODUCTS):
        a @ b
    torch.cuda.synchronize()
    return PRODUCTS * 2 * PRODUCT**3 / (time.perf_counter() - began) / 1e12


def _paper_run(data_dir: str | None, keep: Path | None, say: Say) -> dict[str, Any]:
    """One cell of the paper's main table, timed from the files on the disk to the summary."""
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        settings = {"data_dir": data_dir} if data_dir else {}
        out = keep or Path(folder) / "run"
        run = train("cifar10", "feddrm", out=out, data_settings=settings, recipe="paper", device="cuda")
        seconds = time.perf_counter() - began
        summary = run.summary or {}
    say(f"paper run: {seconds:.0f} s, average accuracy {summary['average_accuracy']['mean']:.4f}")
    return {
        "paper_run_seconds": round(seconds, 1),
        "paper_run": {
            key: summary[key]
            for key in ("average_accuracy", "system_accuracy", "client_accuracy", "oracle_accuracy", "seconds",
                        "peak_memory_gib")
        },
    }  # fmt: skip

"""Profiles the graph engine on a GPU: where the time of a client step and of one paper run goes, and what could be won.

    python -m benchmarks.engine_profile [kernels] [layers] [trials] [run] [--json results/bench/engine_profile.json]

The work is that of ``feddrm bench engine``: 8 clients, ResNet-18, bfloat16. *kernels*: torch.profiler over one replay
of a round's graph, on 1 and on 4 streams, microseconds per client step by kind of kernel. *layers*: every convolution
of the network alone. *trials*: upper bounds of what some changes could win. *run*: the seconds of a paper run by what
they are spent on (needs CIFAR-10). Parts that are not named keep their figures in the file. Times are medians of
replays of a captured graph.
"""

from __future__ import annotations

import argparse
import json
import re
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import DeviceType

from benchmarks.result import finish
from benchmarks.timing import Stopwatch, Work, captured, copy_rate, replay_us
from feddrm.bench.engine import SHAPE, Bench, _flops, _product_rate
from feddrm.data import load
from feddrm.engine import Plan, RoundSchedule, arithmetic, first_state, functional
from feddrm.engine.cuda_graph import STREAMS, GraphEngine
from feddrm.methods import FedDRM
from feddrm.models import is_output
from feddrm.runs import Run, RunFolder, train
from feddrm.runs.training_session import TrainingSession

BATCH, SETS = 128, 4
TEST_SAMPLES = 18_004  # of the paper's CIFAR-10, six batches
KINDS = {  # the first pattern that a kernel's name matches
    "convolution, weight gradient": r"wgrad",
    "convolution, input gradient": r"dgrad",
    "convolution, forward": r"fprop|convolve",
    "GroupNorm, forward": r"^_forward",
    "GroupNorm, backward": r"^_backward",
    "GroupNorm, sums of its own gradients": r"^_total",
    "SGD": r"FusedSgd",
    "casts of weights and gradients": r"multi_tensor_apply",
    "layout of convolutions": r"nhwc|nchw|Nhwc|Nchw|splitK|cudnn",
    "additions of two gradients": r"CUDAFunctor_add<c10::BFloat16>",
    "zeros": r"FillFunctor|Memset",
    "heads": r"gemm|nvjet|gemv|softmax|nll",
    "other elementwise, sums and copies": r"elementwise|reduce_kernel|Memcpy|CatArray",
}


def main() -> None:
    parts = {"kernels": kernels, "layers": layers, "trials": trials, "run": paper_run}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(parts)} (default: all)")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    old = json.loads(arguments.json.read_text()) if arguments.json and arguments.json.exists() else {}
    found = {part: parts[part]() for part in arguments.parts or parts}
    finish({part: {**old, **found}[part] for part in parts if part in old or part in found}, arguments.json, "cuda")


# Where the time of a round goes


def kernels() -> dict[str, Any]:
    """Microseconds per client step by kind of kernel, and the floors of arithmetic and memory."""
    bench = Bench(Plan())
    flops, rate, speed = _flops(bench), _product_rate(), copy_rate()
    return {
        "tflop_per_step": round(flops / 1e12, 4),
        "product_tflops": round(rate, 1),
        "copy_tb_per_s": round(speed, 2),
        "floor_of_products_us": round(flops / rate / 1e6),
        "streams": {count: profile(bench, count) for count in (1, STREAMS)},
    }


def profile(bench: Bench, streams: int) -> dict[str, Any]:
    with captured_round(bench, streams) as (engine, graph):
        number = bench.clients * bench.plan.local_steps
        round_us = replay_us(graph)
        of_data, of_round = names(captured(lambda: prepare(engine))), names(graph.replay)
    by_kind = Counter({"crops, colours and batches": sum(of_data.values())})
    for name, us in of_round.items():
        by_kind[kind(name)] += max(us - of_data.get(name, 0.0), 0.0)
    return {
        "step_us": round(round_us / number, 1),
        "kernels_us": {name: round(us / number, 1) for name, us in by_kind.most_common()},
        "kernels_total_us": round(sum(of_round.values()) / number, 1),
    }


def prepare(engine: GraphEngine) -> None:
    """All batches of a round, as its graph prepares them."""
    (round_,) = engine.captured.values()
    for seat in range(engine.schedule.seats):
        for draw in round_.draws:
            list(engine._batches(draw, seat, round_.who[seat]))


def kind(name: str) -> str:
    """The kind of a kernel by its name."""
    return next((label for label, pattern in KINDS.items() if re.search(pattern, name)), "other")


def names(work: Work) -> Counter[str]:
    """Microseconds of every kernel that the work runs, by name."""
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        work()
        torch.cuda.synchronize()
    found: Counter[str] = Counter()
    for event in profiler.events():
        if event.device_type == DeviceType.CUDA:
            found[event.name] += event.time_range.elapsed_us()
    return found


@contextmanager
def captured_round(
    bench: Bench, streams: int | list[torch.cuda.Stream] = STREAMS
) -> Iterator[tuple[GraphEngine, torch.cuda.CUDAGraph]]:
    """The graph engine after its third round, with the round's graph."""
    how, net = arithmetic("bf16", "cuda"), bench.network()
    schedule = RoundSchedule(FedDRM(), bench.plan, bench.clients)
    leaves = {leaf: value.detach() for leaf, value in net.named_parameters()}
    count = streams if isinstance(streams, int) else len(streams)
    with closing(GraphEngine(schedule, functional(net, how), bench.federation(), count)) as engine, how.set():
        engine.streams = engine.streams if isinstance(streams, int) else streams
        state = first_state(FedDRM(), leaves, bench.clients)
        for _ in range(3):
            state = engine.play(state).state
        (round_,) = engine.captured.values()
        yield engine, round_.graph


# Every convolution alone


class Layer(NamedTuple):
    """A convolution: channels, side of the input, stride, side of the kernel, and how often the network has it."""

    inputs: int
    outputs: int
    side: int
    stride: int = 1
    size: int = 3
    times: int = 1

    @property
    def flops(self) -> float:
        """Operations of one of its three passes."""
        pixels = (self.side // self.stride) ** 2
        return 2.0 * BATCH * pixels * self.inputs * self.outputs * self.size**2

    def __str__(self) -> str:
        stride = f", stride {self.stride}" if self.stride > 1 else ""
        return f"{self.size}x{self.size}, {self.inputs} to {self.outputs}, {self.side}x{self.side}{stride}"


def network_layers() -> list[Layer]:
    """ResNet-18 on images of 32x32 pixels."""
    found, width, side = [Layer(3, 64, 32), Layer(64, 64, 32, times=4)], 64, 32
    for wider in (128, 256, 512):
        found += [Layer(width, wider, side, 2), Layer(width, wider, side, 2, size=1)]
        width, side = wider, side // 2
        found.append(Layer(width, width, side, times=3))
    return found


def layers() -> dict[str, Any]:
    """Microseconds and rate of every convolution's three passes; ``per_step_us`` sums them over the network."""
    rate, rows, total = _product_rate(), [], Counter[str]()
    with arithmetic("bf16", "cuda").set():
        for layer in network_layers():
            passes = {}
            for name, work in convolutions(layer).items():
                us = replay_us(captured(work)) / SETS
                total[name] += layer.times * us
                tflops = layer.flops / us / 1e6
                passes[name] = {"us": round(us, 1), "tflops": round(tflops), "of_product": round(tflops / rate, 3)}
            rows.append({"layer": str(layer), "times": layer.times, "tflop": round(layer.flops / 1e12, 5), **passes})
    return {"rows": rows, "per_step_us": {name: round(us) for name, us in total.items()}, "product_tflops": round(rate)}


def convolutions(layer: Layer) -> dict[str, Work]:
    """The three passes, each over several sets of tensors, because the cache would hold a single one."""
    half = {"device": "cuda", "dtype": torch.bfloat16, "memory_format": torch.channels_last}
    out, pad = layer.side // layer.stride, layer.size // 2

    def made(*shape: int) -> list[Tensor]:
        return [torch.randn(shape).to(**half) for _ in range(SETS)]

    xs, gs = made(BATCH, layer.inputs, layer.side, layer.side), made(BATCH, layer.outputs, out, out)
    ws = made(layer.outputs, layer.inputs, layer.size, layer.size)

    def backward(inputs: bool) -> None:
        for g, x, w in zip(gs, xs, ws, strict=True):
            torch.ops.aten.convolution_backward(
                g, x, w, None, (layer.stride,) * 2, (pad,) * 2, (1, 1), False, (0, 0), 1, (inputs, not inputs, False)
            )

    return {
        "forward": lambda: [F.conv2d(x, w, None, layer.stride, pad) for x, w in zip(xs, ws, strict=True)],
        **({"input gradient": lambda: backward(True)} if layer.inputs > 3 else {}),
        "weight gradient": lambda: backward(False),
    }


# What could be won at most


def trials() -> dict[str, Any]:
    return {
        "first_forward_of_a_round": first_forward(),
        "evaluation_beside_the_next_round": beside(),
        "fp8_products": fp8(),
        "optimiser": optimiser(),
        "priorities_of_streams": priorities(),
    }


def first_forward() -> dict[str, float]:
    """All clients' first forward pass of a round as one batch, against one batch per client on parallel streams."""
    bench, how = Bench(Plan()), arithmetic("bf16", "cuda")
    net = bench.network()
    forward, leaves = functional(net, how), {leaf: value.detach() for leaf, value in net.named_parameters()}
    x = torch.randn(bench.clients * BATCH, *SHAPE, device="cuda").contiguous(memory_format=torch.channels_last)
    streams = [torch.cuda.Stream() for _ in range(STREAMS)]

    def apart() -> None:
        main = torch.cuda.current_stream()
        for stream in streams:
            stream.wait_stream(main)
        for k, batch in enumerate(x.split(BATCH)):
            with torch.cuda.stream(streams[k % STREAMS]):
                forward(leaves, batch)
        for stream in streams:
            main.wait_stream(stream)

    with how.set(), torch.no_grad():
        one, several = (replay_us(captured(work)) for work in (lambda: forward(leaves, x), apart))
    saved = (several - one) / (bench.clients * bench.plan.local_steps)
    return {"apart_us": round(several), "one_batch_us": round(one), "saved_per_step_us": round(saved, 1)}


def beside() -> dict[str, float]:
    """An evaluation's forward passes on a stream of their own while the next round is replayed."""
    bench, how = Bench(Plan()), arithmetic("bf16", "cuda")
    net = bench.network()
    forward, leaves = functional(net, how), {leaf: value.detach() for leaf, value in net.named_parameters()}
    x = torch.randn(TEST_SAMPLES, *SHAPE, device="cuda").contiguous(memory_format=torch.channels_last)
    streams = [torch.cuda.Stream() for _ in range(2)]
    with captured_round(bench) as (_, graph), torch.no_grad():
        evaluation = captured(lambda: [forward(leaves, batch) for batch in x.split(3072)])

        def both() -> None:
            main = torch.cuda.current_stream()
            for stream, replay in zip(streams, (graph.replay, evaluation), strict=True):
                stream.wait_stream(main)
                with torch.cuda.stream(stream):
                    replay()
            for stream in streams:
                main.wait_stream(stream)

        times = {"round_us": replay_us(graph), "evaluation_us": replay_us(evaluation), "both_us": replay_us(both)}
    times["saved_us"] = times["round_us"] + times["evaluation_us"] - times["both_us"]
    return {name: round(us) for name, us in times.items()}


def fp8() -> list[dict[str, Any]]:
    """Bare products of the 3x3 convolutions' forward shapes: fp8 and bfloat16, inputs unfolded already."""
    rows = []
    with arithmetic("bf16", "cuda").set():
        for layer in network_layers():
            if layer.size == 3 and layer.stride == 1 and layer.inputs > 3:
                times = {name: round(replay_us(captured(work)), 1) for name, work in products(layer).items()}
                convolution = replay_us(captured(convolutions(layer)["forward"])) / SETS
                rows.append(
                    {"layer": str(layer), "times": layer.times, **times, "bf16_convolution_us": round(convolution, 1)}
                )
    return rows


def products(layer: Layer) -> dict[str, Work]:
    """The product of a convolution's unfolded input and its weights, in two types."""
    inner, one = 9 * layer.inputs, torch.ones((), device="cuda")
    a, b = (torch.randn(n, inner, device="cuda", dtype=torch.bfloat16) for n in (BATCH * layer.side**2, layer.outputs))
    narrow_a, narrow_b = (value.to(torch.float8_e4m3fn) for value in (a, b))
    options = {"out_dtype": torch.bfloat16, "use_fast_accum": True}
    return {
        "fp8_product_us": lambda: torch._scaled_mm(narrow_a, narrow_b.t(), one, one, **options),
        "bf16_product_us": lambda: a @ b.t(),
    }


def optimiser() -> dict[str, float]:
    """The casts and the SGD step of a client step, against one copy of as many bytes as a single kernel would move."""
    net = Bench(Plan()).network()
    parameters = dict(net.named_parameters())
    wide = [v.detach().clone() for leaf, v in parameters.items() if v.dim() > 1 and not is_output(leaf)]
    narrow, gradient, velocity = [v.bfloat16() for v in wide], [v.clone() for v in wide], [v.clone() for v in wide]
    lr = torch.full((), 0.01, device="cuda")

    def step() -> None:
        torch._foreach_copy_(gradient, narrow)
        torch._fused_sgd_(
            wide, gradient, velocity, weight_decay=5e-4, momentum=0.9, lr=lr, dampening=0.0, nesterov=False,
            maximize=False, is_first_step=False,
        )  # fmt: skip
        torch._foreach_copy_(narrow, wide)

    numbers = sum(v.numel() for v in wide)
    moved = 2 + 2 * 4 + 2 * 4 + 2  # bytes: a gradient read, value and momentum read and written, a narrow value written
    source = torch.empty(numbers * moved // 2, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    now, least = replay_us(captured(step)), replay_us(captured(lambda: target.copy_(source)))
    return {"now_us": round(now, 1), "one_kernel_at_best_us": round(least, 1)}


def priorities() -> dict[str, float]:
    """Microseconds of a client step where the streams of a round have different priorities."""
    bench, found = Bench(Plan()), {}
    for name, levels in {"equal": (0, 0, 0, 0), "two levels": (0, -1, 0, -1), "all different": (0, -1, -2, -3)}.items():
        streams = [torch.cuda.Stream(priority=level) for level in levels]
        with captured_round(bench, streams) as (_, graph):
            found[name] = round(replay_us(graph) / bench.steps, 1)
    return found


# One paper run


def paper_run() -> dict[str, Any]:
    """The seconds of one cell of the paper's main table, from the files on the disk to the router."""
    watch = Stopwatch()
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        for owner, name in (
            (GraphEngine, "_one_by_one"), (GraphEngine, "_capture"), (GraphEngine, "play"),
            (TrainingSession, "measure"), (RunFolder, "save"), (TrainingSession, "finish"),
        ):  # fmt: skip
            stack.enter_context(watch.watching(owner, name))
        began = time.perf_counter()
        federation = load("cifar10")
        loaded = time.perf_counter()
        run = train(federation, "feddrm", out=Path(folder) / "run", recipe="paper", device="cuda")
        trained = time.perf_counter()
        Run.open(run.path).fit_router(federation, device="cuda")
        routed, summary = time.perf_counter(), run.summary or {}
    seconds = watch.seconds
    first, capture = seconds["_one_by_one"], seconds["_capture"]
    parts = {
        "load the data": loaded - began,
        "first round, one client after another": first,
        "capture of the round": capture,
        "799 rounds": seconds["play"] - first - capture,
        "evaluations": seconds["measure"],
        "checkpoints and files": seconds["save"] + seconds["finish"],
    }
    parts["the rest: copies to the GPU, colour tables, network"] = trained - began - sum(parts.values())
    return {
        "seconds": {name: round(value, 2) for name, value in parts.items()},
        "end_to_end": round(trained - began, 1),
        "router": round(routed - trained, 1),
        "average_accuracy": summary["average_accuracy"]["mean"],
        "peak_memory_gib": summary["peak_memory_gib"],
    }


if __name__ == "__main__":
    main()

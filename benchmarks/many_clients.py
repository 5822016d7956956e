"""Measures a router of many clients: time and peak memory of its fit, one decision, two stages, and a gateway's start.

    python -m benchmarks.many_clients [--clients 1000] [--parts fit run decision stages gateway] [--json FILE]

The *fit* is of made rows of 20 features, without training and without heads. *run* trains for two rounds and fits
router and heads with the default settings, by the commands that a user gives, in processes of their own. The *decision*
is of made weights, with one thread, beside the bare matrix product; its time is the shortest of 200. *stages* compares
the product of all clients with one in two stages. *gateway* starts ``feddrm serve`` as a process. Parts that are not
measured are kept from the file.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import torch
from torch import Tensor

from benchmarks.result import finish, peak_gib
from benchmarks.thousand_clients import DATA, digits, rows
from feddrm.data import Federation
from feddrm.router import Calibration, Recipe, Router, RouterSettings, fit_router, save_router
from feddrm.router.solver.problem import Scaler
from feddrm.serve.loaded_router import RouterQuery, decide
from feddrm.serve.server import keep_freed_memory
from feddrm.threads import intra_op_threads

PARTS = ("fit", "run", "decision", "stages", "gateway")
FIT_FEATURES, FEATURES, TEST_SAMPLES = 20, (20, 200, 512), 5
FEDDRM = [sys.executable, "-m", "feddrm"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--samples", type=int, default=70, help="training samples of a client")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    measures: dict[str, Callable[[], Any]] = {
        "fit": lambda: measure_fit(given.clients, given.samples),
        "run": lambda: {data: measure_run(data, given.clients) for data in DATA},
        "decision": lambda: {
            features: {rows: measure_decision(given.clients, features, rows) for rows in (1, 256)}
            for features in FEATURES
        },
        "stages": lambda: [measure_stages(clients, d) for clients in (1000, 10_000) for d in (20, 512, 2048)],
        "gateway": lambda: measure_gateway(given.clients),
    }
    known = json.loads(given.json.read_text()) if given.json is not None and given.json.exists() else {}
    figures = {"clients": given.clients, "samples": given.samples}
    for part in PARTS:
        if part in given.parts:
            figures[part] = measures[part]()
        elif part in known:
            figures[part] = known[part]
    finish(figures, given.json)


def measure_fit(
    clients: int, samples: int, features: int = FIT_FEATURES, classes: int = 2, heads: bool = False
) -> dict[str, Any]:
    """The fit of the router, without heads unless they are asked for; its peak is that of the process."""
    rng = np.random.default_rng(0)
    centres = (0.7 * rng.normal(size=(clients, 1, features))).astype(np.float32)

    def made(count: int) -> dict[str, Any]:
        x = centres + rng.standard_normal((clients, count, features), dtype=np.float32)
        return {f"site-{i:04}": (rows, np.arange(count) % classes) for i, rows in enumerate(x)}

    federation = Federation.from_arrays(made(samples), test=made(TEST_SAMPLES))
    before = peak_gib()
    started, busy = time.perf_counter(), time.process_time()
    chosen = fit_router(None, {}, federation, RouterSettings(features="raw", heads=heads)).chosen
    return {
        "features": features,
        "seconds": time.perf_counter() - started,
        "cpu_seconds": time.process_time() - busy,
        "peak_gib": peak_gib(),
        "peak_gib_before": before,
        **{key: chosen["router"][key] for key in ("ridge", "rounds", "converged", "held_out_accuracy")},
        "left_out": chosen.get("left_out", []),
    }


def measure_run(data: str, clients: int) -> dict[str, Any]:
    """``feddrm train`` and ``feddrm fit-router`` on the clients of benchmarks.thousand_clients, by default settings."""
    made = {"rows": rows, "digits": digits}[data](clients)
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        path, run = Path(folder) / "clients.npz", Path(folder) / "run"
        x, y = (np.concatenate(arrays) for arrays in zip(*made.values(), strict=True))
        np.savez(path, x=x, y=y, client=np.repeat(list(made), [len(own) for _, own in made.values()]))
        words = ["--data", "npz", "--set", f"data.path={path}", "--set", "training.participation=0.1", "--rounds", "2"]
        for name, command in {"train": ["train", *words, "--out", str(run)], "fit": ["fit-router", str(run)]}.items():
            started = time.perf_counter()
            with subprocess.Popen([*FEDDRM, *command], stdout=subprocess.DEVNULL) as process:
                _, status, usage = os.wait4(process.pid, 0)
                process.returncode = os.waitstatus_to_exitcode(status)
            if process.returncode:
                raise SystemExit(f"feddrm {command[0]} ended with {process.returncode}")
            figures[name] = {
                "seconds": time.perf_counter() - started,
                "cpu_seconds": usage.ru_utime + usage.ru_stime,
                "peak_gib": usage.ru_maxrss / 2**20,
            }
        figures["files_of_clients"] = len([path for path in (run / "clients").rglob("*") if path.is_file()])
        figures["left_out"] = json.loads((run / "summary.json").read_text())["router"].get("left_out", [])
    return figures


def made_query(clients: int, rows: int, features: int) -> tuple[Router, RouterQuery]:
    """A router of made weights, and a query of so many rows."""
    x = torch.randn(rows, features, generator=torch.Generator().manual_seed(1)).numpy()
    return made_router(clients, features), RouterQuery("features", x, "density", 1.0, (True,) * clients, 1.0)


def made_router(clients: int, features: int) -> Router:
    g = torch.Generator().manual_seed(0)
    return Router(
        tuple(f"site-{i:04}" for i in range(clients)),
        Recipe.parse("raw"),
        Scaler(torch.zeros(features), torch.ones(features)),
        0.1 * torch.randn(clients, features, generator=g),
        torch.randn(clients, generator=g),
        torch.full((clients,), 1 / clients).log(),
        calibration=Calibration(1.3),
        shape=(features,),
    )


def measure_decision(clients: int, features: int, rows: int) -> dict[str, float]:
    """Milliseconds of the product, of the decision as the gateway computes it, and with the best ten or all ranked."""
    keep_freed_memory()  # as the gateway does
    router, query = made_query(clients, rows, features)
    x, weight = torch.from_numpy(query.x), router.weight.T.contiguous()
    with intra_op_threads(1), torch.inference_mode():
        # In turns, because a core's clock is not the same all the time.
        turns = [(shortest(lambda: x @ weight, 1), shortest(lambda: decide(router, [query]), 1)) for _ in range(200)]
        times = {
            "product_ms": min(product for product, _ in turns),
            "decision_ms": min(decision for _, decision in turns),
            "with_best_ten_ms": shortest(lambda: decide(router, [query])[0].best(10)),
            "with_ranking_ms": shortest(lambda: decide(router, [query])[0].rankings),
        }
    return {**times, "share_of_product": times["product_ms"] / times["decision_ms"]}


def measure_stages(clients: int, features: int) -> dict[str, Any]:
    """One product over all clients against two stages, groups of clients first.

    The clients' means lie around those of sqrt(clients) groups, which the two stages know: their best case. Queries are
    normal around their client's mean, so a score is half the squared distance. ``one_group`` computes one group per
    query and says nothing about the others. ``needed`` is the share of groups that an answer needs whose probabilities
    are exact to 1e-3: those that the triangle inequality cannot exclude.
    """
    g, groups = torch.Generator().manual_seed(0), round(clients**0.5)
    size = clients // groups
    centres = torch.randn(groups, features, generator=g) * 6 / features**0.5
    means = centres[:, None] + torch.randn(groups, size, features, generator=g) * 4 / features**0.5
    radius = (means - centres[:, None]).norm(dim=2).amax(1)
    flat = means.flatten(0, 1)
    x = flat[torch.randint(len(flat), (256,), generator=g)] + torch.randn(256, features, generator=g)
    far = (torch.cdist(x, centres) - radius).clamp(min=0).square() / 2
    best = torch.cdist(x, flat).square().amin(1) / 2
    needed = (far - best[:, None] < -math.log(1e-3 / clients)).double().mean()
    inside = torch.cdist(x, flat).argmin(1) // size == torch.cdist(x, centres).argmin(1)
    figures: dict[str, Any] = {"clients": clients, "features": features, "groups": groups}
    weights, to_groups, bias = flat.T.contiguous(), centres.T.contiguous(), flat.square().sum(1) / 2
    repeats = max(5, int(2e9 / (clients * features * 256)))

    def dense(rows: Tensor) -> Tensor:
        return (rows @ weights).sub_(bias).softmax(1)

    def one_group(rows: Tensor) -> list[Tensor]:
        chosen = (rows @ to_groups).argmax(1)
        return [(rows[chosen == c] @ means[c].T).softmax(1) for c in chosen.unique().tolist()]

    with intra_op_threads(1), torch.inference_mode():
        for rows in (1, 256):
            figures[f"dense_ms_{rows}"] = shortest(lambda rows=rows: dense(x[:rows]), min(200, repeats))  # type: ignore[misc]
            figures[f"one_group_ms_{rows}"] = shortest(lambda rows=rows: one_group(x[:rows]), min(200, repeats))  # type: ignore[misc]
    return {**figures, "needed": float(needed), "best_client_in_first_group": float(inside.double().mean())}


def measure_gateway(clients: int) -> dict[str, Any]:
    """A gateway as a process: how long until it is ready, with and without ``clients.yaml``, and one query."""
    with tempfile.TemporaryDirectory() as folder:
        run, router = Path(folder), made_router(clients, 200)
        save_router(run / "router", router, classes=10, notes={"classes": [str(i) for i in range(10)]})
        listed = run / "clients.yaml"
        listed.write_text(
            "".join(f"{name}: {{url: 'http://127.0.0.1:9'}}\n" for name in router.names)
        )  # nobody listens
        return {
            "routing_only": _start(run, []),
            "with_clients_yaml": _start(run, ["--clients", str(listed)]),
        }


def _start(run: Path, options: list[str]) -> dict[str, Any]:
    started = time.perf_counter()
    command = [*FEDDRM, "serve", str(run), "--port", "0", "--log-level", "error", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = process.stdout.readline().split()[-1]
        while True:
            with contextlib.suppress(httpx.HTTPError):
                if httpx.get(f"{url}/v2/health/ready").status_code == 200:
                    break
            time.sleep(0.02)
        seconds = time.perf_counter() - started
        ticks = Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()[11:13]
        body, times = {"features": [[0.0] * 200], "max_away": 1}, []
        with httpx.Client(base_url=url) as http:
            for _ in range(50):
                began = time.perf_counter()
                answer = http.post("/v1/route", json=body)
                times.append(time.perf_counter() - began)
            size = {top: len(http.post("/v1/route", json={**body, "top": top}).content) for top in (10, 10_000)}
        answer.raise_for_status()
        process.terminate()
    return {
        "start_seconds": seconds,
        "start_cpu_seconds": sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK"),
        "route_ms": 1000 * min(times),
        "answer_bytes": {"best_ten": size[10], "all": size[10_000]},
    }


def shortest(work: Callable[[], object], repeats: int = 200) -> float:
    """The time of the fastest of many calls in milliseconds: other processes only add to it."""
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return 1000 * min(times)


if __name__ == "__main__":
    main()

"""A small trained run, and processes on this machine that serve it."""

from __future__ import annotations

import io
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="pip install 'feddrm[serve]' to run this")
pytest.importorskip("uvicorn", reason="pip install 'feddrm[serve]' to run this")

import httpx
import numpy as np
import torch
from PIL import Image

from feddrm.data import load
from feddrm.errors import FeddrmError
from feddrm.models import Mlp
from feddrm.runs import train
from serving import NAMES, PATIENTS, Hospitals, Launch, launcher


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on three clients' digits after a few rounds, with a router on the trunk's embedding."""
    path = tmp_path_factory.mktemp("serve") / "run"
    digits = load("digits", clients=3, seed=3)
    assert digits.names == NAMES
    settings = {"rounds": 4, "local_steps": 4, "batch_size": 16, "seed": 3, "model": Mlp(hidden=(32, 16), branch=16)}
    train(digits, "feddrm", out=path, **settings).fit_router(features="embedding", joint=False)
    return path


@pytest.fixture(scope="session")
def table_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on two clinics' tables with a schema; one clinic has older patients."""
    folder = tmp_path_factory.mktemp("tables")
    (folder / "schema.yaml").write_text(PATIENTS)
    rng = np.random.default_rng(0)
    (folder / "tables").mkdir()
    for name, age in (("oslo", 70), ("lima", 30)):
        rows = [
            f"{age + rng.integers(-8, 8)},{i % 2},{('', '1', '2', '3')[i % 4]},{rng.integers(150, 300)},{i % 2}"
            for i in range(40)
        ]
        (folder / "tables" / f"{name}.csv").write_text("\n".join(["age,sex,cp,chol,ill", *rows]) + "\n")
    data = {"path": str(folder / "tables"), "label": "ill", "schema": str(folder / "schema.yaml")}
    settings = {"rounds": 2, "local_steps": 2, "batch_size": 8, "seed": 3, "model": Mlp(hidden=(8, 8), branch=8)}
    train("csv", "feddrm", data_settings=data, out=folder / "run", **settings).fit_router(joint=False)
    return folder / "run"


@pytest.fixture(scope="module")
def launch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launch]:
    """Starts ``feddrm WORDS``; all processes are stopped at the end of the module."""
    yield from launcher(tmp_path_factory.mktemp("logs"))


@pytest.fixture(scope="session")
def demo(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a gateway with all its clients on this machine."""
    logs = tmp_path_factory.mktemp("demo")
    for start in launcher(logs):
        words = ["--audit", logs / "audit.sqlite", "--use-log", logs / "uses.sqlite", "--drift"]
        process = start("serve", run, "--demo", "--port", 0, *words)
        url = process.wait_ready()
        until = time.monotonic() + 60  # the clients start after the gateway
        while not all(c["healthy"] for c in httpx.get(f"{url}/v1/clients").json()["clients"]):
            assert time.monotonic() < until, process.log.read_text()
            time.sleep(0.1)
        yield url
        assert "Traceback" not in process.whole_log()


@pytest.fixture(scope="module")
def http(demo: str) -> Iterator[httpx.Client]:
    """A connection to the demo's gateway."""
    with httpx.Client(base_url=demo, timeout=30) as client:
        yield client


@pytest.fixture(scope="module")
def tables(table_run: Path, launch: Launch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A gateway without clients that routes rows of a table."""
    audit = tmp_path_factory.mktemp("audit") / "a.sqlite"
    with httpx.Client(base_url=launch("serve", table_run, "--port", 0, "--audit", audit).wait_ready()) as client:
        yield client


@pytest.fixture(scope="module")
def hospitals(tmp_path_factory: pytest.TempPathFactory, launch: Launch) -> Iterator[Hospitals]:
    """The hospitals' predictors and a gateway; skipped without the data."""
    try:
        heart = load("heart")
    except FeddrmError as error:
        pytest.skip(str(error))
    made = Hospitals(heart, tmp_path_factory.mktemp("hospitals"), launch)
    yield made
    made.http.close()


@pytest.fixture(scope="session")
def images() -> torch.Tensor:
    """Six test images of every client."""
    return torch.cat([client.test.x[:6] for client in load("digits", clients=3, seed=3).clients])


@pytest.fixture(scope="session")
def png_file(images: torch.Tensor) -> bytes:
    """The first of the images as a PNG file."""
    out = io.BytesIO()
    Image.fromarray(images[0, 0].numpy()).save(out, "PNG")
    return out.getvalue()

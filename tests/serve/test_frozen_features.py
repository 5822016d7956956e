"""A fit without rounds, on images through an ONNX file, is served by real processes."""

from __future__ import annotations

from pathlib import Path

import httpx
import numpy as np
import pytest
import yaml

import feddrm
from feddrm.data import load
from serving import Launch

pytestmark = pytest.mark.slow
pytest.importorskip("onnxruntime", reason="pip install 'feddrm[export]' to run this")
from onnx_files import write_extractor  # noqa: E402


def test_gateway_and_clients_answer_as_the_folder_does(tmp_path: Path, launch: Launch):
    file = write_extractor(tmp_path / "extractor.onnx", width=24)
    settings = {"clients": 3, "seed": 0}
    model = feddrm.Model.make("onnx", path=str(file))
    run = feddrm.fit("digits", out=tmp_path / "run", model=model, data_settings=settings)
    file.unlink()  # the run carries it
    images = load("digits", **settings).clients[0].test.x[:6]
    expected = run.predict(images, abstain="answer")
    clients = {}
    processes = {name: launch("serve-client", run.path / "clients" / name, "--port", 0) for name in run.router().names}
    for name, process in processes.items():
        clients[name] = {"url": process.wait_ready()}
    (tmp_path / "clients.yaml").write_text(yaml.safe_dump(clients))
    gateway = launch("serve", run.path, "--clients", tmp_path / "clients.yaml", "--port", 0).wait_ready()
    reply = httpx.post(f"{gateway}/v1/predict", json={"inputs": images.tolist()}, timeout=60).raise_for_status()
    answers = reply.json()["answers"]
    assert [answer["client"] for answer in answers] == list(expected.client)
    given = [(a["label"], e) for a, e in zip(answers, expected.labels, strict=True) if a["label"] is not None]
    assert given
    assert all(label == wanted for label, wanted in given)
    np.testing.assert_allclose(
        [answer["client_probability"] for answer in answers], expected.client_probability, atol=1e-5
    )

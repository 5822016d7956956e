"""``feddrm predict --client`` on a run without a router: pictures, tables, and what needs a router."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image

from cli.conftest import assert_one_line, call
from feddrm.data import load
from feddrm.models import Mlp
from feddrm.runs import Run, train

pytestmark = pytest.mark.slow


def test_one_client_is_asked_before_a_router_is_fitted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture, folder = str(tmp_path / "fax.png"), str(tmp_path / "run")
    federation = load("digits", clients=3, seed=3)
    train(federation, "fedrep", out=folder, rounds=2, local_steps=2, batch_size=16, seed=3, model=Mlp(hidden=(16,)))
    samples, sure = federation.clients[2].test.x[:1], set()
    Image.fromarray(samples[0, 0].numpy()).save(picture)
    for name in ("flatbed", "negative", "fax"):
        code, out, err = call(capsys, "predict", folder, picture, "--client", name, "--json")
        assert (code, err) == (0, "")
        assert json.loads(out) == Run.open(folder).predict(samples, client=name).as_dicts([picture])
        sure.add(json.loads(out)[0]["label_probability"])
    assert len(sure) == 3
    for words, says in (
        ([], "fit it with 'feddrm fit-router'"),
        (["--client", "faxx"], "did you mean 'fax'"),
        (["--client", "fax", "--consult", "2"], "has no router, which consult needs"),
        (["--client", "fax", "--without", "quito"], "unknown client 'quito'"),
    ):
        assert_one_line(call(capsys, "predict", folder, picture, *words), 1, says)
    columns = "dose,age,outcome,hospital"
    rows = [f"{i % 7},{40 + i % 5},{i % 2},{place}" for place in ("oslo", "lima") for i in range(40)]
    (tmp_path / "visits.csv").write_text("\n".join([columns, *rows]))
    settings = {"path": str(tmp_path / "visits.csv"), "label": "outcome", "client": "hospital", "schema": "auto"}
    words = [word for name, value in settings.items() for word in ("--set", f"data.{name}={value}")]
    words = ["--data", "csv", *words, "--method", "fedrep", "--rounds", "2", "--out", str(tmp_path / "visits")]
    assert call(capsys, "train", *words, "--json")[0] == 0
    (tmp_path / "patients.csv").write_text("age,dose,id\n41,3,a\n44,6,b\n")
    words = ["predict", str(tmp_path / "visits"), str(tmp_path / "patients.csv"), "--client", "lima"]
    code, out, err = call(capsys, *words, "--ignore", "id", "--json")
    assert (code, err) == (0, "")
    x = load("csv", **settings).schema.encode_named([{"age": 41, "dose": 3}, {"age": 44, "dose": 6}])
    expected = Run.open(tmp_path / "visits").predict(x, client="lima")
    assert [row["label_probability"] for row in json.loads(out)] == expected.label_probability.tolist()

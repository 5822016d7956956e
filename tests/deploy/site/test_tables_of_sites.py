"""Tables of several sites in one federation: classes, a schema from a file, a schema made of the sites' sums."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
import yaml

from deployment import NAMES, QUICK_ROUTING, Deployed, DirectTransport
from feddrm.data import Federation
from feddrm.data.sources.labelled_samples import Division, divide
from feddrm.deploy.flower.apps import site_at
from feddrm.deploy.provision.project import make_project
from feddrm.deploy.server.federation_settings import FederationSettings
from feddrm.deploy.site.site import Site
from feddrm.deploy.site.site_dataset import read_site_dataset
from feddrm.deploy.wire.messages import Message, unpack
from feddrm.predictor.query_files import read_queries
from feddrm.router.features.decorrelated_inputs import SHRINKAGE, strangeness
from feddrm.router.fit.calibration import STRANGER
from feddrm.runs import Run
from feddrm.tables.table_schema import TableSchema
from refusal import refused


@pytest.mark.slow
def test_tables_of_three_sites_train_together(tmp_path: Path) -> None:
    """A class that only one site has is known to all."""
    site_at.cache_clear()
    training = {"rounds": 2, "local_steps": 2, "batch_size": 8}
    settings = FederationSettings(clients=NAMES, training=training, router=False)
    make_project(tmp_path / "f", settings)
    rng = np.random.default_rng(0)
    for i, name in enumerate(NAMES):
        site = tmp_path / "f" / "sites" / name
        labels = ["ill", "well", "unknown"][: 2 + (i == 2)]
        lines = [f"{rng.normal():.3f},{rng.normal():.3f},{labels[k % len(labels)]}" for k in range(30)]
        (site / "visits.csv").write_text("age,dose,outcome\n" + "\n".join(lines) + "\n")
        config = yaml.safe_load((site / "site.yaml").read_text())
        config["data"] = {"csv": "visits.csv", "label": "outcome"}
        (site / "site.yaml").write_text(yaml.safe_dump(config))
    deployment = Deployed(tmp_path / "f", settings)
    deployment.server().go()
    assert not deployment.complaints
    spec = deployment.server().run_spec()
    assert spec.classes == ("ill", "unknown", "well")
    assert spec.columns == ("age", "dose")
    assert spec.sizes == (21, 21, 21)


SCHEMA = """\
columns:
- {name: age, kind: number, unit: years, centre: 50, scale: 10, maximum: 120}
- {name: smoker, kind: category, missing: true, categories: {0: no, 1: yes}}
"""


@pytest.mark.slow
def test_raw_tables_of_sites_become_a_router_that_takes_raw_queries(tmp_path: Path) -> None:
    """The server knows the schema and pooled sums; the sites and the artifact agree on the schema."""
    site_at.cache_clear()
    training = {"rounds": 1, "local_steps": 2, "batch_size": 8}
    settings = FederationSettings(clients=NAMES, training=training, routing=QUICK_ROUTING)
    make_project(tmp_path / "f", settings)
    inputs = []
    for i, name in enumerate(NAMES):
        site = tmp_path / "f" / "sites" / name
        lines = [f"{30 + 10 * i + k % 7},{('yes', 'no', '')[k % 3]},{k % 2}" for k in range(30)]
        (site / "visits.csv").write_text("age,smoker,ill\n" + "\n".join(lines) + "\n")
        (site / "schema.yaml").write_text(SCHEMA)
        config = yaml.safe_load((site / "site.yaml").read_text())
        config["data"] = {"csv": "visits.csv", "label": "ill", "schema": "schema.yaml"}
        (site / "site.yaml").write_text(yaml.safe_dump(config))
        dataset = read_site_dataset(name, config["data"], site)
        assert dataset.columns == ("age", "smoker", "smoker_missing")
        inputs.append(dataset.client(("0", "1")).train.x)
    deployment = Deployed(tmp_path / "f", settings)
    deployment.server().go()
    assert not deployment.complaints
    run = Run.open(deployment.run)
    router, pooled = run.router(), torch.cat(inputs).double()
    assert router.schema == TableSchema.load(tmp_path / "f" / "sites" / NAMES[0] / "schema.yaml")
    assert json.loads((run.path / "data.json").read_text())["schema"] == router.schema.as_dict()
    assert router.usual is not None
    assert torch.allclose(router.usual.mean.double(), pooled.mean(0), atol=1e-5)
    assert torch.allclose(router.usual.scale.double(), pooled.std(0, correction=0), atol=1e-5)
    assert router.decorrelated is not None
    rows = router.scaler(router.features(torch.cat(inputs)))
    table, matrix = rows[:, router.decorrelated.places].double(), router.decorrelated.matrix.double()
    shrunk = table.T @ table / len(table) + SHRINKAGE * table.square().mean(0).max() * torch.eye(3)
    torch.testing.assert_close(matrix @ matrix, torch.linalg.inv(3 * shrunk), rtol=1e-4, atol=1e-5)
    strangest = float(strangeness(rows, router.decorrelated).max())
    assert router.calibration.unlike_above == pytest.approx(STRANGER * strangest, rel=1e-5)
    (tmp_path / "q.csv").write_text("age,smoker\n50,yes\n130,?\n")
    decision = router.route(read_queries(router, [tmp_path / "q.csv"])[0])
    assert decision.reason[1] == "a value cannot be"
    assert (decision.flags[0], decision.flags[1][0].value) == ((), 130)
    # A site whose schema has changed since takes no part any more.
    (tmp_path / "f" / "sites" / NAMES[0] / "schema.yaml").write_text(SCHEMA.replace("120", "110"))
    changed = Site(tmp_path / "f" / "sites" / NAMES[0])
    spec = deployment.server().run_spec()
    with refused("encodes its rows by the schema", "start a new run"):
        changed._run_of(Message({"brief": spec.as_dict(), "after": 0}, {}))


HEADERS = (["age", "sex", "chol", "ill"], ["ill", "chol", "sex", "age"], ["age", "sex", "chol", "ill"])


def site_rows(number: int) -> list[dict[str, str]]:
    """Gaps at one site only, a level that one site alone has, and one site with a single level."""
    random = np.random.default_rng(number)
    sexes = (["f", "m"], ["f"], ["f", "m", "x"])[number]
    return [
        {
            "age": f"{random.normal(40 + 10 * number, 8):.3f}",
            "sex": sexes[k % len(sexes)],
            "chol": "" if number == 2 and k % 5 == 0 else f"{random.normal(240, 50):.2f}",
            "ill": str(k % 2),
        }
        for k in range(30)
    ]


@pytest.fixture
def auto_project(tmp_path: Path) -> Deployed:
    """Sites whose schema follows from all their columns' sums."""
    site_at.cache_clear()
    training = {"rounds": 1, "local_steps": 2, "batch_size": 8}
    settings = FederationSettings(clients=NAMES, training=training, routing=QUICK_ROUTING)
    make_project(tmp_path / "f", settings)
    deployment = Deployed(tmp_path / "f", settings)
    for i, name in enumerate(NAMES):
        pd.DataFrame(site_rows(i))[HEADERS[i]].to_csv(deployment.site_folder(name) / "visits.csv", index=False)
        deployment.change_site(name, data={"csv": "visits.csv", "label": "ill", "schema": "auto"})
    return deployment


@pytest.mark.slow
def test_sites_get_the_schema_that_one_process_makes_of_all_tables(auto_project: Deployed) -> None:
    """Schema and network inputs are equal to the bit, no message is added, and no cell travels."""
    transport = DirectTransport(auto_project.folder)
    server = auto_project.server(transport)
    server.go()
    assert not auto_project.complaints
    spec, train, test = server.run_spec(), {}, {}
    for i, name in enumerate(NAMES):
        rows = pd.DataFrame(site_rows(i))
        first, rest = divide(name, {name: len(rows)}, Division(0.3, 2025))[name]
        train[name], test[name] = rows.iloc[first], rows.iloc[rest]
    pooled = Federation.from_csv(train, test=test, label="ill", schema="auto")
    assert pooled.schema is not None
    assert spec.schema == pooled.schema.as_dict()
    for client in pooled.clients:
        own = auto_project.site(client.name)._run_of(Message({"brief": spec.as_dict()}, {})).client
        for mine, expected in ((own.train, client.train), (own.test, client.test)):
            assert torch.equal(mine.x, expected.x)
            assert torch.equal(mine.y, expected.y)
    kinds = [
        unpack(signed[2 + int.from_bytes(signed[:2], "big") :]).header.get("kind") for *_, signed in transport.messages
    ]
    assert kinds.count("hello") == len(NAMES)
    assert set(kinds) == {"hello", "train", "fit", "finish", None}
    everything = b"".join(content for _, _, content in transport.messages)
    cells = {row[column] for i in range(3) for row in site_rows(i) for column in ("age", "chol")} - {""}
    assert not [cell for cell in cells if cell.encode() in everything]
    router = Run.open(auto_project.run).router()
    assert router.schema == pooled.schema
    assert len(router.route(pd.DataFrame(site_rows(0))[["age", "sex", "chol"]]).client) == 30


@pytest.mark.slow
def test_a_row_that_the_runs_schema_cannot_encode_is_named_at_its_site_only(
    auto_project: Deployed, caplog: pytest.LogCaptureFixture
) -> None:
    spec = auto_project.server().run_spec()
    path = auto_project.site_folder("oslo") / "visits.csv"
    path.write_text(path.read_text().replace(",m,", ",secret,"))
    auto_project.restart_sites()
    request = Message({"brief": spec.as_dict(), "after": 0}, {})
    with refused("holds a row that this run's schema cannot encode (see its log)", "start a new run") as caught:
        auto_project.site("oslo")._run_of(request)
    assert "secret" not in str(caught.value)
    assert "secret" in caplog.text
    older = {**spec.as_dict(), "schema": None}
    with refused("needs a server that makes schemas ('schema: auto')", "the same feddrm"):
        auto_project.site("lima")._run_of(Message({"brief": older, "after": 0}, {}))
    path.write_text("age,weight,ill\n" + "\n".join(f"{i},{i},{i % 2}" for i in range(30)) + "\n")
    auto_project.restart_sites()
    with refused("holds other columns than this run's schema has"):
        auto_project.site("oslo")._run_of(request)

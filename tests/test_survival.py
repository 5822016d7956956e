"""Survival from end to end: training, router, report and predictions by C-index, and what is refused."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lifelines.utils import concordance_index

import feddrm
from commands import feddrm_command
from feddrm.data import Federation, load
from feddrm.deploy.site import site_dataset
from feddrm.methods import Method
from feddrm.models import Mlp
from feddrm.predictor.predictor import Predictor
from feddrm.report.report_page import report_page
from feddrm.report.run_record import RunRecord
from feddrm.report.run_table import report_table
from feddrm.router import fit_router
from feddrm.runs import Run, RunFolder, train, training_session
from feddrm.runs.run_membership import leave_run_router
from feddrm.serve.loaded_router import LoadedRouter
from feddrm.serve.predictor.predictor_app import build_predictor
from feddrm.serve.settings import GatewaySettings, PredictorSettings
from feddrm.serve.telemetry.metrics import Metrics
from kill_points import count_operations, kill
from patients import TASK, survival_federation, write_followup, write_tcga_brca
from refusal import refused
from runs.conftest import SMALL, files

pytestmark = pytest.mark.slow

SETTINGS: dict[str, Any] = {
    "rounds": 20, "local_steps": 10, "batch_size": 32, "lr": 0.05, "seed": 1, "model": Mlp(hidden=(16,), branch=8),
}  # fmt: skip
ROUTED = {"exact_density", "exact_posterior", "consult_2", "consult_all"}


@pytest.fixture(scope="module")
def federation() -> Federation:
    return survival_federation()


@pytest.fixture(scope="module")
def run(federation: Federation, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """FedDRM with its exact router."""
    trained = train(federation, "feddrm", out=tmp_path_factory.mktemp("survival") / "run", **SETTINGS)
    trained.fit_router()
    return trained


def pooled(federation: Federation) -> tuple[torch.Tensor, np.ndarray, np.ndarray]:
    """All test samples, their days, and whether the event was seen."""
    labels = torch.cat([client.test.y for client in federation.clients])
    x = torch.cat([client.test.x for client in federation.clients])
    return x, (labels // 2).numpy(), (labels % 2).numpy()


def test_the_summary_has_c_indices_and_nothing_that_needs_classes(run: Run) -> None:
    summary = run.summary
    assert summary is not None
    assert summary["system_c_index"].keys() == {"averaged", "head_density", "head_posterior", *ROUTED}
    assert summary["average_c_index"]["mean"] > 0.65
    assert summary["oracle_c_index"]["mean"] > 0.65
    assert summary["system_c_index"]["exact_density"]["mean"] > 0.6
    assert summary["client_accuracy"]["exact_density"]["mean"] > 0.65
    absent = {"metrics", "average_accuracy", "system_accuracy", "oracle_accuracy", "collapsed"}
    assert not absent & summary.keys()
    assert not {"answers", "label_sets", "coverage", "refit_oracle_accuracy"} & summary["router"].keys()
    evaluation = json.loads((run.path / "evaluation.json").read_text())
    assert not {"votes", "class_confusion", "answer_reliability"} & evaluation.keys()
    assert evaluation["per_client"][0]["events"] > 10
    assert not list(run.path.glob("clients/*/temperature.json"))


def test_the_system_c_index_is_that_of_the_predicted_risks(run: Run, federation: Federation) -> None:
    x, days, event = pooled(federation)
    assert run.summary is not None
    figures = run.summary["system_c_index"]
    for rule in ("density", "posterior"):
        answers = run.predict(x, rule=rule, abstain="answer")
        expected = concordance_index(days, -answers.risk.numpy(), event)
        assert figures[f"exact_{rule}"]["mean"] == pytest.approx(expected, abs=1e-3)
    mixed = run.predict(x, rule="posterior", consult=3, abstain="answer")
    expected = concordance_index(days, -mixed.risk.numpy(), event)
    assert figures["consult_all"]["mean"] == pytest.approx(expected, abs=1e-3)


def test_evaluate_measures_the_same(run: Run) -> None:
    figures, summary = run.evaluate(), run.summary
    assert summary is not None
    for rule in ROUTED:
        assert figures["system_c_index"][rule] == pytest.approx(summary["system_c_index"][rule]["mean"], abs=1e-12)
    assert figures["average_c_index"] == run.metrics()[-1]["average_c_index"]
    assert "metrics" not in figures


def test_predictions_are_curves(run: Run, federation: Federation) -> None:
    answers = run.predict(federation.clients[0].test.x[:5], abstain="answer")
    assert repr(answers) == "Answers(5 curves for 5 queries, 4 intervals)"
    assert answers.labels == (None,) * 5
    assert bool((answers.probabilities.diff(dim=1) <= 0).all())
    entry = answers.as_dicts(list("abcde"))[0]
    assert list(entry["survival"]) == [str(day) for day in TASK.edges]
    assert entry["risk"] == pytest.approx(-sum(entry["survival"].values()))
    assert not {"label", "label_probability", "probabilities"} & entry.keys()
    header, rows = answers.csv_table(list("abcde"))
    assert header[1] == "risk"
    assert header[-4:] == [f"survival to day {day}" for day in TASK.edges]
    assert rows[0][-4:] == list(entry["survival"].values())


def test_a_query_that_nobody_answers_has_no_curve(run: Run) -> None:
    entry = run.predict(torch.full((1, 4), 1e3)).as_dicts(["far"])[0]
    assert entry["abstain"]
    assert entry["risk"] is None
    assert entry["survival"] is None


def test_the_report_speaks_of_the_c_index(run: Run, federation: Federation, tmp_path: Path) -> None:
    other = train(federation, "fedavg", out=tmp_path / "fedavg", **SETTINGS)
    table = report_table([run.path, other.path])
    page = report_page(table)
    assert "C-index in percent" in page
    assert "Average C-index" in page
    assert "samples per client and interval" in page
    assert "Test events" in page
    words = set(re.findall(r"(\w+) accuracy", re.sub(r"<[^>]*>", " ", page)))
    assert {word.lower() for word in words} <= {"client"}
    assert "average_c_index.mean" in table.csv()
    assert table.values()[0]["system_c_index"].keys() >= ROUTED
    digits = train(load("digits", clients=2, seed=0), "fedavg", out=tmp_path / "digits", **SMALL)
    with refused("some runs are measured by accuracy, some by C-index: report them apart"):
        report_table([run.path, digits.path])


def test_one_answer_per_query_gives_the_same_c_indices(run: Run, federation: Federation, tmp_path: Path) -> None:
    copy = Run.open(shutil.copytree(run.path, tmp_path / "run"))
    copy.fit_router(federation, part_bytes=1)
    assert copy.summary is not None
    assert run.summary is not None
    figures, whole = (summary["system_c_index"] for summary in (copy.summary, run.summary))
    assert figures == {name: whole[name] for name in whole if not name.startswith("consult")}
    (line,) = copy.summary["router"]["left_out"]
    assert line.startswith("answers of all clients to all test samples: left out")


def test_the_global_model_of_fedavg(federation: Federation, tmp_path: Path) -> None:
    trained = train(federation, "fedavg", out=tmp_path / "run", **SETTINGS, evaluation={"window": 1})
    assert trained.summary is not None
    trained.fit_router()
    x, days, event = pooled(federation)
    risk = trained.predict(x, client="lima").risk.numpy()
    expected = concordance_index(days, -risk, event)
    assert trained.summary["global_c_index"]["mean"] == pytest.approx(expected, abs=1e-3)
    assert trained.summary["oracle_c_index"] == trained.summary["global_c_index"]
    assert "average C-index" in repr(trained)


def test_progress_shows_the_c_index(
    federation: Federation, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("feddrm.progress.SECONDS_BETWEEN_LINES", -1.0)
    trained = train(federation, "fedavg", out=tmp_path / "run", progress=True, **SETTINGS | {"rounds": 2})
    last = 100 * trained.metrics()[-1]["average_c_index"]
    assert f"average C-index {last:.1f} %" in capsys.readouterr().err


@pytest.mark.parametrize("name", sorted(Method.family))
def test_every_method_trains_or_is_refused(name: str, federation: Federation, tmp_path: Path) -> None:
    method = Method.make(name)
    if method.needs_classes:
        with refused(f"method '{name}' as it is set needs classes, and the task of these data is survival"):
            feddrm.fit(federation, method, out=tmp_path / "run")
        return
    trained = train(federation, method, out=tmp_path / "run", **SETTINGS | {"rounds": 2})
    assert trained.summary is not None
    assert math.isfinite(trained.metrics()[-1]["loss"])
    assert 0 < trained.summary["average_c_index"]["mean"] < 1


@pytest.mark.parametrize("name", ["fedas", "fedpac"])
def test_variants_that_use_class_means_are_refused(name: str, federation: Federation, tmp_path: Path) -> None:
    with refused("needs classes", "choose another method"):
        train(federation, Method.make(name, variant="original"), out=tmp_path / "run", **SETTINGS)
    assert not (tmp_path / "run").exists()


def test_what_needs_classes_is_refused(run: Run, federation: Federation, tmp_path: Path) -> None:
    x = federation.clients[0].test.x[:2]
    with refused("a label set needs classes", "leave out label_miss"):
        run.predict(x, label_miss=0.1)
    with refused("the refitted head needs classes", "give --answer trained"):
        run.predict(x, answer="refit")
    with refused("joint=True needs classes"):
        run.fit_router(joint=True)
    with refused("a gateway needs classes", "feddrm predict"):
        LoadedRouter.load(run.folder.router, GatewaySettings(), Metrics())
    with refused("a client's service needs classes", "feddrm predict"):
        build_predictor(Predictor.load(run.path / "clients" / "oslo"), PredictorSettings())
    with refused("a search needs classes", "feddrm report"):
        feddrm.tune(federation, "fedavg", out=tmp_path / "search")


def test_a_site_is_refused(federation: Federation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site_dataset, "load", lambda _: federation)
    with refused("a deployed federation of 'patients' needs classes", "feddrm train"):
        site_dataset.read_site_dataset("oslo", {"dataset": "patients"}, Path())


def test_p_values_are_refused(run: Run) -> None:
    predictor = Predictor.load(run.path / "clients" / "oslo")
    with refused("a p-value needs classes"):
        predictor.p_values(np.full((1, 4), 0.5))


def test_a_router_without_a_client_still_gives_curves(run: Run, federation: Federation, tmp_path: Path) -> None:
    copy = RunFolder(Path(shutil.copytree(run.path, tmp_path / "copy")))
    leave_run_router(copy, ["lima"])
    answers = Run.open(copy.path).predict(federation.clients[0].test.x[:3], abstain="answer")
    assert answers.task == TASK
    assert {name for asked in answers.answered for name in asked} <= {"oslo", "pune"}


@pytest.mark.documented
def test_the_commands_of_the_documentation_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (Path(__file__).parents[1] / "docs" / "survival.md").read_text()
    blocks = re.findall(r"```console\n(.*?)```", text, flags=re.DOTALL)
    monkeypatch.setenv("FEDDRM_DATA", str(tmp_path))
    shutil.copy(write_tcga_brca(tmp_path / "tcga_brca") / "brca.csv", tmp_path / "patients.csv")
    write_followup(tmp_path / "followup.csv")
    for line in "".join(blocks).replace("--rounds 40", "--rounds 2").splitlines():
        result = feddrm_command(*line.split()[1:], cwd=tmp_path)
        assert result.returncode == 0, result.stderr
        assert result.stdout.strip()


def test_a_router_in_few_messages_needs_no_classes(federation: Federation) -> None:
    settings = feddrm.router.RouterSettings(few_messages=True)
    assert fit_router(None, {}, federation, settings).heads is None


def test_an_interrupted_run_goes_on_with_the_same_bits(federation: Federation, tmp_path: Path) -> None:
    whole = train(federation, "feddrm", out=tmp_path / "whole", **SETTINGS)

    def stop(result: Any, metrics: Any, rounds: int) -> None:
        if result.state.round == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(federation, "feddrm", out=tmp_path / "run", on_round=stop, **SETTINGS)
    resumed = train(federation, "feddrm", out=tmp_path / "run", **SETTINGS)
    assert files(resumed.path) == files(whole.path)


def test_a_killed_run_goes_on_with_the_same_bits(
    federation: Federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training_session, "CHECKPOINT_SECONDS", 0.0)
    monkeypatch.setattr(training_session, "CHECKPOINT_SHARE", 1e9)
    settings = SETTINGS | {"rounds": 4}
    whole = files(train(federation, "feddrm", out=tmp_path / "whole", **settings).path)
    total = count_operations(lambda: train(federation, "feddrm", out=tmp_path / "counted", **settings))
    for point in (total // 4, total // 2, 3 * total // 4):
        out = tmp_path / f"run-{point}"
        kill(lambda out=out: train(federation, "feddrm", out=out, **settings), point)
        assert files(train(federation, "feddrm", out=out, **settings).path) == whole


@pytest.mark.data
@pytest.mark.parametrize("method", ["fedavg", "feddrm", "local"])
def test_the_real_data(method: str, tmp_path: Path) -> None:
    if not (Path(os.environ.get("FEDDRM_DATA") or "nowhere") / "tcga_brca").exists():
        pytest.skip("FEDDRM_DATA has no Fed-TCGA-BRCA files")
    trained = train("tcga_brca", method, out=tmp_path / "run", rounds=20, seed=0)
    trained.fit_router()
    summary = trained.summary
    assert summary is not None
    figures = [value["mean"] for value in summary["system_c_index"].values()]
    figures += [summary[f"{kind}_c_index"]["mean"] for kind in ("average", "oracle")]
    assert all(0.5 < value < 0.95 for value in figures), figures
    assert summary["client_accuracy"]["exact_posterior"]["mean"] > 0.45  # the largest region has 28 % of the patients
    record = RunRecord.read(trained.path)
    assert record.noun == "C-index"
    assert [client.events for client in record.clients] == [14, 4, 8, 3, 2, 1]

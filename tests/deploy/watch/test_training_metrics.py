"""The training's metrics, read as Prometheus reads them."""

from __future__ import annotations

import json
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from feddrm.deploy.server.status import JOB
from feddrm.deploy.watch.training_metrics import training_metrics
from training_folder import NAMES, running_server, training_folder


def values(server: Path) -> dict[tuple[str, ...], float]:
    """All samples by name and labels, without the run's."""
    samples = [
        s for family in text_string_to_metric_families(training_metrics(server).decode()) for s in family.samples
    ]
    assert {sample.labels["run"] for sample in samples} == {"first"}
    labels = ("site", "direction", "outcome")
    return {
        (s.name.removeprefix("feddrm_training_"), *(s.labels[key] for key in labels if key in s.labels)): s.value
        for s in samples
    }


def test_rounds_answers_bytes_loss_and_accuracy(tmp_path: Path) -> None:
    server, _ = training_folder(tmp_path)
    with running_server(server):
        found = values(server)
    lima = NAMES[1]
    assert found == {
        ("running",): 1.0,
        ("finished",): 0.0,
        ("rounds_total",): 3.0,
        ("seconds_total",): 6.0,
        ("round_seconds",): 2.0,
        ("bytes_total", "oslo", "sent"): 3.0 * 2**20,
        ("bytes_total", "oslo", "received"): 6.0 * 2**20,
        ("bytes_total", lima, "sent"): 1.0 * 2**20,
        ("bytes_total", lima, "received"): 2.0 * 2**20,
        ("answers_total", "oslo", "answered"): 3.0,
        ("answers_total", lima, "answered"): 1.0,
        ("answers_total", lima, "missing"): 1.0,
        ("answers_total", lima, "refused"): 1.0,
        ("waiting_since", lima): 1000.0,
        ("loss",): 1 / 3,
        ("accuracy",): 0.5,
    }


def test_a_failed_run_is_not_running_though_its_server_is(tmp_path: Path) -> None:
    server, status = training_folder(tmp_path)
    (server / JOB).unlink()
    status.record("failed", {"text": "lima: no"})
    with running_server(server):
        assert values(server)["running",] == 0.0
        (server / "runs" / "first" / "summary.json").write_text("{}")
        assert (values(server)["running",], values(server)["finished",]) == (1.0, 1.0)


def test_a_private_run_has_epsilon_and_no_loss(tmp_path: Path) -> None:
    server, _ = training_folder(tmp_path)
    path = server / "runs" / "first" / "metrics.jsonl"
    last = json.loads(path.read_text().splitlines()[-1]) | {"loss": None, "epsilon": {"oslo": 7.5}}
    del last["accuracy_before"]
    path.write_text(json.dumps(last) + "\n")
    found = values(server)
    assert found["epsilon", "oslo"] == 7.5
    assert not {("loss",), ("accuracy",), ("waiting_since", NAMES[1])} & set(found)


def test_a_server_without_a_run_has_zeros(tmp_path: Path) -> None:
    server, _ = training_folder(tmp_path)
    (server / "runs" / "first" / "metrics.jsonl").unlink()
    assert values(server)["rounds_total",] == 0

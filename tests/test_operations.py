"""The dashboard and the alert rules of docs/operations name metrics that exist; promtool tests the rules."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from feddrm.deploy.watch.training_metrics import training_metrics
from feddrm.serve.telemetry.metrics import Metrics
from training_folder import running_server, training_folder

FOLDER = Path(__file__).parents[1] / "docs" / "operations"
BOARD = json.loads((FOLDER / "dashboard.json").read_text())
RULES = [rule for group in yaml.safe_load((FOLDER / "alerts.yaml").read_text())["groups"] for rule in group["rules"]]


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """All names that gateway and server export, with the suffixes that queries use."""
    server, _ = training_folder(tmp_path_factory.mktemp("server"))
    path = server / "runs" / "first" / "metrics.jsonl"
    last = json.loads(path.read_text().splitlines()[-1]) | {"epsilon": {"oslo": 7.5}}
    path.write_text(path.read_text() + json.dumps(last) + "\n")
    with running_server(server):
        families = list(text_string_to_metric_families(training_metrics(server).decode()))
    families += text_string_to_metric_families(Metrics().render().decode())
    suffixes = {"counter": ["_total"], "gauge": [""], "histogram": ["_bucket", "_count", "_sum"]}
    return {family.name + suffix for family in families for suffix in suffixes[family.type]}


def names(query: str) -> set[str]:
    return set(re.findall(r"feddrm_\w+", query))


def test_every_panel_names_metrics_that_exist(known: set[str]) -> None:
    for panel in BOARD["panels"]:
        assert panel["title"]
        assert panel["description"]
        for target in panel["targets"]:
            assert names(target["expr"]) <= known, panel["title"]
            assert names(target["expr"]), panel["title"]
    assert len({panel["id"] for panel in BOARD["panels"]}) == len(BOARD["panels"])


def test_every_rule_names_metrics_that_exist_and_says_what_to_do(known: set[str]) -> None:
    for rule in RULES:
        assert names(rule["expr"]), rule["alert"]
        assert names(rule["expr"]) <= known, rule["alert"]
        assert set(rule["annotations"]) == {"summary", "do"}
    tested = yaml.safe_load((FOLDER / "alerts_test.yaml").read_text())["tests"]
    fired = {case["alertname"] for test in tested for case in test["alert_rule_test"] if case["exp_alerts"]}
    assert fired == {rule["alert"] for rule in RULES}


def test_what_a_rule_sees_increase_is_there_from_0_on() -> None:
    """A series that begins with its first event has no increase: the first failure would raise no alarm."""
    page = Metrics().render().decode()
    series = [found for rule in RULES for found in re.findall(r"increase\((\w+{.*?})", rule["expr"])]
    assert len(series) == 2
    for one in series:
        assert f"{one} 0.0" in page


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool (package prometheus) is not installed")
def test_the_rules_fire_on_what_they_are_for_and_not_before() -> None:
    for words in (["check", "rules", "alerts.yaml"], ["test", "rules", "alerts_test.yaml"]):
        done = subprocess.run(["promtool", *words], cwd=FOLDER, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

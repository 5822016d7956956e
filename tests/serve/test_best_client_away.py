"""The best client is away: three situations of one patient, with predictors and gateway in processes of their own."""

from __future__ import annotations

import csv
import io
import json
import signal
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

import feddrm
from commands import feddrm_command
from feddrm.router.decisions.decision import AWAY
from feddrm.runs import Run
from serving import Hospitals, until

pytestmark = [pytest.mark.slow, pytest.mark.data]


def test_a_patient_of_a_hospital_that_goes_away_and_comes_back(hospitals: Hospitals) -> None:
    until(lambda: not hospitals.away())
    usual = hospitals.predict()
    assert (usual["client"], usual["fallback"], usual["route"]["away"]) == ("cleveland", False, [])
    assert usual["client_probability"] > 0.9
    assert usual["label"] is not None

    # It is killed and asked before a health check notices: the router abstains after the fact.
    before, port = hospitals.abstentions(), int(hospitals.predictors["cleveland"].url.rpartition(":")[2])
    hospitals.predictors["cleveland"].send(signal.SIGKILL)
    hospitals.predictors["cleveland"].wait()
    abstained = [hospitals.predict()]
    until(hospitals.away)
    abstained.append(hospitals.predict())
    for answer in abstained:
        route = answer["route"]
        assert (route["abstain"], route["reason"]) == (True, AWAY)
        assert {answer[name] for name in ("label", "label_probability", "client", "probabilities")} == {None}
        assert answer["answered"] == []  # the patient's values travelled to no other hospital
        probability = {one["client"]: one["probability"] for one in route["ranked"]}
        assert probability["cleveland"] == pytest.approx(usual["client_probability"], abs=1e-6)
    assert abstained[0]["failed"] or abstained[0]["route"]["away"]
    (absent,) = abstained[1]["route"]["away"]
    assert (absent["client"], absent["reason"]) == ("cleveland", "unhealthy")
    assert absent["probability"] == pytest.approx(usual["client_probability"], abs=1e-6)
    assert hospitals.abstentions() == before + 2

    fallback = hospitals.predict(max_away=1)
    assert fallback["fallback"]
    assert fallback["client"] == fallback["answered"][0]["client"] != "cleveland"
    assert fallback["label"] in {"healthy", "disease"}
    assert fallback["client_probability"] < 0.1 < 0.5 <= fallback["label_probability"]
    assert (fallback["route"]["abstain"], fallback["route"]["reason"]) == (False, "")
    marked = hospitals.predict(abstain="answer")
    assert (marked["label"], marked["route"]["reason"]) == (fallback["label"], AWAY)

    hospitals.predictors["cleveland"] = hospitals.predictor("cleveland", port)
    until(lambda: not hospitals.away())
    assert hospitals.predict()["label"] == usual["label"]


def test_every_interface_says_that_the_best_client_is_away(hospitals: Hospitals, tmp_path: Path) -> None:
    until(lambda: not hospitals.away())
    hospitals.predictors["cleveland"].send(signal.SIGKILL)
    until(hospitals.away)
    url = str(hospitals.http.base_url)
    with feddrm.GatewayClient(url) as gateway:
        assert gateway.route(hospitals.patient)[0]["reason"] == AWAY
        assert gateway.predict(hospitals.patient)[0]["label"] is None
        assert gateway.predict(hospitals.patient, max_away=1)[0]["fallback"]
    tensor = {
        "name": "input",
        "datatype": "FP32",
        "shape": [1, len(hospitals.patient[0])],
        "data": hospitals.patient[0],
    }
    for parameters, reason, fallback in (({}, AWAY, False), ({"max_away": 1}, "", True)):
        body = {"inputs": [tensor], "parameters": parameters}
        outputs = hospitals.http.post("/v2/models/federation/infer", json=body).json()["outputs"]
        found = {out["name"]: out["data"][0] for out in outputs}
        assert (found["reason"], found["abstain"], found["fallback"]) == (reason, bool(reason), fallback)
        assert (found["label"] == "") == (found["label_probability"] is None) == bool(reason)
    columns = Run.open(hospitals.run).folder.read_json(hospitals.run / "router" / "manifest.json")["notes"]["columns"]  # type: ignore[index]
    table = tmp_path / "patient.csv"
    table.write_text(",".join(columns) + "\n" + ",".join(map(str, hospitals.patient[0])) + "\n")
    words = ["route", hospitals.run, table, "--without", "cleveland"]
    for more, reason in ([], AWAY), (["--max-away", "1"], ""):
        shown = feddrm_command(*words, *more, "--json").stdout
        (decision,) = json.loads(shown)
        assert (decision["reason"], decision["fallback"], decision["away"]) == (reason, True, ["cleveland"])
    assert "(fallback)" in feddrm_command(*words, "--max-away", 1).stdout

    raw = tmp_path / "raw.csv"
    raw.write_text(
        "\n".join(",".join(map(str, row)) for row in (hospitals.raw_patient, hospitals.raw_patient.values()))
    )
    asked = ["query", url, raw, "--predict", "--csv"]
    offline = ["predict", hospitals.run, raw, "--without", "cleveland", "--csv"]
    for command in (asked, offline):
        for more, reason in ([], AWAY), (["--max-away", "1"], ""), (["--abstain", "answer"], AWAY):
            shown = feddrm_command(*command, *more).stdout
            (answer,) = csv.DictReader(io.StringIO(shown))
            because = "abstains because" if command is asked else "reason"
            assert answer[because] == reason
            assert (answer["label"] in ("", "-")) == (more == [])
    assert "cleveland (unhealthy)" in feddrm_command(*asked).stdout

    lines = [json.loads(line) for line in hospitals.gateway.whole_log().splitlines()]
    changes = [line["message"] for line in lines if line.get("client") == "cleveland"]
    assert changes == ["a client is away", "a client is back", "a client is away"]  # once each, whatever was asked
    with closing(sqlite3.connect(hospitals.audit)) as database:
        query = "SELECT DISTINCT failed FROM decisions WHERE reason = ? AND abstain = 1 AND action = 'route'"
        assert database.execute(query, (AWAY,)).fetchall() == [("cleveland:unhealthy",)]

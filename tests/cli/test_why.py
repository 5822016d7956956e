"""``feddrm route --why``: a sentence for every query, and all terms in JSON."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from cli.conftest import assert_one_line, call
from feddrm.models import Mlp
from feddrm.runs import Run, train

pytestmark = pytest.mark.slow

SMALL = {"rounds": 2, "local_steps": 2, "batch_size": 16, "seed": 3, "model": Mlp(hidden=(16,), branch=8)}


@pytest.fixture(scope="module")
def clinics(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on tables of two clinics with a schema; Oslo has older patients."""
    folder = tmp_path_factory.mktemp("clinics")
    columns = "- {name: age, kind: number, centre: 50, scale: 10}\n- {name: chol, kind: number, missing: true}\n"
    (folder / "schema.yaml").write_text(f"columns:\n{columns}")
    (folder / "tables").mkdir()
    for name, age in (("oslo", 70), ("lima", 40)):
        rows = "".join(f"{age + i % 9},{('', 1, 2)[i % 3]},{i % 2}\n" for i in range(40))
        (folder / "tables" / f"{name}.csv").write_text("age,chol,ill\n" + rows)
    data = {"path": str(folder / "tables"), "label": "ill", "schema": str(folder / "schema.yaml")}
    trained = train("csv", "feddrm", data_settings=data, out=folder / "run", **SMALL)
    trained.fit_router(features="raw", heads=False)
    (folder / "patients.csv").write_text("age,chol\n82,unknown\n35,1.5\n")
    return folder


def test_why_is_a_sentence_for_every_query_and_all_terms_in_json(
    clinics: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["route", str(clinics / "run"), str(clinics / "patients.csv")]
    code, out, _ = call(capsys, *words, "--why")
    assert code == 0
    first, second = out.splitlines()[-2:]
    place = f"{clinics / 'patients.csv'}, row"
    assert re.fullmatch(rf"{place} 2: oslo over lima \+\S+: age 82 \+\S+, chol missing [+-]\S+, baseline \S+", first)
    assert re.fullmatch(rf"{place} 3: lima over oslo \+\S+: age 35 \+\S+, chol 1.5 [+-]\S+, baseline \S+", second)
    whys = [answer["why"] for answer in json.loads(call(capsys, *words, "--why", "--rule", "posterior", "--json")[1])]
    router = Run.open(clinics / "run").router()
    decision = router.route([[3.2, 0, 1], [-1.5, 1.5, 0]])
    assert [why["client"] for why in whys] == ["oslo", "lima"]
    for why, scores in zip(whys, (decision.log_density + router.log_prior).tolist(), strict=True):
        assert [(term["name"], term["value"]) for term in why["terms"]] in (
            [("age", 82), ("chol", None)],
            [("age", 35), ("chol", 1.5)],
        )
        parts = sum(term["log_odds"] for term in why["terms"]) + why["baseline"] + why["sizes"]
        own, other = (scores[router.names.index(why[key])] for key in ("client", "over"))
        assert parts == pytest.approx(why["log_odds"], abs=1e-12)
        assert parts == pytest.approx(own - other, abs=1e-5)
        assert why["rest"] == 0
    assert "why" not in json.loads(call(capsys, *words, "--json")[1])[0]
    assert call(capsys, *words)[1].splitlines()[-2].split()[:3] == [str(clinics / "patients.csv,"), "row", "3"]
    one_over = call(capsys, *words, "--why", "--over", "lima")[1].splitlines()[-2:]
    assert one_over == [first, second], (
        "of two clients the other is the runner-up; a chosen one is not compared with itself"
    )
    assert_one_line(call(capsys, *words, "--why", "--over", "lyma"), 1, "unknown client 'lyma'; did you mean 'lima'?")
    assert_one_line(call(capsys, *words, "--over", "lima"), 2, "give --why, too")
    refused_rule = call(capsys, *words, "--why", "--rule", "competence")
    assert_one_line(refused_rule, 1, "this router knows no client's competence")

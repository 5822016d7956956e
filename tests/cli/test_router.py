"""``feddrm fit-router``, ``route`` and ``router``: what they print and write, and their errors."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import numpy as np
import pytest
import torch
from PIL import Image

from cli.conftest import assert_one_line, call
from documentation import command_words, run_command
from feddrm.data import Federation, load
from feddrm.models import Mlp
from feddrm.router import load_router
from feddrm.runs import Run, train
from patients import write_tcga_brca
from photographs import SIDE, write_folders

pytestmark = pytest.mark.slow

Feddrm = Callable[..., CompletedProcess[str]]

SMALL = {"rounds": 2, "local_steps": 2, "batch_size": 16, "seed": 3, "model": Mlp(hidden=(16,), branch=8)}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cli")
    federation = load("digits", clients=3, seed=3)
    train(federation, "feddrm", out=folder / "run", **SMALL)
    for client in federation.clients:
        Image.fromarray(client.test.x[0, 0].numpy()).save(folder / f"{client.name}.png")
    return folder / "run"


@pytest.mark.usefixtures("stop_signals")
def test_sigterm_says_that_the_fit_starts_again(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Run, "fit_router", lambda *_, **__: signal.raise_signal(signal.SIGTERM))
    assert_one_line(call(capsys, "fit-router", str(run)), 143, "interrupted: the same command starts the fit again")


@pytest.mark.documented
def test_the_commands_of_the_documentation_run(run: Path, tmp_path: Path) -> None:
    commands = [words for words in command_words("docs/router.md") if "--views" not in words]
    assert [" ".join(c[1:3]).removesuffix(" runs/first") for c in commands] == [
        "fit-router", "route", "predict", "route", "route", "predict", "router export", "router leave", "router join"
    ]  # fmt: skip
    shutil.copytree(run, tmp_path / "runs" / "first")
    shutil.copy(run.parent / "fax.png", tmp_path)
    (tmp_path / "scans-of-lyon").mkdir()
    for name in ("flatbed", "fax"):
        shutil.copy(run.parent / f"{name}.png", tmp_path / "scans-of-lyon")
    for command in commands:
        run_command(command, tmp_path)


def test_the_commands_with_views_run(tmp_path: Path) -> None:
    """docs/router.md has them; they need photographs, of which crops and mirror images are allowed."""
    data = {"path": str(write_folders(tmp_path / "pictures", 20)), "size": SIDE, "crop": True, "mirrors": True}
    run = train("folders", "feddrm", data_settings=data, out=tmp_path / "runs" / "photographs", **SMALL)
    run.fit_router(features="colour", joint=False)
    shutil.copy(tmp_path / "pictures" / "dark" / "bar" / "0.png", tmp_path / "cat.png")
    commands = [words for words in command_words("docs/router.md") if "--views" in words]
    assert [words[1] for words in commands] == ["evaluate", "predict"]
    for words in commands:
        run_command(words, tmp_path)


def test_a_fitted_router_routes_images(run: Path, feddrm: Feddrm) -> None:
    fitted = feddrm("fit-router", run, "--features", "raw+colour", "--no-heads", "--json")
    assert fitted.returncode == 0, fitted.stderr
    assert {"exact_density", "exact_posterior"} <= set(json.loads(fitted.stdout)["system_accuracy"])
    names = ("flatbed", "negative", "fax")
    routed = feddrm("route", run, *(run.parent / f"{name}.png" for name in names), "--json")
    assert routed.returncode == 0, routed.stderr
    answers = json.loads(routed.stdout)
    assert [a["client"] for a in answers] == list(names)
    other = json.loads(feddrm("route", run, run.parent / "fax.png", "--without", "fax", "--json").stdout)
    assert other[0]["client"] in {"flatbed", "negative"}
    table = feddrm("route", run, run.parent / "fax.png")
    assert "fax" in table.stdout
    assert "margin" in table.stdout
    sets = feddrm("route", run, run.parent / "fax.png", "--miss", "0.01", "--json")
    assert "fax" in json.loads(sets.stdout)[0]["within"]
    assert "set of clients (miss 0.01)" in feddrm("route", run, run.parent / "fax.png", "--miss", "0.01").stdout


@pytest.fixture(scope="module")
def fitted(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    copy = tmp_path_factory.mktemp("fitted") / "run"
    shutil.copytree(run, copy)
    Run.open(copy).fit_router(features="raw", heads=False)
    return copy


def test_a_fit_that_is_cut_short_says_so(fitted: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy = shutil.copytree(fitted, tmp_path / "run")
    words = ["fit-router", str(copy), "--features", "raw", "--no-heads"]
    code, out, _ = call(capsys, *words, "--rounds", "2")
    assert code == 0
    said = "the fit stopped after 2 rounds, short of its optimum: to go on, leave out --rounds"
    assert out.splitlines()[-1] == said
    assert json.loads((copy / "summary.json").read_text())["router"]["converged"] is False
    code, out, _ = call(capsys, *words)
    assert code == 0
    assert "short of its optimum" not in out
    assert json.loads((copy / "summary.json").read_text())["router"]["converged"] is True


def test_what_a_fit_leaves_out_is_printed(fitted: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy = shutil.copytree(fitted, tmp_path / "run")
    words = ["fit-router", str(copy), "--features", "raw", "--rounds", "3"]
    code, out, err = call(capsys, *words, "--part-bytes", "1")
    assert code == 0, err
    said = json.loads((copy / "summary.json").read_text())["router"]["left_out"]
    assert len(said) == 4
    assert set(said) <= set(out.splitlines())
    code, out, _ = call(capsys, *words)
    assert code == 0
    assert "left out" not in out
    assert_one_line(call(capsys, *words, "--part-bytes", "0"), 2, "part_bytes=0: give at least 1")


def test_predictions_of_pictures_and_arrays(
    fitted: Path, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ("flatbed", "negative", "fax")
    pictures = [str(run.parent / f"{name}.png") for name in names]
    samples = torch.stack([client.test.x[0] for client in load("digits", clients=3, seed=3).clients])
    expected = Run.open(fitted).predict(samples)
    code, out, err = call(capsys, "predict", str(fitted), *pictures, "--json")
    assert (code, err) == (0, "")
    assert json.loads(out) == expected.as_dicts(pictures)
    np.save(tmp_path / "scans.npy", samples)
    code, out, _ = call(capsys, "predict", str(fitted), str(tmp_path / "scans.npy"), "--csv")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert [row["label"] for row in rows] == list(expected.labels)
    assert [row["query"] for row in rows] == [f"{tmp_path}/scans.npy[{i}]" for i in range(3)]
    table = tmp_path / "answers.csv"
    code, out, _ = call(capsys, "predict", str(fitted), *pictures, "--out", str(table), "--client", "fax")
    assert out.splitlines()[-1] == f"wrote {table}"
    assert "sure of the label" in out
    with table.open() as file:
        assert {row["answered"] for row in csv.DictReader(file)} == {"fax"}


def test_label_sets_are_printed_and_written(
    fitted: Path, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["predict", str(fitted), str(run.parent / "fax.png"), "--label-miss", "0.1"]
    code, out, err = call(capsys, *words, "--json")
    assert (code, err) == (0, "")
    (label_set,) = (answer["label_set"] for answer in json.loads(out))
    samples = load("digits", clients=3, seed=3).clients[2].test.x[:1]
    expected = Run.open(fitted).predict(samples, label_miss=0.1).label_sets
    assert expected == (tuple(label_set),)
    code, out, _ = call(capsys, *words, "--out", str(tmp_path / "answers.csv"))
    assert "label set (miss 0.1)" in out
    with (tmp_path / "answers.csv").open() as file:
        assert [row["label_set"] for row in csv.DictReader(file)] == [",".join(label_set)]


def test_rows_of_a_table_are_predicted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    centres = {"oslo": -1.0, "lima": 1.0}
    arrays = {name: (rng.normal(centre, 1, (60, 2)), np.arange(60) % 2) for name, centre in centres.items()}
    federation = Federation.from_arrays(arrays, columns=["age", "dose"], classes=["healthy", "sick"])
    train(federation, "feddrm", out=tmp_path / "run", **SMALL).fit_router(features="raw", heads=False)
    (tmp_path / "patients.csv").write_text("dose,age\n-1.5,-1\n1,1.5\n")
    words = ["predict", str(tmp_path / "run"), str(tmp_path / "patients.csv")]
    code, out, err = call(capsys, *words, "--json")
    assert (code, err) == (0, "")
    answers = json.loads(out)
    assert [answer["client"] for answer in answers] == ["oslo", "lima"]
    assert {answer["label"] for answer in answers} <= {"healthy", "sick"}
    assert all(answer["query"].startswith(str(tmp_path / "patients.csv")) for answer in answers)
    code, out, _ = call(capsys, *words, "--without", "oslo", "--abstain", "answer", "--json")
    assert [answer["answered"] for answer in json.loads(out)] == [["lima"], ["lima"]]


def test_routing_by_competence_says_how_probably_the_client_is_right(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = shutil.copytree(run, tmp_path / "run")
    Run.open(copy).fit_router(features="raw", joint=False, rounds=5, path_rounds=2)
    words = ["route", str(copy), str(run.parent / "fax.png"), "--rule", "competence"]
    code, out, err = call(capsys, *words, "--json")
    assert (code, err) == (0, "")
    (free,) = json.loads(out)
    assert 0 < free["right_probability"] < 1
    code, out, _ = call(capsys, *words, "--cost", f"{free['client']}=1", "--json")
    assert json.loads(out)[0]["client"] != free["client"]
    code, out, _ = call(capsys, *words)
    assert "client is right" in out
    assert f"{free['right_probability']:.3f}" in out
    code, out, _ = call(capsys, "predict", *words[1:], "--cost", f"{free['client']}=1", "--json")
    assert json.loads(out)[0]["answered"] != [free["client"]]


def test_what_predict_cannot_do_is_one_line_and_writes_nothing(
    fitted: Path, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture, table = str(run.parent / "fax.png"), str(tmp_path / "answers.csv")
    for words, code, says in (
        (["predict", str(fitted), picture, "--csv", "--json"], 2, "give one of them"),
        (["predict", str(fitted), picture, "--client", "faxx"], 1, "did you mean 'fax'"),
        (["predict", str(fitted), picture, "--client", "fax", "--coverage", "0.5"], 2, "leave out coverage"),
        (["predict", str(fitted), picture, "--without", "faxx"], 1, "unknown client 'faxx'; did you mean 'fax'?"),
        (["predict", str(fitted), picture, "--consult", "9"], 2, "give 1 to 3"),
        (["predict", str(fitted), picture, "--label-miss", "1"], 2, "between 0 and 1"),
        (["predict", str(fitted), "none.npy"], 1, "cannot read none.npy"),
    ):
        assert_one_line(call(capsys, *words, "--out", table), code, says)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("options", [[], ["--features-only", "--rule", "posterior"]], ids=["input", "features"])
def test_an_exported_router_decides_alike(fitted: Path, options: list[str], tmp_path: Path, feddrm: Feddrm) -> None:
    runtime = pytest.importorskip("onnxruntime", reason="pip install 'feddrm[export]' to run this")
    out = tmp_path / "router.onnx"
    result = feddrm("router", "export", fitted, "--out", out, "--json", *options)
    assert (result.returncode, result.stderr) == (0, "")
    facts = json.loads(result.stdout)
    router, rule = Run.open(fitted).router(), facts["rule"]
    shape, kind = ([64], "features") if options else ([1, 8, 8], "input")
    assert facts == {
        "path": str(out), "input": kind, "shape": shape, "rule": rule, "clients": list(router.names)
    }  # fmt: skip
    samples = torch.cat([client.test.x[:5] for client in load("digits", clients=3, seed=3).clients])
    given = router.inputs(samples).reshape(len(samples), *shape).numpy()
    (probabilities,) = runtime.InferenceSession(out.read_bytes()).run(None, {kind: given})
    expected = router.route(samples, rule=rule).probabilities.numpy()
    assert np.allclose(probabilities, expected, atol=1e-5)
    assert rule == ("posterior" if options else "density")


def test_export_prints_the_order_of_the_clients(fitted: Path, tmp_path: Path, feddrm: Feddrm) -> None:
    pytest.importorskip("onnxscript", reason="pip install 'feddrm[export]' to run this")
    result = feddrm("router", "export", fitted, "--out", tmp_path / "router.onnx")
    assert result.stdout.splitlines() == [
        f"wrote {tmp_path / 'router.onnx'}: from inputs [N, 1, 8, 8] to the probabilities of these clients:",
        "flatbed, negative, fax",
    ]


def test_a_client_leaves_into_a_new_folder_or_in_place(fitted: Path, tmp_path: Path, feddrm: Feddrm) -> None:
    out = tmp_path / "smaller"
    result = feddrm("router", "leave", fitted, "fax", "--out", out, "--json")
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout) == {"path": str(out), "clients": ["flatbed", "negative"], "removed": ["fax"]}
    assert load_router(out).names == ("flatbed", "negative")
    assert Run.open(fitted).router().names == ("flatbed", "negative", "fax")
    copy = tmp_path / "copy"
    shutil.copytree(fitted, copy)
    result = feddrm("router", "leave", copy, "flatbed", "--in-place")
    assert result.stdout == f"wrote {copy / 'router'}: a router for negative, fax\n"
    assert Run.open(copy).router().names == ("negative", "fax")


@pytest.mark.parametrize(
    ("words", "code", "parts"),
    [
        (["router", "export", "nowhere"], 1, ["nowhere is no run", "feddrm train"]),
        (["router", "export", "UNFITTED"], 1, ["holds no router", "feddrm fit-router"]),
        (["router", "export", "RUN", "--rule", "odds"], 2, ["unknown rule 'odds'"]),
        (["router", "leave", "RUN", "fax"], 2, ["give --out FOLDER or --in-place, not both"]),
        (["router", "leave", "RUN", "fax", "--out", "x", "--in-place"], 2, ["give --out FOLDER or --in-place"]),
        (["router", "leave", "RUN", "faxx", "--in-place"], 1, ["unknown client 'faxx'", "did you mean 'fax'"]),
        (["router", "leave", "RUN", "--in-place"], 2, ["Missing argument"]),
        (["router", "leave", "RUN", "fax", "--out", "RUN"], 1, ["is not an empty folder"]),
        (["router", "leave", "UNFITTED", "fax", "--in-place"], 1, ["holds no router", "feddrm fit-router"]),
    ],
)
def test_mistakes_with_a_fitted_router_are_one_line(
    run: Path, fitted: Path, words: list[str], code: int, parts: list[str], tmp_path: Path, feddrm: Feddrm
) -> None:
    shutil.copytree(run, tmp_path / "unfitted", ignore=shutil.ignore_patterns("manifest.json"))
    given = [{"RUN": fitted, "UNFITTED": tmp_path / "unfitted"}.get(word, word) for word in words]
    result = feddrm(*given)
    assert result.returncode == code, result.stderr
    assert result.stderr.count("\n") == 1
    for part in parts:
        assert part in result.stderr


@pytest.mark.parametrize(
    ("words", "code", "parts"),
    [
        (["fit-router", "nowhere"], 1, ["nowhere is no run", "feddrm train"]),
        (["fit-router", "RUN", "--features", "colours"], 2, ["unknown feature 'colours'", "did you mean 'colour'"]),
        (["fit-router", "RUN", "--device", "tpu"], 2, ["unknown device 'tpu'", "(known: cpu, cuda)"]),
        (["route", "RUN", "missing.png"], 1, ["missing.png"]),
        (["route", "RUN", "PNG", "--without", "rome"], 1, ["unknown client 'rome'"]),
        (["route", "RUN", "PNG", "--rule", "odds"], 2, ["unknown rule 'odds'"]),
        (["route", "RUN", "PNG", "--rule", "competence"], 1, ["knows no client's competence", "feddrm fit-router RUN"]),
        (["route", "RUN", "PNG", "--cost", "fax"], 2, ["--cost 'fax': write it as NAME=COST, for example oslo=0.1"]),
        (["route", "RUN", "PNG", "--cost", "fax=dear"], 2, ["--cost 'fax=dear': write it as NAME=COST"]),
        (["route", "RUN", "PNG", "--cost", "fax=0.1"], 2, ["only rule 'competence' weighs costs: give that rule"]),
        (["route", "RUN", "PNG", "--miss", "0.3"], 2, ["miss=0.3", "choose 0.01, 0.05, 0.1, 0.2"]),
    ],
)
def test_mistakes_are_one_line(run: Path, words: list[str], code: int, parts: list[str], feddrm: Feddrm) -> None:
    if words[0] == "route" and not (run / "router" / "manifest.json").exists():
        assert feddrm("fit-router", run, "--features", "raw", "--no-heads").returncode == 0
    given = [{"RUN": run, "PNG": run.parent / "fax.png"}.get(word, word) for word in words]
    result = feddrm(*given)
    assert result.returncode == code, result.stderr
    assert result.stderr.count("\n") == 1
    for part in parts:
        assert part in result.stderr


def test_tables_are_routed_by_their_columns(tmp_path: Path, feddrm: Feddrm) -> None:
    rng = np.random.default_rng(0)
    x = {"oslo": rng.normal(0, 1, (60, 3)), "lima": rng.normal(3, 1, (50, 3))}
    arrays = {name: (rows.astype(np.float32), (rows[:, 0] > rows[:, 0].mean()).astype(int)) for name, rows in x.items()}
    federation = Federation.from_arrays(arrays, columns=["age", "pulse", "weight"])
    train(federation, "feddrm", out=tmp_path / "run", **SMALL).fit_router(federation, heads=False)
    (tmp_path / "q.csv").write_text("weight,age,pulse\n0,0,0\n3,3,3\n")
    routed = feddrm("route", tmp_path / "run", tmp_path / "q.csv", "--json")
    assert routed.returncode == 0, routed.stderr
    assert [a["client"] for a in json.loads(routed.stdout)] == ["oslo", "lima"]
    (tmp_path / "bad.csv").write_text("weight,age\n0,0\n")
    bad = feddrm("route", tmp_path / "run", tmp_path / "bad.csv")
    assert bad.returncode == 1
    assert "no column 'pulse'" in bad.stderr


def test_raw_columns_are_routed_by_the_schema_and_flagged(tmp_path: Path, feddrm: Feddrm) -> None:
    schema = "columns: [{name: age, kind: number, unit: years, centre: 50, scale: 10, maximum: 120},"
    (tmp_path / "schema.yaml").write_text(
        schema + " {name: sex, kind: category, missing: yes, categories: {f: female, m: male}}]"
    )
    for name, age in (("oslo", 70), ("lima", 30)):
        rows = [f"{age + i % 9},{('f', 'm', '')[i % 3]},{i % 2}" for i in range(30)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["age,sex,ill", *rows]) + "\n")
    data = {"path": str(tmp_path), "label": "ill", "schema": str(tmp_path / "schema.yaml")}
    run = train("csv", "feddrm", data_settings=data, out=tmp_path / "run", **SMALL)
    run.fit_router(joint=False)
    assert json.loads((run.path / "data.json").read_text())["schema"]["columns"][0]["name"] == "age"
    query = tmp_path / "run" / "query.csv"
    query.write_text("id,age,sex\n1,72,m\n")
    refused = feddrm("route", run.path, query)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "has a column 'id' that the router does not know" in refused.stderr
    query.write_text("id,age,sex\n1,72,m\n2,300,unknown\n")
    result = feddrm("route", run.path, query, "--ignore", "id")
    assert result.returncode == 0, result.stderr
    first, second = (line for line in result.stdout.splitlines() if "row" in line)
    assert "oslo" in first
    assert second.rstrip().endswith("a value cannot be (age 300: it must be at most 120 years)")
    answers = json.loads(feddrm("route", run.path, query, "--ignore", "id", "--json").stdout)
    assert [answer["flags"] for answer in answers] == [
        [], [{"column": "age", "value": 300, "problem": "it must be at most 120 years"}],
    ]  # fmt: skip


def test_survival_from_training_to_predictions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = write_tcga_brca(tmp_path / "data")
    run, table = str(tmp_path / "run"), str(data / "brca.csv")
    where = ["--data-dir", str(data)]
    training = ["train", "--data", "tcga_brca", *where, "--set", "data.intervals=3", "--rounds", "3", "--out", run]
    assert "task survival: samples are counted" in call(capsys, "data", "info", "tcga_brca", *where)[1]
    code, out, err = call(capsys, *training)
    assert (code, "C-index in percent (client: accuracy)" in out) == (0, True), err
    code, out, _ = call(capsys, "fit-router", run, *where)
    assert code == 0
    assert "client: right client named exact, density" in " ".join(out.split())
    assert re.search(r"system: several asked (consult \w+ [\d.]+ )*mean of all curves", " ".join(out.split()))
    assert "After round 3, C-index over queries of unknown origin, in percent: one client asked " in out
    assert set(json.loads(call(capsys, "fit-router", run, *where, "--json")[1])) == {
        "client_accuracy", "system_c_index", "router"
    }  # fmt: skip
    code, out, _ = call(capsys, "evaluate", run, "--views", "1", *where)
    assert (code, "C-index in percent after round 3" in out) == (0, True)
    columns = [f"--ignore={name}" for name in ("pid", "E", "T")]
    days = load("tcga_brca", data_dir=str(data), intervals=3).task.as_dict()["edges"]
    code, out, _ = call(capsys, "predict", run, table, *columns)
    assert code == 0
    assert f"risk survives day {days[1]} survives day {days[2]} client" in " ".join(out.split())
    answers = json.loads(call(capsys, "predict", run, table, *columns, "--json")[1])
    assert len(answers) == 120
    assert list(answers[0]["survival"]) == [str(day) for day in days]
    assert_one_line(call(capsys, "predict", run, table, *columns, "--label-miss=0.1"), 2, "a label set needs classes")
    assert_one_line(call(capsys, "serve", run), 2, "a gateway needs classes")

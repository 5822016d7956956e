"""``feddrm train`` and ``feddrm evaluate``: settings from options and files, resuming, one-line errors."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from cli.conftest import assert_one_line, call, stated_defaults
from feddrm.cli.train import parse_seeds
from feddrm.engine import load_state
from feddrm.engine.recipes import DEFAULT, RECIPES
from feddrm.engine.schedule import Plan
from feddrm.methods.feddrm import FedDRM
from feddrm.runs import RunFolder
from feddrm.runs.config import Machine
from photographs import write_folders
from refusal import refused

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["train", "--data", "digits"], 2, "give --out FOLDER"),
        (["train", "--out", "x"], 2, "give --data NAME"),
        (["train", "--data", "digits", "--out", "x", "--method", "feddrn"], 2, "did you mean 'feddrm'?"),
        (["train", "--data", "digits", "--out", "x", "--lambda", "2", "--rounds", "3"], 2, "lam=2.0"),
        (["train", "--data", "digits", "--out", "x", "--batch-size", "0"], 2, "batch_size=0"),
        (["train", "--data", "digits", "--out", "x", "--method", "fedrep", "--lambda", "0.5"], 2, "no setting 'lam'"),
        (["train", "--data", "digits", "--out", "x", "--set", "seed=1"], 2, "it could be data.seed or training.seed"),
        (["train", "--data", "digits", "--out", "x", "--set", "lamb=1"], 2, "no such setting; did you mean 'lam'"),
        (["train", "--data", "digits", "--out", "x", "--set", "router.seed=1"], 2, "no settings of 'router' here"),
        (["train", "--data", "digits", "--out", "x", "--set", "training.lr=x"], 2, "lr='x': give a number"),
        (["train", "--data", "digits", "--out", "x", "--set", "alpha=1", "--set", "data.alpha=1"], 2, "given twice"),
        (["train", "--data", "digits", "--out", "x", "--method", "fedas", "--variant", "new"], 2, "variant 'new'"),
        (["train", "--data", "digits", "--out", "/proc/x"], 1, "/proc/x"),
        (["train", "--config", "none.yaml", "--out", "x"], 1, "cannot read none.yaml"),
        (["train", "--data", "digits", "--out", "x", "--set", "data.alpha=x"], 2, "alpha='x': give a number"),
        (["train", "--data", "digits", "--out", "x", "--set", "data.clients=3.5"], 2, "clients='3.5': give a whole"),
        (["train", "--data", "digits", "--out", "x", "--set", "method.lam=x"], 2, "lam='x': give a number"),
        (["train", "--data", "digits", "--out", "x", "--set", "evaluation.every=x"], 2, "every='x': give a whole"),
        (["train", "--data", "digits", "--out", "x", "--set", "model.depth=4"], 2, "'mlp' has no setting 'depth'"),
        (["train", "--data", "digits", "--out", "x", "--threads", "0"], 2, "threads=0: give at least 1"),
        (["train", "--data", "digits", "--out", "x", "--device", "tpu"], 2, "unknown device 'tpu'"),
        (
            ["train", "--data", "digits", "--out", "x", "--seeds", "0,1", "--seed", "3"],
            2,
            "--seed 3 and --seeds 0,1: give",
        ),
        (["train", "--data", "digits", "--out", "x", "--seeds", "0,0"], 2, "seeds=[0, 0]: give different"),
        (["train", "--data", "digits", "--out", "x", "--device", "meta"], 2, "(known: cpu, cuda)"),
        (["train", "--data", "digits", "--out", "x", "--recipe", "tund"], 2, "unknown recipe 'tund'; did you mean 'tu"),
    ],
)
def test_mistakes_are_one_line(
    words: list[str], code: int, says: str, capsys: pytest.CaptureFixture[str], no_data: Path
) -> None:
    assert_one_line(call(capsys, *words), code, says)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("rounds: ten", "rounds='ten': give a whole number"),
        ("rounds: 2.5", "rounds=2.5: give a whole number"),
        ("data: [digits]", "data=['digits']: give a name, or a name and settings"),
        ("data: {name: 3}", "data={'name': 3}: give a name"),
        ("evaluation: 5", "evaluation=5: give a name"),
        ("method: {name: feddrm, lam: [1]}", "lam=[1]: give a number"),
        ("method: {name: feddrm, 3: 1}", "'feddrm' has no setting '3'"),
        ("model: {depth: 4}", "'mlp' has no setting 'depth'"),
        ("track: true", "no training setting 'track'"),
        ("3: 4", "no training setting '3'"),
        ("threads: many", "threads='many': give a whole number"),
        ("device: true", "device=True: give text"),
        ("lr: .nan", "lr=nan: give a number"),
        ("recipe: [paper]", "unknown recipe ['paper']"),
    ],
)
def test_a_wrong_value_in_a_config_is_one_line(
    text: str, says: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "c.yaml").write_text(text)
    words = ["--data", "digits"] if not text.startswith("data") else []
    code, out, err = call(capsys, "train", *words, "--config", str(tmp_path / "c.yaml"), "--out", str(tmp_path / "r"))
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert says in err
    assert not (tmp_path / "r").exists()


def test_a_config_that_is_no_text_is_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_bytes(b"data: \xff\xfe")
    for words in (["evaluate", str(tmp_path)], ["train", "--config", str(tmp_path / "config.yaml"), "--out", "x"]):
        code, out, err = call(capsys, *words)
        assert (code, out, err.count("\n")) == (1, "", 1)
        assert "config.yaml is broken (not UTF-8 text)" in err


def test_text_becomes_numbers_where_numbers_are_wanted(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """YAML reads 1e-2 as text, and --set gives text only."""
    (tmp_path / "c.yaml").write_text("lr: 1e-2\nmomentum: 0\nrounds: '2'\nevaluation: {also: [1, '2']}\n")
    words = ["--data", "digits", "--set", "data.clients=3", "--set", "data.alpha=1e0", "--set", "evaluation.window=1"]
    words += ["--model", "mlp", "--set", "model.hidden=[8, 4]", "--set", "evaluation.test_crop=no"]
    words += ["--method", "fedbabu", "--set", "method.tuning=null"]
    code, _, err = call(capsys, "train", "--config", str(tmp_path / "c.yaml"), *words, "--out", str(tmp_path / "r"))
    assert code == 0, err
    config = yaml.safe_load((tmp_path / "r" / "config.yaml").read_text())
    assert {key: config[key] for key in ("lr", "momentum", "rounds")} == {"lr": 0.01, "momentum": 0.0, "rounds": 2}
    assert (config["data"]["clients"], config["data"]["alpha"]) == (3, 1.0)
    assert (config["model"]["hidden"], config["method"]["tuning"]) == ([8, 4], None)
    assert {k: config["evaluation"][k] for k in ("window", "also", "test_crop")} == {
        "window": 1, "also": [1, 2], "test_crop": False
    }  # fmt: skip


def test_a_recipe_comes_from_the_file_or_the_option_and_other_settings_come_first(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(RECIPES, "tuned", {"small samples": {"lr": 0.25, "clip": 2.0}})
    words = ["train", "--data", "digits", "--clients", "2", "--rounds", "1", "--local-steps", "1"]
    (tmp_path / "c.yaml").write_text("recipe: paper\n")
    cases: dict[str, tuple[list[str], tuple[float, float | None]]] = {
        "default": ([], (0.25, 2.0)),
        "file": (["--config", str(tmp_path / "c.yaml")], (0.05, None)),
        "option": (["--config", str(tmp_path / "c.yaml"), "--recipe", "tuned", "--lr", "0.5"], (0.5, 2.0)),
    }
    for name, (more, expected) in cases.items():
        assert call(capsys, *words, *more, "--out", str(tmp_path / name))[0] == 0
        config = yaml.safe_load((tmp_path / name / "config.yaml").read_text())
        assert (config["lr"], config.get("clip")) == expected
    whole = ["train", "--config", str(tmp_path / "file" / "config.yaml"), "--out", str(tmp_path / "again")]
    assert_one_line(call(capsys, *whole, "--recipe", "tuned"), 2, "recipe=tuned: every training setting is given")
    assert call(capsys, *whole)[0] == 0
    assert (tmp_path / "again" / "config.yaml").read_text() == (tmp_path / "file" / "config.yaml").read_text()


def test_model_settings_without_a_name_go_to_the_default_model(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = ["--data", "digits", "--clients", "3", "--rounds", "1", "--set", "model.hidden=[4]"]
    code, _, err = call(capsys, "train", *words, "--out", str(tmp_path / "r"))
    assert code == 0, err
    model = yaml.safe_load((tmp_path / "r" / "config.yaml").read_text())["model"]
    assert model == {"name": "mlp", "hidden": [4], "branch": 64}


def test_a_setting_that_only_one_part_has_may_leave_the_part_out(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    short = ["clients=3", "lam=0.7", "hidden=[4]", "every=2", "momentum=0.5"]
    full = ["data.clients=3", "method.lam=0.7", "model.hidden=[4]", "evaluation.every=2", "training.momentum=0.5"]
    for name, words in (("short", short), ("full", full)):
        given = [f"--set={word}" for word in words]
        code, _, err = call(capsys, "train", "--data=digits", "--rounds=2", *given, f"--out={tmp_path / name}")
        assert code == 0, err
    config = (tmp_path / "full" / "config.yaml").read_text()
    assert (tmp_path / "short" / "config.yaml").read_text() == config
    assert yaml.safe_load(config)["momentum"] == 0.5


QUICK = ["--rounds=1", "--local-steps=2", "--set=data.clients=3"]
TABLE = ["--set=data.label=y", "--set=data.client=site", "--rounds=1"]


@pytest.mark.parametrize(
    ("wrong", "right", "says"),
    [
        (["--data=heart", "--model=resnet18"], ["--data=heart", "--rounds=1"], "resnet18 reads images"),
        (["--data=digits", "--model=lenet", *QUICK], ["--data=digits", *QUICK], "lenet"),
        (["--data=digits", "--lr=nan", *QUICK], ["--data=digits", *QUICK], "lr="),
        (["--data=digits", "--device=cuda", *QUICK], ["--data=digits", *QUICK], "torch sees no GPU"),
        (["--data=digits", "--method=fedas", "--local-steps=1"], ["--data=digits", *QUICK], "local_steps=1"),
        (["--data=digits", "--method=fedavgft", "--set=tuning=9", *QUICK], ["--data=digits", *QUICK], "9 fine-tuning"),
        (["--data=digits", "--set=model.hidden=[0]", *QUICK], ["--data=digits", *QUICK], "at least one"),
        (["--data=digits", "--set=evaluation.ties=no", *QUICK], ["--data=digits", *QUICK], "ties='no'"),
        (["--data=digits", "--clients=2000"], ["--data=digits", *QUICK], "2000 clients"),
        (["--data=csv", "--set=data.path=n.csv", *TABLE], ["--data=csv", "--set=data.path=t.csv", *TABLE], "n.csv"),
        (["--data=digits", "--track", *QUICK], ["--data=digits", *QUICK], "feddrm[track]"),
        (["--data=digits", "--lr=1e30", "--rounds=2"], ["--data=digits", *QUICK], "after round 1: lower --lr"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_a_failed_start_leaves_the_folder_to_the_corrected_command(
    wrong: list[str],
    right: list[str],
    says: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)  # as where it is not installed
    (tmp_path / "t.csv").write_text("y,a,site\n" + "".join(f"{i % 2},{i},{'xyz'[i % 3]}\n" for i in range(30)))
    if wrong[0] == "--data=heart" and "FEDDRM_DATA" not in os.environ:
        pytest.skip("set FEDDRM_DATA to a folder with the real datasets to run this")
    code, _, err = call(capsys, "train", *wrong, "--out=run")
    assert (code in (1, 2), err.count("error")) == (True, 1)
    assert says in err
    assert (tmp_path / "run").exists() == ("after round 1" in says)  # that one began
    code, _, err = call(capsys, "train", *right, "--out=run", "--json")
    assert code == 0, err


def test_progress_is_on_standard_error_and_json_on_standard_output(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("feddrm.progress.SECONDS_BETWEEN_LINES", -1.0)
    words = ["--data", "digits", "--clients", "3", "--rounds", "2", "--out", str(tmp_path / "r"), "--json"]
    code, out, err = call(capsys, "train", *words)
    assert (code, json.loads(out)["rounds"]) == (0, 2)
    assert re.findall(r"digits, feddrm: round (\d) of 2, loss ", err) == ["1", "2"]
    code, out, err = call(capsys, "fit-router", str(tmp_path / "r"), "--no-heads", "--json")
    assert code == 0
    assert json.loads(out)["router"]["converged"] in (True, False)
    assert err.startswith("fit router: ")
    assert "round" not in err.splitlines()[0]


def test_train_evaluate_and_resume(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = str(tmp_path / "run")
    words = ["train", "--data", "digits", "--clients", "3", "--rounds", "3", "--seed", "5", "--lambda", "0.8"]
    words += ["--model", "mlp", "--set", "model.hidden=[16]", "--window", "2", "--out", out]
    code, printed, _ = call(capsys, *words, "--json")
    summary = json.loads(printed)
    assert code == 0
    assert summary["rounds"] == 3
    assert summary["window"] == 2
    config = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    assert config["method"] == {"name": "feddrm", "lam": 0.8}
    assert config["model"]["hidden"] == [16]
    assert config["data"] == {
        "name": "digits", "seed": 5, "clients": 3, "partition": "dirichlet", "alpha": 0.3, "shift": "high"
    }  # fmt: skip
    code, printed, _ = call(capsys, "evaluate", out, "--json")
    assert code == 0
    assert json.loads(printed)["system_accuracy"] == summary["system_accuracy"]
    code, printed, _ = call(capsys, "evaluate", out)
    assert f"{100 * summary['average_accuracy']['mean']:.2f}" in printed
    code, _, err = call(capsys, *words[:-2], "--rounds", "4", "--out", out)
    assert code == 1
    assert "holds a run with" in err


def test_views_of_a_users_own_photographs(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Trained, measured again, routed and answered with views, from files."""
    run, pictures = str(tmp_path / "run"), write_folders(tmp_path / "pictures")
    words = ["train", "--data", "folders", "--set", f"data.path={pictures}", "--model", "mlp", "--rounds", "3"]
    allowed = ["--set", "data.crop=true", "--set", "data.mirrors=true"]
    code, _, err = call(capsys, *words, "--views", "4", "--out", run)
    assert code == 2
    assert err.strip().endswith("views=4: these data allow no crops and no mirror images of a sample: leave views out")
    assert call(capsys, *words, *allowed, "--window", "1", "--out", run, "--json")[0] == 0
    assert call(capsys, "fit-router", run, "--no-heads")[0] == 0
    code, printed, _ = call(capsys, "evaluate", run, "--views", "4", "--json")
    measured = json.loads(printed)["views"]
    assert (code, set(measured)) == (0, {"1", "4"})
    code, printed, _ = call(capsys, "evaluate", run, "--views", "4")
    percent = [f"{100 * measured[count]['system_accuracy']['exact_density']:.2f}" for count in ("1", "4")]
    (row,) = [line.split() for line in printed.splitlines() if "system (exact, density)" in line]
    assert row[3:5] == percent
    assert call(capsys, "evaluate", run, "--views", "99")[2].startswith("feddrm: error: views=99: these data allow 18")
    assert call(capsys, "evaluate", run, "--device", "cpu")[0] == 2
    image = str(next(pictures.glob("dark/left/*.png")))
    for command in ("route", "predict"):
        one, several = (call(capsys, command, run, image, "--views", k, "--json")[1] for k in ("1", "4"))
        (first,), (second,) = json.loads(one), json.loads(several)
        assert first["client_probability"] != second["client_probability"]
    again = [*words, *allowed, "--window", "1", "--views", "4", "--out", str(tmp_path / "viewed"), "--json"]
    code, printed, _ = call(capsys, *again)
    assert (code, json.loads(printed)["average_accuracy"]["mean"]) == (0, measured["4"]["average_accuracy"])


def test_the_config_of_a_run_repeats_it(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ["--data", "digits", "--clients", "3", "--rounds", "2", "--method", "fedbabu", "--set", "method.tuning=1"]
    assert call(capsys, "train", *words, "--out", str(tmp_path / "a"), "--json")[0] == 0
    again = ["--config", str(tmp_path / "a" / "config.yaml"), "--out", str(tmp_path / "b"), "--json"]
    assert call(capsys, "train", *again)[0] == 0
    for name in ("config.yaml", "metrics.jsonl"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    for more, seeds in ((["--seed", "7"], [7, 7]), (["--seed", "7", "--set", "data.seed=8"], [8, 7])):
        out = tmp_path / f"seeds-{seeds}"
        assert call(capsys, "train", *again[:2], *more, "--out", str(out))[0] == 0
        config = yaml.safe_load((out / "config.yaml").read_text())
        assert [config["data"]["seed"], config["seed"]] == seeds


@pytest.mark.usefixtures("stop_signals")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_stop_signal_saves_and_says_that_the_run_can_be_resumed(
    number: signal.Signals, code: int, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = ["train", "--data", "digits", "--clients", "3", "--rounds", "3", "--out", str(tmp_path / "run"), "--json"]
    add_metrics = RunFolder.add_metrics

    def interrupted(folder: RunFolder, metrics: dict[str, Any]) -> None:
        if metrics["round"] == 2:
            signal.raise_signal(number)
        add_metrics(folder, metrics)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunFolder, "add_metrics", interrupted)
        words += ["--set", "evaluation.every=1"]
        assert call(capsys, *words) == (
            code, "", "feddrm: error: interrupted: the same command goes on where it stopped\n"
        )  # fmt: skip
    assert load_state(tmp_path / "run" / "checkpoint" / "state.safetensors").round == 1
    code, out, _ = call(capsys, *words)
    assert (code, json.loads(out)["rounds"]) == (0, 3)


@pytest.mark.parametrize(
    ("text", "seeds"), [("0,1,2", [0, 1, 2]), ("0-4", [0, 1, 2, 3, 4]), ("7", [7]), ("1, 3-4", [1, 3, 4])]
)
def test_seeds_are_listed_or_a_range(text: str, seeds: list[int]) -> None:
    assert parse_seeds(text) == seeds


@pytest.mark.parametrize("text", ["", "a", "1,,2", "-1", "3-", "4-2", "1.5", "0-2-4"])
def test_seeds_of_another_form_are_refused(text: str) -> None:
    with refused(f"--seeds {text!r}: give whole numbers, as in 0,1,2 or 0-4"):
        parse_seeds(text)


def test_one_command_trains_several_seeds(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ["--data", "digits", "--clients", "3", "--rounds", "2", "--method", "fedavg", "--out", str(tmp_path / "r")]
    code, out, err = call(capsys, "train", *words, "--seeds", "0-1", "--json")
    assert (code, [Path(run["path"]).name for run in json.loads(out)]) == (0, ["seed-0", "seed-1"])
    assert f"seed 1 (2 of 2): {tmp_path / 'r' / 'seed-1'}" in err
    code, out, err = call(capsys, "train", *words, "--seeds", "0-1")
    assert (code, err.count("is finished already")) == (0, 2)
    config = str(tmp_path / "r" / "seed-0" / "config.yaml")
    for more, seeds in (([], [4, 4]), (["--set", "data.seed=8"], [8, 4])):  # one division, another training
        again = ["--config", config, "--seeds", "4", *more, "--out", str(tmp_path / f"{seeds}")]
        assert call(capsys, "train", *again)[0] == 0
        saved = yaml.safe_load((tmp_path / f"{seeds}" / "seed-4" / "config.yaml").read_text())
        assert [saved["data"]["seed"], saved["seed"]] == seeds


def test_help_states_the_defaults_that_count(capsys: pytest.CaptureFixture[str]) -> None:
    deployed = stated_defaults(call(capsys, "deploy", "init", "--help")[1])
    stated = stated_defaults(call(capsys, "train", "--help")[1])
    assert deployed["seed"] == "2025"
    assert {name: stated[name] for name in ("rounds", "local_steps", "batch_size", "lr")}.items() <= deployed.items()
    plans = [Plan(**RECIPES[DEFAULT][kind]) for kind in ("small samples", "photographs")]
    for name in ("rounds", "local_steps", "batch_size", "lr", "clip", "warmup", "participation", "dropout"):
        small, big = (getattr(plan, name) for plan in plans)
        assert stated[name] == (f"{small:g}" if small == big else f"{small:g}; photographs: {big:g}"), name
    assert (stated["seed"], stated["method"], stated["lambda"]) == ("2025, the paper's", "feddrm", f"{FedDRM().lam}")
    assert (Plan().seed, Machine().device, Machine().engine, Machine().precision) == (2025, "cpu", "auto", "auto")

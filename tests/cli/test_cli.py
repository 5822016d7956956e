from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from feddrm.cli import main
from feddrm.data import Dataset
from feddrm.methods import Method
from feddrm.models import Model
from feddrm.runs import RunFolder


def call(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """Run the command line in this process: exit code, standard output, standard error."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["feddrm", *words])
        with pytest.raises(SystemExit) as stop:
            main()
    out, err = capsys.readouterr()
    assert isinstance(stop.value.code, int)
    return stop.value.code, out, err


def test_listings_name_everything_that_exists(capsys: pytest.CaptureFixture[str]) -> None:
    for verb, family in (
        ("datasets", Dataset.family),
        ("models", Model.family),
        ("methods", Method.family),
    ):
        code, out, err = call(capsys, verb)
        assert (code, err) == (0, "")
        assert all(re.search(rf"^ *{name} ", out, re.MULTILINE) for name in family)
        code, out, _ = call(capsys, verb, "--json")
        assert json.loads(out) == {name: member.summary() for name, member in family.items()}


def test_info_prints_what_the_clients_hold(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("data", "info", "digits", "--clients", "4", "--partition", "dirichlet", "--alpha", "0.5", "--seed", "7")
    code, out, _ = call(capsys, *words, "--json")
    facts = json.loads(out)
    assert code == 0
    assert facts["settings"] == {"seed": 7, "clients": 4, "partition": "dirichlet", "alpha": 0.5, "shift": "high"}
    assert len(facts["clients"]) == 4
    assert sum(sum(c["class_counts"]) for c in facts["clients"]) == 1797 == facts["train"] + facts["test"]
    code, out, _ = call(capsys, *words)
    for client in facts["clients"]:
        row = next(line for line in out.splitlines() if line.split()[:1] == [client["name"]])
        assert row.split()[1:13] == [str(n) for n in (client["train"], client["test"], *client["class_counts"])]
        assert row.rstrip().endswith(client["shift"])


def test_show_writes_a_picture(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    target = tmp_path / "x.png"
    code, out, err = call(capsys, "data", "show", "digits", "--out", str(target))
    assert (code, out.strip(), err) == (0, f"wrote {target}", "")
    assert target.read_bytes().startswith(b"\x89PNG")


def test_own_tables_by_name(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    table = tmp_path / "visits.csv"
    table.write_text("y,a,b,site\n" + "".join(f"{i % 2},{i},1,{'xyz'[i % 3]}\n" for i in range(30)))
    words = ("--set", f"path={table}", "--set", "label=y", "--set", "client=site", "--set", "drop=[b]")
    code, out, _ = call(capsys, "data", "info", "csv", *words, "--json")
    assert code == 0
    facts = json.loads(out)
    assert [c["name"] for c in facts["clients"]] == ["x", "y", "z"]
    assert facts["sample_shape"] == [1]


def test_own_test_tables_by_name_are_found_again_from_any_folder(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, rows in (("visits.csv", 30), ("later.csv", 12)):
        lines = [f"{i % 2},{i},{'xyz'[i % 3]}\n" for i in range(rows)]
        (tmp_path / name).write_text("y,a,site\n" + "".join(lines))
    monkeypatch.chdir(tmp_path)
    words = [f"--set={text}" for text in ("data.path=visits.csv", "data.label=y", "data.client=site")]
    words = ["train", "--data", "csv", *words, "--set=data.test=later.csv", "--rounds=2", "--out=run"]
    code, _, err = call(capsys, *words)
    assert code == 0, err
    sizes = json.loads((tmp_path / "run" / "data.json").read_text())["clients"]
    assert [(client["train"], client["test"]) for client in sizes] == [(10, 4)] * 3
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    code, _, err = call(capsys, "fit-router", "../run", "--rounds", "3")
    assert code == 0, err
    given = [f"--set={text}" for text in ("path=../visits.csv", "label=y", "client=site", "test=none.csv")]
    code, _, err = call(capsys, "data", "info", "csv", *given)
    assert (code, err.count("\n")) == (1, 1)
    assert "none.csv does not exist" in err


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["data", "info", "digit"], 2, "unknown dataset 'digit'; did you mean 'digits'?"),
        (["data", "info", "digits", "--clients", "many"], 2, "'many' is not a valid int"),
        (["data", "info", "digits", "--clients", "0"], 2, "clients=0: a federation needs at least two"),
        (["data", "info", "digits", "--client", "4"], 2, "No such option"),
        (["data", "info", "digits", "--set", "colour"], 2, "write it as KEY=VALUE"),
        (["data", "info", "csv", "--set", "drop=a", "--set", "drop=b"], 2, "given twice: give it once, several values"),
        (["data", "info", "csv", "--set", "path=x", "--set", "test_fraction=2"], 2, "give a fraction between 0 and 1"),
        (["data", "info", "csv", "--set", "path=x.csv", "--set", "label=y"], 1, "x.csv does not exist"),
        (["data", "info", "digits", "--set", "colour=red"], 2, "'digits' has no setting 'colour'"),
        (["data", "info", "digits", "--partition", "shards", "--shards", "999"], 2, "ask for fewer shards"),
        (["data", "info", "digits", "--shards", "3"], 2, "--shards 3 is for --partition shards"),
        (["data", "info", "digits", "--partition", "iid", "--alpha", "0.9"], 2, "--alpha 0.9 is for --partition dir"),
        (["data", "info", "heart", "--clients", "4"], 2, "'heart' has no setting 'clients'"),
        (["data", "info", "csv"], 2, "needs to know where your data are"),
        (["data", "info", "csv", "--set", "path=x.csv"], 2, "needs to know which column to predict"),
        (["data", "info", "folders", "--set", "path=nowhere"], 1, "nowhere"),
        (["data", "info", "cifar10"], 1, "no files of 'cifar10'"),
        (["data", "show", "digits", "--out", "x.gif"], 2, "end its name in .png"),
        (["data", "info"], 2, "Missing argument"),
        (["dance"], 2, "No such command 'dance'"),
        (["train", "--data", "digits"], 2, "give --out FOLDER"),
        (["train", "--out", "x"], 2, "give --data NAME"),
        (["train", "--data", "digits", "--out", "x", "--method", "feddrn"], 2, "did you mean 'feddrm'?"),
        (["train", "--data", "digits", "--out", "x", "--lambda", "2", "--rounds", "3"], 2, "lam=2.0"),
        (["train", "--data", "digits", "--out", "x", "--batch-size", "0"], 2, "batch_size=0"),
        (["train", "--data", "digits", "--out", "x", "--method", "fedrep", "--lambda", "0.5"], 2, "no setting 'lam'"),
        (["train", "--data", "digits", "--out", "x", "--set", "lam=1"], 2, "say whose setting it is, as in data.lam"),
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
        (["train", "--data", "digits", "--out", "x", "--device", "meta"], 2, "(known: cpu, cuda)"),
        (["data", "info", "digits", "--set", "seed=1.5"], 2, "seed='1.5': give a whole number"),
        (["data", "info", "digits", "--set", "name=x"], 2, "'digits' has no setting 'name'"),
        (["paper", "run", "--grid", "smoke", "--set", "threads=x"], 2, "threads='x': give a whole number"),
        (["evaluate", "nowhere"], 1, "nowhere is no run"),
        (["report", "nowhere"], 1, "nowhere"),
    ],
)
def test_mistakes_are_one_line(
    words: list[str], code: int, says: str, capsys: pytest.CaptureFixture[str], no_data: Path
) -> None:
    got, out, err = call(capsys, *words)
    assert got == code
    assert out == ""
    assert err.startswith("feddrm: error: ")
    assert err.count("\n") == 1
    assert says in err


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
    ],
)
def test_a_wrong_value_in_a_file_is_one_line(
    text: str, says: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "c.yaml").write_text(text)
    words = ["--data", "digits"] if not text.startswith("data") else []
    code, out, err = call(capsys, "train", *words, "--config", str(tmp_path / "c.yaml"), "--out", str(tmp_path / "r"))
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert says in err
    assert not (tmp_path / "r").exists()


def test_numbers_are_numbers_in_any_spelling(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """YAML reads 1e-2 as text, and --set gives nothing but text."""
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


def test_settings_of_the_model_that_suits_the_data(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ["--data", "digits", "--clients", "3", "--rounds", "1", "--set", "model.hidden=[4]"]
    code, _, err = call(capsys, "train", *words, "--out", str(tmp_path / "r"))
    assert code == 0, err
    model = yaml.safe_load((tmp_path / "r" / "config.yaml").read_text())["model"]
    assert model == {"name": "mlp", "hidden": [4], "branch": 64}


def test_beside_json_progress_is_on_standard_error(
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


def test_a_narrow_terminal_cuts_no_figure(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A long line is wrapped by the terminal; a figure spread over lines, digit by digit, cannot be read."""
    words = ("data", "info", "digits", "--seed", "0")
    facts = json.loads(call(capsys, *words, "--json")[1])
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "40")
    out = re.sub(r"\x1b\[[\d;]*m", "", call(capsys, *words)[1])
    for client in facts["clients"]:
        row = next(line for line in out.splitlines() if line.split()[:1] == [client["name"]])
        assert row.split()[1:13] == [str(n) for n in (client["train"], client["test"], *client["class_counts"])]


@pytest.mark.parametrize("words", [[], ["paper"], ["data"]], ids=str)
def test_nothing_asked_is_answered_with_help(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    _, out, err = call(capsys, *words)
    shown = out + err
    assert shown.startswith("Usage: feddrm ")
    assert "error" not in shown.splitlines()[0]
    assert re.search(r"^Commands:$", shown, re.MULTILINE)


def test_a_shell_completes_commands_and_options() -> None:
    def completed(line: str) -> list[str]:
        words = {"_FEDDRM_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(line.split()) - 1)}
        run = subprocess.run(
            [sys.executable, "-m", "feddrm"], env=os.environ | words, capture_output=True, text=True, check=True
        )
        return run.stdout.split()

    assert completed("feddrm pa") == ["paper"]
    assert completed("feddrm train --me") == ["--method"]


def test_columns_may_be_called_anything(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Words that YAML would read as true, false or a number are names where a name is wanted."""
    table = tmp_path / "2024"
    table.write_text("yes,a,no,on,1\n" + "".join(f"{i % 2},{i},1,2,{'xyz'[i % 3]}\n" for i in range(30)))
    words = ("--set", f"path={table}", "--set", "label=yes", "--set", "client=1", "--set", "drop=[no, on]")
    code, out, err = call(capsys, "data", "info", "csv", *words, "--json")
    assert code == 0, err
    facts = json.loads(out)
    assert [c["name"] for c in facts["clients"]] == ["x", "y", "z"]
    assert facts["sample_shape"] == [1]


def test_the_last_word_wins(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys, "data", "info", "digits", "--clients", "3", "--set", "clients=4", "--json")
    assert (code, len(json.loads(out)["clients"])) == (0, 4)


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


@pytest.fixture
def heard() -> Iterator[None]:
    """SIGINT as in a terminal: what a shell starts in the background ignores it, tests included."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("heard")
def test_ctrl_c_says_what_it_costs(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ["train", "--data", "digits", "--clients", "3", "--rounds", "3", "--out", str(tmp_path / "run"), "--json"]
    add_metrics = RunFolder.add_metrics

    def interrupted(folder: RunFolder, metrics: dict[str, Any]) -> None:
        add_metrics(folder, metrics)
        signal.raise_signal(signal.SIGINT)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunFolder, "add_metrics", interrupted)
        code, out, err = call(capsys, *words)
    assert (code, out) == (130, "")
    assert err == "feddrm: error: interrupted: the same command goes on where it stopped\n"
    code, out, _ = call(capsys, *words)
    assert (code, json.loads(out)["rounds"]) == (0, 3)


@pytest.mark.usefixtures("heard")
def test_ctrl_c_elsewhere_is_a_line_too(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Dataset.find("digits"), "load", lambda _: signal.raise_signal(signal.SIGINT))
    assert call(capsys, "data", "info", "digits") == (130, "", "feddrm: error: interrupted\n")


def test_a_run_s_config_repeats_it(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
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


def commands() -> list[list[str]]:
    verbs = ["datasets", "models", "methods", "data info", "data show", "train", "evaluate", "report", "demo"]
    return [verb.split() for verb in verbs]


@pytest.mark.parametrize("words", commands(), ids=" ".join)
def test_help_has_an_example(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys, *words, "--help")
    assert code == 0
    assert f"Example: feddrm {' '.join(words)}" in " ".join(out.split())
    assert "\\" not in out


def test_help_does_not_wait_for_torch() -> None:
    script = "import sys; sys.argv = ['feddrm', '--help']; import feddrm.cli; print('torch' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"


def test_version_and_closed_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys, "--version")
    assert (code, out.split()[0]) == (0, "feddrm")
    pipe = subprocess.run(
        f"{sys.executable} -m feddrm data info digits --json | head -n 1", shell=True, capture_output=True, check=True
    )
    assert pipe.stderr == b""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
@pytest.mark.parametrize("words", ["methods", "methods --json", "--version"])
def test_a_full_disk_is_one_line(words: str) -> None:
    command = f"{sys.executable} -m feddrm {words} > /dev/full"
    run = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert run.returncode == 1
    assert run.stderr == (
        "feddrm: error: cannot write the output (No space left on device): free the disk or write elsewhere\n"
    )


def test_a_config_that_is_no_text_is_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_bytes(b"data: \xff\xfe")
    for words in (["evaluate", str(tmp_path)], ["train", "--config", str(tmp_path / "config.yaml"), "--out", "x"]):
        code, out, err = call(capsys, *words)
        assert (code, out, err.count("\n")) == (1, "", 1)
        assert "config.yaml is not text in UTF-8" in err

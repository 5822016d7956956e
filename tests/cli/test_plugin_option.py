"""``--plugin``: a method, a model and a dataset of one's own in every command, from training to serving."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import yaml
from typer.main import get_command

from cli.conftest import assert_one_line, call
from documentation import command_words
from feddrm.cli.app import app
from feddrm.data import Dataset
from plugin_files import forget, new_process, options, write_examples

TRAIN = ["train", "--data", "blobs", "--method", "fedmedian", "--model", "narrow", "--rounds", "2", "--out", "run"]
QUERIES = "x0,x1,x2,x3\n0.1,-0.2,0.3,0.1\n4.2,3.9,4.1,4.0\n"


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder to work in, and a process that has loaded no plugin."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "patients.csv").write_text(QUERIES)
    with new_process(monkeypatch):
        yield tmp_path


def test_every_command_that_meets_names_has_the_option() -> None:
    commands = get_command(app).commands  # type: ignore[attr-defined]
    flat = dict(commands) | {
        f"{group} {name}": c for group in ("data", "router") for name, c in commands[group].commands.items()
    }
    having = {name for name, c in flat.items() if any("--plugin" in p.opts for p in c.params)}
    assert having == {
        *("train", "evaluate", "report", "fit-router", "route", "predict", "serve", "serve-client", "tune", "fit"),
        *("methods", "models", "datasets", "data info", "data show", "router export", "router join", "router leave"),
        "replay",
    }


def test_listings_show_what_a_plugin_defines(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = write_examples(place)
    code, out, err = call(capsys, "datasets", "--json", *options(paths))
    assert (code, json.loads(out)["blobs"], err) == (0, "Made-up patients of three hospitals", "")


def test_a_broken_package_is_a_warning_in_a_listing(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    info = place / "broken-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[feddrm.plugins]\nit = no_such_module_at_all\n")
    monkeypatch.syspath_prepend(place)
    code, out, err = call(capsys, "methods", "--json")
    assert (code, "fedavg" in json.loads(out)) == (0, True)
    assert err.startswith("feddrm: warning: the installed plugin package broken 1 cannot be loaded (ModuleNotFound")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "says"),
    [(None, "cannot read the plugin"), ("1 / 0", "failed in line 1 (ZeroDivisionError"), ("", "defines no method")],
)
def test_a_bad_plugin_is_one_line(place: Path, capsys: pytest.CaptureFixture[str], text: str | None, says: str) -> None:
    if text is not None:
        (place / "bad.py").write_text(text)
    assert_one_line(call(capsys, "methods", "--plugin", "bad.py"), 1, says)


def test_a_method_that_fails_in_a_round_is_one_line(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = write_examples(place)
    paths[0].write_text(paths[0].read_text().replace("upload[leaf]", "upload['haed.bias']"))
    line = next(n for n, text in enumerate(paths[0].read_text().splitlines(), 1) if "haed" in text)
    says = f"the plugin {paths[0]} failed in line {line} (KeyError: 'haed.bias'): correct it"
    assert_one_line(call(capsys, *TRAIN, *options(paths)), 1, says)


def test_a_completing_shell_executes_nothing(place: Path) -> None:
    (place / "trap.py").write_text("1 / 0")
    command = get_command(app).commands["methods"]  # type: ignore[attr-defined]
    command.make_context("methods", ["--plugin", "trap.py"], resilient_parsing=True)


@pytest.mark.slow
def test_the_commands_of_the_page_run(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_examples(place)
    for words in command_words("docs/extending.md"):
        forget()
        code, out, err = call(capsys, *words[1:])
        assert code == 0, err
        assert out


@pytest.mark.slow
def test_a_run_records_its_plugins_and_needs_them_again(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = write_examples(place)
    assert_one_line(call(capsys, *TRAIN), 2, "unknown method 'fedmedian'")
    assert call(capsys, *TRAIN, *options(paths))[0] == 0
    config = yaml.safe_load((place / "run" / "config.yaml").read_text())
    assert [plugin["path"] for plugin in config["plugins"]] == [str(path) for path in paths]
    forget()
    missing = f"run/config.yaml needs the plugin {paths[0]} with the checksum {config['plugins'][0]['sha256']}"
    for words in (["fit-router", "run"], ["train", "--config", "run/config.yaml", "--out", "again"]):
        assert_one_line(call(capsys, *words), 1, missing)
    assert not (place / "again").exists()
    for words in (["evaluate", "run"], ["report", "run"]):  # they only read figures
        assert call(capsys, *words)[0] == 0
    assert "blobs" not in Dataset.family
    assert call(capsys, "train", "--config", "run/config.yaml", "--out", "again", *options(paths))[0] == 0
    forget()
    paths[0].write_text(paths[0].read_text() + "# changed\n")
    for words in (TRAIN, ["fit-router", "run"]):
        forget()
        assert_one_line(call(capsys, *words, *options(paths)), 1, "give the file as it was then")


@pytest.mark.slow
def test_a_router_with_a_plugins_model_is_fitted_and_used(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = write_examples(place)
    blobs = options(paths[1:])
    assert call(capsys, *TRAIN, *options(paths))[0] == 0
    forget()
    fit = ["fit-router", "run", "--features", "embedding", "--no-joint"]
    assert call(capsys, *fit, *options(paths))[0] == 0
    model = json.loads((place / "run" / "router" / "manifest.json").read_text())["model"]
    assert (model["name"], model["plugins"][0]["path"]) == ("narrow", "blobs.py")
    forget()
    route = ["route", "run", "patients.csv", "--json"]
    assert_one_line(call(capsys, *route), 1, "manifest.json needs the plugin blobs.py with the checksum")
    code, out, err = call(capsys, *route, *blobs)
    assert code == 0, err
    assert len(json.loads(out)) == 2
    forget()
    leave = ["router", "leave", "run", "oslo", "--out", "smaller"]
    assert_one_line(call(capsys, *leave), 1, "needs the plugin blobs.py")
    assert call(capsys, *leave, *blobs)[0] == 0
    manifest = json.loads((place / "smaller" / "manifest.json").read_text())
    assert manifest["model"] == model


@pytest.mark.slow
def test_a_run_with_plugins_is_served(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    httpx = pytest.importorskip("httpx", reason="pip install 'feddrm[serve]' to run this")
    pytest.importorskip("fastapi", reason="pip install 'feddrm[serve]' to run this")
    from serving import launcher

    paths = write_examples(place)
    assert call(capsys, *TRAIN, *options(paths))[0] == 0
    fit = ["fit-router", "run", "--features", "embedding", "--no-joint"]
    assert call(capsys, *fit, *options(paths))[0] == 0
    rows = np.loadtxt(place / "patients.csv", delimiter=",", skiprows=1).tolist()
    for launch in launcher(place):
        refused = launch("serve-client", place / "run/clients/oslo", "--port", 0, *options(paths[1:]))
        assert refused.wait() == 1
        assert f"config.yaml needs the plugin {paths[0]}" in refused.log.read_text()
        oslo = launch("serve-client", place / "run/clients/oslo", "--port", 0, *options(paths))
        assert httpx.get(f"{oslo.wait_ready()}/v2/models/oslo").status_code == 200
        lacking = launch("serve", place / "run", "--demo", "--port", 0, *options(paths[1:]))
        assert lacking.wait() == 1  # not a gateway whose clients have all ended
        assert lacking.log.read_text().count("needs the plugin") == 1
        gateway = launch("serve", place / "run", "--demo", "--port", 0, *options(paths))
        url = gateway.wait_ready()
        while not all(client["healthy"] for client in httpx.get(f"{url}/v1/clients").json()["clients"]):
            assert gateway.code() is None, gateway.log.read_text()
            time.sleep(0.1)
        answers = httpx.post(f"{url}/v1/predict", json={"inputs": rows}).json()["answers"]
        assert [answer["client"] in ("oslo", "lima", "pune") for answer in answers] == [True, True]

"""``feddrm deploy`` as a person calls it, without starting processes. tests/deploy/test_end_to_end.py starts them."""

from __future__ import annotations

import json
import stat
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

pytest.importorskip("flwr")

from feddrm.checks import findings
from feddrm.cli import main
from feddrm.data import load
from feddrm.deploy import local_cluster
from feddrm.deploy.process_lock import only_process
from feddrm.deploy.provision import wheel
from feddrm.deploy.site.site_status import SiteStatus
from feddrm.methods import Method
from feddrm.runs.config import resolve

GOES_ON = "the server does not run: after 'feddrm deploy up {folder}' the run goes on by itself\n"


@dataclass
class Result:
    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def feddrm(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Call the command line in this process, because a new process would import torch for every call."""

    def call(*words: str) -> Result:
        monkeypatch.setattr(sys, "argv", ["feddrm", "deploy", *words])
        with pytest.raises(SystemExit) as left:
            main()
        captured = capsys.readouterr()
        assert isinstance(left.value.code, int)
        return Result(left.value.code, captured.out, captured.err)

    return call


Feddrm = Callable[..., Result]


@pytest.mark.slow
def test_init_writes_a_project_that_only_its_owner_can_read(feddrm: Feddrm, tmp_path: Path) -> None:
    folder = tmp_path / "federation"
    made = feddrm("init", str(folder), "--clients", "oslo,lima,pune", "--data", "digits", "--rounds", "3")
    assert made.returncode == 0, made.stderr
    for name in ("oslo", "lima", "pune"):
        inside = {path.name for path in (folder / "sites" / name).iterdir()}
        assert {
            "site.yaml",
            "keys",
            "node.key",
            "node.pub",
            "server.pub",
            "ca.crt",
            "secret",
            "start.sh",
            "feddrm-site.service",
            wheel.NAME,
            "README.md",
        } == inside
        assert name in (folder / "sites" / name / "README.md").read_text()
    secrets = [*folder.rglob("*.key"), *folder.rglob("secret")]
    assert len(secrets) == 3 + 3 + 4  # the sites' keys; authority, TLS and signature; the secrets
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in secrets)
    server = {path.name for path in (folder / "server").rglob("*.key")}
    assert server == {"tls.key", "server.key"}, "the server holds no site's private key, nor the authority's"
    check = ["openssl", "verify", "-CAfile", str(folder / "authority" / "ca.crt"), str(folder / "server" / "tls.crt")]
    assert subprocess.run(check, capture_output=True, check=False).returncode == 0
    key = ["ssh-keygen", "-l", "-f", str(folder / "sites" / "oslo" / "node.pub")]
    assert "ECDSA" in subprocess.run(key, capture_output=True, text=True, check=True).stdout

    again = feddrm("init", str(folder), "--clients", "oslo,lima")
    assert again.returncode == 1
    assert "not empty" in again.stderr

    shown = feddrm("status", str(folder), "--json")
    assert shown.returncode == 0, shown.stderr
    assert json.loads(shown.stdout)["processes"] == dict.fromkeys(("server", "lima", "oslo", "pune"))
    refusal = feddrm("run", str(folder))
    assert refusal.returncode == 1
    assert "feddrm deploy up" in refusal.stderr
    assert feddrm("down", str(folder)).stdout.strip() == "nothing runs here"


def test_a_private_run_says_what_every_site_has_spent(feddrm: Feddrm, tmp_path: Path, monkeypatch: Any) -> None:
    folder = tmp_path / "federation"
    assert feddrm("init", str(folder), "--clients", "oslo,lima", "--clip", "1", "--noise", "0.03").returncode == 0
    spent = {"clip": 1.0, "noise": 0.03, "delta": 1e-5, "epsilon": {"oslo": 7216.5573, "lima": 2.04}}
    monkeypatch.setattr(local_cluster, "run", lambda *_: {"rounds": 3, "privacy": spent})
    shown = feddrm("run", str(folder)).stdout
    assert "3 rounds\nprivacy spent, epsilon at delta 1e-05: oslo 7,216.6, lima 2.0\n" in shown
    assert shown.endswith(f"wrote {folder / 'server' / 'runs' / 'first'}\n")


def test_plain_text_is_warned_of(feddrm: Feddrm, tmp_path: Path) -> None:
    made = feddrm("init", str(tmp_path / "f"), "--clients", "oslo,lima", "--plain-text")
    assert made.returncode == 0
    assert "plain text" in made.stderr


@pytest.mark.parametrize(
    ("words", "complaint", "code"),
    [
        (["--clients", "oslo"], "at least two clients", 1),
        (["--clients", "oslo,../lima"], "cannot name a folder", 1),
        *(
            (["--clients", f"oslo,{name}"], f"'{name}' cannot name a site", 2)
            for name in ("a?b", "a#b", "a%2fb", "Server")
        ),
        (["--clients", "oslo,lima", "--method", "fedrdm"], "feddrm", 2),
        (["--clients", "oslo,lima", "--quorum", "3"], "quorum=3", 2),
        (["--clients", "oslo,lima", "--rounds", "0"], "rounds=0", 2),
        (["--clients", "oslo,lima", "--set", "lam=7"], "lam=7.0", 2),
        (["--clients", "oslo,lima", "--set", "lan=0.7"], "no such setting; did you mean 'lam'?", 2),
        (["--clients", "oslo,lima", "--set", "training.device=cuda"], "no training setting 'device'", 2),
        (["--clients", "oslo,lima", "--set", "data.seed=1"], "there are no settings of 'data' here", 2),
        (["--clients", "oslo,lima", "--set", "model.hidden=[3]"], "name the model, too (--model)", 2),
        (["--clients", "oslo,lima", "--config", "none.yaml"], "cannot read none.yaml", 1),
        (["--clients", "oslo,lima", "--host", "münchen.example"], "xn--mnchen-3ya.example", 2),
        (["--clients", "oslo,lima", "--host", ""], "give a host name", 2),
        (["--clients", "oslo,lima", "--host", "server.example:8000"], "give a host name", 2),
        (["--clients", "oslo,lima", "--clip", "1"], "both --clip and --noise", 2),
    ],
)
def test_a_mistake_is_refused_in_one_line(
    feddrm: Feddrm, words: list[str], complaint: str, code: int, tmp_path: Path
) -> None:
    made = feddrm("init", str(tmp_path / "f"), *words)
    assert (made.returncode, made.stderr.count("\n")) == (code, 1), made.stderr
    assert complaint in made.stderr
    assert not (tmp_path / "f").exists()


def test_init_takes_what_to_train_from_a_configuration(feddrm: Feddrm, tmp_path: Path) -> None:
    """That of a run, or the best one of a search; data, evaluation and machine are not the sites'."""
    federation = load("digits", clients=3, seed=7)
    found = resolve(federation, method=Method.make("feddrm", lam=0.6), lr=0.11, rounds=9, clip=1.0, device="cpu")
    (tmp_path / "best.yaml").write_text(yaml.safe_dump(found.as_dict()))

    def training(*words: str) -> dict[str, Any]:
        made = feddrm("init", str(tmp_path / f"f{words}"), "--clients", "oslo,lima", *words)
        assert made.returncode == 0, made.stderr
        return dict(yaml.safe_load((tmp_path / f"f{words}" / "server" / "federation.yaml").read_text())["training"])

    config = ("--config", str(tmp_path / "best.yaml"))
    whole = training(*config)
    assert whole["method"] == {"name": "feddrm", "lam": 0.6}
    assert whole["model"] == {"name": "mlp", "hidden": [128, 64], "branch": 64}
    again = resolve(federation, **{**whole, "method": Method.make("feddrm", lam=0.6)}).as_dict()
    assert again == found.as_dict()
    changed = training(*config, "--lr", "0.2", "--set", "lam=0.8", "--set", "participation=0.5")
    assert changed == {**whole, "lr": 0.2, "participation": 0.5, "method": {"name": "feddrm", "lam": 0.8}}
    assert training(*config, "--method", "fedavg")["method"] == "fedavg", "the settings are another method's"
    assert training("--set", "mu=0.3", "--method", "fedproxft") == {"method": {"name": "fedproxft", "mu": 0.3}}
    assert training() == {"method": "feddrm"}
    (tmp_path / "recipe.yaml").write_text("{recipe: paper, rounds: 5}")
    assert training("--config", str(tmp_path / "recipe.yaml")) == {"method": "feddrm", "recipe": "paper", "rounds": 5}


@pytest.mark.parametrize(
    ("status", "summary", "shown"),
    [
        (None, None, "run 'first': not begun\n"),
        (
            {"what": "waiting", "round": 0, "for": "lima"},
            None,
            "run 'first': waiting for lima\n0 rounds done\n" + GOES_ON,
        ),
        (
            {"what": "training", "round": 2, "answered": ["oslo"]},
            None,
            "run 'first': training\n2 rounds done, answered by oslo\n" + GOES_ON,
        ),
        (
            {"what": "fitting the router", "round": 3, "step": 7},
            None,
            "run 'first': fitting the router, message 7\n3 rounds done\n" + GOES_ON,
        ),
        ({"what": "finished", "round": 3}, {"rounds": 3}, "run 'first': finished, 3 rounds\n"),
    ],
)
def test_status_shows_what_the_server_is_doing(
    status: dict[str, object] | None, summary: dict[str, object] | None, shown: str, feddrm: Feddrm, tmp_path: Path
) -> None:
    folder = tmp_path / "federation"
    feddrm("init", str(folder), "--clients", "oslo,lima", "--data", "digits")
    if status is not None:
        (folder / "server" / "status.json").write_text(json.dumps(status))
    if summary is not None:
        (folder / "server" / "runs" / "first").mkdir(parents=True)
        (folder / "server" / "runs" / "first" / "summary.json").write_text(json.dumps(summary))
    elif status is not None:
        (folder / "server" / "job.json").write_text(json.dumps({"run": "first"}))
    assert feddrm("status", str(folder)).stdout.endswith(shown.format(folder=folder))


def test_a_run_that_nobody_works_on_any_more_is_not_shown_as_training(feddrm: Feddrm, tmp_path: Path) -> None:
    """The disk was full: the server could not write that the run has failed, only why, before that."""
    folder = tmp_path / "federation"
    feddrm("init", str(folder), "--clients", "oslo,lima", "--data", "digits")
    (folder / "server" / "status.json").write_text(json.dumps({"what": "training", "round": 2, "time": 0.0}))
    (folder / "server" / "complaints.log").write_text("2020-01-01T00:00:00Z cannot write checkpoint.safetensors\n")
    shown = feddrm("status", str(folder)).stdout
    assert "run 'first': failed (it has stopped without a result: see feddrm.log, free the disk if it is full" in shown
    assert "last complaint: 2020-01-01T00:00:00Z cannot write checkpoint.safetensors\n" in shown


def test_a_full_disk_is_shown_by_the_status_of_server_and_site(
    feddrm: Feddrm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process whose disk is full cannot write its own status."""
    folder = tmp_path / "federation"
    feddrm("init", str(folder), "--clients", "oslo,lima", "--data", "digits")
    places = (folder, folder / "sites" / "oslo")
    assert not any("disk" in feddrm("status", str(place)).stdout for place in places)
    monkeypatch.setattr(findings, "TOO_LITTLE", 2**70)
    for place in places:
        assert "GiB are free: free some, a run stops when its disk is full\n" in feddrm("status", str(place)).stdout


def test_a_site_says_that_no_run_has_begun_since_the_server_asked_for_its_data(feddrm: Feddrm, tmp_path: Path) -> None:
    """After a negotiation that failed, its last message is 'hello' for ever."""
    folder = tmp_path / "federation"
    feddrm("init", str(folder), "--clients", "oslo,lima", "--data", "digits")
    site = folder / "sites" / "oslo"
    words = "no run has begun with this site since: 'feddrm deploy status' at the server"
    status = SiteStatus(site)
    status.message({"kind": "hello"})
    assert words in feddrm("status", str(site)).stdout
    status.message({"kind": "hello"}, "too few samples")
    shown = feddrm("status", str(site)).stdout
    assert "it was refused: too few samples" in shown
    assert words not in shown
    status.message({"kind": "train", "brief": {"run": "first"}, "round": 1})
    assert words not in feddrm("status", str(site)).stdout


def test_a_failed_run_keeps_its_reason_after_another_start_of_the_server(feddrm: Feddrm, tmp_path: Path) -> None:
    """Other complaints of the earlier start go: they may have been corrected."""
    folder = tmp_path / "federation"
    feddrm("init", str(folder), "--clients", "oslo,lima", "--data", "digits")
    server = folder / "server"
    (server / "complaints.log").write_text("2020-01-01T00:00:00Z oslo is unwell\n")
    assert "last complaint: 2020-01-01T00:00:00Z oslo is unwell" in feddrm("status", str(folder)).stdout
    (server / "status.json").write_text(json.dumps({"what": "failed", "text": "lima is unwell", "time": 0.0}))
    with only_process(server):
        shown = feddrm("status", str(folder)).stdout
    assert "run 'first': failed (lima is unwell) since 1970-01-01T00:00:00Z" in shown
    assert "last complaint" not in shown


def test_a_folder_without_a_project_is_refused(feddrm: Feddrm, tmp_path: Path) -> None:
    for verb in ("up", "run", "status", "down"):
        refusal = feddrm(verb, str(tmp_path))
        assert refusal.returncode == 1
        assert "feddrm deploy init" in refusal.stderr
    assert "site.yaml" in feddrm("site", str(tmp_path)).stderr
    assert "federation.yaml" in feddrm("server", str(tmp_path)).stderr


@pytest.mark.parametrize(
    ("file", "line", "complaint"),
    [
        ("server/federation.yaml", "port: 99999", "port=99999"),
        ("server/federation.yaml", "run: ../first", "run '../first' names folders"),
        ("server/federation.yaml", "deadline: soon", "deadline='soon': give a number"),
        ("server/federation.yaml", "training: {rounds: ten}", "training: rounds='ten': give a whole number"),
        ("server/federation.yaml", "routing: {ridge: 1}", "no routing setting 'ridge'"),
        ("sites/oslo/site.yaml", "device: abacus", "device 'abacus' cannot be used here"),
        ("sites/oslo/site.yaml", "poll_seconds: 0", "'poll_seconds: 0': give seconds above zero"),
        ("sites/oslo/site.yaml", "privacy: {clip: 1}", "'noise'"),
        ("sites/oslo/site.yaml", "privacy: {clip: 1, noise: much}", "privacy"),
        ("sites/oslo/site.yaml", "privacy: {clip: 1, noise: 0}", "'noise: 0.0'"),
        ("sites/oslo/site.yaml", "privacy: {clip: 1, noise: 3, budget: -1}", "'budget: -1.0'"),
        ("sites/oslo/site.yaml", "privacy: 3", "privacy: {clip: 1, noise: 3}"),
        ("sites/oslo/site.yaml", "data: my.csv", "must be a setting"),
        ("sites/oslo/site.yaml", "resident: false", "'resident: false' is not supported any more"),
    ],
)
def test_a_mistake_in_a_settings_file_is_refused_in_one_line(
    file: str, line: str, complaint: str, feddrm: Feddrm, tmp_path: Path
) -> None:
    folder = tmp_path / "federation"
    feddrm("init", str(folder), "--clients", "oslo,lima", "--data", "digits")
    path, key = folder / file, line.split(":")[0]
    kept = [text for text in path.read_text().splitlines() if not text.startswith(f"{key}:")]
    if key in ("data", "training"):
        kept = [text for text in kept if not text.startswith("  ")]
    path.write_text("\n".join([*kept, line]) + "\n")
    refusal = feddrm("server" if "server/" in file else "site", str(path.parent))
    assert refusal.returncode == 2
    assert complaint in refusal.stderr
    assert "Traceback" not in refusal.stderr


def test_the_flag_for_heads_is_written_to_the_settings(feddrm: Feddrm, tmp_path: Path) -> None:
    feddrm("init", str(tmp_path / "federation"), "--clients", "oslo,lima", "--data", "digits", "--heads")
    assert "heads: true" in (tmp_path / "federation" / "server" / "federation.yaml").read_text()


@pytest.mark.data
def test_init_finds_the_files_of_a_dataset_where_it_is_told(
    feddrm: Feddrm, real_data: Path, no_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "federation"
    words = ["init", str(folder), "--clients", "oslo,lima", "--plain-text"]
    without = feddrm(*words, "--data", "heart")
    assert without.returncode == 1
    assert "--data-dir" in without.stderr
    assert not folder.exists()
    (tmp_path / "files").symlink_to(real_data)
    monkeypatch.chdir(tmp_path)
    made = feddrm(*words, "--data", "heart", "--data-dir", "files")
    assert made.returncode == 0, made.stderr
    monkeypatch.chdir(no_data.parent.parent)
    assert feddrm("check", str(folder)).returncode == 0, "the sites find them from any folder"


def test_where_the_files_are_needs_a_dataset(feddrm: Feddrm, tmp_path: Path) -> None:
    refused = feddrm("init", str(tmp_path / "federation"), "--clients", "oslo,lima", "--data-dir", str(tmp_path))
    assert refused.returncode == 2
    assert refused.stderr.count("\n") == 1
    assert "--data-dir and --download are for the dataset of --data" in refused.stderr

"""The commands for members of a deployment, as a person calls them."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

pytest.importorskip("flwr")

from feddrm.cli import main
from feddrm.deploy.process_lock import only_process

Call = Callable[..., tuple[int, str]]


@pytest.fixture
def deploy(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Call:
    """Call ``feddrm deploy`` in this process and a new folder; returns the exit code and what was printed."""
    monkeypatch.chdir(tmp_path)

    def call(*words: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["feddrm", "deploy", *words])
        with pytest.raises(SystemExit) as left:
            main()
        captured = capsys.readouterr()
        return int(left.value.code or 0), captured.out + captured.err

    return call


@pytest.fixture
def project(deploy: Call) -> Path:
    assert deploy("init", "f", "--clients", "oslo,lima,pune", "--data", "digits")[0] == 0
    return Path("f")


def test_a_site_makes_its_key_and_is_added_with_its_public_half(deploy: Call, project: Path) -> None:
    code, out = deploy("keygen", "quito")
    assert code == 0
    assert "node.key: it stays here" in out
    assert "send quito/node.pub to the coordinator" in out
    code, out = deploy("add-site", "f", "quito", "--key", "quito/node.pub")
    assert code == 0
    assert "the site keeps its own private key" in out
    assert "within seconds" in out, "it is said when it counts"
    assert "goes on" not in out
    assert not (project / "sites" / "quito" / "node.key").exists()


def test_init_takes_the_keys_that_sites_made_and_several_names_of_the_server(deploy: Call) -> None:
    Path("keys").mkdir()
    deploy("keygen", "oslo-own")
    Path("oslo-own/node.pub").rename("keys/oslo.pub")
    words = ["--host", "server.example", "--host", "10.0.0.7"]
    assert deploy("init", "f", "--clients", "oslo,lima", "--keys", "keys", *words)[0] == 0
    assert not Path("f/sites/oslo/node.key").exists()
    assert Path("f/sites/lima/node.key").exists()
    assert yaml.safe_load(Path("f/sites/oslo/site.yaml").read_text())["server"] == "server.example:8000"
    code, out = deploy("renew", "f", "--host", "mirror.example", "--json")
    assert code == 0
    assert {"server.example", "10.0.0.7", "mirror.example"} <= set(json.loads(out)["hosts"])
    code, out = deploy("init", "g", "--clients", "oslo,lima", "--keys", "f")
    assert (code, "no public key of a site, such as oslo.pub" in out) == (2, True)
    code, out = deploy("init", "g", "--clients", "oslo,lima", "--host", "127.0.0.1", "--host", "server.example")
    assert (code, "on other machines" in out) == (2, True)
    assert not Path("g").exists()


def test_what_a_change_means_for_a_run_and_its_router_is_said(deploy: Call, project: Path) -> None:
    run = project / "server" / "runs" / "first"
    (run / "router").mkdir(parents=True)
    (run / "settings.json").write_text("{}")
    assert "run 'first' goes on without quito" in deploy("add-site", "f", "quito")[1]
    (run / "brief.json").write_text('{"names": ["oslo", "lima", "pune"]}')
    code, out = deploy("remove-site", "f", "lima")
    assert code == 0
    assert "its private part stays with it" in out
    assert "f/sites/lima stays, with its key" in out
    assert "feddrm deploy down f; rm -r f/sites/lima" in out
    assert "run 'first' goes on without lima; it fits no router" in out
    assert "router leave" not in out
    back = deploy("add-site", "f", "lima", "--out", "lima")[1]
    assert (
        "run 'first' began with another lima: to go on in it, put 'runs' of that site's folder into the new one" in back
    )
    assert "goes on without lima" not in back
    (run / "router" / "manifest.json").write_text("{}")
    (run / "summary.json").write_text("{}")
    code, out = deploy("remove-site", "f", "pune")
    assert f"feddrm router leave {run} pune --in-place" in out
    assert "before the next run, give it a name" in out
    deploy("add-site", "f", "cusco", "--run", "second", "--out", "cusco")
    removed = json.loads(deploy("remove-site", "f", "cusco", "--json")[1])
    assert removed == {"removed": "cusco", "folder": None, "run_goes_on": False, "router": None}


def test_check_fails_where_there_is_a_problem(deploy: Call, project: Path) -> None:
    code, out = deploy("check", "f/sites/oslo")
    assert (code, "samples" in out) == (0, True)
    (project / "sites" / "oslo" / "node.key").chmod(0o644)
    code, out = deploy("check", "f/sites/oslo", "--json")
    assert code == 1
    assert {finding["what"]: finding["level"] for finding in json.loads(out)}["folder"] == "problem"


def test_status_in_a_sites_folder_is_what_the_site_knows(deploy: Call, project: Path) -> None:
    site = project / "sites" / "oslo"
    assert "not running here" in deploy("status", str(site))[1]
    message = {"kind": "train", "run": "first", "round": 4, "time": 0.0, "error": "holds other samples"}
    known = {"connected": True, "reason": "", "since": 0.0, "message": message, "waiting": {"lima": 60.0}}
    (site / "status.json").write_text(json.dumps(known))
    assert "not connected (this site does not run; it was connected) since" in deploy("status", str(site))[1]
    with only_process(site):
        out = deploy("status", str(site))[1]
    assert "\nconnected since 1970-01-01T00:00:00Z" in out
    assert "last message: 'train' of run 'first', round 4, 1970-01-01T00:00:00Z" in out
    assert "it was refused: holds other samples" in out
    assert "the server waits for lima since 1970-01-01T00:01:00Z" in out
    (site / "status.json").write_text(json.dumps({"samples": ["'id': leave it out (drop: [id])"]}))
    assert "its samples: 'id': leave it out (drop: [id])\n" in deploy("status", str(site))[1]
    (site / "status.json").write_text(json.dumps({"connected": False, "reason": "no route", "since": 0.0}))
    assert "not connected (no route) since" in deploy("status", str(site))[1]
    assert json.loads(deploy("status", str(site), "--json")[1])["reason"] == "no route"


def test_status_at_the_server_names_whom_it_waits_for_and_since_when(deploy: Call, project: Path) -> None:
    status = {"what": "training", "round": 2, "waiting": {"lima": 60.0}, "time": 0.0}
    (project / "server" / "status.json").write_text(json.dumps(status))
    (project / "server" / "job.json").write_text(json.dumps({"run": "first"}))
    with only_process(project / "server"):
        assert "the server waits for lima since 1970-01-01T00:01:00Z" in deploy("status", "f")[1]
    assert "waits for" not in deploy("status", "f")[1]


def test_check_of_a_server_and_of_a_whole_project(deploy: Call, project: Path) -> None:
    code, out = deploy("check", "f/server", "--json")
    found = {finding["what"]: finding["level"] for finding in json.loads(out)}
    assert {"settings", "key", "certificate", "port", "disk", "versions"} <= set(found)
    assert code == int("problem" in found.values())
    whole = json.loads(deploy("check", "f", "--json")[1])
    assert list(whole) == ["server", "lima", "oslo", "pune"]
    deploy("remove-site", "f", "pune")
    assert list(json.loads(deploy("check", "f", "--json")[1])) == ["server", "lima", "oslo"], (
        "pune is not started any more"
    )
    assert "samples" in deploy("check", "f/sites/pune")[1]
    (project / "server" / "secret").chmod(0o644)
    code, out = deploy("check", "f")
    assert code == 1
    assert "others can read secret: chmod 600" in out

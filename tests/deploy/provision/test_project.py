"""The project that ``feddrm deploy init`` writes. tests/cli/deploy/test_cluster.py lists its files and their modes."""

from __future__ import annotations

import configparser
import errno
import hashlib
import importlib
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from feddrm.checks.findings import PROBLEM, Finding
from feddrm.data import Dataset
from feddrm.deploy.provision import project, wheel
from feddrm.deploy.provision.project import make_project
from feddrm.deploy.provision.server_check import check_server
from feddrm.deploy.provision.site_check import check_site
from feddrm.deploy.server.federation_settings import FederationSettings
from feddrm.errors import FeddrmError
from refusal import refused

SETTINGS = FederationSettings(clients=("oslo", "Zürich"), host="server.example", port=8443, training={"rounds": 3})


def test_the_settings_come_back_from_the_servers_folder(tmp_path: Path) -> None:
    make_project(tmp_path / "f", SETTINGS)
    assert FederationSettings.read(tmp_path / "f" / "server") == SETTINGS


def test_every_site_gets_its_own_name_and_share(tmp_path: Path) -> None:
    make_project(tmp_path / "f", SETTINGS, data={"dataset": "digits"})
    for number, name in enumerate(SETTINGS.clients):
        config = yaml.safe_load((tmp_path / "f" / "sites" / name / "site.yaml").read_text())
        assert config == {
            "name": name,
            "server": "server.example:8443",
            "device": "cpu",
            "data": {"dataset": "digits", "clients": 2, "client": number},
        }
        assert "server.example:8443" in (tmp_path / "f" / "sites" / name / "README.md").read_text()


@pytest.mark.data
def test_a_dataset_with_clients_of_its_own_is_not_divided_anew(tmp_path: Path, real_data: Path) -> None:
    """Heart has no setting 'clients': with one, every site's check refused its data."""
    make_project(tmp_path / "f", SETTINGS, data={"dataset": "heart"})
    config = yaml.safe_load((tmp_path / "f" / "sites" / SETTINGS.clients[1] / "site.yaml").read_text())
    assert config["data"] == {"dataset": "heart", "client": 1}
    assert problems(tmp_path / "f") == []


def problems(folder: Path) -> list[Finding]:
    """What ``feddrm deploy check`` refuses in a project."""
    findings = check_server(folder / "server")
    for site in (folder / "sites").iterdir():
        findings += check_site(site)
    return [finding for finding in findings if finding.level == PROBLEM]


@pytest.mark.parametrize("name", sorted(Dataset.members()))
def test_a_project_of_any_dataset_passes_its_check_or_is_not_written(name: str, tmp_path: Path, no_data: Path) -> None:
    """Datasets whose files are not here, and kinds of one's own files, were written and then refused."""
    try:
        make_project(tmp_path / "f", SETTINGS, data={"dataset": name})
    except FeddrmError:
        assert name != "digits"
        assert not (tmp_path / "f").exists()
    else:
        assert problems(tmp_path / "f") == []


@pytest.mark.parametrize("name", ["csv", "folders", "leaf", "npz"])
def test_kinds_of_ones_own_files_belong_into_site_yaml(name: str, tmp_path: Path) -> None:
    with refused(f"--data {name}: it reads your own files", "name them in every site.yaml"):
        make_project(tmp_path / "f", SETTINGS, data={"dataset": name})


@pytest.mark.data
def test_data_that_no_site_could_use_are_refused(tmp_path: Path, real_data: Path) -> None:
    five = FederationSettings(clients=("a", "b", "c", "d", "e"))
    with refused("--data heart: it has 4 clients, too few for 5 sites", "name fewer sites"):
        make_project(tmp_path / "f", five, data={"dataset": "heart"})
    with refused("a deployed federation of 'tcga_brca' needs classes", "feddrm train"):
        make_project(tmp_path / "f", five, data={"dataset": "tcga_brca"})
    assert not (tmp_path / "f").exists()


def test_an_unknown_dataset_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    with refused("unknown dataset 'digit'; did you mean 'digits'?"):
        make_project(tmp_path / "f", SETTINGS, data={"dataset": "digit"})
    assert not (tmp_path / "f").exists()


def test_without_a_dataset_a_site_reads_its_folder_of_images(tmp_path: Path) -> None:
    make_project(tmp_path / "f", SETTINGS)
    assert yaml.safe_load((tmp_path / "f" / "sites" / "oslo" / "site.yaml").read_text())["data"] == {"folder": "data"}


def test_the_flower_app_names_the_installed_apps(tmp_path: Path) -> None:
    make_project(tmp_path / "f", SETTINGS)
    page = tomllib.loads((tmp_path / "f" / "server" / "app" / "pyproject.toml").read_text())
    for component in page["tool"]["flwr"]["app"]["components"].values():
        module, _, name = component.partition(":")
        assert hasattr(importlib.import_module(module), name)


def test_the_start_scripts_are_executable(tmp_path: Path) -> None:
    make_project(tmp_path / "f", SETTINGS)
    scripts = list((tmp_path / "f").rglob("start.sh"))
    assert len(scripts) == 3
    assert all(os.access(script, os.X_OK) for script in scripts)


def test_every_folder_has_the_wheel_that_its_page_names_with_its_checksum(tmp_path: Path) -> None:
    make_project(tmp_path / "f", SETTINGS)
    for place in ("server", "sites/oslo", "sites/Zürich"):
        assert hashlib.sha256((tmp_path / "f" / place / wheel.NAME).read_bytes()).hexdigest() == wheel.checksum()
    for page in ("README.md", "sites/oslo/README.md"):
        text = (tmp_path / "f" / page).read_text()
        assert wheel.checksum() in text
        assert f"pip install './{wheel.NAME}[deploy]'" in text


@pytest.mark.parametrize(("role", "place"), [("server", "server"), ("site", "sites/Zürich")])
def test_the_unit_has_a_user_absolute_paths_and_limits(role: str, place: str, tmp_path: Path) -> None:
    make_project(tmp_path / "f", SETTINGS)
    path = tmp_path / "f" / place / f"feddrm-{role}.service"
    unit = configparser.ConfigParser()
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read_string(path.read_text())
    service = unit["Service"]
    for key in ("WorkingDirectory", "ExecStart", "ReadWritePaths"):
        assert service[key].startswith(f"/opt/feddrm/{role}")
    limits = {"Restart": "always", "NoNewPrivileges": "true", "ProtectSystem": "strict", "MemoryMax": "8G"}
    assert {key: service[key] for key in limits} == limits
    assert service["User"] == "feddrm"


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    make_project(tmp_path / "f", SETTINGS)
    unit = tmp_path / "f" / "sites" / "oslo" / "feddrm-site.service"
    said = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False).stderr
    assert "Unknown" not in said


def started(script: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """What a start script does without an activated environment."""
    return subprocess.run(
        [script], env={"PATH": "/usr/bin:/bin", **environment}, cwd="/", capture_output=True, text=True, check=False
    )


@pytest.mark.slow
def test_a_start_script_finds_its_python_and_says_what_it_does(tmp_path: Path) -> None:
    """That of FEDDRM_PYTHON, else the environment in its folder, else the one that made it."""
    make_project(tmp_path / "a folder", SETTINGS)
    site = tmp_path / "a folder" / "sites" / "oslo"
    text = (site / "start.sh").read_text()
    assert sys.executable in text
    fake = tmp_path / "fake python"
    fake.write_text('#!/bin/sh\necho "called with $*"\n')
    fake.chmod(0o755)
    call = f"called with -m feddrm deploy site {site}"
    chosen = started(site / "start.sh", FEDDRM_PYTHON=str(fake))
    assert chosen.stdout.splitlines() == [
        f"feddrm site: {fake} -m feddrm deploy site {site}",
        f"feddrm site: its logs are {site}/feddrm.log and {site}/flower.log",
        f"called with -m feddrm deploy check {site}",
        call,
    ]
    assert "deploy check" not in started(site / "start.sh", FEDDRM_PYTHON=str(fake), FEDDRM_CHECK="0").stdout
    strict = tmp_path / "strict python"
    strict.write_text('#!/bin/sh\necho "called with $*"\ntest "$4" != check\n')
    strict.chmod(0o755)
    problem = started(site / "start.sh", FEDDRM_PYTHON=str(strict))
    assert (problem.returncode, call in problem.stdout) == (1, False)
    assert "correct the problems above" in problem.stderr
    (site / "venv" / "bin").mkdir(parents=True)
    shutil.copy(fake, site / "venv" / "bin" / "python")
    assert call in started(site / "start.sh").stdout
    shutil.rmtree(site / "venv")
    (site / "start.sh").write_text(text.replace(sys.executable, "/nowhere/python"))
    refusal = started(site / "start.sh")
    assert refusal.returncode == 1
    assert "no Python at /nowhere/python" in refusal.stderr
    assert wheel.NAME in refusal.stderr


def test_a_folder_that_is_not_empty_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with refused("is not empty", "keys are never written over"):
        make_project(tmp_path, SETTINGS)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_a_project_that_cannot_be_finished_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the same command works once the disk has room: half a project would be refused as not empty."""
    folder, settings = tmp_path / "project", FederationSettings(clients=("oslo", "lima"))
    write = Path.write_text

    def full(path: Path, text: str) -> int:
        if path.name == "README.md" and path.parent.name == "lima":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(path, text)

    with monkeypatch.context() as patch, refused(f"cannot write {folder} (No space left on device)", "free the disk"):
        patch.setattr(Path, "write_text", full)
        make_project(folder, settings)
    assert list(folder.iterdir()) == []
    make_project(folder, settings)
    assert (folder / "README.md").exists()


def test_ctrl_c_leaves_no_half_of_a_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(project, "copy_site_keys", interrupt)
        with pytest.raises(KeyboardInterrupt):
            make_project(tmp_path / "f", SETTINGS)
    assert list((tmp_path / "f").iterdir()) == []
    make_project(tmp_path / "f", SETTINGS)

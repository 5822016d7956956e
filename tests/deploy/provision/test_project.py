"""The project that ``feddrm deploy init`` writes. tests/cli/test_deploy.py lists its files and their modes."""

from __future__ import annotations

import importlib
import os
import tomllib
from pathlib import Path

import yaml

from feddrm.deploy.provision.project import make_project
from feddrm.deploy.server.federation_settings import FederationSettings
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


def test_a_folder_that_is_not_empty_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with refused("is not empty", "keys are never written over"):
        make_project(tmp_path, SETTINGS)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]

"""Settings of a federation: what a run began with cannot change."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from deployment import NAMES, Deployed
from feddrm.deploy import local_cluster
from feddrm.deploy.server.federation_settings import FederationSettings
from feddrm.errors import SettingError
from feddrm.methods import Method
from refusal import refused

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (
            {"training": {"rounds": 6, "local_steps": 4, "batch_size": 16}},
            "training.rounds 2, {file} now says 6",
        ),
        ({"training": {"rounds": 2, "local_steps": 4}}, "training.batch_size 16, {file} now says not given"),
        ({"router": True}, "router false, {file} now says true"),
        ({"privacy": {"clip": 1.0, "noise": 2.0}}, "privacy.clip not given, {file} now says 1.0"),
    ],
)
def test_other_settings_need_another_run(
    changes: dict[str, Any], reason: str, deployed: Callable[..., Deployed]
) -> None:
    """During a run and after it, in the server and in 'deploy run'."""
    deployment = deployed(router=False)
    deployment.server().run_spec()
    path = deployment.folder / "server" / "federation.yaml"
    reason = reason.format(file=path)
    with refused(reason, "choose another 'run'"):
        deployment.server(**changes).go()
    deployment.server(deadline=5.0).go()  # the deadline may change
    assert local_cluster.run(deployment.folder, lambda status: None)["rounds"] == 2
    path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), **changes}))
    with refused(reason, "choose another 'run'"):
        local_cluster.run(deployment.folder, lambda status: None)


def test_a_deployed_router_is_not_fitted_on_views() -> None:
    with refused("routing: views=4: a deployed router is fitted on crops: leave views out"):
        FederationSettings(clients=("oslo", "lima"), routing={"views": 4}).check()


@pytest.mark.parametrize(
    ("routing", "reason"),
    [
        ({}, "competence=true is about the class heads: add heads=true"),
        ({"heads": True, "features": "raw+multiscale"}, "raw features are the samples themselves"),
    ],
)
def test_a_competence_that_cannot_be_fitted_over_the_network_is_refused(routing: dict[str, Any], reason: str) -> None:
    with refused(reason):
        FederationSettings(clients=("oslo", "lima"), routing={"competence": True, **routing}).check()
    usable = FederationSettings(clients=("oslo", "lima"), routing={"competence": True, "heads": True})
    usable.check()
    assert usable.router_settings.features == "multiscale"
    assert not FederationSettings(clients=("oslo", "lima")).router_settings.competence, "off by default"


def test_sites_may_change_while_a_run_goes_on_and_then_need_another_run(deployed: Callable[..., Deployed]) -> None:
    deployment = deployed(router=False)
    deployment.server().run_spec()
    more = (*deployment.settings.clients, "quito")
    deployment.server(clients=more).go()  # with the sites that it began with
    assert json.loads((deployment.run / "summary.json").read_text())["accepted"].keys() == set(NAMES)
    with refused('began with clients ["oslo", "lima", "pune"]', '"quito"]', "choose another 'run'"):
        replace(deployment.settings, clients=more).check_same(deployment.run)


@pytest.mark.parametrize(
    ("routing", "few", "rounds"), [({}, True, None), ({"few_messages": False, "rounds": 9}, False, 9)]
)
def test_the_router_is_fitted_in_few_messages_unless_told_otherwise(
    routing: dict[str, Any], few: bool, rounds: int | None
) -> None:
    settings = FederationSettings(("oslo", "lima"), routing=routing).router_settings
    assert (settings.few_messages, settings.rounds) == (few, rounds)


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"clients": ("oslo", "lima")}, ("a sum of 2 sites, it needs 3",)),
        ({"training": {"participation": 0.5}}, ("a sum of 2 sites", "a larger participation")),
        ({"training": {"dropout": 0.1}}, ("dropout=0.1 is for simulations",)),
        ({"training": {"method": "confree"}}, ("confree", "one by one")),
        ({"routing": {"heads": True, "competence": True}}, ("competence needs rows of single samples",)),
    ],
)
def test_secure_aggregation_refuses_what_needs_single_replies(changes: dict[str, Any], parts: tuple[str, ...]) -> None:
    settings = FederationSettings(NAMES, secure_aggregation=True)
    settings.check()
    with refused(*parts):
        replace(settings, **changes).check()


def test_a_run_cannot_change_its_secure_aggregation(deployed: Callable[..., Deployed]) -> None:
    deployment = deployed(router=False)
    deployment.server().run_spec()
    with refused("secure_aggregation not given", "federation.yaml now says true", "choose another 'run'"):
        deployment.server(secure_aggregation=True).run_spec()


def test_quoted_numbers_of_privacy_become_numbers(tmp_path: Path) -> None:
    (tmp_path / "federation.yaml").write_text("{clients: [oslo, lima], privacy: {clip: '1', noise: '3'}}")
    assert FederationSettings.read(tmp_path).privacy == {"clip": 1.0, "noise": 3.0}


def test_privacy_without_its_noise_is_refused(tmp_path: Path) -> None:
    (tmp_path / "federation.yaml").write_text("{clients: [oslo, lima], privacy: {clip: 1}}")
    with refused("privacy: {'clip': 1.0}: write it as 'privacy: {clip: 1.0, noise: 3.0}'"):
        FederationSettings.read(tmp_path)


@pytest.mark.parametrize(("written", "columns"), [("age", ["age"]), ("5", ["5"]), ("[age, dose]", ["age", "dose"])])
def test_the_columns_of_a_comparison_are_names(written: str, columns: list[str], tmp_path: Path) -> None:
    (tmp_path / "federation.yaml").write_text(
        f"{{clients: [oslo, lima], comparison: {{basis: normal, columns: {written}}}}}"
    )
    assert FederationSettings.read(tmp_path).comparison == {"basis": "normal", "columns": columns}


def test_a_comparison_of_another_form_is_refused(tmp_path: Path) -> None:
    (tmp_path / "federation.yaml").write_text("{clients: [oslo, lima], comparison: {basis: normal, columns: {a: 1}}}")
    with refused("comparison: columns={'a': 1}: give a list"):
        FederationSettings.read(tmp_path)


@pytest.mark.parametrize(
    ("written", "reason"),
    [
        ("deadline: soon", "deadline='soon': give a number"),
        ("deadline: -1", "deadline=-1: give seconds above zero"),
        ("quorum: 9", "quorum=9: give 1 to 2, the number of sites"),
        ("port: 70000", "port=70000: give a number from 1 to 65535"),
        ("watch: {port: x}", "watch: port='x': give a whole number"),
        ("watch: {port: null}", "watch: port=None: give a whole number"),
        ("deadlin: 5", "no federation setting 'deadlin'; did you mean 'deadline'?"),
        ("training: {rounds: many}", "training: rounds='many': give a whole number"),
        ("training: {rounds: 0}", "training: rounds=0: give at least 1"),
        ("training: {method: 3}", "training: method=3: give a name, or a name and settings as 'key: value' lines"),
        ("training: {method: {name: feddrm, lam: 7}}", "training: lam=7.0: the weight of the class loss must lie in"),
        (
            "training: {method: {name: feddrm, lamb: 1}}",
            "training: 'feddrm' has no setting 'lamb'; did you mean 'lam'?",
        ),
        ("training: {model: {name: mlp, hiden: [3]}}", "training: 'mlp' has no setting 'hiden'"),
        (
            "training: {rounds: 5, method: {name: fedavgft, tuning: 9}}",
            "training: fedavgft: 9 fine-tuning rounds do not fit into 5",
        ),
        ("training: {method: fed3r}", "training: method=fed3r: it has no rounds, which sites train in"),
        ("training: {model: onnx}", "training: model=onnx: it has no rounds, which sites train in"),
        ("training: {model: lenett}", "training: unknown model 'lenett'; did you mean 'lenet'?"),
        ("training: {batchsize: 3}", "training: no training setting 'batchsize'; did you mean 'batch_size'?"),
        ("routing: {rounds: 0}", "routing: rounds=0: give at least 1"),
        ("routing: {holdout: 5}", "routing: holdout=5: the number of samples decides it: leave holdout out"),
        ("comparison: {basis: normall}", "comparison: unknown basis 'normall'"),
        ("privacy: {clip: -1, noise: 1}", "privacy: clip=-1.0"),
        ("secure_aggregation: true", "secure_aggregation: a sum of 2 sites, it needs 3"),
        ("run: ../other", "run '../other' names folders"),
        ("clients: [oslo]", "clients: a federation needs at least two clients, got 1: add another"),
        ("clients: [se, no]", "clients=['se', False]: give a list, as in [a, b], each text (in YAML, in quotes)"),
    ],
)
def test_an_error_names_file_key_value_and_remedy(written: str, reason: str, tmp_path: Path) -> None:
    """Several files have settings of these names, and several parts of this file."""
    clients = "" if written.startswith("clients") else "clients: [oslo, lima]\n"
    (tmp_path / "federation.yaml").write_text(f"{clients}{written}\n")
    with refused() as caught:
        FederationSettings.read(tmp_path)
    assert str(caught.value).startswith(f"{tmp_path / 'federation.yaml'}: {reason}")
    assert isinstance(caught.value, SettingError)


def test_method_and_model_may_have_settings(tmp_path: Path) -> None:
    """As in the config.yaml of a run."""
    (tmp_path / "federation.yaml").write_text(
        "{clients: [oslo, lima], training: {method: {name: feddrm, lam: '0.5'}, model: {hidden: [3]}}}"
    )
    settings = FederationSettings.read(tmp_path)
    assert settings.method == Method.make("feddrm", lam=0.5)
    assert FederationSettings(("oslo", "lima"), training={"method": "fedavg"}).method == Method.make("fedavg")
    assert FederationSettings(("oslo", "lima")).method == Method.make("feddrm")


def test_numbers_may_be_written_as_yaml_takes_them_for_text(tmp_path: Path) -> None:
    """YAML reads 1e-2 as text."""
    (tmp_path / "federation.yaml").write_text(
        "{clients: [oslo, lima], training: {lr: 1e-2, rounds: '5'}, watch: {port: '8001'}}"
    )
    settings = FederationSettings.read(tmp_path)
    assert (settings.training, settings.watch_port) == ({"lr": 0.01, "rounds": 5}, 8001)

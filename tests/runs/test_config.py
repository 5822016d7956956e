"""The configuration of a run: defaults that suit the data, impossible values, and the way to ``config.yaml``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from feddrm.data import Federation, load
from feddrm.engine import Plan
from feddrm.engine.recipes import fill_in
from feddrm.io.text import yaml_bytes
from feddrm.registry import known_fields
from feddrm.runs import Evaluation, read_config, resolve
from feddrm.runs.config import fill_in_evaluation, threads_for, training_settings
from refusal import refused


def photographs(side: int, name: str = "photos") -> Federation:
    """The digits' federation in a form that only its shape and name differ from."""
    digits = load("digits", clients=2, seed=0)
    clients = tuple(
        replace(c, train=replace(c.train, x=big(c.train.x, side)), test=replace(c.test, x=big(c.test.x, side)))
        for c in digits.clients
    )
    return replace(digits, clients=clients, name=name)


def big(x: torch.Tensor, side: int) -> torch.Tensor:
    return torch.zeros(len(x), 3, side, side, dtype=torch.uint8)


def test_a_round_is_evaluated_every_so_often_in_the_window_and_in_the_further_rounds() -> None:
    evaluation = Evaluation(window=3, every=10, also=(14, 15))
    assert [r for r in range(1, 31) if evaluation.due(r, 30)] == [10, 14, 15, 20, 28, 29, 30]
    assert [r for r in range(1, 31) if Evaluation(window=1, every=15).due(r, 30)] == [15, 30]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"window": 0}, "window=0"),
        ({"every": 0}, "every=0"),
        ({"ties": "first"}, "ties='first': choose smallest or cuda"),
        ({"also": (3, 2)}, "also=(3, 2)"),
        ({"views": 0}, "views=0: give at least 1"),
    ],
)
def test_impossible_evaluations_are_refused(settings: dict[str, Any], message: str) -> None:
    with refused(message):
        Evaluation(**settings).check()


def test_one_view_is_not_written_so_that_older_runs_can_be_resumed() -> None:
    photos = replace(photographs(32), mirrors=True)
    assert "views" not in resolve(photos).as_dict()["evaluation"]
    assert resolve(photos, evaluation={"views": 2}).as_dict()["evaluation"]["views"] == 2
    with refused("views=3: these data allow 2 views: give 1 to 2"):
        resolve(photos, evaluation={"views": 3})


def test_small_samples_get_the_perceptron_and_a_short_plan() -> None:
    config = resolve(load("digits", clients=2, seed=0))
    assert (config.model.name, config.method.name, config.engine, config.threads) == ("mlp", "feddrm", "sequential", 1)
    assert (config.plan.rounds, config.plan.batch_size, config.plan.lr) == (40, 32, 0.05)
    assert (config.evaluation.window, config.evaluation.every) == (5, 1)


@pytest.mark.parametrize(("name", "model"), [("photos", "resnet18"), ("retina", "resnet18_retina")])
def test_photographs_get_the_plan_of_their_recipe(name: str, model: str) -> None:
    config = resolve(photographs(32, name), recipe="paper")
    assert (config.model.name, config.plan) == (model, Plan())
    assert resolve(photographs(32, name)).plan == fill_in({}, small=False)
    assert (config.evaluation.window, config.evaluation.every) == (50, 37)


def test_given_settings_come_before_defaults() -> None:
    config = resolve(
        load("digits", clients=2, seed=0),
        method="fedavg",
        model={"hidden": [4]},
        evaluation={"every": 7},
        rounds="20",
        threads=3,
    )
    assert (config.method.name, config.plan.rounds, config.threads) == ("fedavg", 20, 3)
    assert config.as_dict()["model"] == {"name": "mlp", "hidden": [4], "branch": 64}
    assert (config.evaluation.window, config.evaluation.every) == (5, 7)


def test_settings_are_divided_into_plan_and_machine() -> None:
    assert training_settings({"rounds": "3", "device": "cpu", "threads": "2"}) == (
        {"rounds": 3},
        {"device": "cpu", "threads": 2},
    )
    with refused("no training setting 'round'; did you mean 'rounds'"):
        training_settings({"round": 3})
    with refused("threads='two': give a whole number"):
        training_settings({"threads": "two"})


def test_unknown_names_are_refused_with_the_nearest() -> None:
    with refused("no evaluation setting 'windows'; did you mean 'window'", "there are: also, every"):
        known_fields(Evaluation, {"windows": 3}, "evaluation")


def test_the_configuration_is_the_same_after_writing_and_reading(tmp_path: Path) -> None:
    config = resolve(load("digits", clients=2, seed=0), lr=1e-5, evaluation={"also": (1, 2)})
    (tmp_path / "config.yaml").write_bytes(yaml_bytes(config.as_dict()))
    assert read_config(tmp_path / "config.yaml") == config.as_dict()


def test_clients_of_small_networks_and_on_a_gpu_train_one_after_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 6)
    assert threads_for(small=True, device="cpu") == 1
    assert threads_for(small=False, device="cuda") == 1
    assert threads_for(small=False, device="cpu") == 6


def test_a_net_has_a_client_branch_if_the_method_needs_one() -> None:
    federation = load("digits", clients=2, seed=0)
    head = resolve(federation, method="feddrm").build_net(federation).client_head
    assert head is not None
    assert head.out_features == 2
    assert resolve(federation, method="fedavg").build_net(federation).client_head is None


def test_a_large_federation_is_evaluated_five_times_and_its_participants_in_between() -> None:
    few, many = fill_in_evaluation({}, 40, 100), fill_in_evaluation({}, 40, 101)
    assert few == {"window": 5, "every": 1}
    assert many == {"window": 1, "every": 8, "participants": True}
    when = Evaluation(**many)
    assert [round for round in range(1, 41) if when.due(round, 40)] == [8, 16, 24, 32, 40]


def test_a_large_federation_may_have_no_rounds() -> None:
    Evaluation(**fill_in_evaluation({}, 0, 101)).check()  # feddrm.fit


def test_given_settings_of_evaluation_are_kept_and_whole_ones_left_as_they_are() -> None:
    assert fill_in_evaluation({"window": 3}, 40, 1000) == {"window": 3, "every": 8, "participants": True}
    assert fill_in_evaluation({"every": 2, "participants": False}, 40, 1000)["participants"] is False
    old = {"window": 5, "every": 1}  # of a run from before participants were evaluated
    assert fill_in_evaluation(old, 40, 1000) == old
    assert "participants" not in Evaluation(**old).as_dict()
    assert Evaluation(**old, participants=True).as_dict()["participants"] is True

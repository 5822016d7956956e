"""``feddrm.train``: what it writes, what it refuses, and that the settings alone decide its result."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from feddrm.data import Dataset, Federation
from feddrm.errors import FeddrmError
from feddrm.methods import FedAvg, FedDRM, Method
from feddrm.models import Mlp
from feddrm.runs import train, train_seeds
from refusal import refused
from runs.conftest import SMALL, files


def test_a_run_folder_holds_summary_config_metrics_and_evaluation(digits: Federation, tmp_path: Path) -> None:
    run = train(digits, "feddrm", out=tmp_path / "run", **SMALL)
    assert run.summary is not None
    assert set(run.summary) >= {
        "average_accuracy", "oracle_accuracy", "global_accuracy", "client_accuracy", "system_accuracy",
        "window", "rounds", "seconds", "hardware", "versions", "date",
    }  # fmt: skip
    assert set(run.summary["system_accuracy"]) == {"vote", "head_density", "head_posterior"}
    assert set(run.summary["seconds"]) == {"train", "evaluate", "total"}
    assert all(0 <= v["mean"] <= 1 for v in run.summary["system_accuracy"].values())
    config = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    assert config["method"] == {"name": "feddrm", "lam": 0.9}
    assert config["data"]["name"] == "digits"
    assert config["rounds"] == 4
    rounds = [entry["round"] for entry in run.metrics()]
    assert rounds[-1] == 4
    evaluation = json.loads((tmp_path / "run" / "evaluation.json").read_text())
    for i, row in enumerate(evaluation["confusion"]["head_density"]):
        assert sum(row) == len(digits.clients[i].test)
    assert [row["name"] for row in evaluation["per_client"]] == list(digits.names)


def test_batches_that_are_mostly_empty_are_warned_of(
    digits: Federation, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    largest = int(digits.sizes.max())
    for size in (9 * largest, 10 * largest):
        train(digits, "fedavg", out=tmp_path / str(size), **{**SMALL, "rounds": 1, "batch_size": size})
    assert [record.getMessage() for record in caplog.records] == [
        f"digits: batches of {10 * largest:,} for clients with at most {largest} samples are mostly empty and slow: "
        f"give --batch-size {largest}"
    ]


def test_a_network_for_gpus_that_nobody_chose_is_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    pictures = np.zeros((8, 32, 32, 3), np.uint8), np.arange(8) % 2
    data = Federation.from_arrays({"oslo": pictures, "lima": pictures}, name="scans")
    quick = {"rounds": 1, "local_steps": 1, "batch_size": 4}
    for name, model in (("own", None), ("asked", "resnet18"), ("branch", {"name": "resnet18", "branch": 8})):
        train(data, "fedavg", out=tmp_path / name, model=model, **quick)
    slow = [text for record in caplog.records if "slow" in (text := record.getMessage())]
    assert slow == ["scans: resnet18 is slow on a CPU: give --model lenet (pictures of 32x32 pixels), or --device cuda"]


def test_the_same_seed_gives_the_same_files(digits: Federation, tmp_path: Path) -> None:
    for name in "ab":
        train(digits, "feddrm", out=tmp_path / name, **SMALL)
    assert files(tmp_path / "a") == files(tmp_path / "b")
    train(digits, "feddrm", out=tmp_path / "c", **{**SMALL, "seed": 4})
    assert files(tmp_path / "a")["metrics.jsonl"] != files(tmp_path / "c")["metrics.jsonl"]


def test_the_number_of_threads_changes_no_bit(digits: Federation, tmp_path: Path) -> None:
    for threads in (1, 3):
        train(digits, "feddrm", out=tmp_path / str(threads), threads=threads, **SMALL)
    one, three = files(tmp_path / "1"), files(tmp_path / "3")
    assert one.pop("config.yaml") != three.pop("config.yaml")
    assert one == three


def test_a_run_is_resumed_with_more_threads(digits: Federation, tmp_path: Path) -> None:
    def interrupt(played: Any, metrics: Any, rounds: int) -> None:
        if played.state.round == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(digits, "feddrm", out=tmp_path / "cut", on_round=interrupt, threads=1, **SMALL)
    train(digits, "feddrm", out=tmp_path / "cut", threads=2, **SMALL)
    train(digits, "feddrm", out=tmp_path / "whole", threads=1, **SMALL)
    assert files(tmp_path / "cut") == files(tmp_path / "whole")


def test_metrics_name_the_clients_that_answered(digits: Federation, tmp_path: Path) -> None:
    run = train(digits, "feddrm", out=tmp_path, participation=0.5, evaluation={"every": 1}, **SMALL)
    assert all(len(entry["answered"]) == 2 for entry in run.metrics())
    assert len({tuple(entry["answered"]) for entry in run.metrics()}) > 1


def test_settings_may_be_numpy_numbers(tmp_path: Path) -> None:
    x, y = np.random.default_rng(0).normal(size=(40, 3)), np.arange(40) % 2
    arrays = {"oslo": (x, y), "lima": (x + 1, y)}
    federation = Federation.from_arrays(arrays, seed=np.int64(3), test_fraction=np.float64(0.5))
    run = train(federation, "fedavg", out=tmp_path / "run", rounds=1)
    assert (run.config["data"]["seed"], run.config["data"]["test_fraction"]) == (3, 0.5)


def test_data_settings_with_a_federation_are_refused(digits: Federation, tmp_path: Path) -> None:
    with refused("data_settings are for data given by name"):
        train(digits, "fedavg", out=tmp_path / "run", data_settings={"clients": 3}, **SMALL)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"method": "fedavgg"}, "unknown method 'fedavgg'; did you mean 'fedavg'"),
        ({"method": FedDRM(lam=1.5), "rounds": 3}, "lam=1.5"),
        ({"method": Method.make("fedavgft", tuning=9), "rounds": 3}, "9 fine-tuning rounds do not fit into 3 rounds"),
        ({"model": "resnet"}, "unknown model 'resnet'; did you mean 'resnet18'"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"lr": -1.0}, "lr=-1.0"),
        ({"round": 3}, "no training setting 'round'; did you mean 'rounds'"),
        ({"participation": 0.0}, "participation=0.0"),
    ],
)
def test_impossible_settings_are_refused_before_data_is_loaded(
    settings: dict[str, Any], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Dataset.find("digits"), "load", lambda _: pytest.fail("data were loaded"))
    with pytest.raises(FeddrmError, match=says):
        train("digits", out=tmp_path / "run", **settings)
    assert not (tmp_path / "run").exists()


def test_settings_of_an_object_become_the_types_of_its_fields(digits: Federation, tmp_path: Path) -> None:
    """A constructor takes anything: numpy's numbers cannot be written, and text would fail in the middle."""
    given = {"method": FedDRM(lam=np.float32(0.5)), "model": Mlp(hidden=np.array([8]))}  # type: ignore[arg-type]
    run = train(digits, out=tmp_path / "run", **{**SMALL, **given})
    assert (run.config["method"]["lam"], run.config["model"]["hidden"]) == (0.5, [8])
    again = {"method": "feddrm", "model": run.config["model"]}
    assert train(digits, out=tmp_path / "again", **{**SMALL, **again}).config["model"] == run.config["model"]
    with refused("lam='x': give a number"):
        train(digits, FedDRM(lam="x"), out=tmp_path / "text")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (
            {"data": {"oslo": ([[0.0]], [1])}},
            "data={'oslo': ([[0.0]], [1])}: give a name or a Federation (by Federation.from_arrays, from_npz, ",
        ),
        ({"method": FedAvg}, "method=FedAvg is a class: give an object, as FedAvg()"),
        ({"model": Mlp}, "model=Mlp is a class: give an object, as Mlp()"),
    ],
)
def test_arguments_of_another_kind_are_refused(tmp_path: Path, given: dict[str, Any], problem: str) -> None:
    with refused(problem):
        train(**({"data": "digits", "rounds": 1, "out": tmp_path / "run"} | given))
    assert not (tmp_path / "run").exists()


def test_one_run_per_seed_and_an_interrupted_one_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Finished runs are kept, the rest equals runs that were trained alone."""
    quick = {key: value for key, value in SMALL.items() if key != "seed"}

    def interrupt(played: Any, metrics: Any, rounds: int) -> None:
        if played.state.round == 2 and (tmp_path / "runs" / "seed-7").exists():
            raise KeyboardInterrupt

    given: dict[str, Any] = {"seeds": (3, 7), "out": tmp_path / "runs", "data_settings": {"clients": 3}, **quick}
    with pytest.raises(KeyboardInterrupt):
        train_seeds("digits", on_round=interrupt, **given)
    kept = (tmp_path / "runs" / "seed-3" / "summary.json").stat()
    runs = train_seeds("digits", progress=True, **given)
    assert capsys.readouterr().err.splitlines() == [
        f"seed 3 (1 of 2) is finished already: {tmp_path / 'runs' / 'seed-3'}",
        f"seed 7 (2 of 2): {tmp_path / 'runs' / 'seed-7'}",
    ]
    assert (tmp_path / "runs" / "seed-3" / "summary.json").stat() == kept
    assert [(run.path.name, run.config["seed"], run.config["data"]["seed"]) for run in runs] == [
        ("seed-3", 3, 3),
        ("seed-7", 7, 7),
    ]
    alone = train("digits", out=tmp_path / "alone", data_settings={"clients": 3, "seed": 7}, seed=7, **quick)
    assert files(runs[1].path) == files(alone.path)


def test_seeds_keep_a_division_that_was_chosen(digits: Federation, tmp_path: Path) -> None:
    quick = {**{key: value for key, value in SMALL.items() if key != "seed"}, "rounds": 1}
    for data, chosen in (("digits", {"clients": 3, "seed": 5}), (digits, None)):
        runs = train_seeds(data, seeds=range(2), out=tmp_path / str(chosen), data_settings=chosen, **quick)
        assert [run.config["seed"] for run in runs] == [0, 1]
        assert len({json.loads((run.path / "data.json").read_text())["digest"] for run in runs}) == 1


def test_impossible_seeds_are_refused(digits: Federation, tmp_path: Path) -> None:
    quick = {key: value for key, value in SMALL.items() if key != "seed"}
    for seeds in ((), (1, 1)):
        with refused(f"seeds={list(seeds)}: give different whole numbers"):
            train_seeds(digits, seeds=seeds, out=tmp_path / "runs", **quick)
    for seeds, says in (
        ((0, 2**32), "seed=4294967296: out of range"),
        ((0, 1.5), "seeds=(0, 1.5): give a list, each item a whole number"),
    ):
        with refused(says):
            train_seeds(digits, seeds=seeds, out=tmp_path / "runs", **quick)  # type: ignore[arg-type]
    with refused("no seed beside them"):
        train_seeds(digits, seeds=(0, 1), out=tmp_path / "runs", **SMALL)
    assert not (tmp_path / "runs").exists()
    train(digits, out=tmp_path / "one", rounds=1)
    with refused("is itself a run"):
        train_seeds(digits, seeds=(0, 1), out=tmp_path / "one", **quick)


def test_columns_of_very_different_scales_are_warned_of_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    x = np.random.default_rng(0).normal(0, [1, 1000], (20, 2))
    fed = Federation.from_arrays({"oslo": (x, np.arange(20) % 2), "lima": (x, np.arange(20) % 2)})
    train(fed, "fedavg", out=tmp_path / "run", rounds=1, local_steps=1, batch_size=4)
    assert [record.message for record in caplog.records] == [fed.scale_warning()]
    assert capsys.readouterr().out == ""

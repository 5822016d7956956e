"""The names of a run's files: they are a contract with other tools and with older runs."""

from __future__ import annotations

from pathlib import Path

from feddrm.io.run_files import ClientFiles, RunFiles


def names(files: RunFiles | ClientFiles) -> dict[str, str]:
    root = files.path
    return {key: str(path.relative_to(root)) for key, path in vars(files).items() if key != "path"}


def test_the_names_of_a_run() -> None:
    assert names(RunFiles("runs/first")) == {
        "config_file": "config.yaml",
        "metrics_file": "metrics.jsonl",
        "summary_file": "summary.json",
        "evaluation_file": "evaluation.json",
        "facts_file": "data.json",
        "pictures_file": "data.safetensors",
        "traffic_file": "router_traffic.json",
        "report_file": "report.html",
        "tensorboard": "tensorboard",
        "checkpoint": "checkpoint",
        "state_file": "checkpoint/state.safetensors",
        "state_shards": "checkpoint/private",
        "seconds_file": "checkpoint/seconds.json",
        "lock_file": "checkpoint/lock",
        "router": "router",
        "shared_file": "router/shared.safetensors",
        "commit_file": "router/.commit",
        "clients": "clients",
        "serving_file": "serving.json",
    }


def test_the_names_of_a_client() -> None:
    files = RunFiles("runs/first").client("oslo")
    assert files.path == Path("runs/first/clients/oslo")
    assert names(files) == {
        "private_file": "private.safetensors",
        "head_file": "head.safetensors",
        "scale_file": "scale.json",
        "temperature_file": "temperature.json",
        "shared_file": "shared.safetensors",
    }

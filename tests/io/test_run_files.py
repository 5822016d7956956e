"""The names of a run's files: they are a contract with other tools and with older runs."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feddrm.io.run_files import ClientFiles, RunFiles, check_client_names
from refusal import refused


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


def test_too_few_clients_are_refused() -> None:
    for names in ((), ("oslo",)):
        with refused("toy", f"at least two clients, got {len(names)}", "add another"):
            check_client_names("toy", names)


@pytest.mark.parametrize("name", ["", " ", ".", "..", "a/b", "a\\b", "a\0b", "a\nb", "a\rb", "a\x1bb"])
def test_names_that_cannot_name_a_folder_are_refused(name: str) -> None:
    with refused("toy", repr(name), "letters, digits"):
        check_client_names("toy", ["oslo", name])


@pytest.mark.parametrize("name", ["lima,pune", ",", "Lima, Peru"])
def test_names_with_a_comma_are_refused(name: str) -> None:
    """A comma separates the clients in queries (without=lima,pune) and in the audit log."""
    with refused("toy", repr(name), "has a comma", "'-' or '_'"):
        check_client_names("toy", ["oslo", name])


def test_names_too_long_for_a_folder_are_refused() -> None:
    check_client_names("toy", ["oslo", "ø" * 100])
    with refused("toy", "'øøøøøøøøøøøøøøøøøøøø...' has 202 bytes", "at most 200"):
        check_client_names("toy", ["oslo", "ø" * 101])


@pytest.mark.parametrize("other", ["oslo", "OSLO", "Oslo"])
def test_names_that_differ_only_in_case_are_refused(other: str) -> None:
    with refused(f"duplicate client name '{other}'", "also 'oslo'", "rename"):
        check_client_names("toy", ["oslo", other])


def test_names_in_two_unicode_forms_are_refused() -> None:
    with refused("duplicate client name"):
        check_client_names("toy", ["k\u00f6ln", "ko\u0308ln"])


@given(st.lists(st.from_regex(r"[a-z0-9_-]{1,12}", fullmatch=True), min_size=2, unique=True))
def test_ordinary_names_are_accepted(names: list[str]) -> None:
    check_client_names("toy", names)

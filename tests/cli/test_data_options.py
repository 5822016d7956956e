"""The options that describe a federation."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli.conftest import assert_one_line, call
from feddrm.cli.data_options import sectioned_settings
from refusal import refused


def test_set_overrides_an_option(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys, "data", "info", "digits", "--clients", "3", "--set", "clients=4", "--json")
    assert (code, len(json.loads(out)["clients"])) == (0, 4)


@pytest.mark.parametrize("key", ["clients", "data.clients"])
def test_a_setting_may_name_its_section(key: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys, "data", "info", "digits", "--set", f"{key}=4", "--json")
    assert (code, len(json.loads(out)["clients"])) == (0, 4)


def test_a_key_goes_to_the_only_section_that_has_it() -> None:
    sections = {"data": {"seed", "alpha"}, "training": {"seed", "lr"}}
    assert sectioned_settings(["alpha=1", "training.seed=2", "data.seed=a.b=c", "training.l-r=3"], sections) == {
        "data": {"alpha": "1", "seed": "a.b=c"}, "training": {"seed": "2", "l_r": "3"}
    }  # fmt: skip
    assert sectioned_settings(None, sections) == {"data": {}, "training": {}}
    with refused("--set seed=...", "data.seed or training.seed"):
        sectioned_settings(["seed=1"], sections)
    with refused("no such setting; did you mean 'alpha'"):
        sectioned_settings(["alfa=1"], sections)
    with refused("no settings of 'model' here", "data.x or training.x"):
        sectioned_settings(["model.x=1"], sections)


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["data", "info", "digits", "--set", "colour"], 2, "write it as data.KEY=VALUE"),
        (["data", "info", "csv", "--set", "drop=a", "--set", "drop=b"], 2, "given twice: give it once, several values"),
        (["data", "info", "csv", "--set", "drop=a", "--set", "data.drop=b"], 2, "given twice"),
        (["data", "info", "digits", "--set", "model.x=1"], 2, "no settings of 'model' here: write data.x"),
        (["data", "info", "digits", "--shards", "3"], 2, "--shards 3 is for --partition shards"),
        (["data", "info", "digits", "--partition", "iid", "--alpha", "0.9"], 2, "--alpha 0.9 is for --partition dir"),
    ],
)
def test_mistakes_are_one_line(
    words: list[str], code: int, says: str, capsys: pytest.CaptureFixture[str], no_data: Path
) -> None:
    assert_one_line(call(capsys, *words), code, says)

"""The options that describe a federation."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli.conftest import assert_one_line, call


def test_set_overrides_an_option(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys, "data", "info", "digits", "--clients", "3", "--set", "clients=4", "--json")
    assert (code, len(json.loads(out)["clients"])) == (0, 4)


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["data", "info", "digits", "--set", "colour"], 2, "write it as KEY=VALUE"),
        (["data", "info", "csv", "--set", "drop=a", "--set", "drop=b"], 2, "given twice: give it once, several values"),
        (["data", "info", "digits", "--shards", "3"], 2, "--shards 3 is for --partition shards"),
        (["data", "info", "digits", "--partition", "iid", "--alpha", "0.9"], 2, "--alpha 0.9 is for --partition dir"),
    ],
)
def test_mistakes_are_one_line(
    words: list[str], code: int, says: str, capsys: pytest.CaptureFixture[str], no_data: Path
) -> None:
    assert_one_line(call(capsys, *words), code, says)

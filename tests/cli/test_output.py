"""Tables and JSON on standard output."""

from __future__ import annotations

import json
import re

import pytest

from cli.conftest import call
from feddrm.cli.output import print_json, print_table, reason_text, resumable, set_text
from feddrm.errors import FeddrmError


def test_a_narrow_terminal_cuts_no_figure(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal wraps long lines; a figure that is spread over several lines cannot be read."""
    words = ("data", "info", "digits", "--seed", "0")
    facts = json.loads(call(capsys, *words, "--json")[1])
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "40")
    out = re.sub(r"\x1b\[[\d;]*m", "", call(capsys, *words)[1])
    for client in facts["clients"]:
        row = next(line for line in out.splitlines() if line.split()[:1] == [client["name"]])
        assert row.split()[1:13] == [str(n) for n in (client["train"], client["test"], *client["class_counts"])]


def test_a_table_is_aligned_and_brackets_are_no_markup(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(["name", "count"], [["[red]oslo", 5], ["lima", 12]], title="clients")
    title, *lines = [line.rstrip() for line in capsys.readouterr().out.splitlines() if line.strip()]
    assert title == "clients"
    rows = [line for line in lines if line.split()[-1] in ("count", "5", "12")]
    assert [row.split() for row in rows] == [["name", "count"], ["[red]oslo", "5"], ["lima", "12"]]
    assert len({len(row) for row in rows}) == 1  # numbers end in one column
    print_table(["[/x]", "[red]stage"], [["a", "b"]], title="run[lr] [/y]")
    title, head = [line.strip() for line in capsys.readouterr().out.splitlines() if line.strip()][:2]
    assert (title, head.split()) == ("run[lr] [/y]", ["[/x]", "[red]stage"])


def test_long_text_is_not_wrapped_outside_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    text = "word " * 100
    print_table(["text"], [[text]])
    assert text.strip() in capsys.readouterr().out


@pytest.mark.parametrize("columns", [None, "40", "120"])
def test_rows_that_need_no_wrapping_are_as_rich_prints_them(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: str | None
) -> None:
    """Rich draws all rows of a table that has a cell of two lines."""
    if columns is not None:
        monkeypatch.setenv("FORCE_COLOR", "1")
        monkeypatch.setenv("COLUMNS", columns)
    header = ["name", "日本", "[x]"]
    rows = [["oslo", 5, ""], ["日本語", 12, "[red]a b"], ["e\u0301t", -1.5, "None"]]
    print_table(header, rows, title="a title that is longer than its table")
    *ours, bottom = capsys.readouterr().out.splitlines()
    print_table(header, [*rows, ["a\nb", 0, ""]], title="a title that is longer than its table")
    *richs, first, second, rich_bottom = capsys.readouterr().out.splitlines()
    assert (ours, bottom) == (richs, rich_bottom)
    assert (first.split()[0], second.split()) == ("a", ["b"])


def test_json_keeps_letters_beyond_ascii(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"client": "malmö"})
    out = capsys.readouterr().out
    assert "malmö" in out
    assert json.loads(out) == {"client": "malmö"}


def test_ctrl_c_in_resumable_work_says_so() -> None:
    with pytest.raises(FeddrmError, match="the same command goes on where it stopped"), resumable():
        raise KeyboardInterrupt


def test_a_reason_names_the_values_that_cannot_be() -> None:
    flag = {"column": "age", "value": 300, "problem": "outside 0..120 years"}
    assert reason_text({"reason": "a value cannot be", "flags": [flag, {**flag, "column": "dose"}]}) == (
        "a value cannot be (age 300: outside 0..120 years; dose 300: outside 0..120 years)"
    )
    assert reason_text({"reason": "unsure between clients"}) == "unsure between clients"


def test_label_sets_that_are_empty_or_not_given_look_different() -> None:
    assert [set_text(label_set) for label_set in (("3", "5"), (), None)] == ["3, 5", "none", "-"]

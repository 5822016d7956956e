"""docs/deploy.md: its commands run; figures of docs/deploy_privacy.md and of its speed are in results/bench."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from commands import feddrm_command
from documentation import ROOT, command_words, run_command


@pytest.mark.deploy
@pytest.mark.slow
def test_the_commands_run(tmp_path: Path) -> None:
    """Those of the second block serve the run: test_end_to_end.py runs them, docs/serve.md has the same query."""
    commands = command_words("docs/deploy.md")
    deploy = [words for words in commands if words[1] == "deploy"]
    assert [words[1] for words in commands[len(deploy) :]] == [*3 * ["serve-client"], "serve", "query"]
    assert commands[-1] in command_words("docs/serve.md")
    try:
        for words in deploy:
            run_command(words, tmp_path)
    finally:
        feddrm_command("deploy", "down", tmp_path / "federation")  # does nothing if the page's own has run


def test_the_figures_of_privacy_are_the_measured_ones() -> None:
    figures = json.loads((ROOT / "results" / "bench" / "deploy_privacy.json").read_text())
    names = {None: "no privacy", 0.0: "clipping alone"}
    page = (ROOT / "docs" / "deploy_privacy.md").read_text()
    for row in figures["rows"]:
        epsilon = "-" if row["epsilon"] is None else f"{row['epsilon']:,.0f}"
        accuracy = f"{100 * row['accuracy']:.1f} ({100 * row['std']:.1f})"
        assert f"| {names.get(row['noise'], row['noise'])} | {epsilon} | {accuracy} |" in page
    assert figures["date"] in page


def test_the_figures_of_speed_are_the_measured_ones() -> None:
    figures = json.loads((ROOT / "results" / "bench" / "deploy.json").read_text())
    page = (ROOT / "docs" / "performance.md").read_text()
    decision = (ROOT / "docs" / "decisions" / "0007-resident-only.md").read_text()
    ways = {"one_process": [page], "resident": [page, decision], "process_per_message": [decision]}
    for way, text in ((way, text) for way, texts in ways.items() for text in texts):
        assert f"| {figures[way]['round_seconds']:.2f} |" in text
    assert f"{figures['resident']['bytes_to_a_site']:,} bytes go to a site" in page
    assert f"{figures['resident']['bytes_from_a_site']:,} come back" in page

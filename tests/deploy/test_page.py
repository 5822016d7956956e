"""The commands of docs/deploy.md are those of the README, which are executed by its own test."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


def commands(page: str) -> list[str]:
    blocks = re.findall(r"```console\n(.*?)```", (ROOT / page).read_text(), flags=re.DOTALL)
    return [line for block in blocks for line in block.splitlines() if line.startswith("feddrm deploy")]


def test_same_commands() -> None:
    assert commands("docs/deploy.md") == commands("README.md") != []
